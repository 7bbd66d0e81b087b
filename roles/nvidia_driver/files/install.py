"""Installation by DKMS of modules that another node compiled, like modules that it built itself.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"source": "nvidia-current/535.309.01", "builds": [{"kernel": release, "sha256": …,
"modules": {file: sha256}, "builders": "node1"}]}; the archives are in /var/lib/gpuprov.
Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

from gpuprov_own_tmp import run_with_own_tmp

TREE = Path("/var/lib/dkms")
ARCHIVES = Path("/var/lib/gpuprov")


class Refused(Exception):
    """Rejection of an archive, or failure of a program; the text is the reason."""


def digest(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def unpacked(packed: bytes, sha256: str, modules: dict[str, str]) -> dict[str, bytes]:
    """Return the modules in an archive.

    Raises:
        Refused: the archive or a module differs from the one in the store.
    """
    if digest(packed) != sha256:
        raise Refused(f"the archive of modules has SHA-256 {digest(packed)[:16]}…, expected {sha256[:16]}…")
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        found = {name: file.read() for name, file in members.items() if file}
    if {name: digest(content) for name, content in found.items()} != modules:
        raise Refused("the archive has other modules than the store lists")
    return found


def place(folder: Path, files: dict[str, bytes], builders: str) -> None:
    """Put modules into DKMS's folder of a build, all or none.

    DKMS's log names the builders, so that the modules are not taken for a build of this node.
    """
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "module").mkdir(parents=True)
    (fresh / "log").mkdir()
    (fresh / "log/make.log").write_text(f"compiled by {builders}\n")
    for name, content in files.items():
        (fresh / "module" / name).write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def run(*command: str) -> None:
    """Run a program.

    Raises:
        Refused: it failed; the text has the first line of its errors.
    """
    status, errors = run_with_own_tmp(*command)
    if status:
        said = errors.strip().partition("\n")[0]
        raise Refused(f"{' '.join(command)} exited with {status}: {said}")


def install(source: str, build: dict) -> None:
    """Install one build with DKMS in place of the node's own one, and remove its archive in any case.

    Raises:
        Refused: it differs from the one in the store, or DKMS rejects it.
        OSError, TarError: it cannot be read or written.
    """
    archive = ARCHIVES / f"{build['sha256']}.tar.gz"
    try:
        files = unpacked(archive.read_bytes(), build["sha256"], build["modules"])
    finally:
        archive.unlink(missing_ok=True)
    one = ("-k", build["kernel"])
    if not (TREE / source / "source").exists():
        run("dkms", "add", source)
    if (TREE / source.partition("/")[0] / f"kernel-{build['kernel']}-{os.uname().machine}").exists():
        run_with_own_tmp("dkms", "uninstall", source, *one)
    place(TREE / source / build["kernel"] / os.uname().machine, files, build.get("builders", "another node"))
    run("dkms", "install", "--force", source, *one)


def main() -> None:
    """Install the requested builds one after another, until one fails; print the failure as JSON."""
    asked, failure = json.loads(sys.argv[1]), None
    try:
        for build in asked["builds"]:
            install(asked["source"], build)
    except (Refused, OSError, tarfile.TarError) as error:
        do = "run `gpuprov apply` again; if it fails again, delete the build from the store"
        failure = {"says": str(error), "do": do}
    sys.stdout.write("\n" + json.dumps({"changed": True, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
