"""Apply: the nodes and roles that the plan names, then reboots with consent, then what still differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.apply.deadman import Guard
from gpuprov.apply.guarded import run_guarded
from gpuprov.apply.plan import GUARDED, NodePlan, plan_node
from gpuprov.apply.playbook import Listener, NodeOutcome, Options, run_playbook
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.model.lock import Lock, Reboots
from gpuprov.model.settings import ROLE_OF_SETTING

SETTLE_S = 60.0
"""After a boot, how long a node may take until what its units set can be read back."""


@dataclass(frozen=True)
class Consent:
    """What the operator allows beyond changing packages and files."""

    reboot: bool = False
    downgrade: bool = False
    force: bool = False
    guard_s: int = 180
    """Seconds until a node takes back a change of SSH or firewall that no new login has proved."""


@dataclass
class Convergence:
    """What became of each node. `drift` is what differs now, at the end."""

    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    drift: dict[str, NodeDrift] = field(default_factory=dict)
    rebooted: list[str] = field(default_factory=list)
    reboot_needed: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """Nodes on which a role or a reboot went wrong."""
        return [name for name, outcome in self.outcomes.items() if not outcome.ok]

    @property
    def standing(self) -> list[str]:
        """Nodes that answered, did not fail, and wait for no reboot: those worth verifying."""
        return [
            name
            for name, node in self.drift.items()
            if node.reason is None and name not in self.failed and name not in self.reboot_needed
        ]


def converge(
    lock: Lock,
    plans: Iterable[NodePlan],
    run: Path,
    *,
    options: Options,
    consent: Consent,
    listen: Listener,
    narrate: Callable[[str], None],
) -> Convergence:
    """Bring nodes to the lock.

    Args:
        plans: one a node; empty ones are left alone.
        run: the run's folder.
        narrate: gets a line for a person at each turn.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    result = Convergence()
    busy = {plan.name: plan for plan in plans if not plan.empty}
    result.outcomes = _apply_roles(lock, busy, run, options, consent, listen)
    for name, outcome in _apply_guarded(lock, busy, result, run, options, consent, listen, narrate).items():
        before = result.outcomes.setdefault(name, NodeOutcome())
        before.changed += outcome.changed
        before.failed += outcome.failed
        before.unreachable = before.unreachable or outcome.unreachable
    if options.check:
        return result
    result.drift = {node.name: node for node in _look(lock, _sound(busy, result), options)}
    waiting = [name for name, node in result.drift.items() if plan_node(node).reboot]
    agreed = [name for name in waiting if consent.reboot or lock.hosts()[name].reboot.allowed]
    result.reboot_needed = [name for name in waiting if name not in agreed]
    if agreed:
        narrate(f"rebooting {len(agreed)} of {len(busy)} nodes")
        _reboot(lock, agreed, run, options, listen, result)
        result.drift |= {node.name: node for node in settled(lock, _sound(agreed, result), options)}
    return result


def _apply_roles(
    lock: Lock,
    plans: dict[str, NodePlan],
    run: Path,
    options: Options,
    consent: Consent,
    listen: Listener,
) -> dict[str, NodeOutcome]:
    """Everything but what could shut us out; the firewall's package comes ahead of its rules."""
    nodes = {}
    for name, plan in plans.items():
        roles = [role for role in plan.roles if role not in GUARDED]
        stated = "firewall" in lock.hosts()[name].settings
        roles += [role for role in plan.roles if role == "firewall" and stated]
        if roles:
            nodes[name] = {**_host_variables(roles, consent), "firewall_install_only": True}
    return run_playbook("site", lock, nodes, run, options=options, listen=listen) if nodes else {}


def _apply_guarded(
    lock: Lock,
    plans: dict[str, NodePlan],
    result: Convergence,
    run: Path,
    options: Options,
    consent: Consent,
    listen: Listener,
    narrate: Callable[[str], None],
) -> dict[str, NodeOutcome]:
    """What could shut us out, on nodes where all else went well, as far as their group states it."""
    groups = lock.hosts()
    nodes = {}
    for name in _sound(plans, result):
        stated = {ROLE_OF_SETTING.get(setting) for setting in groups[name].settings}
        roles = [role for role in plans[name].roles if role in GUARDED and role in stated]
        if roles:
            nodes[name] = _host_variables(roles, consent)
    if not nodes:
        return {}
    guard = Guard(consent.guard_s, options.become_password)
    return run_guarded(lock, nodes, run, options=options, guard=guard, listen=listen, narrate=narrate)


def settled(lock: Lock, names: list[str], options: Options) -> list[NodeDrift]:
    """Drift of nodes that have just booted, asked again until nothing differs or `SETTLE_S` has passed."""
    deadline = time.monotonic() + SETTLE_S
    final: dict[str, NodeDrift] = {}
    asked = names
    while asked:
        final |= {node.name: node for node in _look(lock, asked, options)}
        asked = [name for name in asked if final[name].status != "in_sync"]
        if time.monotonic() > deadline:
            break
        if asked:
            time.sleep(2)
    return [final[name] for name in names]


def _look(lock: Lock, names: list[str], options: Options) -> list[NodeDrift]:
    return survey(lock, names, forks=options.forks, password=options.become_password)


def _sound(names: Iterable[str], result: Convergence) -> list[str]:
    return [name for name in names if name not in result.failed]


def _host_variables(roles: list[str], consent: Consent) -> dict[str, Any]:
    return {
        "gpuprov_roles": roles,
        "packages_allow_downgrade": consent.downgrade,
        "preflight_force": consent.force,
        "docker_disturb": consent.force,
        "containerd_disturb": consent.force,
    }


def _reboot(
    lock: Lock,
    names: list[str],
    run: Path,
    options: Options,
    listen: Listener,
    result: Convergence,
) -> None:
    """Reboot nodes, group by group, in the batches that each group allows."""
    for group in lock.groups.values():
        own = {name: {"gpuprov_reboot": True} for name in names if name in group.hosts}
        if not own:
            continue
        outcomes = run_playbook(
            "reboot",
            lock,
            own,
            run,
            options=options,
            variables=_reboot_variables(group.reboot),
            listen=listen,
        )
        for name, outcome in outcomes.items():
            before = result.outcomes.setdefault(name, NodeOutcome())
            before.failed += outcome.failed
            before.unreachable = before.unreachable or outcome.unreachable
        result.rebooted += [name for name in own if outcomes[name].ok]


def _reboot_variables(reboots: Reboots) -> dict[str, Any]:
    return {"gpuprov_reboot_batch": reboots.batch, "gpuprov_reboot_timeout": reboots.timeout_s}
