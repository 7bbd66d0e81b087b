"""Limits of logins and services, as files and as shells tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.drift.judge import judge
from gpuprov.drift.probe_request import drift_parameters, parameters
from gpuprov.model.lock import LockedGroup, Setting
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.verify.modules.tuning import parse_session
from tests.unit.verify.nodes_on_paper import judge as run_suite
from tests.unit.verify.nodes_on_paper import locked_group, paper_node

SAID = """\
S memlock 8192
H memlock unlimited
S stack 65536
H stack 65536
S nofile 1024
H nofile 1048576
OMP_NUM_THREADS=8
BASH_FUNC_x%%=() {  echo
"""


def test_session_of_a_login() -> None:
    session = parse_session(SAID)
    assert session.limits == {
        "memlock": "8388608, at most unlimited",
        "stack": 67108864,
        "nofile": "1024, at most 1048576",
    }
    assert session.environment == {"OMP_NUM_THREADS": "8"}


def facts(**collectors: object) -> Facts:
    return Facts("node", "", 0.0, collectors)


def seen(check: str, expected: object, node: Facts) -> object:
    differences = judge("node", node, [Expectation(check, expected, "system_tuning")]).drift
    return differences[0].actual if differences else expected


PATH = "/etc/security/limits.d/90-gpuprov.conf"
BOTH = [[PATH, "* - memlock 4096"], [PATH, "root - memlock 4096"]]


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        (BOTH, 4194304),
        (BOTH[:1], "4194304, not set"),
        ([*BOTH, ["/etc/security/limits.d/99.conf", "* soft memlock 64"]], "4194304, 65536"),
        ([[PATH, "* - memlock unlimited"], [PATH, "root - memlock -1"]], "unlimited"),
        ([*BOTH, [PATH, "@students hard memlock 1"]], 4194304),
        ([], None),
    ],
    ids=["one", "not-root", "later-file", "unlimited", "others-group", "none"],
)
def test_limits_are_those_of_root_and_of_everybody_else(rows: list[list[str]], limit: object) -> None:
    node = facts(limits={"pam": rows, "systemd": ""})
    assert seen("tuning.limits", {"memlock": "?"}, node) == {"memlock": limit}


def test_systemds_infinity_is_unlimited() -> None:
    node = facts(limits={"pam": [], "systemd": "DefaultLimitMEMLOCK=infinity\nDefaultLimitSTACK=8388608\n"})
    assert seen("tuning.service_limits", {"memlock": 1, "stack": 1}, node) == {
        "memlock": "unlimited",
        "stack": 8388608,
    }


@pytest.mark.parametrize(
    ("governors", "governor"),
    [({}, "performance"), ({"performance": 8, "powersave": 8}, "performance, powersave")],
)
def test_processors_without_a_governor_do_not_differ(governors: dict[str, int], governor: str) -> None:
    cpu = {"model": "", "logical": 2, "sockets": 1, "threads_per_core": 1, "governors": governors, "numa": {}}
    assert seen("tuning.governor", "performance", facts(cpu=cpu)) == governor


def test_debugging_variable_is_told_with_its_file() -> None:
    node = facts(environment={"/etc/environment": {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "8"}})
    assert seen("tuning.debugging", [], node) == ["CUDA_LAUNCH_BLOCKING in /etc/environment"]
    assert seen("tuning.environment", {"OMP_NUM_THREADS": "4"}, node) == {"OMP_NUM_THREADS": "8"}


@pytest.mark.parametrize("text", ["always [madvise] never\n", None])
def test_huge_pages(text: str | None) -> None:
    assert facts(hugepages={"transparent": text}).hugepages == (text and "madvise")


def probing(wanted: bool) -> LockedGroup:
    base = locked_group("node")
    stated = Setting(value={"tcp_mtu_probing": wanted}, reason="", source="")
    return base.model_copy(update={"settings": {**base.settings, "network": stated}})


@pytest.mark.parametrize(("value", "said"), [("0", False), ("1", True), ("2", "2"), (None, None)])
def test_mtu_probing_is_on_or_off_or_the_kernels_own_word(value: str | None, said: object) -> None:
    node = facts(sysctls={"net.ipv4.tcp_mtu_probing": value})
    assert seen("tuning.mtu_probing", "?", node) == said


def test_the_probe_is_asked_for_the_parameter_only_where_it_is_stated() -> None:
    assert drift_parameters(probing(False)).sysctls == ("net.ipv4.tcp_mtu_probing",)
    assert parameters(locked_group("node")).sysctls == ()


@pytest.mark.parametrize(("value", "failed"), [("1", []), ("0", ["tuning.mtu_probing"])])
def test_mtu_probing_on_a_recorded_node(tmp_path: Path, value: str, failed: list[str]) -> None:
    node = paper_node(
        "node",
        probing(True),
        lambda answers: answers.update({"sysctl --values net.ipv4.tcp_mtu_probing": (0, f"{value}\n", "")}),
    )
    found = run_suite([node], tmp_path)["node"]
    assert "tuning.mtu_probing" in {check.check for check in found.checks}
    assert [check.check for check in found.failed_checks] == failed
