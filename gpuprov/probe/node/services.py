"""Collectors of services: systemd's units, gpuprov's firewall, IMEX."""

import os
import re
import time

from gpuprov.probe.node.base import (
    BOOT_CLOCK,
    collector,
    find_program,
    lines_of,
    read_or_none,
    redact,
    run,
    run_anyway,
    text_in,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

PROPERTIES = (
    "Id,Names,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Result,"
    "FragmentPath,DropInPaths,ExecStart"
)
"""Properties of units for `systemctl show`."""
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Folders of units in order of precedence (systemd.unit(5)), without those of generators."""
OF_SITE = ("/etc/", "/run/")


@collector(seconds=30)
def units(parameters: "Values") -> "Any":
    """Return `systemctl show` of the requested units, and what their files say, which the next boot reads.

    A unit that does not exist has load state not-found. `states` has lines `docker.service masked`, and
    `replaced` the file in place of another one: systemd need not have read these files. `gone` has the units
    without a file, also those with a script in /etc/init.d. `unmet` has, by file, the place of conditions
    that keep a unit from starting, or null.
    """
    names = parameters["units"]
    if not names:
        return {"text": ""}
    shown = ("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, "--", *names)
    text = redact(run(*shown, seconds=20))
    states = run_anyway("systemctl", "list-unit-files", "--no-pager", "--no-legend", "--", *names, seconds=9)
    paths = {
        path for each in re.findall("(?m)^(?:FragmentPath|DropInPaths)=(.+)$", text) for path in each.split()
    }
    replaced = {name: path for name in names for path in [_replacement(name)] if path}
    gone = [name for name in names if not any(os.path.lexists(f"{each}/{name}") for each in UNIT_FOLDERS)]
    return {
        "text": text,
        "commands": {path: _commands(path) for path in paths},
        "programs": {path: _programs(path) for path in paths},
        "states": states[1],
        "replaced": replaced,
        "gone": gone,
        "unmet": {path: _unmet(path) for path in paths},
    }


def _commands(path: str) -> "list[str]":
    """Return `path:line` of the ExecStart lines in a unit's file; "" for each if gpuprov wrote the file."""
    ours = _is_written_by_us(path)
    return ["" if ours else place for place, line in lines_of(path) if re.match(r"ExecStart\s*=", line)]


def _programs(path: str) -> "list[str]":
    """Return the programs of the ExecStart lines in a unit's file, without systemd's prefixes."""
    found = (re.match(r"ExecStart\s*=[\s@:+!|-]*([^\s@:+!|-]\S*)", line) for _, line in lines_of(path))
    return [each.group(1) for each in found if each]


def _unmet(path: str) -> "str | None":
    """Return the place of the first condition in a unit's file if systemd finds that the conditions fail, or
    cannot check them, as it makes a folder in /tmp first, which a user can fill; else None.

    Those of a package that ask about the present state, such as a loaded driver, do not count, nor those of
    which one has to hold, nor those that systemd ignores, or cannot check before 250.
    """
    found = [row for row in lines_of(path) if re.match("Condition|Assert", row[1])]
    if not path.startswith(OF_SITE):
        found = [row for row in found if "/etc/" in row[1] and not re.search(r"=\s*\|", row[1])]
    asked = (row[1] for row in found)
    code, _, said = run_anyway("systemd-analyze", "condition", *asked) if found else (0, "", "")
    return found[0][0] if code and not re.match("Unknown|Cannot parse", said) else None


def _is_written_by_us(path: str) -> bool:
    return "# Written by gpuprov" in (read_or_none(path) or "")


def _replacement(name: str) -> "str | None":
    """Return the file that counts for a unit, if it is not gpuprov's and hides another file of that name;
    else None.
    """
    paths = [path for path in (folder + "/" + name for folder in UNIT_FOLDERS) if os.path.lexists(path)]
    hidden = {os.path.realpath(path) for path in paths} - {os.path.realpath(path) for path in paths[:1]}
    return paths[0] if hidden and not _is_written_by_us(paths[0]) else None


RULES = "/etc/gpuprov/firewall.nft"


@collector(seconds=10)
def firewall(parameters: "Values") -> "Any":
    """Return gpuprov's nftables table with numeric protocols, and nftables.service's further commands.

    nftables.service flushes all tables. `at_boot` is the table that gpuprov's file loads, in an empty network
    namespace. The texts are empty without such a table or without nft.
    """
    if find_program("nft") is None:
        return {"text": "", "flushing": "", "at_boot": ""}
    wanted = "--property=ExecStartPost,ExecReload,ExecStopPost,DropInPaths"
    shown = (
        run_anyway("systemctl", "show", wanted, "nftables.service")[1] if find_program("systemctl") else ""
    )
    there = "table inet gpuprov\n" in run("nft", "list", "tables") + "\n"
    table = "nft -p list table inet gpuprov"
    return {
        "text": run(*table.split()) if there else "",
        "flushing": shown,
        "at_boot": run_anyway("unshare", "--net", "sh", "-c", f"nft -f {RULES} && {table}")[1],
    }


@collector(seconds=5)
def imex(parameters: "Values") -> "Any":
    """Return the texts of IMEX's list of nodes and of its configuration; null without the file."""
    return {
        "nodes": read_or_none("/etc/nvidia-imex/nodes_config.cfg", 65536),
        "config": read_or_none("/etc/nvidia-imex/config.cfg", 65536),
    }


@collector(seconds=5)
def health(parameters: "Values") -> "Any":
    """Return the line of the node's last verdict, null without one, the boot's id, and two times in seconds.

    `uptime` is the time since boot, `began` that at which the first process started: later in a system
    container.
    """
    ticks = text_in("/proc/1/stat").rpartition(")")[2].split()[19]
    return {
        "line": read_or_none("/run/gpuprov/health", 4096),
        "uptime": time.clock_gettime(BOOT_CLOCK),
        "began": int(ticks) / os.sysconf("SC_CLK_TCK"),
        "boot_id": text_in("/proc/sys/kernel/random/boot_id"),
    }


@collector(seconds=5)
def holding(parameters: "Values") -> "Any":
    """Return the text of the lease's file, the time at which the dead man's switch was armed, and the time.

    The first two are null if there is no such file; times are those of this node's clock.
    """
    armed = None
    if os.path.lexists("/var/lib/gpuprov/deadman/armed"):
        armed = os.lstat("/var/lib/gpuprov/deadman/armed").st_mtime
    return {"lease": read_or_none("/var/lib/gpuprov/lease.json", 4096), "armed": armed, "now": time.time()}


@collector(seconds=5)
def undone(parameters: "Values") -> "Any":
    """Return the reason why the dead man's switch last restored SSH and firewall settings.

    Null if it did not.
    """
    return {"text": text_in("/var/lib/gpuprov/deadman/undone") or None}
