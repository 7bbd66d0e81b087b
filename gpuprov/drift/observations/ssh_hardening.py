"""Observations of sshd's effective configuration and its sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

# sshd prints the older of two names of one value.
SYNONYMS = {"without-password": "prohibit-password"}


@observes("ssh.options", "sshd")
def _options(facts: Facts, expectation: Expectation) -> Any:
    """Return expected keyword → sshd's effective value, None if it has none.

    Arguments of the running sshd override its files; with `-f` each value is a note that names that file.
    """
    started = facts.sshd_arguments
    if "-f" in started:
        return dict.fromkeys(expectation.expected, f"as {started['-f']} says")
    found = {keyword: " ".join(facts.sshd.get(keyword, ())) or None for keyword in expectation.expected}
    found |= {keyword: value for keyword, value in started.items() if keyword in found}
    return {keyword: SYNONYMS.get(value or "", value) for keyword, value in found.items()}


@names_who("ssh.options")
def _says(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each keyword its first line, or sshd's command line if it sets the keyword, else None."""
    for keyword in expectation.expected:
        if {keyword, "-f"} & facts.sshd_arguments.keys():
            yield "sshd's command line (systemctl cat ssh; /etc/default/ssh)"
            continue
        lines = (place for place, line in facts.sshd_lines if line.split()[0].lower() == keyword)
        yield next(lines, None)


@observes("ssh.ports", "listening")
def _ports(facts: Facts, expectation: Expectation) -> Any:
    """Return sshd's ports, sorted; expected ports on which systemd listens for it (ssh.socket) count too."""
    by_systemd = {port for port in facts.listening.get("systemd", ()) if port in expectation.expected}
    return sorted({*facts.listening.get("sshd", ()), *by_systemd})


@observes("ssh.undone", "undone")
def _undone(facts: Facts, expectation: Expectation) -> Any:
    """Return the reason why SSH or firewall settings were reverted; None if the last change was confirmed."""
    return facts.undone
