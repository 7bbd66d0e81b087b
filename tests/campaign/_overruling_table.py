"""docs/effective.md: questions that a node answers, their checks, and ways to change the answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gpuprov.drift.observations.registry import READS
from gpuprov.roles import OVERRULED
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS, UNPACKAGED_CHECKS
from tests import ROOT
from tests.campaign._questions import Question, by_question
from tests.lab.overruling import ELSEWHERE

HEAD = """\
# Checks of the state in effect

`scripts/campaign mutations --markdown` generates this page; a unit test compares it with the code. An
expectation is about a node's behaviour: the result of all files, links, variables and commands, including
those of other programs and users. Each section is a question that the node itself answers. Drift and verify
ask it independently: drift reads the listed facts, verify runs the listed test.

The second table of a section lists known ways to change the answer, each applied to a node, or to facts of
one, by the test in its last column, and the reaction of apply:

- **mends**: apply corrects it.
- **fails**: apply makes all other changes, then fails for that node and names the place (`path:line`). A file
  that gpuprov has not written is neither changed nor removed: remove the line there, or state its value in
  the fleet, lock and apply again.

Drift names the place as well: `tuning.limits expected nofile 16384, is nofile 4096, by
/etc/security/limits.d/zz-site.conf:1`.
"""
TEST = re.compile(r'mark\.check\(\s*"([^"]+)"[^@]*?\ndef (test_\w+)')
TAIL = """
## Not checked, by design

- Settings of a single job, container or user: its own environment, `ulimit`, `nvidia-smi` while it runs. Of
  users' own files, only those of root, of the login and in `/etc/skel` are read (`~/.nccl.conf`,
  `~/.profile`). Of root's `~/.bashrc` only what a login or a command over ssh reads, not what it does for
  terminals alone: it may start programs. `~/.pam_environment`, and variables at the top of cron tables, are
  of one user or of its jobs.
- Variables that a table of cron lacks: a job gets those that PAM sets, and no login files of a shell.
- Whether a file of sshd whose time of modification is later than the last reload has other content: it counts
  as changed. /etc/default/ssh counts by the options that it states.
- Drop-ins of units that systemd has not read yet, before a reload or a boot; masks and other unit files are
  judged as the next boot reads them.
- Conditions of a package's own unit that ask about anything but files in /etc, such as a loaded driver: they
  concern the present state.
- Other commands of a site's drop-in that can prevent a start, such as ExecCondition: only a start shows their
  result. Any drop-in of gpuprov's own units is reported.
- What a site sets beyond the locked values in `daemon.json` and the configuration of containerd and Podman.
- The order of actions in PAM's stacks: each line of pam_env counts. Without pam_limits a session has the
  limits of its service, which are checked.
- Lines of limits.conf(5) for a user or a group by name: they are intended exceptions.
- Match blocks of sshd for a user or a group by name, other than root and the login: they are intended
  exceptions. An sshd in a container, or of another user than root.
- Methods that ask for a password, if the lock states no SSH settings: images of clouds differ in them.
- Tables of nftables other than gpuprov's: they can refuse more, and cannot accept what gpuprov's table
  refuses. That firewalld runs or is enabled is reported (`firewall.unit`).
- The start command of a packaged unit (`docker.service`, an exporter), if it starts the same program with the
  same configuration: a drop-in there belongs to the site. An exporter that reads its text files from another
  folder is not detected.
- The toolkit of a runfile if no toolkit is locked.
- Loading of nvidia-modeset, nvidia-drm and nvidia-peermem: no lock requires them, and sites disable the first
  two so that a GPU can be reset.
- The package that brings the headers of each new kernel (linux-headers-amd64): without it GRUB holds a new
  kernel back, `kernel.headers` names it, and apply installs its headers.
- An initramfs with an older driver that no setting of initramfs-tools or dracut adds: the list of an
  image takes seconds.
- Of the files of locked packages: documentation, configuration files, folders, modes that dpkg-statoverride
  states, and files that another package diverts. Drift compares size, mode, owner, link and times with
  those of the last apply, and the package's checksum if only times differ. Of a package that dpkg has
  unpacked since then, and before the first apply, drift reports missing, empty and locally diverted files
  alone; verify always compares checksums. Each reads at most 256 MiB, verify first those files that changed
  last; of further files size and time of modification count.
- A newer version at the priority of the lock's version, in its source or in the archive: the hold prevents
  that upgrade.
"""


def markdown() -> str:
    """Return the page."""
    sections = (
        _section(question, checks) for question, checks in by_question({*READS, *verify_tests()}).items()
    )
    return HEAD + "".join(f"{line}\n" for section in sections for line in section) + TAIL


def verify_tests() -> dict[str, str]:
    """Return check → `file::test` of verify's suite."""
    found = dict.fromkeys(PACKAGE_CHECKS, "components::every package at its version")
    found |= dict.fromkeys(ABSENT_CHECKS, "components::no package of it")
    found |= dict.fromkeys(UNPACKAGED_CHECKS, "components::nothing without a package")
    for path in sorted((ROOT / "gpuprov/verify/suite").glob("test_*.py")):
        for check, name in TEST.findall(path.read_text(encoding="utf-8")):
            found.setdefault(check, f"{path.stem.removeprefix('test_')}::{name}")
    return found


def _section(question: Question, checks: Collection[str]) -> Iterator[str]:
    """Yield the lines of a question: its checks, then the known ways to change their result."""
    tests = verify_tests()
    yield from ("", f"## {question.text}", "", "| check | drift reads | verify runs |", "|---|---|---|")
    for check in checks:
        reads = ", ".join(READS.get(check, ())) or "nothing"
        yield f"| `{check}` | {reads} | {tests.get(check, 'nothing')} |"
    ways = [each for each in OVERRULED if each.check in checks]
    if ways:
        yield from ("", "| setting or component | way | check | apply | tested by |", "|---|---|---|---|---|")
    for each in ways:
        tried = ELSEWHERE.get((each.check, each.by), "scripts/campaign mutations")
        where = f"`{tried}`" if "/" in tried else tried
        yield f"| {' | '.join((each.of, each.by, f'`{each.check}`', each.apply, where))} |"
