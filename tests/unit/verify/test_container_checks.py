"""State of containers on a node, and checks of it against a lock."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.observations.documents import within
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import Component, LockedGroup, Setting
from gpuprov.probe.facts import Facts, Missing
from gpuprov.roles import expectations
from gpuprov.verify.observers.containers import (
    HOOK,
    IMAGE,
    KILLED,
    LIMITED,
    NOTHING,
    TRIAL,
    TRIAL_S,
    Containers,
    Inside,
    parse_inside,
)
from gpuprov.verify.readings import part_of
from gpuprov.verify.shell import ShellBackend
from gpuprov.verify.wanted import wanted
from tests.unit.verify.nodes_on_paper import VERSION, Answers, PaperShell, judge, locked_group, paper_node

SAID = """\
memlock unlimited
stack 65536
gpus /dev/nvidia0 /dev/nvidia1
controls /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools
libraries /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.309.01 /usr/lib64/libnvidia-ml.so.[0-9]*.*
Filesystem     1K-blocks  Used Available Use% Mounted on
shm              1048576     0   1048576   0% /dev/shm
"""
STATED = {
    "shm_size": "1g",
    "memlock": "unlimited",
    "stack": 67108864,
    "cgroup_driver": "systemd",
    "cdi": True,
}


def group(settings: dict[str, Any], *components: str) -> LockedGroup:
    """Return a group with settings of containers and these components."""
    base = locked_group("node")
    each = Component(
        version="1", repository="r", packages={}, closure={"p": "1"}, hold_patterns=[], reason="", source=""
    )
    return base.model_copy(
        update={
            "settings": {"containers": Setting(value=settings, reason="", source="")},
            "components": base.components.model_copy(update=dict.fromkeys(components, each)),
        }
    )


def test_limits_inside_a_container_are_bytes() -> None:
    gpus = ["/dev/nvidia0", "/dev/nvidia1"]
    assert parse_inside(SAID) == Inside(2**30, "unlimited", 2**26, gpus, "535.309.01")


def test_container_without_gpus_has_none() -> None:
    assert parse_inside(SAID.replace("/dev/nvidia0 /dev/nvidia1", "/dev/nvidia[0-9]*")).gpus == []


@pytest.mark.parametrize(
    ("there", "other", "driver"),
    [
        ("/dev/nvidiactl ", "", "535.309.01, no /dev/nvidiactl"),
        ("libnvidia-ml.so.535.309.01", "libnvidia-ml.so.[0-9]*.*", "no library"),
        ("libnvidia-ml.so.535.309.01", "libnvidia-ml.so.550.1", "550.1"),
    ],
)
def test_a_container_without_the_drivers_files_is_described(there: str, other: str, driver: str) -> None:
    assert parse_inside(SAID.replace(there, other)).driver == driver


def test_a_container_of_docker_that_does_not_end_is_ended_on_the_node() -> None:
    answers = {TRIAL % HOOK: (KILLED, "", "")}
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    with pytest.raises(NodeFailed, match=f"has not ended within {TRIAL_S} s; see `docker run`"):
        Containers.get_module(host).inside(HOOK)
    shell = shutil.which("dash") or "sh"
    done = subprocess.run([shell, "-n", "-c", TRIAL % HOOK], check=False, capture_output=True)
    assert done.stderr == b""


def test_the_end_of_dockers_trial_removes_its_container(tmp_path: Path) -> None:
    """Let the real commands run with a `docker` that never ends."""
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n[ "$1" != run ] || sleep 60\n'
    )
    (tmp_path / "docker").chmod(0o755)
    command = TRIAL.replace(f"{LIMITED} {TRIAL_S} ", f"{LIMITED} 1 ") % NOTHING
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, env=path)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert done.returncode == KILLED
    assert asked[-2:] == [f"rm --force {IMAGE}", f"image rm --force {IMAGE}"]


HOOK_FAILED = (
    "docker: Error response from daemon: failed to create task for container: OCI runtime create failed: "
    "runc create failed: error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode "
    "as 'legacy'\nnvidia-container-cli: initialization error: nvml error: driver not loaded: unknown\n"
)
SAYS = {
    "the runtime": (f"{HOOK_FAILED}\nRun 'docker run --help' for more information\n", HOOK_FAILED),
    "an older docker": (f"{HOOK_FAILED}See 'docker run --help'.\n", HOOK_FAILED),
    "no daemon": ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n",) * 2,
}


@pytest.mark.parametrize("said", SAYS)
def test_a_container_that_does_not_start_is_reported_in_the_runtimes_words(said: str) -> None:
    answers = {TRIAL % HOOK: (125, "", SAYS[said][0])}
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    with pytest.raises(NodeFailed) as failed:
        Containers.get_module(host).inside(HOOK)
    assert str(failed.value) == " ".join(SAYS[said][1].split("\n")).strip()


def test_a_container_that_says_something_else_is_a_failure() -> None:
    with pytest.raises(NodeFailed, match="did not report controls, gpus, libraries, memlock, stack: 'hello"):
        parse_inside("hello\n")


@pytest.mark.parametrize("text", ["[1]", "[]", '[["features", {"cdi": true}]]', '"text"', "7", "null"])
def test_dockers_json_that_is_no_object_is_an_error(text: str) -> None:
    answers = {
        "cat /etc/docker/daemon.json": (0, text, ""),
        "docker info --format '{{json .}}'": (0, text, ""),
    }
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    found = Containers.get_module(host)
    with pytest.raises(ValueError, match=r"^not an object$"):
        _ = found.daemon_config
    with pytest.raises(ValueError, match=r"^not an object$"):
        _ = found.info


def test_a_docker_without_its_daemon_is_a_failure() -> None:
    """Refuse the answer of a command that succeeds without the daemon, with empty values."""
    text = '{"ID": "", "CgroupDriver": "", "Runtimes": null, "ServerErrors": ["Cannot connect to it"]}'
    answers = {"docker info --format '{{json .}}'": (0, text, "")}
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    with pytest.raises(NodeFailed, match=r"no answer of the daemon: .*Cannot connect to it"):
        _ = Containers.get_module(host).info


@pytest.mark.parametrize("value", [[1], [], [["features", {"cdi": True}]], "text", 7])
def test_a_daemon_json_that_is_no_object_is_a_fact_that_is_missing(value: Any) -> None:
    facts = Facts("node", "", 0, {"daemon_json": {"value": value}})
    with pytest.raises(Missing, match=r"daemon\.json is not an object$"):
        _ = facts.daemon_json


@pytest.mark.parametrize(
    ("document", "wanted", "seen"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": ["own", "ours"]}, {"a": ["ours"]}, {"a": ["ours"]}),
        ({"a": ["own"]}, {"a": ["ours"]}, {"a": []}),
        ({}, {"a": 1}, {}),
        ({"a": "text"}, {"a": {"x": 1}}, {"a": "text"}),
        (["a=b", "own"], ["a=b"], ["a=b"]),
        (["a=b", "a=c"], ["a=b"], ["a=b", "a=c"]),
        (["a=b", "a=b"], ["a=b"], ["a=b"]),
    ],
)
def test_only_what_is_wanted_of_a_configuration_is_compared(document: Any, wanted: Any, seen: Any) -> None:
    assert within(document, wanted) == seen
    if not isinstance(wanted, dict):
        assert part_of(document, wanted) == seen


def test_the_lock_in_dockerds_own_words() -> None:
    found = wanted(group(STATED, "docker", "container_toolkit"))
    assert found["docker.config"].expected == {
        "default-shm-size": "1g",
        "default-ulimits": {
            "memlock": {"Name": "memlock", "Hard": -1, "Soft": -1},
            "stack": {"Name": "stack", "Hard": 67108864, "Soft": 67108864},
        },
        "exec-opts": ["native.cgroupdriver=systemd"],
        "features": {"cdi": True},
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
    }
    assert found["docker.daemon"].expected == {
        "cgroup driver": "systemd",
        "runtimes": ["nvidia"],
        "cdi": True,
    }
    assert found["docker.limits"].expected == {"shm_size": 2**30, "memlock": "unlimited", "stack": 2**26}
    assert found["docker.gpus"].expected == found["docker.cdi_gpus"].expected == 4
    assert found["docker.driver"].expected == VERSION
    assert found["container_toolkit.cdi"].expected == "enabled"
    assert found["container_toolkit.devices"].expected == 4
    assert found["container_toolkit.devices"].needs_driver
    assert "container_toolkit.devices" not in wanted(group({"cdi": False}, "docker", "container_toolkit"))


def test_the_lock_in_containerds_own_words() -> None:
    stated = {"cdi": True, "default_runtime": "nvidia"}
    found = wanted(group(stated, "containerd", "container_toolkit"))
    assert found["containerd.config"].expected == {
        "containerd": {
            "runtimes": {
                "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}},
                "nvidia": {
                    "runtime_type": "io.containerd.runc.v2",
                    "options": {
                        "BinaryName": "/usr/bin/nvidia-container-runtime",
                        "SystemdCgroup": True,
                    },
                },
            },
            "default_runtime_name": "nvidia",
        },
        "enable_cdi": True,
    }
    assert found["containerd.plugin"].expected == "ok"
    assert not [check for check in found if check.startswith("docker.")]


def test_containerd_without_a_toolkit_runs_runc_alone() -> None:
    [stated] = [
        each
        for each in expectations(group({"cgroup_driver": "cgroupfs"}, "containerd", "docker"))
        if each.check == "containerd.config"
    ]
    assert stated.expected == {
        "containerd": {
            "runtimes": {
                "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
            }
        }
    }


DUMP = """\
disabled_plugins = [{}]
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.6"

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          BinaryName = ""
          SystemdCgroup = true
"""


def seen(dump: str | None, stated: dict[str, Any] | None = None) -> Any:
    """Return actual and expected value of `containerd.config`, for a dump of containerd's configuration."""
    facts = Facts("node", "", 0, {"containerd": {"dump": dump}, "units": {"text": ""}})
    expected = wanted(group(stated or {}, "containerd"))["containerd.config"]
    return OBSERVERS["containerd.config"](facts, expected), expected.expected


def test_containerds_configuration_is_read_as_far_as_it_is_wanted() -> None:
    actual, expected = seen(DUMP.format(""))
    assert actual == expected
    actual, expected = seen(DUMP.format("").replace("grpc.v1.cri", "cri.v1.runtime"))
    assert actual == expected


def test_containerd_that_knows_of_no_device_interface_has_it_switched_off() -> None:
    actual, expected = seen(DUMP.format(""), {"cdi": False})
    assert actual == expected
    actual, expected = seen(DUMP.format(""), {"cdi": True})
    assert (actual["enable_cdi"], expected["enable_cdi"]) == (False, True)


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri"])
def test_plugin_that_is_switched_off_is_reported_by_its_name(name: str) -> None:
    without_table = DUMP.partition("[plugins]")[0].format(f'"{name}"')
    assert seen(without_table)[0] == {"disabled_plugins": [name]}


def test_a_disabled_plugin_with_a_table_is_seen_by_both(tmp_path: Path) -> None:
    """Let containerd print the table of a disabled plugin, as it does if a file states one."""
    texts, nodes = {"on": DUMP.format(""), "off": DUMP.format('"cri"')}, []
    assert seen(texts["off"])[0]["disabled_plugins"] == ["cri"]
    for name, text in texts.items():
        locked = group({}, "containerd").model_copy(update={"hosts": {name: "127.0.0.1"}})

        def change(answers: Answers, text: str = text) -> None:
            answers["containerd config dump"] = (0, text, "")

        nodes.append(paper_node(name, locked, change))
    found = {
        name: {each.check: each.status for each in verdict.checks}["containerd.config"]
        for name, verdict in judge(nodes, tmp_path).items()
    }
    assert found == {"on": "passed", "off": "failed"}


def test_node_without_containerd_has_no_configuration_of_it() -> None:
    assert seen(None)[0] == {}


def test_containerd_that_prints_no_toml_is_a_fact_that_is_missing() -> None:
    with pytest.raises(Missing, match="is not TOML: "):
        seen("containerd: panic")


def test_what_the_lock_does_not_have_is_not_expected() -> None:
    def checks(group: LockedGroup) -> set[str]:
        areas = ("docker.", "container_toolkit.")
        return {each.check for each in expectations(group) if each.check.startswith(areas)}

    assert checks(group({})) == set()
    assert checks(group({}, "docker")) == {"docker.packages", "docker.unit"}
    assert "docker.gpus" not in wanted(group(STATED, "docker"))


def test_a_row_of_one_word_is_no_plugin() -> None:
    """Read a list of plugins whose rows are cut off."""

    def change(answers: Answers) -> None:
        rows = "TYPE ID PLATFORMS STATUS\nx\nio cri - ok\n\n"
        answers["ctr --connect-timeout 2s plugins list"] = 0, rows, ""

    host = paper_node("node", locked_group("node"), change).host
    assert Containers.get_module(host).containerd_plugins == {"cri": "ok"}
