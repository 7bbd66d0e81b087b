"""Plan: the roles, nodes, order and reboots that follow from drift."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput, did_you_mean
from gpuprov.locking.repository.versions import DEB
from gpuprov.roles import BY_NAME, ROLES
from gpuprov.roles.causes import causes

RUNNABLE = tuple(role.name for role in ROLES if role.variables)
"""Roles that Ansible can run, in order."""
VERSION = 256
"""Maximum length of a version that is compared, in characters."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Plan for one node.

    Attributes:
        roles: the roles to run, in order.
        reboot: whether a stated setting takes effect only after a reboot.
        because: the differences that the plan corrects.
        beyond: the differences that gpuprov cannot correct.
        consequences: differences that a reboot would correct if others of the node did not cause them.
    """

    name: str
    roles: tuple[str, ...]
    reboot: bool
    because: tuple[Difference, ...]
    beyond: tuple[Difference, ...]
    consequences: tuple[Difference, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the plan has neither roles to run nor a reboot."""
        return not self.roles and not self.reboot

    @property
    def newer(self) -> list[str]:
        """For each component to install, a package that is newer on the node than in the lock, as text."""
        found = []
        for each in self.because:
            if each.role not in self.roles or not each.check.endswith(".packages"):
                continue
            if isinstance(each.actual, dict) and isinstance(each.expected, dict):
                for name, wanted in each.expected.items():
                    there = each.actual.get(name)
                    if _is_newer(there, wanted):
                        found.append(f"{name} {there}, newer than the lock's {wanted}")
                        break
        return found

    @property
    def packages(self) -> int:
        """Number of packages that differ from the lock, of the roles that run."""
        sides = (
            (each.expected, each.actual)
            for each in self.because
            if each.role in self.roles and each.check.endswith(".packages")
        )
        return sum(
            actual.get(name) != version
            for expected, actual in sides
            if isinstance(expected, dict) and isinstance(actual, dict)
            for name, version in expected.items()
        )


def _is_newer(there: object, wanted: object) -> bool:
    """Return whether a node's version is newer than the lock's, by Debian's rules; False if one of them is
    not a version, or the node's has more than `VERSION` characters.
    """
    if not isinstance(there, str) or not isinstance(wanted, str) or not 0 < len(there) <= VERSION:
        return False
    try:
        return DEB.compare(there, wanted) > 0
    except ValueError:
        return False


def plan_node(node: NodeDrift) -> NodePlan:
    """Return the plan that corrects a node's drift.

    Its roles are those of the differences and those that have to follow them, after preflight. If one of them
    installs components, repositories and package_pins are included. Without a difference that a
    role corrects, it has none.
    """
    failed = [each.check for each in node.drift]
    consequences = tuple(each for each in node.drift if each.reboot and causes(each.check, failed))
    found = [each for each in node.drift if each not in consequences]
    named = {difference.role for difference in found if difference.role}
    for role in list(named):
        named |= set(BY_NAME[role].followed_by)
    if any(BY_NAME[role].components for role in named):
        named |= {"repositories", "package_pins"}
    if named:
        named.add("preflight")
    beyond = tuple(each for each in found if each.role is None and not each.reboot)
    return NodePlan(
        node.name,
        tuple(role for role in RUNNABLE if role in named),
        any(difference.reboot for difference in found),
        tuple(each for each in found if each not in beyond),
        beyond,
        consequences,
    )


def narrowed(plans: Iterable[NodePlan], roles: Collection[str]) -> list[NodePlan]:
    """Return the plans with only some roles, and without reboots (`apply --role`).

    Preflight is kept with them. A plan that has none of the roles becomes empty.

    Raises:
        InvalidInput: there is no such role.
    """
    if unknown := set(roles) - set(RUNNABLE):
        names, meant = ", ".join(sorted(unknown)), did_you_mean(min(unknown), RUNNABLE)
        raise InvalidInput(f"there is no role {names}", expected="one of " + ", ".join(RUNNABLE), do=meant)
    wanted = {"preflight", *roles}
    kept = [replace(plan, roles=tuple(r for r in plan.roles if r in wanted), reboot=False) for plan in plans]
    return [plan if set(plan.roles) & set(roles) else replace(plan, roles=()) for plan in kept]


def full_plan(names: Iterable[str]) -> list[NodePlan]:
    """Return plans with every role for every node, independent of the drift (`apply --full`)."""
    return [NodePlan(name, RUNNABLE, reboot=False, because=(), beyond=()) for name in names]
