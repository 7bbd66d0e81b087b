"""Power limit, compute mode, ECC and MIG on a real node; the simulated driver resets and delays settings."""

from __future__ import annotations

import pytest

from gpuprov_lab import Lab
from tests.lab.stub_driver_node import StubDriverNode, drive

ROLE = "gpu_settings"
MODES = {
    "persistence": True,
    "power_limit": 300,
    "compute_mode": "exclusive_process",
    "ecc": False,
    "mig": ("3g.40gb", "2g.20gb"),
}
QUERY = "power.limit,compute_mode,ecc.mode.current,ecc.mode.pending,mig.mode.current"
STATE = f"nvidia-smi -i 0 --query-gpu={QUERY} --format=csv,noheader,nounits"
SET = "Set power limit and modes, now if the driver answers and at every boot"
LAYOUT = ["2g.20gb", "3g.40gb"]


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node with a stub driver, whose lock states modes of GPUs; not applied."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    drive(node)
    driven = StubDriverNode(module_lab, node, tmp_path_factory.mktemp("modes"))
    driven.state(MODES)
    return driven


def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    before = driven.says(STATE)
    outcome, changed = driven.apply(ROLE, check=True)
    assert outcome.ok, outcome.failed
    assert "Write the units that set GPUs at boot" in changed
    assert driven.says(STATE) == before == "400.00, Default, Enabled, Enabled, Disabled"
    assert driven.says("ls /usr/local/sbin") == ""


def test_what_can_change_now_changes_and_the_rest_waits_for_a_reboot(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert driven.says(STATE) == "300.00, Exclusive_Process, Enabled, Disabled, Disabled"
    waiting = {"gpu.ecc", "gpu.mig", "gpu.mig_layout"}
    assert set(driven.drift("gpu.")) == waiting
    assert set(driven.failed("gpu.")) == waiting
    assert driven.apply(ROLE)[1] == []


def test_reboot_brings_ecc_and_instances(driven: StubDriverNode) -> None:
    driven.reboot()
    assert driven.says(STATE) == "300.00, Exclusive_Process, Disabled, Disabled, Enabled"
    assert driven.drift("gpu.") == {}
    assert driven.failed("gpu.") == {}
    assert driven.apply(ROLE)[1] == []


def test_instances_come_back_at_every_boot(driven: StubDriverNode) -> None:
    driven.reboot()
    assert driven.failed("gpu.") == {}


FAULTS = {
    "gpu.power_limit": "nvidia-smi -i 2 -pl 400",
    "gpu.compute_mode": "nvidia-smi -c 0",
    "gpu.ecc_pending": "nvidia-smi -i 1 -e 1",
    "gpu.mig_layout": "nvidia-smi mig -i 3 -dci; nvidia-smi mig -i 3 -dgi",
    "gpu.modes_unit": "systemctl disable --now gpuprov-gpu-modes",
}


def test_faults_are_seen_by_both_witnesses_and_mended(driven: StubDriverNode) -> None:
    for fault in FAULTS.values():
        driven.node.run(fault)
    assert set(driven.drift("gpu.")) == set(FAULTS)
    assert set(driven.failed("gpu.")) == set(FAULTS)
    outcome, changed = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert changed == [SET]
    assert driven.drift("gpu.") == {}
    assert driven.failed("gpu.") == {}


def test_changed_lock_changes_just_that(driven: StubDriverNode) -> None:
    driven.state({"power_limit": 250, "mig": ("7g.80gb",)})
    assert set(driven.drift("gpu.")) == {"gpu.power_limit", "gpu.mig_layout", "gpu.modes_unit"}
    assert driven.apply(ROLE)[1] == ["Write the units that set GPUs at boot", SET]
    assert driven.failed("gpu.") == {}


def test_limit_that_the_board_does_not_have_is_named_before_an_apply(driven: StubDriverNode) -> None:
    driven.state({"power_limit": 900})
    assert driven.drift("gpu.")["gpu.power_range"] == "100 to 400 on GPU 0, 1, 2, 3"
    assert {"gpu.power_range", "gpu.power_limit"} <= set(driven.failed("gpu."))
    driven.state({"power_limit": 250})
    assert driven.failed("gpu.") == {}


@pytest.mark.slow
def test_limit_that_the_board_does_not_have_is_the_drivers_own_refusal(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(ROLE, gpu_settings_power_limit_w=900)
    assert not outcome.ok
    said = driven.says("journalctl -u gpuprov-gpu-modes -n 5 --no-pager --output=cat")
    assert "900.00 W is not a valid power limit which should be between 100.00 W and 400.00 W" in said
    assert driven.apply(ROLE)[0].ok


def test_what_is_not_asked_for_any_more_gets_its_default_back(driven: StubDriverNode) -> None:
    driven.state({"power_limit": None, "compute_mode": None, "mig": None})
    outcome, changed = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert "Reset modes that are no longer requested" in changed
    driven.reboot()
    assert driven.says(STATE) == "400.00, Default, Disabled, Disabled, Disabled"
    driven.state({"ecc": None})
    assert driven.apply(ROLE)[0].ok
    assert driven.says("ls /usr/local/sbin; systemctl cat gpuprov-gpu-modes").startswith("No files found")
    assert driven.apply(ROLE)[1] == []
