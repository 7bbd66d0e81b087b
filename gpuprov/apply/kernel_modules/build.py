"""A build of the driver's modules: its builders, source and kernel, and its files."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuprov.apply.kernel_modules.packing import LIMIT, decompressed, suffix_of, unpack
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.signing.signature import without_signature
from gpuprov.untrusted import Vermagic, compiler_line, kernel_release, shown, vermagic

MODULE = re.compile(r"nvidia[a-z-]{0,40}\.ko(\.gz|\.xz|\.zst)?")
"""Names of the files: `nvidia-current-uvm.ko`, on Ubuntu 24.04 `nvidia-uvm.ko.zst`."""
MODINFO_BYTES = 1 << 20
"""Maximum size of a section .modinfo; NVIDIA's have less than 10 kB."""


@dataclass(frozen=True)
class Build:
    """Everything that a build depends on: nodes with the same values can use the same bytes.

    Attributes:
        builders: hosts of the fleet that compiled it, or `image`, sorted. Only groups whose lock trusts these
            builders use the build.
        driver: the version that the module reports.
        flavour: `open` or `proprietary`.
        source: the package that contains the source, `nvidia-kernel-dkms=535.309.01-0+deb12u1`.
        kernel: the kernel's release.
        arch: the architecture as `uname -m` prints it.
        compiler: the compiler of the kernel (CONFIG_CC_VERSION_TEXT); DKMS uses the same.
    """

    driver: str
    flavour: str
    source: str
    kernel: str
    arch: str
    compiler: str
    builders: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Unique name: driver, flavour and architecture, and 12 digits of a digest of all values."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.driver}-{self.flavour}-{self.arch}-{digest}"

    def __str__(self) -> str:
        return f"module {self.driver} ({self.flavour}) for kernel {self.kernel}"


def build_of(group: LockedGroup, kernel: str, compiler: str) -> Build:
    """Return the build that nodes of a group need for a kernel.

    Args:
        kernel, compiler: names that a node reports; the compiler is empty if the node does not know it.

    Raises:
        NodeFailed: the name of the kernel or of the compiler is invalid.
    """
    driver = group.components.driver
    source = f"{driver.module_package}={driver.closure[driver.module_package]}"
    release = kernel_release(kernel)
    made_with = compiler_line(compiler) if compiler else ""
    return Build(
        driver.version, driver.module, source, release, group.arch, made_with, tuple(sorted(driver.builders))
    )


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def bare(packed: bytes) -> dict[str, bytes]:
    """Return name → module as it was compiled: decompressed, and without a signature.

    A name keeps the suffix of its compression: `nvidia-uvm.ko.zst`. DKMS signs with a different key on each
    node; without a signature, equal sources and compilers give equal bytes.

    Raises:
        NodeFailed: it is not such an archive, has files with other names, or more bytes than `LIMIT`, or
            this machine has no program for the compression.
    """
    room, modules = LIMIT, {}
    for name, content in unpack(packed).items():
        if not MODULE.fullmatch(name):
            raise NodeFailed(f"a file {shown(name)} among the modules", expected="nvidia….ko")
        plain = decompressed(name, suffix_of(name), content, room)
        room -= len(plain)
        modules[name] = without_signature(plain)
    return modules


def check(build: Build, modules: Mapping[str, bytes]) -> Vermagic:
    """Check version and kernel in the metadata of modules, and the flavour of `nvidia`, which must be there.

    Architecture, source and compiler are not in the metadata.

    Args:
        modules: modules that `bare` returned.

    Returns:
        The vermagic, which is the same in all.

    Raises:
        NodeFailed: they are not of that build, or there are none.
    """
    seen, flavours = set(), set()
    for name, content in modules.items():
        stated = modinfo(content)
        version, release = stated.get("version"), stated.get("vermagic", "").partition(" ")[0]
        if (version, release) != (build.driver, build.kernel):
            what = f"{name} is of {shown(version)} for kernel {shown(release or 'none')}"
            raise NodeFailed(what, expected=str(build))
        seen.add(vermagic(stated["vermagic"]))
        # In the proprietary flavour nvidia-uvm is under the GPL, too, and nvidia-drm is under MIT.
        if stated.get("name") == "nvidia":
            flavours.add("open" if "GPL" in stated.get("license", "") else "proprietary")
    if modules and flavours != {build.flavour}:
        found = " and ".join(sorted(flavours)) or "missing"
        raise NodeFailed(f"the module nvidia is {found}", expected=str(build))
    if len(seen) != 1:
        raise NodeFailed(
            f"{len(modules)} modules with {len(seen)} vermagics", expected="one vermagic for all modules"
        )
    return seen.pop()


def agreed(build: Build, made: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the modules of a build, as `bare` does, provided that those of all builders are equal.

    Args:
        made: builder → the archive that it made, for exactly the builders of the build.

    Raises:
        NodeFailed: they are not of that build, are by other builders, or differ, or as `bare`.
    """
    if set(made) != set(build.builders):
        by = fold(made) or "no builder"
        raise NodeFailed(f"the {build} by {by}", expected=f"by {fold(build.builders)}, which the lock trusts")
    (first, archive), *others = sorted(made.items())
    modules = bare(archive)
    check(build, modules)
    sums = {name: digest(content) for name, content in modules.items()}
    for builder, archive in others:
        other = {name: digest(content) for name, content in bare(archive).items()}
        if other != sums:
            differing = sorted(name for name in sums | other if sums.get(name) != other.get(name))
            raise NodeFailed(
                f"{first} and {builder} built different modules, signatures aside: {', '.join(differing)}",
                expected="the same bytes of the same source, kernel and compiler",
                do="compare packages, kernel headers and compilers of both; docs/guides/modules.md",
            )
    return modules


def modinfo(content: bytes) -> dict[str, str]:
    """Return field → value of a module's metadata; {} if it is not a module for a 64-bit machine.

    If a field occurs several times, its first value counts.
    """
    try:
        fields = _section(content, b".modinfo").split(b"\0")
    except (struct.error, ValueError, OverflowError):
        return {}
    return dict(each.decode("ascii", "replace").partition("=")[::2] for each in reversed(fields) if each)


def _section(content: bytes, wanted: bytes) -> bytes:
    """Return a section of an ELF file by its name, see elf(5).

    Raises:
        struct.error, ValueError, OverflowError: there is no such section, it is too long, or the file is
            malformed.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits, least significant byte first")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<I20xQQ", content, table + size * each) for each in range(count)]
    start = headers[names][1] if names < count else 0
    for name, offset, length in headers:
        if content[start + name : start + name + len(wanted) + 1] == wanted + b"\0":
            if length > MODINFO_BYTES:
                raise ValueError("a section that is too long")
            return content[offset : offset + length]
    raise ValueError("no such section")
