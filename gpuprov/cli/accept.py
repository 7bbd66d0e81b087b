"""`gpuprov accept`: measure a node's GPUs under load and judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import GpuprovError, InvalidInput, worst

if TYPE_CHECKING:
    from gpuprov.accept.judge import Acceptance, Answer
    from gpuprov.accept.program import Level
    from gpuprov.nccl.verdict import Inter
    from gpuprov.ssh.dispatch import Dispatch
    from gpuprov.ssh.transport import Target


@click.command()
@options.on_nodes
@click.option("--local", is_flag=True, help="load this machine's GPUs, without SSH")
@click.option(
    "--level",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="how long the load lasts",
)
@click.option(
    "--drained",
    is_flag=True,
    help="run although a scheduler is installed; you confirm that the nodes are drained",
)
@click.option(
    "--floor",
    "floors",
    multiple=True,
    metavar="NAME=VALUE",
    help="minimum of a measurement, in place of the published one: bf16=650; repeatable",
)
@click.option(
    "--libraries",
    multiple=True,
    metavar="FOLDER",
    help="folder of libcublasLt and libnccl on the nodes; repeatable",
)
@click.option(
    "--baseline",
    metavar="RUN",
    help="also report what is slower than in an earlier run: `latest`, its id, or a file",
)
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="judge saved measurements, a file from `-o json`, in place of new ones; repeatable",
)
@click.option(
    "--framework",
    metavar="PYTHON",
    help="also measure with the PyTorch, JAX or TensorFlow of this Python interpreter on the nodes",
)
@click.option(
    "--share",
    metavar="PERCENT",
    help="test the nodes whose turn it is, for a share of the fleet a week: 25%; skips nodes in use",
)
@click.option("--across", is_flag=True, help="measure between NODES instead, and find a slow node or link")
@click.option(
    "--fabric",
    type=click.Choice(["ib", "roce", "efa", "socket"]),
    help="transport required between nodes  [default: RDMA if all have an active port]",
)
@options.identity_option
@options.known_hosts_option
def command(
    chosen: options.Chosen,
    output: str,
    local: bool,
    level: Level,
    drained: bool,
    floors: tuple[str, ...],
    libraries: tuple[str, ...],
    baseline: str | None,
    measured: tuple[Path, ...],
    framework: str | None,
    share: str | None,
    across: bool,
    fabric: Inter | None,
    identity: str | None,
    known_hosts: str | None,
) -> int:
    """Run a load test on every GPU of NODES, and judge the results. Changes no setting of the GPUs.

    NODES are names, ranges or groups of the lock, or, without a lock, [USER@]HOST[:PORT]. Memory, copies,
    matrix products, power and errors of each GPU, and the links between GPUs, are compared with the vendor's
    peak, published floors and the other GPUs. A node whose GPUs are in use is refused. `quick` takes about
    20 s, `full` two minutes. `--across` measures between NODES, through NCCL, in at most 8 rounds of pairs
    and larger groups. `--share` is for a daily job: `gpuprov schedule accept`.

    Exit 1 if a node is rejected, 4 if a node is unreachable, 5 if a node is refused.
    """
    if sum((local, bool(measured), bool(chosen.stated))) > 1:
        raise InvalidInput("more than one of NODES, --local and --measured", do="give one of them")
    if across:
        if local or measured:
            raise InvalidInput("--across with --local or --measured", do="name two or more nodes")
        from gpuprov.cli.accept_across import measure_across

        return measure_across(
            _targets(chosen, identity, known_hosts), dispatch=chosen.dispatch, folders=libraries,
            drained=drained, fabric=fabric, output=output, fleet=_fleet(chosen),
            floors=_floors(floors), of_node=_stated_floors(chosen),
        )  # fmt: skip
    site, before = _floors(floors), _baseline(baseline, _fleet(chosen))
    if share is not None:
        if any((local, measured, drained, framework)):
            raise InvalidInput("--share with other measurements", do="leave out --share, or the others")
        return _share(chosen, share, level, site, before, output)
    if measured:
        answers = {name: answer for path in measured for name, answer in _of_file(path).items()}
    elif local:
        answers = _frameworks_here(_here(level, libraries, drained), framework)
    else:
        answers = _there(chosen, level, libraries, drained, identity, known_hosts)
        answers = _frameworks_there(
            answers, framework, _targets(chosen, identity, known_hosts), chosen.dispatch
        )
    return _concluded(chosen, answers, site, before, output, kept=not measured)


def _share(
    chosen: options.Chosen,
    share: str,
    level: Level,
    site: dict[str, float],
    before: dict[str, Mapping[str, Any]] | None,
    output: str,
) -> int:
    """Test the nodes whose turn it is, and conclude; return OK if the share of the week is done, else the
    worst exit code.
    """
    from gpuprov.cli.accept_share import measure_share

    answers, code = measure_share(chosen, share, level)
    return worst(code, _concluded(chosen, answers, site, before, output, kept=True)) if answers else code


def _concluded(
    chosen: options.Chosen,
    answers: dict[str, Answer],
    site: dict[str, float],
    before: dict[str, Mapping[str, Any]] | None,
    output: str,
    *,
    kept: bool,
) -> int:
    """Judge the answers, keep them in the history if they are new, print them, and return the exit code.

    Args:
        site: measurement → its minimum.
        before: node → its measurements in an earlier run.
    """
    from gpuprov.accept.judge import document, judge

    judged = judge(answers, site, before, _stated_floors(chosen))
    result = document(judged)
    if kept:
        _keep(judged, result, _fleet(chosen))
    _print(judged, result, output)
    return worst(*(each.exit_code for each in judged))


def _here(level: Level, libraries: tuple[str, ...], drained: bool) -> dict[str, Answer]:
    """Return this machine's name → its measurements, or the error that prevented them."""
    import os

    from gpuprov.accept.run import measure_here

    name = os.uname().nodename
    try:
        return {name: measure_here(level, folders=libraries, drained=drained)}
    except GpuprovError as error:
        return {name: error}


def _there(
    chosen: options.Chosen,
    level: Level,
    libraries: tuple[str, ...],
    drained: bool,
    identity: str | None,
    known_hosts: str | None,
) -> dict[str, Answer]:
    """Return node → its measurements, or its error, in the order of the selected nodes."""
    from gpuprov.accept.run import measure_there

    nodes = _targets(chosen, identity, known_hosts)
    found = dict(measure_there(nodes, level, dispatch=chosen.dispatch, folders=libraries, drained=drained))
    return {node.name: found[node.name] for node in nodes}


def _frameworks_here(answers: dict[str, Answer], python: str | None) -> dict[str, Answer]:
    """Return the answers with measurements by the frameworks of a Python interpreter on this machine.

    Answers without measurements are returned unchanged, and all if no interpreter is stated.
    """
    if python is None:
        return answers
    from gpuprov.accept.run import frameworks_here, with_frameworks
    from gpuprov.ssh.contained import contained

    found = {}
    for name, result in answers.items():
        if _measured(result):
            result = with_frameworks(result, python, contained(name, lambda: frameworks_here(python)))
        found[name] = result
    return found


def _frameworks_there(
    answers: dict[str, Answer], python: str | None, nodes: list[Target], dispatch: Dispatch
) -> dict[str, Answer]:
    """Return the answers with measurements by the frameworks of a Python interpreter on the nodes.

    Nodes without measurements are not measured; their answers are returned unchanged, and all if no
    interpreter is stated.
    """
    if python is None:
        return answers
    from gpuprov.accept.run import frameworks_there, with_frameworks

    wanted = [node for node in nodes if _measured(answers[node.name])]
    said = dict(frameworks_there(wanted, python, dispatch=dispatch))
    return {
        name: with_frameworks(result, python, said[name]) if name in said else result
        for name, result in answers.items()
    }


def _measured(result: Answer) -> bool:
    """Return whether an answer has measurements: it is neither an error nor a refusal."""
    return not isinstance(result, GpuprovError) and not result.get("refused")


def _targets(chosen: options.Chosen, identity: str | None, known_hosts: str | None) -> list[Target]:
    """Return the selected nodes of the lock; without a lock file the hosts that the command line states."""
    from gpuprov.ssh.transport import targets

    if chosen.lock_path.is_file():
        return targets(chosen.lock, chosen.names)
    return [options.target(host, identity, known_hosts) for host in chosen.hosts]


def _fleet(chosen: options.Chosen) -> str:
    """Return the absolute path of the lock, which identifies the fleet in the history; "" without a lock."""
    return str(chosen.lock_path.absolute()) if chosen.lock_path.is_file() else ""


def _floors(stated: tuple[str, ...]) -> dict[str, float]:
    """Return measurement → minimum, greater than 0, from texts `NAME=VALUE`.

    Raises:
        InvalidInput: a text has another form, an unknown measurement, or a minimum that is not above 0.
    """
    from gpuprov.model.floors import NAMES

    found: dict[str, float] = {}
    for text in stated:
        name, _, value = text.partition("=")
        try:
            least = float(value)
        except ValueError:
            least = math.nan
        if not 0 < least < math.inf:
            raise InvalidInput(f"--floor {text}", expected="NAME=VALUE, such as bf16=650")
        if name not in NAMES:
            raise InvalidInput(f"--floor {text}: no such measurement", expected=", ".join(NAMES))
        found[name] = least
    return found


def _stated_floors(chosen: options.Chosen) -> dict[str, dict[str, float]]:
    """Return node → the floors that the lock states for its group; {} without a lock."""
    from gpuprov.accept.floors import of_lock

    return of_lock(chosen.lock) if chosen.lock_path.is_file() else {}


def _baseline(stated: str | None, fleet: str) -> dict[str, Mapping[str, Any]] | None:
    """Return node → its measurements in an earlier run, without nodes that failed; None without a stated one.

    Args:
        stated: `latest`, the id of a run, or the path of a file.
        fleet: whose latest run is meant, as `_fleet`.

    Raises:
        InvalidInput: there is no saved run, or the file has another format.
    """
    if stated is None:
        return None
    from gpuprov.files.runs import state_dir
    from gpuprov.history import History
    from gpuprov.report.plots import KEPT

    runs = state_dir() / "runs"
    if stated == "latest":
        with History() as history:
            kept = [runs / name / KEPT for name in history.ids("accept", fleet)]
        saved = [path for path in kept if path.is_file()]
        if not saved:
            raise InvalidInput(
                "there is no saved run of accept", do="run `gpuprov accept` without --baseline first"
            )
        path = saved[-1]
    else:
        of_run = runs / stated / KEPT
        path = of_run if of_run.is_file() else Path(stated)
    return {name: answer for name, answer in _of_file(path).items() if not isinstance(answer, GpuprovError)}


def _of_file(path: Path) -> dict[str, Answer]:
    """Return node → its measurements from a file that `gpuprov accept -o json` wrote.

    Raises:
        InvalidInput: the file cannot be read, or has another format.
    """
    from gpuprov.accept.judge import SCHEMA
    from gpuprov.untrusted import shown
    from gpuprov.untrusted.stated import read_stated_json, stated_file

    expected = "output of `gpuprov accept -o json`"
    with stated_file(path, expected=expected):
        result = read_stated_json(path, expected=expected)
        found: dict[str, Answer] = {str(each["node"]): dict(each["measured"]) for each in result["nodes"]}
        schema = result["schema"]
    if schema != SCHEMA:
        raise InvalidInput(f"{path}: schema {shown(schema)}", expected=expected)
    return found


def _keep(judged: list[Acceptance], result: dict[str, Any], fleet: str) -> None:
    """Save the measurements in a new run's folder, for --baseline, and the faults in the history; print
    where. Raises as `new_run` and `write_text`.
    """
    from gpuprov.files.runs import new_run
    from gpuprov.history import keep
    from gpuprov.history.keeping import keep_acceptances
    from gpuprov.history.record import of_acceptance
    from gpuprov.model.documents import write_text
    from gpuprov.report.plots import KEPT
    from gpuprov.untrusted import json_text

    folder = new_run("accept")
    write_text(folder / KEPT, json_text(result, indent=1) + "\n")
    keep(of_acceptance(folder.name, judged, fleet), options.note)
    if fleet:
        keep_acceptances(judged, fleet, folder.name, options.note)
    options.note(f"saved as {folder / KEPT}")


def _print(judged: list[Acceptance], result: dict[str, Any], output: str) -> None:
    """Print the result on stdout, as JSON or as lines."""
    from gpuprov.report.accept import accept_lines

    if output == "json":
        options.print_json(result)
    else:
        for line in accept_lines(judged):
            tell(line)
