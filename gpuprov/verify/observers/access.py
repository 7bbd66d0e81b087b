"""`host.sshd` and `host.firewall`: access to a node, as sshd and the kernel report it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from gpuprov.untrusted import lines_of, regex
from gpuprov.verify.observers.base import Observed

CRITERIA = "user=%s,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
"""Connection for which `sshd -T` evaluates Match blocks."""
COMMAND_LINE = "pgrep -a -o -x sshd"
RULES = "nft -sp list table inet gpuprov"
RECORD = "cat /var/lib/gpuprov/deadman/undone"


class Sshd(Observed):
    """Observer of sshd's effective configuration.

    >>> host.sshd.effective("root", ["passwordauthentication"])
    {'passwordauthentication': 'no'}
    """

    def effective(self, login: str, keywords: Iterable[str]) -> dict[str, str | None]:
        """Return the effective options for a login from this machine.

        None for an option that sshd does not print. Several values of one option are joined by spaces.
        Options on sshd's command line override its files.

        Args:
            login: name of the user.
            keywords: names of options in lower case.

        Raises:
            NodeFailed: sshd rejects its configuration.
        """
        text = self.ask(f"sshd -T -C {CRITERIA}", login)
        found = {keyword: option(text, keyword) for keyword in keywords}
        return {**found, **{name: value for name, value in self.started_with.items() if name in found}}

    @cached_property
    def started_with(self) -> dict[str, str]:
        """Options on the command line of the oldest sshd, `-o NAME=VALUE`, by name in lower case.

        They override files.
        """
        pairs = re.findall(r"\s-o\s*(\w+)[=\s]+(\S+)", self.run(COMMAND_LINE).stdout)
        return {name.lower(): value for name, value in pairs}

    @cached_property
    def ports(self) -> list[int]:
        """TCP ports on which sshd, or systemd for it, listens, in ascending order.

        Raises:
            NodeFailed: ss fails.
        """
        lines = self.ask("ss -Hltnp").splitlines()
        own = [line for line in lines if '"sshd"' in line or "ssh.socket" in line]
        return sorted({int(line.split()[3].rpartition(":")[2]) for line in own})

    @property
    def undone(self) -> str | None:
        """The reason why the node restored its old SSH and firewall settings; None if it did not."""
        return self.run(RECORD).stdout.strip() or None

    def __repr__(self) -> str:
        return "<sshd>"


class Firewall(Observed):
    """Observer of the kernel's rules in gpuprov's table, and of the units that load them."""

    @cached_property
    def _text(self) -> str:
        """The table as nft prints it, without counters; empty if there is no such table."""
        return str(self.run(RULES).stdout)

    def chain(self, name: str) -> list[str]:
        """Return head and rules of a chain in order, as nft prints them, stripped.

        Empty without such a chain.
        """
        return [line.strip() for line in self._block("chain", name) if line.strip()]

    def networks(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the elements of the sets with these names, without sets that do not exist or are empty."""
        found = {}
        for name in names:
            _, there, rest = "\n".join(self._block("set", name)).partition("elements = {")
            elements, closed, _ = rest.partition("}")
            if there and closed:
                found[name] = [each.strip() for each in elements.split(",")]
        return found

    @cached_property
    def at_boot(self) -> str:
        """The state of the unit that restores the rules at boot, from `systemctl is-enabled`.

        `not installed` if there is no such unit.
        """
        return (
            str(self.run("systemctl is-enabled gpuprov-firewall.service").stdout).strip() or "not installed"
        )

    def loaded_again(self, rules: str) -> list[str]:
        """Return the actions of nftables.service (`reload`, `start`, `stop`) that also load gpuprov's rules.

        Only the last ExecStartPost=, ExecReload= or ExecStopPost= line in the unit's files counts. Sorted.

        Args:
            rules: path of the file with gpuprov's rules.
        """
        last: dict[str, str] = {}
        text = self.run("systemctl cat nftables.service").stdout
        for key, command in re.findall(r"(?m)^Exec(StartPost|Reload|StopPost)=(.*)$", text):
            last[key.removesuffix("Post").lower()] = command
        return sorted(verb for verb, command in last.items() if f"-f {rules}" in command)

    def _block(self, kind: str, name: str) -> list[str]:
        """Return the lines of a set or a chain of the table, see `block`."""
        return block(self._text, kind, name)

    def __repr__(self) -> str:
        return "<firewall>"


def block(text: str, kind: str, name: str) -> list[str]:
    """Return the lines of a set or a chain of `nft list table`; empty if it is missing or incomplete.

    Args:
        kind: `set` or `chain`.
    """
    lines = iter(lines_of(text))
    if f"\t{kind} {name} {{" not in lines:  # reads the lines up to its head
        return []
    body: list[str] = []
    for line in lines:
        if line.startswith("\t}"):
            return body
        body.append(line)
    return []


def option(text: str, keyword: str) -> str | None:
    """Return one option of `sshd -T`, its values joined by spaces; None if it is not printed or empty.

    `without-password`, the older name of `prohibit-password`, is returned as the latter.

    Args:
        keyword: the option's name in lower case.
    """
    values = re.findall(rf"^{regex(keyword)} (.*)$", text, re.MULTILINE)
    joined = " ".join(value.strip() for value in values)
    return {"": None, "without-password": "prohibit-password"}.get(joined, joined)
