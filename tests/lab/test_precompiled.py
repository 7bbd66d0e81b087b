"""Ubuntu's precompiled modules on a node that appears as Ubuntu: no compiler, and a change of branch.

The packages are stubs in the layout of Ubuntu's archive; the modules are for the node's running kernel.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.locking.build import build_lock
from gpuprov_lab import Lab
from gpuprov_lab.mirror.apt import build_suite
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.mirror.specs import PackageSpec
from gpuprov_lab.mirror.stubs import with_contents
from gpuprov_lab.simulator import stub_module
from gpuprov_lab.variants import with_os_release
from tests.lab.node_under_test import NodeUnderTest
from tests.lab.ubuntu_nodes import COMPONENTS, os_release

CERTIFICATE = b"\x30\x82\x02\x00" + bytes(512)
DRIVERS = {"535": "535.309.01", "580": "580.95.05"}


def archive(kernel: str) -> list[PackageSpec]:
    """Return both driver branches for one kernel as in Ubuntu's archive."""
    return [spec for branch in DRIVERS for spec in packages(branch, kernel)]


def packages(branch: str, kernel: str) -> Iterator[PackageSpec]:
    """Yield the packages of a precompiled driver of a branch for a kernel."""
    full = f"{DRIVERS[branch]}-0ubuntu0.24.04.1"
    needs = {"Depends": f"libnvidia-compute-{branch}-server (= {full})"}
    for name, relations in (
        (f"nvidia-headless-no-dkms-{branch}-server-open", needs),
        (f"libnvidia-compute-{branch}-server", {}),
        (f"nvidia-utils-{branch}-server", {}),
        (f"nvidia-compute-utils-{branch}-server", {}),
    ):
        [other] = DRIVERS.keys() - {branch}
        conflicts = {"Conflicts": name.replace(branch, other)}
        yield with_contents(PackageSpec(name, full, "amd64", relations={**relations, **conflicts}))
    modules, flavour = f"linux-modules-nvidia-{branch}-server-open", kernel.rpartition("-")[2]
    folder = f"lib/modules/{kernel}/kernel/nvidia-{branch}srv-open"
    stub = stub_module(DRIVERS[branch], kernel=kernel, licence="Dual MIT/GPL")
    files = {f"{folder}/{name}.ko": stub for name in ("nvidia", "nvidia-uvm")}
    own = PackageSpec(f"{modules}-{kernel}", "6.8.0-71.71+1", "amd64", files=files)
    yield replace(own, scripts=dict.fromkeys(("postinst", "postrm"), f"#!/bin/sh\ndepmod {kernel}\n"))
    meta = {"Depends": f"{modules}-{kernel}"}
    yield PackageSpec(f"{modules}-{flavour}", "6.8.0-71.71+1", "amd64", relations=meta)


@dataclass
class PrecompiledNode(NodeUnderTest):
    """A node, its archive, and the fleet that declares both."""

    roles = ("repositories", "nvidia_driver", "package_pins")
    areas = ("driver.", "pins.", "repositories.")

    ssh: dict[str, Any]
    url: str

    def state(self, branch: str) -> None:
        """Lock the newest driver of a branch in the archive."""
        group = {
            "profile": "four",
            "os": "ubuntu24.04",
            "hosts": {self.node.name: self.node.address},
            "stack": {"driver": branch, "module": "open", "module_build": "precompiled"},
            "settings": {"kernel": self.node.kernel},
        }
        place = {"url": self.url, "key": str(self.folder / "key.asc")}
        fleet = {"ssh": self.ssh, "groups": {"train": group}, "repositories": {"ubuntu": place}}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.lock = build_lock(self.folder / "fleet.yml")


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrecompiledNode]:
    """A node that plays Ubuntu 24.04, and a served archive with precompiled modules for its kernel."""
    folder = tmp_path_factory.mktemp("precompiled")
    [node] = module_lab.up(1, gpu="l40sx4", prepare=[with_os_release(os_release("ubuntu24.04"))])
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    with signing_key() as key:
        (folder / "key.asc").write_bytes(key.public)
        held = {**dict.fromkeys(COMPONENTS, ()), "restricted": archive(node.kernel)}
        for suite in ("noble", "noble-updates", "noble-security"):
            build_suite(folder / "archive", suite, held, "amd64", key)
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "L40S", "count": 4}}}
    (folder / "profiles/four.yml").write_text(yaml.safe_dump(profile))
    with served(folder / "archive") as server:
        yield PrecompiledNode(node, folder, yaml.safe_load(module_lab.fleet("four"))["ssh"], server.url)


@pytest.mark.slow
def test_a_module_comes_without_a_compiler_and_both_witnesses_are_content(site: PrecompiledNode) -> None:
    site.state("580")
    outcome, _ = site.apply()
    assert outcome.ok, outcome.failed
    site.node.reboot()
    assert site.drift() == {}
    assert site.failed() == {}
    assert not {"dkms", "build-essential"} & site.installed.keys()
    outcome, changed = site.apply()
    assert outcome.ok, outcome.failed
    assert changed == []


@pytest.mark.slow
def test_another_branch_leaves_nothing_of_the_one_before(site: PrecompiledNode) -> None:
    site.state("535")
    outcome, _ = site.apply()
    assert outcome.ok, outcome.failed
    site.node.reboot()
    assert site.drift() == {}
    assert site.failed() == {}
    assert {name for name in site.installed if "nvidia" in name} == set(site.group.components.driver.closure)


@pytest.mark.slow
def test_secure_boot_asks_for_a_key_of_dkms_only_where_it_compiles(site: PrecompiledNode) -> None:
    variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    site.node.run(f"mount -t tmpfs tmpfs /sys/firmware; mkdir -p {Path(variable).parent}")
    site.node.run(rf"printf '\6\0\0\0\1' >{variable}")
    roles = ("preflight", "nvidia_driver")
    fine, _ = site.apply(*roles)
    assert fine.ok, fine.failed
    refused, _ = site.apply(*roles, preflight_compiles_module=True)
    assert "Secure Boot is on and no key of DKMS is enrolled" in refused.failed[0]["msg"]
    signed = {"preflight_compiles_module": True, "preflight_certificate": sha256(CERTIFICATE).hexdigest()}
    refused, _ = site.apply(*roles, **signed)
    assert "the certificate that the module is signed for is not enrolled" in refused.failed[0]["msg"]
    owners = b"\x06\0\0\0" + bytes(44) + CERTIFICATE
    path = Path(variable).with_name("MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23")
    site.node.run(f"base64 -d >{path}", input=b64encode(owners).decode())
    fine, _ = site.apply(*roles, **signed)
    assert fine.ok, fine.failed
