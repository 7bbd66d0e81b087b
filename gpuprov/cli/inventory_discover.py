"""`gpuprov inventory discover`: find the profiles of live hosts, and propose a fleet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import show
from gpuprov.errors import Exit, GpuprovError, InvalidInput, Unreachable, worst

if TYPE_CHECKING:
    from gpuprov.inventory.discover import Identity, Match

SCHEMA = "gpuprov.discovery/1"


@click.command()
@click.argument("hosts", nargs=-1, required=True)
@click.option("--user", help="SSH user  [default: of ~/.ssh/config, else root]")
@click.option("--port", type=click.IntRange(1, 65535), help="SSH port  [default: of ~/.ssh/config, else 22]")
@click.option("-i", "--identity", metavar="FILE", help="private key")
@click.option("--known-hosts", metavar="FILE", help="known-hosts file with their host keys")
@click.option("--jump", metavar="[USER@]HOST[:PORT]", help="jump host")
@click.option(
    "-F", "--fleet", type=click.Path(path_type=Path, dir_okay=False), help="write the fleet to this file"
)
@options.forks_option
@options.password_option
@options.output_option
def command(
    hosts: tuple[str, ...],
    user: str | None,
    port: int | None,
    identity: str | None,
    known_hosts: str | None,
    jump: str | None,
    fleet: Path | None,
    forks: int,
    ask_become_pass: bool,
    output: str,
) -> int:
    """Read HOSTS, name the nearest profile of each and what is missing, and propose a fleet file.

    HOSTS are names, ranges (gpu[01-08]), [USER@]HOST[:PORT] or networks (10.0.0.0/24), whose addresses
    without SSH are skipped. Changes nothing. Exit 3 if a host has less than its profile, 4 if a host cannot
    be read or none answers.
    """
    from pydantic import ValidationError

    from gpuprov.catalog import load
    from gpuprov.inventory.discover import Identity, kinds, match_hosts, names_of, propose, within
    from gpuprov.model.connection import Connection
    from gpuprov.ssh.dispatch import Dispatch
    from gpuprov.ssh.failures import NotThere

    if fleet and fleet.exists():
        raise InvalidInput(f"{fleet} already exists", do="name another with --fleet")
    asked, of_networks = within(hosts)
    try:
        way = Connection(user=user, port=port, identity_file=identity, known_hosts=known_hosts, jump=jump)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise InvalidInput(f"--{first['loc'][0]} {first['input']!r}: {first['msg']}") from None
    dispatch = Dispatch(forks, options.ask_password(ask_become_pass))
    catalog, found, failed = load(), {}, {}
    among = kinds(catalog, [Path("profiles")])
    for host, answer in match_hosts(asked, way, among, dispatch=dispatch):
        if isinstance(answer, GpuprovError):
            failed[host] = answer
        else:
            facts, nearest = answer
            found[host] = Identity.of(facts), nearest
    found = {host: found[host] for host in asked if host in found}
    silent = [host for host, error in failed.items() if host in of_networks and isinstance(error, NotThere)]
    failed = {host: failed[host] for host in asked if host in failed and host not in silent}
    names = names_of({host: each.name for host, (each, _) in found.items()})
    proposal, unproposed = propose(found, names, way, catalog)
    failed |= unproposed
    _show(found, failed, proposal, names, output)
    if not found and not failed:
        raise Unreachable(
            f"no host answers SSH on port {port or 22} at any of the {len(silent)} addresses of "
            + ", ".join(hosts),
            do="check the network and --port",
        )
    if fleet and proposal["groups"]:
        _write(fleet, proposal)
    return _verdict([each for _, each in found.values()], failed)


def _show(
    found: dict[str, tuple[Identity, Match]],
    failed: dict[str, GpuprovError],
    proposal: dict[str, Any],
    names: dict[str, str],
    output: str,
) -> None:
    """Print hosts, their profiles and differences, errors, and the proposed fleet.

    Args:
        found: host as given → its identity and its match.
        failed: host → its error.
        proposal: keys of the proposed fleet.
        names: host as given → its name in the fleet.
    """
    from gpuprov.model.documents import render_plain
    from gpuprov.report.table import aligned

    if output == "json":
        hosts = [
            {
                "host": names[host],
                "address": host,
                "profile": each.profile,
                "differences": list(each.differences),
                "unknown": list(each.unknown),
            }
            for host, (_, each) in found.items()
        ]
        errors = [{"host": host, "error": str(error)} for host, error in failed.items()]
        options.print_json({"schema": SCHEMA, "hosts": hosts, "failed": errors, "fleet": proposal})
        return
    rows = [["HOST", "PROFILE", "DIFFERENCES"]]
    for host, (_, each) in found.items():
        unknown = [f"unknown: {reason}" for reason in each.unknown]
        rows.append([names[host], each.profile or "-", "; ".join([*each.differences, *unknown]) or "none"])
    if found:
        for row in aligned(rows):
            options.note(row)
    for host, error in failed.items():
        options.note(f"{host}: {error}")
    if proposal["groups"]:
        show(render_plain(proposal))


def _write(fleet: Path, proposal: dict[str, Any]) -> None:
    """Write the proposed fleet and its schema."""
    from gpuprov.inventory.starting import write_fleet

    write_fleet(fleet, proposal)
    options.note(f"{fleet} written; next: gpuprov lock")


def _verdict(found: list[Match], failed: dict[str, GpuprovError]) -> Exit:
    """Return the worst exit code: 3 if a host differs from its profile, or that of a host's error."""
    differ = Exit.DRIFT if any(each.differences for each in found) else Exit.OK
    return worst(differ, *(error.exit_code for error in failed.values()))
