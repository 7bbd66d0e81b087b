"""`gpuprov catalog release`: sign the data files, and write them as a folder and as a wheel."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import say
from gpuprov.errors import Exit


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--signer", required=True, metavar="KEY", help="whose key signs, as gpg --local-user takes it")
@click.option("--version", "stated", help="by default the day that the newest of its files speaks of")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="the files to seal, by default those of this gpuprov",
)
def command(folder: Path, signer: str, stated: str | None, data: Path | None) -> Exit:
    """Seal this catalog into FOLDER and write a wheel of gpuprov-catalog next to it, for `catalog update`."""
    from gpuprov.catalog.releases import OWN
    from gpuprov.locking.catalogs.sealing import seal

    release, wheel = seal(folder, signer, stated=stated, data=data or OWN)
    say(f"catalog {release.version} sha256 {release.sha256}")
    options.note(f"{folder} and {wheel}; try it: gpuprov catalog update {folder} --key FILE")
    return Exit.OK
