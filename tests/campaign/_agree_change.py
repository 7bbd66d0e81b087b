"""Changes of a node: their parts, and functions that make the common ones."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from gpuprov.roles import UNITS
from tests.campaign._agree_node import Place

Effect = Literal["breaks", "unknown", "benign"]


@dataclass(frozen=True)
class Change:
    """One change, drawn for one node.

    Attributes:
        kind: row of the table.
        name: description with its place.
        do: shell commands; `$K` is the node's kernel.
        touches: paths that are restored afterwards: files, or folders with their content.
        then: shell commands that put changed files into effect, after the change and after its reversal.
        undo: shell commands that revert what no file shows, once the files are restored.
        checks: checks; both witnesses must report one of them, or beginnings of their ids (`ssh.`).
        effect: `breaks` contradicts a promise, which both must report; neither may report a `benign` one;
            of an `unknown` one both must report the same.
    """

    kind: str
    name: str
    do: str
    touches: tuple[str, ...] = ()
    then: str = ""
    undo: str = ""
    checks: tuple[str, ...] = ()
    effect: Effect = "breaks"

    def explains(self, check: str) -> bool:
        """Return whether the change is expected to contradict a check."""
        return any(check == each or (each.endswith(".") and check.startswith(each)) for each in self.checks)

    def clashes(self, other: Change) -> bool:
        """Return whether two changes cannot be made together: one kind, or one path within another's."""
        ours, theirs = self.touches, other.touches
        pairs = [(f"{one}/", f"{two}/") for one in ours for two in theirs]
        within = any(one.startswith(two) or two.startswith(one) for one, two in pairs)
        return self.kind == other.kind or within


Draw = Callable[[Random, Place], Change | None]
"""Function that draws a change of one kind; None if this node has no place for it."""

RELOAD = "systemctl daemon-reload"
SSH_AGAIN = "systemctl reload ssh; sleep 0.3"
"""Commands after which sshd has read its files, and listens again: it closes its sockets in between."""
REEXEC = "systemctl daemon-reexec"


def put(path: str, text: str, *, first: bool = False) -> str:
    """Return the commands that add lines to a file, at its end or `first`, and create the file."""
    where, line = shlex.quote(path), shlex.quote(text)
    make = f"mkdir -p $(dirname {where}); touch {where}"
    if first:
        return f"{make}; kept=$(cat {where}; echo x); printf '%s\\n%s' {line} \"${{kept%x}}\" >{where}"
    end = f'[ -z "$(tail -c1 {where})" ] || echo >>{where}'  # the last line may have no end
    return f"{make}; {end}; printf '%s\\n' {line} >>{where}"


def added(
    kind: str,
    path: str,
    text: str,
    *checks: str,
    then: str = "",
    first: bool = False,
    effect: Effect = "breaks",
) -> Change:
    """Return the change that adds lines to a file, with all of them in its name."""
    name = f"{'; '.join(map(str.strip, text.splitlines()))} in {path}"
    return Change(kind, name, put(path, text, first=first), (path,), then, checks=checks, effect=effect)


def replaced(path: str, how: str) -> str:
    """Return commands that put another file in place of one, by a filter from stdin to stdout.

    The old file is not written to: a program that runs from it continues.
    """
    where = shlex.quote(path)
    return f"cp -p {where} {where}.agree; {how} <{where} >{where}.agree; mv {where}.agree {where}"


def unit_files(place: Place, unit: str) -> tuple[str, ...]:
    """Return the paths below /etc/systemd/system that decide whether and how a unit starts.

    A link of `*.wants` leads nowhere on this machine, so glob would not find it.
    """
    base = "/etc/systemd/system"
    links = (f"{base}/{folder.name}/{unit}" for folder in place.at(base).glob("*.*"))
    return (f"{base}/{unit}", f"{base}/{unit}.d", *sorted(filter(place.has, links)))


def locked_packages(place: Place) -> list[str]:
    """Return the packages of the lock."""
    return sorted({name for _, each in place.group.components.each() for name in each.closure})


def locked_units(place: Place) -> dict[str, str]:
    """Return check → unit, for the units of the lock that the node has."""
    folders = ("/etc/systemd/system", "/lib/systemd/system")
    has = {unit for unit in UNITS.values() if any(place.has(f"{folder}/{unit}") for folder in folders)}
    return {check: unit for check, unit in UNITS.items() if unit in has}
