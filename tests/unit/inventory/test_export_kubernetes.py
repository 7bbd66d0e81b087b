"""Export to Kubernetes: manifests that the published schemas accept, values of charts, and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.exports import Choices, Node, kubernetes_files, node_labels
from gpuprov.model.lock import Component, Lock, write_lock
from tests.unit.inventory.conftest import MakeLock

FLEET = """\
groups:
  train: {{profile: hgx-h200-4, hosts: 'gpu[01-02]', os: ubuntu24.04, stack: {{repository: nvidia}}{0}}}
  infer: {{profile: inference-l4, hosts: l1, os: ubuntu24.04{1}}}
"""
NODE = Node(
    "gpu01", "10.0.0.1", 8, "NVIDIA H200", gpu_memory_mib=143771, labels={"driver": "580.95.05"},
    places={"rack": "b7", "nvlink_domain": "d1"},
)  # fmt: skip
OLDEST, NEWEST = "1.34", ""
"""The oldest version of Kubernetes with the keys of the DRA driver; the newest with a schema."""


def equipped(lock: Lock, *groups: str) -> Lock:
    """Return a lock in which the groups, by default all, have the container toolkit."""
    toolkit = Component(
        version="1.19.0", repository="r", packages={}, closure={}, hold_patterns=[], reason="", source=""
    )
    having = {
        name: group.model_copy(
            update={"components": group.components.model_copy(update={"container_toolkit": toolkit})}
        )
        for name, group in lock.groups.items()
        if name in (groups or lock.groups)
    }
    return lock.model_copy(update={"groups": {**lock.groups, **having}})


def exported(lock: Lock, *names: str, **choices: Any) -> dict[str, Any]:
    """Return file → document of an export of hosts with the toolkit, by default of all nodes."""
    return written(equipped(lock), *names, **choices)


def written(lock: Lock, *names: str, **choices: Any) -> dict[str, Any]:
    """Return file → document of an export."""
    files = kubernetes_files(lock, names or list(lock.hosts()), load(), Choices(**choices))
    return {name: yaml.safe_load(text) for name, text in files.items()}


def test_hosts_that_have_driver_and_toolkit_get_neither(locked: MakeLock) -> None:
    files = exported(locked(FLEET.format("", "")))
    assert files == {
        "gpu-operator.values.yaml": {
            "driver": {"enabled": False}, "toolkit": {"enabled": False}, "mig": {"strategy": "none"},
        },
        "device-plugin.values.yaml": {
            "runtimeClassName": "nvidia", "migStrategy": "none", "gfd": {"enabled": True},
        },
        "device-plugin.runtimeclass.yaml": {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        },
    }  # fmt: skip


def test_hosts_without_a_toolkit_get_that_of_the_operator(locked: MakeLock) -> None:
    lock = locked(FLEET.format("", ""))
    files = written(lock)
    assert set(files) == {"gpu-operator.values.yaml"}
    assert files["gpu-operator.values.yaml"]["toolkit"] == {"enabled": True}
    with pytest.raises(InvalidInput, match="group infer has no container_toolkit, and other groups have it"):
        written(equipped(lock, "train"))
    assert written(equipped(lock, "train"), "gpu01")["gpu-operator.values.yaml"]["toolkit"] == {
        "enabled": False
    }


@pytest.mark.parametrize("version", [OLDEST, NEWEST], ids=["oldest", "newest"])
@pytest.mark.parametrize("choices", [{}, {"replicas": 4}, {"dra": True}])
def test_manifests_are_valid_by_the_published_schemas(
    locked: MakeLock, version: str, choices: dict[str, Any]
) -> None:
    import kubernetes_validate  # takes two seconds, which other test processes need not spend

    version = version or kubernetes_validate.latest_version()
    manifests = [
        each for each in exported(locked(FLEET.format("", "")), **choices).values() if "kind" in each
    ]
    assert len(manifests) == {"{}": 1, "{'replicas': 4}": 2, "{'dra': True}": 0}[str(choices)]
    for each in manifests:
        kubernetes_validate.validate(each, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}, version)


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        (("", ""), "none"),
        ((", settings: {mig: []}", ""), "none"),
        ((", settings: {mig: [3g.71gb, 3g.71gb]}", ""), "single"),
        ((", settings: {mig: [3g.71gb, 2g.35gb]}", ""), "mixed"),
    ],
)
def test_instances_are_those_of_the_lock(locked: MakeLock, settings: tuple[str, str], strategy: str) -> None:
    lock = locked(FLEET.format(*settings))
    files = exported(lock)
    operator = files["gpu-operator.values.yaml"]
    assert operator["mig"] == {"strategy": strategy}
    assert files["device-plugin.values.yaml"]["migStrategy"] == strategy
    assert ("migManager" in operator) == ("mig" in settings[0])
    assert exported(lock, "l1")["gpu-operator.values.yaml"]["mig"] == {"strategy": "none"}


def test_time_slicing_is_the_same_for_both_charts(locked: MakeLock) -> None:
    files = exported(locked(FLEET.format("", "")), replicas=4)
    config = files["gpu-operator.configmap.yaml"]
    assert files["gpu-operator.values.yaml"]["devicePlugin"]["config"] == {
        "name": config["metadata"]["name"], "default": "any",
    }  # fmt: skip
    assert files["device-plugin.values.yaml"]["config"] == {"map": config["data"], "default": "any"}
    shared = [{"name": "nvidia.com/gpu", "replicas": 4}]
    assert yaml.safe_load(config["data"]["any"]) == {
        "version": "v1", "flags": {"migStrategy": "none"}, "sharing": {"timeSlicing": {"resources": shared}},
    }  # fmt: skip


def test_a_node_gives_gpus_by_the_dra_driver_or_by_the_plugin(locked: MakeLock) -> None:
    files = exported(locked(FLEET.format("", "")), dra=True)
    assert set(files) == {"gpu-operator.values.yaml", "dra-driver.values.yaml"}
    assert files["gpu-operator.values.yaml"]["devicePlugin"] == {"enabled": False}
    assert files["dra-driver.values.yaml"]["nvidiaDriverRoot"] == "/"
    assert files["dra-driver.values.yaml"]["resources"]["gpus"] == {"enabled": True}


def test_a_driver_that_is_too_old_for_dra_is_refused_with_its_group(locked: MakeLock) -> None:
    lock = locked(FLEET.format("", ""))
    stack = lock.groups["infer"].components
    old = stack.model_copy(update={"driver": stack.driver.model_copy(update={"version": "535.309.01"})})
    infer = lock.groups["infer"].model_copy(update={"components": old})
    lock = lock.model_copy(update={"groups": {**lock.groups, "infer": infer}})
    with pytest.raises(
        InvalidInput, match=r"group infer is locked to driver 535.*expected driver 565 or newer, for GPUs"
    ):
        exported(lock, dra=True)
    assert "dra-driver.values.yaml" in exported(lock, "gpu01", dra=True)
    with pytest.raises(InvalidInput, match="--time-slicing with --dra"):
        exported(lock, "gpu01", dra=True, replicas=2)


IMEX = """\
groups:
  rack: {{profile: gb200-nvl-4, hosts: {{t1: 10.0.0.1, t2: 10.0.0.2}}, os: ubuntu24.04, arch: aarch64,
         stack: {{repository: nvidia}}, settings: {{imex: {0}}}}}
nvlink_domains: {{d1: 't[1-2]'}}
"""


@pytest.mark.parametrize(
    ("mode", "domains"),
    [
        ("service", None),
        ("off", None),
        ("dra", {"enabled": True}),
        (
            "dra-host",
            {
                "enabled": True,
                "imex": {"mode": "hostManaged", "hostSocketPath": "/etc/nvidia-imex/imex_ctrl.sock"},
            },
        ),
    ],
)
def test_compute_domains_are_those_of_the_mode_of_imex(
    locked: MakeLock, mode: str, domains: dict[str, Any] | None
) -> None:
    files = exported(locked(IMEX.format(mode)))
    values = files.get("dra-driver.values.yaml")
    assert (values["resources"] if values else None) == (
        {"gpus": {"enabled": False}, "computeDomains": domains} if domains else None
    )
    gates = {"HostManagedIMEXDaemon": True} if mode == "dra-host" else None
    assert (values or {}).get("featureGates") == gates
    assert "device-plugin.values.yaml" in files


def test_a_cluster_has_one_mode_of_imex(locked: MakeLock) -> None:
    lock = locked(IMEX.format("dra"))
    [group] = lock.groups.values()
    setting = group.settings["imex"].model_copy(update={"value": "dra-host"})
    other = group.model_copy(update={"hosts": {"t3": "10.0.0.3"}, "settings": {"imex": setting}})
    both = lock.model_copy(update={"groups": {"rack": group, "other": other}})
    with pytest.raises(InvalidInput, match="imex is dra in group rack and dra-host in group other"):
        exported(both)
    assert "dra-driver.values.yaml" in exported(both, "t1", "t2")


def test_the_interface_of_containers_is_that_of_the_lock(locked: MakeLock) -> None:
    off = ", settings: {containers: {cdi: false}}"
    files = exported(locked(FLEET.format(off, "")))
    assert files["gpu-operator.values.yaml"]["cdi"] == {"enabled": False}


def test_labels_have_a_prefix_of_their_own() -> None:
    own = (
        "kubectl label --overwrite node gpu01 gpuprov.io/driver=580.95.05 gpuprov.io/gpu-model=NVIDIA-H200"
        " gpuprov.io/rack=b7 gpuprov.io/nvlink-domain=d1"
    )
    assert node_labels([NODE, Node("login", "10.0.0.2", 0, "")]) == f"{own}\n"
    assert node_labels([NODE], of_discovery=True) == (
        f"{own} nvidia.com/gpu.present=true nvidia.com/gpu.count=8 nvidia.com/gpu.product=NVIDIA-H200"
        " nvidia.com/gpu.memory=143771\n"
    )


def test_files_are_written_to_a_folder(
    locked: MakeLock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "fleet.lock.yml", tmp_path / "charts"
    write_lock(equipped(locked(FLEET.format("", ""))), path)
    asked = ["inventory", "export", "kubernetes", "--lock", str(path)]
    assert run([*asked, "--out", str(out), "--time-slicing", "2"]) == 0
    assert {each.name for each in out.iterdir()} == {
        "gpu-operator.values.yaml", "gpu-operator.configmap.yaml", "device-plugin.values.yaml",
        "device-plugin.runtimeclass.yaml",
    }  # fmt: skip
    assert all(each.read_text().startswith("# Written whole by `gpuprov") for each in out.iterdir())
    capsys.readouterr()
    assert run([*asked, "l1"]) == 0
    assert capsys.readouterr().out.startswith("kubectl label --overwrite node l1 gpuprov.io/driver=")
