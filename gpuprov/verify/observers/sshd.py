"""`host.sshd`: what sshd's listening processes accept, PAM, and sshd's ports."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from gpuprov.access.pam import KINDS, admitting
from gpuprov.access.shipped import SYNONYMS, with_whom
from gpuprov.errors import NodeFailed
from gpuprov.roles.ssh_hardening import SSHD_UNITS
from gpuprov.untrusted import lines_of, regex
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.user_files import checksum_of

# No here-document: bash writes a long one to /tmp, before 5.1 any, and goes on without it if that is full.
PROCESSES = (
    "rows=$(ps -C sshd -p 1 -o pid=,euid=,ruid=,pidns=,etimes=) || exit;"
    " printf '%s\\n' \"$rows\" | grep -aE '^ *(1|[0-9]+ +0 +0) '; [ $? -lt 2 ]"
)
"""Root's processes of this name, and process 1: a user can have any number of that name."""
TITLES = "ps -ww -o pid=,args= -p %s"
"""Command lines of root's processes alone: those of users can be of any length."""
# Not by `ss -p`, which looks at all open files of all processes: a user can have millions.
SOCKETS = "sockets=$(ss -Hltne) || exit; printf '%s\\n' \"$sockets\" | grep -av ' uid:[1-9]'; [ $? -lt 2 ]"
"""Listening sockets of root, with their numbers (`ino:`): those of users can be a list of any length."""
HELD = "find{} -maxdepth 1 -lname 'socket:*' -printf '%%l\\n'"
"""Sockets of processes, by the folders of their open files."""
CONTROLLER = (
    'p=$$; while [ "$p" -gt 1 ]; do tr "\\0" "\\n" </proc/$p/environ | grep ^SSH_CONNECTION= && exit;'
    ' p=$(ps -o ppid= -p "$p" | tr -d " "); done; :'
)
ASK = 'for who in{}; do echo "== "; sshd -T{} -C "$who" || exit; done'
NO_FOLDER = "Missing privilege separation directory"
"""Message of every sshd while its service, which makes this folder, does not run (Debian, Ubuntu)."""
FOLDER = "/etc/ssh/sshd_config.d"
CONFIGS = ("/etc/ssh/sshd_config", FOLDER)
BLOCKS = "grep -D skip -rshiE '^[[:space:]\"]*(match|include)[[:space:]\"=]'"
BLANK = r" \t\r\f\v"
PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+-]+")
AT_START = "/etc/default/ssh /etc/sysconfig/sshd"
TIMES = (
    "date +%%s; [ ! -f %s ] || head -c 64 %s | tr -cd 0-9; echo; find -L{} -maxdepth 0 -printf '%%T@ %%p\\n'"
)
OPTIONS = "grep -sE '^(SSHD_OPTS|OPTIONS)=' %s"
FOREIGN = "gpuprov-unknown", "198.51.100.1"
"""A user that no node has, and an address of documentation (RFC 5737)."""
TITLE = re.compile(r"sshd: (/\S*sshd)( .*?)? \[listener\] .*")
ARGUMENTS = re.compile(r"((?:/\S*/)?sshd)( .*)?")
PROGRAM = "readlink /proc/%s/exe; readlink -f $(command -v sshd)"
FLAG = r"-[46DGQRTdeiqrtV]+"
VALUED = re.compile(r"-[46DGQRTdeiqrtV]*([CEbcfghkopu])\s*(\S.*)", re.DOTALL)
CHANGES_ANSWER = "cfhop"
RULES_OF_PAM = "grep -snHEv '^[[:space:]]*(#|$)' /etc/pam.d/* /usr/lib/pam.d/*"
UNITS = f"systemctl list-unit-files --no-legend {' '.join(SSHD_UNITS)}"
MAIN = "systemctl show --property=ActiveState,MainPID ssh.service sshd.service"
RUNNING = r"(?m)^ActiveState=(?:active|reloading|refreshing)$"
PORT_LABELS = "semanage port --list || { echo ssh_port_t tcp 22; cat /var/lib/selinux/*/active/ports.local; }"
"""Labels of ports: the policy's and the site's; without `semanage` the site's, and that of every policy."""
RANGE = re.compile(r"(?<![^\s,])([0-9]{1,5})(?:-([0-9]{1,5}))?(?![\w-])")
PARENT = "ps -o ppid= -p %s"
RECORD = "cat /var/lib/gpuprov/deadman/undone"

LISTENERS_MAX, ASKED_MAX, PORTS_MAX = 8, 24, 8
"""Listening processes with different options, questions to each of them, and ports from outside."""

Read = Callable[[str, str | None], str | None]


class Listener(NamedTuple):
    """A listening sshd: its number, its age in seconds, its command line, and options for `sshd -T`."""

    pid: str
    age_s: int
    command: str
    options: tuple[str, ...]


class Answer(NamedTuple):
    """Text of `sshd -T` for a user from an address; `listener` is the command line of the sshd."""

    user: str
    address: str
    listener: str
    text: str


class Sshd(Observed):
    """Observer of what sshd's listening processes accept, of PAM, and of sshd's ports.

    >>> host.sshd.in_effect("root", {"passwordauthentication": "no"})
    {'passwordauthentication': 'no'}
    """

    def in_effect(
        self, login: str, expected: Mapping[str, str], read: Read = lambda _, value: value
    ) -> dict[str, str | None]:
        """Return keyword → value in effect, of several answers the first that is not as expected.

        If it differs from that of the first answer, its user and address, or its process, are added, see
        `with_whom`. Without sshd, and for a missing option, the value is None.

        Args:
            read: returns the value to compare, from a keyword and its value.

        Raises:
            NodeFailed: as `answers`.
        """
        answers = self.answers(login)
        found: dict[str, str | None] = dict(expected)
        for keyword, wanted in expected.items():
            values = [read(keyword, option(answer.text, keyword)) for answer in answers]
            values = values or [read(keyword, None)]
            odd = next((at for at, value in enumerate(values) if value != wanted), 0)
            found[keyword] = values[odd]
            if values[odd] != values[0]:
                user, address, listener, _ = answers[odd]
                other = listener if listener != answers[0].listener else ""
                found[keyword] = with_whom(values[odd], user, address, other)
        return found

    def groups_of(self, login: str) -> set[str]:
        """Return the names of an account's groups; empty if there is no such account."""
        return set(self.run("id -nG %s", login).stdout.split())

    def answers(self, login: str) -> list[Answer]:
        """Return the answers of each listening sshd, without one those of its main file.

        Processes with the same options are asked once, about the login, root and an unknown user. Empty
        without sshd, and if none listens and none could run, as its service does not.

        Raises:
            NodeFailed: sshd rejects a configuration, or a listening process cannot be asked.
        """
        if not self.listeners and not self.run("command -v sshd").succeeded:
            return []
        if not self.listeners:
            return self._without_listener(login)
        commands: dict[tuple[str, ...], str] = {}
        for each in self.listeners:
            commands.setdefault(each.options, each.command)
        return [
            answer for each, command in commands.items() for answer in self._answers(login, each, command)
        ]

    def _without_listener(self, login: str) -> list[Answer]:
        """Return the answers of sshd's main file; [] if sshd's folder at run time is missing, so that none
        runs.

        Raises:
            NodeFailed: sshd rejects its configuration.
        """
        try:
            return list(self._answers(login, (), "sshd"))
        except NodeFailed as failure:
            if NO_FOLDER in str(failure):
                return []
            raise

    def _answers(self, login: str, options: tuple[str, ...], listener: str) -> Iterator[Answer]:
        """Yield answers for users, addresses and ports that Match blocks can tell apart.

        Raises:
            NodeFailed: sshd does not answer, or would have to be asked more than `ASKED_MAX` times.
        """
        here, ours = self.connection
        criteria = " ".join(self._blocks("match", options)).lower()
        ports = list(map(str, self.ports)) if "localport" in criteria else ["22"]
        pairs = [(address, ours) for address in (here, FOREIGN[1], *addresses("address", criteria))]
        pairs += [(here, local) for local in addresses("localaddress", criteria)]
        every = (
            (user, address, local, port)
            for user in dict.fromkeys((login, "root", FOREIGN[0]))
            for address, local in dict.fromkeys(pairs)
            for port in ports
        )
        contexts = list(islice(every, ASKED_MAX + 1))
        if len(contexts) > ASKED_MAX:
            raise NodeFailed(f"too many Match blocks: more than {ASKED_MAX} questions to {listener}")
        asked = [
            f"user={user},host={address},addr={address},laddr={local},lport={port}"
            for user, address, local, port in contexts
        ]
        command = ASK.format(" %s" * len(asked), " %s" * len(options))
        result = self.run(command, *asked, *options)
        if not result.succeeded:
            said = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise NodeFailed(f"sshd -T of {listener} ended with status {result.rc}: {said[:200]}")
        texts = result.stdout.split("== \n")[1:]
        for (user, address, *_), text in zip(contexts, texts, strict=True):
            yield Answer(user, address, listener, text)

    def _blocks(self, keyword: str, options: tuple[str, ...]) -> list[str]:
        """Return what follows a keyword, `match` or `include`, in sshd's files, line by line.

        These are the file in the options, or the main file and those in its folder; other included files are
        not read.
        """
        paths = configs(options) or CONFIGS
        text = self.run(BLOCKS + " %s" * len(paths), *paths).stdout
        return re.findall(rf"(?im)^[{BLANK}\"]*{regex(keyword)}[{BLANK}\"=]+(.*)$", text)

    @cached_property
    def listeners(self) -> list[Listener]:
        """Listening sshd processes of root, without those of containers.

        Raises:
            NodeFailed: one of them cannot be asked: another program, or arguments that are not known; or more
                than `LISTENERS_MAX` have different ones.
        """
        found, different = [], set()
        for pid, (age, title) in self._of_root.items():
            started = TITLE.fullmatch(title) or ARGUMENTS.fullmatch(title)
            if not started:
                raise NodeFailed(f"process {pid} listens as `{title[:200]}`", expected="arguments of sshd")
            program, _, own = self.ask(PROGRAM, pid).strip().rpartition("\n")
            if not program:
                continue  # it has ended: the process of a connection, before it has a title
            if program.removesuffix(" (deleted)") != own:
                raise NodeFailed(f"process {pid} listens as {program}", expected=own)
            options = tuple(arguments(started[2] or ""))
            found.append(Listener(pid, age, (started[1] + (started[2] or ""))[:200], options))
            different.add(options)
            if len(different) > LISTENERS_MAX:
                raise NodeFailed(f"more than {LISTENERS_MAX} processes of sshd listen with different options")
        return found

    @cached_property
    def _of_root(self) -> dict[str, tuple[int, str]]:
        """Processes of root's sshd, without sessions and those of containers → age in seconds, and title.

        Raises:
            NodeFailed: ps fails.
        """
        rows = [row for row in map(str.split, lines_of(self.ask(PROCESSES))) if len(row) == 5]
        ours = ["0", "0", next((row[3] for row in rows if row[0] == "1"), "")]
        ages = {pid: int(age) for pid, *place, age in rows if place == ours and pid != "1"}
        if not ages:
            return {}
        found = {}
        for line in lines_of(self.run(TITLES, ",".join(ages)).stdout):
            pid, _, title = line.strip().partition(" ")
            is_session = title.startswith("sshd: ") and not title.startswith("sshd: /")
            if pid in ages and title and not is_session and not title.endswith("<defunct>"):
                found[pid] = ages[pid], title.strip()
        return found

    @cached_property
    def connection(self) -> tuple[str, str]:
        """Addresses of the controller and of the node, as sshd sees them; without SSH 127.0.0.1 for both."""
        found = re.search(r"=([\w.:%]+) \d+ ([\w.:%]+) ", self.run(CONTROLLER).stdout)
        return (found[1], found[2]) if found else ("127.0.0.1", "127.0.0.1")

    def unread(self, login: str) -> list[str]:
        """Return files and folders of sshd that changed after a listening sshd has read them, each once;
        raises as `_answers`.
        """
        found: dict[str, None] = {}
        for each in self.listeners:
            answer = next(self._answers(login, each.options, each.command))
            found |= dict.fromkeys(self._unread(each, answer))
        return list(found)

    def _unread(self, listener: Listener, answer: Answer) -> Iterator[str]:
        """Yield the files and folders that changed after one process, which writes its number to a file, has
        read them.

        If that file has another number, the process has read them two seconds after its start.
        """
        patterns = [
            pattern if pattern.startswith("/") else f"/etc/ssh/{pattern}"
            for line in self._blocks("include", listener.options)
            for pattern in line.strip('" ').split()
            if re.fullmatch(r"[\w./*?-]+", pattern)
        ]
        folders = {
            pattern.rpartition("/")[0] for pattern in patterns if "*" not in pattern.rpartition("/")[0]
        }
        places = " ".join(sorted({*patterns, *folders}))
        stated = option(answer.text, "pidfile") or "none"
        pidfile = stated if PLAIN_PATH.fullmatch(stated) else "/dev/null"
        named = [pidfile, *(configs(listener.options) or CONFIGS[:1])]
        command = TIMES.format(" %s" * len(named) + f" {places} {AT_START}")
        now, owner, *rows = self.run(command, pidfile, pidfile, *named).stdout.splitlines()
        changed = {path: float(when) for when, _, path in (row.partition(" ") for row in rows if row)}
        begun = int(now) - listener.age_s + 2
        written = changed.pop(pidfile, 0.0)
        read_at = written if owner == listener.pid else begun
        for path, when in changed.items():
            at_start = path in AT_START.split()
            if when > (begun if at_start else read_at) and not (
                at_start and self._is_started_by(listener, path)
            ):
                yield path

    def _is_started_by(self, listener: Listener, path: str) -> bool:
        """Return whether a process has exactly the options that a file of its service states."""
        stated = dict(re.findall(r"(?m)^(SSHD_OPTS|OPTIONS)=(.*)$", self.run(OPTIONS, path).stdout))
        words = [word for value in stated.values() for word in value.strip(" \t\"'").split()]
        return listener.command.split()[1:] == ["-D", *words]

    @property
    def admitting(self) -> list[str]:
        """Lines of PAM that admit a user of sshd without credentials, at most one for each type of line;
        raises as `admitting` of PAM.
        """
        files: dict[str, list[tuple[str, str]]] = {}
        paths: dict[str, str] = {}
        rows = re.findall(r"(?m)^(/[^:\n]+):(\d+):(.*)$", self.run(RULES_OF_PAM).stdout)
        for path, number, text in rows:
            name = path.rpartition("/")[2]
            if paths.setdefault(name, path) == path:
                files.setdefault(name, []).append((f"{path}:{number}", text.strip()))
        return [" ".join(rule.text.split()) for kind in KINDS if (rule := admitting(files, kind))]

    def checksum(self, path: str) -> str | None:
        """Return the SHA-256 of a file, None if it cannot be read."""
        return checksum_of(self._host, path)

    @cached_property
    def ports(self) -> list[int]:
        """TCP ports on which root's sshd listens, in ascending order.

        Raises:
            NodeFailed: ss or ps fails.
        """
        return self._ports_of(self._of_root)

    @property
    def ports_of_systemd(self) -> list[int]:
        """TCP ports on which process 1 listens, in ascending order; one of them may be that of ssh.socket.

        Raises:
            NodeFailed: ss fails.
        """
        return self._ports_of(["1"])

    def _ports_of(self, pids: Iterable[str]) -> list[int]:
        """Return the TCP ports on which these processes listen; raises as `ask`."""
        folders = [f"/proc/{pid}/fd" for pid in pids]
        listed = self.run(HELD.format(" %s" * len(folders)), *folders).stdout if folders else ""
        held, found = set(re.findall(r"(?m)^socket:\[([0-9]+)\]$", listed)), set()
        for line in lines_of(self.ask(SOCKETS)):
            number = re.search(r"\sino:([0-9]+)\s", f"{line} ")
            if number and number[1] in held:
                found.add(int(line.split()[3].rpartition(":")[2]))
        return sorted(found)

    def ports_of_options(self, login: str) -> set[int]:
        """Return the ports of each listening sshd by its options; `ss` is not needed.

        Raises:
            NodeFailed: they are more than `PORTS_MAX`, or one is no TCP port.
        """
        found = set()
        for answer in self.answers(login):
            for text in re.findall(r"(?m)^port ([^\n]*)$", answer.text):
                if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
                    raise NodeFailed(f"sshd names the port {text[:80]}", expected="a number from 1 to 65535")
                found.add(int(text))
                if len(found) > PORTS_MAX:
                    raise NodeFailed(f"sshd names more than {PORTS_MAX} ports")
        return found

    @property
    def units(self) -> dict[str, str]:
        """The node's units that start sshd, with their states by the files."""
        rows = (line.split() for line in lines_of(self.run(UNITS).stdout))
        return {row[0]: row[1] for row in rows if len(row) > 1}

    @property
    def astray(self) -> list[str]:
        """Listening processes that are not the main process of sshd's unit, nor a child of it, by number.

        Raises:
            NodeFailed: as `listeners`; or systemd does not answer.
        """
        running = [each for each in self.ask(MAIN).split("\n\n") if re.search(RUNNING, each)]
        main = {found for each in running for found in re.findall(r"(?m)^MainPID=(\d+)$", each)}
        others = [each for each in self.listeners if each.pid not in main]
        lost = [each for each in others if self.run(PARENT, each.pid).stdout.strip() not in {"", *main}]
        return [f"process {each.pid} ({each.command})" for each in lost]

    def unlabelled(self, ports: Collection[str]) -> list[str]:
        """Return the ports to which SELinux gives another type than sshd's, sorted; [] without SELinux.

        Without `semanage` these are all but 22 and those that the site has labelled as sshd's.
        """
        if not self.run("test -e /sys/fs/selinux/enforce").succeeded:
            return []
        lines = re.findall(r"(?m)^.* tcp .*$", self.run(PORT_LABELS).stdout)
        rows = [RANGE.findall(line) for line in lines if "ssh_port_t" in line]
        ranges = [(int(first), int(last or first)) for row in rows for first, last in row]
        return [port for port in sorted(ports) if not any(a <= int(port) <= b for a, b in ranges)]

    @property
    def undone(self) -> str | None:
        """The reason why the node restored its old SSH and firewall settings; None if it did not."""
        return self.run(RECORD).stdout.strip() or None

    def __repr__(self) -> str:
        return "<sshd>"


def arguments(text: str) -> Iterator[str]:
    """Yield option and value, in turn, of the arguments that change what sshd accepts (`-p`, `2222`).

    Each value extends to the next word with a hyphen.

    Raises:
        NodeFailed: an argument is not known, or the path of the configuration file is relative.
    """
    for part in re.split(r"(?<!\s)\s+(?=-)", text.strip()) if text.strip() else ():
        found = VALUED.fullmatch(part)
        if found and found[1] in CHANGES_ANSWER:
            if found[1] == "f" and not found[2].startswith("/"):
                raise NodeFailed(f"sshd listens with the file {found[2]} of a folder that is not known")
            yield from (f"-{found[1]}", found[2])
        elif not found and not re.fullmatch(FLAG, part):
            raise NodeFailed(f"sshd listens with the argument `{part}`", expected="arguments of sshd(8)")


def configs(options: tuple[str, ...]) -> list[str]:
    """Return the configuration files that the options name with `-f`; [] without that option."""
    return [value for letter, value in zip(options[::2], options[1::2], strict=True) if letter == "-f"]


def addresses(keyword: str, criteria: str) -> Iterator[str]:
    """Yield an address for each network or pattern after a keyword in the criteria of Match blocks.

    One that is no network, such as a negated pattern, is left out.
    """
    for listed in re.findall(rf"\b{regex(keyword)}[\s=]+\"?([^\s\"]+)", criteria):
        for each in filter(re.compile(r"[.:]").search, listed.split(",")):
            try:
                network = ipaddress.ip_network(each.replace("*", "1").replace("?", "1"), strict=False)
            except ValueError:
                continue
            yield str(next(iter(network.hosts()), network.network_address))


def option(text: str, keyword: str) -> str | None:
    """Return one option of `sshd -T`, its values joined by spaces; None if it is not printed or empty.

    `without-password`, the older name of `prohibit-password`, is returned as the latter.

    Args:
        keyword: the option's name in lower case.
    """
    values = re.findall(rf"^{regex(keyword)} (.*)$", text, re.MULTILINE)
    joined = " ".join(value.strip() for value in values)
    return SYNONYMS.get(joined, joined) or None
