"""Notes of a release: its section of CHANGELOG.md, and how to verify its files."""

from __future__ import annotations

import re

from gpuprov.errors import InvalidInput
from maintenance.release.locked import ROOT
from maintenance.release.sums import VERIFY

CHANGELOG = ROOT / "CHANGELOG.md"
TEXT = """\
# gpuprov {version}

{changes}

## Verify the files

In the folder with the files that you have downloaded:

    {verify}

`gpgv` must name the key whose fingerprint the project states in another place than this one.
"""


def notes(version: str, changelog: str) -> str:
    """Return the text of a release: its section of CHANGELOG.md, and how to verify its files.

    Args:
        version: heading of the section, such as `0.1.0`.
        changelog: text of CHANGELOG.md.

    Raises:
        InvalidInput: the section is missing or empty.
    """
    section = re.search(
        rf"^## {re.escape(version)}(?![\w.])[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None or not section[1].strip():
        raise InvalidInput(
            f"CHANGELOG.md has no entries for {version}",
            expected=f"a section `## {version}`",
            do="rename the section Unreleased, or name the section with --section",
        )
    return TEXT.format(version=version, changes=section[1].strip(), verify=VERIFY)
