"""Inventories with hostile text, read by Ansible itself: every variable of every host is resolved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.campaign._hostile.field import Field, Reached

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "connection": "local",
        "tasks": [
            {"ansible.builtin.debug": {"var": "hostvars[inventory_hostname]"}, "ignore_errors": True},
            {
                "ansible.builtin.debug": {
                    "msg": "{{ item.kernel | default('') }} {{ item.vermagic | default('') }}"
                },
                "loop": "{{ nvidia_driver_builds | default([]) }}",
                "ignore_errors": True,
            },
        ],
    }
]
AT_ONCE = 60
"""Number of inventories in one run of Ansible."""


class Inventories:
    """Inventories of many tries, given to Ansible in batches; host names are unique."""

    def __init__(self, field: Field) -> None:
        self._field, self._waiting = field, list[Path]()
        self._folder = field.work / "inventories"
        self._folder.mkdir()
        (self._folder / "play.json").write_text(json.dumps(PLAY))

    def add(self, path: Path) -> None:
        """Keep an inventory for the next batch."""
        kept = self._folder / f"{self._field.number}-{len(self._waiting)}-{path.name}"
        shutil.copy(path, kept)
        self._waiting.append(kept)
        if len(self._waiting) >= AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Run Ansible on the inventories that wait."""
        if not self._waiting:
            return
        program = Path(sys.executable).with_name("ansible-playbook")
        given = [word for path in (self._control(), *self._waiting) for word in ("-i", str(path))]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self._folder / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(self._folder / "tmp"),
            "ANSIBLE_NOCOLOR": "1",
        }
        done = subprocess.run(
            [str(program), *given, str(self._folder / "play.json")],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        (self._folder / "ansible.log").write_text(done.stdout + done.stderr)
        self._check(done.stdout, done.stderr)
        self._waiting.clear()

    def _control(self) -> Path:
        """Return an inventory whose template does run, which proves that a program would be noticed."""
        (self._folder / "ansible.cfg").touch()
        path = self._folder / "control.json"
        template = "{{ lookup('pipe', 'touch FILE') }}".replace("FILE", str(self._shown))
        path.write_text(json.dumps({"all": {"hosts": {"control": {"said": template}}}}))
        return path

    @property
    def _shown(self) -> Path:
        """The file that exists as soon as a control text was run, which shows that the try works."""
        return self._field.work / "control-ran"

    def _check(self, output: str, errors: str) -> None:
        """Check that Ansible reached every host.

        Raises:
            Reached: hostile text ended Ansible for all hosts.
        """
        hosts = {
            host
            for path in self._waiting
            for group in json.loads(path.read_text())["all"].get("children", {}).values()
            for host in group["hosts"]
        }
        missing = [host for host in sorted(hosts) if host not in output]
        ran = self._shown.exists()
        self._shown.unlink(missing_ok=True)
        if missing or not ran:
            said = (errors or output)[-400:]
            raise Reached(
                "exception", f"Ansible did not come to {len(missing)} of {len(hosts)} hosts: {said}"
            )
