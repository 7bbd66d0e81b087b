"""Parsers of the operating system and its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.untrusted import compiler_line, is_kernel_release
from gpuprov.untrusted.kept import kept


@dataclass(frozen=True, slots=True)
class Os:
    """Values of os-release(5). `id` and `version` in the distribution's form: `ubuntu`, `24.04`."""

    id: str
    version: str
    name: str
    like: tuple[str, ...]

    @property
    def major(self) -> str:
        """The major version: `24` of `24.04`, `9` of `9.4`."""
        return self.version.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels on disk, and the next one as far as the boot loader's files show."""

    running: str
    installed: tuple[str, ...]
    """Releases with a folder under /lib/modules, oldest first."""
    bootable: tuple[str, ...]
    """Releases with an image in /boot, oldest first."""
    headers: tuple[str, ...]
    """Releases whose /lib/modules/RELEASE/build leads to a tree to compile against."""
    next_boot: str | None
    next_boot_reason: str
    held_back: str | None
    """The next kernel by GRUB_DEFAULT, if grub.cfg boots another; or that gpuprov's program holds back."""
    compilers: Mapping[str, str]
    """Release → its compiler, if the kernel's configuration is available."""
    arguments: Mapping[str, str]
    """Release → words about modules of its command line in grub.cfg, or in its boot entry."""
    boot_entries: bool = False
    """Whether they are in boot entries."""

    @property
    def counting(self) -> tuple[str, ...]:
        """Kernels that need the driver's module: the running one, the next one, and the one held back."""
        found = (self.running, self.next_boot, self.held_back)
        return tuple(dict.fromkeys(name for name in found if name))


@kept(64, 4096)
def parse_os_release(text: str) -> Os:
    """Parse os-release(5); a missing value is an empty string."""
    values = dict(_ASSIGNMENT.findall(text))
    plain = {name: value.strip().strip("\"'") for name, value in values.items()}
    return Os(
        id=plain.get("ID", "").lower(),
        version=plain.get("VERSION_ID", ""),
        name=plain.get("PRETTY_NAME", ""),
        like=tuple(plain.get("ID_LIKE", "").lower().split()),
    )


_ENTRY = 1000
"""Characters of GRUB's entry in which a kernel is searched; an entry has about 150."""
_ASSIGNMENT = re.compile(r"^([A-Z_]+)=(.*)$", re.M)


def in_order(releases: Iterable[str]) -> tuple[str, ...]:
    """Sort kernel releases, oldest first, numbers by value: `6.1.0-9` before `6.1.0-56`."""
    return tuple(sorted(releases, key=_natural))


def _natural(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for a release: its numbers by value, and words before numbers."""
    pieces = re.findall(r"\d+|[A-Za-z]+", release)
    return tuple((1, int(piece), "") if piece.isdecimal() else (0, 0, piece) for piece in pieces)


def parse_kernels(raw: Mapping[str, Any], running: str) -> Kernels:
    """Parse the probe's lists of folders and images, and GRUB's settings; the last setting counts.

    grub.cfg overrides GRUB_DEFAULT, from which it was made. A folder or an image whose name is not a kernel
    release is left out.

    Raises:
        NodeFailed: a kernel's compiler is stated in another form than CONFIG_CC_VERSION_TEXT has.
    """
    bootable = in_order(filter(is_kernel_release, raw["boot"]))
    environment = dict(re.findall(r"^(\w+)=(.*)$", raw["grub_environment"] or "", re.M))
    place, stated = (raw["grub_default"] or [("", None)])[-1]
    made = (raw.get("grub_config") or [stated])[-1]
    following, reason = next_boot(bootable, made, environment)
    meant, _ = next_boot(bootable, stated, environment)
    if raw.get("held_back") in bootable:
        meant = raw["held_back"]
    if stated not in (None, "0"):
        reason += f", where {place} has GRUB_DEFAULT={stated}"
    elif not place and not raw.get("grub_config"):
        reason += "; GRUB is not there, and another boot loader may choose otherwise"
    return Kernels(
        running=running,
        installed=in_order(filter(is_kernel_release, raw["modules"])),
        bootable=bootable,
        headers=in_order(filter(is_kernel_release, raw["headers"])),
        next_boot=following,
        next_boot_reason=reason,
        held_back=meant if following and meant != following else None,
        compilers={
            name: compiler_line(text)
            for name, text in raw.get("compilers", {}).items()
            if text and is_kernel_release(name)
        },
        arguments={
            name: str(words)
            for name, words in raw.get("grub_arguments", {}).items()
            if is_kernel_release(name)
        },
        boot_entries=raw.get("boot_entries") is True,
    )


def next_boot(
    bootable: tuple[str, ...], default: str | None, environment: Mapping[str, str]
) -> tuple[str | None, str]:
    """Return the kernel of the next boot, and the reason; `None` if it is unknown.

    GRUB boots the newest image unless its default or its environment block names another
    (`info grub`, sections "Simple configuration" and "Environment block").
    """
    saved = environment.get("saved_entry") if default in (None, "saved", "${saved_entry}") else default
    chosen = environment.get("next_entry") or saved or "0"
    if not bootable:
        return None, "no kernel image in /boot"
    if chosen == "0":
        return bootable[-1], "the newest image in /boot"
    named = [release for release in bootable if release in chosen[:_ENTRY]]
    if named:
        return max(named, key=len), f"GRUB's entry {chosen!r}"
    return None, f"GRUB's entry {chosen!r} does not name an installed kernel"
