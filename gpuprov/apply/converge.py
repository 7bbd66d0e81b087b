"""Apply: the roles of the plan on its nodes, then reboots with consent, then the remaining drift."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gpuprov.apply.afterboot import go_down
from gpuprov.apply.context import Consent, RunContext
from gpuprov.apply.guarded import run_guarded
from gpuprov.apply.jobs import refuse_running_jobs
from gpuprov.apply.kernel_modules.once import Once
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.survey import survey
from gpuprov.errors import GpuprovError
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Reboots
from gpuprov.model.nodeset import fold
from gpuprov.roles import BY_NAME
from gpuprov.roles.causes import BY_HAND
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import targets
from gpuprov.verify import Verdict, run_verification

SETTLE_S = 60.0
"""Seconds that a node may take after a boot until the settings of its units can be read."""
START_S = 10.0
"""The same after roles have run without a boot."""


@dataclass
class Convergence:
    """Result of an apply, by node.

    Attributes:
        outcomes: node → outcome of all its roles and reboots.
        drift: node → its last survey; empty for a check, and without nodes that failed before the survey or
            whose plan is empty.
        rebooted: nodes that were rebooted and are reachable again.
        reboot_needed: nodes that need a reboot and were not rebooted, for example without consent.
    """

    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    drift: dict[str, NodeDrift] = field(default_factory=dict)
    rebooted: list[str] = field(default_factory=list)
    reboot_needed: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """Nodes that were unreachable or refused, or on which a role or a reboot failed."""
        return [name for name, outcome in self.outcomes.items() if not outcome.ok]

    @property
    def standing(self) -> list[str]:
        """Nodes to verify: those that answered, did not fail, and wait for no reboot."""
        return [
            name
            for name, node in self.drift.items()
            if node.reason is None and name not in self.failed and name not in self.reboot_needed
        ]

    def add(self, outcomes: dict[str, NodeOutcome]) -> None:
        """Add the outcomes of a playbook to the earlier ones of the same nodes."""
        for name, outcome in outcomes.items():
            self.outcomes.setdefault(name, NodeOutcome()).add(outcome)

    def sound(self, names: Iterable[str]) -> list[str]:
        """Return the nodes that have not failed so far."""
        return [name for name in names if name not in self.failed]


def converge(run: RunContext, plans: Iterable[NodePlan]) -> Convergence:
    """Bring nodes to the lock: roles, guarded roles, then reboots with consent, and a survey of what remains.

    Without the consent to downgrade, a node with newer packages than the lock is refused. A node that fails
    or whose lease is lost is not changed further. A difference of severity `error` that remains although its
    role has run is a failure of the node. This machine is rebooted last, and only once. With the option
    `check` only the roles run, in Ansible's check mode, and `drift` stays empty.

    Args:
        plans: one for each node; a node with an empty plan is not changed.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    result = Convergence()
    busy = {plan.name: plan for plan in plans if not plan.empty}
    if not run.consent.downgrade:
        result.add(_refused_downgrades(busy.values()))
        busy = {name: busy[name] for name in result.sound(busy)}
    result.add(_apply_roles(run, busy))
    _leave_lost(run, busy, result)
    result.add(_apply_guarded(run, [busy[name] for name in result.sound(busy)]))
    _leave_lost(run, busy, result)
    if run.options.check:
        return result
    result.drift = {node.name: node for node in _survey(run, result.sound(busy))}
    waiting = [
        name for name, node in result.drift.items() if plan_node(node).reboot or _reboot_of_verify(busy[name])
    ]
    hosts = run.lock.hosts()
    agreed = [name for name in waiting if run.consent.reboot or hosts[name].reboot.allowed]
    here = [name for name in busy if hosts[name].hosts[name] == LOCAL]
    returned = bool(here and run.afterwards and run.afterwards.returned())
    result.reboot_needed = [name for name in waiting if name not in agreed]
    _leave_lost(run, agreed, result)
    if away := [name for name in result.sound(agreed) if name not in here]:
        run.narrate(f"rebooting {len(away)} of {len(busy)} nodes")
        _reboot(run, away, result)
        result.drift |= {node.name: node for node in _survey_until(run, result.sound(away), SETTLE_S)}
    unsettled = [name for name in result.standing if _unmended(busy[name], result) and name not in agreed]
    result.drift |= {node.name: node for node in _survey_until(run, unsettled, START_S)}
    pending = [name for name in result.sound(agreed) if name in here and not returned]
    result.add({name: _left(busy[name], result) for name in result.standing if name not in pending})
    result.rebooted += here if returned else []
    for name in pending:
        _reboot_here(run, name, result)
    return result


def reboot_nodes(run: RunContext, names: Iterable[str]) -> Convergence:
    """Reboot nodes although nothing in the lock requires it, and without a survey.

    `rebooted` has the nodes that booted and are reachable; the outcomes have the reasons of the others.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    result = Convergence()
    _reboot(run, list(names), result)
    return result


def _reboot_of_verify(plan: NodePlan) -> bool:
    """Return whether a check that drift does not make has failed, and a reboot corrects it."""
    return any(each.reboot and each.check not in OBSERVERS for each in plan.because)


def _refused_downgrades(plans: Iterable[NodePlan]) -> dict[str, NodeOutcome]:
    """Return node → refusal, for nodes with newer packages: their installation would fail half-way."""
    do = "nothing was changed; to go back: gpuprov apply --allow-downgrade"
    return {
        plan.name: NodeOutcome(refused=f"it has {'; '.join(plan.newer)}; {do}")
        for plan in plans
        if plan.newer
    }


def verify(run: RunContext, result: Convergence) -> Verdict | None:
    """Verify the nodes of `standing`, with reports in the run's folder; return None without any.

    Raises:
        InvalidInput: a report cannot be written into the run's folder.
    """
    names = result.standing
    if not names:
        return None
    run.narrate(f"verifying {fold(names)}")
    return run_verification(
        run.lock,
        names,
        junit=run.folder / "verify.xml",
        json=run.folder / "verify.json",
        dispatch=run.options.dispatch,
    )


def _apply_roles(run: RunContext, plans: dict[str, NodePlan]) -> dict[str, NodeOutcome]:
    """Run the roles that cannot cause a lock-out; return node → outcome, without nodes that have none.

    If the settings of the role firewall are stated, it only installs its package in this step. Shared modules
    are compiled by the lock's builders first, then installed on the others.

    Raises:
        Refused: modules have to be signed and no builder is trusted, or a stored one was changed.
        GpuprovError: Ansible itself could not run.
    """
    hosts, nodes = run.lock.hosts(), {}
    for name, plan in plans.items():
        stated = "firewall" in hosts[name].settings
        roles = [role for role in plan.roles if not BY_NAME[role].guarded]
        roles += [role for role in plan.roles if role == "firewall" and stated]
        if roles:
            nodes[name] = {**_host_variables(roles, run.consent), "firewall_install_only": True}
    return Once(run, nodes).apply() if nodes else {}


def _apply_guarded(run: RunContext, plans: Iterable[NodePlan]) -> dict[str, NodeOutcome]:
    """Run the roles that could cause a lock-out, if the node's group states their settings.

    Returns:
        node → outcome, without nodes that have no such role.
    """
    hosts, nodes = run.lock.hosts(), {}
    for plan in plans:
        guarded = [BY_NAME[role] for role in plan.roles if BY_NAME[role].guarded]
        roles = [role.name for role in guarded if set(role.settings) & set(hosts[plan.name].settings)]
        if roles:
            nodes[plan.name] = _host_variables(roles, run.consent)
    return run_guarded(run, nodes) if nodes else {}


def _host_variables(roles: list[str], consent: Consent) -> dict[str, Any]:
    """Return a node's variables for Ansible: its roles, and the consent in the variables that roles read."""
    return {
        "gpuprov_roles": roles,
        "packages_allow_downgrade": consent.downgrade,
        "preflight_force": consent.force,
        "docker_disturb": consent.force,
        "containerd_disturb": consent.force,
        "podman_disturb": consent.force,
    }


def _survey(run: RunContext, names: list[str]) -> list[NodeDrift]:
    """Return the current drift of nodes from the run's lock; an error of a node is its result."""
    return survey(run.lock, names, dispatch=run.options.dispatch)


def _unmended(plan: NodePlan, result: Convergence) -> list[Difference]:
    """Return the node's differences of severity `error` that remain although their role has run."""
    differences = result.drift[plan.name].drift
    return [each for each in differences if each.role in plan.roles and each.severity == "error"]


def _left(plan: NodePlan, result: Convergence) -> NodeOutcome:
    """Return a failure that lists the remaining differences and the files that override them, if any.

    If no difference of `_unmended` remains, return an outcome without failure and change.
    """
    left = _unmended(plan, result)
    if not left:
        return NodeOutcome()
    said = "; ".join(f"{each.check} is still {_words(each.actual)}{_because(each)}" for each in left)
    ways = dict.fromkeys(
        f"for the cause: gpuprov doctor {plan.name}"
        if each.unread
        else BY_HAND.get(each.check, "remove that setting or state it in the lock")
        for each in left
    )
    do = f"{'; '.join(ways)}, then: gpuprov apply -l {plan.name}"
    event = {"host": plan.name, "role": left[0].role, "task": "Look again", "status": "failed"}
    return NodeOutcome(failed=[{**event, "msg": f"{said}; {do}"}])


def _because(difference: Difference) -> str:
    """Return `, overruled by FILE, …`; empty if no file overrides the setting."""
    return f", overruled by {', '.join(difference.by)}" if difference.by else ""


def _words(actual: Any) -> str:
    """Return an actual value as text: `not set` for None, `not there` for an empty list; items and `NAME
    VALUE` pairs are separated by commas.
    """
    if isinstance(actual, dict):
        return ", ".join(f"{name} {_words(value)}" for name, value in actual.items())
    if isinstance(actual, list):
        return ", ".join(map(str, actual)) or "not there"
    return "not set" if actual is None else str(actual)


def _survey_until(run: RunContext, names: list[str], seconds: float) -> list[NodeDrift]:
    """Survey nodes after a boot or a start of services; return the last result of each.

    Nodes that are not in sync are surveyed again every 2 s, for at most `seconds`.
    """
    deadline = time.monotonic() + seconds
    final: dict[str, NodeDrift] = {}
    asked = names
    while asked:
        final |= {node.name: node for node in _survey(run, asked)}
        asked = [name for name in asked if final[name].status != "in_sync"]
        if time.monotonic() > deadline:
            break
        if asked:
            time.sleep(2)
    return [final[name] for name in names]


def _leave_lost(run: RunContext, names: Iterable[str], result: Convergence) -> None:
    """Record a failure for nodes whose lease was lost, so that nothing more is done on them.

    Without leases, record none.
    """
    for name, error in run.leases.lost(result.sound(names)).items() if run.leases else ():
        result.outcomes.setdefault(name, NodeOutcome()).fail(name, "Hold the lease", str(error))


def _reboot(run: RunContext, names: list[str], result: Convergence) -> None:
    """Reboot nodes, group by group, in the batches that each group allows.

    Nodes that came back, and whose lease is not lost, are added to `rebooted`. If a node fails, the later
    batches of its group are not rebooted, which is narrated, and are added to `reboot_needed`. A reboot does
    not count as a change.
    """
    for group in run.lock.groups.values():
        own = {name: {"gpuprov_reboot": True} for name in names if name in group.hosts}
        if own:
            outcomes = run_playbook("reboot", own, run, variables=_reboot_variables(group.reboot))
            result.add({name: replace(outcome, changed=0) for name, outcome in outcomes.items()})
            _leave_lost(run, own, result)
            sound = result.sound(own)
            result.rebooted += [name for name in sound if outcomes[name].rebooted]
            if left := [name for name in sound if not outcomes[name].rebooted]:
                failed = fold(name for name in own if name not in sound)
                run.narrate(f"not rebooted, because the reboot of {failed} failed: {fold(left)}")
                result.reboot_needed += left


def _reboot_here(run: RunContext, name: str, result: Convergence) -> None:
    """Reboot this machine, as the last step; the run continues in its next boot.

    If that is impossible, the machine is listed in `reboot_needed`.
    """
    failure = contained(name, lambda: _go_down(run, name, result))
    if failure:
        run.narrate(f"{name}: {failure}")
        result.reboot_needed.append(name)


def _go_down(run: RunContext, name: str, result: Convergence) -> None:
    """Reboot this machine, which ends this process.

    Raises:
        GpuprovError: the run cannot continue afterwards, the machine's lease is lost, the GPUs are in use
            (not with the consent `force`), or the machine does not go down.
    """
    if run.afterwards is None:
        raise GpuprovError("this run cannot reboot this machine", do="reboot it yourself, then apply again")
    if run.leases:
        run.leases.require(name)
    [way] = targets(run.lock, [name])
    if not run.consent.force:
        refuse_running_jobs(way, run.options.dispatch.password)
    run.narrate(f"{name}: rebooting this machine; the run continues after the boot")
    changed = {node: outcome.changed for node, outcome in result.outcomes.items()}
    go_down(run.id, way, run.afterwards, changed, password=run.options.dispatch.password)


def _reboot_variables(reboots: Reboots) -> dict[str, Any]:
    """Return a group's variables for the playbook reboot: nodes per batch, and the time limit in seconds."""
    return {"gpuprov_reboot_batch": reboots.batch, "gpuprov_reboot_timeout": reboots.timeout_s}
