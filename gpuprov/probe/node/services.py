"""Collectors of services: systemd's units, sshd's effective settings, who listens, our firewall."""

from gpuprov.probe.node.base import collector, find_program, read_or_none, redact, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

PROPERTIES = (
    "Id,Names,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Result,"
    "FragmentPath,DropInPaths,ExecStart"
)


@collector(seconds=30)
def units(parameters: "Values") -> "Any":
    """`systemctl show` of the units asked for; one that does not exist has load state not-found."""
    if not parameters["units"]:
        return {"text": ""}
    return {
        "text": redact(
            run(
                *("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, "--", *parameters["units"]),
                seconds=29,
            )
        )
    }


@collector(seconds=10)
def sshd(parameters: "Values") -> "Any":
    """`sshd -T` as it holds for the user asked for: names of files and settings, no key."""
    who = "user={},host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22".format(parameters["login"])
    return {"text": run("sshd", "-T", "-C", who)}


@collector(seconds=10)
def listening(parameters: "Values") -> "Any":
    """TCP sockets that listen, with their programs."""
    return {"text": run("ss", "-Hltnp")}


@collector(seconds=10)
def firewall(parameters: "Values") -> "Any":
    """Our nftables table, protocols by number; no text where there is none, or no nft."""
    if find_program("nft") is None or "table inet gpuprov\n" not in run("nft", "list", "tables") + "\n":
        return {"text": ""}
    return {"text": run("nft", "-p", "list", "table", "inet", "gpuprov")}


@collector(seconds=5)
def undone(parameters: "Values") -> "Any":
    """Why the dead man's switch gave back the old SSH and firewall, the last time that it did."""
    return {"text": (read_or_none("/var/lib/gpuprov/deadman/undone", 4096) or "").strip() or None}
