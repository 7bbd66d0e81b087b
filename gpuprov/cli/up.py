"""`gpuprov up`: set up one server by one line, from its address to verified."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import Declined, waiting
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from gpuprov.model.connection import LOCAL
from gpuprov.untrusted.stated import stated_path

if TYPE_CHECKING:
    from gpuprov.bootstrap.contact import Login
    from gpuprov.bootstrap.unknown_key import UnknownKey
    from gpuprov.inventory.discover import Kind
    from gpuprov.model.lock import Lock
    from gpuprov.probe.facts import Facts
    from gpuprov.ssh.dispatch import Dispatch
    from gpuprov.ssh.transport import Target

existing = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("host", metavar="[USER@]HOST[:PORT]")
@options.identity_option
@options.known_hosts_option
@click.option(
    "--host-key", type=existing, help="known-hosts file with the expected host key; another one is refused"
)
@click.option("--accept-new", is_flag=True, help="trust an unknown host key without comparison")
@click.option(
    "--key",
    "keys",
    type=existing,
    multiple=True,
    help="public key to install if it accepts none of yours; repeatable",
)
@click.option("-k", "--ask-pass", is_flag=True, help="ask for the login password; also used for sudo")
@options.password_option
@options.fleet_option("the file to write; its lock is written next to it")
@options.yes_option
@options.output_option
def command(
    host: str,
    identity: str | None,
    known_hosts: str | None,
    host_key: Path | None,
    accept_new: bool,
    keys: tuple[Path, ...],
    ask_pass: bool,
    ask_become_pass: bool,
    fleet: Path,
    yes: bool,
    output: str,
) -> Exit:
    """Set up one server: read it, write fleet.yml and the lock, show the plan, ask, apply, reboot, verify.

    An unknown host key is shown before the question, and pinned only after it. A server that cannot be read
    yet (it accepts none of your keys, or has no Python) must be prepared before there is a plan: then the
    question comes before, and `y` is the consent to prepare it as `gpuprov bootstrap` does and to apply the
    plan, `p` to prepare it, show the plan and ask again. The same line continues an interrupted run, also
    after a change of fleet.yml. For several servers, or to see each step: inventory discover, bootstrap,
    lock, plan, apply.
    """
    from gpuprov.bootstrap.unknown_key import unknown_key
    from gpuprov.cli.bootstrap import asked_once, login_password
    from gpuprov.model.lock import lock_beside
    from gpuprov.ssh.dispatch import Dispatch

    target = _of_the_fleet(fleet, options.target(host, identity, known_hosts))
    if target.address == LOCAL:
        raise InvalidInput(
            f"{host} is this machine, which needs no login", do="gpuprov apply --local --reboot"
        )
    key = unknown_key(target, host_key)
    if key and (key.vouched or accept_new):
        options.note(f"host key of {host}: {key.fingerprint}")
        key.pin()
        key = None
    server = Server(host, target, fleet, lock_beside(fleet), key, yes)
    if key and (yes or ask_pass or ask_become_pass or not sys.stdin.isatty()):
        server.trust()
    password = login_password(None, ask=ask_pass)
    sudo = options.ask_password(ask_become_pass) or password
    if not fleet.exists():
        server.describe(Dispatch(1, sudo), server.login(password, sudo, asked_once()), keys)
    return server.converge(sudo, output)


def _of_the_fleet(fleet: Path, typed: Target) -> Target:
    """Return the target as an existing fleet of one node states it, or as typed if there is no fleet yet.

    Raises:
        InvalidInput: the fleet has other hosts, or is not valid.
    """
    from gpuprov.model.fleet import read_fleet
    from gpuprov.model.nodeset import fold
    from gpuprov.ssh.transport import Target

    if not fleet.exists():
        return typed
    stated = read_fleet(fleet)
    found = [
        Target(host, address, stated.connection_of(name, host))
        for name, group in stated.groups.items()
        for host, address in group.hosts.items()
    ]
    if len(found) == 1 and found[0].route.place == typed.route.place:
        return found[0]
    names = fold(each.name for each in found)
    raise InvalidInput(
        f"{fleet} already exists, with {names}",
        expected=f"no {fleet.name}, or one with only {typed.route.place}",
        do=f"a new folder for this server; or add it to {fleet}, then: gpuprov bootstrap, gpuprov lock, "
        "gpuprov apply --reboot",
    )


@dataclass(frozen=True)
class _Unpinned(options.Chosen):
    """The node of a lock whose host key is in another file until it is trusted."""

    known_hosts: Path | None = None

    @cached_property
    def lock(self) -> Lock:
        """The lock, with that file in place of the known-hosts file."""
        from gpuprov.model.lock import read_lock
        from gpuprov.model.selection import with_known_hosts

        lock = read_lock(self.lock_path)
        return with_known_hosts(lock, str(self.known_hosts)) if self.known_hosts else lock


@dataclass
class Server:
    """One server to set up.

    Attributes:
        host: as typed.
        unknown: its host key, until the user has trusted it; None if it is known.
        yes: whether no questions are asked.
        agreed: whether the user has agreed to the plan before it was shown.
    """

    host: str
    target: Target
    fleet: Path
    lock_path: Path
    unknown: UnknownKey | None
    yes: bool
    agreed: bool = False

    def trust(self, *, before: str = "") -> None:
        """Ask whether an unknown host key is trusted, and pin it; for a known one ask only for `before`.

        Args:
            before: another action to ask for in the same question.

        Raises:
            InvalidInput: an unknown key, and no terminal to compare it on.
        """
        if self.unknown is None:
            if before:
                options.ask(before, yes=self.yes or self.agreed)
            return
        self._show_key()
        options.ask(" and ".join(filter(None, ["trust this host key", before])), yes=False)
        self._pin()

    def _show_key(self) -> None:
        """Print an unknown host key, which the user has to compare; nothing for a known one.

        Raises:
            InvalidInput: an unknown key, and `yes` or no terminal to compare it on.
        """
        if self.unknown is None:
            return
        shown = self.unknown.fingerprint
        if self.yes or not sys.stdin.isatty():
            raise InvalidInput(
                f"the host key of {self.host} is not known: {shown}",
                expected="the one that your provider shows",
                do="add --accept-new once you have compared it, or --host-key FILE",
            )
        options.note(f"host key of {self.host}, not known yet: {shown}")
        options.note("    compare it with the one that your provider shows")

    def _pin(self) -> None:
        """Pin the host key, if it is unknown."""
        if self.unknown:
            self.unknown.pin()
            self.unknown = None

    def _agree(self) -> None:
        """Ask for the consent to prepare the server, before there is a plan, and pin an unknown host key.

        The answer may include the consent to the plan: `agreed`.

        Raises:
            InvalidInput: there is neither a terminal nor --yes.
            Declined: the answer is no.
        """
        self._show_key()
        trust = "trust this host key, " if self.unknown else ""
        what = f"{trust}prepare {self.host} (your key, sudo, Python, no password logins)"
        if not self.yes:
            if not sys.stdin.isatty():
                options.ask(what, yes=False)
            options.note(f"    y: {what},")
            options.note("       then apply the plan for it, and reboot it if needed")
            options.note("    p: prepare it, show the plan and ask again")
            answer = click.prompt(
                "Continue?", type=click.Choice(("y", "p", "n")), default="n", show_default=False, err=True
            )
            if answer == "n":
                raise Declined(what)
            self.agreed = answer == "y"
        self._pin()

    def login(self, password: str | None, sudo: str | None, ask: Callable[[], str | None]) -> Login:
        """Return the first login, for a server that accepts none of the user's keys."""
        from gpuprov.bootstrap.contact import Login

        stated = self.target.connection
        identity = stated_path(stated.identity_file) if stated.identity_file else None
        return Login(stated.user, stated.port, identity, password, sudo, ask)

    def describe(self, dispatch: Dispatch, login: Login, keys: tuple[Path, ...]) -> None:
        """Read the server, prepare it if it cannot be read, and write fleet.yml for it.

        Raises:
            GpuprovError: it cannot be read or prepared, or has no GPU that gpuprov supports.
            Abort: the user does not agree to the preparation.
        """
        from gpuprov.catalog import load
        from gpuprov.cli.common.this_machine import tell_match
        from gpuprov.inventory.discover import fleet_of, kinds
        from gpuprov.inventory.starting import write_fleet

        catalog = load()
        among = kinds(catalog, [self.fleet.parent / "profiles"])
        facts = self._read(dispatch, among)
        if isinstance(facts, GpuprovError):
            self._prepare(facts, login, keys)
            facts = self._read(dispatch, among)
        if isinstance(facts, GpuprovError):
            raise facts
        _, _, place = self.host.rpartition("@")
        ways = self.target.connection.model_copy(update={"user": self.target.route.user, "port": None})
        document, nearest = fleet_of(facts, among, catalog, place, ways)
        [group] = document["groups"].values()
        tell_match(self.host, group["profile"], nearest, self.fleet)
        write_fleet(self.fleet, document)
        options.note(f"{self.fleet} written")

    def _read(self, dispatch: Dispatch, among: list[Kind]) -> Facts | GpuprovError:
        """Return the server's facts, or the error; an unknown host key is used, but not trusted.

        Raises:
            NotThere: no SSH server answers.
            InvalidInput: the stated key cannot be read, or ssh's own configuration.
        """
        from gpuprov.inventory.discover import match_hosts
        from gpuprov.ssh.failures import NotThere

        with self._readable() as known_hosts, waiting(f"reading {self.host}"):
            update = {"known_hosts": str(known_hosts)} if known_hosts else {}
            way = self.target.connection.model_copy(update=update)
            [(_, answer)] = match_hosts([self.host], way, among, dispatch=dispatch)
        if isinstance(answer, (NotThere, InvalidInput)):
            raise answer
        return answer if isinstance(answer, GpuprovError) else answer[0]

    def _readable(self) -> AbstractContextManager[Path | None]:
        """Provide the file with an unknown host key; None for a known one."""
        return self.unknown.meanwhile() if self.unknown else nullcontext()

    def _prepare(self, why: GpuprovError, login: Login, keys: tuple[Path, ...]) -> None:
        """Bootstrap the server, after the question of `_agree`; print what was changed.

        Args:
            why: why it could not be read.

        Raises:
            GpuprovError: it could not be prepared.
            Abort: the user does not agree.
        """
        from gpuprov.bootstrap.hostkeys import host_keys
        from gpuprov.bootstrap.public_keys import public_keys
        from gpuprov.bootstrap.run import Goal, bootstrap

        options.note(f"{self.host} must be prepared first: {why.seen}")
        goal = Goal({self.target.name: public_keys(self.target.route, keys, options.note)})
        self._agree()
        named = [self.target.name]
        [node] = bootstrap([self.target], goal, login, host_keys, confirm=lambda _: False, named=named)
        for line in [*node.changed, *node.notes]:
            options.note(f"    {line}")
        if node.failure:
            raise node.failure

    def converge(self, sudo: str | None, output: str) -> Exit:
        """Lock, show the plan, ask once, then apply, reboot and verify; return the exit code.

        Without differences the host key is pinned without a question. GpuprovError if a step is not possible.
        """
        from gpuprov.apply.context import Consent, Options
        from gpuprov.cli.apply import carry_out, nothing_to_do, proposed, show_plan
        from gpuprov.ssh.dispatch import Dispatch

        self._lock()
        how = Options(Dispatch(1, sudo))
        with self._readable() as known_hosts:
            reading = _Unpinned(self.lock_path, (), 1, known_hosts=known_hosts)
            proposal = proposed(reading, how, roles=(), full=False, verified=True)
        chosen = options.Chosen(self.lock_path, (), 1)
        show_plan(chosen.lock, proposal)
        if not proposal.busy:
            if not proposal.unanswered:
                self.trust()
            return nothing_to_do(chosen, proposal, output)
        try:
            self.trust(before=f"change {self.host}, and reboot it if needed")
        except Declined:
            again = f"to continue, also after a change of {self.fleet}: gpuprov up {self.host}"
            options.note(f"{self.host} was not changed; {again}")
            raise
        code = carry_out(chosen, proposal, how, Consent(reboot=True), output)
        if code == Exit.OK:
            options.note(f"commit {self.fleet} and {self.lock_path}; what differs from now on: gpuprov drift")
        else:
            options.note(f"to continue: gpuprov up {self.host}")
        return code

    def _lock(self) -> None:
        """Write the lock if it is missing, or if fleet.yml has changed since; print components or changes.

        Raises:
            GpuprovError: no lock is possible.
        """
        from gpuprov.locking.build import build_lock
        from gpuprov.locking.changes import brief, changes
        from gpuprov.locking.inputs import changed_since
        from gpuprov.model.lock import read_lock, write_lock

        before = read_lock(self.lock_path) if self.lock_path.exists() else None
        if before and not changed_since(before, self.lock_path):
            return
        with waiting("reading the repositories"):
            lock = build_lock(self.fleet, previous=before, narrate=options.warn)
        write_lock(lock, self.lock_path)
        if before:
            for line in brief(changes(before, lock)):
                options.note(line)
        else:
            [group] = lock.groups.values()
            chosen = ", ".join(f"{name} {each.version}" for name, each in group.components.each())
            options.note(f"chosen: {chosen}; why: gpuprov explain driver")
        options.note(f"{self.lock_path} written")
