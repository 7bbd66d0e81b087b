"""`gpuprov catalog update`: install a newer signed catalog for this gpuprov."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit


@click.command()
@click.argument("source", required=False)
@click.option("--release", "stated", metavar="VERSION", help="exactly this release: 2026.11.22")
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="public key that signs catalogs; stored for later updates",
)
def command(source: str | None, stated: str | None, key: Path | None) -> Exit:
    """Install a newer catalog from SOURCE: a folder, a wheel of gpuprov-catalog, or its URL; by default from
    the package index that pip is configured with.

    A catalog signed by another key is refused. A locked fleet keeps the catalog that its lock pins until
    `gpuprov lock --upgrade`.
    """
    from gpuprov.catalog.releases import current
    from gpuprov.locking.catalogs.update import update

    done = update(source, stated=stated, key=key)
    options.note(f"from {done.place}, signed by {done.key}")
    if current().sha256 == done.release.sha256 != done.before.sha256:
        tell(f"catalog {done.before.version} → {done.release}")
        options.note("locked fleets keep their catalog until: gpuprov lock --upgrade")
    elif done.release.sha256 == done.before.sha256:
        tell(f"catalog {done.release} is already installed")
    else:
        tell(f"catalog {done.release} is installed for locks that pin it; {current()} is still the newest")
    return Exit.OK
