"""`gpuprov apply`: change nodes to match the lock, then verify."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import completion, options, this_machine
from gpuprov.cli.common.ahead import import_ahead
from gpuprov.cli.common.staleness import warn_if_stale
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.apply.context import Consent, Options, RunContext
    from gpuprov.apply.converge import Convergence
    from gpuprov.apply.proposal import Proposal
    from gpuprov.model.lock import Lock
    from gpuprov.report.progress import Progress
    from gpuprov.verify import Verdict


@click.command()
@options.on_nodes
@this_machine.local_option
@click.option("--reboot", is_flag=True, help="reboot nodes that need it, in the lock's batches")
@click.option("--full", is_flag=True, help="run every role, not only those that the plan names")
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="run only this role of the plan; repeatable",
    shell_complete=completion.roles,
)
@click.option(
    "--guard",
    "guard_s",
    type=click.IntRange(20, 3600),
    default=180,
    show_default=True,
    help="seconds until a node reverts a change of SSH or firewall that no new login has confirmed",
)
@click.option("--no-verify", is_flag=True, help="do not verify afterwards")
@click.option("--allow-downgrade", is_flag=True, help="downgrade packages that are newer than the lock's")
@click.option("--force", is_flag=True, help="change a node although its GPUs are in use; logged on the node")
@click.option("--image", is_flag=True, help="apply to this root tree as an image for group NODES; see below")
@click.option(
    "--modules-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="with --image: write the compiled modules to this file, for --modules on the controller",
)
@click.option(
    "--modules",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="first add the modules of this file to the store: from an image; with --image from"
    " `gpuprov inventory export`",
)
@click.option("--continue", "waiting", metavar="RUN", help="continue RUN after a reboot of this machine")
@click.option("-C", "--check", is_flag=True, help="change nothing, show what would change")
@click.option("-D", "--diff", is_flag=True, help="show the changes in files")
@options.yes_option
@options.verbose_option
def command(
    chosen: options.Chosen,
    output: str,
    local: bool,
    reboot: bool,
    full: bool,
    roles: tuple[str, ...],
    guard_s: int,
    no_verify: bool,
    allow_downgrade: bool,
    force: bool,
    image: bool,
    modules_out: Path | None,
    modules: Path | None,
    waiting: str | None,
    check: bool,
    diff: bool,
    yes: bool,
    verbose: int,
) -> Exit:
    """Change nodes to match the lock: run only the roles whose checks differ, then verify.

    If nothing differs and the last verification of every node passed, nothing is started; other nodes are
    verified, and what fails there is corrected like drift. A node is rebooted only with --reboot or if the
    fleet allows it. A node that another run has leased is skipped (exit 5).

    With --image, NODES is a group, and the root tree that this runs in becomes an image for it: nothing is
    started, no GPU is needed, and the first boot does what only a booted machine can do
    (docs/first-boot.md).

    With --local, this machine is the node. Without a lock, the machine is read first, and fleet.yml and the
    lock are written. It is rebooted last, and the run continues by itself in the next boot:
    `gpuprov history` shows the result.
    """
    from gpuprov.apply.context import Consent, Options
    from gpuprov.model.nodeset import fold

    consent = Consent(reboot=reboot, downgrade=allow_downgrade, force=force, guard_s=guard_s)
    if image:
        from gpuprov.cli.common.image import apply_image

        return apply_image(
            chosen,
            output,
            consent,
            verified=not no_verify,
            verbose=verbose,
            yes=yes,
            modules=modules,
            modules_out=modules_out,
        )
    if modules_out:
        raise InvalidInput("--modules-out without --image", do="add --image, or leave out --modules-out")
    if waiting is not None:
        return _continue(waiting, output)
    chosen = replace(chosen, local=local)
    if local:
        this_machine.first_files(chosen.lock_path)
    warn_if_stale(chosen.lock, chosen.lock_path)
    if modules:
        from gpuprov.apply.kernel_modules.archive_file import import_modules

        for kept in import_modules(chosen.lock, modules):
            options.note(f"added to the store, built in an image: {kept.build}")
    how = Options(chosen.dispatch, check, diff, verbosity=verbose)
    proposal = proposed(chosen, how, roles=roles, full=full, verified=not no_verify and not check)
    show_plan(chosen.lock, proposal)
    if not proposal.busy:
        return nothing_to_do(chosen, proposal, output)
    changing = [plan.name for plan in proposal.busy if consent.downgrade or not plan.newer]
    if changing:  # the others are refused, without a question
        options.ask(f"change {fold(changing)}", yes=yes or check)
    return carry_out(chosen, proposal, how, consent, output, verified=not no_verify)


def show_plan(lock: Lock, proposal: Proposal) -> None:
    """Print the plan of an apply, nodes that did not answer, and the sum of the changes."""
    from gpuprov.report.text import proposal_lines

    for line in proposal_lines(lock, proposal):
        options.note(line)


def carry_out(
    chosen: options.Chosen,
    proposal: Proposal,
    how: Options,
    consent: Consent,
    output: str,
    *,
    verified: bool = True,
) -> Exit:
    """Change the nodes of a proposal as it plans, verify them, and print the result; return the exit code;
    raises as `_change`.

    With `how.check` only show what would change.

    Args:
        output: `json`, or `table` for lines.
        verified: whether to verify at the end.
    """
    from gpuprov.apply.context import RunContext
    from gpuprov.files.runs import new_run
    from gpuprov.report.progress import VERIFY, Progress

    steps = proposal.steps(reboots=consent.reboot and not how.check)
    if verified and not how.check:
        steps[VERIFY] = [plan.name for plan in proposal.busy]
    progress = Progress(options.note, diffs=how.diff, steps=steps)
    run = RunContext(chosen.lock, new_run("apply"), how, consent, progress.event, options.note)
    if how.check:
        result, verdict = _check(run, proposal, progress), None
    else:
        run = this_machine.remember(run, chosen.names, chosen.lock_path, verified=verified)
        result, verdict = _change(run, proposal, progress, chosen.lock_path, verified=verified)
    return _conclude(run, proposal, result, verdict, output)


def proposed(
    chosen: options.Chosen, how: Options, *, roles: tuple[str, ...], full: bool, verified: bool
) -> Proposal:
    """Survey the nodes, verify those without drift whose state is not known, and plan what is wrong.

    Their state is known if the last verification of this lock passed. The verdict is kept in the history.
    Chosen roles run without verification.

    Args:
        roles: only these roles; empty means all.
        full: every role on every node, independent of the drift.
        verified: whether to verify.
    """
    from gpuprov.apply.proposal import propose, with_verification

    ahead = partial(import_ahead, "history.verified", "model.nodeset", "report.text")
    proposal = propose(chosen.lock, chosen.names, how, roles=roles, full=full, meanwhile=ahead)

    from gpuprov.history.verified import keep_verdict, not_verified
    from gpuprov.model.nodeset import fold

    if full or roles or not verified:
        return proposal
    unknown = not_verified(chosen.lock, chosen.lock_path, proposal.in_sync)
    if not unknown:
        return proposal
    options.note(f"verifying {fold(unknown)}: no drift, but no passed verification of this lock is known")
    proposal = with_verification(proposal, chosen.lock, unknown, how)
    if proposal.verdict:
        keep_verdict(chosen.lock, chosen.lock_path, proposal.verdict, options.note)
    return proposal


def _check(run: RunContext, proposal: Proposal, progress: Progress) -> Convergence:
    """Return what the plans' roles would change, without changes on the nodes."""
    from gpuprov.apply.converge import converge

    with progress.alive():
        return converge(run, proposal.plans)


def _change(
    run: RunContext, proposal: Proposal, progress: Progress, lock_path: Path, *, verified: bool
) -> tuple[Convergence, Verdict | None]:
    """Change nodes, keep the run in the history and verify; the run holds the nodes' leases meanwhile.

    Without verification the verdict is None. Raises as `LeaseManager` and `converge_exclusively`.
    """
    from gpuprov.apply.converge import verify
    from gpuprov.apply.exclusive import converge_exclusively
    from gpuprov.apply.lease_manager import LeaseManager
    from gpuprov.history import keep
    from gpuprov.history.record import of_apply
    from gpuprov.history.verified import keep_verdict
    from gpuprov.report.progress import VERIFY

    with LeaseManager([run.lock], run.folder, dispatch=run.options.dispatch) as leases:
        run = replace(run, leases=leases)
        with progress.alive():
            result = converge_exclusively(run, leases, proposal)
        this_machine.account(result, run)
        keep(of_apply(run.id, run.lock, lock_path, proposal.unanswered, result), options.note)
        verdict = None
        if verified:
            with progress.alive(VERIFY):
                verdict = verify(run, result)
        if verdict:
            keep_verdict(run.lock, lock_path, verdict, options.note)
        return result, verdict


def _continue(name: str, output: str) -> Exit:
    """Continue an apply after the reboot of this machine that it requested.

    Args:
        name: id of the run.
        output: `json`, or `table` for lines.

    Raises:
        InvalidInput: no such run is waiting for a reboot.
    """
    from gpuprov.apply.afterboot import gone_when_done
    from gpuprov.report.progress import Progress

    progress = Progress(options.note, diffs=False)
    with gone_when_done(options.note):
        run, asked = this_machine.recall(name)
        run = replace(run, listen=progress.event)
        options.note(f"continuing {name} after the reboot")
        proposal = this_machine.settled_proposal(run, asked["names"])
        result, verdict = _change(run, proposal, progress, Path(asked["lock"]), verified=asked["verified"])
        return _conclude(run, proposal, result, verdict, output)


def nothing_to_do(chosen: options.Chosen, proposal: Proposal, output: str) -> Exit:
    """Keep the survey in the history, and print its verification; return the survey's code.

    JSON is the empty result.
    """
    from gpuprov.apply.converge import Convergence
    from gpuprov.drift.judge import exit_code
    from gpuprov.history import keep
    from gpuprov.history.record import of_survey
    from gpuprov.report.recap import apply_document
    from gpuprov.report.verification import recap

    keep(of_survey(chosen.lock, chosen.lock_path, proposal.found, "apply"), options.note)
    if output == "json":
        options.print_json(apply_document(None, proposal.unanswered, Convergence(), proposal.verdict))
    elif proposal.verdict:
        options.note_lines(recap(proposal.verdict, details=True))
    return exit_code(proposal.found)


def _conclude(
    run: RunContext, proposal: Proposal, result: Convergence, verdict: Verdict | None, output: str
) -> Exit:
    """Print the run's result, its verdict if it failed, and hints; return the exit code."""
    from gpuprov.apply.verified import tried
    from gpuprov.model.nodeset import fold
    from gpuprov.report.recap import apply_document, conclusion, recap_lines, unexplained
    from gpuprov.report.verification import recap

    if verdict and verdict.exit_code:
        without_effect = tried(run.lock, proposal.busy, result.rebooted)
        options.note_lines(recap(verdict, details=True, tried=without_effect))
    if output == "json":
        options.print_json(apply_document(run.id, proposal.unanswered, result, verdict))
    else:
        for line in recap_lines(result, verdict, proposal.unanswered):
            tell(line)
        if failed := unexplained(result, verdict):
            options.note(f"to check the machine itself for faults: gpuprov doctor {fold(failed)}")
    if result.reboot_needed:
        nodes = fold(result.reboot_needed)
        options.note(f"{nodes} must reboot before the lock is in effect: gpuprov apply --reboot -l {nodes}")
    options.note(f"logs of this run: {run.folder}")
    return conclusion(proposal.unanswered, result, verdict)
