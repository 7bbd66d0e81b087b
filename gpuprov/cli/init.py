"""`gpuprov init`: write a first fleet.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuprov.cli.common import completion, options
from gpuprov.errors import InvalidInput


@click.command()
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    help="profile of the servers; `gpuprov inventory profiles` lists them",
)
@click.option(
    "--instance", help="in place of --profile: a cloud's machine type; `gpuprov catalog instances` lists them"
)
@click.option("--local", is_flag=True, help="read this machine, and write a fleet that matches it")
@click.option("--hosts", help="host names, as a range: gpu[01-08]")
@click.option("--os", "system", shell_complete=completion.systems, help="debian12, ubuntu24.04, rhel9, …")
@click.option("--group", help="the group's name  [default: gpu; with --local the profile's]")
@click.option("--site", help="site of the servers: a data centre, a cloud's region")
@click.option("--user", default="root", show_default=True, help="SSH user; needs sudo if not root")
@options.fleet_option("the file to write")
def command(
    profile: str | None,
    instance: str | None,
    local: bool,
    hosts: str | None,
    system: str | None,
    group: str | None,
    site: str | None,
    user: str,
    fleet: Path,
) -> None:
    """Write a fleet.yml from a profile, or a cloud's machine type, and a host range; or from this machine."""
    from gpuprov.catalog import load
    from gpuprov.catalog.identity import find_system
    from gpuprov.inventory.starting import write_fleet
    from gpuprov.model.profile import load_profile

    if fleet.exists():
        raise InvalidInput(f"{fleet} already exists", do="edit it, or name another with --fleet")
    if local:
        if profile or instance or hosts or system:
            raise InvalidInput(
                "--local with --profile, --instance, --hosts or --os",
                do="leave them out: --local reads them from this machine",
            )
        from gpuprov.cli.common.this_machine import write_fleet_here

        write_fleet_here(fleet, group, site)
        return
    if profile and instance:
        raise InvalidInput("both --profile and --instance", do="give one of them")
    needed = {
        "--profile (or --instance)": (profile or instance, "--profile hgx-h100-8"),
        "--hosts": (hosts, "--hosts 'gpu[01-08]'"),
        "--os": (system, "--os ubuntu24.04"),
    }
    if missing := {name: example for name, (given, example) in needed.items() if not given}:
        raise InvalidInput(
            f"missing: {', '.join(missing)}",
            do=f"add for example {' '.join(missing.values())}; or give --local for only this machine",
        )
    assert hosts is not None and system is not None  # noqa: S101, PT018 - needed, above
    kind = _of_instance(instance) if instance else {"profile": profile}
    load_profile(str(kind["profile"]), [Path("profiles")])
    if find_system(load(), system) is None:
        raise InvalidInput(
            f"no NVIDIA repository serves {system}",
            do="`gpuprov catalog os` lists the supported systems",
        )
    where = {"site": site} if site else {}
    groups = {group or "gpu": {**kind, "hosts": hosts, "os": system, **where}}
    write_fleet(fleet, {"groups": groups, "ssh": {"user": user}}, about=instance or "")
    options.note(f"{fleet} written; next: gpuprov lock")


def _of_instance(name: str) -> dict[str, Any]:
    """Return a group's keys for a machine type: its profile, and overrides of the profile's hardware.

    `arch` is added if it is not x86_64.

    Raises:
        InvalidInput: the catalog has no such type.
    """
    from gpuprov.catalog import load
    from gpuprov.inventory.instances import find_instance, instance_hardware
    from gpuprov.model.profile import load_profile

    found = find_instance(load(), name)
    whole = load_profile(found.profile, []).profile.hardware
    hardware = instance_hardware(found, whole).model_dump(mode="json", exclude_unset=True)
    arch = {} if found.arch == "x86_64" else {"arch": found.arch}
    return {"profile": found.profile, "hardware": hardware, **arch}
