"""DOCA-OFED, GPUDirect Storage and peer memory: locks against the mirror, and refusals by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import LockedGroup, render_lock
from gpuprov.roles import expectations, variables
from gpuprov_lab.mirror import nvidia
from tests.unit.locking.resolve.requests import answer, rules

RDMA: dict[str, Any] = {"doca_ofed": "auto", "gds": "auto"}


def lock(
    folder: Path,
    fleet: Path,
    mirror: nvidia.Mirror,
    *,
    os: str = "ubuntu24.04",
    doca: bool = True,
    settings: dict[str, Any] | None = None,
    profile: str = "h200",
    hardware: dict[str, Any] | None = None,
    **stack: Any,
) -> LockedGroup:
    """Lock one group with this stack and these settings, from the mirror; return the locked group."""
    shutil.copytree(fleet.parent / "profiles", folder / "profiles", dirs_exist_ok=True)
    urls = {**mirror.urls(), **({"doca": mirror.doca()} if doca else {})}
    document = {
        "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
        "groups": {
            "train": {
                "profile": profile,
                "os": os,
                "hosts": {"a": "192.0.2.1"},
                "stack": {"repository": "nvidia", "driver": "580.126.16", "cuda": "none", **stack},
                "settings": settings or {},
                **({"hardware": hardware} if hardware else {}),
            }
        },
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump(document))
    locked = build_lock(folder / "fleet.yml")
    assert "doca_ofed: null" not in render_lock(locked)
    [group] = locked.groups.values()
    return group


@pytest.mark.parametrize("os", ["ubuntu22.04", "ubuntu24.04", "rhel9"])
def test_both_are_locked_with_their_packages_repository_and_reason(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, os: str
) -> None:
    group = lock(tmp_path, fleet, mirror, os=os, **RDMA)
    doca, gds = group.components.doca_ofed, group.components.gds
    assert doca is not None
    assert gds is not None
    assert (doca.repository, gds.repository) == ("doca", "nvidia")
    assert set(doca.packages) == {"doca-ofed"}
    assert {"doca-ofed", "doca-ofed-userspace", "mlnx-ofed-kernel-dkms"} <= set(doca.closure)
    assert set(gds.closure) == {"nvidia-fs", "nvidia-fs-dkms"}
    assert gds.version.startswith("2.28.4")
    assert "before NVIDIA's driver" in doca.reason
    assert "loaded after them" in gds.reason
    assert doca.source
    assert gds.source
    assert group.repositories["doca"].url == mirror.doca().format(folder=os, arch="x86_64")
    assert group.components.driver.module == "open"


def test_stated_releases_are_kept(tmp_path: Path, fleet: Path, mirror: nvidia.Mirror) -> None:
    group = lock(tmp_path, fleet, mirror, doca_ofed="3.1", gds="2.25.7")
    assert group.components.doca_ofed
    assert group.components.gds
    assert group.components.gds.closure["nvidia-fs-dkms"] == "2.25.7-1"
    assert group.components.doca_ofed.version.startswith("3.1.0")


def test_none_is_absent_with_its_packages(tmp_path: Path, fleet: Path, mirror: nvidia.Mirror) -> None:
    group = lock(tmp_path, fleet, mirror, doca=False, doca_ofed="none")
    assert group.components.doca_ofed is None
    assert "rdma-core" not in group.components.absent["doca_ofed"]
    assert any(each.check == "doca_ofed.absent" for each in expectations(group))
    assert variables(group)["gpudirect_doca_unwanted"]


@pytest.mark.parametrize(
    ("stack", "settings", "way"),
    [
        ({}, {"peer_memory": "auto"}, "dma-buf"),
        ({}, {"peer_memory": "dma-buf"}, "dma-buf"),
        ({"doca_ofed": "auto"}, {"peer_memory": "nvidia-peermem"}, "nvidia-peermem"),
        (
            {"doca_ofed": "auto", "module": "proprietary"},
            {"peer_memory": "auto"},
            "nvidia-peermem",
        ),
        ({"doca_ofed": "auto"}, {"peer_memory": "auto", "kernel": "5.4.0-200-generic"}, "nvidia-peermem"),
    ],
)
def test_peer_memory_is_the_module_only_where_dma_buf_does_not_do(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, stack: Any, settings: Any, way: str
) -> None:
    group = lock(tmp_path, fleet, mirror, settings=settings, **stack)
    found = group.settings["peer_memory"]
    assert found.value == way
    assert "GPU Operator" in found.source
    modules = ["nvidia_peermem"] if way == "nvidia-peermem" else []
    checks = {each.check: each.expected for each in expectations(group)}
    assert checks["gpudirect.at_boot"] == modules
    assert checks.get("gpudirect.loaded", []) == modules
    assert variables(group)["gpudirect_modules"] == modules


@pytest.mark.parametrize(
    ("stack", "settings", "said", "do"),
    [
        (
            {"module": "proprietary"},
            {"peer_memory": "dma-buf"},
            "the proprietary modules [peer-memory-dma-buf]",
            "peer_memory: nvidia-peermem",
        ),
        (
            {"module": "proprietary"},
            {"peer_memory": "auto"},
            "the kernel's own do not know it [peer-memory-ofed]",
            "doca_ofed: auto",
        ),
        ({}, {"peer_memory": "nvidia-peermem"}, "[peer-memory-ofed]", "peer_memory: dma-buf"),
        ({"gds": "auto", "module": "proprietary"}, {}, "[gds-flavour]", "module"),
        ({"doca_ofed": "2.9.1", "os": "ubuntu26.04", "driver": "610.57.04"}, {}, "[doca-on-os]", "doca_ofed"),
        ({"doca_ofed": "auto", "os": "amzn2023"}, {}, "[doca-packages]", "doca_ofed"),
        (
            {"gds": "auto", "builder": "a", "module_build": "once", "compiler": "absent"},
            {},
            "[gpudirect-compiler]",
            "compiler",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, stack: Any, settings: Any, said: str, do: str
) -> None:
    with pytest.raises(Refused) as refused:
        lock(tmp_path, fleet, mirror, settings=settings, profile="a100", **stack)
    assert said in str(refused.value)
    assert do in str(refused.value)


def test_its_repository_has_to_be_stated(tmp_path: Path, fleet: Path, mirror: nvidia.Mirror) -> None:
    with pytest.raises(InvalidInput, match=r"'doca' has no address.*doca: \{url: URL, key: FILE\}"):
        lock(tmp_path, fleet, mirror, doca=False, doca_ofed="auto")


def test_a_release_that_the_repository_lacks_is_refused(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    with pytest.raises(GpuprovError, match=r"doca-ofed 3\.4"):
        lock(tmp_path, fleet, mirror, doca_ofed="3.4")


def test_the_resolver_names_order_and_signatures() -> None:
    found = answer("8x H200", "ubuntu24.04", doca_ofed="3.3.0")
    assert (found.verdict, found.stack.doca_ofed) == ("ok", "3.3.0")
    assert {"doca-order", "doca-dkms"} <= rules(found.reasons)
    assert not {"doca-order", "doca-dkms"} & rules(answer("8x H200", "ubuntu24.04").reasons)


def test_options_of_clients_become_options_of_modules(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    options = {"nfs": {"slots": 128}, "lustre": {"networks": "o2ib0(ib0),tcp(eth0)"}}
    group = lock(tmp_path, fleet, mirror, doca=False, settings={"client_options": options})
    wanted = {
        "sunrpc.tcp_slot_table_entries": "128",
        "sunrpc.tcp_max_slot_table_entries": "128",
        "lnet.networks": "o2ib0(ib0),tcp(eth0)",
    }
    assert variables(group)["storage_client_options"] == wanted
    assert {each.check: each.expected for each in expectations(group)}["storage.client_options"] == wanted
    with pytest.raises(InvalidInput, match="networks"):
        lock(tmp_path, fleet, mirror, settings={"client_options": {"lustre": {"networks": "x; install"}}})
