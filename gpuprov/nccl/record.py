"""What was derived from a fleet's live nodes, kept beside the fleet for the lock to take: `fleet.nccl.yml`.

Written by `gpuprov nccl derive --write`, reviewed and committed like the lock, which is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gpuprov.model.documents import Strict, read_document, write_document
from gpuprov.nccl.derive import Derived

HEADER = "# Written by `gpuprov nccl derive --write` from what the nodes have. Review it, commit it.\n"


class DerivedValue(Strict):
    """The value of a variable, and why."""

    value: str
    reason: str


class DerivedGroup(Strict):
    """What the nodes of a group have in common; `hosts` are those that were asked."""

    hosts: list[str]
    variables: dict[str, DerivedValue]
    excluded: dict[str, str] = Field(default={}, description="interface or RDMA port → why it was not taken")


class NcclRecord(Strict):
    """The whole file."""

    schema_: Literal["gpuprov.nccl/1"] = Field(alias="schema", default="gpuprov.nccl/1")
    groups: dict[str, DerivedGroup]


def record_path(fleet: Path) -> Path:
    """`fleet.nccl.yml` beside `fleet.yml`."""
    return fleet.with_name(f"{fleet.stem}.nccl.yml")


def read_record(fleet: Path) -> NcclRecord | None:
    """The record of a fleet, None where nothing was derived.

    Raises:
        InvalidInput: the file is not one of these.
    """
    path = record_path(fleet)
    return read_document(path, NcclRecord) if path.exists() else None


def write_record(fleet: Path, groups: Mapping[str, Mapping[str, Derived]]) -> Path:
    """Record what the groups' nodes have in common; groups that were not asked again stay as they were.

    Args:
        groups: group → node → what was derived from it; the nodes of a group agree.
    """
    before = read_record(fleet)
    kept = dict(before.groups) if before else {}
    fresh = {name: _group(nodes) for name, nodes in groups.items() if nodes}
    path = record_path(fleet)
    write_document(path, NcclRecord(groups={**kept, **fresh}), header=HEADER)
    return path


def _group(nodes: Mapping[str, Derived]) -> DerivedGroup:
    one = next(iter(nodes.values()))
    own = {name: decision for name, decision in one.variables.items() if not decision.site}
    return DerivedGroup(
        hosts=sorted(nodes),
        variables={
            name: DerivedValue(value=decision.value, reason=decision.reason) for name, decision in own.items()
        },
        excluded=one.excluded,
    )


def effective_variables(
    derived: DerivedGroup | None, stated: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The variables of a group and the reason of each; what the site states itself wins."""
    own = derived.variables if derived else {}
    values = {**{name: each.value for name, each in own.items()}, **stated}
    reasons = {
        **{name: each.reason for name, each in own.items()},
        **dict.fromkeys(stated, "stated by the site"),
    }
    return dict(sorted(values.items())), "; ".join(f"{name}: {reasons[name]}" for name in sorted(values))
