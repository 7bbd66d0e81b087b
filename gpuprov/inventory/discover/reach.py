"""Discovery of hosts by names, ranges or networks, in parallel."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.inventory.discover.match import Kind, Match, match
from gpuprov.model.connection import Connection, lay_over, parse_destination
from gpuprov.model.nodeset import expand
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, build
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out

NAME = re.compile(r"[a-z0-9._-]{1,40}")
VERSION = re.compile(r"[a-z0-9._-]{0,40}")
ADDRESSES_AT_MOST = 4096
LIMITS = ConnectionLimits(connect_s=5, command_s=60, answer_bytes=ANSWER_LIMIT)


def within(stated: Iterable[str]) -> tuple[list[str], set[str]]:
    """Return all hosts in the stated order, each once, and those among them that only networks contain.

    Args:
        stated: names, ranges (`gpu[01-08]`), `[USER@]HOST[:PORT]`, which is not checked here, or networks
            (`10.0.0.0/24`).

    Raises:
        InvalidInput: a range or network is none, or a network has more than `ADDRESSES_AT_MOST` addresses.
    """
    found: list[str] = []
    named: set[str] = set()
    for text in stated:
        if "/" in text:
            found += _addresses(text)
            continue
        try:
            hosts = [text] if "@" in text or ":" in text else expand(text)
        except ValueError as error:
            raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None
        found += hosts
        named.update(hosts)
    return list(dict.fromkeys(found)), set(found) - named


def _addresses(text: str) -> list[str]:
    """Return the host addresses of a network; raise InvalidInput if it is not one, or has more than
    `ADDRESSES_AT_MOST`.
    """
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidInput(f"not a network: {text!r} ({error})", expected="such as 10.0.0.0/24") from None
    if network.num_addresses > ADDRESSES_AT_MOST:
        raise InvalidInput(
            f"{text} has {network.num_addresses} addresses", expected=f"{ADDRESSES_AT_MOST} at most"
        )
    return [str(address) for address in network.hosts()]


def _target(host: str, connection: Connection) -> Target:
    """Return the target of a text `[USER@]HOST[:PORT]`; its user and port override the connection.

    Raises:
        InvalidInput: the text is not of that form.
    """
    try:
        user, address, port = parse_destination(host)
    except ValueError as error:
        raise InvalidInput(str(error), expected="[USER@]HOST[:PORT]") from None
    return Target(host, address, lay_over(connection, Connection(user=user, port=port)))


def match_hosts(
    hosts: Iterable[str],
    connection: Connection,
    among: Sequence[Kind],
    *,
    dispatch: Dispatch = DIRECT,
) -> Iterator[tuple[str, tuple[Facts, Match] | GpuprovError]]:
    """Yield each host with its facts and the nearest of some kinds, or its error, as answers become ready.

    A host whose system, version or architecture is not a plain name yields NodeFailed.

    Raises:
        InvalidInput: a host is not `[USER@]HOST[:PORT]`.
    """
    payload = build(Parameters(), password=dispatch.password)

    def probe(session: Session) -> tuple[Facts, Match]:
        """Return a node's facts and the nearest of the kinds.

        Raises:
            NodeFailed: the name of its system or architecture is malformed.
        """
        facts = ask(session, payload)
        system, number, arch = facts.os.id, facts.os.version, facts.arch
        if not (NAME.fullmatch(system) and VERSION.fullmatch(number) and NAME.fullmatch(arch)):
            raise NodeFailed(f"its system is called {system!r} {number!r} on {arch!r}")
        return facts, match(facts, among)

    targets = [_target(host, connection) for host in hosts]
    for target, answer in fan_out(targets, probe, dispatch=dispatch, limits=LIMITS):
        yield target.name, answer
