"""Components of RHEL's family from Docker, AppStream and EPEL, and of Amazon Linux from its repository."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.locking.build import build_lock
from gpuprov.locking.repository.sources import RELEASED, released
from gpuprov.model.lock import LockedGroup
from gpuprov.roles import variables
from gpuprov_lab.mirror import nvidia

OTHERS = {"docker": "auto", "podman": "5.4", "profiling_tools": "auto", "node_exporter": "auto"}


def lock(
    folder: Path,
    fleet: Path,
    mirror: nvidia.Mirror,
    others: dict[str, Any],
    system: str = "rhel9",
    **stack: str,
) -> LockedGroup:
    """Lock a group with these components, from the mirror and other repositories."""
    shutil.copytree(fleet.parent / "profiles", folder / "profiles", dirs_exist_ok=True)
    urls = {**mirror.urls(), **others}
    group = {
        "profile": "h200",
        "os": system,
        "hosts": {"a": "192.0.2.1"},
        "stack": {"repository": "nvidia", "driver": "580.126.16", "cuda": "none", **stack},
        "settings": {"storage_clients": ["nfs"]},
    }
    document = {
        "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
        "groups": {"train": group},
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump(document))
    [found] = build_lock(folder / "fleet.yml").groups.values()
    return found


def test_each_component_is_locked_from_its_publishers_repository(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    group = lock(tmp_path, fleet, mirror, mirror.others(), **OTHERS)
    found = {name: each for name, each in group.components.each() if name in OTHERS}
    assert {name: each.repository for name, each in found.items()} == {
        "docker": "docker-ce",
        "podman": "appstream",
        "profiling_tools": "appstream",
        "node_exporter": "epel",
    }
    assert found["docker"].closure == {
        "containerd.io": "2.2.1-1.el9",
        "docker-ce": "3:29.5.3-1.el9",
        "docker-ce-cli": "1:29.5.3-1.el9",
    }
    assert found["podman"].closure == {"podman": "6:5.4.0-12.el9_6"}
    assert group.repositories["docker-ce"].url == mirror.others()["docker-ce"].format(
        release="9", arch="x86_64"
    )
    assert variables(group)["storage_clients"] == ["nfs-utils"]


def test_a_stated_release_of_docker_keeps_its_own_containerd(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    group = lock(tmp_path, fleet, mirror, mirror.others(), docker="28.5")
    assert group.components.docker is not None
    assert group.components.docker.closure["docker-ce"] == "3:28.5.2-1.el9"


@pytest.mark.parametrize(("component", "repository"), [("podman", "appstream"), ("node_exporter", "epel")])
def test_a_repository_without_an_address_is_named_with_what_to_state(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, component: str, repository: str
) -> None:
    with pytest.raises(InvalidInput, match=f"the repository '{repository}' has no address") as failure:
        lock(tmp_path, fleet, mirror, {}, **{component: OTHERS[component]})
    assert f"repositories: {{{repository}: {{url: URL, key: FILE}}}}" in str(failure.value)


def test_a_component_that_nobody_publishes_for_it_is_refused(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    with pytest.raises(GpuprovError, match="containerd"):
        lock(tmp_path, fleet, mirror, mirror.others(), containerd="auto")


def test_amazon_linux_has_its_own_docker_and_containerd(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror
) -> None:
    stack = {"docker": "auto", "containerd": "auto", "profiling_tools": "auto"}
    group = lock(tmp_path, fleet, mirror, mirror.others(), "amzn2023", **stack)
    found = {name: each for name, each in group.components.each() if name in stack}
    assert {each.repository for each in found.values()} == {"amazonlinux"}
    assert found["docker"].closure == {
        "docker": "25.0.14-1.amzn2023.0.1",
        "containerd": "1.7.29-1.amzn2023.0.1",
        "runc": "1.3.3-1.amzn2023.0.1",
    }
    assert group.repositories["amazonlinux"].url == mirror.others()["amazonlinux"].format(
        release="2023", arch="x86_64"
    )
    assert variables(group)["storage_clients"] == ["nfs-utils"]


@pytest.mark.parametrize("component", ["podman", "node_exporter"])
def test_what_amazon_linux_has_not_is_refused(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, component: str
) -> None:
    with pytest.raises(GpuprovError, match=component):
        lock(tmp_path, fleet, mirror, mirror.others(), "amzn2023", **{component: OTHERS[component]})


def test_the_fields_of_an_address_are_release_and_architecture() -> None:
    spec = released("docker-ce", "https://example.org/{release}/{arch}/stable", "rhel10", "aarch64", None)
    assert (spec.url, spec.manager) == ("https://example.org/10/aarch64/stable", "rpm")
    assert released("epel", "https://example.org/frozen", "rhel9", "x86_64", None).url == (
        "https://example.org/frozen"
    )
    assert set(RELEASED) == {"docker-ce", "appstream", "epel", "amazonlinux"}
