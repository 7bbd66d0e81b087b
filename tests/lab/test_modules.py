"""One module build for several nodes: same files, DKMS's records, no compiler on others, no forged build.

DKMS, kbuild, gcc and apt are real; the driver's source is a small one that compiles in seconds.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab import Lab, Node
from tests.campaign._small_driver import play_source
from tests.lab.command_line import gpuprov

DRIVER, OTHER = "535.309.01", "535.261.03"
SUMS = "sha256sum /lib/modules/*/updates/dkms/*.ko"
BARE = r"""python3 -c '
import glob, hashlib, os
mark = b"~Module signature appended~\n"
for path in sorted(glob.glob("/lib/modules/*/updates/dkms/*.ko")):
    content = open(path, "rb").read()
    if content.endswith(mark):
        content = content[:-len(mark) - 12 - int.from_bytes(content[-len(mark) - 4:-len(mark)], "big")]
    print(hashlib.sha256(content).hexdigest(), os.path.basename(path))
'"""
"""SHA-256 of each module without the signature that DKMS adds with the node's key."""
NO_INITRAMFS = "echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf"


@dataclass(frozen=True)
class Fleet:
    """Nodes of a group that compiles once, and the output of the first apply."""

    nodes: list[Node]
    folder: Path
    said: str

    def gpuprov(self, *words: str) -> Any:
        """Run gpuprov with any exit code."""
        return gpuprov(self.folder, *words, code=None)

    @property
    def archive(self) -> Path:
        """Archive in the store of the driver that nodes have at first."""
        [found] = (self.folder / "state").rglob(f"{DRIVER}-*/modules.tar.gz")
        return found

    def same(self, command: str) -> str:
        """Return a command's output, which must be the same on all nodes."""
        first, *others = (node.run(command).stdout for node in self.nodes)
        assert others == [first] * (len(self.nodes) - 1)
        return first

    def without_gcc(self) -> list[Node]:
        """Return the nodes without a compiler."""
        return [node for node in self.nodes if node.run("command -v gcc", check=False).returncode]

    def store_has(self, version: str) -> bool:
        """Return whether the store has a build of a driver version."""
        return any(
            path.parent.name.startswith(version) for path in (self.folder / "state").rglob("about.json")
        )

    def lose_module(self, node: Node) -> None:
        """Remove the module from a node, as if the node were new in the fleet."""
        node.run(f"dkms remove nvidia-current/{DRIVER} --all")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids="{} nodes".format)
def fleet(request: pytest.FixtureRequest, module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Return a fleet in which one node compiles for all."""
    folder = tmp_path_factory.mktemp("once")
    module_lab.down()  # the nodes of the other fleet
    nodes = module_lab.up(request.param, gpu="a100x4")
    for node in nodes:
        node.run(NO_INITRAMFS)
    play_source(nodes[0])
    stated = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    [group] = stated["groups"].values()
    group["stack"] = {"repository": "distribution", "driver": DRIVER, "builder": "node1"}
    for version in (OTHER, DRIVER):
        group["stack"]["driver"] = version
        (folder / "fleet.yml").write_text(yaml.safe_dump(stated))
        gpuprov(folder, "lock", "--upgrade")
        (folder / f"{version}.lock.yml").write_text((folder / "fleet.lock.yml").read_text())
    done = gpuprov(folder, "apply", "--reboot", "--yes", code=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return Fleet(nodes, folder, done.stdout + done.stderr)


def test_one_node_compiles_and_the_recap_says_which(fleet: Fleet) -> None:
    assert "node1 compiles the module" in fleet.said
    lines = [line for line in fleet.said.splitlines() if "verified (" in line]
    assert ["compiled for" in line for line in lines] == [True] + [False] * (len(lines) - 1)


def test_all_have_the_same_bytes(fleet: Fleet) -> None:
    """Compare modules without the signature of the builder's DKMS, which the store removes."""
    assert fleet.same(BARE).count(".ko") == 5
    assert len({node.run(SUMS).stdout for node in fleet.nodes[1:]}) == 1


def test_what_a_node_offers_that_is_not_the_builder_reaches_no_other(fleet: Fleet) -> None:
    """Change node2's modules in DKMS's tree as root, with an empty store and no module on node1."""
    before = fleet.nodes[0].run(BARE).stdout
    shutil.rmtree(fleet.folder / "state/gpuprov/modules")
    fleet.nodes[1].run("for each in /var/lib/dkms/nvidia-current/*/*/*/module/*.ko; do echo x >>$each; done")
    fleet.lose_module(fleet.nodes[0])
    done = fleet.gpuprov("apply", "--reboot", "--yes", "--role", "nvidia_driver")
    assert done.returncode == 0, done.stderr
    assert "node1 compiles the module" in done.stderr
    assert fleet.nodes[0].run(BARE).stdout == before
    fleet.lose_module(fleet.nodes[1])
    done = fleet.gpuprov("apply", "--reboot", "--yes", "-l", "node2")
    assert done.returncode == 0, done.stderr
    assert fleet.same(BARE) == before


def test_dkms_and_modinfo_say_the_same_on_all(fleet: Fleet) -> None:
    kernel = fleet.nodes[1].kernel
    for command in ("dkms status", f"modinfo -k {kernel} -F version nvidia-current"):
        assert DRIVER in fleet.same(command)
    assert f"nvidia-current/{DRIVER}, {kernel}, x86_64: installed" in fleet.nodes[1].run("dkms status").stdout


def test_the_others_have_no_compiler_and_no_headers(fleet: Fleet) -> None:
    packages = "dpkg-query -W -f '${db:Status-Abbrev}${Package}\\n' | sed -n 's/^.i *//p'"
    left = "ls -A /var/lib/gpuprov/*.tar.gz /etc/dkms/no-autoinstall"
    first, *others = (set(node.run(packages).stdout.split()) for node in fleet.nodes)
    compiler = {"gcc", "gcc-12", "build-essential", f"linux-headers-{fleet.nodes[1].kernel}"}
    assert compiler <= first
    for node, installed in zip(fleet.nodes[1:], others, strict=True):
        assert not compiler & installed
        assert node.run(left, check=False).stdout == ""


def test_nothing_is_left_to_do(fleet: Fleet) -> None:
    done = fleet.gpuprov("plan")
    assert done.returncode == 0, done.stdout


def test_a_build_that_fails_shuts_the_gate_with_the_compilers_line(fleet: Fleet) -> None:
    fleet.nodes[0].run("touch /root/broken-source")
    done = fleet.gpuprov("upgrade", "--to", f"{OTHER}.lock.yml", "--yes")
    fleet.nodes[0].run("rm /root/broken-source")
    assert done.returncode == 5, done.stderr
    assert "error: #error this kernel is not supported" in done.stderr
    assert not fleet.store_has(OTHER)
    assert f"{DRIVER}" in fleet.nodes[0].run("dkms status").stdout


@pytest.mark.slow
def test_an_upgrade_has_the_module_in_the_store_before_anything_is_drained(fleet: Fleet) -> None:
    lock = yaml.safe_load((fleet.folder / f"{OTHER}.lock.yml").read_text())
    there = "find $XDG_STATE_HOME -name about.json -path '*/{}-*' | grep ."
    hooks = {"drain": there.format(OTHER)}
    lock |= {"rollout": {"settle_s": 20, "hooks": hooks}}
    for group in lock["groups"].values():
        group["reboot"] = {"allowed": True, "timeout_s": 60}
    (fleet.folder / f"{OTHER}.lock.yml").write_text(yaml.safe_dump(lock, sort_keys=False))
    done = fleet.gpuprov("upgrade", "--to", f"{OTHER}.lock.yml", "--yes", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.same(BARE)
    assert f"nvidia-current/{OTHER}" in fleet.same("dkms status")
    assert fleet.without_gcc() == fleet.nodes[1:]


@pytest.mark.slow
def test_a_rollback_needs_no_compiler(fleet: Fleet) -> None:
    done = fleet.gpuprov("rollback", "--yes", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.same(BARE)
    assert f"nvidia-current/{DRIVER}" in fleet.same("dkms status")
    assert fleet.without_gcc() == fleet.nodes[1:]


def test_a_changed_byte_in_the_store_is_refused(fleet: Fleet) -> None:
    whole = fleet.archive.read_bytes()
    fleet.archive.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    fleet.lose_module(fleet.nodes[1])
    done = fleet.gpuprov("apply", "--yes", "-l", "node2")
    fleet.archive.write_bytes(whole)
    assert done.returncode == 5, done.stderr
    assert "does not match its record" in done.stderr


@pytest.mark.slow
def test_a_changed_byte_on_the_way_is_refused(fleet: Fleet) -> None:
    """Change the copy on arrival, so that the node's archive differs from the store's."""
    node = fleet.nodes[1]
    node.run(
        "cat >/etc/systemd/system/forge.service <<'E'\n[Service]\nExecStart=/bin/sh -c 'while :; do"
        ' for each in /var/lib/gpuprov/*.tar.gz; do [ -e "$each" ] && echo x >>"$each"; done;'
        " sleep 0.02; done'\nE\nsystemctl daemon-reload; systemctl start forge"
    )
    done = fleet.gpuprov("apply", "--yes", "-l", "node2")
    node.run("systemctl stop forge; rm /etc/systemd/system/forge.service; systemctl daemon-reload")
    assert done.returncode == 1, done.stderr
    assert "has SHA-256" in done.stderr
    assert DRIVER not in node.run("dkms status").stdout


@pytest.mark.slow
def test_a_node_that_lost_its_module_gets_it_from_the_store(fleet: Fleet) -> None:
    done = fleet.gpuprov("apply", "--reboot", "--yes", "-l", "node2", "-o", "json")
    assert done.returncode == 0, done.stderr
    [node] = json.loads(done.stdout)["nodes"]
    assert "compiled" not in node
    assert fleet.same(BARE)


@pytest.mark.slow
def test_a_node_that_never_has_a_compiler_says_what_is_missing(fleet: Fleet) -> None:
    """Refuse when the store has only builds by another compiler."""
    node = fleet.nodes[1]
    config = f"/boot/config-{node.kernel}"
    node.run(f"sed -i 's/^CONFIG_CC_VERSION_TEXT=.*/CONFIG_CC_VERSION_TEXT=\"other\"/' {config}")
    fleet.lose_module(node)
    before = (fleet.folder / "fleet.lock.yml").read_text()
    lock = yaml.safe_load(before)
    [group] = lock["groups"].values()
    group["components"]["driver"] |= {"builder": "node1", "compiler": "absent"}
    (fleet.folder / "fleet.lock.yml").write_text(yaml.safe_dump(lock, sort_keys=False))
    done = fleet.gpuprov("apply", "--yes", "-l", "node2")
    (fleet.folder / "fleet.lock.yml").write_text(before)
    assert done.returncode == 1, done.stderr
    assert f"no module {DRIVER} that fits kernel {node.kernel} is in the store" in done.stderr
    assert "only node1 compiles for this host" in done.stderr
    assert node.run("command -v gcc", check=False).stdout == ""


@pytest.mark.slow
def test_a_node_whose_kernel_no_build_fits_compiles_for_itself(fleet: Fleet) -> None:
    """Install gcc and headers when the store has only builds by another compiler, and report the build."""
    node = fleet.nodes[1]
    play_source(node)
    done = fleet.gpuprov("apply", "--reboot", "--yes", "-l", "node2", "-o", "json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["nodes"]
    assert result["compiled"] == node.kernel
    assert f"nvidia-current/{DRIVER}, {node.kernel}, x86_64: installed" in node.run("dkms status").stdout
    assert len(list((fleet.folder / "state").rglob(f"{DRIVER}-*/modules.tar.gz"))) == 1
