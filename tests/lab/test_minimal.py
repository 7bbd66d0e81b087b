"""Single roles on the smallest system; `scripts/campaign minimal` runs all roles on Debian 12 and 13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuprov.apply.context import Consent
from gpuprov_lab import Lab
from tests.campaign._minimal_nodes import COLUMNS, Trials

SYSTEM = "debian12"
ROLES = ["firewall"]
"""Roles that install what the smallest system lacks, here nftables."""


@pytest.fixture
def trials(lab: Lab, tmp_path: Path) -> Iterator[Trials]:
    with ExitStack() as stack:
        yield Trials(stack, lab, tmp_path, [SYSTEM])


@pytest.mark.slow
def test_role_works_alone_on_the_smallest_system(trials: Trials) -> None:
    cells = trials.run(trials.nodes(SYSTEM, ROLES), Consent())
    assert cells == {(SYSTEM, role, column): "seen" for role in ROLES for column in COLUMNS}
