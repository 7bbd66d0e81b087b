"""`host.nvidia_driver`: the driver on disk, in the kernel and in its library."""

from __future__ import annotations

import base64
import re
from functools import cached_property
from itertools import islice
from pathlib import PurePath
from typing import Literal, NamedTuple

from gpuprov.signing.signature import TAIL_BYTES, read_signature
from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed

BLACKLISTS = "grep -lsE '^blacklist (nouveau|nova_core)' /etc/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf"
INITRAMFS = (
    "cd /boot; for image in initrd.img-%s initramfs-%s.img; do [ ! -e $image ] "
    "|| if command -v lsinitramfs >/dev/null; then lsinitramfs $image; else lsinitrd $image; fi || exit; done"
)
DKMS = (
    "kernel=%s; unshare --mount sh -c"
    ' \'mount -t tmpfs gpuprov /tmp && unset TMPDIR && exec dkms status -k "$1"\' sh "$kernel" 2>/dev/null'
    ' || TMPDIR=/run dkms status -k "$kernel"'
)
"""In a full /tmp, which any user can fill, it prints nothing, as without modules."""
FILE_NAMES = ("nvidia", "nvidia-current", "nvidia-current-open")
MODULE_FILES = 'find "$(dirname "$(modinfo -k %s -F filename %s)")" -name \'nvidia*.ko*\''
BLACKLISTS_MAX = 16
"""Maximum number of such files that are compared with an initramfs."""
REBUILT = "find /boot/initrd.img-%s /boot/initramfs-%s.img -newer %s 2>/dev/null"
GRUB = (
    "grep -Hs '^ *GRUB_DEFAULT=' /etc/default/grub /etc/default/grub.d/*.cfg;"
    " grep -hs '^ *set default=' /boot/grub/grub.cfg /boot/grub2/grub.cfg;"
    " grep -hs '_entry=' /boot/grub/grubenv /boot/grub2/grubenv;"
    " sed -n 's/^\\([^ ]*\\) .*/held_back=\\1/p' /var/lib/gpuprov/held-back-kernel 2>/dev/null"
)
INSTALLS_NOTHING = re.compile(r"(?m)^install (\S+) +(?:(?:/usr)?/bin/(?:true|false)|:)(?= |$)")
FOREIGN_FILE = re.compile(r"/(nouveau|nova[-_]core)\.ko")
DKMS_ROW = re.compile(r"nvidia[^/]*/([^,]+),.*?: (\w+)")
ENTRY = 1000
"""Characters of GRUB's entry in which a kernel is searched; an entry has about 150."""
VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
"""A version of the driver in text: `535.309.01`."""


class KernelModule(NamedTuple):
    """A kernel module `nvidia`: its version, and whether it is open or proprietary."""

    version: str
    flavour: Literal["open", "proprietary"]


class Boot(NamedTuple):
    """The kernel of the next boot (None if not known), and the reason for it."""

    release: str | None
    why: str
    held_back: str | None
    """The kernel that GRUB_DEFAULT means, if grub.cfg boots another; or that gpuprov's program holds back."""


class NvidiaDriver(Observed):
    """Observer of the NVIDIA driver of a node.

    >>> host.nvidia_driver.loaded.version
    '535.309.01'
    >>> host.nvidia_driver.on_disk("6.1.0-56-amd64").flavour
    'proprietary'
    """

    @cached_property
    def loaded(self) -> KernelModule | None:
        """The loaded module; None without one."""
        return parse_proc(self.run("cat /proc/driver/nvidia/version").stdout)

    @cached_property
    def kernels(self) -> list[str]:
        """Releases of the running kernel, of the next one, and of one that is held back.

        The running one is first. Each is listed once, and unknown ones are left out.

        Raises:
            NodeFailed: as `ask`.
        """
        running = self.ask("uname -r").strip()
        found = (running, self.boot.release, self.boot.held_back)
        return list(dict.fromkeys(release for release in found if release))

    @cached_property
    def boot(self) -> Boot:
        """GRUB's next kernel: the newest in /boot, unless another is configured; see `booted_next`."""
        images = self.run("ls -1v /boot | grep '^vmlinuz-[0-9]'").stdout.split()
        return booted_next([image.removeprefix("vmlinuz-") for image in images], self.run(GRUB).stdout)

    def label(self, kernel: str) -> str:
        """Return a kernel's release, with a note in parentheses if it boots next or is held back."""
        if kernel == self.boot.held_back:
            return f"{kernel} (held back: {self.boot.release} boots next)"
        if kernel == self.boot.release and kernel != self.kernels[0]:
            return f"{kernel} (boots next: {self.boot.why})"
        return kernel

    def on_disk(self, kernel: str) -> KernelModule | None:
        """Return the module that `modprobe nvidia` loads under `kernel`; None if there is no such module.

        modprobe decides the name: distributions rename the file (Debian: nvidia-current.ko) and refer to it
        by an install line. If it loads none, which is another check, the file is found by its name.
        """
        name = self._file_name(kernel)
        return parse_modinfo(self.run("modinfo -k %s %s", kernel, name).stdout) if name else None

    def _file_name(self, kernel: str) -> str | None:
        """Return the name of the file that modprobe loads under a kernel, else of the first one there.

        None if there is no such file.
        """
        loaded: str | None = self._host.module_loading.loaded_as(kernel)
        there = (name for name in FILE_NAMES if self.run("modinfo -k %s %s", kernel, name).succeeded)
        return loaded or next(there, None)

    def signatures(self, kernel: str) -> dict[str, str]:
        """Return path → signature of each file of the driver's modules for a kernel; `unsigned` without one.

        A signature is issuer and serial number of the certificate, parsed from the file itself without kmod.
        Empty if the kernel has no module.

        Raises:
            NodeFailed: a file cannot be read or unpacked.
        """
        name = self._file_name(kernel)
        found = self.ask(MODULE_FILES, kernel, name).split() if name else []
        return {path: self._signature(path) for path in found}

    def _signature(self, path: str) -> str:
        """Return the signature of a module's file, which may be compressed, as text; raises as `ask`."""
        unpack = {".xz": "xz -dc", ".zst": "zstd -dqc", ".gz": "gzip -dc"}.get(PurePath(path).suffix, "cat")
        tail = self.ask(f"{unpack} %s | tail -c {TAIL_BYTES} | base64 -w0", path)
        return str(read_signature(base64.b64decode(tail)) or "unsigned")

    @cached_property
    def library_version(self) -> str | None:
        """Version of the libnvidia-ml that a program loads, from the target of its link.

        None without a library, or if the cache of ld.so names one that does not exist.
        """
        path = parse_ldconfig(self.run("ldconfig -p").stdout, "libnvidia-ml.so.1")
        if not path:
            return None
        _, _, version = self.run("realpath %s", path).stdout.strip().partition("libnvidia-ml.so.")
        return version or None

    @cached_property
    def reported_version(self) -> str | None:
        """The version that `nvidia-smi` reports; None if it cannot reach the driver.

        Several different versions are joined by commas.
        """
        versions = sorted({gpu.driver_version for gpu in self._host.gpu.in_driver})
        return ", ".join(versions) or None

    @cached_property
    def blacklisted(self) -> set[str]:
        """Modules that modprobe's effective configuration does not load for their devices.

        They are blacklisted, or have an install line that runs nothing.

        Raises:
            NodeFailed: modprobe fails.
        """
        shown = self.ask("modprobe --showconfig")
        return {*re.findall(r"(?m)^blacklist (\S+)", shown), *INSTALLS_NOTHING.findall(shown)}

    def foreign_in_initramfs(self, kernel: str) -> list[str]:
        """Return modules (`nouveau`, `nova_core`) in the kernel's initramfs that would claim the GPU.

        Empty if it has the blacklist. initramfs-tools copies all of /etc/modprobe.d, so its image contains
        a blacklist that is older than the image. Listing an image takes seconds, and is only done if it is
        older, or if dracut can have made it.

        Raises:
            NodeFailed: it cannot be listed.
        """
        listed = filter(None, lines_of(self.run(BLACKLISTS).stdout))
        blacklists = list(islice(listed, BLACKLISTS_MAX))
        by_dracut = self.run("command -v dracut").succeeded
        if not by_dracut and any(self.run(REBUILT, kernel, kernel, path).stdout for path in blacklists):
            return []
        return foreign_modules(self.ask(INITRAMFS, kernel, kernel), blacklists)

    def package_version(self, package: str) -> str | None:
        """Return the upstream version of an installed package: `535.309.01-1~deb12u1` is 535.309.01.

        None if not installed.
        """
        found = self._host.package(package)
        return upstream(found.version) if found.is_installed else None

    def dkms_state(self, kernel: str) -> dict[str, str]:
        """Return DKMS states by module version for one kernel: {'535.309.01': 'installed'}.

        Empty without DKMS.
        """
        return parse_dkms(self.run(DKMS, kernel).stdout)

    def __repr__(self) -> str:
        return "<nvidia_driver>"


def booted_next(releases: list[str], grub: str) -> Boot:
    """Return the next kernel of those in /boot, given oldest first.

    The entry of grub.cfg counts, else GRUB_DEFAULT; without an entry the newest kernel boots.

    Args:
        releases: releases of the kernels in /boot.
        grub: lines of GRUB_DEFAULT with their file, of grub.cfg's default, of the environment block, and of
            gpuprov's record for boot entries (`held_back`); the last of each counts.
    """
    result, place = {}, ""
    for line in grub.splitlines():
        name, _, value = line.strip().partition("=")
        file, _, name = name.rpartition(":")
        place = file or place
        result[name.strip()] = value.strip("\"' ")
    stated = result.get("GRUB_DEFAULT", "saved")
    entry = result.get("set default", stated)
    release, meant = (_named(releases, result, each) for each in (entry, stated))
    why = f"{place} has GRUB_DEFAULT={stated}" if place and stated != "0" else "the newest"
    meant = result["held_back"] if result.get("held_back") in releases else meant
    return Boot(release, why, meant if release and meant != release else None)


def _named(releases: list[str], result: dict[str, str], default: str) -> str | None:
    """Return the kernel of a default entry: the newest for `0` or no entry; None if the entry names none.

    The environment block's `next_entry` takes precedence; `saved` means its `saved_entry`.

    Args:
        releases: kernels in /boot, the oldest first; the longest that the entry contains is returned.
        result: variables of GRUB's files and environment block.
    """
    saved = result.get("saved_entry") if default in ("saved", "${saved_entry}") else default
    entry = result.get("next_entry") or saved
    if entry in (None, "", "0"):
        return releases[-1] if releases else None
    return max((release for release in releases if release in entry[:ENTRY]), key=len, default=None)


def parse_proc(text: str) -> KernelModule | None:
    """Parse the line `NVRM version:` of /proc/driver/nvidia/version; None without a version."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    version = VERSION.search(line)
    if not version:
        return None
    return KernelModule(version[1], "open" if "Open Kernel Module" in line else "proprietary")


def parse_ldconfig(text: str, library: str) -> str | None:
    """Parse `ldconfig -p`: the path of the first entry for a library such as `libnvidia-ml.so.1`, or None."""
    for line in lines_of(text):
        _, named, rest = line.partition(f"{library} ")
        words = rest.rpartition("=> ")[2].split() if named and "=> " in rest else []
        if words:
            return words[0]
    return None


def parse_modinfo(text: str) -> KernelModule | None:
    """Parse `modinfo`: NVIDIA's open modules are licensed `Dual MIT/GPL`, the proprietary ones `NVIDIA`.

    None without a version.
    """
    fields = dict(re.findall(r"^(\w+): +(.*)$", text, re.MULTILINE))
    if "version" not in fields:
        return None
    return KernelModule(fields["version"], "open" if "MIT" in fields.get("license", "") else "proprietary")


def parse_dkms(text: str) -> dict[str, str]:
    """Parse the output of `dkms status`: version of an nvidia module → state.

    Lines are such as `nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed (…)`; other modules are
    ignored.
    """
    return {row[1]: row[2] for row in map(DKMS_ROW.match, lines_of(text)) if row}


def foreign_modules(listing: str, blacklists: list[str]) -> list[str]:
    """Return `nouveau` and `nova_core` if they are in an initramfs's listing, sorted.

    Empty if the listing contains one of `blacklists`, paths of files that blacklist them.

    Args:
        listing: of lsinitramfs (a path in each line), or of lsinitrd (with the columns of `ls -l`).
    """
    rows = [line.split(None, 8) if line.startswith("-") else [line] for line in listing.splitlines()]
    inside = {row[-1] for row in rows if row}
    if any(path.lstrip("/") in inside for path in blacklists):
        return []
    return sorted({name.replace("-", "_") for name in FOREIGN_FILE.findall(listing)})


def upstream(version: str) -> str:
    """Return a package's version without epoch and revision: `1:535.309.01-1` is 535.309.01."""
    _, _, after_epoch = version.rpartition(":")
    return after_epoch.rpartition("-")[0] or after_epoch
