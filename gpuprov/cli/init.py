"""`gpuprov init`: a fleet.yml to start from."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli import options
from gpuprov.errors import InvalidInput


@click.command()
@click.option("--profile", required=True, help="what kind of server they are, see inventory/profiles")
@click.option("--hosts", required=True, help="host names, as a range: gpu[01-08]")
@click.option("--os", "system", required=True, help="debian12, ubuntu24.04, rhel9, …")
@click.option("--group", default="gpu", show_default=True, help="the group's name")
@click.option("--user", default="root", show_default=True, help="SSH user; needs sudo if not root")
@click.option(
    "-F",
    "--fleet",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.yml"),
    show_default=True,
    help="the file to write",
)
def command(profile: str, hosts: str, system: str, group: str, user: str, fleet: Path) -> None:
    """Write a fleet.yml from a profile and a host range."""
    from gpuprov.documents import write_text
    from gpuprov.fleet import parse_fleet
    from gpuprov.profile import load_profile

    if fleet.exists():
        raise InvalidInput(f"{fleet} exists already", do="edit it, or name another with --fleet")
    load_profile(profile, [])
    text = (
        "# What is wanted. `gpuprov lock` works out exactly what that means.\n"
        "groups:\n"
        f"  {group}:\n"
        f"    profile: {profile}\n"
        f"    hosts: {hosts}\n"
        f"    os: {system}\n"
        "ssh:\n"
        f"  user: {user}\n"
        "reboot:\n"
        "  allowed: false   # true: apply may reboot nodes that need it, `batch` at a time\n"
        "  batch: 1\n"
    )
    parse_fleet(text, str(fleet))
    write_text(fleet, text)
    options.note(f"{fleet} written; next: gpuprov lock")
