"""`gpuprov doctor`: find faults of a GPU server, with evidence and remedies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import show, tell
from gpuprov.errors import Exit, GpuprovError, InvalidInput, worst

if TYPE_CHECKING:
    from gpuprov.doctor.examination import Examination
    from gpuprov.doctor.judge import Diagnosis
    from gpuprov.ssh.dispatch import Dispatch
    from gpuprov.ssh.transport import Target

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("--local", is_flag=True, help="check this machine, without SSH")
@click.option("--all", "every", is_flag=True, help="check all nodes of the lock")
@click.option("--facts", "saved", type=FILE, help="judge facts saved by --save, in place of a machine")
@click.option("--save", type=FILE, help="save the facts of the one machine to this file, as JSON")
@click.option(
    "--load",
    "seconds",
    type=click.FloatRange(min=1, max=600),
    is_flag=False,
    flag_value=5.0,
    metavar="[SECONDS]",
    help="find the bottleneck from a sample of SECONDS (5) under load",
)
@click.option(
    "--bundle",
    type=FILE,
    help="write a bundle for the vendor's support: chosen fields of the one machine, shown first",
)
@click.option("--show", "whole", is_flag=True, help="with --bundle: print every file of the bundle")
@options.yes_option
@click.option("--brief", is_flag=True, help="print one line for each fault")
@options.lock_option
@options.forks_option
@options.identity_option
@options.known_hosts_option
@options.password_option
@options.output_option
@click.option("--html", type=FILE, help="also write an HTML page to this file")
@click.option("--junit", type=FILE, help="also write JUnit XML to this file")
@click.option(
    "--prometheus", type=FILE, help="also write metrics for node_exporter's textfile collector to this file"
)
def command(
    hosts: tuple[str, ...],
    local: bool,
    every: bool,
    saved: Path | None,
    save: Path | None,
    seconds: float | None,
    bundle: Path | None,
    whole: bool,
    yes: bool,
    brief: bool,
    lock_path: Path,
    forks: int,
    identity: str | None,
    known_hosts: str | None,
    ask_become_pass: bool,
    output: str,
    html: Path | None,
    junit: Path | None,
    prometheus: Path | None,
) -> int:
    """Check HOSTs ([USER@]HOST[:PORT], or nodes of the lock) for faults, and show how to fix them.

    No fleet and no lock is needed, and nothing is changed. Exit 1 if something is broken or degraded, 4 if a
    host is unreachable. Facts that could not be read are reported as unknown.
    """
    from gpuprov.ssh.dispatch import Dispatch

    if (stated := sum((bool(hosts), local, every, saved is not None))) != 1:
        raise InvalidInput(
            "more than one of HOSTs, --local, --all and --facts" if stated else "no host is named",
            do="name hosts, or give --local, --all, or --facts FILE",
        )
    hosts = _every(lock_path) if every else hosts
    if save is not None and len(hosts) > 1:
        raise InvalidInput(f"--save with {len(hosts)} hosts", do="name one host")
    if (whole or yes) and bundle is None:
        raise InvalidInput("--show or --yes without --bundle", do="give --bundle FILE, or leave them out")
    if seconds is not None and (saved or save):
        raise InvalidInput("--load with --facts or --save", do="leave out --load, or the other")
    if bundle is not None:
        if saved is not None:
            return _bundle(bundle, _saved(saved), whole=whole, yes=yes)
        if not local and len(targets := _targets(hosts, lock_path, identity, known_hosts)) != 1:
            raise InvalidInput(f"--bundle with {len(targets)} hosts", do="name one host, or give --local")
        seen = _examined_here() if local else _examined(targets[0], options.ask_password(ask_become_pass))
        return _bundle(bundle, seen, whole=whole, yes=yes)
    if saved is not None:
        found = [_from_file(saved)]
    elif local:
        found = [_here(save) if seconds is None else _sample_here(seconds)]
    else:
        dispatch = Dispatch(forks, options.ask_password(ask_become_pass))
        targets = _targets(hosts, lock_path, identity, known_hosts)
        found = (
            _there(targets, dispatch, save, lock_path)
            if seconds is None
            else (_sample_there(targets, seconds, dispatch))
        )
    _print(found, output, brief=brief)
    _write(found, html, junit, prometheus)
    return worst(*(each.exit_code for each in found))


def _every(lock_path: Path) -> tuple[str, ...]:
    """Return all nodes of the lock; raises as `read_lock`."""
    from gpuprov.model.lock import read_lock

    return tuple(read_lock(lock_path).hosts())


def _remember(found: list[Diagnosis], lock_path: Path) -> None:
    """Keep the diagnoses of nodes of the lock for `gpuprov status --overview`, and their faults in the ledger
    of machines; of other machines nothing.
    """
    from gpuprov.history import keep
    from gpuprov.history.keeping import keep_diagnoses
    from gpuprov.history.record import of_diagnoses
    from gpuprov.model.lock import read_lock

    if not lock_path.is_file():
        return
    hosts = read_lock(lock_path).hosts()
    if known := [each for each in found if each.host in hosts]:
        fleet = str(lock_path.absolute())
        keep(of_diagnoses(known, fleet), options.note)
        keep_diagnoses(known, fleet, options.note)


def _bundle(path: Path, seen: Examination, *, whole: bool, yes: bool) -> int:
    """Show the bundle's contents, ask for confirmation, and write it to `path`; return the exit code."""
    from gpuprov.doctor.bundle.bundle import compose, pack, preview

    bundle = compose(seen)
    if whole:
        for name, text in bundle.files.items():
            show(f"== {name}\n{text}")
    for line in preview(bundle):
        options.note(line)
    options.ask(f"write this to {path}", yes=yes)
    pack(path, bundle)
    tell(f"{path} written; LEFT-OUT.txt in it lists what was left out")
    return Exit.OK


def _examined_here() -> Examination:
    """Examine this machine."""
    from gpuprov.doctor.look import examine_here

    return examine_here()


def _examined(target: Target, password: str | None) -> Examination:
    """Examine one node.

    Raises:
        GpuprovError: it was not reached, or did not answer.
    """
    from gpuprov.doctor.look import examine
    from gpuprov.ssh.dispatch import Dispatch

    [(_, answer)] = examine([target], dispatch=Dispatch(1, password))
    if isinstance(answer, GpuprovError):
        raise answer
    return answer


def _here(save: Path | None) -> Diagnosis:
    """Examine this machine, save its facts if `save` is given, and return the diagnosis."""
    from gpuprov.doctor.look import conclude, examine_here

    seen = examine_here()
    _keep(seen.to_answer(), save)
    return conclude(seen.host, seen)


def _from_file(path: Path) -> Diagnosis:
    """Return the diagnosis of saved facts; InvalidInput if the file cannot be used."""
    from gpuprov.doctor.look import conclude

    seen = _saved(path)
    return conclude(seen.host, seen)


def _saved(path: Path) -> Examination:
    """Return the examination in a file that `--save` wrote; raise InvalidInput for another file."""
    from gpuprov.doctor.look import examination
    from gpuprov.errors import NodeFailed
    from gpuprov.probe.facts import Facts
    from gpuprov.untrusted.stated import read_stated_json, stated_file

    expected = "a file written by `gpuprov doctor --save`"
    with stated_file(path, expected=expected):
        answer = read_stated_json(path, expected=expected)
        try:
            return examination(Facts.from_answer(answer if isinstance(answer, dict) else {}))
        except NodeFailed as error:
            raise InvalidInput(f"{path}: {error}", expected=expected) from None


def _sample_here(seconds: float) -> Diagnosis:
    """Return the bottleneck of this machine, from a sample of some seconds."""
    from gpuprov.doctor.look import sample_here

    return sample_here(seconds)


def _targets(
    hosts: tuple[str, ...], lock_path: Path, identity: str | None, known_hosts: str | None
) -> list[Target]:
    """Return the targets of hosts and ranges, each once; raise InvalidInput for an invalid range."""
    from gpuprov.model.nodeset import expand

    try:
        names = [name for text in hosts for name in expand(text)]
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {' '.join(hosts)!r}", expected=str(error)) from None
    return [options.way_to(name, lock_path, identity, known_hosts) for name in dict.fromkeys(names)]


def _sample_there(targets: list[Target], seconds: float, dispatch: Dispatch) -> list[Diagnosis]:
    """Return the bottleneck of each target in order, from a sample of some seconds."""
    from gpuprov.doctor.look import sample

    found = dict(sample(targets, seconds, dispatch=dispatch))
    return [found[target.name] for target in targets]


def _there(targets: list[Target], dispatch: Dispatch, save: Path | None, lock_path: Path) -> list[Diagnosis]:
    """Examine targets, save their facts if `save` is given, and return the diagnoses in order.

    Those of nodes of the lock are kept in the history.
    """
    from gpuprov.doctor.examination import Examination
    from gpuprov.doctor.look import conclude, examine

    found = {}
    for name, answer in examine(targets, dispatch=dispatch):
        if isinstance(answer, Examination):
            _keep(answer.to_answer(), save)
        found[name] = conclude(name, answer)
    diagnoses = [found[target.name] for target in targets]
    _remember(diagnoses, lock_path)
    return diagnoses


def _keep(answer: dict[str, object], path: Path | None) -> None:
    """Write an examination as JSON to `path`; nothing if it is None. Raises as `write_text`."""
    if path is not None:
        import json

        from gpuprov.model.documents import write_text

        write_text(path, json.dumps(answer, indent=1, sort_keys=True) + "\n")


def _print(found: list[Diagnosis], output: str, *, brief: bool) -> None:
    """Print the diagnoses on stdout as JSON or as lines."""
    if output == "json":
        from gpuprov.doctor.judge import document

        options.print_json(document(found))
    else:
        from gpuprov.report.doctor import doctor_lines

        for line in doctor_lines(found, brief=brief):
            tell(line)


def _page(found: list[Diagnosis]) -> str:
    """Return the diagnoses as an HTML page with the current time."""
    from gpuprov.files.runs import now
    from gpuprov.report.doctor import doctor_html

    return doctor_html(found, now())


def _write(found: list[Diagnosis], html: Path | None, junit: Path | None, prometheus: Path | None) -> None:
    """Write the diagnoses to the requested files: HTML, JUnit's XML, Prometheus' text. Raises as
    `write_text`.
    """
    from gpuprov.model.documents import write_text
    from gpuprov.report.doctor import doctor_junit, doctor_metrics

    if html:
        write_text(html, _page(found))
    if junit:
        write_text(junit, doctor_junit(found))
    if prometheus:
        write_text(prometheus, doctor_metrics(found))
