"""Limits of logins and services, read from files and from shells."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest
from testinfra.host import Host

from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.verify.observers.tuning import (
    SESSION,
    LoginSession,
    Tuning,
    parse_session,
    parse_sysctls,
)
from gpuprov.verify.shell import ShellBackend
from tests.unit.verify.nodes_on_paper import PaperShell

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


@pytest.mark.parametrize(
    ("root", "nobody", "wanted", "value"),
    [
        ({"A": "1"}, {"A": "1"}, "1", "1"),
        ({"A": "1"}, {}, "1", None),
        ({}, {"A": "1"}, None, "1"),
        ({}, {"A": "1"}, "1", None),
        ({"A": "2"}, {}, "1", "2"),
        ({"A": "1"}, {}, None, "1"),
    ],
)
def test_a_login_without_privileges_counts_as_root_s_does(
    root: dict[str, str], nobody: dict[str, str], wanted: str | None, value: str | None
) -> None:
    logins = {"root": root, "nobody": nobody}

    class Logins(Tuning):
        others = ()  # type: ignore[assignment]

        def login(self, user: str) -> LoginSession:
            """Return the session of one of the two users."""
            return LoginSession({}, logins[user])

    host = Host(ShellBackend("node", PaperShell({}, None), budget_s=60))
    assert Logins.get_module(host).variable("A", wanted) == value


def facts(**collectors: object) -> Facts:
    """Return facts with these answers of collectors."""
    return Facts("node", "", 0.0, collectors)


def seen(check: str, expected: object, node: Facts) -> object:
    """Return the actual value of a check by facts; the expected one without a difference."""
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


def test_a_soft_limit_of_services_is_seen_by_both() -> None:
    node = facts(limits={"pam": [], "systemd": "DefaultLimitNOFILE=4096\nDefaultLimitNOFILESoft=1024\n"})
    words = "1024, at most 4096"
    assert seen("tuning.service_limits", {"nofile": 4096}, node) == {"nofile": words}
    assert parse_session("S nofile 1024\nH nofile 4096\n").limits["nofile"] == words
    same = facts(limits={"pam": [], "systemd": "DefaultLimitNOFILE=4096\nDefaultLimitNOFILESoft=4096\n"})
    assert seen("tuning.service_limits", {"nofile": 4096}, same) == {"nofile": 4096}


def test_kernel_parameters_of_a_boot_may_be_indented() -> None:
    text = "# a = 1\n  net.core.a = 2\n-net/core/b=3\n\t; c = 4\n = 5\n"
    assert parse_sysctls(text) == {"net.core.a": "2", "net.core.b": "3"}


def test_a_name_alone_takes_an_earlier_value_away() -> None:
    assert parse_sysctls("a.b = 1\n-a/b\nc.d = 1\n-c.d\nc.d = 2\n e.f\n") == {"c.d": "2"}


@pytest.mark.parametrize(
    ("governors", "governor"),
    [({}, "performance"), ({"performance": 8, "powersave": 8}, "performance, powersave")],
)
def test_processors_without_a_governor_do_not_differ(governors: dict[str, int], governor: str) -> None:
    cpu = {"model": "", "logical": 2, "sockets": 1, "threads_per_core": 1, "governors": governors, "numa": {}}
    assert seen("tuning.governor", "performance", facts(cpu=cpu)) == governor


def test_debugging_variable_is_reported_with_its_file() -> None:
    files = {
        "/etc/environment": {"CUDA_LAUNCH_BLOCKING": "", "OMP_NUM_THREADS": "8"},
        "/etc/profile": {"CUDA_DEVICE_WAITS_ON_EXCEPTION": "1"},  # not exported, or not reached
    }
    logins = {
        "CUDA_LAUNCH_BLOCKING": ["", "/etc/environment:2"],
        "OMP_NUM_THREADS": ["8", "/etc/environment:1"],
        "TORCH_USE_CUDA_DSA": ["1", "/opt/site.sh:1"],
    }
    given = {"logins": logins, "services": {}, "users": {}, "nvcc": [None, None]}
    node = facts(environment=files, variables=given)
    assert seen("tuning.debugging", [], node) == [
        "CUDA_LAUNCH_BLOCKING in /etc/environment",
        "TORCH_USE_CUDA_DSA in /opt/site.sh:1",
    ]
    assert seen("tuning.environment", {"OMP_NUM_THREADS": "4"}, node) == {"OMP_NUM_THREADS": "8"}


@pytest.mark.parametrize("text", ["always [madvise] never\n", None])
def test_huge_pages(text: str | None) -> None:
    """Check the mode of transparent huge pages that is read; an empty text stays empty."""
    assert facts(hugepages={"transparent": text}).hugepages == (text and "madvise")


@pytest.mark.parametrize(("services", "status"), [("sshd login", 1), ("cron crond", 0)])
def test_cron_without_pam_runs_no_job_and_so_has_no_variables(
    services: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_starts = SimpleNamespace(pam_getenvlist=SimpleNamespace(), pam_start=lambda *_: 4)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nobody_starts)
    monkeypatch.setattr(os.path, "isfile", lambda path: True)
    monkeypatch.setattr(sys, "argv", ["", services, "root", "env"])
    with pytest.raises(SystemExit) as ended:
        exec(SESSION, {})  # noqa: S102 - the program that verify runs on nodes
    assert ended.value.code == status
