"""`gpuprov status --overview`: a fleet on one screen."""

from __future__ import annotations

from pathlib import Path

from gpuprov.cli.common import options
from gpuprov.cli.common.security import notes_about, print_notes
from gpuprov.cli.common.terminal import tell, waiting
from gpuprov.errors import Exit


def show_overview(nodes: tuple[str, ...], lock_path: Path, output: str) -> Exit:
    """Survey nodes of the lock, print the fleet's state with notes on security, and keep the look; return the
    survey's exit code.

    Args:
        nodes: names, ranges and groups; without any, all.

    Raises:
        InvalidInput: there is no lock, or it does not have a node.
    """
    from gpuprov.apply.holders import holders
    from gpuprov.drift.judge import exit_code
    from gpuprov.drift.survey import survey
    from gpuprov.history import History, changes, keep
    from gpuprov.history.ledger import out_now
    from gpuprov.history.record import of_survey
    from gpuprov.report.overview import Overview, overview_document, overview_lines

    chosen = options.Chosen(lock_path, nodes, 64)
    count, fleet = len(chosen.names), str(lock_path.absolute())
    with waiting(f"asking {count} node{'s' * (count != 1)}", of=count) as answered:
        found = survey(chosen.lock, chosen.names, dispatch=chosen.dispatch, answered=answered)
    held = [node.name for node in found if node.held and node.held.lease_s is not None]
    with History() as history:
        before = {name: seen for name, seen in history.looks("status", fleet).items() if name in chosen.names}
        doctor = {name: seen for name, seen in history.looks("doctor", fleet).items() if name in chosen.names}
        last = history.last_change(fleet)
        events = [each for each in history.events() if each.fleet == fleet and each.node in chosen.names]
    since = max((at for at, _ in before.values()), default=None)
    seen = Overview(
        chosen.lock,
        found,
        doctor,
        holders(chosen.lock, held, chosen.dispatch),
        since,
        list(changes([node for _, node in before.values()], found)) if before else [],
        last,
        [each for each in events if since and each.at > since],
        out_now(events, fleet),
    )
    keep(of_survey(chosen.lock, lock_path, found, "status"), options.note)
    if output == "json":
        options.print_json(overview_document(seen))
    else:
        for line in overview_lines(seen):
            tell(line)
        print_notes(notes_about(chosen.lock, found))
    return exit_code(found)
