"""Modules that DKMS built on a node: kept before an upgrade, and put back as they were, without a compiler.

They are dkms(8)'s own archives of binaries, beside the files of replaced packages and proven like those.
"""

import contextlib
import os
import tempfile

from gpuprov.probe.node.base import find_program, run, run_anyway
from gpuprov.upgrade.node.packages import POOL, digest, kept_sums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MODULE_S = 1800.0
"""Where nothing was kept, DKMS has to build again, on slow machines too."""
UNBUILT = "/etc/dkms/no-autoinstall"
"""While this is a file, packages bring a module's source and build nothing (dkms's common.postinst)."""


def modules() -> "list[list[str]]":
    """`[name, version, kernel]` of what DKMS has installed.

    Lines as `nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed`.
    """
    if not find_program("dkms"):
        return []
    rows = []
    for line in run("dkms", "status", seconds=60).splitlines():
        about, _, state = line.rpartition(": ")
        parts = about.split(", ")
        if state.strip().startswith("installed") and len(parts) == 3 and "/" in parts[0]:
            rows.append(parts[0].split("/", 1) + [parts[1]])
    return rows


def keep() -> "dict[str, str]":
    """Have archives of all modules in the pool; file → SHA-256."""
    kept = {}
    for name, version, kernel in modules():
        file = _file_name(name, version, kernel)
        path = os.path.join(POOL, file)
        run(
            *("dkms", "mktarball", "--binaries-only", "--archive", path),
            *_one(name, version, kernel),
            seconds=300,
        )
        kept[file] = digest(path)
    return kept


@contextlib.contextmanager
def unbuilt(wanted: "Sequence[Sequence[str]]") -> "Iterator[None]":
    """Have packages build nothing meanwhile, if everything wanted is kept: it is put back afterwards.

    The file is a link into a folder that a reboot empties, so that a node which loses power builds again.
    """
    sums = kept_sums()
    if not wanted or not all(_kept(sums, *each) for each in wanted):
        yield
        return
    with tempfile.NamedTemporaryFile(dir="/run", prefix="gpuprov-") as file:
        if os.path.lexists(UNBUILT):
            os.unlink(UNBUILT)
        os.symlink(file.name, UNBUILT)
        try:
            yield
        finally:
            os.unlink(UNBUILT)


def put_back(wanted: "Sequence[Sequence[str]]") -> None:
    """Install modules that DKMS had for a kernel and has no more: what was kept, or else built again."""
    there = modules()
    sums = kept_sums()
    for name, version, kernel in wanted:
        if [name, version, kernel] in there:
            continue
        if _kept(sums, name, version, kernel):
            archive = os.path.join(POOL, _file_name(name, version, kernel))
            # Fails at its last step, to make the module known, where that has been done.
            run_anyway("dkms", "ldtarball", "--force", "--archive", archive, seconds=300)
        run("dkms", "install", "--force", *_one(name, version, kernel), seconds=MODULE_S)


def _one(name: str, version: str, kernel: str) -> "list[str]":
    return ["-m", name, "-v", version, "-k", kernel]


def _file_name(name: str, version: str, kernel: str) -> str:
    return f"{name}-{version}-{kernel}.dkms.tar.gz"


def _kept(sums: "dict[str, str]", name: str, version: str, kernel: str) -> bool:
    """Whether the archive is there, and is what was kept."""
    file = _file_name(name, version, kernel)
    path = os.path.join(POOL, file)
    return os.path.isfile(path) and digest(path) == sums.get(file)
