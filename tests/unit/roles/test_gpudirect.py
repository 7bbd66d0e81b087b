"""GPUDirect: modules at boot and loaded, options of storage clients; both witnesses on the same state."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.drift.observations import OBSERVERS
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.gpudirect import expectations, modules, variables
from gpuprov.roles.overruling import APPLIED_BY
from gpuprov.verify.readings import ENABLED
from gpuprov.verify.suite import test_gpudirect as checks
from gpuprov.verify.suite import test_storage as storage_checks
from tests.unit.roles.test_expectations import group

LIST = "/etc/modules-load.d/gpuprov-gpudirect.conf"
[LOADER] = APPLIED_BY["gpudirect.at_boot"]
OPTIONS = {"sunrpc.tcp_slot_table_entries": "128", "lnet.networks": "o2ib0(ib0)"}


@dataclass
class State:
    """A node's lists of modules and options of modprobe, as both witnesses read them."""

    listed: tuple[str, ...] = ("nvidia_peermem", "nvidia_fs")
    configured: tuple[str, ...] = (
        "options sunrpc tcp_slot_table_entries=128",
        "options lnet networks=o2ib0(ib0)",
        "softdep nvidia_fs pre: nvidia",
        "install nvidia_peermem modprobe -i nvidia-current-peermem",
    )
    loaded: tuple[str, ...] = ("nvidia", "nvidia_peermem", "nvidia_fs")
    seen: list[str] = field(default_factory=list)

    def facts(self) -> Facts:
        """Return the facts of drift."""
        rows = [[f"/etc/modprobe.d/x.conf:{n}", line] for n, line in enumerate(self.configured, 1)]
        rows += [[f"{LIST}:{n}", line] for n, line in enumerate(self.listed, 1)]
        proc = "\n".join(f"{name} 16384 0 - Live 0x0" for name in self.loaded)
        return Facts(
            "node",
            "",
            0,
            {
                "modprobe": rows,
                "modules": {"loaded": proc},
                "system": {"cmdline": ""},
                "units": {"text": f"Id={LOADER}\nLoadState=loaded\nUnitFileState=static"},
            },
        )

    def run(self, command: str, *words: str) -> Any:
        """Return the output of the commands of verify."""
        if command.startswith("modprobe --showconfig"):
            starts = ("options",) if "options" in command else ("blacklist nvidia", "install nvidia")
            lines = [line for line in self.configured if line.startswith(starts)]
            lines = [
                line for line in lines if not line.startswith("install") or line.endswith(("false", "true"))
            ]
        elif "modules-load.d" in command:
            lines = ["# " + LIST, *self.listed]
        elif command.startswith(("SYSTEMCTL_SKIP_SYSV", "systemctl", "systemd-delta")):
            lines = ["static"] if command == ENABLED else []
        else:
            lines = list(self.loaded)
        return SimpleNamespace(stdout="\n".join(lines), stderr="", failed=False)

    def service(self, unit: str) -> Any:
        """Return the unit that loads modules at boot."""
        return SimpleNamespace(systemd_properties={"UnitFileState": "static"})


def verified(state: State, expectation: Expectation) -> bool:
    """Return whether verify's check passes."""
    check = {
        "gpudirect.at_boot": checks.test_next_boot_loads_the_modules,
        "gpudirect.loaded": checks.test_modules_are_loaded,
        "storage.client_options": storage_checks.test_modules_of_clients_have_their_options,
    }[expectation.check]
    try:
        check(state, expectation.expected)  # type: ignore[operator]
    except AssertionError:
        return False
    return True


CASES = {
    "as expected": (State(), True),
    "by NVIDIA's own spelling": (State(listed=("nvidia-peermem", "nvidia-fs")), True),
    "in the other order": (State(listed=("nvidia_fs", "nvidia_peermem")), False),
    "one is missing": (State(listed=("nvidia_fs",)), False),
    "one is blacklisted": (State(configured=("blacklist nvidia_fs",)), False),
    "one is switched off": (State(configured=("install nvidia-fs /bin/false",)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_both_witnesses_agree_about_the_next_boot(name: str) -> None:
    state, right = CASES[name]
    expected = Expectation("gpudirect.at_boot", ["nvidia_peermem", "nvidia_fs"], "gpudirect")
    assert (OBSERVERS[expected.check](state.facts(), expected) == expected.expected) == right
    assert verified(state, expected) == right


@pytest.mark.parametrize("loaded", [("nvidia", "nvidia_peermem", "nvidia_fs"), ("nvidia",)])
def test_both_witnesses_agree_about_loaded_modules(loaded: tuple[str, ...]) -> None:
    state, expected = State(loaded=loaded), Expectation("gpudirect.loaded", ["nvidia_peermem"], None)
    right = "nvidia_peermem" in loaded
    assert (OBSERVERS[expected.check](state.facts(), expected) == expected.expected) == right
    assert verified(state, expected) == right


@pytest.mark.parametrize(
    ("line", "right"), [(None, True), ("options sunrpc tcp_slot_table_entries=2", False), ("", True)]
)
def test_both_witnesses_agree_about_options_of_clients(line: str | None, *, right: bool) -> None:
    state = State(configured=(*State().configured, *filter(None, [line])))
    expected = Expectation("storage.client_options", OPTIONS, "storage")
    assert (OBSERVERS[expected.check](state.facts(), expected) == expected.expected) == right
    assert verified(state, expected) == right


def test_nothing_is_expected_unless_it_is_stated() -> None:
    assert expectations(group()) == []
    assert variables(group())["gpudirect_modules"] is None


def test_modules_follow_components_and_peer_memory() -> None:
    assert modules(group("gds", peer_memory="nvidia-peermem")) == ["nvidia_peermem", "nvidia_fs"]
    assert modules(group("gds", peer_memory="dma-buf")) == ["nvidia_fs"]
    stated = group(peer_memory="dma-buf")
    assert [(each.check, each.expected) for each in expectations(stated)] == [("gpudirect.at_boot", [])]
    assert variables(stated)["gpudirect_modules"] == []
    checks = {each.check for each in expectations(group("gds", "doca_ofed"))}
    assert checks == {"doca_ofed.packages", "gds.packages", "gpudirect.at_boot", "gpudirect.loaded"}
