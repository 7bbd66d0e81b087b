"""NCCL's network environment of live nodes, from their facts and topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.model.fleet import Fleet, read_fleet
from gpuprov.model.nodeset import expand
from gpuprov.model.profile import overlay
from gpuprov.nccl.derive import Derived, derive
from gpuprov.nccl.inputs import from_facts
from gpuprov.probe.collect import ask
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, build
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out
from gpuprov.topology.live import topology_of

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def site_values(fleet: Fleet, folder: Path) -> dict[str, dict[str, str]]:
    """Return group → the NCCL variables stated in its profile or in the fleet; the fleet's override the
    profile's.

    Args:
        folder: of the fleet's file.

    Raises:
        InvalidInput: as `Profiles`.
    """
    profiles = fleet.profiles(folder)
    stated = {
        name: overlay(profiles[group.profile].profile.settings, group.settings).nccl or {}
        for name, group in fleet.groups.items()
    }
    return {name: {key: str(value) for key, value in values.items()} for name, values in stated.items()}


def derive_live(
    targets: Iterable[Target],
    site: Mapping[str, Mapping[str, str]],
    *,
    dispatch: Dispatch,
) -> dict[str, Derived | GpuprovError]:
    """Derive each node's environment, in the order of `targets`; a node's error is its result.

    Args:
        site: node → variables that the site states.
    """
    nodes = list(targets)
    payload = build(Parameters(), password=dispatch.password)

    def visit(session: Session) -> Derived:
        facts = ask(session, payload)
        return derive(*from_facts(facts, topology_of(session)), site.get(session.target.name))

    answered = fan_out(nodes, visit, dispatch=dispatch, limits=LIMITS)
    answers = {target.name: answer for target, answer in answered}
    return {node.name: answers[node.name] for node in nodes}


def derive_fleet(
    path: Path, sources: Iterable[str], stated: Mapping[str, str], *, dispatch: Dispatch
) -> tuple[dict[str, dict[str, Derived]], dict[str, GpuprovError]]:
    """Derive the environments of a fleet; return them by group and node, and the nodes that failed.

    Args:
        path: the fleet's file.
        sources: hosts or groups of the fleet; all if empty.
        stated: variables that the site states in addition to those of the fleet.

    Raises:
        InvalidInput: the fleet is not valid, or has no such node.
    """
    fleet = read_fleet(path)
    wanted = _wanted(fleet, sources)
    of_group = {name: {**own, **stated} for name, own in site_values(fleet, path.parent).items()}
    site = {target.name: of_group[name] for name, targets in wanted.items() for target in targets}
    every = [target for targets in wanted.values() for target in targets]
    answers = derive_live(every, site, dispatch=dispatch)
    groups: dict[str, dict[str, Derived]] = {name: {} for name in wanted}
    failed: dict[str, GpuprovError] = {}
    for name, targets in wanted.items():
        for target in targets:
            answer = answers[target.name]
            if isinstance(answer, GpuprovError):
                failed[target.name] = answer
            else:
                groups[name][target.name] = answer
    return groups, failed


def _wanted(fleet: Fleet, sources: Iterable[str]) -> dict[str, list[Target]]:
    """Return group → its selected nodes, all if `sources` is empty.

    Raises:
        InvalidInput: a source is malformed, or no node or group of the fleet.
    """
    named: set[str] = set()
    for source in sources:
        try:
            named |= set(fleet.groups[source].hosts if source in fleet.groups else expand(source))
        except ValueError as error:
            raise InvalidInput(f"not a set of nodes: {source!r}", expected=str(error)) from None
    known = {host for group in fleet.groups.values() for host in group.hosts}
    if unknown := named - known:
        raise InvalidInput(f"the fleet has no node or group {', '.join(sorted(unknown))}")
    return {
        name: [
            Target(host, address, fleet.connection_of(name, host), fleet.place_of(host))
            for host, address in group.hosts.items()
            if host in named or not named
        ]
        for name, group in fleet.groups.items()
    }
