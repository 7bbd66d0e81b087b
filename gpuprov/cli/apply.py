"""`gpuprov apply`: make it so, then verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.reports import keep
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from gpuprov.apply.context import Consent, Options
    from gpuprov.apply.converge import Convergence
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.model.lock import Lock
    from gpuprov.verify.verdict import Verdict


@click.command()
@options.on_nodes
@click.option("--reboot", is_flag=True, help="reboot nodes that need it, in the batches of the lock")
@click.option("--full", is_flag=True, help="run every role, not only those that the plan names")
@click.option("--role", "roles", multiple=True, help="of the plan only this role; may be repeated")
@click.option(
    "--guard",
    "guard_s",
    type=click.IntRange(20, 3600),
    default=180,
    show_default=True,
    help="seconds until a node takes back a change of SSH or firewall that no new login has proved",
)
@click.option("--no-verify", is_flag=True, help="do not verify afterwards")
@click.option("--allow-downgrade", is_flag=True, help="take packages back that are newer than the lock's")
@click.option("--force", is_flag=True, help="also where GPUs are in use; logged on the node")
@click.option("-C", "--check", is_flag=True, help="change nothing, say what would change")
@click.option("-D", "--diff", is_flag=True, help="show what changes in files")
@options.yes_option
@options.verbose_option
def command(
    chosen: options.Chosen,
    output: str,
    reboot: bool,
    full: bool,
    roles: tuple[str, ...],
    guard_s: int,
    no_verify: bool,
    allow_downgrade: bool,
    force: bool,
    check: bool,
    diff: bool,
    yes: bool,
    verbose: int,
) -> Exit:
    """Bring nodes to the lock: only the roles that drift calls for, only where it does; then verify.

    Where nothing differs nothing is started. Reboots happen with --reboot or the fleet's consent alone.
    """
    from gpuprov.apply.context import Consent, Options

    how = Options(chosen.forks, check, diff, verbosity=verbose, become_password=chosen.password)
    consent = Consent(reboot=reboot, downgrade=allow_downgrade, force=force, guard_s=guard_s)
    verify = not no_verify
    return _apply(chosen, how, consent, full=full, roles=roles, verify=verify, yes=yes, output=output)


def _apply(
    chosen: options.Chosen,
    how: Options,
    consent: Consent,
    *,
    full: bool,
    roles: tuple[str, ...],
    verify: bool,
    yes: bool,
    output: str,
) -> Exit:
    from gpuprov.apply.context import RunContext
    from gpuprov.apply.converge import Convergence, converge
    from gpuprov.apply.plan import full_plan, narrowed, plan_node
    from gpuprov.drift.judge import exit_code
    from gpuprov.drift.survey import survey
    from gpuprov.history.record import of_apply, of_survey
    from gpuprov.report.progress import Progress
    from gpuprov.report.recap import apply_document
    from gpuprov.report.text import drift_lines, plan_lines
    from gpuprov.runs import new_run

    lock = chosen.lock
    found = survey(lock, chosen.names, forks=how.forks, password=how.become_password)
    unanswered = [node for node in found if node.reason is not None]
    answered = [node for node in found if node.reason is None]
    plans = full_plan(node.name for node in answered) if full else [plan_node(node) for node in answered]
    plans = narrowed(plans, roles) if roles else plans
    busy = [plan for plan in plans if not plan.empty]
    for line in [*plan_lines(plans), *drift_lines(unanswered)]:
        options.note(line)
    if not busy:
        keep(of_survey(lock, chosen.lock_path, found, "apply"))
        if output == "json":
            options.print_json(apply_document(None, unanswered, Convergence(), None))
        return exit_code(found)
    options.ask(f"change {len(busy)} nodes", yes=yes or how.check)
    run = new_run("apply")
    context = RunContext(lock, run, how, consent, Progress(options.note).event, options.note)
    result = converge(context, plans)
    if not how.check:
        keep(of_apply(run.name, lock, chosen.lock_path, unanswered, result))
    verdict = _verify(lock, result.standing, how, run) if verify and not how.check else None
    return _conclude(run, unanswered, result, verdict, output)


def _verify(lock: Lock, names: list[str], how: Options, run: Path) -> Verdict | None:
    from gpuprov.nodeset import fold
    from gpuprov.verify import run as verify

    if not names:
        return None
    options.note(f"verifying {fold(names)}")
    return verify(
        lock,
        names,
        junit=run / "verify.xml",
        json=run / "verify.json",
        forks=how.forks,
        password=how.become_password,
    )


def _conclude(
    run: Path, unanswered: list[NodeDrift], result: Convergence, verdict: Verdict | None, output: str
) -> Exit:
    from gpuprov.nodeset import fold
    from gpuprov.report.recap import apply_document, conclusion, recap_lines
    from gpuprov.report.verification import recap

    if verdict and verdict.exit_code:
        options.note(recap(verdict, details=True))
    if output == "json":
        options.print_json(apply_document(run.name, unanswered, result, verdict))
    else:
        for line in recap_lines(result, verdict):
            click.echo(line)
    if result.reboot_needed:
        nodes = fold(result.reboot_needed)
        options.note(
            f"{nodes} must reboot before the driver is the lock's: gpuprov apply --reboot -l {nodes}"
        )
    options.note(f"everything that was done is in {run}")
    return conclusion(unanswered, result, verdict)
