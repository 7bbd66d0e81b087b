"""Power cycles of nodes by their BMC: off until the GPUs are without power, then on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.ssh.contained import contained
from gpuprov.upgrade.repair.bmc import Bmc
from gpuprov.upgrade.repair.redfish import Redfish, RedfishError

AT_ONCE = 16
NO_BMC = "no BMC is stated for it; state it in a file for --bmc"
AGAIN_S = 2.0
OFF_S = 30.0
"""Seconds without power: long enough that no capacitor keeps a GPU alive (our choice)."""
SHUTDOWN_S = 180.0
"""Seconds for an orderly shutdown before the power is cut."""
STATE_S = 120.0
"""Seconds for a change of the state of power."""
WHOLE = ("FullPowerCycle", "PowerCycle")
"""Kinds of reset that end with the power on; `ForceRestart` keeps the power and does not help a lost GPU."""


def cycle(bmcs: Mapping[str, Bmc | None], answering: Collection[str]) -> dict[str, str]:
    """Cycle the power of nodes, `AT_ONCE` in parallel; return node → why it failed (any error), also for
    nodes without a BMC.

    Args:
        bmcs: node → its BMC; None without a stated one.
        answering: nodes whose system answers: it is shut down first.
    """
    without = dict.fromkeys((name for name, bmc in bmcs.items() if not bmc), NO_BMC)
    stated = {name: bmc for name, bmc in bmcs.items() if bmc}
    if not stated:
        return without
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(stated))) as pool:
        said = pool.map(
            lambda name: contained(name, lambda: cycle_one(stated[name], orderly=name in answering)), stated
        )
        failed = {name: str(each) for name, each in zip(stated, said, strict=True) if each is not None}
    return without | failed


def cycle_one(bmc: Bmc, *, orderly: bool) -> None:
    """Cycle the power of one node; one that is off already is only switched on. Wait for each state.

    Args:
        orderly: shut the system down before the power is cut.

    Raises:
        GpuprovError: the BMC cannot be reached, refuses, or the state does not change in time.
    """
    with Redfish(bmc) as redfish:
        kinds = redfish.resets()
        if redfish.power() != "Off":
            if orderly and "GracefulShutdown" in kinds:
                redfish.reset("GracefulShutdown")
                _reaches(redfish, "Off", SHUTDOWN_S)
            if redfish.power() != "Off" and _whole(redfish, kinds):
                return
            _off(redfish, kinds)
        time.sleep(OFF_S)
        redfish.reset("On" if "On" in kinds or not kinds else _first(kinds, "ForceOn"))
        if not _reaches(redfish, "On", STATE_S):
            raise NodeFailed(f"{bmc.address}: the power is {redfish.power()} {STATE_S:g} s after On")


def _whole(redfish: Redfish, kinds: Collection[str]) -> bool:
    """Cycle by one request if the system has a kind for it, and wait for the power; return whether that
    worked and it is on.

    A BMC may state a kind that it then refuses.
    """
    for kind in WHOLE:
        if kind not in kinds:
            continue
        try:
            redfish.reset(kind)
        except RedfishError:
            continue
        time.sleep(AGAIN_S)
        if _reaches(redfish, "On", STATE_S):
            return True
    return False


def _off(redfish: Redfish, kinds: Collection[str]) -> None:
    """Cut the power, unless it is off; raise NodeFailed if it does not go off in time."""
    if redfish.power() != "Off":
        redfish.reset("ForceOff" if "ForceOff" in kinds or not kinds else _first(kinds, "ForceOff"))
        if not _reaches(redfish, "Off", STATE_S):
            raise NodeFailed(f"the power is {redfish.power()} {STATE_S:g} s after ForceOff")


def _first(kinds: Collection[str], wanted: str) -> str:
    """Return a kind of reset; raise NodeFailed if the system does not have it."""
    if wanted in kinds:
        return wanted
    raise NodeFailed(f"the BMC offers {', '.join(sorted(kinds)[:12])}", expected=wanted)


def _reaches(redfish: Redfish, state: str, seconds: float) -> bool:
    """Wait until the power has a state; return whether it has, within some seconds. Raise the BMC's error if
    it still does not answer then.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if redfish.power() == state:
                return True
        except GpuprovError:
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(AGAIN_S)
