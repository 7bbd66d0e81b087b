"""The installed collection, run by an Ansible without gpuprov on its PATH."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from tests.collection.build import build
from tests.lab.command_line import gpuprov
from tests.lab.provisioned_node import MACHINE, PROFILE
from tests.lab.stub_compiler import play_compiler

REPOSITORY = "https://example.com/gpuprov"
"""Example of the repository address that a publisher states."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class PlainAnsible:
    """An Ansible with the collection, in a folder with an inventory `ansible/`.

    Args:
        programs: the folder of its programs.
    """

    folder: Path
    programs: Path = Path(sys.executable).parent

    def install(self) -> None:
        """Build the collection and install it below the folder, which contains no other collection."""
        archive = build(self.folder, REPOSITORY)
        self.run("ansible-galaxy", "collection", "install", "--force", archive)

    def run(self, program: str, *words: str | Path, path: str = PATH) -> str:
        """Run a program, which must succeed; return its output. By default PATH has no gpuprov."""
        inherited = os.environ.items()
        plain = {key: value for key, value in inherited if not key.startswith(("ANSIBLE_", "PYTHON"))}
        done = subprocess.run(
            [self.programs / program, *words],
            cwd=self.folder,
            env={
                **plain,
                "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
                "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "0",
                "HOME": str(self.folder),
                "NO_COLOR": "1",
                "PATH": path,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def changes(self, playbook: str, *words: str) -> dict[str, int]:
        """Run a playbook; return host → number of changed tasks."""
        said = self.run("ansible-playbook", "--inventory", "ansible", playbook, *words)
        return {host: int(changed) for host, changed, *_ in RECAP.findall(said)}


def locked_nodes(lab: Lab, folder: Path, count: int) -> list[Node]:
    """Start nodes, lock them and write the inventory `ansible/`; a stub replaces the compiler."""
    nodes = lab.up(count, gpu=MACHINE)
    (folder / "fleet.yml").write_text(lab.fleet(PROFILE))
    gpuprov(folder, "lock")
    [locked] = read_lock(folder / "fleet.lock.yml").groups.values()
    for node in nodes:
        play_compiler(node, locked.components.driver.version)
    gpuprov(folder, "inventory", "generate", "ansible")
    return nodes
