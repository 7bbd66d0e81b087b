"""Components of a distribution's own archive: what its `main` holds, and packages of unlike versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpuprov.catalog import load
from gpuprov.expectations import expectations
from gpuprov.inventory.variables import group_variables
from gpuprov.lab.mirror import nvidia
from gpuprov.lab.mirror.apt import build_suite
from gpuprov.lab.mirror.key import signing_key
from gpuprov.lab.mirror.specs import PackageSpec
from gpuprov.locking import build_lock

MAIN = (
    PackageSpec("docker.io", "20.10.24+dfsg1-1", "amd64", relations={"Depends": "containerd, runc, adduser"}),
    PackageSpec("containerd", "1.6.20~ds1-1", "amd64"),
    PackageSpec("runc", "1.1.5+ds1-1", "amd64"),
    PackageSpec("adduser", "3.134", "all"),
    PackageSpec("linux-perf", "6.1.192-1", "amd64"),
    PackageSpec("sysstat", "12.6.1-1", "amd64"),
    PackageSpec("atop", "2.8.1-1", "amd64"),
)


def fleet(folder: Path) -> Path:
    """A fleet with Docker and profilers, on a mirror of Debian and one of NVIDIA."""
    rest = dict.fromkeys(("contrib", "non-free", "non-free-firmware"), ())
    with signing_key() as key:
        mirror = nvidia.build(folder / "mirror", load(), ["debian12"], key=key)
        for suite, main in (("bookworm", MAIN), ("bookworm-updates", ()), ("bookworm-security", ())):
            build_suite(folder / "debian", suite, {"main": main, **rest}, "amd64", key)
    archive = {"url": (folder / "debian").as_uri(), "key": str(mirror.key)}
    repositories = dict.fromkeys(("debian", "debian-updates", "debian-security"), archive)
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "A100 PCIe 80GB", "count": 2}}}
    (folder / "profiles/two.yml").write_text(json.dumps(profile))
    stack = {"repository": "nvidia", "docker": "auto", "profiling_tools": "auto"}
    group = {"profile": "two", "hosts": "gpu1", "os": "debian12", "stack": stack}
    repositories["nvidia"] = {"url": mirror.cuda(), "key": str(mirror.key)}
    (folder / "fleet.yml").write_text(json.dumps({"groups": {"g": group}, "repositories": repositories}))
    return folder / "fleet.yml"


def test_what_main_holds_is_locked_and_stays(tmp_path: Path) -> None:
    path = fleet(tmp_path)
    first = build_lock(path)
    components = first.groups["g"].components
    assert components.docker is not None
    assert components.docker.closure == {each.name: each.version for each in MAIN[:3]}
    assert components.profiling_tools is not None
    assert components.profiling_tools.closure == {each.name: each.version for each in MAIN[4:]}
    debian = first.groups["g"].repositories["debian"]
    assert debian.components[0] == "main"
    assert debian.signed_by == first.groups["g"].repositories["nvidia"].signed_by
    assert build_lock(path, previous=first) == first


def test_docker_that_shall_not_be_there_leaves_what_kubernetes_runs_on(tmp_path: Path) -> None:
    path = fleet(tmp_path)
    path.write_text(path.read_text().replace('"docker": "auto"', '"docker": "none"'))
    group = build_lock(path).groups["g"]
    [absent] = [each for each in expectations(group) if each.check == "docker.absent"]
    assert [each.name for each in MAIN if re.fullmatch(str(absent.subject), each.name)] == ["docker.io"]
    [unwanted] = group_variables(group)["docker_unwanted"]
    assert re.match(unwanted, "docker.io=20.10.24+dfsg1-1")
    assert absent.role == "docker"
