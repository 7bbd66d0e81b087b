"""Podman as verify sees it: a container that is created, and one that runs as root and as a user."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from gpuprov.errors import NodeFailed
from gpuprov.verify.connection import TimeLimits
from gpuprov.verify.observers.containers import KILLED, TRIAL_S
from gpuprov.verify.observers.podman import CDI, CLOSED, DEFAULTS, NOTHING, TRIAL, USERS_TRIAL, Podman
from gpuprov.verify.shell import ShellBackend
from gpuprov.verify.verdict import CheckResult
from gpuprov.verify.wanted import wanted
from tests.unit.verify.nodes_on_paper import VERSION, PaperShell, judge, paper_node
from tests.unit.verify.test_container_checks import SAID, STATED, group

LIMITS = [
    {"Name": "RLIMIT_MEMLOCK", "Soft": -1, "Hard": -1},
    {"Name": "RLIMIT_STACK", "Soft": 2**26, "Hard": 2**26},
    {"Name": "RLIMIT_NOFILE", "Soft": 1, "Hard": 2},
]
CREATED = {"ShmSize": 2**30, "CgroupManager": "systemd", "Ulimits": LIMITS}
WARNINGS = 'time="…" level=warning msg="Using cgroups-v1"\nWARN[0000] "/" is not a shared mount\n'
FORBIDDEN = "forbidden by /proc/sys/user/max_user_namespaces"


def asked(command: str, *answer: Any) -> Podman:
    """Return the observer of a node that gives one answer."""
    host = Host(ShellBackend("node", PaperShell({command: answer}, None), budget_s=60))
    host.backend.set_host(host)
    observer: Podman = Podman.get_module(host)
    return observer


def test_defaults_are_those_of_a_container_that_is_created() -> None:
    said = json.dumps([{"Name": "trial", "HostConfig": CREATED}])
    assert asked(DEFAULTS, 0, said, WARNINGS).defaults == {
        "shm_size": 2**30,
        "memlock": "unlimited",
        "stack": 2**26,
        "nofile": "1:2",
        "cgroup_manager": "systemd",
    }


@pytest.mark.parametrize("said", ["[]", "{}", '[{"HostConfig": {}}]', '[{"HostConfig": {"Ulimits": [1]}}]'])
def test_a_description_without_its_values_is_a_failure(said: str) -> None:
    with pytest.raises(NodeFailed, match="`podman inspect` describes no container"):
        _ = asked(DEFAULTS, 0, said, "").defaults


def test_a_description_that_is_too_large_is_not_read() -> None:
    with pytest.raises(ValueError, match="more than 1048576"):
        _ = asked(DEFAULTS, 0, json.dumps(["x" * (1 << 20)]), "").defaults


def test_containers_of_root_and_of_a_user_have_limits_and_gpus() -> None:
    assert asked(TRIAL % NOTHING, 0, SAID, WARNINGS).inside().memlock == "unlimited"
    inside = asked(USERS_TRIAL % CDI, 0, SAID, WARNINGS).inside_of_user(CDI)
    assert not isinstance(inside, str)
    assert inside.gpus == ["/dev/nvidia0", "/dev/nvidia1"]
    assert asked(USERS_TRIAL % CDI, 0, f"{FORBIDDEN}\n", "").inside_of_user(CDI) == FORBIDDEN


def test_a_container_that_does_not_start_is_reported_without_warnings() -> None:
    unknown = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
    with pytest.raises(NodeFailed) as failed:
        asked(TRIAL % CDI, 126, "", f"{WARNINGS}{unknown}\n").inside(CDI)
    assert str(failed.value) == unknown
    with pytest.raises(NodeFailed, match="the container ended with status 126"):
        asked(TRIAL % CDI, 126, "", WARNINGS).inside(CDI)


def test_files_that_a_user_cannot_read_are_those_without_the_right_to(tmp_path: Path) -> None:
    """Let the real shell look at files of the test, in place of the system's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to others
        hosts, group_file = Path(name, "hosts"), Path(name, "group")
        Path(name).chmod(0o755)
        hosts.touch(0o600)
        group_file.touch(0o644)
        said = subprocess.run(
            ["sh", "-c", CLOSED.replace("/etc/", f"{name}/")], capture_output=True, text=True
        )
        assert (said.stdout, said.returncode) == (f"{hosts}\n", 0)
    assert asked(CLOSED, 0, "/etc/hosts\n", "").closed == ["/etc/hosts"]


def test_a_trial_that_its_time_limit_ends_is_reported_as_such() -> None:
    assert TimeLimits().command_s > TRIAL_S
    with pytest.raises(NodeFailed, match=f"the container has not ended within {TRIAL_S} s; see"):
        asked(TRIAL % CDI, KILLED, "", WARNINGS).inside(CDI)


def test_the_lock_in_terms_of_a_container() -> None:
    found = wanted(group(STATED, "podman", "container_toolkit"))
    limits = {"shm_size": 2**30, "memlock": "unlimited", "stack": 2**26}
    assert found["podman.config"].expected == {**limits, "cgroup_manager": "systemd"}
    assert found["podman.limits"].expected == limits
    assert found["podman.gpus"].expected == found["podman.rootless_gpus"].expected == 4
    assert found["podman.driver"].expected == VERSION
    assert not [check for check in found if check.startswith("docker.")]
    without = wanted(group({}, "podman"))
    found_alone = [check for check in without if check.startswith("podman.")]
    assert found_alone == ["podman.packages", "podman.readable"]


def results(folder: Path, users: str = SAID, gpus: int = 2) -> dict[str, CheckResult]:
    """Return the results of Podman's checks on a node, by id.

    Args:
        users: what the container of a user says.
        gpus: number of the node's GPUs.
    """
    locked = group({**STATED, "stack": 65536 * 1024}, "podman", "container_toolkit")
    locked = locked.model_copy(update={"hardware": locked.hardware.model_copy(update={"gpu_count": gpus})})
    answers = {
        DEFAULTS: (0, json.dumps([{"HostConfig": CREATED}]), ""),
        CLOSED: (0, "", ""),
        TRIAL % NOTHING: (0, SAID, ""),
        TRIAL % CDI: (0, SAID, ""),
        USERS_TRIAL % CDI: (0, users, ""),
    }
    node = paper_node("node", locked, lambda recorded: recorded.update(answers))
    checks = judge([node], folder)["node"].checks
    return {each.check: each for each in checks if each.check.startswith("podman.")}


def test_checks_pass_on_a_node_with_the_locked_values(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert found.pop("podman.packages").status == "failed"  # the recorded node has none
    assert {check: each.status for check, each in found.items()} == dict.fromkeys(
        (
            *("podman.readable", "podman.config", "podman.limits"),
            *("podman.driver", "podman.gpus", "podman.rootless_gpus"),
        ),
        "passed",
    )


def test_missing_gpus_are_counted_for_root_and_for_a_user(tmp_path: Path) -> None:
    found = results(tmp_path, SAID.replace(" /dev/nvidia1", ""))
    assert found["podman.gpus"].status == "passed"
    assert (found["podman.rootless_gpus"].status, found["podman.rootless_gpus"].actual) == ("failed", 1)
    found = results(tmp_path, gpus=8)
    assert [found[check].actual for check in ("podman.gpus", "podman.rootless_gpus")] == [2, 2]


def test_a_node_that_forbids_users_containers_passes_with_a_note(tmp_path: Path) -> None:
    found = results(tmp_path, f"{FORBIDDEN}\n")["podman.rootless_gpus"]
    assert (found.status, found.detail) == ("passed", f"users have no containers: {FORBIDDEN}")


@pytest.mark.parametrize("command", [DEFAULTS, TRIAL % CDI, USERS_TRIAL % CDI])
def test_commands_are_valid_in_the_smallest_shell(command: str) -> None:
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", "-c", command], check=False, capture_output=True).stderr == b""
