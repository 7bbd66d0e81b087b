"""An image in the making: this tree is brought to its lock as far as one without a boot and GPUs can be.

What is left waits for the first boot of each machine made from it, where the unit of a first boot goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.apply.context import RunContext
from gpuprov.apply.modules.brought import image_store
from gpuprov.apply.modules.once import Once
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.inventory.firstboot.files import (
    NODE,
    UNIT,
    UNIT_PATH,
    Installation,
    Wishes,
    first_boot_files,
    own_lock,
)
from gpuprov.model.lock import Lock, LockedGroup, Setting
from gpuprov.model.stack import IMAGE
from gpuprov.roles import expectations
from gpuprov.roles.image import postponed_roles, waits_for
from gpuprov.writing import replace_file

MODULES = Path("/lib/modules")
NO_STARTS = Path("/usr/sbin/policy-rc.d")
"""Debian's: invoke-rc.d(8) asks it before it starts a service, in a tree without a boot too."""
WANTED = Path(f"/etc/systemd/system/multi-user.target.wants/{UNIT}")
ENDED = Path("/var/lib/gpuprov/first-boot")
UNBOOTED = {"preflight_booted": False, "system_tuning_booted": False, "containerd_booted": False}


@dataclass
class Image:
    """What became of the tree. `roles` are those that wait as a whole → what for."""

    outcome: NodeOutcome = field(default_factory=NodeOutcome)
    roles: dict[str, str] = field(default_factory=dict)


def image_lock(lock: Lock, group: str) -> Lock:
    """The lock of this tree: of one machine, and with its kernel by name: the one that runs is the builder's.

    Raises:
        InvalidInput: there is no such group, or no telling which kernel the machine will run.
    """
    own = own_lock(lock, group)
    stated = own.groups[group]
    named = stated.setting("kernel") or "running"
    there = sorted(path.name for path in MODULES.glob("*") if path.is_dir())
    if named == "running" and len(there) != 1:
        raise InvalidInput(
            f"the lock is for the running kernel, and this tree has {', '.join(there) or 'none'}",
            expected="the kernel that machines made from it will run",
            do=f"install it, or state groups.{group}.settings.kernel in fleet.yml and lock again",
        )
    if named != "running" and named not in there:
        raise InvalidInput(
            f"the lock is for the kernel {named}, and this tree has {', '.join(there) or 'none'}",
            do="install it here first, or lock for another",
        )
    kernel = Setting(
        value=there[0] if named == "running" else named, reason="the kernel of this tree", source="image"
    )
    settings = {**stated.settings, "kernel": kernel}
    return own.model_copy(update={"groups": {group: stated.model_copy(update={"settings": settings})}})


def make_image(run: RunContext) -> Image:
    """Bring this tree to the lock, and have what is left done at the first boot.

    Args:
        run: to a lock as `image_lock` makes it.

    Raises:
        InvalidInput: somebody else than root asks.
        GpuprovError: Ansible itself could not run.
    """
    if os.geteuid() != 0:
        raise InvalidInput("an image is made by root", do="run it with sudo")
    [group] = run.lock.groups.values()
    image = Image(roles=postponed_roles(group))
    plan = _plan(image, _look(run))
    if plan.roles:
        variables = {
            "gpuprov_roles": list(plan.roles),
            "packages_allow_downgrade": run.consent.downgrade,
            **UNBOOTED,
        }
        with offline():
            image.outcome.add(_once(run, group, variables).apply()[NODE])
    if image.outcome.ok:
        for each in _unmended(group, _look(run)):
            image.outcome.fail(NODE, "Look again", f"{each.check} is still {each.actual}")
    return image


def _once(run: RunContext, group: LockedGroup, variables: dict[str, Any]) -> Once:
    """The driver's module is another builder's, from the store, unless the lock trusts images to compile."""
    if IMAGE not in group.components.driver.builders:
        return Once(run, {NODE: variables})
    compiling = {**variables, "nvidia_driver_only_builder": [NODE]}
    return Once(run, {NODE: compiling}, image_store(run.lock), {NODE: IMAGE})


def leave_for_first_boot(lock: Lock, group: str) -> None:
    """Write what brings a machine made from this tree to its lock, and have its first boot start it.

    Args:
        lock: the fleet's: the machine's own kernel counts there, and not that of the tree.
    """
    program = str(Path(sys.executable).with_name("gpuprov"))
    for file in first_boot_files(own_lock(lock, group), Wishes(Installation(program=program))):
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, file.text, file.mode)
    for name in ("done", "state.json"):  # of the builder, if it was brought up the same way
        (ENDED / name).unlink(missing_ok=True)
    WANTED.parent.mkdir(parents=True, exist_ok=True)
    WANTED.unlink(missing_ok=True)
    WANTED.symlink_to(UNIT_PATH)


@contextmanager
def offline() -> Iterator[None]:
    """Start no service, whoever asks: systemctl only enables, and packages start nothing."""
    before = os.environ.get("SYSTEMD_OFFLINE")
    os.environ["SYSTEMD_OFFLINE"] = "1"  # systemd's ENVIRONMENT.md
    ours = NO_STARTS.parent.is_dir() and not NO_STARTS.exists()
    if ours:
        replace_file(NO_STARTS, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        yield
    finally:
        if ours:
            NO_STARTS.unlink(missing_ok=True)
        if before is None:
            del os.environ["SYSTEMD_OFFLINE"]


def _look(run: RunContext) -> NodeDrift:
    [found] = survey(run.lock, [NODE], forks=1)
    if found.reason:
        raise NodeFailed(found.reason)
    return found


def _plan(image: Image, found: NodeDrift) -> NodePlan:
    """The roles that drift calls for, without those that wait as a whole."""
    plan = plan_node(found)
    image.roles = {role: what for role, what in image.roles.items() if role in plan.roles}
    roles = tuple(role for role in plan.roles if role not in image.roles)
    return NodePlan(plan.name, roles, reboot=False, because=plan.because, beyond=plan.beyond)


def _unmended(group: LockedGroup, found: NodeDrift) -> list[Difference]:
    """What differs although an image can show it."""
    shown = {each.check for each in expectations(group) if waits_for(each) is None}
    return [each for each in found.drift if each.check in shown and each.severity == "error"]
