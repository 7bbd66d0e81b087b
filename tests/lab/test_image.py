"""Images: a tree that was never booted is brought to a lock; machines made from it need one first boot."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuprov_lab import Lab, simulator
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.tree import Tree, tree
from gpuprov_lab.variants import with_cloud_init, with_control_groups, with_network_parameters
from tests.lab.cloud_node import MACHINE, await_state, journal, user_data, write_fleet
from tests.lab.command_line import gpuprov
from tests.lab.image_tree import left_for_the_first_boot
from tests.lab.package_index import build_index, obtained
from tests.lab.stub_compiler import with_played_compiler

Step = Callable[[Path], None]
LOCK = "/root/fleet.lock.yml"
MODULES = "root/modules.zip"
PARAMETERS = {"net.ipv4.tcp_keepalive_time": 600}
NO_COMPILER = "/root/broken-compiler"
CARRIED = "/etc/gpuprov/fleet.lock.yml"
GPUPROV = "/opt/gpuprov/bin/gpuprov"
INSTALL = (
    "apt-get -q update && apt-get -q -y install --no-install-recommends python3-venv"
    " && python3 -m venv /opt/gpuprov"
    " && /opt/gpuprov/bin/pip install -q --no-cache-dir --no-index --find-links /srv/wheels"
    " /srv/wheels/gpuprov-*.whl"
    " && rm -r /srv/wheels"
)
APPLY = f"{GPUPROV} apply --image train --lock {LOCK} --modules-out /{MODULES} --yes 2>&1"
VERIFY = f"{GPUPROV} verify --image train --lock {LOCK}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `mirror` is a Python package index with gpuprov."""
    folder = tmp_path_factory.mktemp("image")
    build_index(folder / "mirror")
    return folder


@pytest.fixture(scope="module")
def version(folder: Path) -> str:
    """Driver version of the lock in the folder; the lock accepts the image's modules."""
    return write_fleet(folder, sysctl=PARAMETERS, builder="image").groups["train"].components.driver.version


@pytest.fixture(scope="module")
def built(module_lab: Lab, folder: Path, version: str) -> Iterator[Tree]:
    """Tree with the image applied."""
    with tree(module_lab) as made:
        simulator.install(made.root, MACHINE)
        with_played_compiler(version)(made.root)
        (made.root / "srv/wheels").mkdir()
        for wheel in (folder / "mirror").glob("**/*.whl"):
            shutil.copy(wheel, made.root / "srv/wheels")
        shutil.copy(folder / "fleet.lock.yml", made.root / LOCK.lstrip("/"))
        made.run(INSTALL)
        begun = time.monotonic()
        said = made.run(f"{APPLY}; echo exit $?")
        print(said, f"made in {time.monotonic() - begun:.0f} s")  # noqa: T201
        assert said.endswith("exit 0\n"), said
        shutil.copy(made.root / MODULES, folder / "modules.zip")
        yield made


@pytest.fixture(scope="module")
def image(module_lab: Lab, built: Tree) -> Iterator[str]:
    """Name of the saved image; its tree no longer exists."""
    name = f"made-{os.getpid()}"
    built.save(name)
    yield name
    module_lab.down()
    module_lab.drop(name)


def test_an_image_shows_what_it_can_and_names_the_rest(built: Tree) -> None:
    waiting = left_for_the_first_boot(built, VERIFY)
    result = built.run(VERIFY)
    assert f"left for the first boot: {len(waiting)} checks" in result
    assert "a boot of its own: " in result


def test_nothing_was_started_and_a_second_run_changes_nothing(built: Tree) -> None:
    assert built.run("ls /usr/sbin/policy-rc.d /run/docker.pid /run/docker.sock 2>/dev/null || true") == ""
    assert "changed=0" in built.run(APPLY)


@pytest.mark.slow
def test_a_module_that_the_store_has_is_not_compiled(built: Tree, version: str) -> None:
    built.run(f"touch {NO_COMPILER}; dkms remove nvidia-current/{version} --all")
    assert "exited with 1" in built.fails(VERIFY)
    built.run(APPLY)
    built.run(VERIFY)
    built.run(f"rm {NO_COMPILER}")


@pytest.mark.slow
def test_a_fault_of_an_image_is_seen_without_a_boot_and_mended(built: Tree) -> None:
    held = built.run("apt-mark showhold").split()
    built.run(f"apt-mark unhold {held[0]}; rm /etc/modprobe.d/gpuprov-nouveau.conf")
    said = built.fails(VERIFY)
    assert "exited with 1" in said
    failed = json.loads(built.run(f"{VERIFY} -o json 2>/dev/null || true"))["nodes"][0]["checks"]
    assert {check["check"] for check in failed if check["status"] == "failed"} >= {
        "pins.hold",
        "nouveau.blacklist",
    }
    built.run(APPLY)
    built.run(VERIFY)


@pytest.mark.slow
def test_machines_made_from_it_are_clean_after_their_first_boot(
    module_lab: Lab, image: str, folder: Path, version: str, another_lab: Lab
) -> None:
    prepared: list[Step] = [with_control_groups, with_network_parameters]
    nodes = module_lab.up(2, gpu=MACHINE, image=image, names=["one", "two"], prepare=prepared)
    begun = time.monotonic()
    for node in nodes:
        result = await_state(node)
        print(result)  # noqa: T201
        assert (result["state"], result["exit_code"]) == ("done", 0), journal(node)
    ready = time.monotonic() - begun
    for node in nodes:
        assert node.run(f"{GPUPROV} drift --lock {CARRIED} here").returncode == 0
        assert node.run(f"{GPUPROV} verify --lock {CARRIED} here").returncode == 0
        node.stop()
    gpuprov(folder, "apply", "--modules", "modules.zip", "--check", code=4)
    with served(folder / "mirror") as index:
        fetched = ("--modules-url", f"{index.url}/modules.zip")
        written = ("--modules-out", f"{folder}/mirror/modules.zip")
        data = user_data(folder, *obtained(folder / "mirror", index.url), *fetched, *written)
        steps = [*prepared, with_played_compiler(version), with_cloud_init(data)]
        steps.append(lambda root: (root / NO_COMPILER.lstrip("/")).touch())
        [fresh] = another_lab.up(1, gpu=MACHINE, prepare=steps)
        begun = time.monotonic()
        assert await_state(fresh)["state"] == "done", journal(fresh)
        afresh = time.monotonic() - begun
    print(f"two of the image: {ready:.0f} s; one afresh: {afresh:.0f} s; ratio {ready / afresh:.2f}")  # noqa: T201
    assert ready < afresh


def test_a_tree_that_was_left_behind_goes_with_its_lab(lab: Lab) -> None:
    left = tree(lab)
    made = left.__enter__()
    made.run("touch /here")
    lab.down()
    assert not made.root.is_mount()
    assert not lab.folder.exists()
