"""`gpuprov inventory export`: nodes in the words of schedulers and launchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, GpuprovError, worst

if TYPE_CHECKING:
    from gpuprov.inventory.exports import Access, Node

FORMATS = ("slurm", "gres", "hostfile", "mpich", "kubernetes", "dstack", "skypilot")


@click.command()
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("nodes", nargs=-1)
@options.lock_option
@options.limit_option
@click.option("--live", is_flag=True, help="Ask the nodes for processors, memory, and the cores near GPUs.")
@click.option("--name", default="gpuprov", show_default=True, help="Of the fleet or pool (dstack, skypilot).")
@options.forks_option
@options.password_option
def command(
    form: str,
    nodes: tuple[str, ...],
    lock_path: Path,
    limit: str | None,
    live: bool,
    name: str,
    forks: int,
    ask_become_pass: bool,
) -> int:
    """Print the lock's NODES (all, if none are named) for a scheduler or launcher.

    slurm: node lines of slurm.conf; gres: gres.conf; hostfile: Open MPI's, DeepSpeed's, Horovod's; mpich;
    kubernetes: `kubectl label` lines; dstack and skypilot: SSH pools. Slurm wants --live: it counts
    processors and memory.
    """
    from gpuprov.catalog import load
    from gpuprov.inventory.exports import Access
    from gpuprov.inventory.exports.gather import live_nodes, locked_nodes
    from gpuprov.model.lock import read_lock

    lock = read_lock(lock_path)
    names = options.select(lock, nodes, limit)
    failed: list[GpuprovError] = []
    if live:
        found = []
        password = options.ask_password(ask_become_pass)
        for node, error in live_nodes(lock, names, load(), forks=forks, password=password):
            found.append(node)
            if error:
                options.note(f"{node.name}: as the lock knows it, {error}")
                failed.append(error)
    else:
        found = list(locked_nodes(lock, names, load()))
    way = next(iter(lock.groups.values())).connection
    access = Access(way.user, way.port, way.identity_file, way.jump)
    click.echo(_writers(name, access)[form](found), nl=False)
    return worst(Exit.OK, *(error.exit_code for error in failed))


def _writers(name: str, access: Access) -> dict[str, Callable[[Sequence[Node]], str]]:
    from gpuprov.inventory import exports

    return {
        "slurm": exports.slurm_conf,
        "gres": exports.gres_conf,
        "hostfile": exports.hostfile,
        "mpich": lambda nodes: exports.hostfile(nodes, "mpich"),
        "kubernetes": exports.kubernetes_labels,
        "dstack": lambda nodes: exports.dstack(name, nodes, access),
        "skypilot": lambda nodes: exports.skypilot(name, nodes, access),
    }
