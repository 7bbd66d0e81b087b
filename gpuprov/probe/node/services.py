"""Collectors of services: systemd's units and sshd's effective settings."""

from gpuprov.probe.node.base import blot, collector, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

PROPERTIES = (
    "Id,Names,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Result,"
    "FragmentPath,DropInPaths,ExecStart"
)


@collector(seconds=15)
def units(parameters: "Values") -> "Any":
    """`systemctl show` of the units asked for; one that does not exist has load state not-found."""
    if not parameters["units"]:
        return {"text": ""}
    return {
        "text": blot(
            run("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, "--", *parameters["units"])
        )
    }


@collector(seconds=10)
def sshd(parameters: "Values") -> "Any":
    """`sshd -T`: names of files and settings, no key."""
    return {"text": run("sshd", "-T")}
