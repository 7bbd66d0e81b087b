"""Equivalents of gpuprov that an experienced administrator would write: a shell script and a playbook."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprov.apply.playbook import SSH_ARGUMENTS
from gpuprov.model.lock import LockedGroup
from gpuprov_lab import Lab, Node
from tests.bench._commands import APT, Commands
from tests.campaign._roles_fleet import SETTLED

START = "/root/.bench-start"
FILES = (
    f"find /etc /usr/local/sbin /var/lib/gpuprov /var/lib/prometheus -type f -newer {START}"
    " '(' -path '*gpuprov*' -o -path '/etc/systemd/system/*.d/*' -o -name nccl.conf"
    " -o -name daemon.json -o -path /etc/containerd/config.toml -o -path /etc/environment -o {settings} ')'"
    " ! -name '*~' 2>/dev/null"
)
UNITS = "systemctl list-unit-files --state=enabled --no-legend | cut -d' ' -f1 | sort"
MODULES = "dkms status 2>/dev/null | sed -n 's/, [^,]*: installed.*//p' | sort"
"""Prints `NAME/VERSION, KERNEL` of each module that DKMS has installed."""
ACTIVE = "systemctl list-units --state=active --no-legend --plain | cut -d' ' -f1 | sort"


def at_the_end(commands: Commands) -> list[str]:
    """Return the commands after all files and packages are in place."""
    return [
        commands.initramfs,
        "sysctl -q --load=/etc/sysctl.d/90-gpuprov.conf || test ! -e /etc/sysctl.d/90-gpuprov.conf",
        "ldconfig",
        f"systemctl reload {commands.sshd}",
        commands.simulate,
        "systemctl daemon-reload",
    ]


def begin(node: Node) -> None:
    """Wait until a new node has settled, and record the time on it."""
    node.run(f"{SETTLED}; touch {START}; sleep 1", check=False)


@dataclass(frozen=True)
class Chosen:
    """Packages of a node, its units (those enabled and those active), and its modules by DKMS."""

    packages: set[str]
    units: set[str]
    active: set[str]
    modules: set[str]

    @classmethod
    def on(cls, node: Node, commands: Commands = APT) -> Chosen:
        """Return those of a node now."""
        asked = (commands.chosen, UNITS, ACTIVE, MODULES)
        return cls(*(set(node.run(each).stdout.splitlines()) for each in asked))


@dataclass(frozen=True)
class File:
    """A file to write, with its content in base64."""

    path: str
    mode: str
    content: str


@dataclass(frozen=True)
class ByHand:
    """Steps that bring a new node to the state of a model: the same packages, versions, files and daemons.

    `units` are enabled, and `started` those of them that run on the model. `modules` are those that DKMS has
    installed: a package's script builds only for the running kernel, which is another one here. Files come
    before packages, so that daemons need no second start, and packages in one transaction.
    """

    sources: list[File]
    others: list[File]
    installation: str
    units: list[str]
    started: list[str]
    modules: list[str]
    held: list[str]
    system: Commands

    @classmethod
    def of(cls, model: Node, group: LockedGroup, before: Chosen, system: Commands = APT) -> ByHand:
        """Return the steps that were done on a node since `begin`.

        Args:
            model: node that gpuprov has provisioned.
            before: packages and units before that.
            system: commands of the node's system.
        """
        after = Chosen.on(model, system)
        found = model.run(FILES.replace("{settings}", system.settings), check=False).stdout
        files = [_file(model, path) for path in sorted(found.split())]
        units = after.units - before.units
        return cls(
            [each for each in files if each.path.startswith(system.sources)],
            [each for each in files if not each.path.startswith(system.sources)],
            _installation(system, group, after.packages - before.packages),
            sorted(units),
            sorted(units & after.active),
            sorted(after.modules),
            model.run(system.held).stdout.split(),
            system,
        )

    @property
    def commands(self) -> list[str]:
        """Commands after all files and packages are in place."""
        return [
            *map(_build, self.modules),
            *at_the_end(self.system),
            f"systemctl enable -q {shlex.join(self.units)}",
            *([f"systemctl start {shlex.join(self.started)}"] if self.started else []),
            self.system.hold.replace("{}", shlex.join(self.held)),
        ]

    def by_script(self, node: Node) -> None:
        """Run all steps as one shell script."""
        lines = [
            "set -e",
            "export DEBIAN_FRONTEND=noninteractive",
            *(_written(each) for each in self.sources),
            self.system.refresh,
            *(_written(each) for each in self.others),
            self.installation,
            *self.commands,
        ]
        node.run("sh -s", input="\n".join(lines), timeout=3600)

    def difference(self, node: Node) -> list[str]:
        """Return the modules and running units of the model that a node lacks after `by_script`."""
        now = Chosen.on(node, self.system)
        return sorted({*self.modules, *self.started} - now.modules - now.active)

    def by_playbook(self, lab: Lab, node: Node) -> None:
        """Run the steps as Ansible tasks, as fast as possible: without checks, proofs or restoring.

        Raises:
            SystemExit: the playbook failed.
        """
        folders = sorted({str(Path(each.path).parent) for each in self.others})
        tasks = [
            *(_copy(each) for each in self.sources),
            _shell(self.system.refresh),
            _shell(f"mkdir -p {shlex.join(folders)}"),
            *(_copy(each) for each in self.others),
            *(_shell(command) for command in (self.installation, *self.commands)),
        ]
        play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
        host = {
            "ansible_host": node.address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(lab.identity_file),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.known_hosts}",
        }
        with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as scratch:
            playbook, inventory = Path(scratch, "playbook.json"), Path(scratch, "inventory.json")
            playbook.write_text(json.dumps([play]))
            inventory.write_text(json.dumps({"all": {"hosts": {node.name: host}}}))
            done = subprocess.run(
                [Path(sys.executable).with_name("ansible-playbook"), "--inventory", inventory, playbook],
                env={**os.environ, "ANSIBLE_PIPELINING": "1", "ANSIBLE_SSH_ARGS": SSH_ARGUMENTS},
                capture_output=True,
                text=True,
                check=False,
                timeout=3600,
            )
        if done.returncode:
            raise SystemExit(f"the plain playbook failed: {done.stdout[-2000:]}")


def _installation(system: Commands, group: LockedGroup, chosen: set[str]) -> str:
    """Return one transaction: the lock's packages at its versions, the others from the node's sources."""
    exact = {name: version for _, each in group.components.each() for name, version in each.closure.items()}
    names = [system.package(*each) for each in exact.items()] + sorted(chosen - exact.keys())
    return f"{system.install} {shlex.join(names)}"


def _build(module: str) -> str:
    """Return the command that builds a module for a kernel (`NAME/VERSION, KERNEL`), unless it is there."""
    name, kernel = module.split(", ")
    return f"dkms status {name} -k {kernel} | grep -q installed || dkms install {name} -k {kernel} >/dev/null"


def _file(model: Node, path: str) -> File:
    """Return a file of the model node: its path, its mode, and its content in base64."""
    mode, content = model.run(f"stat -c %a {path}; base64 -w0 {path}").stdout.split("\n", 1)
    return File(path, mode, content.rstrip())


def _written(file: File) -> str:
    """Return shell text that writes a file."""
    return (
        f"mkdir -p {Path(file.path).parent}\n"
        f"base64 -d >{file.path} <<'END'\n{file.content}\nEND\n"
        f"chmod {file.mode} {file.path}"
    )


def _copy(file: File) -> dict[str, Any]:
    """Return a task that writes a file."""
    content = f"{{{{ {json.dumps(file.content)} | b64decode }}}}"
    return {"ansible.builtin.copy": {"dest": file.path, "content": content, "mode": f"0{file.mode}"}}


def _shell(command: str) -> dict[str, Any]:
    """Return a task of Ansible that runs a shell command."""
    return {"ansible.builtin.shell": command, "environment": {"DEBIAN_FRONTEND": "noninteractive"}}
