"""Components from a distribution's own archive: contents of `main`, and packages with different versions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from gpuprov.errors import Refused
from gpuprov.inventory.variables import group_variables
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import render_lock
from gpuprov.model.stack import StackPolicy
from gpuprov.roles import expectations
from gpuprov.untrusted import openpgp
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.apt import build_suite
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.specs import PackageSpec

MAIN = (
    PackageSpec("docker.io", "20.10.24+dfsg1-1", "amd64", relations={"Depends": "containerd, runc, adduser"}),
    PackageSpec("containerd", "1.6.20~ds1-1", "amd64", relations={"Depends": "runc"}),
    PackageSpec("runc", "1.1.5+ds1-1", "amd64"),
    PackageSpec("adduser", "3.134", "all"),
    PackageSpec("linux-perf", "6.1.192-1", "amd64"),
    PackageSpec("sysstat", "12.6.1-1", "amd64"),
    PackageSpec("atop", "2.8.1-1", "amd64"),
)
PODMAN = (
    PackageSpec(
        "podman",
        "4.3.1+ds1-8+b3",
        "amd64",
        relations={"Depends": "conmon, crun | runc, golang-github-containers-common"},
    ),
    PackageSpec("conmon", "2.1.6+ds1-1", "amd64"),
    PackageSpec("crun", "1.8.1-1", "amd64"),
    PackageSpec(
        "golang-github-containers-common",
        "0.50.1+ds1-4",
        "all",
        relations={"Depends": "container-network-stack"},
    ),
    PackageSpec("netavark", "1.4.0-3", "amd64", relations={"Provides": "container-network-stack (= 2)"}),
    PackageSpec("uidmap", "1:4.13-1", "amd64"),
    PackageSpec("slirp4netns", "1.2.0-1", "amd64"),
)
STACK = {"docker": "auto", "profiling_tools": "auto"}


class Fleet(Protocol):
    """Function that writes a fleet with this stack, with mirrors of Debian and of NVIDIA."""

    def __call__(
        self,
        stack: Mapping[str, str] = STACK,
        main: Sequence[PackageSpec] = MAIN,
        containers: Mapping[str, Any] = {},
        limits: Mapping[str, Any] = {},
        below: str = "",
    ) -> Path:
        """Return the path of the fleet.yml; `below` is a folder for it."""


@pytest.fixture(scope="module")
def key() -> Iterator[SigningKey]:
    """Key of Debian's archive."""
    with signing_key() as key:
        yield key


@pytest.fixture
def fleet(tmp_path: Path, mirror: nvidia.Mirror, key: SigningKey) -> Fleet:
    """Function that writes a fleet."""

    def write(
        stack: Mapping[str, str] = STACK,
        main: Sequence[PackageSpec] = MAIN,
        containers: Mapping[str, Any] = {},
        limits: Mapping[str, Any] = {},
        below: str = "",
    ) -> Path:
        """Publish the packages of main, and write the fleet."""
        folder = tmp_path / below
        rest = dict.fromkeys(("contrib", "non-free", "non-free-firmware"), ())
        for suite, held in (("bookworm", main), ("bookworm-updates", ()), ("bookworm-security", ())):
            build_suite(folder / "debian", suite, {"main": held, **rest}, "amd64", key)
        (folder / "debian.asc").write_bytes(key.public)
        archive = {"url": (folder / "debian").as_uri(), "key": str(folder / "debian.asc")}
        repositories = dict.fromkeys(("debian", "debian-updates", "debian-security"), archive)
        (folder / "profiles").mkdir()
        profile = {"hardware": {"gpu": {"model": "A100 PCIe 80GB", "count": 2}}}
        (folder / "profiles/two.yml").write_text(json.dumps(profile))
        settings = {"containers": containers, "tuning": {"limits": limits}}
        group = {"profile": "two", "hosts": "gpu1", "os": "debian12", "settings": settings}
        group["stack"] = {"repository": "nvidia", **stack}
        repositories["nvidia"] = {"url": mirror.cuda(), "key": str(mirror.key)}
        repositories["container-toolkit"] = {"url": mirror.container_toolkit(), "key": str(mirror.key)}
        document = {"groups": {"g": group}, "repositories": repositories}
        (folder / "fleet.yml").write_text(json.dumps(document))
        return folder / "fleet.yml"

    return write


def test_what_main_holds_is_locked_and_stays(fleet: Fleet, key: SigningKey) -> None:
    path = fleet()
    first = build_lock(path)
    components = first.groups["g"].components
    assert components.docker is not None
    assert components.docker.closure == {each.name: each.version for each in MAIN[:3]}
    assert components.profiling_tools is not None
    assert components.profiling_tools.closure == {each.name: each.version for each in MAIN[4:]}
    debian = first.groups["g"].repositories["debian"]
    assert debian.components[0] == "main"
    assert openpgp.binary(debian.signed_by.encode()) == key.binary()
    assert debian.signed_by != first.groups["g"].repositories["nvidia"].signed_by
    assert build_lock(path, previous=first) == first


def test_docker_that_shall_not_be_there_leaves_what_kubernetes_runs_on(fleet: Fleet) -> None:
    path = fleet()
    path.write_text(path.read_text().replace('"docker": "auto"', '"docker": "none"'))
    group = build_lock(path).groups["g"]
    [absent] = [each for each in expectations(group) if each.check == "docker.absent"]
    assert [each.name for each in MAIN if re.fullmatch(str(absent.subject), each.name)] == ["docker.io"]
    [unwanted] = group_variables(group)["docker_unwanted"]
    assert re.match(unwanted, "docker.io=20.10.24+dfsg1-1")
    assert absent.role == "docker"


def test_containerd_by_itself_is_locked_with_what_it_runs(fleet: Fleet) -> None:
    path = fleet({"containerd": "1.6"})
    first = build_lock(path)
    components = first.groups["g"].components
    assert components.docker is None
    assert components.containerd is not None
    assert components.containerd.packages == {"containerd": "1.6.20~ds1-1"}
    assert components.containerd.closure == {each.name: each.version for each in MAIN[1:3]}
    assert build_lock(path, previous=first) == first


def test_docker_and_containerd_share_the_packages_that_both_need(fleet: Fleet) -> None:
    locked = build_lock(fleet({"docker": "auto"}))
    docker = locked.groups["g"].components.docker
    assert docker is not None
    newer = [replace(each, version=f"{each.version}+deb12u1") for each in MAIN[1:3]]
    path = fleet({"docker": "auto", "containerd": "auto"}, [*MAIN, *newer], below="later")
    for upgrade, companions in (((), MAIN[1:3]), (("containerd",), newer), (("docker",), newer)):
        components = build_lock(path, previous=locked, upgrade=upgrade).groups["g"].components
        assert components.docker is not None
        assert components.containerd is not None
        assert components.containerd.closure == {each.name: each.version for each in companions}
        assert components.docker.closure == {**docker.closure, **components.containerd.closure}


@pytest.mark.parametrize(
    ("stack", "containers", "said"),
    [
        (
            {"docker": "auto", "containerd": "none"},
            {},
            "docker needs containerd, which the stack states as absent",
        ),
        ({"containerd": "auto"}, {"default_runtime": "nvidia"}, "the stack has no container_toolkit"),
        ({"containerd": "auto"}, {"cdi": True}, "needs containerd 1.7.0 or newer, not 1.6.20~ds1"),
    ],
    ids=["without", "no-runtime", "no-interface"],
)
def test_what_cannot_work_with_containerd_is_refused(
    stack: dict[str, str], containers: dict[str, Any], said: str, fleet: Fleet
) -> None:
    with pytest.raises(Refused, match=said):
        build_lock(fleet(stack, containers=containers))


def test_docker_runs_on_the_containerd_that_it_comes_with(fleet: Fleet) -> None:
    newer = PackageSpec("containerd", "1.7.24~ds1-1", "amd64", relations={"Depends": "runc"})
    path = fleet({"docker": "auto", "containerd": "1.6"}, [*MAIN, newer])
    with pytest.raises(Refused, match=r"docker comes with containerd 1\.7\.24~ds1, not 1\.6"):
        build_lock(path)


def test_containerd_that_shall_not_be_there_leaves_runc_to_others(fleet: Fleet) -> None:
    group = build_lock(fleet({"containerd": "none"})).groups["g"]
    [absent] = [each for each in expectations(group) if each.check == "containerd.absent"]
    assert [each.name for each in MAIN if re.fullmatch(str(absent.subject), each.name)] == ["containerd"]
    assert absent.role == "containerd"


def test_podman_is_locked_with_what_containers_of_users_need(fleet: Fleet) -> None:
    path = fleet({"podman": "auto", "container_toolkit": "auto"}, [*MAIN, *PODMAN])
    first = build_lock(path)
    components = first.groups["g"].components
    assert components.docker is components.containerd is None
    assert components.podman is not None
    assert components.podman.version == "4.3.1+ds1"
    assert set(components.podman.packages) == {"podman", "uidmap", "slirp4netns", "netavark"}
    assert components.podman.closure == {each.name: each.version for each in PODMAN}
    assert {"podman$", "crun$", "uidmap$"} < set(components.podman.hold_patterns)
    assert components.container_toolkit is not None
    assert components.container_toolkit.version == "1.19.0"
    assert group_variables(first.groups["g"])["container_toolkit_cdi"] is True
    assert build_lock(path, previous=first) == first


def test_podman_moves_a_locked_toolkit_that_it_cannot_read(fleet: Fleet) -> None:
    path = fleet({"docker": "auto", "container_toolkit": "1.20"}, [*MAIN, *PODMAN])
    first = build_lock(path)
    kept = first.groups["g"].components.container_toolkit
    assert kept is not None
    assert kept.version == "1.20.0"
    path.write_text(path.read_text().replace('"1.20"', '"auto", "podman": "4.3"'))
    said: list[str] = []
    moved = build_lock(path, previous=first, narrate=said.append).groups["g"].components.container_toolkit
    assert moved is not None
    assert moved.version == "1.19.0"
    assert [line for line in said if "cannot stay" in line] == [
        "g: container_toolkit 1.20.0 cannot stay: container toolkit 1.20.0: the default CDI specification"
        " (0.7.0) needs Podman 5.1.0 or newer, not 4.3"
    ]


def test_podman_that_shall_not_be_there_leaves_what_others_need(fleet: Fleet) -> None:
    group = build_lock(fleet({"podman": "none"}, [*MAIN, *PODMAN])).groups["g"]
    [absent] = [each for each in expectations(group) if each.check == "podman.absent"]
    assert [each.name for each in PODMAN if re.fullmatch(str(absent.subject), each.name)] == ["podman"]
    assert absent.role == "podman"


OLD = (replace(PODMAN[0], version="4.0.3+ds1-1"), *PODMAN[1:])


@pytest.mark.parametrize(
    ("main", "containers", "said"),
    [
        (OLD, {}, "the Container Device Interface needs Podman 4.1.0 or newer, not 4.0.3"),
        (PODMAN, {"cdi": False}, "containers.cdi is false, and Podman has no other way to GPUs"),
    ],
    ids=["an-older-archive", "no-interface"],
)
def test_what_cannot_give_gpus_to_podman_is_refused(
    main: Sequence[PackageSpec], containers: dict[str, Any], said: str, fleet: Fleet
) -> None:
    stack = {"podman": "auto", "container_toolkit": "auto"}
    with pytest.raises(Refused, match=said):
        build_lock(fleet(stack, [*MAIN, *main], containers))


@pytest.mark.parametrize(
    ("docker", "containers", "narrated"),
    [
        ("20.10.24+dfsg1-1", {"cdi": True}, True),
        ("20.10.24+dfsg1-1", {"cdi": False}, False),
        ("20.10.24+dfsg1-1", {}, False),
        ("26.1.5+dfsg1-9", {"cdi": True}, False),
    ],
)
def test_a_docker_without_the_device_interface_is_narrated(
    docker: str, containers: dict[str, Any], fleet: Fleet, *, narrated: bool
) -> None:
    said: list[str] = []
    main = [replace(MAIN[0], version=docker), *MAIN[1:]]
    stack = {"docker": "auto", "container_toolkit": "auto"}
    build_lock(fleet(stack, main, containers), narrate=said.append)
    needs = f"needs Docker 25 or newer, not {docker.split('-')[0]}: containers of Docker get GPUs by --gpus"
    assert any(needs in line for line in said) == narrated, said


@pytest.mark.parametrize(("of_logins", "narrated"), [({}, True), ({"memlock": "unlimited"}, False)])
def test_limits_that_users_may_not_set_are_narrated(
    of_logins: dict[str, Any], fleet: Fleet, *, narrated: bool
) -> None:
    said: list[str] = []
    stated = {"memlock": "unlimited", "shm_size": "1g"}
    path = fleet({"podman": "auto"}, [*MAIN, *PODMAN], stated, of_logins)
    build_lock(path, narrate=said.append)
    assert any("state tuning.limits.memlock: unlimited" in line for line in said) == narrated
    assert not any("shm_size" in line for line in said)


def test_fleet_without_podman_has_the_digest_that_it_had(fleet: Fleet) -> None:
    assert "podman" not in StackPolicy(docker="auto").model_dump()
    assert StackPolicy(podman="auto").model_dump()["podman"] == "auto"
    assert "podman:" not in render_lock(build_lock(fleet()))
