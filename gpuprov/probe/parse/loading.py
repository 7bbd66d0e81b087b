"""Parsers of modprobe's dry run, and of what decides whether a new kernel gets its module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from gpuprov.probe.parse.modules import module_name
from gpuprov.untrusted import is_kernel_release, lines_of

COMMAND = 80
"""Characters of a command that are reported."""
KERNELS_AT_MOST, DEVICES_AT_MOST = 8, 4
"""Numbers of kernels and of modaliases that the probe requests."""
NAMES_AT_MOST = 64
"""Maximum number of names for a kernel: a kernel with every driver of Debian's has some 20."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of loading: a module's file, or a command of an install line that is not modprobe."""

    kind: Literal["file", "command"]
    what: str
    """Path of the file, or the command."""

    @property
    def module(self) -> str:
        """The name of the file's module in the kernel's spelling; "" for a command."""
        name = self.what.rpartition("/")[2].partition(".ko")[0]
        return module_name(name) if self.kind == "file" else ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Answers of modprobe's dry run for one kernel: name → output."""

    answers: Mapping[str, str]

    def steps(self, name: str) -> list[Step]:
        """Return the steps of loading a name, install lines followed; empty if nothing is loaded."""
        return list(self._steps(name, set()))

    def _steps(self, name: str, asked: set[str]) -> Iterator[Step]:
        """Yield the steps of a name: files that are loaded, and those of the commands in install lines; each
        name once.

        Args:
            asked: names with steps so far, which is extended.
        """
        asked.add(name)
        for line in lines_of(self.answers.get(name, "")):
            verb, _, rest = line.strip().partition(" ")
            if verb == "insmod":
                yield Step("file", rest.split(" ")[0])
            elif verb == "install":
                for command in re.split(r"[;&|]+", rest):
                    yield from self._of_command(command.strip(), asked)

    def _of_command(self, command: str, asked: set[str]) -> Iterator[Step]:
        """Yield the steps of a command of an install line: those of the module that it loads, or itself."""
        program, *words = command.split() or [""]
        names = [word for word in words if word[0] not in "-$" and "=" not in word]
        if program.rpartition("/")[2] == "modprobe" and names:
            yield from self._steps(names[0], asked) if names[0] not in asked else ()
        elif program:
            yield Step("command", command[:COMMAND])

    def options(self, names: Iterable[str]) -> dict[str, str]:
        """Return option → value of the `insmod` and `install` lines for these names, without quotation marks;
        the last value counts.
        """
        lines = (line for name in names for line in lines_of(self.answers.get(name, "")))
        words = (word for line in lines if line.startswith(("insmod ", "install ")) for word in line.split())
        pairs = (word.partition("=") for word in words)
        return {name: value.strip("\"'") for name, equals, value in pairs if equals}


@dataclass(frozen=True, slots=True)
class Loading:
    """Results of modprobe's dry run."""

    kernels: Mapping[str, DryRun]
    devices: tuple[str, ...]
    """Modaliases of NVIDIA's GPUs."""
    absent: frozenset[str]
    """Files that would be loaded and do not exist."""


def parse_loading(raw: Mapping[str, Any]) -> Loading:
    """Parse the probe's outputs of modprobe; a kernel whose name is not a release is left out.

    So is everything in excess of `KERNELS_AT_MOST`, `NAMES_AT_MOST` and `DEVICES_AT_MOST`, as the probe
    requests no more.
    """
    kernels = {
        kernel: DryRun({str(name): str(text) for name, text in islice(answers.items(), NAMES_AT_MOST)})
        for kernel, answers in islice(raw["kernels"].items(), KERNELS_AT_MOST)
        if is_kernel_release(kernel)
    }
    devices = tuple(map(str, raw["devices"][:DEVICES_AT_MOST]))
    return Loading(kernels, devices, frozenset(raw["absent"]))


@dataclass(frozen=True, slots=True)
class Dracut:
    """Kernel modules that dracut's settings keep out of each initramfs, and those that they add → place."""

    omitted: Mapping[str, str]
    added: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NextKernel:
    """State of everything that brings its module to a new kernel."""

    hooks: frozenset[str]
    """Programs that the packages of a kernel and of its headers run, without those that do nothing."""
    grub: frozenset[str]
    """Files of /etc/default/grub.d."""
    bls: bool
    """Whether kernels are added as entries in /boot/loader, by kernel-install and not by grub-mkconfig."""
    dkms: str | None
    off: bool
    """Whether /etc/dkms/no-autoinstall exists."""
    folders: Mapping[str, tuple[str, str]]
    """Setting of DKMS's framework.conf → value and place."""
    autoinstall: Mapping[tuple[str, str], tuple[str, str]]
    """Name and version of NVIDIA's driver in DKMS → value of AUTOINSTALL and its place."""
    dracut: Dracut | None
    """None without dracut."""


def parse_next_kernel(raw: Mapping[str, Any]) -> NextKernel:
    """Parse the probe's values; the last assignment of a setting counts."""
    return NextKernel(
        hooks=frozenset(raw["hooks"]),
        grub=frozenset(raw["grub"]),
        bls=bool(raw.get("bls")),
        dkms=raw["dkms"],
        off=bool(raw["off"]),
        folders={name: (value, place) for place, name, value in raw["folders"]},
        autoinstall={(name, version): (value, place) for name, version, place, value in raw["autoinstall"]},
        dracut=None if raw.get("dracut") is None else parse_dracut(raw["dracut"]),
    )


def parse_dracut(rows: Iterable[Sequence[str]]) -> Dracut:
    """Parse rows of place, name (`omit`, `add`, `force`), "+" or "", and value, in dracut's order.

    A setting without `+` replaces the earlier ones of its name.
    """
    found: dict[str, dict[str, str]] = {"omit": {}, "add": {}, "force": {}}
    for place, name, adds, value in rows:
        if not adds:
            found[name].clear()
        found[name].update((word.replace("-", "_"), place) for word in value.split())
    return Dracut(found["omit"], {**found["add"], **found["force"]})
