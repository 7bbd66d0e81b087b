"""`gpuprov verify`: check every node against the lock, with testinfra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell, waiting
from gpuprov.cli.common.this_machine import local_option
from gpuprov.errors import Exit


@click.command()
@options.on_nodes
@local_option
@click.option(
    "--image", is_flag=True, help="this root tree is an image of group NODES: check what an image can show"
)
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="also write JUnit XML to this file"
)
@options.verbose_option
def command(
    chosen: options.Chosen, output: str, local: bool, image: bool, junit: Path | None, verbose: int
) -> Exit:
    """Check every node against the lock, and show where it differs. Changes nothing.

    NODES are names, ranges (gpu[01-64]) or groups; by default all. -v shows the details of a failure.
    """
    if image:
        from gpuprov.cli.common.image import verify_image

        return verify_image(chosen, output, verbose=verbose)
    from gpuprov.history import keep
    from gpuprov.history.record import of_verdict
    from gpuprov.history.verified import keep_verdict
    from gpuprov.report.verification import recap
    from gpuprov.verify import run_verification

    chosen = replace(chosen, local=local)
    names, dispatch = chosen.names, chosen.dispatch
    with waiting(f"checking {len(names)} node{'s' if len(names) > 1 else ''}"):
        verdict = run_verification(chosen.lock, names, junit=junit, local=local, dispatch=dispatch)
    keep(of_verdict(chosen.lock, chosen.lock_path, verdict), options.note)
    keep_verdict(chosen.lock, chosen.lock_path, verdict, options.note)
    if output == "json":
        options.print_json(verdict.document())
    else:
        for line in recap(verdict, details=verbose > 0).splitlines():
            tell(line)
    if junit:
        options.note(f"JUnit XML is in {junit}")
    return verdict.exit_code
