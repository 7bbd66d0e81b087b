"""Runs the collection with every supported ansible-core and Python version, on two real nodes.

    scripts/campaign ansible [INTERPRETER]... [--here] [--results FILE] [--markdown]

Each pair of versions has an environment without gpuprov. It must correct changes made by hand on both nodes,
then find nothing to do, and read fleet.yml through the inventory plugin. Interpreters are those in PATH and
among pyenv's versions, or those named. FILE is written after each pair; a successful pair in it is not tried
again. With --markdown the table is written to docs/collection.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.campaign.pythons import candidates, full_version, versions
from tests.lab.plain_ansible import PATH, PlainAnsible, locked_nodes

PAGE, HEADING = ROOT / "docs/collection.md", "## Versions\n"
SITE, REBOOT = "gpuprov.gpuprov.site", "gpuprov.gpuprov.reboot"
BY_HAND = (
    "apt-mark unhold libcuda1 && rm /etc/modprobe.d/gpuprov-nouveau.conf && nvidia-smi --persistence-mode=0"
)
FLEET = {
    "plugin": "gpuprov.gpuprov.gpuprov",
    "groups": {"train": {"profile": "hgx-h100-8", "os": "debian12", "hosts": "gpu[01-02]"}},
}
HERE = {
    "name": "A role in check mode",
    "hosts": "localhost",
    "connection": "local",
    "gather_subset": ["!all", "!min", "python"],
    "roles": ["gpuprov.gpuprov.container_toolkit"],
}
"""Play that reads this machine by a script of the role, and changes nothing."""
ABOUT = """\
Measured by `scripts/campaign ansible`. The columns are: roles that `ansible-doc` lists; groups that the
inventory plugin reads from a `fleet.yml`; tasks of a role in check mode on the controller; on two lab nodes
(Debian 12) with manual changes, the tasks of `site` that changed each node, and those of a second run that
did; deprecation warnings (`-`: run with `--here`, without nodes).
"""


@dataclass(frozen=True)
class Row:
    """Result of one pair; `why` is the reason if the pair does not exist."""

    ansible: str
    python: str
    roles: int = 0
    groups: int = 0
    checked: int = 0
    first: int | None = None
    second: int | None = None
    deprecated: int | None = None
    seconds: float = 0
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether the pair passed all that was tried."""
        return bool(self.roles and self.groups and self.checked and self.first != 0 and not self.second)

    @property
    def whole(self) -> bool:
        """Whether the pair passed, including on nodes."""
        return self.good and self.first is not None


def main() -> int:
    """Run the campaign; return 1 if a pair that exists failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--here", action="store_true", help="without a node")
    parser.add_argument("--results", type=Path, help="keep rows here; good ones count next time")
    parser.add_argument("--markdown", action="store_true")
    stated = parser.parse_args()
    found: dict[str, str] = {}
    for name in stated.pythons or candidates(versions()):
        if full := full_version(name):
            found.setdefault(full.rpartition(".")[0], name)
    with tempfile.TemporaryDirectory(prefix="gpuprov-ansible-") as name, ExitStack() as labs:
        folder = Path(name)
        nodes = [] if stated.here else prepared(labs.enter_context(Lab("campaign-ansible")), folder)
        rows = []
        known = earlier(stated.results)
        for row in tried(folder, nodes, found, known):
            rows.append(row)
            known[minor(row.ansible), minor(row.python)] = row
            if stated.results:
                stated.results.write_text(json.dumps([asdict(each) for each in known.values()], indent=1))
    bad = [row for row in rows if not row.good and not row.why]
    if stated.markdown:
        before, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
        PAGE.write_text(f"{before}{HEADING}\n{ABOUT}\n" + "\n".join(table(rows)) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))
    print(f"{sum(row.good for row in rows)} pairs good, {len(bad)} bad")
    return 1 if bad or not any(row.good for row in rows) else 0


def earlier(results: Path | None) -> dict[tuple[str, str], Row]:
    """Return both minor versions → row of an earlier run, if it passed."""
    if not results or not results.exists():
        return {}
    rows = [Row(**each) for each in json.loads(results.read_text())]
    return {(minor(row.ansible), minor(row.python)): row for row in rows if row.good}


def minor(version: str) -> str:
    """Return the minor version: 2.19 from 2.19.14 or from 2.19."""
    return ".".join(version.split(".")[:2])


def tried(
    folder: Path, nodes: list[Node], pythons: dict[str, str], known: dict[tuple[str, str], Row]
) -> Iterator[Row]:
    """Yield a row for each pair, including missing ones."""
    PlainAnsible(folder).install()
    (folder / "fleet.yml").write_text(json.dumps(FLEET))
    (folder / "here.yml").write_text(json.dumps([HERE]))
    for core in cores():
        for version in versions():
            row = known.get((core, version))
            if row and (row.whole or not nodes):
                pass
            elif version in pythons:
                row = pair(folder, nodes, core, pythons[version], version)
            else:
                row = row or Row(core, version, why="no such Python here")
            print(row, flush=True)
            yield row


def prepared(lab: Lab, folder: Path) -> list[Node]:
    """Return two nodes that the collection has brought to their lock."""
    nodes = locked_nodes(lab, folder, 2)
    ansible = PlainAnsible(folder)
    ansible.install()
    ansible.changes(SITE)
    ansible.changes(REBOOT, "-e", "gpuprov_reboot=true", "-e", "gpuprov_reboot_batch=2")
    return nodes


def cores() -> list[str]:
    """Return the versions in meta/runtime.yml, such as 2.19."""
    [named] = re.findall(r'requires_ansible: "(.+)"', (ROOT / "meta/runtime.yml").read_text())
    return [f"2.{minor}" for minor in range(100) if f"2.{minor}.0" in SpecifierSet(named)]


def pair(folder: Path, nodes: list[Node], core: str, python: str, version: str) -> Row:
    """Try one pair; print a failure and return a failed row."""
    try:
        return done(folder, nodes, core, python, version)
    except AssertionError as failed:
        print(failed)
        return Row(core, version)


def done(folder: Path, nodes: list[Node], core: str, python: str, version: str) -> Row:
    """Run one pair in a separate environment."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-pair-") as place:
        subprocess.run([python, "-m", "venv", place], check=True)
        pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet"]
        wanted = [f"ansible-core=={core}.*", "--requirement", ROOT / "meta/requirements.txt"]
        installed = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if installed.returncode:
            named = rf"{re.escape(core)}\.\d+ Requires-Python (\S+?);?\s"
            [*_, why] = re.findall(named, installed.stderr) or ["not found"]
            return Row(core, version, why=f"this ansible-core wants {why}" if why != "not found" else why)
        ansible = PlainAnsible(folder, Path(place) / "bin")
        [full] = re.findall(r"core ([\d.]+)\]", ansible.run("ansible", "--version"))
        began = time.monotonic()
        # The plugin calls this checkout's gpuprov; Ansible's own environment has none, so PATH contains it.
        path = f"{Path(sys.executable).parent}:{PATH}"
        listed = ansible.run("ansible-doc", "-t", "role", "-l", "gpuprov.gpuprov", "--json")
        row = Row(
            full,
            full_version(python),
            roles=listed.count('"collection"'),
            groups=ansible.run("ansible-inventory", "-i", "fleet.yml", "--graph", path=path).count("--@"),
            checked=int(re.findall(r" ok=(\d+)", ansible.run("ansible-playbook", "--check", "here.yml"))[0]),
        )
        if nodes:
            for node in nodes:
                node.run(BY_HAND)
            said = ansible.run("ansible-playbook", "--inventory", "ansible", SITE)
            first = min(int(changed) for changed in re.findall(r"changed=(\d+)", said))
            second = max(ansible.changes(SITE).values())
            row = replace(row, first=first, second=second, deprecated=said.count("[DEPRECATION"))
        return replace(row, seconds=time.monotonic() - began)


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the rows as Markdown."""
    yield "| ansible-core | Python | roles | groups | checked | changed | second run | deprecated | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        on_node = ["-" if each is None else str(each) for each in (row.first, row.second, row.deprecated)]
        cells = [str(row.roles), str(row.groups), str(row.checked), *on_node, f"{row.seconds:.0f}"]
        cells = [row.why, *[""] * 6] if row.why else cells
        yield "| " + " | ".join([row.ansible, row.python, *cells]) + " |"


if __name__ == "__main__":
    sys.exit(main())
