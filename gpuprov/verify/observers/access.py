"""`host.sshd` and `host.firewall`: access to a node, as sshd and the kernel report it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from gpuprov.untrusted import lines_of, regex
from gpuprov.verify.observers.base import Observed

CRITERIA = "user=%s,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
COMMAND_LINE = "pgrep -a -o -x sshd"
RULES = "nft -sp list table inet gpuprov"
RECORD = "cat /var/lib/gpuprov/deadman/undone"


class Sshd(Observed):
    """Test sshd's effective configuration.

    >>> host.sshd.effective("root", ["passwordauthentication"])
    {'passwordauthentication': 'no'}
    """

    def effective(self, login: str, keywords: Iterable[str]) -> dict[str, str | None]:
        """Return the effective options for a login; several values of one option are joined by spaces."""
        text = self.ask(f"sshd -T -C {CRITERIA}", login)
        found = {keyword: option(text, keyword) for keyword in keywords}
        return {**found, **{name: value for name, value in self.started_with.items() if name in found}}

    @cached_property
    def started_with(self) -> dict[str, str]:
        """Options on the command line of the listening sshd, which override its files."""
        pairs = re.findall(r"\s-o\s*(\w+)[=\s]+(\S+)", self.run(COMMAND_LINE).stdout)
        return {name.lower(): value for name, value in pairs}

    @cached_property
    def ports(self) -> list[int]:
        """TCP ports of sshd, on which it or systemd listens."""
        lines = self.ask("ss -Hltnp").splitlines()
        own = [line for line in lines if '"sshd"' in line or "ssh.socket" in line]
        return sorted({int(line.split()[3].rpartition(":")[2]) for line in own})

    @property
    def undone(self) -> str | None:
        """The reason why the node restored its old SSH and firewall settings, or None."""
        return self.run(RECORD).stdout.strip() or None

    def __repr__(self) -> str:
        return "<sshd>"


class Firewall(Observed):
    """Test the kernel's rules in gpuprov's table."""

    @cached_property
    def _text(self) -> str:
        return str(self.run(RULES).stdout)

    def chain(self, name: str) -> list[str]:
        """Return head and rules of a chain in order, as nft prints them; empty without such a chain."""
        return [line.strip() for line in self._block("chain", name) if line.strip()]

    def networks(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return elements of sets by name, without sets that do not exist."""
        found = {}
        for name in names:
            _, there, rest = "\n".join(self._block("set", name)).partition("elements = {")
            elements, closed, _ = rest.partition("}")
            if there and closed:
                found[name] = [each.strip() for each in elements.split(",")]
        return found

    @cached_property
    def at_boot(self) -> str:
        """systemd's state of the unit that restores the rules at boot."""
        return (
            str(self.run("systemctl is-enabled gpuprov-firewall.service").stdout).strip() or "not installed"
        )

    def loaded_again(self, rules: str) -> list[str]:
        """Return the commands of nftables.service, sorted, whose last line loads gpuprov's rules, by its
        files.
        """
        last: dict[str, str] = {}
        text = self.run("systemctl cat nftables.service").stdout
        for key, command in re.findall(r"(?m)^Exec(StartPost|Reload|StopPost)=(.*)$", text):
            last[key.removesuffix("Post").lower()] = command
        return sorted(verb for verb, command in last.items() if f"-f {rules}" in command)

    def _block(self, kind: str, name: str) -> list[str]:
        return block(self._text, kind, name)

    def __repr__(self) -> str:
        return "<firewall>"


def block(text: str, kind: str, name: str) -> list[str]:
    """Return the lines of a set or a chain of `nft list table`; empty if it is missing or incomplete."""
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
    """Return one option of `sshd -T`; `without-password` is the older name of `prohibit-password`."""
    values = re.findall(rf"^{regex(keyword)} (.*)$", text, re.MULTILINE)
    joined = " ".join(value.strip() for value in values)
    return {"": None, "without-password": "prohibit-password"}.get(joined, joined)
