"""Readings that checks of several roles share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import lines_of

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


WHO = {"0": "everybody", "1": "root", None: "root"}
"""Value of the driver's parameter about counters → users who may read them; None: it is not set."""
ENABLED = "SYSTEMCTL_SKIP_SYSV=1 systemctl is-enabled %s"
NO_FILE = "No such file"
"""Message of `systemctl is-enabled` about a unit without a file."""
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


def boot_state(host: Node, unit: str) -> str:
    """Return `enabled` if a unit starts at boot, from the unit file of its package or of gpuprov.

    Otherwise it returns what is wrong, in drift's terms.

    The next boot uses the files, which systemd need not have read: `systemctl is-enabled` reads them. A
    script in /etc/init.d is no unit of the package.

    Raises:
        NodeFailed: the node cannot tell which unit files are replaced.
    """
    seen, files = host.service(unit).systemd_properties, host.run(ENABLED, unit)
    stated = files.stdout.strip() or seen.get("UnitFileState") or seen.get("LoadState", "unknown")
    words = {"not-found": "not installed", "generated": "not installed", "loaded": "disabled"}
    enabled = "not installed" if NO_FILE in files.stderr else words.get(stated, stated)
    if enabled != "enabled":
        return str(enabled)
    return "enabled, by another unit file" if _replaced(host, unit) else "enabled"


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
    state, setter, commands = unit_state(host, unit), "", list[str]()
    parts = re.split(r"(?m)^(?=# /)", host.run("systemctl cat %s", unit).stdout)
    for part in parts:
        for value in re.findall(r"(?m)^[ \t]*ExecStart[ \t]*=(.*)$", part):
            setter = part
            if value.strip():
                commands.append(value.strip())
            else:
                commands.clear()
    theirs = re.match(r"# /(?:etc|run)/", setter) and "# Written by gpuprov" not in setter
    if state != "enabled":
        return state
    if theirs or (command is not None and commands != [command]):
        return "enabled, with another command"
    changed = command is not None and any(f"/{unit}.d/" in part.partition("\n")[0] for part in parts)
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
