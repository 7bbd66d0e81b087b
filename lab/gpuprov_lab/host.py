"""The lab's use of its machine: paths, locks, tools, root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed

# program → its Debian package
TOOLS = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "nft": "nftables",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "systemd-nspawn": "systemd-container",
}
# One lock per machine and not per user, as are addresses, the nft table and forwarding.
MACHINE_LOCK = Path("/run/gpuprov-lab.lock")
CACHE = Path("/var/cache/gpuprov-lab")
LOOP_CTL_ADD = 0x4C80  # linux/loop.h
"""Base images, saved layers and package archives; kept between labs."""
LABS = Path("/var/lib/gpuprov-lab")
"""The labs, one folder each."""


def say(line: str) -> None:
    """Print a line of progress on stderr."""
    print(f"lab: {line}", file=sys.stderr, flush=True)  # noqa: T201


def execute(arguments: Sequence[str | Path], *, input: str = "", timeout: float = 600) -> str:  # noqa: A002
    """Run a program of this machine; return its stdout.

    Raises:
        NodeFailed: its exit status is not 0 (contains its last lines), or it ran longer than
            `timeout` seconds.
    """
    words = [str(word) for word in arguments]
    try:
        done = subprocess.run(words, input=input, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NodeFailed(f"`{' '.join(words)}` did not end within {timeout:.0f} s") from None
    if done.returncode:
        last_lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise NodeFailed(f"`{' '.join(words)}` exited with {done.returncode}: {last_lines}")
    return done.stdout


def execute_aloud(arguments: Sequence[str | Path], *, timeout: float, every: float = 5) -> None:
    """Run a program for minutes, and print its latest line at an interval, also while it prints nothing.

    Args:
        timeout: seconds.
        every: seconds between two printed lines.

    Raises:
        NodeFailed: as `execute`.
    """
    words, last, over = [str(word) for word in arguments], deque[str](maxlen=5), Event()
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=both, text=True) as program:
        timer, teller = Timer(timeout, program.kill), Thread(target=_tell, args=(last, every, over))
        timer.start()
        teller.start()
        try:
            last.extend(line.strip() for line in program.stdout or ())
            program.wait()
        finally:
            # Running threads would keep this process alive, also after Ctrl-C.
            timer.cancel()
            over.set()
    if program.returncode:
        raise NodeFailed(f"`{' '.join(words)}` ended with {program.returncode}: " + "\n".join(last))


def _tell(last: deque[str], every: float, over: Event) -> None:
    """Print the seconds so far and the latest line, or `…` before the first, at an interval until `over`."""
    begun = time.monotonic()
    while not over.wait(every):
        line = last[-1] if last else "…"
        say(f"  {time.monotonic() - begun:.0f} s: {line[:100]}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file lock at `path` in the block, and wait for it without limit; the kernel releases it when
    the process dies.

    The file and its folder are created if missing. The holder may remove the file; a waiting process then
    locks the file that exists now.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists() and path.samefile(f"/proc/self/fd/{handle.fileno()}"):
                yield
                return


def hold(path: Path) -> IO[str] | None:
    """Return the file at `path`, locked until it is closed or the process dies; None if another process holds
    it.

    Do not wait; create the file and its folder if they are missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step: a reader sees the old text or the new one, also after a kill. OSError if
    its folder is missing.
    """
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.chmod(mode)
    part.replace(path)


def remove_tree(path: Path) -> None:
    """Remove a folder, if it exists, without crossing into file systems mounted below it.

    Raises:
        NodeFailed: a file system is mounted below it: this and the folders above it remain; or rm failed.
    """
    if path.exists():
        execute(["rm", "-rf", "--one-file-system", path])


def require_root() -> None:
    """Check for root rights, which namespaces, mounts and nftables need.

    Raises:
        InvalidInput: another user.
    """
    if os.geteuid() != 0:
        raise InvalidInput(
            f"the lab was called by user id {os.geteuid()}", expected="root", do="run it with sudo"
        )


def make_folders() -> None:
    """Create the lab's folders with access only for root: they hold keys, and nodes' setuid programs."""
    for folder in (CACHE, LABS):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def create_loop_device(number: int) -> None:
    """Create one of the kernel's loop devices, unless it exists.

    A node with GPUs has a copy of /sys from its start, without devices that come later.
    """
    with Path("/dev/loop-control").open("rb") as control, suppress(FileExistsError):
        fcntl.ioctl(control, LOOP_CTL_ADD, number)


def require_tools(tools: Mapping[str, str] = TOOLS) -> None:
    """Install missing tools from the machine's own package archive, under the machine's lock; print their
    names.

    Args:
        tools: program → its Debian package.

    Raises:
        GpuprovError: not a machine with apt, or apt failed.
    """
    missing = sorted({package for program, package in tools.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise GpuprovError(
            f"missing on this machine: {', '.join(missing)}", do="install them, then call again"
        )
    say(f"installing {', '.join(missing)}")
    with locked(MACHINE_LOCK):
        quiet = [
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "-q",
            "-y",
            "-o",
            "DPkg::Lock::Timeout=300",
        ]
        execute([*quiet, "update"])
        execute([*quiet, "install", "--no-install-recommends", *missing], timeout=1800)
