"""Notes about nodes whose locked or installed versions a security bulletin concerns."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.drift.security import PACKAGES, security_notes
from gpuprov.model.lock import read_lock
from gpuprov.roles.components import PACKAGE_CHECKS
from tests import RECORDED_LOCK

LOCK = read_lock(RECORDED_LOCK)
[NODE] = LOCK.hosts()


def notes(*drift: Difference, **changed: Any) -> list[tuple[str, bool, tuple[str, ...]]]:
    """Return version, whether it is installed, and bulletins of each note about a node with differences."""
    node = NodeDrift(NODE, "drifted" if drift else "in_sync", drift)
    found = security_notes(LOCK.model_copy(update=changed), [node], load())
    return [(each.version, each.installed, each.bulletins) for each in found]


def differs(check: str, actual: Any) -> Difference:
    """Return a difference of a check, with this actual value."""
    return Difference(check, "locked", actual, "error", "nvidia_driver", reboot=False)


LOCKED = ("535.309.01", False, ("5861",))


def test_a_node_in_sync_has_the_locked_version() -> None:
    assert notes() == [LOCKED]
    [note] = security_notes(LOCK, [NodeDrift(NODE, "unreachable", reason="timed out")], load())
    assert note.text.startswith(
        "driver 535.309.01 is affected by NVIDIA's security bulletin 5861 (high, 7.8: CVE-"
    )
    assert note.text.endswith("; 5861 names no fix for driver branch 535")


@pytest.mark.parametrize(
    ("difference", "version"),
    [
        (differs("driver.loaded", "535.288.01"), "535.288.01"),
        (differs("driver.packages", {"nvidia-smi": "3:535.288.01-1~deb12u1"}), "535.288.01"),
        (
            differs("driver.packages", {"libcuda1": "535.288.01-1", "nvidia-smi": "535.288.01-1"}),
            "535.288.01",
        ),
    ],
)
def test_an_installed_version_is_judged_too(difference: Difference, version: str) -> None:
    assert notes(difference) == [LOCKED, (version, True, ("5821", "5861"))]


@pytest.mark.parametrize(
    "difference",
    [
        differs("driver.loaded", None),
        differs("driver.loaded", "unknown: no answer"),
        differs("driver.loaded", "580.178.04"),
        differs("driver.loaded", "535.309.01"),
        differs("driver.packages", {"nvidia-smi": None}),
        differs("driver.packages", {"nvidia-persistenced": "535.171.04-1~deb12u1"}),
        differs("driver.packages", {"nvidia-smi": ["535.288.01"]}),
        differs("driver.packages", "unknown: no answer"),
        differs("pins.hold", {"nvidia-smi": "535.288.01-1"}),
        differs("dcgm.packages", {"datacenter-gpu-manager": "4.5.2"}),
    ],
)
def test_other_differences_add_nothing(difference: Difference) -> None:
    assert notes(difference) == [LOCKED]


def test_a_fleet_may_ignore_bulletins() -> None:
    assert notes(security="ignore") == []
    assert notes(security="refuse") == [LOCKED]


def test_the_checks_of_packages_exist() -> None:
    assert set(PACKAGES) <= set(PACKAGE_CHECKS)
