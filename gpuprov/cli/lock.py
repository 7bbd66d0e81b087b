"""`gpuprov lock`: fleet.yml → fleet.lock.yml."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import completion, options
from gpuprov.cli.common.terminal import tell, waiting
from gpuprov.errors import Exit, InvalidInput, did_you_mean
from gpuprov.untrusted.within_limits import within_limits


@click.command()
@options.fleet_option("the fleet to read")
@click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="the file to write  [default: fleet.lock.yml next to the fleet]",
)
@click.option("--check", is_flag=True, help="write nothing; exit 3 if the lock is stale")
@click.option("--upgrade", is_flag=True, help="resolve again: all components, or only the named COMPONENTs")
@click.argument("components", metavar="[COMPONENT]...", nargs=-1, shell_complete=completion.components)
@click.option("-v", "--verbose", is_flag=True, help="also show changed packages and reasons")
@within_limits()
def command(
    fleet: Path,
    lock_path: Path | None,
    check: bool,
    upgrade: bool,
    components: tuple[str, ...],
    verbose: bool,
) -> Exit:
    """Resolve fleet.yml to exact versions, packages and settings, each with its reason.

    Locked versions and the lock's catalog are kept while the fleet allows it. --upgrade uses the newest
    installed catalog, and resolves all components again, or only the named ones: driver (with fabric manager
    and the other packages of its version), cuda, cudnn, nccl, docker, containerd (with Docker, if that is
    locked too), podman, container_toolkit, dcgm. -v also shows changed packages and reasons.
    """
    from gpuprov.locking.build import build_lock
    from gpuprov.locking.changes import brief, changes, taken_out, unmoved
    from gpuprov.model.components import MOVABLE
    from gpuprov.model.lock import lock_beside, read_lock, render_lock, write_lock

    path = lock_path or lock_beside(fleet)
    previous = read_lock(path) if path.exists() else None
    named = [name.replace("-", "_") for name in components]
    if unknown := [name for name in named if name not in MOVABLE]:
        meant = did_you_mean(unknown[0], MOVABLE)
        raise InvalidInput(f"no component {unknown[0]!r}", expected=f"one of {', '.join(MOVABLE)}", do=meant)
    if named and not upgrade:
        raise InvalidInput(
            f"{', '.join(named)} named without --upgrade", do=f"gpuprov lock --upgrade {' '.join(named)}"
        )
    moving = named or MOVABLE if upgrade else ()
    with waiting("reading the repositories"):
        lock = build_lock(fleet, previous=previous, upgrade=moving, narrate=options.warn)
    moved = changes(previous, lock) if verbose else brief(changes(previous, lock))
    if check:
        current = previous is not None and render_lock(previous) == render_lock(lock)
        options.note(f"{path} is current" if current else f"{path} is stale: run `gpuprov lock`")
        for line in moved:
            tell(line)
        return Exit.OK if current else Exit.DRIFT
    write_lock(lock, path)
    for line in moved:
        tell(line)
    for line in (*unmoved(previous, lock, named), *taken_out(previous, lock)):
        options.note(line)
    then = "plan" if path == lock_beside(fleet) else f"upgrade --to {path} --plan"
    options.note(f"{path} written; review it, commit it, then: gpuprov {then}")
    return Exit.OK
