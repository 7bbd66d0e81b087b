"""Derived values of a fleet's live nodes, kept next to the fleet as input of the lock: `fleet.nccl.yml`.

Written by `gpuprov nccl derive --write`, reviewed and committed like the lock, which is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gpuprov.model.documents import Strict, read_document, write_document
from gpuprov.model.nodeset import LARGEST
from gpuprov.nccl.derive import Derived

HEADER = "# Written by `gpuprov nccl derive --write` from what the nodes have. Review it, commit it.\n"


class DerivedValue(Strict):
    """The value of a variable, and its reason."""

    value: str
    reason: str


class DerivedGroup(Strict):
    """The common values of a group's nodes; `hosts` are the nodes that answered."""

    hosts: list[str] = Field(max_length=LARGEST)
    variables: dict[str, DerivedValue]
    excluded: dict[str, str] = Field(default={}, description="interface or RDMA port → why it was not taken")


class NcclRecord(Strict):
    """The file `fleet.nccl.yml`."""

    schema_: Literal["gpuprov.nccl/1"] = Field(alias="schema", default="gpuprov.nccl/1")
    groups: dict[str, DerivedGroup]


def record_path(fleet: Path) -> Path:
    """Return the path of `fleet.nccl.yml` next to `fleet.yml`."""
    return fleet.with_name(f"{fleet.stem}.nccl.yml")


def read_record(fleet: Path) -> NcclRecord | None:
    """Read the record of a fleet; return None if there is no file.

    Raises:
        InvalidInput: the file is not a valid record.
    """
    path = record_path(fleet)
    return read_document(path, NcclRecord) if path.exists() else None


def write_record(fleet: Path, groups: Mapping[str, Mapping[str, Derived]]) -> Path:
    """Write the common values of groups' nodes and return the file's path; keep the record of groups that are
    not in `groups` or have no nodes there.

    Args:
        groups: group → node → its derived values; the nodes of a group agree.

    Raises:
        InvalidInput: the file exists and is not valid, or cannot be written.
    """
    before = read_record(fleet)
    kept = dict(before.groups) if before else {}
    fresh = {name: _group(nodes) for name, nodes in groups.items() if nodes}
    path = record_path(fleet)
    write_document(path, NcclRecord(groups={**kept, **fresh}), header=HEADER)
    return path


def _group(nodes: Mapping[str, Derived]) -> DerivedGroup:
    """Return the record of a group from its first node, without the values that the site states."""
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
    """Return the variables of a group, and their reasons as one text; the site's own values override derived
    ones.
    """
    own = derived.variables if derived else {}
    values = {**{name: each.value for name, each in own.items()}, **stated}
    reasons = {
        **{name: each.reason for name, each in own.items()},
        **dict.fromkeys(stated, "stated by the site"),
    }
    return dict(sorted(values.items())), "; ".join(f"{name}: {reasons[name]}" for name in sorted(values))
