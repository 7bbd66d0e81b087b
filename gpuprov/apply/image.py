"""Apply to the root tree of an image: everything in the lock that is possible without a boot and GPUs.

The rest is applied at the first boot of each machine made from the image, by the first-boot unit.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpuprov
from gpuprov.apply.afterboot import cleared_above
from gpuprov.apply.context import RunContext
from gpuprov.apply.kernel_modules.archive_file import image_store
from gpuprov.apply.kernel_modules.once import Once
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.errors import InvalidInput, NodeFailed, Refused
from gpuprov.files.ways import above
from gpuprov.files.writing import make_folders, replace_file
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
from gpuprov.ssh.dispatch import Dispatch

MODULES = Path("/lib/modules")
NO_STARTS = Path("/usr/sbin/policy-rc.d")
"""Debian's policy script, which invoke-rc.d(8) runs before it starts a service, also in an unbooted tree."""
POLICY = """\
#!/bin/sh
# Written by gpuprov apply --image, which removes it at its end: no service is started meanwhile.
exit 101
"""
WANTED = Path(f"/etc/systemd/system/multi-user.target.wants/{UNIT}")
ENDED = Path("/var/lib/gpuprov/first-boot")
ROOT = 0
"""The user as whom the first-boot unit runs the program that made the image."""
UNBOOTED = {"preflight_booted": False, "system_tuning_booted": False, "containerd_booted": False}


@dataclass
class Image:
    """Result of an apply to an image. `roles`: role that waits for the first boot as a whole → the reason."""

    outcome: NodeOutcome = field(default_factory=NodeOutcome)
    roles: dict[str, str] = field(default_factory=dict)


def image_lock(lock: Lock, group: str) -> Lock:
    """Return the lock of this tree: for one machine, and with the release of the tree's kernel.

    The running kernel is that of the build machine.

    Raises:
        InvalidInput: there is no such group, the tree lacks the locked kernel, or `running` is locked and the
            tree does not have exactly one kernel.
    """
    own = own_lock(lock, group)
    stated = own.groups[group]
    named = stated.setting("kernel") or "running"
    there = sorted(path.name for path in MODULES.glob("*") if path.is_dir())
    if named == "running" and len(there) != 1:
        raise InvalidInput(
            f"the lock is for the running kernel, and this tree has {', '.join(there) or 'none'}",
            expected="the kernel that machines of this image will run",
            do=f"install it, or state groups.{group}.settings.kernel in fleet.yml and lock again",
        )
    if named != "running" and named not in there:
        raise InvalidInput(
            f"the lock is for the kernel {named}, and this tree has {', '.join(there) or 'none'}",
            do="install it here first, or lock for another kernel",
        )
    kernel = Setting(
        value=there[0] if named == "running" else named, reason="the kernel of this tree", source="image"
    )
    settings = {**stated.settings, "kernel": kernel}
    return own.model_copy(update={"groups": {group: stated.model_copy(update={"settings": settings})}})


def make_image(run: RunContext) -> Image:
    """Bring this tree to the lock, except for what waits for the first boot.

    A difference of severity `error` that remains, and that an image can show, is a failure in the outcome.

    Args:
        run: the run, with a lock of `image_lock`.

    Raises:
        InvalidInput: the user is not root.
        Refused: as `refuse_program_of_others`.
        NodeFailed: the tree cannot be surveyed.
        GpuprovError: Ansible itself could not run.
    """
    if os.geteuid() != 0:
        raise InvalidInput("gpuprov apply --image needs root", do="run it with sudo")
    refuse_program_of_others([program(), Path(sys.executable).resolve(), Path(gpuprov.__file__)])
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


def program() -> Path:
    """Return the path of gpuprov, which every machine of the image runs as root at its first boot."""
    return Path(sys.executable).with_name("gpuprov").absolute()


def refuse_program_of_others(places: Iterable[Path]) -> None:
    """Refuse files of a program that root is to run on every machine of the image, if another user can
    replace them, or a boot may delete them, after which another user can create them.

    Raises:
        Refused: a file or a folder above it belongs to another user or can be written by others, or it is in
            a folder that a boot clears; also where a link leads to it, or to another link.
    """
    for place in places:
        if cleared_above(place):
            seen = "a boot may delete it"
        elif theirs := next(filter(is_of_others, above(place)), None):
            seen = f"other users can replace it, by {theirs}"
        else:
            continue
        raise Refused(
            f"{place} is run as root on every machine of this image, and {seen}",
            expected="folders that only root can write",
            do="install gpuprov below /opt, as root, and make the image with it",
        )


def is_of_others(path: Path) -> bool:
    """Return whether a user other than root can write a file or folder, or owns a link; False if it does not
    exist.
    """
    try:
        about = path.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(about.st_mode):  # all links have the mode 777
        return about.st_uid != ROOT
    by_all = about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX
    by_group = about.st_mode & stat.S_IWGRP and about.st_gid != ROOT
    return about.st_uid != ROOT or bool(by_all or by_group)


def _once(run: RunContext, group: LockedGroup, variables: dict[str, Any]) -> Once:
    """Return the roles of this tree, not yet applied.

    If an image is the builder of the driver's module, this tree compiles it into a store without signatures.
    Otherwise the module is from the fleet's store.
    """
    if IMAGE not in group.components.driver.builders:
        return Once(run, {NODE: variables})
    compiling = {**variables, "nvidia_driver_only_builder": [NODE]}
    return Once(run, {NODE: compiling}, image_store(run.lock), {NODE: IMAGE})


def leave_for_first_boot(lock: Lock, group: str) -> None:
    """Write the files that bring a machine made from this tree to its lock, and enable the first-boot unit;
    remove the state of an earlier first boot.

    Args:
        lock: the fleet's lock, in which the machine's own kernel counts and not the tree's.

    Raises:
        OSError: a file cannot be written.
    """
    for file in first_boot_files(own_lock(lock, group), Wishes(Installation(program=str(program())))):
        path = Path(file.path)
        make_folders(path.parent, 0o755)
        replace_file(path, file.text, file.mode)
    for name in ("done", "state.json"):  # of the build machine, if it had a first boot of this kind
        (ENDED / name).unlink(missing_ok=True)
    make_folders(WANTED.parent, 0o755)
    WANTED.unlink(missing_ok=True)
    WANTED.symlink_to(UNIT_PATH)


@contextmanager
def offline() -> Iterator[None]:
    """Prevent the start of services in the block: systemctl only enables units, and packages start none.

    An existing `NO_STARTS` stays as it is, unless a killed run left it: machines made from the image would
    never start a service with a package.

    Raises:
        OSError: the file cannot be read or written.
    """
    before = os.environ.get("SYSTEMD_OFFLINE")
    os.environ["SYSTEMD_OFFLINE"] = "1"  # see systemd's docs/ENVIRONMENT.md
    ours = NO_STARTS.parent.is_dir() and (not os.path.lexists(NO_STARTS) or _is_left_over(NO_STARTS))
    if ours:
        replace_file(NO_STARTS, POLICY, 0o755)
    try:
        yield
    finally:
        if ours:
            NO_STARTS.unlink(missing_ok=True)
        if before is None:
            del os.environ["SYSTEMD_OFFLINE"]


def _is_left_over(policy: Path) -> bool:
    """Return whether a killed run wrote this policy: a file, no link, with exactly its text."""
    return policy.is_file() and not policy.is_symlink() and policy.read_bytes() == POLICY.encode()


def _look(run: RunContext) -> NodeDrift:
    """Return the drift of this tree; raise NodeFailed if it cannot be surveyed."""
    [found] = survey(run.lock, [NODE], dispatch=Dispatch(forks=1))
    if found.reason:
        raise NodeFailed(found.reason)
    return found


def _plan(image: Image, found: NodeDrift) -> NodePlan:
    """Return the plan for the drift, without the roles that wait for the first boot.

    Roles that the drift does not need are removed from `image.roles`.
    """
    plan = plan_node(found)
    image.roles = {role: what for role, what in image.roles.items() if role in plan.roles}
    roles = tuple(role for role in plan.roles if role not in image.roles)
    return NodePlan(plan.name, roles, reboot=False, because=plan.because, beyond=plan.beyond)


def _unmended(group: LockedGroup, found: NodeDrift) -> list[Difference]:
    """Return the differences of severity `error` in what an image can show."""
    shown = {each.check for each in expectations(group) if waits_for(each) is None}
    return [each for each in found.drift if each.check in shown and each.severity == "error"]
