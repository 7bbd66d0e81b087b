"""Has DKMS install modules that another node compiled, as if it had built them here.

Runs on the node. Argument: {"source": "nvidia-current/535.309.01", "builds": [{"kernel": release,
"sha256": …, "modules": {file: sha256}, "builders": "node1"}]}; the archives are in /var/lib/gpuprov.
Answers {"changed": true, "failure": null}.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

TREE = Path("/var/lib/dkms")
ARCHIVES = Path("/var/lib/gpuprov")


class Refused(Exception):
    """Something is not what it should be; its text says so."""


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def unpacked(packed: bytes, sha256: str, modules: dict[str, str]) -> dict[str, bytes]:
    """The modules of an archive.

    Raises:
        Refused: the archive, or one of them, is not what was kept.
    """
    if digest(packed) != sha256:
        raise Refused(f"the archive of modules has SHA-256 {digest(packed)[:16]}…, expected {sha256[:16]}…")
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        found = {name: file.read() for name, file in members.items() if file}
    if {name: digest(content) for name, content in found.items()} != modules:
        raise Refused("the archive has other modules than were kept")
    return found


def place(folder: Path, files: dict[str, bytes], builders: str) -> None:
    """Put modules where DKMS keeps what it built, all or none.

    DKMS's log says who compiled them, so that nothing takes them for a build of this node.
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
        Refused: it failed; with its first words.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        said = done.stderr.strip().partition("\n")[0]
        raise Refused(f"{' '.join(command)} exited with {done.returncode}: {said}")


def install(source: str, build: dict) -> None:
    """Install one build.

    Raises:
        Refused: it is not what was kept, or DKMS does not take it.
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
        subprocess.run(["dkms", "uninstall", source, *one], stdin=subprocess.DEVNULL, check=False)
    place(TREE / source / build["kernel"] / os.uname().machine, files, build.get("builders", "another node"))
    run("dkms", "install", "--force", source, *one)


def main() -> None:
    """Print the document."""
    asked, failure = json.loads(sys.argv[1]), None
    try:
        for build in asked["builds"]:
            install(asked["source"], build)
    except (Refused, OSError, tarfile.TarError) as error:
        failure = {"says": str(error), "do": "apply again; if it stays so, take the build out of the store"}
    sys.stdout.write("\n" + json.dumps({"changed": True, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
