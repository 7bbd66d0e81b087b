"""Some of the mutations, and states without faults; `scripts/campaign mutations` runs all mutations."""

from __future__ import annotations

import pytest

from gpuprov_lab import Lab
from tests.lab.marks import slow_ones
from tests.lab.mutations import BYSTANDERS, MUTATIONS, Witnesses
from tests.lab.overruling import WAYS, Tally, rounds, tried
from tests.lab.provisioned_node import provision

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}


@pytest.fixture(scope="module")
def witnesses(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Witnesses:
    folder = tmp_path_factory.mktemp("fleet")
    return Witnesses(provision(module_lab, folder), folder)


@pytest.mark.parametrize(
    "name",
    slow_ones(
        [
            "other clocks on one GPU",
            "the clocks' unit disabled",
            "nouveau in the driver's place",
            "a GPU taken out",
        ],
        {"the clocks' unit disabled", "nouveau in the driver's place"},
    ),
)
def test_both_witnesses_see_it_and_it_is_mended(witnesses: Witnesses, name: str) -> None:
    assert witnesses.testify(BY_NAME[name]).complaints == []


SHORT = (
    "driver.unpackaged",
    "driver.loading",
    "driver.next_kernel",
    "gpu.clocks_unit",
    "pins.unattended",
    "pins.candidates",
    "pins.files",
)


def test_what_is_overruled_is_seen_by_both_and_apply_names_the_place(witnesses: Witnesses) -> None:
    """Try one way for each check; `scripts/campaign mutations --overruling` tries all."""
    ways = {way.check: way for way in WAYS if way.check in SHORT and not way.alone}
    assert set(ways) == set(SHORT)
    tally = Tally()
    outcomes = [
        each for turn in rounds(ways.values(), witnesses.stated) for each in tried(witnesses, turn, tally)
    ]
    assert [(each.name, each.complaints) for each in outcomes if each.complaints] == []
    assert (tally.tried, tally.drift, tally.verify, tally.named) == (len(SHORT),) * 4


def test_right_after_a_reboot_nothing_is_reported(witnesses: Witnesses) -> None:
    witnesses.node.reboot()
    witnesses.node.run("systemctl is-system-running --wait", check=False)
    assert witnesses.overlook("a reboot", "true").complaints == []


def test_what_is_nobodys_business_is_not_reported(witnesses: Witnesses) -> None:
    names = ("a package held by the site", "an account", "another host name", "a blacklist of no concern")
    assert witnesses.overlook("all at once", "; ".join(BYSTANDERS[name] for name in names)).complaints == []
