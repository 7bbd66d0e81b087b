"""`gpuprov lab`: create temporary real nodes on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common.options import note, output_option, print_json, print_table
from gpuprov.cli.common.terminal import say
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov_lab import Lab, Node

SCHEMA = "gpuprov.lab/1"

name_option = click.option("--name", "lab_name", default="default", show_default=True, help="name of the lab")


@click.group()
def command() -> None:
    """Create disposable nodes on this machine (needs root; Debian only)."""


@command.command()
@click.option(
    "--nodes", "count", type=click.IntRange(1, 200), default=2, show_default=True, help="number of nodes"
)
@click.option(
    "--os",
    "system",
    help="debian12 (the default), debian13, the smallest of either: debian12-minimal,"
    " or a Debian that plays another system: ubuntu26.04-played, rocky8-played, rocky9-played,"
    " rocky10-played, amazon2023-played",
)
@click.option("--gpu", metavar="MACHINE", help="machine that the GPU simulator imitates, such as h200x4")
@click.option("--vm", "virtual", is_flag=True, help="virtual machines with their own kernel, emulated (slow)")
@click.option("--image", help="start from a saved image instead of a fresh system")
@click.option(
    "--fleet", type=click.Path(path_type=Path, dir_okay=False), help="write a fleet.yml for the lab's nodes"
)
@click.option("--profile", help="profile that the fleet.yml names")
@click.option(
    "--mirror",
    is_flag=True,
    help="with --fleet: serve a mirror of NVIDIA's repositories with stub packages, and state it in the file",
)
@name_option
@output_option
def up(
    count: int,
    system: str | None,
    gpu: str | None,
    virtual: bool,
    image: str | None,
    fleet: Path | None,
    profile: str | None,
    mirror: bool,
    lab_name: str,
    output: str,
) -> int:
    """Add nodes, and wait until each answers SSH. InvalidInput for options that exclude each other, before a
    node is made.

    Containers can be started on them. `gpuprov lab down` also ends the mirror.
    """
    from gpuprov_lab.variants import with_control_groups, with_network_parameters

    if fleet and not profile:
        raise InvalidInput(
            "--fleet without --profile", do="--profile NAME, of those that `gpuprov inventory profiles` lists"
        )
    if mirror and not fleet:
        raise InvalidInput("--mirror without --fleet", do="name the file that states it: --fleet fleet.yml")
    lab = _lab(lab_name)
    _name_left_labs()
    prepare = () if virtual else (with_control_groups, with_network_parameters)
    nodes = lab.up(count, system, gpu, image=image, virtual=virtual, prepare=prepare)
    if fleet and profile:
        fleet.write_text(lab.fleet(profile, mirror=mirror))
        note(f"lab: wrote {fleet}")
    _show({lab_name: nodes}, output)
    if nodes and not fleet:
        note(
            f"lab: to log in: gpuprov lab ssh --name {lab_name} {nodes[0].name}; to set it up: gpuprov up"
            f" -i {lab.identity_file} --known-hosts {lab.known_hosts} root@{nodes[0].address}"
        )
    return Exit.OK


def _name_left_labs() -> None:
    """Print the labs that killed runs left behind, each with the command that removes it; remove none."""
    from gpuprov_lab import Lab, lab_names

    for name in lab_names():
        if Lab(name).left_behind:
            note(f"lab: a run that was killed left the lab {name} behind; gpuprov lab down --name {name}")


@command.command()
@click.argument("nodes", nargs=-1)
@click.option("--all", "every_lab", is_flag=True, help="remove all labs that are not in use")
@name_option
def down(nodes: tuple[str, ...], every_lab: bool, lab_name: str) -> int:
    """Remove NODES, or all nodes of the lab, with all their files."""
    from gpuprov_lab import lab_names

    if every_lab and (nodes or _stated("lab_name")):
        raise InvalidInput(
            "--all with --name or NODES",
            do="give only --all for all labs that are not in use, or only `--name LAB` for one lab",
        )
    for name in lab_names() if every_lab else [lab_name]:
        lab = _lab(name)
        if every_lab and lab.in_use:
            note(f"lab: {name} is in use; `gpuprov lab down --name {name}` removes it anyway")
        else:
            lab.down(nodes or None)
    return Exit.OK


def _stated(option: str) -> bool:
    """Return whether an option is given on the command line."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


@command.command(name="list")
@output_option
def list_nodes(output: str) -> int:
    """List the nodes of all labs."""
    from gpuprov_lab import lab_names

    _show({name: _lab(name).nodes() for name in lab_names()}, output)
    return Exit.OK


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("node")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
@name_option
def ssh(node: str, words: tuple[str, ...], lab_name: str) -> int:
    """Open a shell on NODE, or run one COMMAND there; the exit code is that of the shell or command."""
    arguments = _lab(lab_name).node(node).ssh_command()
    if sys.stdin.isatty() and not words:
        arguments.insert(1, "-t")
    os.execvp(arguments[0], [*arguments, *words])  # noqa: S606


@command.command()
@click.argument("nodes", nargs=-1, required=True)
@name_option
def reboot(nodes: tuple[str, ...], lab_name: str) -> int:
    """Restart NODES one after another, and wait until each answers SSH."""
    lab = _lab(lab_name)
    for node in [lab.node(name) for name in nodes]:
        node.reboot()
        note(f"lab: {node.name} restarted")
    return Exit.OK


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--os", "systems", multiple=True, required=True, help="system to hold packages for: ubuntu24.04"
)
@click.option("--arch", type=click.Choice(["x86_64", "aarch64"]), default="x86_64", show_default=True)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="port to serve on"
)
@click.option(
    "--mood", default="well", show_default=True, help="fault to simulate: gone, broken, slow or silent"
)
def mirror(folder: Path, systems: tuple[str, ...], arch: str, port: int, mood: str) -> int:
    """Build a mirror of NVIDIA's repositories in FOLDER from stub packages, and serve it until Ctrl-C.

    Prints the lines for fleet.yml. A FOLDER that already contains a mirror is served unchanged.
    """
    from gpuprov.catalog import load
    from gpuprov_lab.mirror import nvidia
    from gpuprov_lab.mirror.serve import MOODS, served
    from gpuprov_lab.network import GATEWAY

    if mood not in MOODS:
        raise InvalidInput(f"--mood {mood}", expected=f"one of {', '.join(MOODS)}")
    built = nvidia.Mirror(folder.resolve(), folder.resolve() / "keys/mirror.asc")
    if not built.key.exists():
        note(f"lab: building {', '.join(systems)} in {folder}")
        base = f"http://{GATEWAY}:{port}"
        built = nvidia.build(folder.resolve(), load(), systems, arch, base=base)
    with served(built.root, port, mood) as server:
        say("repositories:")
        for name, url in built.urls(server.url).items():
            say(f"  {name}: {{url: {url!r}, key: {str(built.key)!r}}}")
        note(f"lab: serving at {server.url}; Ctrl-C ends it")
        server.wait()
    return Exit.OK


def _lab(name: str) -> Lab:
    """Return the lab of that name; the import is late, because it is slow."""
    from gpuprov_lab import Lab

    return Lab(name)


def _show(labs: dict[str, list[Node]], output: str) -> None:
    """Print nodes as a table, or with `output` "json" as one document."""
    if output == "json":
        print_json({"schema": SCHEMA, "nodes": [_facts(lab, node) for lab in labs for node in labs[lab]]})
        return
    rows = [list(map(str, _facts(lab, node).values()))[:-1] for lab in labs for node in labs[lab]]
    print_table([["LAB", "NODE", "ADDRESS", "OS", "GPU", "KERNEL", "STATE"], *rows])


def _facts(lab: str, node: Node) -> dict[str, Any]:
    """Return the columns of a node for the table and the JSON document; only the latter shows `ssh`."""
    return {
        "lab": lab,
        "name": node.name,
        "address": node.address,
        "os": node.os,
        "gpu": node.gpu or "-",
        "kernel": node.kernel,
        "state": node.state,
        "ssh": shlex.join(node.ssh_command()),
    }
