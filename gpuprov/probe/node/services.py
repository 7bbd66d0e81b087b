"""Collectors of services: systemd's units, listening sockets, gpuprov's firewall."""

import re

from gpuprov.probe.node.base import collector, find_program, lines_of, read_or_none, redact, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

PROPERTIES = (
    "Id,Names,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Result,"
    "FragmentPath,DropInPaths,ExecStart"
)
"""Properties of units for `systemctl show`."""


@collector(seconds=30)
def units(parameters: "Values") -> "Any":
    """Return `systemctl show` of the requested units, and path -> `_commands` of their files.

    "" without units. A unit that does not exist has load state not-found.
    """
    if not parameters["units"]:
        return {"text": ""}
    shown = ("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, "--", *parameters["units"])
    text = redact(run(*shown, seconds=29))
    paths = {
        path for each in re.findall("(?m)^(?:FragmentPath|DropInPaths)=(.+)$", text) for path in each.split()
    }
    return {"text": text, "commands": {path: _commands(path) for path in sorted(paths)}}


def _commands(path: str) -> "list[str]":
    """Return `path:line` of the ExecStart lines in a unit's file; "" for each if gpuprov wrote the file."""
    ours = "# Written by gpuprov" in (read_or_none(path) or "")
    return ["" if ours else place for place, line in lines_of(path) if line.startswith("ExecStart=")]


@collector(seconds=10)
def listening(parameters: "Values") -> "Any":
    """Return the listening TCP sockets with their programs, as `ss -Hltnp` prints them."""
    return {"text": run("ss", "-Hltnp")}


@collector(seconds=10)
def firewall(parameters: "Values") -> "Any":
    """Return gpuprov's nftables table with numeric protocols, and nftables.service's further commands.

    nftables.service flushes all tables. The text is empty without such a table or without nft.
    """
    if find_program("nft") is None or "table inet gpuprov\n" not in run("nft", "list", "tables") + "\n":
        return {"text": ""}
    wanted = "--property=ExecStartPost,ExecReload,ExecStopPost,DropInPaths"
    shown = run("systemctl", "show", wanted, "nftables.service")
    return {"text": run("nft", "-p", "list", "table", "inet", "gpuprov"), "flushing": shown}


@collector(seconds=5)
def undone(parameters: "Values") -> "Any":
    """Return the reason why the dead man's switch last restored SSH and firewall settings.

    Null if it did not.
    """
    return {"text": (read_or_none("/var/lib/gpuprov/deadman/undone", 4096) or "").strip() or None}
