"""Plan: drift turned into roles, nodes, order and reboots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuprov.drift import Difference, NodeDrift

GUARDED = ("firewall", "ssh_hardening")
"""Roles that can shut everybody out: applied only under the dead man's switch."""
# In the order of playbooks/site.yml. Packages that moved are pinned anew, whatever moved them.
ROLES = (
    "preflight",
    "nvidia_driver",
    "gpu_settings",
    "container_toolkit",
    "docker",
    "package_pins",
    *GUARDED,
)
# Docker learns of the toolkit's hook when it starts.
FOLLOWED_BY = {
    "nvidia_driver": {"package_pins"},
    "container_toolkit": {"docker", "package_pins"},
    "docker": {"package_pins"},
}


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What would be done to one node, and why.

    `reboot` says that something stated comes true only by one; `beyond` is what nothing here can mend.
    """

    name: str
    roles: tuple[str, ...]
    reboot: bool
    because: tuple[Difference, ...]
    beyond: tuple[Difference, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.roles and not self.reboot


def plan_node(node: NodeDrift) -> NodePlan:
    """The roles, in order, that mend a node's drift."""
    named = {difference.role for difference in node.drift if difference.role}
    for role in list(named):
        named |= FOLLOWED_BY.get(role, set())
    if named:
        named.add("preflight")
    beyond = tuple(each for each in node.drift if each.role is None and not each.reboot)
    return NodePlan(
        node.name,
        tuple(role for role in ROLES if role in named),
        any(difference.reboot for difference in node.drift),
        tuple(each for each in node.drift if each not in beyond),
        beyond,
    )


def full_plan(names: Iterable[str]) -> list[NodePlan]:
    """Every role on every node, whatever the drift (`apply --full`)."""
    return [NodePlan(name, ROLES, reboot=False, because=(), beyond=()) for name in names]
