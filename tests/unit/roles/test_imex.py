"""IMEX: modes, the nodes of a domain, both witnesses on the same state, and refused fleets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpuprov.drift.observations import OBSERVERS
from gpuprov.errors import GpuprovError
from gpuprov.locking.imex import check_imex
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.settings import Settings
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.imex import IMEX_UNIT, SOCKET, domains, expectations, variables
from gpuprov.verify.suite import test_imex as checks
from tests import ROOT
from tests.unit.roles.test_expectations import group

HOSTS = {"tray1": "10.0.0.12", "tray2": "10.0.0.3"}
NODES = ["10.0.0.12", "10.0.0.3"]
VERSION = "580.95.05"


def tray(mode: str | None, hosts: dict[str, str] = HOSTS, component: str = "imex") -> LockedGroup:
    """Return a group of compute trays with a mode of IMEX."""
    base = group(component, **({"imex": mode} if mode else {}))
    locked = getattr(base.components, component).model_copy(update={"version": VERSION})
    stack = base.components.model_copy(update={component: locked})
    return base.model_copy(update={"hosts": hosts, "components": stack})


@pytest.mark.parametrize("mode", ["service", "dra-host"])
def test_a_daemon_of_the_host_has_the_nodes_of_its_domain(mode: str) -> None:
    expected = {each.check: each.expected for each in expectations(tray(mode))}
    socket = {"imex.socket": SOCKET} if mode == "dra-host" else {}
    assert expected == {"imex.unit": "enabled", "imex.nodes": NODES, **socket}
    assert variables(tray(mode)) == {"imex_mode": mode, "imex_version": VERSION, "imex_nodes": NODES}


@pytest.mark.parametrize("mode", ["dra", "off"])
def test_other_modes_mask_the_unit(mode: str) -> None:
    assert {each.check: each.expected for each in expectations(tray(mode))} == {"imex.unit": "masked"}
    assert variables(tray(mode)) == {"imex_mode": mode, "imex_version": VERSION, "imex_nodes": []}


def test_without_a_mode_nothing_is_expected() -> None:
    assert expectations(tray(None)) == []
    assert variables(tray(None))["imex_mode"] == "unset"


def test_off_is_a_word_also_for_yaml() -> None:
    assert yaml.safe_load("imex: off") == {"imex": False}
    assert Settings.model_validate(yaml.safe_load("imex: off")).imex == "off"
    assert "imex" not in Settings().model_dump()
    with pytest.raises(ValueError, match="Input should be 'service', 'dra', 'dra-host' or 'off'"):
        Settings.model_validate({"imex": True})


def test_the_role_knows_the_modes_of_the_setting_and_the_socket() -> None:
    options = yaml.safe_load((ROOT / "roles/imex/meta/argument_specs.yml").read_text())
    unset, *modes = options["argument_specs"]["main"]["options"]["imex_mode"]["choices"]
    assert variables(tray(None))["imex_mode"] == unset
    for mode in modes:
        assert Settings(imex=mode).imex == mode
    assert SOCKET in (ROOT / "roles/imex/vars/main.yml").read_text()


@dataclass
class State:
    """State of IMEX on a node, as both witnesses read it."""

    unit: str = "loaded active enabled"
    nodes: str | None = "10.0.0.3\n# a comment\n\n 10.0.0.12\n"
    config: str | None = f"IMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH={SOCKET}\n"
    driver: str = VERSION

    def facts(self) -> Facts:
        """Return the facts of drift."""
        load, active, file = self.unit.split()
        properties = {"Id": IMEX_UNIT, "LoadState": load, "ActiveState": active, "UnitFileState": file}
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        module = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.driver}  Thu Oct 9 2025\n"
        raw = {
            "units": {"text": text},
            "imex": {"nodes": self.nodes, "config": self.config},
            "modules": {"driver": module},
        }
        return Facts("node", "", 0, raw)

    @property
    def nvidia_driver(self) -> Any:
        return SimpleNamespace(loaded=SimpleNamespace(version=self.driver))

    def service(self, name: str) -> Any:
        """Return testinfra's view of the unit."""
        assert name == IMEX_UNIT
        load, active, file = self.unit.split()
        return SimpleNamespace(
            systemd_properties={"LoadState": load, "ActiveState": active, "UnitFileState": file}
        )

    def run(self, command: str, *words: str) -> Any:
        """Return the output of the commands of verify."""
        text = ""
        if command.startswith("systemctl is-enabled"):
            text = self.unit.split()[2]
        elif command.startswith("grep -v"):
            rows = (self.nodes or "").splitlines()
            text = "\n".join(row for row in rows if row.strip() and not row.strip().startswith("#"))
        elif command.startswith("grep ^"):
            start = command.split()[1].removeprefix("^")
            text = "\n".join(row for row in (self.config or "").splitlines() if row.startswith(start))
        return SimpleNamespace(stdout=text, failed=False, rc=0, stderr="")


def verified(state: State, expectation: Expectation) -> bool:
    """Return whether verify's check passes."""
    node = SimpleNamespace(wanted={"imex.unit": expectation})
    try:
        if expectation.check == "imex.unit":
            checks.test_imex_runs_or_is_masked(state, node, expectation.expected)  # type: ignore[arg-type]
        elif expectation.check == "imex.nodes":
            checks.test_imex_knows_the_nodes_of_its_domain(state, expectation.expected)  # type: ignore[arg-type]
        else:
            checks.test_imex_has_the_socket_of_the_dra_driver(state, expectation.expected)  # type: ignore[arg-type]
    except AssertionError:
        return False
    return True


CASES = {
    "as expected": ("dra-host", State(), set()),
    "stopped": ("service", State("loaded inactive enabled"), {"imex.unit"}),
    "masked by hand": ("service", State("masked inactive masked"), {"imex.unit"}),
    "before the reboot": ("service", State("loaded failed enabled", driver="535.309.01"), set()),
    "a node is missing": ("service", State(nodes="10.0.0.3\n"), {"imex.nodes"}),
    "a node too many": ("service", State(nodes="10.0.0.3\n10.0.0.12\n10.0.0.4\n"), {"imex.nodes"}),
    "no list": ("service", State(nodes=None), {"imex.nodes"}),
    "another list": ("service", State(config="IMEX_NODE_CONFIG_FILE=/etc/other.cfg\n"), {"imex.nodes"}),
    "its own list": (
        "service", State(config="IMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\n"), set(),
    ),
    "no socket": ("dra-host", State(config="IMEX_CMD_ENABLED=0\n"), {"imex.socket"}),
    "socket is off": (
        "dra-host", State(config=f"IMEX_CMD_UNIX_DOMAIN_PATH={SOCKET}\n"), {"imex.socket"},
    ),
    "no configuration": ("dra-host", State(config=None), {"imex.socket"}),
    "masked": ("dra", State("masked inactive masked"), set()),
    "masked and active": ("dra", State("masked active masked"), {"imex.unit"}),
    "enabled": ("dra", State(), {"imex.unit"}),
    "only disabled": ("off", State("loaded inactive disabled"), {"imex.unit"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_both_witnesses_say_the_same(case: str) -> None:
    mode, state, differing = CASES[case]
    stated = expectations(tray(mode))
    by_drift = {each.check for each in stated if OBSERVERS[each.check](state.facts(), each) != each.expected}
    by_verify = {each.check for each in stated if not verified(state, each)}
    assert (by_drift, by_verify) == (differing, differing)


DOMAIN = {"d1": ["tray1", "tray2"]}


@pytest.mark.parametrize("mode", ["service", "dra-host", "dra", "off", None])
def test_a_group_that_is_a_domain_is_accepted(mode: str | None) -> None:
    check_imex({"a": tray(mode)}, DOMAIN)


@pytest.mark.parametrize("mode", ["dra", "off", None])
def test_modes_without_a_list_need_no_domain(mode: str | None) -> None:
    check_imex({"a": tray(mode)}, None)


def test_a_gpu_without_such_links_is_refused() -> None:
    for mode in ("service", "dra", "dra-host"):
        with pytest.raises(
            GpuprovError, match=rf"a: imex is {mode}, and .* no NVLink to others \[imex-gpu\]"
        ):
            check_imex({"a": tray(mode, component="nccl")}, DOMAIN)
    check_imex({"a": tray("off", component="nccl")}, None)


@pytest.mark.parametrize(
    ("hosts", "stated", "said"),
    [
        (HOSTS, None, r"tray\[1-2\] is in no NVLink domain"),
        (HOSTS, {"d1": ["tray1"]}, "tray2 is in no NVLink domain"),
        (HOSTS, {"d1": ["tray1"], "d2": ["tray2"]}, r"its hosts are in 2 NVLink domains \[imex-domain\]"),
        ({"tray1": "10.0.0.1"}, DOMAIN, "the NVLink domain d1 is split: tray2 is in another group"),
        ({"tray1": "10.0.0.1", "tray2": "tray2"}, DOMAIN, "tray2 has no address"),
    ],
)
def test_a_split_domain_is_refused(hosts: dict[str, str], stated: Any, said: str) -> None:
    for mode in ("service", "dra-host"):
        with pytest.raises(GpuprovError, match=f"a: imex is {mode}, and .*{said}"):
            check_imex({"a": tray(mode, hosts)}, stated)


def test_groups_are_compared_with_their_own_domain_only() -> None:
    groups = {f"g{n}": tray("service", {f"h{n}": "10.0.0.1"}) for n in range(500)}
    domains = {**{f"d{n}": [f"h{n}"] for n in range(500)}, "other": [f"x{n}" for n in range(100_000)]}
    begun = time.process_time()
    check_imex(groups, domains)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(("mode", "found"), [(None, ["tray[1-2]"]), ("dra", ["tray[1-2]"]), ("off", [])])
def test_a_domain_changes_as_one_unless_imex_is_off(mode: str | None, found: list[str]) -> None:
    lock = Lock(inputs="0" * 64, groups={"a": tray(mode)}, nvlink_domains=DOMAIN)
    assert domains(lock) == found
    without = Lock(inputs="0" * 64, groups={"a": tray(None, component="nccl")}, nvlink_domains=DOMAIN)
    assert domains(without) == []
