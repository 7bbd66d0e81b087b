"""`gpuprov inventory`: convert a fleet to Ansible and back; discover and export hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import say, show, tell
from gpuprov.cli.inventory_discover import command as discover
from gpuprov.cli.inventory_export import command as export
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.inventory.ansible import AnsibleInventory
    from gpuprov.inventory.imports import Format
    from gpuprov.model.lock import Lock

FORMATS = ("ansible", "hosts", "terraform", "metadata", "slurm")

fleet_option = options.fleet_option("the fleet", envvar="GPUPROV_FLEET")
lock_option = click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="lock with the variables of the roles  [default: next to the fleet, if there is one]",
)


@click.group()
def command() -> None:
    """List hosts and groups for Ansible, import an inventory, discover live hosts."""


command.add_command(discover, "discover")
command.add_command(export, "export")


@command.command("list")
@fleet_option
@lock_option
@click.option("--list", "whole", is_flag=True, help="print the whole inventory, as an inventory script does")
@click.option("--host", help="print one host's variables")
def list_inventory(fleet: Path, lock_path: Path | None, whole: bool, host: str | None) -> int:
    """Print the fleet as a dynamic inventory (JSON with _meta).

    An executable file of two lines is an inventory script for any Ansible: `#!/bin/sh` and
    `exec gpuprov inventory list -F /path/to/fleet.yml "$@"`.
    """
    from gpuprov.inventory.ansible import dynamic

    if whole and host is not None:
        raise InvalidInput("both --list and --host", do="give one of them")
    inventory = _read(fleet, lock_path)
    if host is None:
        options.print_json(dynamic(inventory))
    elif host in inventory.hosts:
        options.print_json(inventory.host_vars.get(host, {}))
    else:
        raise InvalidInput(f"the fleet has no host {host!r}")
    return Exit.OK


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@fleet_option
@lock_option
def generate(folder: Path, fleet: Path, lock_path: Path | None) -> int:
    """Write FOLDER: hosts.yml, group_vars and host_vars, with groups by profile, GPU, arch, OS and site."""
    from gpuprov.inventory.ansible import renamed_groups
    from gpuprov.inventory.folder import write_inventory

    inventory = _read(fleet, lock_path)
    written = write_inventory(inventory, folder)
    counts = f"{len(inventory.hosts)} hosts, {len(inventory.groups) - 1} groups, {len(written)} files"
    options.note(f"{folder}: {counts}; try: ansible-inventory -i {folder} --graph")
    if renamed := renamed_groups(inventory):
        words = ", ".join(f"{ours} is {theirs}" for ours, theirs in renamed.items())
        options.note(f"renamed for Ansible: {words}")
    return Exit.OK


@command.command("import")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--from",
    "form",
    type=click.Choice(FORMATS),
    help="format of SOURCES; required for a file of an Ansible inventory  [default: recognised]",
)
@click.option("--profile", "profiles_", multiple=True, metavar="[GROUP=]NAME", help="profile of the servers")
@click.option("--os", "systems", multiple=True, metavar="[GROUP=]ID", help="operating system of the servers")
@click.option(
    "--group",
    "wanted",
    multiple=True,
    help="import only this group of an Ansible inventory, or output or resource of Terraform; repeatable",
)
@click.option("--user", help="SSH user")
@click.option(
    "-F", "--fleet", type=click.Path(path_type=Path, dir_okay=False), help="write to this file, not to stdout"
)
def import_command(
    sources: tuple[Path, ...],
    form: Format | None,
    profiles_: tuple[str, ...],
    systems: tuple[str, ...],
    wanted: tuple[str, ...],
    user: str | None,
    fleet: Path | None,
) -> int:
    """Make a fleet.yml from SOURCES: an Ansible inventory, a host list, Terraform's state, the metadata of
    machines, slurm.conf.

    Groups, addresses and the site's variables are kept. Keys and variables that can decide who may log in or
    what runs, and templates, are named and left out. Scripts and plugins of an inventory are not run.
    """
    from gpuprov.inventory.imports import ImportHints, import_fleet
    from gpuprov.inventory.starting import write_fleet
    from gpuprov.model.documents import render_plain
    from gpuprov.model.fleet import parse_fleet
    from gpuprov.model.profile import replaced_profiles

    if fleet and fleet.exists():
        raise InvalidInput(f"{fleet} already exists", do="name another with --fleet")
    hints = ImportHints(_by_group(profiles_), _by_group(systems))
    found = import_fleet(sources, hints, form, wanted, options.note)
    for path in replaced_profiles((fleet or Path()).parent / "profiles"):
        options.note(f"{path} replaces gpuprov's profile {path.stem}: check its settings")
    if user:
        found["ssh"] = {**found.get("ssh", {}), "user": user}
    if fleet:
        write_fleet(fleet, found, keys_beside=False)
        options.note(f"{fleet} written; next: gpuprov lock")
    else:
        text = render_plain(found)
        parse_fleet(text, str(sources[0]))
        show(text)
    return Exit.OK


def _by_group(stated: tuple[str, ...]) -> dict[str, str]:
    """Return group → name from `train=hgx-h100-8`; `hgx-h100-8` has the key "", for all groups."""
    pairs = (text.rpartition("=") for text in stated)
    return {group: name for group, _, name in pairs}


@command.command()
def plugins() -> int:
    """Print the folder of Ansible inventory plugins, for ANSIBLE_INVENTORY_PLUGINS.

    For an Ansible installation without the collection: with this folder and `plugin: gpuprov` in fleet.yml,
    `ansible-inventory -i fleet.yml --graph` works.
    """
    from gpuprov.files.resources import share

    say(share("plugins") / "inventory")
    return Exit.OK


@command.command()
@options.output_option
def profiles(output: str) -> int:
    """List the built-in profiles, and those in ./profiles."""
    from gpuprov.model.profile import Profiles

    known = Profiles([Path("profiles")])
    found = {name: known.load(name).profile for name in sorted(known.paths)}
    if output == "json":
        rows = [{"name": name, **each.model_dump(mode="json")} for name, each in found.items()]
        options.print_json({"schema": "gpuprov.profiles/1", "profiles": rows})
    else:
        width = max(map(len, found))
        for name, each in found.items():
            tell(f"{name:<{width}}  {each.description}")
    return Exit.OK


@command.command()
@click.argument("what", type=click.Choice(["profile", "fleet", "lock"]), default="profile")
def schema(what: str) -> int:
    """Print the JSON Schema of a profile, of fleet.yml or of the lock, for editors and checks."""
    from gpuprov.inventory.schemas import json_schema

    options.print_json(json_schema(what))
    return Exit.OK


def _read(fleet_path: Path, lock_path: Path | None) -> AnsibleInventory:
    """Return the Ansible inventory of a fleet, with the roles' variables if there is a lock; errors as of
    `read_fleet` and `_read_lock`.
    """
    from gpuprov.inventory.ansible import inventory_of
    from gpuprov.inventory.models import gpu_models
    from gpuprov.model.fleet import read_fleet

    fleet = read_fleet(fleet_path)
    lock = _read_lock(fleet_path, lock_path)
    return inventory_of(fleet, gpu_models(fleet, fleet_path.parent, lock), lock)


def _read_lock(fleet_path: Path, lock_path: Path | None) -> Lock | None:
    """Return the lock at the stated path, else the one next to the fleet, or None without a lock there.

    Raises:
        InvalidInput: the stated path does not exist, or the lock is not valid.
    """
    from gpuprov.model.lock import lock_beside, read_lock

    path = lock_path or lock_beside(fleet_path)
    return read_lock(path) if lock_path or path.exists() else None
