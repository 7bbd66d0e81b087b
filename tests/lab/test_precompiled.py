"""Ubuntu's precompiled modules on a node that says it is Ubuntu: no compiler, one branch, and a switch of it.

The packages are stubs in the layout of Ubuntu's archive; the modules are for the kernel that the node runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.drift.survey import survey
from gpuprov.lab import Lab, Node
from gpuprov.lab.mirror.apt import build_suite
from gpuprov.lab.mirror.key import signing_key
from gpuprov.lab.mirror.serve import served
from gpuprov.lab.mirror.specs import PackageSpec
from gpuprov.lab.mirror.stubs import with_contents
from gpuprov.lab.simulator import stub_module
from gpuprov.lab.variants import with_os_release
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock
from gpuprov.verify import run_verification
from tests.lab.mirror_node import INSTALLED
from tests.lab.run_roles import play
from tests.lab.ubuntu_nodes import COMPONENTS, os_release

DRIVERS = {"535": "535.309.01", "580": "580.95.05"}
ROLES = ("repositories", "nvidia_driver", "package_pins")


def archive(kernel: str) -> list[PackageSpec]:
    """Both branches as Ubuntu's archive has them, for one kernel."""
    return [spec for branch in DRIVERS for spec in packages(branch, kernel)]


def packages(branch: str, kernel: str) -> Iterator[PackageSpec]:
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
    place = f"lib/modules/{kernel}/kernel/nvidia-{branch}srv-open/nvidia.ko"
    stub = stub_module(DRIVERS[branch], kernel=kernel, licence="Dual MIT/GPL")
    own = PackageSpec(f"{modules}-{kernel}", "6.8.0-71.71+1", "amd64", files={place: stub})
    yield replace(own, scripts=dict.fromkeys(("postinst", "postrm"), f"#!/bin/sh\ndepmod {kernel}\n"))
    meta = {"Depends": f"{modules}-{kernel}"}
    yield PackageSpec(f"{modules}-{flavour}", "6.8.0-71.71+1", "amd64", relations=meta)


class Site:
    """A node, its archive, and the fleet that states both."""

    def __init__(self, node: Node, folder: Path, ssh: dict[str, Any], url: str) -> None:
        self.node, self.folder, self._ssh, self._url = node, folder, ssh, url
        self.lock: Lock

    def state(self, branch: str) -> None:
        """Lock the newest driver of a branch that the archive has."""
        group = {
            "profile": "four",
            "os": "ubuntu24.04",
            "hosts": {self.node.name: self.node.address},
            "stack": {"driver": branch, "module": "open", "module_build": "precompiled"},
            "settings": {"kernel": self.node.kernel},
        }
        place = {"url": self._url, "key": str(self.folder / "key.asc")}
        fleet = {"ssh": self._ssh, "groups": {"train": group}, "repositories": {"ubuntu": place}}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.lock = build_lock(self.folder / "fleet.yml")

    def apply(self) -> list[str]:
        """Names of the tasks that changed something."""
        outcome, changed = play(self.lock, self.node, self.folder, *ROLES)
        assert outcome.ok, outcome.failed
        return changed

    def against(self) -> list[tuple[str, Any]]:
        """What drift and verify have against the node as far as these roles answer for it."""
        [node] = survey(self.lock, [self.node.name])
        found = [(each.check, each.actual) for each in node.drift if each.role in ROLES]
        [seen] = run_verification(self.lock, [self.node.name]).nodes
        assert seen.checks, seen.message
        areas = ("driver.", "pins.", "repositories.")
        return found + [
            (each.check, each.actual) for each in seen.failed_checks if each.check.startswith(areas)
        ]

    @property
    def installed(self) -> dict[str, str]:
        """Package → version."""
        return dict(line.split(" ") for line in self.node.run(INSTALLED).stdout.splitlines())


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
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
        yield Site(node, folder, yaml.safe_load(module_lab.fleet("four"))["ssh"], server.url)


def test_a_module_comes_without_a_compiler_and_both_witnesses_are_content(site: Site) -> None:
    site.state("580")
    site.apply()
    site.node.reboot()
    assert site.against() == []
    assert not {"dkms", "build-essential"} & site.installed.keys()
    assert site.apply() == []


def test_another_branch_leaves_nothing_of_the_one_before(site: Site) -> None:
    site.state("535")
    site.apply()
    site.node.reboot()
    assert site.against() == []
    assert {name for name in site.installed if "nvidia" in name} == set(
        site.lock.groups["train"].components.driver.closure
    )


def test_secure_boot_asks_for_a_key_of_dkms_only_where_it_compiles(site: Site) -> None:
    variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    site.node.run(f"mount -t tmpfs tmpfs /sys/firmware; mkdir -p {Path(variable).parent}")
    site.node.run(rf"printf '\6\0\0\0\1' >{variable}")
    roles = ("preflight", "nvidia_driver")
    fine, _ = play(site.lock, site.node, site.folder, *roles)
    assert fine.ok, fine.failed
    refused, _ = play(site.lock, site.node, site.folder, *roles, preflight_compiles_module=True)
    assert "Secure Boot is on and no key of DKMS is enrolled" in refused.failed[0]["msg"]
