"""Images of a group's machines: `apply --image` and `verify --image`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from gpuprov.apply.context import Consent
    from gpuprov.model.lock import Lock
    from gpuprov.verify import Verdict


def group_of(chosen: options.Chosen) -> str:
    """Return the group of the machines that will be made from this image.

    Raises:
        InvalidInput: not exactly one group is named.
    """
    named = chosen.stated or tuple(chosen.lock.groups)
    if len(named) != 1:
        raise InvalidInput(
            f"{len(named)} groups", expected="one: an image is for one group", do="name a group of the lock"
        )
    return named[0]


def apply_image(
    chosen: options.Chosen,
    output: str,
    consent: Consent,
    *,
    verified: bool,
    verbose: int,
    yes: bool,
    modules: Path | None = None,
    modules_out: Path | None = None,
) -> Exit:
    """Bring this tree to the lock as far as possible in an image, and prepare the rest for the first boot.

    The rest is prepared, and the tree verified, only if all roles succeeded.

    Args:
        verified: whether to verify the tree afterwards.
        yes: whether not to ask for confirmation.
        modules: file with modules of the fleet's builders, exported by the controller.
        modules_out: file for the modules that are compiled here, for the controller's store.
    """
    from gpuprov.apply.context import Options, RunContext
    from gpuprov.apply.image import image_lock, leave_for_first_boot, make_image
    from gpuprov.apply.kernel_modules.archive_file import compiled_here, export_modules, import_into_image
    from gpuprov.files.runs import new_run
    from gpuprov.files.writing import replace_file
    from gpuprov.report.image import image_document, image_exit, image_lines
    from gpuprov.report.progress import Progress

    group = group_of(chosen)
    lock = image_lock(chosen.lock, group)
    options.ask("turn this root tree into an image", yes=yes)
    for kept in import_into_image(lock, modules) if modules else ():
        options.note(f"added to this tree's store: {kept.build}")
    progress, how = Progress(options.note), Options(verbosity=verbose)
    run = RunContext(lock, new_run("apply"), how, consent, progress.event, options.note)
    with progress.alive():
        image = make_image(run)
    if modules_out and (image.outcome.ok or compiled_here(lock, lock.groups[group])):
        replace_file(modules_out, export_modules(lock, lock.groups[group]))
        options.note(f"on the controller: gpuprov apply --modules {modules_out.name}")
    verdict = _look(lock) if verified and image.outcome.ok else None
    if image.outcome.ok:
        leave_for_first_boot(chosen.lock, group)
    waiting = left_out(lock)
    if output == "json":
        options.print_json(image_document(run.id, image, verdict, waiting))
    else:
        for line in image_lines(image, verdict, waiting):
            tell(line)
    _say_failures(verdict)
    options.note(f"logs of this run: {run.folder}")
    return image_exit(image, verdict)


def verify_image(chosen: options.Chosen, output: str, *, verbose: int) -> Exit:
    """Verify this tree, print the verdict and the checks that are not possible in an image; return the exit
    code.
    """
    from gpuprov.apply.image import image_lock
    from gpuprov.report.image import waiting_lines
    from gpuprov.report.verification import recap

    lock = image_lock(chosen.lock, group_of(chosen))
    verdict, waiting = _look(lock), left_out(lock)
    if output == "json":
        options.print_json({**verdict.document(), "not_judged": waiting})
    else:
        for line in [*recap(verdict, details=verbose > 0).splitlines(), *waiting_lines(waiting)]:
            tell(line)
    return verdict.exit_code


def left_out(lock: Lock) -> dict[str, list[str]]:
    """Return the event to wait for → the checks that are not possible before it.

    Args:
        lock: lock of an image, with exactly one group.
    """
    from gpuprov.roles.image import postponed
    from gpuprov.verify.wanted import wanted

    [group] = lock.groups.values()
    return postponed(wanted(group).values())


def _look(lock: Lock) -> Verdict:
    """Verify this root tree as an image, and return the verdict."""
    from gpuprov.verify import run_verification

    return run_verification(lock, lock.hosts(), image=True)


def _say_failures(verdict: Verdict | None) -> None:
    """Print the details of a verdict on stderr if it failed."""
    from gpuprov.report.verification import recap

    if verdict and verdict.exit_code:
        options.note_lines(recap(verdict, details=True))
