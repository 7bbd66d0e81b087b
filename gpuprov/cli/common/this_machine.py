"""Code that verbs share for this machine as a node: its first files, and a run across its reboot."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common import options
from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL
from gpuprov.untrusted.stated import stated_json

if TYPE_CHECKING:
    from gpuprov.apply.context import RunContext
    from gpuprov.apply.converge import Convergence
    from gpuprov.apply.proposal import Proposal
    from gpuprov.inventory.discover import Match

STATE = "apply.json"
"""File in the folder of an apply with its parameters, to continue after a reboot of this machine."""
LOCK = "apply.lock.yml"
KEPT_OPTIONS = ("check", "diff", "verbosity")
SETTLE_S = 90.0
"""Seconds after a boot in which its units start."""

local_option = click.option("--local", is_flag=True, help="use this machine as the node, without SSH")


def first_files(lock_path: Path) -> None:
    """Write fleet.yml and its lock for this machine, if there is no lock; an existing fleet.yml is used.

    Raises:
        InvalidInput: there is no lock, and its file is not called NAME.lock.yml.
        GpuprovError: the machine has no supported GPUs, or no lock is possible for it.
    """
    from gpuprov.locking.build import build_lock
    from gpuprov.model.lock import write_lock

    if lock_path.exists():
        return
    fleet = lock_path.with_name(lock_path.name.removesuffix(".lock.yml") + ".yml")
    if fleet == lock_path:
        raise InvalidInput(f"no lock {lock_path}", do="gpuprov init --local, gpuprov lock")
    if not fleet.exists():
        write_fleet_here(fleet)
    write_lock(build_lock(fleet, narrate=options.warn), lock_path)
    options.note(f"{lock_path} written")


def write_fleet_here(fleet: Path, group: str | None = None, site: str | None = None) -> None:
    """Read this machine's facts, write a fleet for it, and print its differences from the nearest profile.

    Args:
        group: name of the group; by default the profile's.
        site: site of the machine.

    Raises:
        GpuprovError: the machine has no supported GPUs.
    """
    from gpuprov.catalog import load
    from gpuprov.errors import NodeFailed
    from gpuprov.inventory.discover import fleet_here, kinds
    from gpuprov.inventory.starting import write_fleet
    from gpuprov.probe.collect import collect_local
    from gpuprov.probe.facts import Missing
    from gpuprov.probe.payload import Parameters

    catalog = load()
    facts = collect_local(Parameters())
    try:
        document, nearest = fleet_here(facts, kinds(catalog, [Path("profiles")]), catalog)
    except Missing as missing:
        raise NodeFailed(str(missing), do="gpuprov doctor --local") from None
    [(named, stated)] = document["groups"].items()
    document["groups"] = {group or named: {**stated, **({"site": site} if site else {})}}
    write_fleet(fleet, document)
    tell_match("this machine", stated["profile"], nearest, fleet)
    options.note(f"{fleet} written; next: gpuprov lock")


def tell_match(machine: str, profile: str, nearest: Match, fleet: Path) -> None:
    """Print the profile that a machine matches, its differences, and what was not compared."""
    options.note(f"{machine} matches the profile {profile}")
    for difference in nearest.differences:
        options.note(f"    it has {difference}: stated in {fleet}")
    for reason in nearest.unknown:
        options.note(f"    not compared: {reason}")


def remember(run: RunContext, names: Sequence[str], lock_path: Path, *, verified: bool) -> RunContext:
    """Keep the parameters of an apply in the run's folder; return a run that continues after a reboot of this
    machine.

    Nothing is kept, and the run is returned unchanged, if none of the nodes is this machine.

    Args:
        names: selected nodes.
        lock_path: file of the lock.
        verified: whether to verify at the end.
    """
    from gpuprov.apply.afterboot import Afterwards
    from gpuprov.model.documents import write_text
    from gpuprov.model.lock import write_lock

    hosts = run.lock.hosts()
    if all(hosts[name].hosts[name] != LOCAL for name in names):
        return run
    asked = {
        "names": list(names),
        "lock": str(lock_path.absolute()),
        "verified": verified,
        "consent": asdict(run.consent),
        "options": {name: getattr(run.options, name) for name in KEPT_OPTIONS},
    }
    write_text(run.folder / STATE, json.dumps(asked, indent=1))
    write_lock(run.lock, run.folder / LOCK)
    words = ("apply", "--continue", run.id)
    return replace(run, afterwards=Afterwards(words, leaving=partial(_leaving, run, lock_path)))


def _leaving(run: RunContext, lock_path: Path, changed: Mapping[str, int]) -> None:
    """Keep the changes so far, and add the run to the history as rebooting, before the machine goes down.

    Args:
        changed: node → number of changes.
    """
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.history import keep
    from gpuprov.history.record import of_nodes
    from gpuprov.model.documents import write_text

    asked = _asked(run.folder)
    write_text(run.folder / STATE, json.dumps({**asked, "changed": dict(changed)}, indent=1))
    here = [name for name, group in run.lock.hosts().items() if group.hosts[name] == LOCAL]
    said = "rebooting; the run continues by itself in the next boot (journalctl -u gpuprov-resume)"
    nodes = [NodeDrift(name, "error", reason=said) for name in here]
    keep(of_nodes(run.id, "apply", run.lock, lock_path, nodes), options.note)


def recall(name: str) -> tuple[RunContext, dict[str, Any]]:
    """Return a run that requested a reboot, and its parameters.

    Raises:
        InvalidInput: there is no such run, or it has no parameters.
    """
    from gpuprov.apply.afterboot import Afterwards, boot_before
    from gpuprov.apply.context import Consent, Options, RunContext
    from gpuprov.files.runs import known_run
    from gpuprov.model.lock import read_lock

    folder = known_run(name)
    asked = _asked(folder) if folder else {}
    if folder is None or not asked:
        raise InvalidInput(f"no apply {name!r} is waiting for a reboot", do="gpuprov apply")
    lock_path = Path(asked["lock"])
    run = RunContext(
        read_lock(folder / LOCK),
        folder,
        Options(**{name: asked["options"][name] for name in KEPT_OPTIONS}),
        Consent(**asked["consent"]),
        narrate=options.note,
    )
    afterwards = Afterwards(("apply", "--continue", name), boot_before(), partial(_leaving, run, lock_path))
    return replace(run, afterwards=afterwards), asked


def settled_proposal(run: RunContext, names: Sequence[str]) -> Proposal:
    """Return the remaining plan, once the units of this boot have had time to start; every node is checked
    again.

    It proposes again until all nodes answer and nothing differs, at most `SETTLE_S` seconds. Nodes without
    differences remain in it, marked as rebooted, so that they are verified.
    """
    from gpuprov.apply.plan import NodePlan
    from gpuprov.apply.proposal import Proposal, propose

    deadline = time.monotonic() + SETTLE_S
    proposal = propose(run.lock, names, run.options)
    while (proposal.busy or proposal.unanswered) and time.monotonic() < deadline:
        time.sleep(3)
        proposal = propose(run.lock, names, run.options)
    again = [
        NodePlan(plan.name, (), reboot=True, because=(), beyond=plan.beyond) if plan.empty else plan
        for plan in proposal.plans
    ]
    return Proposal(proposal.found, again)


def account(result: Convergence, run: RunContext) -> None:
    """Add to the result, in place, the changes that the run made before the reboot of this machine."""
    from gpuprov.apply.playbook import NodeOutcome

    for name, changed in _asked(run.folder).get("changed", {}).items():
        result.outcomes.setdefault(name, NodeOutcome()).changed += changed


def _asked(folder: Path) -> dict[str, Any]:
    """Return the parameters of a folder's run; {} if it has none: this machine was not one of its nodes."""
    try:
        asked: dict[str, Any] = stated_json((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    return asked
