"""`gpuprov init`: a fleet.yml to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuprov.cli.common import options
from gpuprov.errors import InvalidInput

HEADER = "# What is wanted. `gpuprov lock` works out exactly what that means.\n"
FOOTER = """\
reboot:
  allowed: false   # true: apply may reboot nodes that need it, `batch` at a time
  batch: 1
"""


@click.command()
@click.option("--profile", help="what kind of server they are; `gpuprov inventory profiles` lists them")
@click.option("--instance", help="or a cloud's machine type, aws:p5.48xlarge; `gpuprov catalog instances`")
@click.option("--hosts", required=True, help="host names, as a range: gpu[01-08]")
@click.option("--os", "system", required=True, help="debian12, ubuntu24.04, rhel9, …")
@click.option("--group", default="gpu", show_default=True, help="the group's name")
@click.option("--site", help="where they stand")
@click.option("--user", default="root", show_default=True, help="SSH user; needs sudo if not root")
@click.option(
    "-F",
    "--fleet",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.yml"),
    show_default=True,
    help="the file to write",
)
def command(
    profile: str | None,
    instance: str | None,
    hosts: str,
    system: str,
    group: str,
    site: str | None,
    user: str,
    fleet: Path,
) -> None:
    """Write a fleet.yml from a profile, or from a cloud's machine type, and a host range."""
    from gpuprov.model.documents import render_plain, write_text
    from gpuprov.model.fleet import parse_fleet
    from gpuprov.model.profile import load_profile

    if fleet.exists():
        raise InvalidInput(f"{fleet} exists already", do="edit it, or name another with --fleet")
    if (profile is None) == (instance is None):
        raise InvalidInput("one of --profile and --instance", do="name what kind of server they are")
    kind = _of_instance(instance) if instance else {"profile": profile}
    load_profile(str(kind["profile"]), [])
    where = {"site": site} if site else {}
    document = {"groups": {group: {**kind, "hosts": hosts, "os": system, **where}}, "ssh": {"user": user}}
    text = HEADER + (f"# {instance}\n" if instance else "") + render_plain(document) + FOOTER
    parse_fleet(text, str(fleet))
    write_text(fleet, text)
    options.note(f"{fleet} written; next: gpuprov lock")


def _of_instance(name: str) -> dict[str, Any]:
    """A group's keys for a machine type: its profile, and what it is laid over with."""
    from gpuprov.catalog import load
    from gpuprov.inventory.instances import find_instance, instance_hardware
    from gpuprov.model.profile import load_profile

    found = find_instance(load(), name)
    whole = load_profile(found.profile, []).profile.hardware
    hardware = instance_hardware(found, whole).model_dump(mode="json", exclude_unset=True)
    arch = {} if found.arch == "x86_64" else {"arch": found.arch}
    return {"profile": found.profile, "hardware": hardware, **arch}
