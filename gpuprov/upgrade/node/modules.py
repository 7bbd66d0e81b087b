"""Modules that DKMS built on a node: archived before an upgrade, and restored without a compiler.

The archives are dkms(8)'s binary tarballs, kept and checked like the files of replaced packages. dkms ignores
errors in its folder of temporary files, which is its own here, and on a full disk.
"""

import contextlib
import glob
import os
import re
import tarfile
import tempfile
import zlib

from gpuprov.probe.node.base import Failed, find_program, run, run_anyway
from gpuprov.upgrade.node.packages import APART, POOL, digest, digest_of, kept_sums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MODULE_S = 1800.0
"""Time limit in seconds: without an archive DKMS has to build again, also on slow machines."""
UNBUILT = "/etc/dkms/no-autoinstall"
"""While this file exists, packages install a module's source and build nothing (dkms's common.postinst)."""
MARK = "/run/gpuprov-"
"""Start of the targets of gpuprov's links there; also of the role nvidia_driver's."""
TREE = "/var/lib/dkms"
LIBRARY = "/lib/modules"
DKMS_PLACES = ("updates/dkms", "extra")
"""Folders of a kernel in which DKMS installs modules; as in roles/nvidia_driver/files/look.py."""


def modules() -> "list[list[str]]":
    """Return `[name, version, kernel]` of the modules that DKMS has installed; [] without DKMS.

    It parses lines such as `nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed`; Failed if `dkms
    status` fails.
    """
    if not find_program("dkms"):
        return []
    rows = []
    for line in run("dkms", "status", seconds=60, **APART).splitlines():
        about, _, state = line.rpartition(": ")
        parts = about.split(", ")
        if state.strip().startswith("installed") and len(parts) == 3 and "/" in parts[0]:
            rows.append(parts[0].split("/", 1) + [parts[1]])
    return rows


def keep() -> "dict[str, str]":
    """Archive all modules that DKMS has installed in the pool; return file → SHA-256.

    Raises:
        Failed: DKMS fails, or an archive has not what DKMS has built.
    """
    kept = {}
    for name, version, kernel in modules():
        file = _file_name(name, version, kernel)
        path = os.path.join(POOL, file)
        make = ("dkms", "mktarball", "--binaries-only", "--archive", path, *_one(name, version, kernel))
        run(*make, seconds=300, **APART)
        if not _is_whole(path, name, version, kernel):
            raise Failed(f"dkms mktarball: {path} has not the modules of {TREE}; is the disk full?")
        kept[file] = digest(path)
    return kept


def _is_whole(archive: str, name: str, version: str, kernel: str) -> bool:
    """Return whether an archive has the modules of DKMS's tree, in which each architecture has a folder."""
    folder = glob.escape(f"{TREE}/{name}/{version}/{kernel}")
    built = {os.path.basename(path): digest(path) for path in glob.glob(f"{folder}/*/module/*")}
    return bool(built) and built == _archived(archive, kernel)


def _archived(path: str, kernel: str) -> "dict[str, str]":
    """Return file → SHA-256 of the modules for a kernel in an archive; {} if it cannot be read to its end."""
    wanted = re.compile(rf"(?:\./)?dkms_main_tree/{re.escape(kernel)}/[^/]+/module/([^/]+)\Z")
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = wanted.match(member.name)
                content = archive.extractfile(member) if name else None
                if name and content:
                    found[name.group(1)] = digest_of(content)
    except (OSError, EOFError, tarfile.TarError, zlib.error):
        return {}
    return found


@contextlib.contextmanager
def builds_prevented(wanted: "Sequence[Sequence[str]]") -> "Iterator[None]":
    """Prevent builds by packages meanwhile, if all wanted modules are archived and can be restored later.

    The file `UNBUILT` is a link into a folder that a reboot empties, so that packages build again after a
    power loss. It replaces one that an interrupted run left, and is removed at the end. A file or link that
    is not gpuprov's is not changed.
    """
    sums = kept_sums()
    if os.path.islink(UNBUILT) and os.readlink(UNBUILT).startswith(MARK):
        os.unlink(UNBUILT)
    if not wanted or not all(_kept(sums, *each) for each in wanted) or os.path.lexists(UNBUILT):
        yield
        return
    folder, prefix = os.path.split(MARK)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix) as file:
        os.symlink(file.name, UNBUILT)
        try:
            yield
        finally:
            os.unlink(UNBUILT)


def put_back(wanted: "Sequence[Sequence[str]]") -> None:
    """Install modules that DKMS had for a kernel and now lacks, from the archive or by building again.

    Args:
        wanted: `[name, version, kernel]` of each, as `modules` returned them.

    Raises:
        Failed: one cannot be installed.
    """
    there = modules()
    sums = kept_sums()
    for name, version, kernel in wanted:
        if [name, version, kernel] in there:
            continue
        if _kept(sums, name, version, kernel):
            archive = os.path.join(POOL, _file_name(name, version, kernel))
            # Its last step, adding the module to DKMS, fails if the module has already been added.
            run_anyway("dkms", "ldtarball", "--force", "--archive", archive, seconds=300, **APART)
            if not _is_whole(archive, name, version, kernel):
                run("dkms", "build", "--force", *_one(name, version, kernel), seconds=MODULE_S, **APART)
        run("dkms", "install", "--force", *_one(name, version, kernel), seconds=MODULE_S, **APART)
        _require_whole(name, version, kernel)


def _require_whole(name: str, version: str, kernel: str) -> None:
    """Check that all files of a module are installed, and can be read to their end.

    Raises:
        Failed: one is missing or has no end, as on a full disk.
    """
    folder = glob.escape(f"{TREE}/{name}/{version}/{kernel}")
    names = {os.path.basename(path) for path in glob.glob(f"{folder}/*/module/*")}
    paths = [os.path.join(LIBRARY, kernel, place, each) for place in DKMS_PLACES for each in sorted(names)]
    there = [path for path in paths if os.path.exists(path)]
    if len(there) < len(names):
        raise Failed(f"dkms install: {LIBRARY}/{kernel} lacks files of {name} {version}; is the disk full?")
    if there:
        run("modinfo", "-F", "vermagic", *there)


def _one(name: str, version: str, kernel: str) -> "list[str]":
    """Return dkms's options for one module and kernel."""
    return ["-m", name, "-v", version, "-k", kernel]


def _file_name(name: str, version: str, kernel: str) -> str:
    """Return the name of a module's archive in the pool: `NAME-VERSION-KERNEL.dkms.tar.gz`."""
    return f"{name}-{version}-{kernel}.dkms.tar.gz"


def _kept(sums: "dict[str, str]", name: str, version: str, kernel: str) -> bool:
    """Return whether a module's archive is in the pool and has the recorded checksum."""
    file = _file_name(name, version, kernel)
    path = os.path.join(POOL, file)
    return os.path.isfile(path) and digest(path) == sums.get(file)
