"""One build of the driver's modules: what it was made from and for, and the files that came of it."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.model.lock import LockedGroup

MODULE = re.compile(r"nvidia[a-z-]*\.ko(\.gz|\.xz|\.zst)?")
"""How the files are called: `nvidia-current-uvm.ko`, on Ubuntu 24.04 `nvidia-uvm.ko.zst`."""


@dataclass(frozen=True)
class Build:
    """What a build depends on: two nodes that agree in all of it can have the same bytes.

    Attributes:
        driver: the version that the module reports.
        flavour: `open` or `proprietary`.
        source: the package that brings the source, `nvidia-kernel-dkms=535.309.01-0+deb12u1`.
        kernel: the kernel's release.
        arch: as `uname -m` has it.
        compiler: the one that the kernel was compiled with (CONFIG_CC_VERSION_TEXT); DKMS takes the same.
    """

    driver: str
    flavour: str
    source: str
    kernel: str
    arch: str
    compiler: str

    @property
    def folder(self) -> str:
        """A name of its own: what a person looks for, and a digest of all of it."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.driver}-{self.flavour}-{self.arch}-{digest}"

    def __str__(self) -> str:
        return f"module {self.driver} ({self.flavour}) for kernel {self.kernel}"


def build_of(group: LockedGroup, kernel: str, compiler: str) -> Build:
    """The build that nodes of a group need for a kernel."""
    driver = group.components.driver
    source = f"{driver.module_package}={driver.closure[driver.module_package]}"
    return Build(driver.version, driver.module, source, kernel, group.arch, compiler)


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def check(build: Build, files: Mapping[str, bytes]) -> str:
    """Hold files against what they should be by their own word, as modinfo(8) shows it.

    Returns:
        The vermagic, which is the same in all.

    Raises:
        NodeFailed: they are not such a build; says which file and why.
    """
    seen, flavours = set(), set()
    for name, content in files.items():
        if not MODULE.fullmatch(name) or PurePath(name).name != name:
            raise NodeFailed(f"a file {name[:60]!r} among the modules", expected="nvidia….ko")
        told = modinfo(unpacked(name, content))
        version, release = told.get("version"), told.get("vermagic", "").partition(" ")[0]
        if (version, release) != (build.driver, build.kernel):
            raise NodeFailed(f"{name} is of {version} for kernel {release or 'none'}", expected=str(build))
        # Of the proprietary flavour's modules nvidia-uvm is under the GPL, too, and nvidia-drm under MIT.
        if told.get("name") == "nvidia":
            flavours.add("open" if "GPL" in told.get("license", "") else "proprietary")
        seen.add(told["vermagic"])
    if files and flavours != {build.flavour}:
        found = " and ".join(sorted(flavours)) or "not among them"
        raise NodeFailed(f"the module nvidia is {found}", expected=str(build))
    if len(seen) != 1:
        raise NodeFailed(f"{len(files)} modules with {len(seen)} vermagics", expected="one in all")
    return seen.pop()


def modinfo(content: bytes) -> dict[str, str]:
    """The fields that a module states of itself; none where it is no module of a 64-bit machine."""
    try:
        fields = _section(content, b".modinfo").split(b"\0")
    except (struct.error, ValueError):
        return {}
    return dict(each.decode("ascii", "replace").partition("=")[::2] for each in reversed(fields) if each)


def _section(content: bytes, wanted: bytes) -> bytes:
    """A section of an ELF file, by its name; elf(5).

    Raises:
        struct.error, ValueError: it has none.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits, least significant byte first")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<I20xQQ", content, table + size * each) for each in range(count)]
    start = headers[names][1] if names < count else 0
    for name, offset, length in headers:
        if content[start + name : start + name + len(wanted) + 1] == wanted + b"\0":
            return content[offset : offset + length]
    raise ValueError("no such section")


def unpacked(name: str, content: bytes) -> bytes:
    """The module, whatever it is compressed with.

    Raises:
        NodeFailed: it is not, or there is no program for it on this machine.
    """
    try:
        match PurePath(name).suffix:
            case ".gz":
                return gzip.decompress(content)
            case ".xz":
                return lzma.decompress(content)
            case ".zst":
                return _zstd(content, "-d")
    except (OSError, EOFError, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise NodeFailed(f"{name} cannot be unpacked: {error}") from None
    return content


def packed(name: str, content: bytes) -> bytes:
    """The module compressed as its name says, so that the kernel itself could unpack it.

    The kernel's Makefile.modinst compresses in the same way.

    Raises:
        GpuprovError: there is no program for it on this machine.
    """
    match PurePath(name).suffix:
        case ".gz":
            return gzip.compress(content, mtime=0)
        case ".xz":
            window = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
            return lzma.compress(content, check=lzma.CHECK_CRC32, filters=window)
        case ".zst":
            return _zstd(content, "-q")
    return content


def _zstd(content: bytes, *how: str) -> bytes:
    program = shutil.which("zstd")
    if program is None:
        raise GpuprovError("no program zstd on this machine", do="install zstd")
    words = [program, *how, "-c"]
    return subprocess.run(words, input=content, capture_output=True, check=True, timeout=60).stdout
