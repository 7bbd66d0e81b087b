"""Options that several verbs share, and the nodes that they select."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common import completion
from gpuprov.cli.common.logs import said
from gpuprov.cli.common.terminal import Declined, show, tell
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import json_text, on_one_line
from gpuprov.untrusted.stated import read_bounded

if TYPE_CHECKING:
    from gpuprov.model.lock import Lock, LockedGroup
    from gpuprov.ssh.dispatch import Crew, Dispatch
    from gpuprov.ssh.transport import Target


class Form(click.Choice[str]):
    """The values of --output; a verb that writes a page has its own option for it."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value, or fail with a hint at the page's option."""
        pages = ctx is not None and any("--html" in each.opts for each in ctx.command.params)
        if value == "html" and pages:
            self.fail("'html' is no value of -o; an HTML page: --html FILE", param, ctx)
        return super().convert(value, param, ctx)


output_option = click.option(
    "-o", "--output", type=Form(["table", "json"]), default="table", show_default=True
)


def fleet_option(meaning: str, *, envvar: str | None = None) -> Callable[[Any], Any]:
    """Return the option -F/--fleet; its default is fleet.yml of the current folder."""
    return click.option(
        "-F",
        "--fleet",
        type=click.Path(path_type=Path, dir_okay=False),
        default=Path("fleet.yml"),
        show_default=True,
        envvar=envvar,
        help=meaning,
    )


lock_option = click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.lock.yml"),
    show_default=True,
    help="the lock to use",
)
limit_option = click.option(
    "-l",
    "--limit",
    help="only these nodes: gpu[01-04],gpu07, or a group's name",
    shell_complete=completion.nodes,
)
nodes_argument = click.argument("nodes", nargs=-1, shell_complete=completion.nodes)
forks_option = click.option(
    "-f",
    "--forks",
    type=click.IntRange(1, 1000),
    default=64,
    show_default=True,
    help="number of nodes at a time",
)
password_option = click.option("-K", "--ask-become-pass", is_flag=True, help="ask for sudo's password")
identity_option = click.option(
    "-i", "--identity", metavar="FILE", help="private key for hosts that are not in the lock"
)
known_hosts_option = click.option(
    "--known-hosts", metavar="FILE", help="known-hosts file with their host keys"
)
workers_option = click.option(
    "--workers",
    metavar="ADDRESS",
    help="reach the nodes through workers: local[:N] starts N here, tls://HOST:PORT are sites; `none`"
    " overrides the lock's",
)
NO_WORKERS = "none"
verbose_option = click.option("-v", "--verbose", count=True, help="print more; -vv also passes -v to Ansible")
yes_option = click.option("--yes", is_flag=True, help="do not ask for confirmation")
resume_option = click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value="latest",
    help="continue a run whose controller died  [default: the latest]",
)


@dataclass(frozen=True)
class Chosen:
    """The nodes that a command line selects, and how to reach them; lock and password are read when needed.

    Args:
        stated: nodes and groups on the command line and in --limit.
        local: whether this machine is the node, in place of the address in the lock.
        crew: workers that connect to the nodes, if any.
    """

    lock_path: Path
    stated: tuple[str, ...]
    forks: int
    ask_become_pass: bool = False
    local: bool = False
    crew: Crew | None = None

    @cached_property
    def lock(self) -> Lock:
        """The lock, with this machine in place of its node if `local`; InvalidInput if it cannot be read."""
        from gpuprov.model.lock import read_lock

        return self.placed(read_lock(self.lock_path))

    @cached_property
    def names(self) -> list[str]:
        """The selected nodes of the lock, in its order; exactly one if `local`. InvalidInput for an unknown
        name.
        """
        if not self.local:
            return select(self.lock, self.stated, None)
        from gpuprov.model.here import the_node

        return [the_node(self.lock, select(self.lock, self.stated, None), stated=bool(self.stated))]

    def placed(self, lock: Lock) -> Lock:
        """Return the lock, with this machine in place of its node if `local`, otherwise unchanged.

        Raises:
            InvalidInput: it is ambiguous which node this machine is.
        """
        if not self.local:
            return lock
        from gpuprov.model.here import the_node, with_here

        names = select(lock, self.stated, None)
        return with_here(lock, the_node(lock, names, stated=bool(self.stated)))

    @cached_property
    def hosts(self) -> list[str]:
        """The stated hosts without a lock, with ranges such as `root@192.0.2.[1-8]:22` expanded.

        Raises:
            InvalidInput: no host is stated, or a text is not a set of nodes.
        """
        from gpuprov.model.nodeset import expand

        if not self.stated:
            raise InvalidInput(
                f"there is no lock {self.lock_path}, and no host is named",
                do="run `gpuprov lock`, name hosts, or name another lock with --lock",
            )
        return [name for text in self.stated for name in _expand(text, expand)]

    @cached_property
    def password(self) -> str | None:
        """sudo's password, for which the user is asked once if -K is given; None without -K."""
        return ask_password(self.ask_become_pass)

    @cached_property
    def dispatch(self) -> Dispatch:
        """How the nodes are reached: number of nodes at a time, sudo's password, workers."""
        from gpuprov.ssh.dispatch import Dispatch

        return Dispatch(self.forks, self.password, self.crew)


def on_nodes(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add NODES, --lock, --limit, --forks, -K, --workers and -o to a verb.

    The verb is called with `chosen` and `output`, while the workers run.

    Raises:
        InvalidInput: workers are stated for this machine, as `--local` or `--image`.
    """

    @nodes_argument
    @lock_option
    @limit_option
    @forks_option
    @password_option
    @workers_option
    @output_option
    @functools.wraps(verb)
    def with_nodes(
        *,
        nodes: tuple[str, ...],
        lock_path: Path,
        limit: str | None,
        forks: int,
        ask_become_pass: bool,
        workers: str | None,
        **others: Any,
    ) -> Any:
        stated = (*nodes, limit) if limit else nodes
        chosen = Chosen(lock_path, stated, forks, ask_become_pass)
        workers = workers or _controllers(chosen)
        if workers in (None, NO_WORKERS):
            return verb(chosen=chosen, **others)
        if others.get("local") or others.get("image"):
            raise InvalidInput("workers cannot reach this machine as a node", do="leave out --workers")
        known = chosen.lock.hosts() if lock_path.is_file() else {}
        hosts = {name: known[name] for name in chosen.names} if known else {}
        with crew(workers, hosts, password=ask_become_pass) as found:
            return verb(chosen=replace(chosen, crew=found), **others)

    return with_nodes


def _controllers(chosen: Chosen) -> str | None:
    """Return the workers that the lock states, or None, also without a readable lock; a lock without them is
    not parsed.

    Of this machine there are at most as many as processors: another person may have written the lock.
    """
    try:
        said = b"\ncontrollers:" in read_bounded(chosen.lock_path)
    except OSError:
        return None
    stated = chosen.lock.controllers if said else None
    if stated is None:
        return None
    from gpuprov.ssh.workers.hiring import HERE

    here = HERE.fullmatch(stated)
    count = here and here["count"]
    return f"local:{min(int(count), os.cpu_count() or 1)}" if count else stated


@contextmanager
def crew(workers: str, hosts: Mapping[str, LockedGroup], *, password: bool) -> Iterator[Crew]:
    """Provide workers that reach the nodes within the context.

    Args:
        workers: as for --workers.
        hosts: the nodes of the lock, and their groups.
        password: whether sudo's password will be sent.

    Raises:
        InvalidInput: this machine is one of the nodes.
    """
    from gpuprov.model.connection import LOCAL
    from gpuprov.ssh.workers import hire

    if any(group.hosts[name] == LOCAL for name, group in hosts.items()):
        raise InvalidInput("workers cannot reach this machine as a node", do="leave out --workers")
    sites = {name: group.site for name, group in hosts.items()}
    with hire(workers, sites, password=password, narrate=note) as found:
        yield found


def ask_password(wanted: bool) -> str | None:
    """Ask for sudo's password, if -K is given, and return it; otherwise return None."""
    return click.prompt("sudo password", hide_input=True, err=True) if wanted else None


def ask(what: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal, unless --yes is given; a refusal ends the verb.

    Args:
        what: the action, such as `write this to FILE`.

    Raises:
        InvalidInput: there is neither a terminal nor --yes.
        Declined: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"would {what}; confirmation is needed, but there is no terminal", do="add --yes")
    if not click.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
        raise Declined(what)


def select(lock: Lock, nodes: Iterable[str], limit: str | None) -> list[str]:
    """Return the lock's hosts that node sets and group names select, in the lock's order; without any, all.

    Raises:
        InvalidInput: the lock does not have a name; the message lists similar ones.
    """
    from gpuprov.model.nodeset import expand

    known = lock.hosts()
    stated = [*nodes, *([limit] if limit else [])]
    if not stated:
        return list(known)
    wanted: set[str] = set()
    for text in stated:
        for part in lock.groups[text].hosts if text in lock.groups else _expand(text, expand):
            if part in lock.groups:
                wanted |= set(lock.groups[part].hosts)
            elif part in known:
                wanted.add(part)
            else:
                near = difflib.get_close_matches(part, [*known, *lock.groups], n=3)
                raise InvalidInput(
                    f"the lock has no node or group {part!r}",
                    expected="one of " + ", ".join(near or [*lock.groups]),
                )
    return [name for name in known if name in wanted]


def _expand(text: str, expand: Any) -> list[str]:
    """Return the names of a node set; raise InvalidInput if it is not one."""
    try:
        names: list[str] = expand(text)
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None
    return names


def way_to(host: str, lock_path: Path, identity: str | None, known_hosts: str | None) -> Target:
    """Return the target of a host: from the lock if it has the host, otherwise from the command line.

    Raises:
        InvalidInput: the text is not a host.
    """
    from gpuprov.model.lock import read_lock
    from gpuprov.ssh.transport import targets

    named = targets(read_lock(lock_path), [host]) if lock_path.is_file() else []
    return named[0] if named else target(host, identity, known_hosts)


def target(host: str, identity: str | None, known_hosts: str | None) -> Target:
    """Return the target `[USER@]HOST[:PORT]`, which is not in a lock.

    Raises:
        InvalidInput: the text has another format.
    """
    from gpuprov.model.connection import Connection, parse_destination
    from gpuprov.ssh.transport import Target

    try:
        user, address, port = parse_destination(host)
    except ValueError as error:
        raise InvalidInput(str(error), expected="[USER@]HOST[:PORT]") from None
    connection = Connection(user=user, port=port, identity_file=identity, known_hosts=known_hosts)
    return Target(host, address, connection)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout."""
    show(json_text(document))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns on stdout, the head first; on a terminal folded between words."""
    from gpuprov.report.table import aligned

    for line in aligned(rows):
        tell(line)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    note(f"Warning: {text}")


def note(text: str = "") -> None:
    """Print a line on stderr, and log it; a newline in it is escaped, as the text can be a node's."""
    show(on_one_line(text), err=True)
    said(text)


def note_lines(text: str) -> None:
    """Print the lines of a document on stderr, each as `note` does."""
    for line in text.split("\n"):
        note(line)
