"""`gpuprov workers`: create certificates of a coordinator and of sites, and run the service of a site."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import ExitStack
from pathlib import Path

import click

from gpuprov.cli.common.options import note
from gpuprov.cli.common.terminal import say
from gpuprov.errors import InvalidInput, Unreachable


@click.group()
def command() -> None:
    """Make certificates for sites whose workers reach nodes for a controller, and serve a site."""


@command.command()
@click.option(
    "--site", "sites", multiple=True, required=True, help="name of a site, as in fleet.yml; repeatable"
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder of the coordinator's certificates  [default: ~/.config/gpuprov/workers]",
)
def certificates(sites: tuple[str, ...], folder: Path | None) -> int:
    """Make certificates for sites, and the authority that signs them if it is missing.

    A certificate names its site: its service gets only the nodes of that site. Copy each site's folder to
    the machine that serves the site, then remove it here.
    """
    from gpuprov.ssh.workers.certificates import make_certificates
    from gpuprov.ssh.workers.identity import default_folder

    for made in make_certificates(folder or default_folder(), list(sites)):
        say(made)
    return 0


@command.command()
@click.option(
    "--certificates",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="the site's folder, from `gpuprov workers certificates`",
)
@click.option("--listen", default="0.0.0.0:8790", show_default=True, metavar="ADDRESS:PORT")
@click.option(
    "--processes",
    type=click.IntRange(1, 999),
    help="number of workers to start  [default: one per processor]",
)
@click.option(
    "--scheduler",
    metavar="tls://HOST:PORT",
    help="use the site's own Dask scheduler in place of workers of this service",
)
def serve(folder: Path, listen: str, processes: int | None, scheduler: str | None) -> int:
    """Serve a site: accept tasks from the coordinator over TLS, and reach the site's nodes from here."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "a site's service needs Dask", do="pip install --only-binary=:all: 'distributed>=2025.1'"
        ) from None
    from gpuprov.ssh.workers import cluster
    from gpuprov.ssh.workers.identity import site_context
    from gpuprov.ssh.workers.service import serve

    host, _, port = listen.rpartition(":")
    if not (host and re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535) or (scheduler and processes):
        raise InvalidInput(
            f"--listen {listen}" if not scheduler else "--scheduler with --processes",
            expected="ADDRESS:PORT, and one of --scheduler and --processes",
        )
    context = site_context(folder)
    with ExitStack() as stack:
        if scheduler:
            connect = cluster.cluster_at(scheduler)
        else:
            connect = stack.enter_context(cluster.own_cluster(processes or os.cpu_count() or 1))
        try:
            asyncio.run(serve(context, host.strip("[]"), int(port), connect, note))
        except OSError as error:
            raise Unreachable(f"cannot listen on {listen}: {error.strerror}") from None
    return 0
