"""Changes of the guarded roles: each depends, on the node, on a dead man's switch that is still armed."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

SWITCH = "/var/lib/gpuprov/deadman/switch"


def read(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def conditions(role: str, tasks: str) -> Iterator[str]:
    """Yield the name of the variable with the condition of each change; "" for one without a condition."""
    for task in read(ROOT / "roles" / role / "tasks" / tasks):
        if unit := task.get("gpuprov.gpuprov.gpuprov_unit"):
            yield unit.get("condition", "").strip("{ }")
        for file in task.get("gpuprov.gpuprov.gpuprov_files", {}).get("files", ()):
            yield file.get("validate", "").strip("{ }")


def test_rules_are_loaded_and_other_firewalls_switched_off_only_while_the_switch_is_armed() -> None:
    # Files of units have no effect before one of the tasks with a condition.
    assert list(conditions("firewall", "rules.yml")) == ["__firewall_try", "", "", *["__firewall_armed"] * 2]


def test_files_of_sshd_are_written_only_while_the_switch_is_armed() -> None:
    # The last is sshd's start at boot, which cannot lock a person out.
    armed, tried = "__ssh_hardening_armed", "__ssh_hardening_try"
    assert list(conditions("ssh_hardening", "main.yml")) == [armed, tried, armed, ""]


@pytest.mark.parametrize("role", ["firewall", "ssh_hardening"])
@pytest.mark.parametrize(("token", "code"), [("", 0), ("RUN", 0), ("ANOTHER", 3)])
def test_the_switch_is_asked_for_the_run(tmp_path: Path, role: str, token: str, code: int) -> None:
    switch = tmp_path / "switch"
    switch.write_text('[ "$*" = "armed RUN" ] || exit 3\n')
    stated = read(ROOT / f"roles/{role}/vars/main.yml")[f"__{role}_armed"]
    words = shlex.split(stated) if isinstance(stated, str) else stated
    text = "\0".join(words).replace(f"{{{{ {role}_guard }}}}", token).replace(SWITCH, str(switch))
    assert subprocess.run(text.split("\0"), check=False).returncode == code
