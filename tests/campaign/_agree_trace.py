"""Files below /etc that services of the stack open, found by fanotify(7) while all of them work."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

from gpuprov.roles import UNITS
from tests.campaign._agree_node import Place

RECORD = Path(__file__).with_name("_agree_opened.txt")
HEAD = (
    "# Written by `scripts/campaign agree --trace`: files that services of a node with the full stack open."
)
EVENT = struct.Struct("=IBBHQii")
"""fanotify_event_metadata: length, version, reserved, length of this part, mask, descriptor, process id."""
CLOEXEC_NONBLOCK = 0x1 | 0x2
ADD_FILESYSTEM = 0x1 | 0x100
OPEN = 0x20
AT_FDCWD = -100
READ_MAX = 65536
OF_THE_LAB = ("gpuprov-lab", "gpuprov-sim")
"""Parts of the names of files that make a lab node of a system."""
TEXT_MAX = 256 * 1024

WORK = """
systemctl daemon-reexec
for unit in {units} ssh cron dbus systemd-logind systemd-udevd unattended-upgrades apt-daily; do
    systemctl restart $unit
done
apt-get -q update; apt-cache policy libc6; apt-get -s upgrade; unattended-upgrade --dry-run
dkms status; modprobe --show-depends nvidia; modprobe --showconfig; ldconfig -p
sysctl --system --pattern none
nvidia-smi; nvidia-ctk cdi list; docker info; docker ps; containerd config dump; sudo -n true
systemd-run --wait --quiet true; su - root -c true; bash --login -c true; sshd -T; nft list ruleset
systemctl list-timers; update-alternatives --get-selections; mount -a; logrotate --debug /etc/logrotate.conf
"""
"""Commands that make every service and every program of the stack read its configuration."""


def trace(place: Place) -> list[str]:
    """Return the text files below /etc that programs of the node open while its services work.

    Raises:
        OSError: the kernel refuses the watch.
    """
    library = ctypes.CDLL(None, use_errno=True)
    handle = library.fanotify_init(CLOEXEC_NONBLOCK, os.O_RDONLY | os.O_CLOEXEC)
    root = os.fsencode(place.node.root)
    if handle < 0 or library.fanotify_mark(handle, ADD_FILESYSTEM, ctypes.c_uint64(OPEN), AT_FDCWD, root):
        raise OSError(ctypes.get_errno(), "fanotify")
    seen: set[str] = set()
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(handle, ended, seen))
    reader.start()
    try:
        place.enter(WORK.format(units=" ".join(sorted(set(UNITS.values())))), timeout=300)
        place.node.run("true")
    finally:
        ended.set()
        reader.join()
        os.close(handle)
    prefix = str(place.node.root)
    paths = {path.removeprefix(prefix) for path in seen}
    ours = (path for path in paths if not any(part in path for part in OF_THE_LAB))
    return sorted(path for path in ours if path.startswith("/etc/") and _is_text(place.at(path)))


def recorded() -> tuple[str, ...]:
    """Return the paths of the files in the last trace."""
    return tuple(line for line in RECORD.read_text().splitlines() if not line.startswith("#"))


def record(paths: list[str]) -> None:
    """Write the result of a trace."""
    RECORD.write_text("\n".join([HEAD, *paths, ""]))


def _read(handle: int, ended: threading.Event, seen: set[str]) -> None:
    """Collect the names of opened files until the end is set and no event is left."""
    while True:
        last = ended.is_set()
        try:
            events = os.read(handle, READ_MAX)
        except BlockingIOError:
            if last:
                return
            ended.wait(0.01)
            continue
        while events:
            size, _, _, _, _, opened, _ = EVENT.unpack_from(events)
            events = events[size:]
            if opened >= 0:
                seen.add(str(Path(f"/proc/self/fd/{opened}").readlink()).removesuffix(" (deleted)"))
                os.close(opened)


def _is_text(path: Path) -> bool:
    """Return whether a path is a regular file of at most `TEXT_MAX` bytes without null bytes."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > TEXT_MAX:
        return False
    return b"\0" not in path.read_bytes()
