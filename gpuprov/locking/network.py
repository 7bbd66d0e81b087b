"""NCCL's network settings of a group: values derived from the nodes, overridden by the site's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuprov.model.fleet import Group
from gpuprov.model.lock import Setting
from gpuprov.nccl.record import NcclRecord, effective_variables


def with_network(
    settings: Mapping[str, Setting],
    name: str,
    group: Group,
    record: NcclRecord | None,
    narrate: Callable[[str], None],
) -> dict[str, Setting]:
    """Complete `nccl` in a group's settings, each variable with its reason.

    The settings are returned unchanged if no network was derived for the group.

    Args:
        narrate: called with hosts whose network was not derived.
    """
    derived = record.groups.get(name) if record else None
    stated = settings.get("nccl")
    if derived is None:
        return dict(settings)
    asked = set(derived.hosts)
    unasked = [host for host in group.hosts if host not in asked]
    if unasked:
        narrate(
            f"{name}: NCCL's network was derived without {', '.join(unasked)}; gpuprov nccl derive --write"
        )
    value, reason = effective_variables(derived, stated.value if stated else {})
    sources = ["what its nodes have (gpuprov nccl derive)", *([stated.source] if stated else [])]
    return {**settings, "nccl": Setting(value=value, reason=reason, source=" and ".join(sources))}
