"""The collection by every ansible-core that it names, on every Python that one takes, on a real node.

    scripts/campaign ansible [INTERPRETER]... [--markdown]

Each pair is an environment without gpuprov. It must mend what was changed by hand, then find nothing to do,
and read fleet.yml through the inventory plugin. Pythons: those in PATH and among pyenv's versions, or those
named. With --markdown the table goes into docs/COLLECTION.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from gpuprov.lab import Lab, Node
from tests import ROOT
from tests.campaign.pythons import candidates, full_version, versions
from tests.lab.plain_ansible import PATH, PlainAnsible, locked_nodes

PAGE, HEADING = ROOT / "docs/COLLECTION.md", "## Versions\n"
SITE, REBOOT = "gpuprov.gpuprov.site", "gpuprov.gpuprov.reboot"
BY_HAND = (
    "apt-mark unhold libcuda1 && rm /etc/modprobe.d/gpuprov-nouveau.conf && nvidia-smi --persistence-mode=0"
)
ABOUT = """\
What each ansible-core did on a lab node (Debian 12) that was changed by hand (`scripts/campaign ansible`):
tasks that changed the node, tasks of a second run that did, groups that the inventory plugin read from
`fleet.yml`, warnings of deprecation in the first run.
"""


@dataclass(frozen=True)
class Row:
    """What one pair did; `why` says that there is no such pair."""

    ansible: str
    python: str
    first: int = 0
    second: int = 0
    groups: int = 0
    deprecated: int = 0
    seconds: float = 0
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether it is a pair that did what it had to do."""
        return bool(self.first and not self.second and self.groups)


def main() -> int:
    """Run the campaign; 1 when a pair that exists did not do what it had to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--markdown", action="store_true")
    stated = parser.parse_args()
    found: dict[str, str] = {}
    for name in stated.pythons or candidates(versions()):
        if full := full_version(name):
            found.setdefault(full.rpartition(".")[0], name)
    with tempfile.TemporaryDirectory(prefix="gpuprov-ansible-") as folder, Lab("campaign-ansible") as lab:
        rows = list(tried(Path(folder), lab, found))
    bad = [row for row in rows if not row.good and not row.why]
    if stated.markdown:
        before, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
        PAGE.write_text(f"{before}{HEADING}\n{ABOUT}\n" + "\n".join(table(rows)) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))
    print(f"{sum(row.good for row in rows)} pairs good, {len(bad)} bad")
    return 1 if bad or not any(row.good for row in rows) else 0


def tried(folder: Path, lab: Lab, pythons: dict[str, str]) -> Iterator[Row]:
    """A row for each pair, found or not."""
    [node] = locked_nodes(lab, folder, 1)
    fleet = (folder / "fleet.yml").read_text()
    (folder / "fleet.yml").write_text(f"plugin: gpuprov.gpuprov.gpuprov\n{fleet}")
    here = PlainAnsible(folder)
    here.install()
    here.changes(SITE)
    here.changes(REBOOT, "-e", "gpuprov_reboot=true")
    for core in cores():
        for version in versions():
            if version not in pythons:
                row = Row(core, version, why="no such Python here")
            else:
                row = pair(folder, node, core, pythons[version], version)
            print(row, flush=True)
            yield row


def cores() -> list[str]:
    """Those that meta/runtime.yml names, such as 2.19."""
    [named] = re.findall(r'requires_ansible: "(.+)"', (ROOT / "meta/runtime.yml").read_text())
    return [f"2.{minor}" for minor in range(100) if f"2.{minor}.0" in SpecifierSet(named)]


def pair(folder: Path, node: Node, core: str, python: str, version: str) -> Row:
    """Try one pair in an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-pair-") as place:
        subprocess.run([python, "-m", "venv", place], check=True)
        pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet"]
        wanted = [f"ansible-core=={core}.*", "--requirement", ROOT / "meta/requirements.txt"]
        installed = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if installed.returncode:
            [*_, why] = re.findall(r"Requires-Python (\S+)", installed.stderr) or ["not found"]
            return Row(core, version, why=f"this ansible-core wants {why}" if why != "not found" else why)
        ansible = PlainAnsible(folder, Path(place) / "bin")
        [full] = re.findall(r"core ([\d.]+)\]", ansible.run("ansible", "--version"))
        began = time.monotonic()
        node.run(BY_HAND)
        said = ansible.run("ansible-playbook", "--inventory", "ansible", SITE)
        [first] = re.findall(r"changed=(\d+)", said)
        [second] = ansible.changes(SITE).values()
        # The plugin calls gpuprov: that of this checkout, which an Ansible without one finds on the PATH.
        path = f"{Path(sys.executable).parent}:{PATH}"
        groups = ansible.run("ansible-inventory", "-i", "fleet.yml", "--graph", path=path).count("--@")
        seconds = time.monotonic() - began
        return Row(
            full, full_version(python), int(first), second, groups, said.count("[DEPRECATION"), seconds
        )


def table(rows: list[Row]) -> Iterator[str]:
    """The rows as Markdown."""
    yield "| ansible-core | Python | changed | second run | groups | deprecations | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        done = f"{row.first} | {row.second} | {row.groups} | {row.deprecated} | {row.seconds:.0f}"
        yield f"| {row.ansible} | {row.python} | {row.why or done} |" + " | | | |" * bool(row.why)


if __name__ == "__main__":
    sys.exit(main())
