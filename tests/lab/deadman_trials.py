"""Script for a node, run from stdin: the dead man's switch on a full file system.

    arming FOLDER BLOCKS...       arm with BLOCKS free blocks of 4 KiB on the file system of FOLDER
    restoring FOLDER BLOCKS...    restore the old state after a change of SSH, with as many free blocks

Prints a JSON object: number of blocks → errors, only for numbers with errors. The tested switch is
/root/deadman.sh. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path("/var/lib/gpuprov/deadman")
UNITS = Path("/etc/systemd/system")
WATCHED = ("/etc/ssh", "/etc/sudoers", "/etc/sudoers.d", "/etc/gpuprov", "/root/.ssh", str(UNITS))
BLOCK = 4096
Look = dict[str, tuple[object, ...]]


def sh(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command; return its exit code and output."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


def arm(token: str) -> subprocess.CompletedProcess[str]:
    """Arm the switch as the controller does."""
    new = f"{HOME}/switch.{token}"
    return sh(
        f"mkdir -p {HOME} && cat /root/deadman.sh >{new} && sh {new} arm 300 {token} root;"
        f" code=$?; rm -f {new}; exit $code"
    )


def look() -> Look:
    """Return the mode, owner and content hash of each path that the switch saves."""
    found: Look = {}
    for top in map(Path, WATCHED):
        for path in [top, *sorted(top.rglob("*"))] if os.path.lexists(top) else []:
            at = path.lstat()
            if path.is_symlink():
                content = str(path.readlink())
            else:
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (oct(at.st_mode), at.st_uid, at.st_gid, content)
    return found


def fill(folder: str, blocks: int) -> None:
    """Fill the file system of a folder except for exactly this number of blocks."""
    filler = Path(folder) / "filler"
    with filler.open("ab", buffering=0) as stream:
        for size in (1 << 20, BLOCK, 1):
            try:
                while True:
                    stream.write(b"x" * size)
            except OSError:
                continue
        os.fsync(stream.fileno())
        stream.truncate(max(0, filler.stat().st_size // BLOCK - blocks) * BLOCK)
        os.fsync(stream.fileno())


def empty(folder: str) -> None:
    """Remove the file that fills a file system."""
    (Path(folder) / "filler").unlink(missing_ok=True)
    os.sync()


def rest() -> list[str]:
    """Return remains of an armed switch: units, markers, an active timer."""
    left = [str(each) for each in UNITS.rglob("gpuprov-deadman*")]
    left += [str(HOME / name) for name in ("armed", "restoring") if (HOME / name).exists()]
    if sh("systemctl is-active gpuprov-deadman.timer").stdout.strip() == "active":
        left.append("an active timer")
    return left


def arming(folder: str, blocks: int) -> list[str]:
    """Arm the switch with this many blocks free; return what is wrong after it."""
    before, token = look(), f"arming-{blocks}"
    fill(folder, blocks)
    done = arm(token)
    if done.returncode:
        wrong = (
            []
            if "free space: " in done.stderr or "No space left" in done.stderr
            else [f"says only {done.stderr!r}"]
        )
        wrong += [f"left {each}" for each in rest()]
    else:
        timer = sh("systemctl is-active gpuprov-deadman.timer").stdout.strip()
        wrong = [] if timer == "active" else [f"armed, and its timer is {timer}"]
        if (HOME / "armed").read_text() != f"{token}\n":
            wrong.append("armed for somebody else")
        kept = sh(f"sh {HOME}/switch disarm {token}")
        if kept.returncode:
            wrong.append(f"cannot be disarmed: {kept.stderr}")
    empty(folder)
    if look() != before:
        wrong.append(f"changed {differing(before, look())}")
    return wrong


def change() -> None:
    """Make changes that a run or an administrator may make while the switch is armed."""
    config = Path("/etc/ssh/sshd_config")
    new = config.with_suffix(".new")
    new.write_text(config.read_text() + "# another line\n" * 2000)
    new.replace(config)
    Path("/etc/ssh/sshd_config.d/00-gpuprov.conf").write_text("MaxAuthTries 3\n")
    Path("/etc/ssh/moduli").unlink()
    Path("/etc/ssh/ssh_host_ed25519_key.pub").chmod(0o600)
    Path("/etc/gpuprov").mkdir(exist_ok=True)
    Path("/etc/gpuprov/firewall.nft").write_text("add table inet gpuprov\n")
    with Path("/root/.ssh/authorized_keys").open("a") as keys:
        keys.write("# another key\n")


def restoring(folder: str, blocks: int) -> list[str]:
    """Let the switch restore with this many blocks free; return what is wrong after it."""
    before, token = look(), f"restoring-{blocks}"
    if (armed := arm(token)).returncode:
        return [f"cannot be armed: {armed.stderr}"]
    change()
    changed = look()
    fill(folder, blocks)
    first = sh(f"sh {HOME}/switch restore 'the disk is full'")
    between = look()
    halves = [
        path
        for path in before.keys() | changed.keys() | between.keys()
        if between.get(path) not in (before.get(path), changed.get(path)) and "deadman" not in path
    ]
    wrong = [f"{path} is neither as it was nor as it became" for path in sorted(halves)]
    if first.returncode == 0 and between != before:
        wrong.append(f"said to be as before, and is not: {differing(before, between)}")
    empty(folder)
    if first.returncode and (again := sh(f"sh {HOME}/switch restore 'the disk has room again'")).returncode:
        wrong.append(f"not restored when there is room: {again.returncode} {again.stderr}")
    if look() != before:
        wrong.append(f"differs when there is room again: {differing(before, look())}")
    if token not in (HOME / "undone").read_text():
        wrong.append("does not say that it restored")
    return wrong + [f"left {each}" for each in rest()]


def differing(one: Look, other: Look) -> list[str]:
    """Return the paths that differ between two looks."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def main() -> None:
    """Run a trial for each number of free blocks; print what is wrong as JSON."""
    trial = {"arming": arming, "restoring": restoring}[sys.argv[1]]
    shutil.rmtree(HOME, ignore_errors=True)
    Path("/var/lib/gpuprov").mkdir(exist_ok=True)
    wrong = {}
    for blocks in map(int, sys.argv[3:]):
        if said := trial(sys.argv[2], blocks):
            wrong[blocks] = said
    json.dump(wrong, sys.stdout, indent=1)


main()
