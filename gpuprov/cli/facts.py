"""`gpuprov facts`: show a node's facts, or those of a saved `nvidia-smi -q -x`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import completion, options
from gpuprov.cli.common.terminal import tell, waiting
from gpuprov.errors import Exit, GpuprovError, InvalidInput

if TYPE_CHECKING:
    from gpuprov.probe.facts import Facts
    from gpuprov.ssh.dispatch import Crew, Dispatch
    from gpuprov.ssh.transport import Target


@click.command()
@click.argument("host", required=False, shell_complete=completion.nodes)
@click.option("--local", is_flag=True, help="read this machine")
@click.option("--smi-xml", "capture", metavar="FILE", help="read a saved `nvidia-smi -q -x`; `-` is stdin")
@click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.lock.yml"),
    show_default=True,
    help="lock that states how its hosts are reached",
)
@options.identity_option
@options.known_hosts_option
@options.password_option
@options.workers_option
@options.output_option
def command(
    host: str | None,
    local: bool,
    capture: str | None,
    lock_path: Path,
    identity: str | None,
    known_hosts: str | None,
    ask_become_pass: bool,
    workers: str | None,
    output: str,
) -> int:
    """Show the facts of HOST ([USER@]HOST[:PORT]), of this machine, or of saved output of nvidia-smi.

    Exit 1 if the saved output has another format, is cut off, or reports that nvidia-smi failed.
    """
    if (stated := sum((host is not None, local, capture is not None))) != 1:
        raise InvalidInput(
            "more than one of HOST, --local and --smi-xml" if stated else "no host is named",
            do="name one host, or give --local, or --smi-xml FILE",
        )
    if capture is not None:
        return _show_capture(capture, output)
    if local:
        facts = _local()
    else:
        target = options.way_to(str(host), lock_path, identity, known_hosts)
        from gpuprov.ssh.dispatch import Dispatch

        with _crew(workers, target.name, lock_path, password=ask_become_pass) as crew:
            facts = _remote(target, Dispatch(1, options.ask_password(ask_become_pass), crew))
    if output == "json":
        options.print_json(facts.to_answer())
    else:
        from gpuprov.report.facts import describe
        from gpuprov.ssh.contained import contained

        result = contained(facts.host, lambda: list(describe(facts)))
        if isinstance(result, GpuprovError):
            raise result
        for line in result:
            tell(line)
    return Exit.OK


def _show_capture(name: str, output: str) -> int:
    """Show a saved `nvidia-smi -q -x` as JSON or lines; return exit code 1 if it has an error.

    Raises:
        InvalidInput: the file cannot be read.
    """
    from gpuprov.probe.parse.smi import parse_smi
    from gpuprov.report.facts import describe_smi, smi_document
    from gpuprov.untrusted.stated import stated_file

    with stated_file(name, expected="the output of `nvidia-smi -q -x`"):
        smi = parse_smi(_bytes(name), repeated=True)
    if output == "json":
        options.print_json(smi_document(smi))
    else:
        for line in describe_smi(replace(smi, error=None)):
            tell(line)
    if smi.error is None:
        return Exit.OK
    options.note(f"gpuprov: {name}: {smi.error}")
    return Exit.FAILED


def _bytes(name: str) -> bytes:
    """Return the content of a file, or of stdin for `-`; raise InvalidInput if it cannot be read."""
    from gpuprov.untrusted.stated import read_argument

    try:
        return read_argument(name)
    except OSError as error:
        raise InvalidInput(f"{name}: {error.strerror}", do="name a file that can be read, or `-`") from None


def _local() -> Facts:
    """Return the facts of this machine."""
    from gpuprov.probe.collect import collect_local
    from gpuprov.probe.payload import Parameters

    return collect_local(Parameters())


def _crew(
    workers: str | None, host: str, lock_path: Path, *, password: bool
) -> AbstractContextManager[Crew | None]:
    """Return a context with the workers that reach a host, or with None if no workers are stated."""
    from gpuprov.model.lock import read_lock

    if workers is None:
        return nullcontext()
    known = read_lock(lock_path).hosts() if lock_path.is_file() else {}
    return options.crew(workers, {host: known[host]} if host in known else {}, password=password)


def _remote(target: Target, dispatch: Dispatch) -> Facts:
    """Return the facts of a node; raise its error if it does not answer."""
    from gpuprov.probe.collect import collect
    from gpuprov.probe.facts import Facts
    from gpuprov.probe.payload import Parameters
    from gpuprov.ssh.transport import fan_out

    with waiting(f"asking {target.name}"):
        work = partial(collect, parameters=Parameters(), password=dispatch.password)
        [(_, outcome)] = fan_out([target], work, answer=Facts, dispatch=dispatch)
    if isinstance(outcome, GpuprovError):
        raise outcome
    return outcome
