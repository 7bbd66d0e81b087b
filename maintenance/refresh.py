"""`scripts/catalog refresh`: changes of the catalog from published lists, as a diff to review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from gpuprov.catalog.loading import read_data
from gpuprov.catalog.releases import OWN
from gpuprov.cli.catalog_check import from_option, key_option
from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import say, show
from gpuprov.errors import Exit, InvalidInput
from gpuprov.locking.catalogs.refresh.bulletins import read_advisories
from gpuprov.locking.catalogs.refresh.proposal import LAST_READ, Change, Document, Proposal, read_documents
from gpuprov.locking.catalogs.refresh.propose import propose
from gpuprov.locking.catalogs.refresh.read import read_all
from gpuprov.locking.catalogs.refresh.seen import Reading
from maintenance import changes


@click.command()
@from_option
@key_option
@click.option(
    "--csaf",
    multiple=True,
    metavar="FOLDER|FILE|URL",
    help="also read security advisories in CSAF 2.0: a clone of NVIDIA/product-security, or single files",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="folder of the data files  [default: this checkout's]",
)
@click.option("--write", is_flag=True, help="write the proposed changes; without it nothing changes")
@click.option(
    "--overwrite",
    multiple=True,
    metavar="KEY",
    help="also overwrite this key, which was entered by hand; repeatable",
)
def command(
    base: str | None,
    key: Path | None,
    csaf: tuple[str, ...],
    data: Path | None,
    write: bool,
    overwrite: tuple[str, ...],
) -> Exit:
    """Read the published sources (NVIDIA's repositories, wheels' metadata, lists of GPUs in driver packages,
    distributions' archives, with --csaf security advisories), and propose changes to the catalog's records,
    each with its source and day.

    `+` is a new record, `~` a changed field, `!` a change that would overwrite an entry made by hand. Exit 0
    if nothing is proposed or the changes were written, 3 otherwise.
    """
    folder = data or OWN
    day = datetime.now(UTC).date().isoformat()
    catalog, old = read_data(folder), read_documents(folder)
    read = [*read_all(catalog, base, key, day), *(read_advisories(csaf, day) if csaf else ())]
    readings = [each for each in read if isinstance(each, Reading)]
    for each in read:
        if isinstance(each, Reading):
            count = f"{len(each.advisories)} advisories" if each.advisories else f"{len(each.seen)} versions"
            options.note(f"read: {each.about['title']}: {count}")
        else:
            options.note(f"not read: {each.what}: {each.why}")
    if not readings:
        raise InvalidInput(
            "no source could be read", do="see the reasons above, or name a mirror: --from FOLDER"
        )
    proposal, last_read = propose(catalog, old, readings, day)
    picked = changes.chosen(proposal.changes, overwrite)
    sources = {each.source: each.about for each in readings}
    new = changes.applied(old, picked, sources, day) | {LAST_READ: last_read}
    _show(proposal, picked, old, new)
    if write:
        for path in changes.write(folder, old, new):
            options.note(f"{path} written")
        return Exit.OK
    if proposal.changes:
        options.note("nothing was written: add --write, then review the changed files")
    return Exit.DRIFT if proposal.changes else Exit.OK


def _show(
    proposal: Proposal, picked: Sequence[Change], old: Mapping[str, Document], new: Mapping[str, Document]
) -> None:
    """Print the proposed changes, the remarks, the diff of the files, and the counts.

    Args:
        picked: the changes that would be written.
        old, new: documents before and after these changes.
    """
    for change in proposal.changes:
        show("\n".join(changes.describe(change, old)))
    for remark in proposal.remarks:
        say(f"? {remark}")
    say()
    for line in changes.diff(old, new):
        say(line)
    left = len(proposal.changes) - len(picked)
    say(f"{len(picked)} changes, {left} that would overwrite, {len(proposal.remarks)} to review by hand")
