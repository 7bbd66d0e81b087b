"""docs/effective.md: what can override each setting and component, the checks, and apply's reaction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.drift.observations.registry import READS
from gpuprov.roles import OVERRULED
from gpuprov.roles.components import PACKAGE_CHECKS, UNPACKAGED_CHECKS
from tests import ROOT
from tests.lab.overruling import ELSEWHERE

HEAD = """\
# Overrides: checks of the state in effect

`scripts/campaign mutations --markdown` generates this page; a unit test compares it with the code. An
expectation is about a node's behaviour: the result of all files, links, variables and commands, including
those of other programs and users. The table lists for each setting and component what can override it, what
drift and verify read, and the reaction of apply:

- **mends**: apply corrects it.
- **fails**: apply makes all other changes, then fails for that node and names the place (`path:line`). A file
  that gpuprov has not written is neither changed nor removed: remove the line there, or state its value in
  the fleet, lock and apply again.

Drift names the place as well: `tuning.limits expected nofile 16384, is nofile 4096, by
/etc/security/limits.d/zz-site.conf:1`. The column *tested* names the test that applies the override to a
node, or to facts of one.

| setting or component | possible override | check | drift reads | verify runs | apply | tested |
|---|---|---|---|---|---|---|
"""
TEST = re.compile(r'mark\.check\(\s*"([^"]+)"[^@]*?\ndef (test_\w+)')
TAIL = """
## Not checked, by design

- Settings of a single job, container or user: its own environment, `ulimit`, `nvidia-smi` while it runs. Of
  users' own files, only those of root, of the login and in `/etc/skel` are read (`~/.nccl.conf`,
  `~/.profile`).
- Lines of limits.conf(5) for a user or a group by name: they are intended exceptions.
- Tables of nftables other than gpuprov's: they can refuse more, and cannot accept what gpuprov's table
  refuses.
- The start command of a packaged unit (`docker.service`, an exporter), if it reads the same configuration: a
  drop-in there belongs to the site. An exporter that reads its text files from another folder is not
  detected.
- The toolkit of a runfile if no toolkit is locked.
"""


def markdown() -> str:
    """Return the page."""
    return HEAD + "".join(f"{line}\n" for line in _rows()) + TAIL


def verify_tests() -> dict[str, str]:
    """Return check → `file::test` of verify's suite."""
    found = dict.fromkeys(PACKAGE_CHECKS, "components::every package at its version")
    found |= dict.fromkeys(UNPACKAGED_CHECKS, "components::nothing without a package")
    for path in sorted((ROOT / "gpuprov/verify/suite").glob("test_*.py")):
        for check, name in TEST.findall(path.read_text(encoding="utf-8")):
            found.setdefault(check, f"{path.stem.removeprefix('test_')}::{name}")
    return found


def _rows() -> Iterator[str]:
    tests = verify_tests()
    for each in OVERRULED:
        reads = ", ".join(READS[each.check])
        tried = ELSEWHERE.get((each.check, each.by), "scripts/campaign mutations")
        where = f"`{tried}`" if "/" in tried else tried
        cells = (each.of, each.by, f"`{each.check}`", reads, tests[each.check], each.apply, where)
        yield f"| {' | '.join(cells)} |"
