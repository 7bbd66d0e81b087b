"""Builds the execution environment, and runs a playbook of the collection in its container on a lab node.

    scripts/campaign environment [--image FILE]

The definition is `execution-environment.yml`. A root of Debian's archive takes the place of its base image;
packages of Python come from a server of this machine. The image runs on a node with Podman as AWX runs it:
ansible-runner as user 1000, with the project of docs/collection.md, a key, and host keys that are checked.
Prints each step with its seconds; exit 1 if one fails. With --image the image stays in FILE, for another run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml

from gpuprov.errors import GpuprovError
from gpuprov_lab import Lab, Node
from gpuprov_lab.archive import Archive, read_archive
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.network import GATEWAY
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from maintenance.release import image
from tests.collection import check
from tests.lab.command_line import gpuprov
from tests.lab.package_index import index_wheels, pip
from tests.lab.plain_ansible import RECAP
from tests.lab.provisioned_node import MACHINE, PROFILE

BASE, MADE = "docker.io/library/debian:trixie-slim", "localhost/gpuprov-ee:latest"
PYTHON = "3.13"
"""Version of Python in the base image."""
FETCHED = (
    "ansible-core>=2.21,<2.22",
    "ansible-runner",
    "bindep",
    "dumb-init==1.2.5",
    "packaging",
    "pip",
    "pyyaml",
    "tomlkit",
)
"""Packages that the build installs; those that the definition does not name are ansible-builder's."""
ENGINE = "debian13-minimal"
SITE = [{"name": "Apply the lock", "ansible.builtin.import_playbook": "gpuprov.gpuprov.site"}]
PLAYBOOK = "site.yml"
USER = "1000"
LONGEST_S = 1800
Result = TypeVar("Result")


def main() -> int:
    """Build, run, and print what was seen; return 1 if a step fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", type=Path)
    kept = parser.parse_args().image
    with tempfile.TemporaryDirectory(prefix="gpuprov-environment-") as made, Lab("environment") as lab:
        scratch = Path(made)
        try:
            seen = _seen(lab, scratch, kept or scratch / "environment.tar")
        except (AssertionError, GpuprovError, subprocess.CalledProcessError) as failure:
            print(f"BAD  {failure}\n{getattr(failure, 'stderr', '') or ''}"[-6000:])
            return 1
    [(host, changed, unreachable, failed)] = RECAP.findall(seen)
    print(f"{host}: changed {changed}, unreachable {unreachable}, failed {failed}")
    return 0 if (int(changed) > 0, unreachable, failed) == (True, "0", "0") else 1


def _seen(lab: Lab, scratch: Path, target: Path) -> str:
    """Return the output of ansible-runner in the container, whose image is made unless `target` exists."""
    [node] = timed("a lab node", lambda: lab.up(1, gpu=MACHINE))
    folder = scratch / "project"
    timed("lock and inventory", lambda: _project(lab, folder))
    if not target.exists():
        _make(scratch, target)
    print(f"image: {target.stat().st_size / 1e6:.0f} MB", flush=True)
    steps = [with_control_groups, with_network_parameters]
    [engine] = lab.up(1, os=ENGINE, names=["engine"], prepare=steps)
    timed("podman load", lambda: _load(engine, target))
    return timed("ansible-runner, the playbook site in check mode", lambda: _run(engine, folder, node))


def _make(scratch: Path, target: Path) -> None:
    """Write the image of the execution environment."""
    served_at = scratch / "served"
    served_at.mkdir()
    context = timed("ansible-builder create", lambda: _context(scratch / "definition"))
    timed("packages of Python", lambda: _index(served_at, scratch / "wheels"))
    with served(served_at) as server:
        timed("buildah", lambda: _build(context, target, scratch / "store", server.url))


def timed(what: str, step: Callable[[], Result]) -> Result:
    """Return a step's result; print its seconds."""
    begun = time.monotonic()
    result = step()
    print(f"ok  {time.monotonic() - begun:5.0f} s  {what}", flush=True)
    return result


def _context(folder: Path) -> Path:
    """Return the folder of the build, as ansible-builder writes it from the definition and the archive."""
    folder.mkdir()
    checkers = check.Checkers("2.19", sys.executable, folder)
    check.image(checkers)
    return folder / "context"


def _index(folder: Path, wheels: Path) -> None:
    """Fill an index in `folder` with what the build installs."""
    pip("download", "--only-binary", ":all:", "--python-version", PYTHON, "--dest", str(wheels), *FETCHED)
    index_wheels(wheels, folder)


def _project(lab: Lab, folder: Path) -> None:
    """Write a folder for ansible-runner: the inventory of a locked fleet, the key and the host keys."""
    folder.mkdir()
    fleet = yaml.safe_load(lab.fleet(PROFILE))
    fleet["ssh"] = {"user": "root"}  # the key is ansible-runner's, as AWX's credential
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(folder, "lock")
    gpuprov(folder, "inventory", "generate", "inventory")
    for name in ("env", "project", ".ssh"):  # the user's home is this folder
        (folder / name).mkdir()
    (folder / "project" / PLAYBOOK).write_text(yaml.safe_dump(SITE))
    shutil.copy(lab.identity_file, folder / "env/ssh_key")
    (folder / "env/envvars").write_text("ANSIBLE_HOST_KEY_CHECKING: 'True'\n")
    shutil.copy(lab.known_hosts, folder / ".ssh/known_hosts")


def _build(context: Path, target: Path, store: Path, index: str) -> None:
    """Build the execution environment in a store of its own, and write it to a file."""
    archive = read_archive()
    buildah = ["buildah", f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--storage-driver=vfs"]
    _said(*buildah, "from", "--name=base", "scratch")
    root = Path(_said(*buildah, "mount", "base").strip())
    _said("debootstrap", "--force-check-gpg", "--variant=minbase", image.SUITE, str(root), archive.main)
    _write_sources(root, archive, index)
    _said(*buildah, "umount", "base")
    _said(*buildah, "commit", "--quiet", "--rm", "base", BASE)
    built = ("build", "--isolation=chroot", "--network=host", "--pull-never", "--tag", MADE)
    try:
        _said(*buildah, *built, str(context))
        _said(*buildah, "push", "--quiet", MADE, f"docker-archive:{target}:{MADE}")
    finally:
        _said(*buildah, "rmi", "--all", "--force")


def _write_sources(root: Path, archive: Archive, index: str) -> None:
    """State this machine's archive and an index of Python's packages in the base image."""
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    (root / "etc/apt/sources.list.d/debian.sources").write_text(archive.sources(image.SUITE))
    (root / "etc/apt/apt.conf.d/90archive").write_text(archive.settings)
    (root / "etc/pip.conf").write_text(f"[global]\nindex-url = {index}/simple\ntrusted-host = {GATEWAY}\n")


def _load(engine: Node, target: Path) -> None:
    """Install Podman on a node, and load the image."""
    engine.run("apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install podman runc")
    with target.open("rb") as content:
        subprocess.run([*engine.ssh_command(), "cat >/root/image.tar"], stdin=content, check=True)
    engine.run("podman load -q -i /root/image.tar", timeout=LONGEST_S)


def _run(engine: Node, folder: Path, node: Node) -> str:
    """Run the playbook in the container, and return the output."""
    shutil.copytree(folder, engine.root / "srv/runner")
    engine.run(f"chown -R {USER}:0 /srv/runner && chmod -R go= /srv/runner/.ssh")
    words = ["run", "/runner", "--playbook", PLAYBOOK, "--limit", node.name, "--cmdline=--check"]
    container = f"podman run --rm --network=host -v /srv/runner:/runner {MADE}"
    line = f"{container} ansible-runner {shlex.join(words)} 2>&1"
    done = engine.run(line, check=False, timeout=LONGEST_S)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _said(*command: str) -> str:
    """Return the output of a command; raise CalledProcessError if it fails."""
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
