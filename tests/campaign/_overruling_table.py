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
# What counts is what is in force

Written by `scripts/campaign mutations --markdown`; a unit test holds it against the code. An expectation is
about what a node does, after every file, link, variable and order of somebody else's. This is who could have
the last word about each setting and component, what each witness looks at, and what apply does:

- **mends**: apply takes it back.
- **fails**: apply does everything else, then fails for that node and names the place (`path:line`). A file of
  somebody else's is neither changed nor removed: take the line out there, or state its value in the fleet,
  lock and apply again.

Drift names the place as well: `tuning.limits expected nofile 16384, is nofile 4096, by
/etc/security/limits.d/zz-site.conf:1`. *Tried* says where a node, or a reading of one, was overruled so.

| setting or component | who could overrule it | check | drift reads | verify runs | apply | tried |
|---|---|---|---|---|---|---|
"""
TEST = re.compile(r'mark\.check\(\s*"([^"]+)"[^@]*?\ndef (test_\w+)')
TAIL = """
## Not judged, on purpose

- What a job, a container or a user asks for itself: its own environment, `ulimit`, `nvidia-smi` inside its
  time. Of users' own files only root's, the login's and `/etc/skel` are read (`~/.nccl.conf`, `~/.profile`).
- Lines of limits.conf(5) for a user or a group by name: they are exceptions that somebody made.
- Tables of nftables beside gpuprov's: they can refuse more, and cannot let in what gpuprov's refuses.
- What a unit of a package's starts (`docker.service`, an exporter), as long as it reads the same
  configuration: a drop-in there is the site's. An exporter that reads its text files from another
  folder is not noticed.
- A runfile's toolkit where no toolkit is locked.
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
