"""`gpuprov catalog release`: sign the data files, and write them as a folder and as a wheel."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import say
from gpuprov.errors import Exit


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--signer", required=True, metavar="KEY", help="signing key, as for gpg --local-user")
@click.option("--version", "stated", help="version of the release  [default: the newest date in its files]")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="folder of the data files  [default: this gpuprov's]",
)
def command(folder: Path, signer: str, stated: str | None, data: Path | None) -> Exit:
    """Write this catalog into FOLDER, signed, and a gpuprov-catalog wheel next to it for `catalog update`."""
    from gpuprov.catalog.releases import OWN
    from gpuprov.locking.catalogs.sealing import seal

    release, wheel = seal(folder, signer, stated=stated, data=data or OWN)
    say(f"catalog {release.version} sha256 {release.sha256}")
    options.note(f"{folder} and {wheel}; try it: gpuprov catalog update {folder} --key FILE")
    return Exit.OK
