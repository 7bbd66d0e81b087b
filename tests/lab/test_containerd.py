"""containerd for Kubernetes on a real node: Debian's containerd and its `containerd config dump`.

The tests build on each other: a node is configured, broken and corrected, with and without Docker.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import Lab
from gpuprov_lab.variants import with_control_groups
from tests import ROOT
from tests.lab.marks import slow_ones
from tests.lab.node_under_test import TRANSACTION
from tests.lab.stub_driver_node import StubDriverNode, component, drive
from tests.lab.ubuntu_nodes import CLIENT
from tests.systems import DEBIAN

AREA = "containerd."
CONFIG = "/etc/containerd/config.toml"
CRI = "io.containerd.grpc.v1.cri"
OFF = f'disabled_plugins = ["{CRI}"]'
SITES_OWN = f"""\
# what the site needs, and a plugin that Docker's packages switch off
version = 2
{OFF}

[plugins."{CRI}"]
  sandbox_image = "site/pause:3.9" # of our own registry
"""
TOOLKIT = component({"nvidia-container-toolkit": "1.19.0-1"})
ASKED = "/root/asked"
"""Root of a container with a shell."""
_CONTENTS = ROOT / "lab/gpuprov_lab/mirror/contents"
PROGRAMS = (
    _CONTENTS / "nvidia-container-toolkit-base/usr/bin/nvidia-container-runtime",
    _CONTENTS / "nvidia-container-toolkit/usr/bin/nvidia-container-runtime-hook",
)
"""Stubs of the toolkit's programs; its packages are in no archive."""
WRITE = "Write the merged configuration"
RUN = "Run the daemon, now and at every boot"


@pytest.fixture(scope="module", params=slow_ones(DEBIAN, DEBIAN[1:]))
def driven(
    module_lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[StubDriverNode]:
    """A node with containerd 1.6 of Debian 12 or 1.7 of Debian 13."""
    folder = tmp_path_factory.mktemp("containerd")
    driven = containerd_node(module_lab, folder, request.param, {"default_runtime": "nvidia"})
    yield driven
    module_lab.down([driven.node.name])


def containerd_node(lab: Lab, folder: Path, system: str, containers: dict[str, Any]) -> StubDriverNode:
    """Return a node with four GPUs whose lock states its distribution's containerd with these settings."""
    [node] = lab.up(1, os=system, gpu="a100x4", prepare=[with_control_groups])
    drive(node)
    node.run("apt-get -q update")
    driven = StubDriverNode(lab, node, folder)
    packages = driven.candidate("containerd", "runc")
    driven.state({"containers": containers}, containerd=component(packages), container_toolkit=TOOLKIT)
    return driven


def effective(driven: StubDriverNode) -> dict[str, Any]:
    """Return the plugin's table as containerd reads it from its files."""
    document = tomllib.loads(driven.node.run("containerd config dump").stdout)
    table: dict[str, Any] = document["plugins"][CRI]
    return table


@pytest.mark.slow
def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    snapshot = "dpkg-query -W; find /etc /var/lib/gpuprov -newer /etc/hostname -type f | sort"
    before = driven.says(snapshot)
    outcome, changed = driven.apply("containerd", check=True)
    assert outcome.ok, outcome.failed
    assert {WRITE, TRANSACTION} <= set(changed)
    assert driven.says(snapshot) == before
    assert set(driven.drift(AREA)) == {"containerd.packages", "containerd.unit", "containerd.config"}


def test_fresh_node_gets_a_runtime_for_pods_and_keeps_the_sites_own(driven: StubDriverNode) -> None:
    driven.node.run(f"mkdir -p /etc/containerd && cat >{CONFIG} && chmod 640 {CONFIG}", input=SITES_OWN)
    outcome, _ = driven.apply("containerd")
    assert outcome.ok, outcome.failed
    table = effective(driven)
    assert table["sandbox_image"] == "site/pause:3.9"
    assert table["containerd"]["default_runtime_name"] == "nvidia"
    options = {name: each["options"] for name, each in table["containerd"]["runtimes"].items()}
    binary = "/usr/bin/nvidia-container-runtime"
    assert options == {
        "runc": {"SystemdCgroup": True},
        "nvidia": {"SystemdCgroup": True, "BinaryName": binary},
    }
    lines = driven.says(f"cat {CONFIG}").splitlines()
    assert [line for line in SITES_OWN.splitlines() if line not in lines] == [OFF]
    assert driven.says(f"stat -c %a {CONFIG}") == "640"
    assert driven.drift(AREA) == {}
    assert driven.failed(AREA) == {}


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply("containerd")[1] == []
    assert driven.apply("containerd", check=True)[1] == []


def test_a_container_of_the_configured_runtime_has_the_gpus_it_asks_for(driven: StubDriverNode) -> None:
    """Start it by ctr with the program of the runtime `nvidia`, as containerd reads it from its files."""
    for program in PROGRAMS:
        path = f"/usr/bin/{program.name}"
        driven.node.run(f"cat >{path} && chmod 755 {path}", input=program.read_text())
    driven.node.run(
        f"mkdir -p {ASKED}; tar -ch /bin/sh $(ldd /bin/sh | grep -o '/[^ ]* ') | tar -x -C {ASKED}"
    )
    options = effective(driven)["containerd"]["runtimes"]["nvidia"]["options"]
    run = f"ctr run --rm --runc-binary {options['BinaryName']} --rootfs"
    say = "/bin/sh -c 'echo /dev/nvidia[0-9]*'"
    asked = f"{run} --env NVIDIA_VISIBLE_DEVICES=0,2 {ASKED} asking {say}"
    assert driven.says(asked) == "/dev/nvidia0 /dev/nvidia2"
    assert driven.says(f"{run} {ASKED} without {say}") == "/dev/nvidia[0-9]*"


# Fault → command, checks in drift and verify, and checks of the daemon that fail only in verify.
FAULTS = {
    "configuration": (
        f"sed -i 's/SystemdCgroup = true/SystemdCgroup = false/; s/^disabled_plugins.*/{OFF}/' {CONFIG};"
        " systemctl restart containerd",
        {"containerd.config"},
        {"containerd.plugin"},
    ),
    "not-running": (
        "systemctl disable --now containerd; systemctl mask containerd; dpkg --remove --force-depends runc",
        {"containerd.unit", "containerd.packages"},
        {"containerd.plugin"},
    ),
}
FAULTS["at-once"] = (
    "; ".join(fault for fault, _, _ in FAULTS.values()),
    {check for _, checks, _ in FAULTS.values() for check in checks},
    {"containerd.plugin"},
)


@pytest.mark.parametrize("name", slow_ones(FAULTS, FAULTS.keys() - {"at-once"}))
def test_fault_is_seen_by_both_witnesses_and_mended(driven: StubDriverNode, name: str) -> None:
    fault, checks, also_failing = FAULTS[name]
    driven.node.run(fault)
    assert set(driven.drift(AREA)) == checks
    assert set(driven.failed(AREA)) == checks | also_failing
    outcome, _ = driven.apply("containerd")
    assert outcome.ok, outcome.failed
    assert driven.failed(AREA) == {}


def test_configuration_that_is_no_toml_is_refused_with_its_place(driven: StubDriverNode) -> None:
    kept = driven.says(f"cat {CONFIG}")
    driven.node.run(f"cat >{CONFIG}", input="version = 2\n\nroot = /var/lib\n")
    assert set(driven.drift(AREA)) == {"containerd.config"}
    outcome, changed = driven.apply("containerd")
    [failed] = outcome.failed
    assert f"{CONFIG} is not TOML, line 3, column 8: " in failed["msg"]
    assert changed == []
    assert driven.says(f"cat {CONFIG}") == "version = 2\n\nroot = /var/lib"
    driven.node.run(f"cat >{CONFIG}", input=kept + "\n")


def test_imported_file_that_would_undo_it_is_refused(driven: StubDriverNode) -> None:
    kept = driven.says(f"cat {CONFIG}")
    imported = "/etc/containerd/conf.d/99-nvidia.toml"
    driven.node.run(
        f"mkdir -p /etc/containerd/conf.d; cat >{imported}; sed -i '1i imports = [\"{imported}\"]' {CONFIG}",
        input=f'version = 2\n[plugins."{CRI}"]\n  enable_selinux = false\n',
    )
    assert "site/pause" not in driven.says("containerd config dump")
    assert set(driven.drift(AREA)) == {"containerd.config"}
    assert set(driven.failed(AREA)) == {"containerd.config"}
    outcome, changed = driven.apply("containerd")
    [failed] = outcome.failed
    assert f"{imported}, which {CONFIG} imports, has a table of the CRI plugin" in failed["msg"]
    assert changed == []
    driven.node.run(f"rm {imported}; cat >{CONFIG}", input=kept + "\n")


def test_configuration_that_the_plugin_refuses_is_taken_back(driven: StubDriverNode) -> None:
    assert driven.apply("containerd")[1] == [RUN]  # the file was written after the daemon's start
    before = driven.says(f"cat {CONFIG}")
    nonsense = {"containerd": {"default_runtime_name": "nonsense"}}
    outcome, _ = driven.apply("containerd", containerd_config=nonsense)
    assert not outcome.ok, (outcome, driven.says(f"cat {CONFIG}; ctr plugins list"))
    [failed] = outcome.failed
    assert "no corresponding runtime configured" in failed["msg"]
    assert failed["msg"].endswith("its former configuration is in place")
    assert driven.says(f"cat {CONFIG}") == before
    assert driven.says("systemctl is-active containerd") == "active"
    assert driven.apply("containerd")[1] == []


@pytest.mark.slow
def test_containerd_is_not_restarted_under_a_container_with_gpus(driven: StubDriverNode) -> None:
    driven.node.run(
        "ctr run --detach --rootfs --device /dev/nvidia0 --label io.kubernetes.pod.name=trainer-0"
        f" {ASKED} trainer /bin/sh -c 'while :; do :; done'"
    )
    driven.state({"containers": {"default_runtime": "runc"}})
    outcome, changed = driven.apply("containerd")
    [failed] = outcome.failed
    assert "while default/trainer-0 use the GPUs" in failed["msg"]
    assert changed == []
    outcome, changed = driven.apply("containerd", containerd_disturb=True)
    assert outcome.ok, outcome.failed
    assert RUN in changed
    assert "RUNNING" in driven.says("ctr tasks list")
    driven.node.run("ctr tasks delete --force trainer; ctr containers delete trainer")
    assert driven.drift(AREA) == {}


def test_what_the_lock_states_no_more_goes_and_the_sites_own_stays(driven: StubDriverNode) -> None:
    driven.state({"containers": {}}, container_toolkit=None)
    assert driven.apply("containerd")[0].ok
    assert "nvidia" not in driven.says(f"cat {CONFIG}")
    table = effective(driven)
    assert list(table["containerd"]["runtimes"]) == ["runc"]
    assert table["sandbox_image"] == "site/pause:3.9"
    assert driven.apply("containerd")[1] == []


@pytest.mark.slow
def test_docker_comes_and_goes_beside_it(driven: StubDriverNode) -> None:
    """Check that Docker is installed next to containerd, and removed again."""
    client = [CLIENT] if driven.node.os == "debian13" else []
    driven.state(docker=component(driven.candidate("docker.io", "containerd", "runc", *client)))
    outcome, _ = driven.apply("containerd", "docker")
    assert outcome.ok, outcome.failed
    assert driven.drift(AREA, "docker.") == {}
    driven.state(docker=None)
    driven.rule_out("docker")
    outcome, _ = driven.apply("containerd", "docker")
    assert outcome.ok, outcome.failed
    assert driven.drift(AREA, "docker.") == {}
    assert driven.failed(AREA, "docker.") == {}


def test_containerd_that_does_not_answer_counts_as_in_use(driven: StubDriverNode) -> None:
    driven.state({"containers": {"default_runtime": "nvidia"}}, container_toolkit=TOOLKIT)
    driven.node.run("systemctl kill --kill-whom=main --signal=STOP containerd.service")
    outcome, changed = driven.apply("containerd")
    driven.node.run("systemctl kill --kill-whom=main --signal=CONT containerd.service")
    [failed] = outcome.failed
    # Whether ctr or gpuprov times out first depends on ctr's version.
    silent = (
        r"does not report which containers run: `ctr namespaces list` (gave no answer in 20 s|exited with 1)"
    )
    assert re.search(silent, failed["msg"])
    assert changed == []
    driven.state({"containers": {}}, container_toolkit=None)


@pytest.mark.slow
def test_docker_that_nobody_manages_keeps_containerd(driven: StubDriverNode) -> None:
    driven.node.run("apt-get -q -y install --no-install-recommends docker.io")
    driven.state(containerd=None)
    driven.rule_out("containerd")
    outcome, _ = driven.apply("containerd")
    [failed] = outcome.failed
    assert "containerd could not be removed: other packages would be removed as well" in failed["msg"]
    assert "(apt would remove docker.io)" in failed["msg"]
    assert driven.says("systemctl is-active docker containerd") == "active\nactive"
    driven.node.run("apt-get -q -y remove docker.io")


def test_containerd_is_not_removed_under_any_container(driven: StubDriverNode) -> None:
    driven.state(containerd=None)
    driven.rule_out("containerd")
    driven.node.run(
        "cp /bin/sleep /root/asked/bin/; ctr run --detach --rootfs /root/asked plain /bin/sleep 999"
    )
    outcome, changed = driven.apply("containerd")
    [failed] = outcome.failed
    assert "has to be removed, which would end default/plain; drain the node" in failed["msg"]
    assert changed == []
    driven.node.run("ctr tasks delete --force plain; ctr containers delete plain")


@pytest.mark.slow
def test_containerd_that_shall_not_be_there_goes_with_its_configuration(driven: StubDriverNode) -> None:
    driven.state(containerd=None)
    driven.rule_out("containerd")
    assert set(driven.drift(AREA)) == {"containerd.absent"}
    outcome, _ = driven.apply("containerd")
    assert outcome.ok, outcome.failed
    assert driven.drift(AREA) == {}
    assert driven.failed(AREA) == {}
    assert driven.says(f"ls {CONFIG}").endswith("No such file or directory")
    assert driven.apply("containerd")[1] == []
