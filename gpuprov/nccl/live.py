"""NCCL's network environment of live nodes: from their facts, and how near RDMA devices are to GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuprov.errors import GpuprovError
from gpuprov.model.fleet import Fleet
from gpuprov.model.profile import load_profile, overlay
from gpuprov.nccl.derive import Derived, derive
from gpuprov.nccl.inputs import from_facts
from gpuprov.probe.collect import ask
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, build
from gpuprov.ssh.transport import Limits, Session, Target, fan_out
from gpuprov.topology.live import topology_of

LIMITS = Limits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def site_values(fleet: Fleet, folder: Path) -> dict[str, dict[str, str]]:
    """Group → the variables that its profile or the fleet states itself.

    Args:
        folder: where the fleet's file stands.
    """
    folders = [folder / each for each in ["profiles", *fleet.profile_dirs]]
    stated = {
        name: overlay(load_profile(group.profile, folders).profile.settings, group.settings).nccl or {}
        for name, group in fleet.groups.items()
    }
    return {name: {key: str(value) for key, value in values.items()} for name, values in stated.items()}


def derive_live(
    targets: Iterable[Target],
    site: Mapping[str, Mapping[str, str]],
    *,
    forks: int,
    password: str | None = None,
) -> dict[str, Derived | GpuprovError]:
    """Each node's environment, in the order of `targets`; a node's failure is its answer.

    Args:
        site: node → variables that the site states itself.
        password: sudo's, where it asks for one.
    """
    nodes = list(targets)
    payload = build(Parameters(), password=password)

    def visit(session: Session) -> Derived:
        facts = ask(session, payload)
        return derive(*from_facts(facts, topology_of(session)), site.get(session.target.name))

    answers = {target.name: answer for target, answer in fan_out(nodes, visit, forks=forks, limits=LIMITS)}
    return {node.name: answers[node.name] for node in nodes}
