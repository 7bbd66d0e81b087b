"""Observations of what sshd's listeners accept, of PAM, and of sshd's sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.access.pam import KINDS, Rule, admitting
from gpuprov.access.shipped import SYNONYMS, compared, with_whom
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import hindered
from gpuprov.errors import NodeFailed
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.sshd import ALIASES, SshdAnswer
from gpuprov.roles import Expectation
from gpuprov.roles.ssh_hardening import SSHD_UNITS


@observes("ssh.options", "sshd")
@observes("ssh.logins", "sshd")
def _options(facts: Facts, expectation: Expectation) -> Any:
    """Return expected keyword → value in effect, None if sshd has none.

    If a listening sshd has another value than the expected one for a user and an address, it is that one.
    Where sshd is not installed, no user logs in.

    Raises:
        Missing: all is as expected, and a listening sshd could not be asked.
    """
    if not facts.sshd_answers:
        return expectation.expected if expectation.check == "ssh.logins" else {}
    found = dict(expectation.expected)
    for keyword, answer in _differing(facts, expectation):
        first = facts.sshd_answers[0]
        value = _value(answer, keyword, expectation)
        if value != _value(first, keyword, expectation):
            listener = answer.listener if answer.listener != first.listener else ""
            value = with_whom(value, answer.user, answer.address, listener)
        found[keyword] = value
    return _known(facts, found, expectation)


def _known(facts: Facts, found: Any, expectation: Expectation) -> Any:
    """Return what was found.

    Raises:
        Missing: it is as expected, and a listening sshd could not be asked.
    """
    if found == expectation.expected and facts.sshd_unclear:
        raise Missing("sshd", facts.sshd_unclear)
    return found


@names_who("ssh.options")
@names_who("ssh.logins")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each keyword the line that sets it, or sshd's command line, else None."""
    for keyword, answer in _differing(facts, expectation):
        yield answer.places.get(keyword) or answer.places.get(ALIASES.get(keyword, ""))


def _differing(facts: Facts, expectation: Expectation) -> Iterator[tuple[str, SshdAnswer]]:
    """Yield each keyword that differs from its expected value, with the first answer that differs."""
    for keyword, expected in expectation.expected.items():
        for answer in facts.sshd_answers:
            if _value(answer, keyword, expectation) != expected:
                yield keyword, answer
                break


def _value(answer: SshdAnswer, keyword: str, expectation: Expectation) -> str | None:
    """Return an option, None if sshd's answer lacks it; for `ssh.logins` the shipped value in place of a
    stricter one.
    """
    value = " ".join(answer.options.get(keyword, ())) or None
    value = SYNONYMS.get(value or "", value)
    if expectation.check == "ssh.logins":
        return compared(keyword, value, expectation.expected[keyword])
    return value


@observes("ssh.login_groups", "login_groups")
def _login_groups(facts: Facts, expectation: Expectation) -> Any:
    """Return the groups that may log in, if the login is in one of them, else those of the login."""
    own = set(facts.login_groups)
    return expectation.expected if own & set(expectation.expected) else sorted(own)


@observes("ssh.pam", "pam")
def _pam(facts: Facts, expectation: Expectation) -> Any:
    """Return the lines of PAM that admit a user without credentials, with single blanks; [] without any;
    raises as `_admitting`.
    """
    return [" ".join(rule.text.split()) for rule in _admitting(facts)]


@names_who("ssh.pam")
def _admits(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield `FILE:LINE` of the lines of PAM that admit a user without credentials; raises as `_admitting`."""
    yield from (rule.place for rule in _admitting(facts))


def _admitting(facts: Facts) -> list[Rule]:
    """Return the line of each type with which sshd's PAM service admits a user without credentials.

    Raises:
        Missing: its stack has too many lines, or too long ones.
    """
    files = facts.pam
    try:
        return [rule for kind in KINDS if (rule := admitting(files, kind))]
    except NodeFailed as error:
        raise Missing("pam", str(error)) from error


@observes("ssh.loaded", "sshd")
def _loaded(facts: Facts, expectation: Expectation) -> Any:
    """Return sshd's files that changed after it has read them.

    Raises:
        Missing: without such a file, a listening sshd could not be asked.
    """
    return _known(facts, list(facts.sshd_unread), expectation)


@observes("ssh.files", "files")
def _files(facts: Facts, expectation: Expectation) -> Any:
    """Return path → checksum of the files that sshd's options name; None if there is no such file."""
    return {path: facts.files[path].sha256 if path in facts.files else None for path in expectation.expected}


@observes("ssh.ports", "listening")
def _ports(facts: Facts, expectation: Expectation) -> Any:
    """Return the ports of root's sshd, sorted, and expected ones on which systemd listens (ssh.socket)."""
    by_systemd = {port for port in facts.listening.get("systemd", ()) if port in expectation.expected}
    return sorted({*facts.listening.get("sshd", ()), *by_systemd})


@observes("ssh.port_labels", "port_labels")
def _port_labels(facts: Facts, expectation: Expectation) -> Any:
    """Return the locked ports on which SELinux does not let sshd listen, sorted as texts."""
    return sorted(facts.sshd_unlabelled)


@names_who("ssh.port_labels")
def _other_labels(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places where the site gives another type to a port."""
    yield from facts.sshd_unlabelled.values()


@observes("ssh.at_boot", "units")
def _at_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return `enabled` if one of sshd's units starts at boot, otherwise the states of all."""
    there = {name: unit for name in SSHD_UNITS if (unit := facts.units.get(name)) and unit.exists}
    states = {
        name: (unit.enabled and hindered(unit)) or unit.file_state or "disabled"
        for name, unit in there.items()
    }
    if "enabled" in states.values():
        return "enabled"
    return ", ".join(f"{name} is {state}" for name, state in states.items()) or "not installed"


@names_who("ssh.at_boot")
def _kept_from_boot(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places of another program, and of conditions that keep sshd's units from starting."""
    for unit in filter(None, map(facts.units.get, SSHD_UNITS)):
        yield unit.commanded_by if unit.other_program else None
        yield unit.unmet


@observes("ssh.main_process", "sshd")
def _main_process(facts: Facts, expectation: Expectation) -> Any:
    """Return listening sshd processes that are not the main process of sshd's unit; raises as `_known`."""
    return _known(facts, list(facts.sshd_astray), expectation)


@observes("ssh.undone", "undone")
def _undone(facts: Facts, expectation: Expectation) -> Any:
    """Return the reason why SSH or firewall settings were reverted; None if the last change was confirmed."""
    return facts.undone
