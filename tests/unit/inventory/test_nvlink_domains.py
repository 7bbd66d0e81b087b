"""A written fleet.yml with IMEX: a lock of a whole NVLink domain, and the refusal of a split one."""

from __future__ import annotations

import pytest

from gpuprov.errors import Refused
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


def test_a_domain_that_is_split_between_groups_is_refused(locked: MakeLock) -> None:
    with pytest.raises(Refused) as refused:
        locked(RACK.format("", OTHER))
    assert str(refused.value) == (
        "rack: imex is service, and the NVLink domain nvl1 is split: t2 is in another group [imex-domain];"
        " expected all hosts of the domain in one group; state t2 in groups.rack.hosts"
    )
