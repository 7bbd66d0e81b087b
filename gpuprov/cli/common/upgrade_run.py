"""Code that `upgrade`, `rollback`, `repair` and `accept --share` share: contexts, resumption, results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.model.lock import Lock
    from gpuprov.upgrade.context import UpgradeContext
    from gpuprov.upgrade.repair.bmc import Bmc
    from gpuprov.upgrade.repair.context import RepairContext


def refuse_with_resume(*names: str) -> None:
    """Refuse nodes and options with --resume: a run continues as it was begun, so they would have no effect.

    Args:
        names: parameters of the verb, besides its nodes.

    Raises:
        InvalidInput: one of them is on the command line.
    """
    context = click.get_current_context()
    for each in context.command.params:
        if (
            each.name in ("nodes", "limit", *names)
            and context.params[each.name]
            and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
        ):
            name = each.opts[0] if isinstance(each, click.Option) else "NODES"
            raise InvalidInput(
                f"{name} has no effect with --resume: the run continues as it was begun",
                do=f"leave out {name}",
            )


def upgrade_context(
    chosen: options.Chosen, old: Lock, new: Lock, folder: Path, source: Path | None = None
) -> UpgradeContext:
    """Return the context of a run between two locks, in a folder.

    It resumes by itself after a reboot of this machine.

    Args:
        source: for a rollback the folder of the run that it undoes; by default the run's own folder.
    """
    from gpuprov.apply.afterboot import Afterwards, boot_before
    from gpuprov.apply.context import Options
    from gpuprov.files.runs import verb_of
    from gpuprov.upgrade.context import UpgradeContext

    how = Options(chosen.dispatch)
    words = (verb_of(folder.name), "--resume", folder.name, "--lock", str(chosen.lock_path.absolute()))
    afterwards = Afterwards(words, boot_before())
    source = source or folder
    return UpgradeContext(
        new, folder, how, narrate=options.note, old=old, source=source, afterwards=afterwards
    )


def repair_context(
    chosen: options.Chosen, lock: Lock, folder: Path, bmcs: Mapping[str, Bmc] | None = None
) -> RepairContext:
    """Return the context of a repair, or of the share of a fleet that is measured, in a folder."""
    from gpuprov.apply.context import Options
    from gpuprov.upgrade.repair.context import RepairContext

    return RepairContext(
        lock,
        folder,
        Options(chosen.dispatch),
        narrate=options.note,
        old=lock,
        source=folder,
        bmcs=bmcs or {},
        lock_path=chosen.lock_path.absolute(),
    )


def resume(name: str, verb: str, chosen: options.Chosen) -> UpgradeContext:
    """Return the context of an unfinished run, after its processes on this machine have ended.

    Args:
        name: id of the run, or `latest`, of the fleet that the command line names.
        verb: `upgrade` or `rollback`.

    Raises:
        InvalidInput: no such run, or it has ended.
    """
    from gpuprov.model.lock import fleet_beside
    from gpuprov.upgrade.context import unpack
    from gpuprov.upgrade.find import find_unfinished
    from gpuprov.upgrade.header import header
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.orphans import wait_for_orphans

    folder = find_unfinished(name, verb, fleet_beside(chosen.lock_path))
    source = folder.with_name(header(read(folder)).source)
    context = upgrade_context(chosen, *unpack(folder), folder, source)
    options.note(f"resuming {context.id}")
    wait_for_orphans(context)
    return context


def follow(context: UpgradeContext, lock_path: Path, output: str) -> Exit:
    """Run until the end, and print the result; return its exit code."""
    from gpuprov.apply.afterboot import gone_when_done
    from gpuprov.report.progress import Progress
    from gpuprov.report.upgrade import outcome_document, outcome_lines
    from gpuprov.upgrade.finish import follow

    with gone_when_done(options.note), Progress(options.note).alive() as progress:
        outcome = follow(replace(context, listen=progress.event), lock_path)
    document, lines = outcome_document(context.id, outcome), outcome_lines(outcome)
    return print_result(context.folder, output, document, lines, outcome.exit_code)


def print_result(
    folder: Path, output: str, document: dict[str, Any], lines: Iterable[str], code: Exit
) -> Exit:
    """Print the result of a run as JSON or lines, and its folder; return the exit code."""
    if output == "json":
        options.print_json(document)
    else:
        for line in lines:
            tell(line)
    options.note(f"logs of this run: {folder}")
    return code
