"""Parsers of systemd's units and of their default limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuprov.untrusted import lines_of, unit_name


@dataclass(frozen=True, slots=True)
class Unit:
    """Properties of `systemctl show`, in systemd's terms."""

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
    """`path:line` that sets the command, if that is not gpuprov's."""
    replaced_by: str | None = None
    """The file in place of the package's or gpuprov's unit, also if systemd has not read it yet."""
    programs: tuple[str, ...] = ()
    """Programs that the unit's own file starts, without its drop-ins."""
    unmet: str | None = None
    """`path:line` of conditions that keep it from starting."""

    @property
    def exists(self) -> bool:
        """Whether systemd has a file for it; by a load state other than `not-found`."""
        return self.load_state not in ("not-found", "")

    @property
    def active(self) -> bool:
        """Whether it runs, or is a oneshot that stays active after success."""
        return self.active_state in ("active", "reloading")

    @property
    def starting(self) -> bool:
        """Whether it starts for the first time; false for a restart after a failure."""
        return self.active_state == "activating" and self.sub_state != "auto-restart"

    @property
    def other_program(self) -> bool:
        """Whether a file in /etc or /run lets it start another program than the unit's own file does."""
        words = {word for command in self.exec_start for word in command.split()}
        theirs = (self.commanded_by or "").startswith(("/etc/", "/run/"))
        return theirs and bool(self.programs) and words.isdisjoint(self.programs)

    @property
    def enabled(self) -> bool:
        """Whether it starts at boot by itself.

        False for a static unit, and for a link in /run, which a boot removes.
        """
        return self.file_state == "enabled"


def parse_units(
    text: str,
    commands: Mapping[str, list[str]] | None = None,
    states: str = "",
    replaced: Mapping[str, str] | None = None,
    gone: Iterable[str] = (),
    programs: Mapping[str, list[str]] | None = None,
    unmet: Mapping[str, str | None] | None = None,
) -> Mapping[str, Unit]:
    """Parse blocks of `systemctl show`, separated by empty lines, by the unit's Id and its other names.

    Args:
        commands: file → its places that set the command; empty ones in a file of gpuprov's.
        states: lines of `systemctl list-unit-files`: a unit and its state by the files, which counts at boot.
        replaced: unit → the file in place of its own one.
        gone: units without a file, which do not exist from the next boot on.
        programs: file → the programs that it starts.
        unmet: file → the place of its conditions if they fail.
    """
    units: dict[str, Unit] = {}
    values: dict[str, list[str]] = {}
    for line in (*lines_of(text), ""):
        name, equals, value = line.partition("=")
        if equals:
            values.setdefault(name, []).append(value)
        if line.strip():
            continue
        if values.get("Id"):
            unit = _unit(values, commands or {}, programs or {}, unmet or {})
            units[unit.name] = unit
            units.update(dict.fromkeys(_one(values, "Names").split(), unit))
        values = {}
    for row in map(str.split, lines_of(states)):
        if len(row) > 1 and row[0] in units:
            units[row[0]] = replace(units[row[0]], file_state=row[1])
    for name, path in (replaced or {}).items():
        if name in units:
            units[name] = replace(units[name], replaced_by=str(path))
    for name in filter(units.__contains__, gone):
        units[name] = replace(units[name], load_state="not-found")
    return units


def parse_properties(text: str) -> Mapping[str, str]:
    """Parse `Name=value` lines, such as systemd's own DefaultLimit… properties."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def _unit(
    values: Mapping[str, list[str]],
    commands: Mapping[str, list[str]],
    programs: Mapping[str, list[str]],
    unmet: Mapping[str, str | None],
) -> Unit:
    """Return the unit in one block; `commanded_by` is the last place that sets its command, from
    `commands`.
    """
    files = [_one(values, "FragmentPath"), *_one(values, "DropInPaths").split()]
    last = next((places for path in reversed(files) if (places := commands.get(path))), None)
    return Unit(
        name=unit_name(_one(values, "Id")),
        load_state=_one(values, "LoadState"),
        active_state=_one(values, "ActiveState"),
        sub_state=_one(values, "SubState"),
        file_state=_one(values, "UnitFileState"),
        result=_one(values, "Result"),
        fragment=_one(values, "FragmentPath"),
        drop_ins=tuple(_one(values, "DropInPaths").split()),
        exec_start=tuple(_commands(values.get("ExecStart", []))),
        commanded_by=(last[-1] or None) if last else None,
        programs=tuple(programs.get(files[0], ())),
        unmet=next((str(place) for path in files if (place := unmet.get(path))), None),
    )


def _one(values: Mapping[str, list[str]], name: str) -> str:
    """Return the first value of a property; empty without one."""
    return values.get(name, [""])[0]


def _commands(values: list[str]) -> Iterator[str]:
    """Yield command lines: `{ path=/usr/bin/x ; argv[]=/usr/bin/x --flag ; ignore_errors=no ; … }` →
    `/usr/bin/x --flag`.
    """
    for value in values:
        for piece in value.split(" ; ignore_errors=")[:-1]:
            _, there, command = piece.partition("argv[]=")
            if there:
                yield command
