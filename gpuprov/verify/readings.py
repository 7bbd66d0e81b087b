"""Readings that checks of several roles share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuprov.errors import NodeFailed
from gpuprov.roles.overruling import APPLIED_BY, UNMET
from gpuprov.untrusted import lines_of

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


WHO = {"0": "everybody", "1": "root", None: "root"}
"""Value of the driver's parameter about counters → users who may read them; None: it is not set."""
ENABLED = "SYSTEMCTL_SKIP_SYSV=1 systemctl is-enabled %s"
NO_FILE = "No such file"
"""Message of `systemctl is-enabled` about a unit without a file."""
CONDITION = "systemd-analyze condition"
CONDITIONS = re.compile(r"(?m)^[ \t]*((?:Condition|Assert)\w+[ \t]*=.*)$")
REPLACED = "systemd-delta --no-pager --diff=no --type=overridden,redirected systemd/system"


def unit_state(host: Node, unit: str) -> str:
    """Return `enabled` if a unit starts at boot and is active; otherwise what is wrong, in drift's terms;
    raises as `boot_state`.

    The latter are those of `boot_state`, and `enabled, but inactive` with systemd's ActiveState.
    """
    if (state := boot_state(host, unit)) != "enabled":
        return state
    seen = host.service(unit).systemd_properties
    active, starts = seen.get("ActiveState"), seen.get("SubState") != "auto-restart"
    runs = active in ("active", "reloading") or (active == "activating" and starts)
    return "enabled" if runs else f"enabled, but {active}"


def not_applied(host: Node, check: str) -> str | None:
    """Return `UNIT is STATE` of a unit of systemd that does not apply a check's settings at boot, or None;
    raises as `boot_state`.
    """
    states = ((unit, boot_state(host, unit, static=True)) for unit in APPLIED_BY[check])
    return next((f"{unit} is {state}" for unit, state in states if state != "enabled"), None)


def boot_state(host: Node, unit: str, *, static: bool = False) -> str:
    """Return `enabled` if a unit starts at boot, from the unit file of its package or of gpuprov.

    Otherwise it returns what is wrong, in drift's terms.

    The next boot uses the files, which systemd need not have read: `systemctl is-enabled` reads them. A
    script in /etc/init.d is no unit of the package.

    Args:
        static: whether a unit that cannot be enabled starts, as those of systemd do.

    Raises:
        NodeFailed: the node cannot tell which unit files are replaced.
    """
    seen, files = host.service(unit).systemd_properties, host.run(ENABLED, unit)
    stated = files.stdout.strip() or seen.get("UnitFileState") or seen.get("LoadState", "unknown")
    words = {"not-found": "not installed", "generated": "not installed", "loaded": "disabled"}
    enabled = "not installed" if NO_FILE in files.stderr else words.get(stated, stated)
    if enabled != "enabled" and not (static and enabled == "static"):
        return str(enabled)
    if _replaced(host, unit):
        return "enabled, by another unit file"
    return _hindered(host, unit) or "enabled"


def _hindered(host: Node, unit: str) -> str:
    """Return the state of an enabled unit that starts another program, or nothing; empty without a fault."""
    if command_of(host, unit).other_program:
        return "enabled, with another command"
    return UNMET if unmet(host, unit) else ""


def unmet(host: Node, unit: str) -> bool:
    """Return whether systemd finds that the conditions in one of a unit's files fail.

    Those of a package that ask about the present state, such as a loaded driver, do not count, nor those of
    which one has to hold, nor those that systemd ignores, or cannot check before 250.

    Raises:
        NodeFailed: systemd cannot check them, as it makes a folder in /tmp first, which a user can fill.
    """
    for each in command_of(host, unit).files:
        place, _, text = each.partition("\n")
        lines = CONDITIONS.findall(text)
        if not re.match(r"# /(?:etc|run)/", place):
            lines = [line for line in lines if "/etc/" in line and not re.search(r"=\s*\|", line)]
        answer = host.run(CONDITION + " %s" * len(lines), *lines) if lines else None
        if answer is None or answer.succeeded:
            continue
        if re.search(r"(?m)^(?:Conditions|Asserts) failed\.$", answer.stderr):
            return True
        if not re.search(r"(?m)^(?:Unknown|Cannot parse) ", answer.stderr):
            raise NodeFailed(f"{place.removeprefix('# ')}: {answer.stderr[:200].strip()}")
    return False


def sshd_at_boot(host: Node) -> str:
    """Return `enabled` if a unit starts sshd at boot, otherwise the states of its units."""
    units = host.sshd.units.items()
    states = {name: (state == "enabled" and _hindered(host, name)) or state for name, state in units}
    if "enabled" in states.values():
        return "enabled"
    return ", ".join(f"{name} is {state}" for name, state in states.items()) or "not installed"


class Command(NamedTuple):
    """The command of a unit: command lines, whether a file in /etc or /run that gpuprov did not write sets
    them, and the files of the unit.
    """

    lines: list[str]
    theirs: bool
    files: list[str]
    """Path and text of each, the unit's own first; the others are its drop-ins."""

    @property
    def other_program(self) -> bool:
        """Whether a file of the site lets the unit start another program than its own file does."""
        own = {line.lstrip("@-:+!|").partition(" ")[0] for line in _starts(self.files[0])} - {""}
        words = {word.strip("\"'") for line in self.lines for word in line.lstrip("@-:+!|").split()}
        return self.theirs and bool(own) and words.isdisjoint(own)


def command_of(host: Node, unit: str) -> Command:
    """Return the command of a unit, as its files on the disk set it."""
    files = re.split(r"(?m)^(?=# /)", host.run("systemctl cat %s", unit).stdout)
    setter, lines = "", list[str]()
    for each in files:
        for value in _starts(each):
            setter = each
            if value:
                lines.append(value)
            else:
                lines.clear()
    theirs = re.match(r"# /(?:etc|run)/", setter) and "# Written by gpuprov" not in setter
    return Command(lines, bool(theirs), [each for each in files if each.startswith("# /")] or [""])


def _starts(text: str) -> list[str]:
    """Return the values of ExecStart in a unit's file, without spaces around them."""
    return [each.strip() for each in re.findall(r"(?m)^[ \t]*ExecStart[ \t]*=(.*)$", text)]


def stays_off(state: str, expected: str) -> str:
    """Return `disabled` for a masked unit that has to be disabled; other states unchanged."""
    return expected if expected == "disabled" and state.startswith("masked") else state


def _replaced(host: Node, unit: str) -> bool:
    """Return whether a file that gpuprov did not write hides the unit's own.

    Raises:
        NodeFailed: the node cannot tell.
    """
    answer = host.run(REPLACED)
    if answer.failed:
        raise NodeFailed(f"`{REPLACED}` ended with status {answer.rc}: {answer.stderr[:200].strip()}")
    rows = (line.split() for line in lines_of(answer.stdout) if line.startswith(("[OVERR", "[REDIR")))
    paths = [row[1] for row in rows if len(row) > 1 and row[1].rpartition("/")[2] == unit]
    return any(host.run("grep -qs '# Written by gpuprov' %s", path).failed for path in paths)


def own_unit_state(host: Node, unit: str, command: str | None = None) -> str:
    """Return the state of a unit whose command gpuprov sets; a file of the package may also set it; raises as
    `unit_state`.

    That is `unit_state`, or `enabled, with another command` or `enabled, changed by a drop-in`.

    Args:
        command: the only command line that it may have, without any drop-in, if that is stated.
    """
    state, seen = unit_state(host, unit), command_of(host, unit)
    if state != "enabled":
        return state
    if seen.theirs or (command is not None and seen.lines != [command]):
        return "enabled, with another command"
    changed = command is not None and any(f"/{unit}.d/" in each.partition("\n")[0] for each in seen.files)
    return "enabled, changed by a drop-in" if changed else state


def readers(shown: str) -> str:
    """Return the users whom options of NVIDIA's module let read counters.

    The last value of a module counts; different values of several modules are joined by `and`.

    Args:
        shown: lines of `modprobe --showconfig`.
    """
    lines = re.findall(r"(?m)^options (nvidia(?:[-_]current\w*)?) (.*)$", shown)
    found = [(module, value) for module, text in lines for value in re.findall(r"AdminUsers=(\S+)", text)]
    values = set(dict(found).values())
    return " and ".join(sorted({WHO.get(value, "not known") for value in values or {None}}))


def reads_elsewhere(host: Node, unit: str, path: str) -> bool:
    """Return whether a daemon is started with another configuration file than `path`.

    False if its command names no file by `-c`, `--config` or `--config-file`.
    """
    command = host.run("systemctl show --property=ExecStart --value %s", unit).stdout
    named = re.search(r"\s(?:-c|--config|--config-file)[= ](\S+)", command)
    return bool(named and named[1] != path)


def part_of(document: Any, wanted: Any) -> Any:
    """Return the parts of a document that `wanted` contains; other keys and items are the site's own.

    Mappings keep the keys of `wanted`, with None for a missing one; lists keep the items that are in
    `wanted`, each once, and those that state an option of it again: `native.cgroupdriver=cgroupfs`. Other
    values, and those of another type than in `wanted`, are returned unchanged.
    """
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: part_of(document.get(key), value) for key, value in wanted.items()}
    if isinstance(document, list) and isinstance(wanted, list):
        stated = [str(item).split("=")[0] + "=" for item in wanted if "=" in str(item)]
        kept = [item for item in document if item in wanted or str(item).startswith(tuple(stated))]
        return [item for at, item in enumerate(kept) if item not in kept[:at]]
    return document
