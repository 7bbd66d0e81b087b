"""What systemd says of units, and of the limits that it gives to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """Properties of `systemctl show`, in systemd's own words."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    file_state: str
    result: str
    fragment: str
    drop_ins: tuple[str, ...]
    exec_start: tuple[str, ...]
    """Command lines of ExecStart, one an entry."""
    commanded_by: str | None = None
    """`path:line` that says what is started, where that is not gpuprov's word."""

    @property
    def exists(self) -> bool:
        """Whether systemd knows a file for it."""
        return self.load_state not in ("not-found", "")

    @property
    def active(self) -> bool:
        """Running, or a oneshot that stays after it ended well."""
        return self.active_state in ("active", "reloading")

    @property
    def starting(self) -> bool:
        """On its way up for the first time; one that systemd starts again after a failure is not."""
        return self.active_state == "activating" and self.sub_state != "auto-restart"

    @property
    def enabled(self) -> bool:
        """Starts at boot by itself; a static unit is started by another, a link in /run is gone by then."""
        return self.file_state == "enabled"


def parse_units(text: str, commands: Mapping[str, list[str]] | None = None) -> Mapping[str, Unit]:
    """Blocks of `systemctl show`, an empty line between, by the unit's Id.

    Args:
        commands: file → its places that say what is started; empty ones in a file of gpuprov's.
    """
    units: dict[str, Unit] = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        values: dict[str, list[str]] = {}
        for line in block.splitlines():
            name, equals, value = line.partition("=")
            if equals:
                values.setdefault(name, []).append(value)
        if values.get("Id"):
            unit = _unit(values, commands or {})
            units[unit.name] = unit
            units.update(dict.fromkeys(_one(values, "Names").split(), unit))
    return units


def parse_properties(text: str) -> Mapping[str, str]:
    """`Name=value` lines, such as systemd's own DefaultLimit… properties."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def _unit(values: Mapping[str, list[str]], commands: Mapping[str, list[str]]) -> Unit:
    files = [_one(values, "FragmentPath"), *_one(values, "DropInPaths").split()]
    places = [place for path in files for place in commands.get(path, ())]
    return Unit(
        name=_one(values, "Id"),
        load_state=_one(values, "LoadState"),
        active_state=_one(values, "ActiveState"),
        sub_state=_one(values, "SubState"),
        file_state=_one(values, "UnitFileState"),
        result=_one(values, "Result"),
        fragment=_one(values, "FragmentPath"),
        drop_ins=tuple(_one(values, "DropInPaths").split()),
        exec_start=tuple(_commands(values.get("ExecStart", []))),
        commanded_by=(places[-1] or None) if places else None,
    )


def _one(values: Mapping[str, list[str]], name: str) -> str:
    return values.get(name, [""])[0]


def _commands(values: list[str]) -> Iterator[str]:
    """`{ path=/usr/bin/x ; argv[]=/usr/bin/x --flag ; ignore_errors=no ; … }` → `/usr/bin/x --flag`."""
    for value in values:
        yield from re.findall(r"argv\[\]=(.*?) ; ignore_errors=", value)
