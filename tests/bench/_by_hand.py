"""What a good administrator would write instead of using gpuprov: a shell script, or a playbook."""

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
from gpuprov.lab import Lab, Node
from gpuprov.model.lock import LockedGroup
from tests.campaign._roles_fleet import SETTLED

START = "/root/.bench-start"
FILES = (
    f"find /etc /usr/local/sbin /var/lib/gpuprov /var/lib/prometheus -type f -newer {START}"
    " '(' -path '*gpuprov*' -o -path '/etc/systemd/system/*.d/*' -o -name nccl.conf"
    " -o -name daemon.json -o -path /etc/containerd/config.toml -o -path /etc/environment ')'"
    " ! -name '*~' 2>/dev/null"
)
UNITS = "systemctl list-unit-files --state=enabled --no-legend | cut -d' ' -f1 | sort"
AT_THE_END = (
    "update-initramfs -u || test ! -e /usr/sbin/update-initramfs",
    "sysctl -q --load=/etc/sysctl.d/90-gpuprov.conf || test ! -e /etc/sysctl.d/90-gpuprov.conf",
    "ldconfig",
    "systemctl reload ssh",
    "test ! -e /etc/gpuprov/firewall.nft || nft -f /etc/gpuprov/firewall.nft",
    "apt-get -s dist-upgrade >/dev/null",
    "systemctl daemon-reload",
)


def begin(node: Node) -> None:
    """Wait for a node that was just made, and mark the time on it."""
    node.run(f"{SETTLED}; touch {START}; sleep 1", check=False)


@dataclass(frozen=True)
class Chosen:
    """What somebody chose on a node: packages by name, and units that start by themselves."""

    packages: set[str]
    units: set[str]

    @classmethod
    def on(cls, node: Node) -> Chosen:
        """As it is now."""
        return cls(set(node.run("apt-mark showmanual").stdout.split()), set(node.run(UNITS).stdout.split()))


@dataclass(frozen=True)
class File:
    """A file as it is written; the content in base64."""

    path: str
    mode: str
    content: str


@dataclass(frozen=True)
class ByHand:
    """What makes of a fresh node what a model is: the same packages at the same versions, the same files.

    Files come before packages, so that daemons need no second start, and packages in one transaction.
    """

    sources: list[File]
    others: list[File]
    installation: str
    units: list[str]
    held: list[str]

    @classmethod
    def of(cls, model: Node, group: LockedGroup, before: Chosen) -> ByHand:
        """What was done to a node since `begin`.

        Args:
            model: a node that gpuprov made.
            before: what was chosen on it before that.
        """
        after = Chosen.on(model)
        files = [_file(model, path) for path in sorted(model.run(FILES, check=False).stdout.split())]
        return cls(
            [each for each in files if each.path.startswith("/etc/apt/")],
            [each for each in files if not each.path.startswith("/etc/apt/")],
            _installation(group, after.packages - before.packages),
            sorted(after.units - before.units),
            model.run("apt-mark showhold").stdout.split(),
        )

    @property
    def commands(self) -> list[str]:
        """What is done once everything is there."""
        return [
            *AT_THE_END,
            f"systemctl enable -q {shlex.join(self.units)}",
            f"apt-mark hold {shlex.join(self.held)} >/dev/null",
        ]

    def by_script(self, node: Node) -> None:
        """Do it in one go."""
        lines = [
            "set -e",
            "export DEBIAN_FRONTEND=noninteractive",
            *(_written(each) for each in self.sources),
            "apt-get -q update",
            *(_written(each) for each in self.others),
            self.installation,
            *self.commands,
        ]
        node.run("sh -s", input="\n".join(lines), timeout=3600)

    def by_playbook(self, lab: Lab, node: Node) -> None:
        """Do it task by task, as fast as Ansible can: nothing is looked at, proven or put back."""
        folders = sorted({str(Path(each.path).parent) for each in self.others})
        tasks = [
            *(_copy(each) for each in self.sources),
            _shell("apt-get -q update"),
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


def _installation(group: LockedGroup, chosen: set[str]) -> str:
    """One transaction: what the lock says at its versions, and the rest as the node's sources have it."""
    exact = {name: version for _, each in group.components.each() for name, version in each.closure.items()}
    names = [f"{name}={version}" for name, version in exact.items()] + sorted(chosen - exact.keys())
    options = "--no-install-recommends -o Dpkg::Options::=--force-confold"
    return f"apt-get -q -y {options} install {shlex.join(names)}"


def _file(model: Node, path: str) -> File:
    mode, content = model.run(f"stat -c %a {path}; base64 -w0 {path}").stdout.split("\n", 1)
    return File(path, mode, content.rstrip())


def _written(file: File) -> str:
    """Shell that writes a file."""
    return (
        f"mkdir -p {Path(file.path).parent}\n"
        f"base64 -d >{file.path} <<'END'\n{file.content}\nEND\n"
        f"chmod {file.mode} {file.path}"
    )


def _copy(file: File) -> dict[str, Any]:
    """A task that writes a file."""
    content = f"{{{{ {json.dumps(file.content)} | b64decode }}}}"
    return {"ansible.builtin.copy": {"dest": file.path, "content": content, "mode": f"0{file.mode}"}}


def _shell(command: str) -> dict[str, Any]:
    return {"ansible.builtin.shell": command, "environment": {"DEBIAN_FRONTEND": "noninteractive"}}
