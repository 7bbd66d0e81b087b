"""`gpuprov catalog check`: find stale parts of the catalog, or a lock that pins a stale one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuprov.catalog import Catalog
    from gpuprov.catalog.releases import Release
    from gpuprov.locking.catalogs.stale import Stale
    from gpuprov.model.lock import Lock

from_option = click.option(
    "--from",
    "base",
    metavar="FOLDER|URL",
    help="read only this mirror, in NVIDIA's layout (compute/cuda/repos, libnvidia-container)",
)
key_option = click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="public key that signed the mirror  [default: NVIDIA's]",
)


@click.command()
@options.lock_option
@click.option("--indexes", is_flag=True, help="also read the repositories, archives and package index")
@click.option(
    "--security", is_flag=True, help="also report locked versions that a security bulletin concerns"
)
@from_option
@key_option
@options.output_option
def command(
    lock_path: Path, indexes: bool, security: bool, base: str | None, key: Path | None, output: str
) -> Exit:
    """Report what is stale: the catalog by its date, the lock's catalog, locked drivers that were withdrawn
    or do not build against the locked kernel, and, with --indexes, what published indexes contain and the
    catalog does not. With --security, each locked version that a security bulletin of the catalog concerns,
    the nearest fixed version, what that needs, and what to type.

    Exit 0 if nothing is stale, 3 otherwise.
    """
    from gpuprov.catalog import load
    from gpuprov.catalog.releases import current
    from gpuprov.locking.catalogs.stale import SCHEMA, stale
    from gpuprov.model.lock import read_lock

    release = current()
    catalog = load(release=release.folder)
    lock = read_lock(lock_path) if lock_path.is_file() else None
    found = list(stale(catalog, release, lock, datetime.now(UTC).date()))
    if security:
        found += _affected(catalog, lock)
    if indexes or base:
        found += _asked(catalog, release, base, key)
    if output == "json":
        said = {"version": str(release.version), "sha256": release.sha256, "as_of": catalog.as_of}
        options.print_json({"schema": SCHEMA, "catalog": said, "stale": [each.to_json() for each in found]})
    else:
        for each in found:
            tell(each.text + (f": {each.do}" if each.do else ""))
        options.note(
            f"catalog {release}, as of {catalog.as_of}: {f'{len(found)} stale' if found else 'current'}"
        )
    return Exit.DRIFT if found else Exit.OK


def _affected(catalog: Catalog, lock: Lock | None) -> Iterator[Stale]:
    """Yield the locked versions that bulletins concern, and print until when bulletins are known.

    Also a catalog without bulletins is yielded, and a missing lock is printed.
    """
    from gpuprov.locking.catalogs.stale import Stale
    from gpuprov.locking.security import advices

    if catalog.bulletins_as_of is None:
        yield Stale("security", "the catalog has no security bulletins", "gpuprov catalog update")
        return
    count = len(catalog.bulletins)
    options.note(f"{count} security bulletins, as of {catalog.bulletins_as_of}")
    if lock is None:
        options.note("no lock, so no versions to judge: gpuprov lock")
        return
    for name, group in lock.groups.items():
        for each in advices(name, group, catalog):
            yield Stale("security", f"{name}: {each.text}", each.do)


def _asked(catalog: Catalog, release: Release, base: str | None, key: Path | None) -> Iterator[Stale]:
    """Yield differences between the catalog and the published indexes; print those that could not be read.

    Args:
        base: mirror to read in place of the published places.
        key: public key of the mirror; None for NVIDIA's.
    """
    from gpuprov.locking.catalogs.refresh.proposal import read_documents
    from gpuprov.locking.catalogs.refresh.propose import propose
    from gpuprov.locking.catalogs.refresh.read import read_all
    from gpuprov.locking.catalogs.refresh.seen import NotRead, Reading
    from gpuprov.locking.catalogs.stale import Stale

    day = datetime.now(UTC).date().isoformat()
    read = read_all(catalog, base, key, day)
    for each in read:
        if isinstance(each, NotRead):
            options.note(f"not read: {each.what}: {each.why}")
    known = [each for each in read if isinstance(each, Reading)]
    proposal, _ = propose(catalog, read_documents(release.folder), known, day)
    for change in proposal.changes:
        yield Stale("index", f"{change.key}: {change.why} [{change.source}]", "gpuprov catalog update")
    for remark in proposal.remarks:
        yield Stale("index", remark)
