"""A written fleet.yml with IMEX: a lock of a whole NVLink domain, and the refusal of a split one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov.errors import Refused
from gpuprov.inventory.firstboot.files import NODE, own_lock
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.model.selection import for_worker, narrowed
from gpuprov.roles.imex import variables
from tests.unit.inventory.conftest import MakeLock

RACK = """\
groups:
  rack: {{profile: gb200-nvl-4, hosts: {{t1: 10.0.0.1{0}}}, os: ubuntu24.04, arch: aarch64,
         stack: {{repository: nvidia}}, settings: {{imex: service}}}}
{1}nvlink_domains: {{nvl1: "t[1-2]"}}
"""
OTHER = """\
  other: {profile: gb200-nvl-4, hosts: {t2: 10.0.0.2}, os: ubuntu24.04, arch: aarch64,
          stack: {repository: nvidia}, settings: {imex: service}}
"""


def test_all_nodes_of_a_domain_have_one_list(locked: MakeLock) -> None:
    [group] = locked(RACK.format(", t2: 10.0.0.2", "")).groups.values()
    assert variables(group)["imex_nodes"] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("cut", [narrowed, for_worker])
def test_a_lock_of_one_node_has_the_list_of_all(
    locked: MakeLock, tmp_path: Path, cut: Callable[[Lock, list[str]], Lock]
) -> None:
    """Keep the list of a node that is verified or changed alone, or by a worker with some of the nodes."""
    lock = cut(cut(locked(RACK.format(", t2: 10.0.0.2", "")), ["t1", "t2"]), ["t1"])
    write_lock(lock, tmp_path / "own.lock.yml")
    for each in (lock, read_lock(tmp_path / "own.lock.yml")):
        [group] = each.groups.values()
        assert list(group.hosts) == ["t1"]
        assert variables(group)["imex_nodes"] == ["10.0.0.1", "10.0.0.2"]


def test_the_lock_of_a_first_boot_has_the_list_of_the_group(locked: MakeLock) -> None:
    [group] = own_lock(locked(RACK.format(", t2: 10.0.0.2", "")), "rack").groups.values()
    assert list(group.hosts) == [NODE]
    assert variables(group)["imex_nodes"] == ["10.0.0.1", "10.0.0.2"]


def test_a_domain_that_is_split_between_groups_is_refused(locked: MakeLock) -> None:
    with pytest.raises(Refused) as refused:
        locked(RACK.format("", OTHER))
    assert str(refused.value) == (
        "rack: imex is service, and the NVLink domain nvl1 is split: t2 is in another group [imex-domain];"
        " expected all hosts of the domain in one group; state t2 in groups.rack.hosts"
    )
