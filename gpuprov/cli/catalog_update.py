"""`gpuprov catalog update`: install a newer signed catalog for this gpuprov."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import say
from gpuprov.errors import Exit


@click.command()
@click.argument("source", required=False)
@click.option("--release", "stated", metavar="VERSION", help="that one, and no other: 2026.11.22")
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="public key of whoever signs catalogs; remembered",
)
def command(source: str | None, stated: str | None, key: Path | None) -> Exit:
    """Bring a newer catalog here, from SOURCE: a folder, a wheel of gpuprov-catalog, its URL; by default the
    package index that pip is set up with.

    What is signed by another key is refused. Fleets that are locked keep the catalog that their lock pins,
    until `gpuprov lock --upgrade`.
    """
    from gpuprov.catalog.releases import current
    from gpuprov.locking.catalogs.update import update

    done = update(source, stated=stated, key=key)
    options.note(f"from {done.place}, signed by {done.key}")
    if current().sha256 == done.release.sha256 != done.before.sha256:
        say(f"catalog {done.before.version} → {done.release}")
        options.note("locked fleets keep theirs until: gpuprov lock --upgrade")
    elif done.release.sha256 == done.before.sha256:
        say(f"catalog {done.release} is here already")
    else:
        say(f"catalog {done.release} is here for locks that pin it; {current()} stays the newest")
    return Exit.OK
