"""`gpuprov status`: show the present state of every GPU of the fleet; live with --watch."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.security import notes_about, print_notes
from gpuprov.cli.common.terminal import say, tell
from gpuprov.errors import Exit, InvalidInput
from gpuprov.untrusted import json_text

if TYPE_CHECKING:
    from gpuprov.doctor.status import NodeNow, Watch
    from gpuprov.drift.security import SecurityNote
    from gpuprov.ssh.transport import Target

WATCH_S = 5.0


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODES]")
@click.option("--local", is_flag=True, help="read this machine, without SSH")
@click.option(
    "--watch",
    "interval",
    type=click.FloatRange(min=1),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[SECONDS]",
    help=f"keep running and read again every SECONDS ({WATCH_S:g}): full-screen on a terminal, else lines",
)
@click.option(
    "--overview",
    is_flag=True,
    help="show the fleet on one screen: what changed since the last look, versions, drift, the last doctor,"
    " leases, the last change",
)
@click.option("--folded", is_flag=True, help="show one line for each node")
@click.option("--odd", "only_odd", is_flag=True, help="show only lines that differ from the majority")
@options.lock_option
@options.limit_option
@options.identity_option
@options.known_hosts_option
@options.output_option
def command(
    nodes: tuple[str, ...],
    local: bool,
    interval: float | None,
    overview: bool,
    folded: bool,
    only_odd: bool,
    lock_path: Path,
    limit: str | None,
    identity: str | None,
    known_hosts: str | None,
    output: str,
) -> int:
    """Show utilisation, memory, power, temperature, clocks, throttling, ECC and the users of each GPU.

    NODES are nodes or groups of the lock (by default all), or [USER@]HOST[:PORT]. Values that differ from
    the majority are highlighted. Locked versions that a security bulletin concerns are noted. Exit 4 if a
    node is unreachable, 1 if a node does not answer; with --overview also 3 if a node differs from the lock.
    """
    if local and (nodes or limit):
        raise InvalidInput("--local with nodes", do="leave out the nodes, or --local")
    if overview:
        from gpuprov.cli.status_overview import show_overview

        if local or interval is not None or folded or only_odd:
            raise InvalidInput(
                "--overview with --local, --watch, --folded or --odd", do="leave out --overview, or the other"
            )
        return show_overview((*nodes, limit) if limit else nodes, lock_path, output)
    targets = [] if local else _targets(nodes, limit, lock_path, identity, known_hosts)
    view = View(folded, only_odd)
    if interval is None:
        return _once(targets, output, view, [] if local else _notes(targets, lock_path))
    if local:
        return _stay_here(interval, output, view)
    from gpuprov.doctor.status import Watch

    with Watch(targets, interval) as watch:
        if output == "table" and sys.stdout.isatty():
            return _full_screen(watch, view)
        return _follow(watch, interval, output, view)


@dataclass
class View:
    """Display settings of the table; keys change them."""

    folded: bool
    only_odd: bool
    top: int = 0


def _targets(
    nodes: tuple[str, ...], limit: str | None, lock_path: Path, identity: str | None, known_hosts: str | None
) -> list[Target]:
    """Return the targets: nodes of the lock, by default all; without a lock file the stated hosts.

    Raises:
        InvalidInput: there is neither a lock nor a host, or a name is invalid or unknown.
    """
    from gpuprov.model.nodeset import expand

    stated = (*nodes, limit) if limit else nodes
    if lock_path.is_file():
        from gpuprov.model.lock import read_lock
        from gpuprov.ssh.transport import targets

        lock = read_lock(lock_path)
        return targets(lock, options.select(lock, stated, None))
    if not stated:
        raise InvalidInput(
            f"there is no lock {lock_path}, and no host is named",
            do="run `gpuprov lock`, name hosts, name another lock with --lock, or give --local",
        )
    try:
        names = [name for text in stated for name in expand(text)]
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {' '.join(stated)!r}", expected=str(error)) from None
    return [options.target(name, identity, known_hosts) for name in dict.fromkeys(names)]


def _notes(targets: list[Target], lock_path: Path) -> list[SecurityNote]:
    """Return the notes about the targets' locked versions; none without a lock file."""
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.model.lock import read_lock

    if not lock_path.is_file():
        return []
    return notes_about(read_lock(lock_path), [NodeDrift(target.name, "in_sync") for target in targets])


def _once(targets: list[Target], output: str, view: View, notes: list[SecurityNote]) -> int:
    """Read the targets once, or without any this machine, and print the result; return the exit code."""
    from gpuprov.doctor.status import read_once, status_here

    found = read_once(targets) if targets else [status_here()]
    _say(found, output, view, notes=notes)
    return _code(found)


def _code(found: list[NodeNow]) -> int:
    """Return 1 if a node answered with a failure, else 4 if a node is unreachable, else 0."""
    if any(node.failure is not None and not node.unreachable for node in found):
        return Exit.FAILED
    return Exit.UNREACHABLE if any(node.unreachable for node in found) else Exit.OK


def _say(
    found: list[NodeNow], output: str, view: View, stamp: str = "", notes: Sequence[SecurityNote] = ()
) -> None:
    """Print the nodes' states, as JSON or as lines; a stamp precedes each line and puts JSON on one line.

    With `view.only_odd` lines of ordinary nodes are left out.

    Args:
        notes: versions that security bulletins concern; JSON with a stamp lacks them.
    """
    from gpuprov.doctor.status import status_document
    from gpuprov.report.status import status_lines, status_rows

    if output == "json":
        if stamp:
            say(json_text(status_document(found), indent=None))
        else:
            security = [asdict(note) for note in notes]
            options.print_json(status_document(found) | ({"security": security} if security else {}))
    elif view.only_odd:
        for cells, stands in status_rows(found, folded=view.folded):
            if stands:
                tell(stamp + "  ".join(filter(None, cells)))
    else:
        for line in status_lines(found, folded=view.folded):
            tell(stamp + line)
    if output != "json":
        print_notes(notes)


def _stay_here(interval: float, output: str, view: View) -> int:
    """Print the state of this machine every `interval` seconds, until interrupted or until it fails."""
    from gpuprov.doctor.status import status_here

    while True:
        begun = time.monotonic()
        _say([status_here()], output, view, time.strftime("%H:%M:%S  "))
        time.sleep(max(0.0, interval - (time.monotonic() - begun)))


def _follow(watch: Watch, interval: float, output: str, view: View) -> int:
    """Print the state of the nodes every `interval` seconds until interrupted."""
    while True:
        time.sleep(interval)
        _say(watch.nodes(), output, view, time.strftime("%H:%M:%S  "))


def _full_screen(watch: Watch, view: View) -> int:
    """Draw until `q`, Ctrl-C or Ctrl-D; return the exit code of the last state.

    The terminal's size is read each time, so that a resize takes effect at once.
    """
    from rich.console import Console
    from rich.live import Live

    from gpuprov.report.status import status_table

    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = console.size.height
            table, view.top = status_table(
                watch.nodes(), lines, folded=view.folded, only_odd=view.only_odd, top=view.top
            )
            live.update(table, refresh=True)
            for key in pressed(0.5):
                if key in ("q", "\x03", "\x04"):
                    return _code(watch.nodes())
                _turn(view, key, lines)


def _turn(view: View, key: str, lines: int) -> None:
    """Change the view by a key: `f` folds, `o` shows only odd lines, arrows, j, k and page keys scroll.

    Args:
        lines: height of the terminal.
    """
    steps = {
        "j": 1,
        "\x1b[B": 1,
        "\x1bOB": 1,
        "k": -1,
        "\x1b[A": -1,
        "\x1bOA": -1,
        " ": lines - 4,
        "\x1b[6~": lines - 4,
        "\x1b[5~": 4 - lines,
    }
    if key == "f":
        view.folded = not view.folded
    elif key == "o":
        view.only_odd = not view.only_odd
    view.top = max(0, view.top + steps.get(key, 0))


@contextmanager
def _keys() -> Iterator[_Pressed]:
    """Provide a reader of keys that need no Enter; restore the terminal at the end.

    If stdin is no terminal, the reader returns no keys.
    """
    if not sys.stdin.isatty():
        yield _Pressed(None)
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield _Pressed(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


KEYS = re.compile(r"\x1b\[[\d;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
"""Pattern of one key: the escape sequence of an arrow or page key, or one character."""


class _Pressed:
    """A reader of keys: a call waits for some seconds, and returns the pressed keys one by one in a list."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def __call__(self, seconds: float) -> list[str]:
        """Wait for a key, at most some seconds; return the pressed keys, [] without any."""
        if self._handle is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self._handle], [], [], seconds)
        return KEYS.findall(os.read(self._handle, 256).decode("utf-8", "replace")) if ready else []
