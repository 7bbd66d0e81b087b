"""Collectors of what sshd's listeners accept: options in effect by user and address, and PAM's stack."""

import glob
import os
import re
import time
from itertools import chain

import gpuprov_sshd

from gpuprov.probe.node.base import (
    Failed,
    collector,
    find_program,
    lines_of,
    names_in,
    read_or_none,
    redact,
    run_anyway,
    text_in,
)
from gpuprov.probe.node.logins import assignments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

CONFIG = "/etc/ssh/sshd_config"
NO_FOLDER = "Missing privilege separation directory"
"""Message of every sshd while its service, which makes this folder, does not run (Debian, Ubuntu)."""
ENVIRONMENT_FILES = ("/etc/default/ssh", "/etc/sysconfig/sshd")
ENVIRONMENT_OPTIONS = ("SSHD_OPTS", "OPTIONS")
"""Variables of these files with options of sshd, on Debian and RHEL."""
COMMAND_LINE = "sshd's command line (systemctl cat ssh; /etc/default/ssh)"
TITLE = re.compile(r"sshd: (/.*?) \[listener\] \d+ of ")
VALUED, KEPT, FLAGS = "CEbcfghkopu", "cfhop", "46DGQRTdeiqrtV"
LISTENERS_MAX, ASKED_MAX = 8, 24
RELOAD_S = 0.3
"""Time in which sshd writes the file with its number again, which it removes when it is reloaded."""
SLACK_S = 2.0
"""Uncertainty of a process's start in the wall clock, in seconds."""
SERVICES = ("/etc/pam.d", "/usr/lib/pam.d")
SERVICES_MAX = 40


@collector(seconds=20)
def sshd(parameters: "Values") -> "Any":
    """Return what each listening sshd accepts from root, the login and an unknown user, from two addresses.

    {"text": `sshd -T` for the login, "lines": [[place, setting]], "answers": [[command line, user, address,
    text, lines]], "unread": [path], "unclear": [reason], "astray": [process]}; text and lines are null in an
    answer that is the first one again. `unread` are files that changed after sshd has read them, `unclear`
    are listeners that could not be asked, `astray` those that are not the main process of sshd's unit.
    Without sshd all are empty, also if its service does not run and no sshd could.

    Raises:
        Failed: no listener could be asked.
    """
    found = {"text": "", "lines": [], "answers": [], "unread": [], "unclear": [], "astray": []}  # type: Values
    listeners = {}  # type: dict[tuple[str, ...], tuple[str, list[str]]]
    for pid, command, options in _listeners(found["unclear"]):
        listeners.setdefault(tuple(options), (command, []))[1].append(pid)
    listening = bool(listeners or found["unclear"])
    if not listening:
        if find_program("sshd") is None:
            return found
        listeners[()] = ("sshd", [])
    others = (each for each in gpuprov_sshd.others() if not _is_contained(str(each.pid)))
    found["astray"] = [redact(f"process {each.pid} ({each.command[:200]})") for each in others]
    for given, (command, pids) in list(listeners.items())[:LISTENERS_MAX]:
        try:
            _ask_all(parameters, found, command, given, pids)
        except Failed as failed:
            found["unclear"].append(redact(f"{command}: {failed}"))
    if len(listeners) > LISTENERS_MAX:
        found["unclear"].append(f"{len(listeners)} processes of sshd listen")
    if not found["answers"]:
        said = "; ".join(found["unclear"])
        if listening or NO_FOLDER not in said:
            raise Failed(said)
        found["unclear"] = []
    return found


def _listeners(unclear: "list[str]") -> "Iterator[tuple[str, str, list[str]]]":
    """Yield process, command line and options of each listening sshd of root's, without those of containers.

    sshd replaces its arguments by a title, `sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups`.
    """
    own = os.path.realpath(find_program("sshd") or "/usr/sbin/sshd")
    for pid in sorted(filter(str.isdecimal, names_in("/proc")), key=int):
        if text_in(f"/proc/{pid}/comm") != "sshd" or _is_contained(pid):
            continue
        words = (read_or_none(f"/proc/{pid}/cmdline", 8192) or "").rstrip("\0").split("\0")
        title = TITLE.match(words[0])
        cut = words[0].startswith("sshd: /") and not title
        if not (title or cut or os.path.basename(words[0]) == "sshd"):
            continue  # a session
        command = title.group(1) if title else " ".join(words)
        program = _link(f"/proc/{pid}/exe")
        if program is None:
            continue  # it has ended: the process of a connection, before it has a title
        try:
            if cut or program.replace(" (deleted)", "") != own:
                raise Failed("its command line is cut off" if cut else f"{program} is not {own}")  # noqa: TRY301
            options = sshd_options(command.split()[1:] if title else words[1:], bool(title))
        except Failed as failed:
            unclear.append(redact(f"{command[:200]}: {failed}"))
            continue
        yield pid, redact(command[:200]), options


def _is_contained(pid: str) -> bool:
    """Return whether a process is not root's, or has its own process namespace (a container).

    A program that a user runs with root's rights (setuid) is the user's.
    """
    root = re.search(r"(?m)^Uid:\s+0\s+0\s", text_in(f"/proc/{pid}/status"))
    return root is None or _link(f"/proc/{pid}/ns/pid") != _link("/proc/1/ns/pid")


def _link(path: str) -> "str | None":
    """Return the target of a link; `None` if it is not a link."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def sshd_options(words: "list[str]", of_title: bool) -> "list[str]":
    """Return the arguments of sshd that decide what it accepts, for `sshd -T`.

    Args:
        words: its arguments.
        of_title: they come from a title, in which a value with spaces has lost its quotes.

    Raises:
        Failed: they cannot be understood.
    """
    kept, left = [], list(words)  # type: tuple[list[str], list[str]]
    while left:
        word = left.pop(0)
        valued = re.fullmatch(f"-[{FLAGS}]*(?:([{VALUED}])(.*))?", word, re.DOTALL)
        if not valued or word == "-":
            raise Failed(f"its argument {word} is not known")
        letter, value = valued.groups()
        if letter is None:
            continue
        if not value and left:
            value = left.pop(0)
        while of_title and left and not left[0].startswith("-"):
            value += " " + left.pop(0)
        if letter == "f" and not value.startswith("/"):
            raise Failed(f"the folder of its file {value} is not known")
        if letter in KEPT:
            kept += ["-" + letter, value]
    return kept


def _ask_all(
    parameters: "Values", found: "Values", command: str, options: "tuple[str, ...]", pids: "list[str]"
) -> None:
    """Add the answers of listeners with the same options, and the files that they have not read, to `found`.

    Users, addresses and ports are varied as far as Match blocks name them, in at most `ASKED_MAX` questions.
    Failed if `sshd -T` fails.
    """
    here, ours = _connection()
    login, (unknown, elsewhere) = parameters["login"], parameters["strangers"]
    first = _ask(options, login, (here, ours), "22")
    criteria = " ".join(re.findall(r"(?m)^debug\d: checking syntax for 'Match (.*)'", first[2])).lower()
    users = [login, "root", unknown] if re.search(r"\b(?:user|group)\b", criteria) else [login]
    varied = re.search(r"\b(?:address|host|localaddress)\b", criteria)
    pairs = [(here, ours)]
    if varied:
        pairs += [(address, ours) for address in [elsewhere, *_samples(r"\baddress", criteria)]]
        pairs += [(here, local) for local in _samples("localaddress", criteria)]
    by_port = "localport" in criteria
    ports = re.findall(r"(?m)^port (\d+)$", first[0]) if by_port else ["22"]
    contexts = list(dict.fromkeys((user, pair, port) for user in users for pair in pairs for port in ports))
    for user, pair, port in contexts[:ASKED_MAX]:
        known = (user, pair, port) == (login, pairs[0], "22")
        text, lines, _ = first if known else _ask(options, user, pair, port)
        if not found["answers"]:
            found["text"], found["lines"] = text, lines
        same = text == found["text"] and lines == found["lines"]
        found["answers"].append([command, user, pair[0], *([None, None] if same else [text, lines])])
    if len(contexts) > ASKED_MAX:
        found["unclear"].append(f"{command}: too many Match blocks")
    unread = [path for pid in pids for path in _unread(pid, first)]
    found["unread"] = list(dict.fromkeys([*found["unread"], *unread]))


def _ask(
    options: "tuple[str, ...]", user: str, pair: "tuple[str, str]", port: str
) -> "tuple[str, list[Any], str]":
    """Return `sshd -T` for a connection, the lines that set it (first those that count), and sshd's trace.
    Raises:
        Failed: sshd rejects its configuration, or does not answer.

    The trace names each line that sshd reads; with it, sshd prints its own log level as DEBUG3.
    """
    who = "user={0},host={1},addr={1},laddr={2},lport={3}".format(user, *pair, port)
    code, text, trace = run_anyway("sshd", "-ddd", "-T", *options, "-C", who)
    if code != 0:
        said = [line for line in trace.splitlines() if not line.startswith("debug")]
        raise Failed(f"sshd exited with {code}: {(said or ['no message'])[-1][:300]}")
    trace = trace.replace("\r", "")
    before, _, after = trace.partition("config reprocess config")
    set_at = r"(?m)^debug3: (/[^\n]+?:\d+) setting (\S+[^\n]*)$"
    words = {"-o": "", "-p": "Port "}
    given = [words[letter] + value for letter, value in zip(options[::2], options[1::2]) if letter in words]
    rows = re.findall(set_at, after) + [(COMMAND_LINE, each) for each in given] + re.findall(set_at, before)
    lines = {}  # type: dict[str, list[str]]
    for place, line in rows:
        line = line.strip()
        lines.setdefault(re.split(r"[\s=]", line, maxsplit=1)[0].lower(), [place, redact(line)])
    level = re.split(r"[\s=]+", lines.get("loglevel", ["", "LogLevel INFO"])[1])[-1].upper()
    return redact(re.sub(r"(?m)^loglevel .*$", "loglevel " + level, text)), list(lines.values()), trace


def _connection() -> "tuple[str, str]":
    """Return the addresses of the controller and of this machine, from the environment of a parent; both
    127.0.0.1 without ssh.
    """
    given = re.compile(r"(?:^|\0)SSH_CONNECTION=([\w.:%]+) \d+ ([\w.:%]+) ")
    pid = str(os.getpid())
    while pid.isdecimal() and pid not in ("0", "1"):
        found = given.search(read_or_none(f"/proc/{pid}/environ") or "")
        if found:
            return found.group(1), found.group(2)
        pid = (re.findall(r"(?m)^PPid:\s+(\d+)$", text_in(f"/proc/{pid}/status")) or [""])[0]
    return "127.0.0.1", "127.0.0.1"


def _samples(keyword: str, criteria: str) -> "list[str]":
    """Return an address for each pattern in the criteria of Match blocks: 10.0.0.1 for 10.0.0.0/8; `*` is 1,
    and what is then no address is left out. [] without patterns.
    """
    patterns = re.findall(keyword + r"[\s=]+\"?([^\s\"]+)", criteria)
    if not patterns:
        return []
    import ipaddress

    found = []
    for pattern in patterns:
        for each in pattern.split(","):
            try:
                network = ipaddress.ip_network(re.sub(r"[*?]+", "1", each), False)
            except ValueError:
                continue
            found.append(str(network[1] if network.num_addresses > 1 else network[0]))
    return found


def _unread(pid: str, first: "tuple[str, list[Any], str]") -> "list[str]":
    """Return configuration files and folders that changed after a listener has read them; empty if it has
    ended.

    sshd writes its own number to a file when it starts and after each reload; without that file, wait for a
    reload to end.
    """
    text, _, trace = first
    begun = _started(pid)
    if not begun:  # that of a connection, which listened until it had a title
        return []
    read_at = begun + SLACK_S
    own = (re.findall(r"(?m)^pidfile (/.*)$", text) or [""])[0]
    if own and not os.path.exists(own):
        time.sleep(RELOAD_S)
    if own and text_in(own) == pid:
        read_at = max(begun, _changed(own))
    files = re.findall(r"(?m)^debug2: load_server_config: filename (/.*)$", trace)
    folders = [os.path.dirname(each) for each in re.findall(r"(?m): new include (/.*)$", trace)]
    paths = dict.fromkeys([*files, *(folder for folder in folders if not glob.has_magic(folder))])
    late = [path for path in paths if _changed(path) > read_at]
    started = [path for path in ENVIRONMENT_FILES if _changed(path) > begun + SLACK_S]
    return late + [path for path in started if not _is_started_by(pid, path)]


def _is_started_by(pid: str, path: str) -> bool:
    """Return whether a listener has exactly the options that a file of its service states."""
    stated = {name: value for name, value, _ in assignments(path) if name in ENVIRONMENT_OPTIONS}
    title = TITLE.match(read_or_none(f"/proc/{pid}/cmdline", 8192) or "")
    words = title.group(1).split()[1:] if title else []
    return words == ["-D", *" ".join(stated.values()).split()]


def _started(pid: str) -> float:
    """Return when a process started, as seconds since 1970; 0 if it has ended."""
    fields = text_in(f"/proc/{pid}/stat").rpartition(")")[2].split()
    booted = re.search(r"(?m)^btime (\d+)$", read_or_none("/proc/stat") or "")
    return int(booted.group(1)) + int(fields[19]) / os.sysconf("SC_CLK_TCK") if booted and fields else 0.0


def _changed(path: str) -> float:
    """Return when a file or folder was changed, as seconds since 1970; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


@collector(seconds=10)
def listening(parameters: "Values") -> "Any":
    """Return the TCP ports on which root's sshd listens outside of containers, and those of systemd.

    {"sshd": ["22"], "systemd": []}; systemd can listen for sshd.

    Raises:
        Failed: ss is not installed.
    """
    if find_program("ss") is None:
        raise Failed("ss is not installed")
    own = [each.ports for each in gpuprov_sshd.listeners() if not _is_contained(str(each.pid))]
    of_systemd = (
        gpuprov_sshd.ports_of(1, gpuprov_sshd.listening()) if text_in("/proc/1/comm") == "systemd" else ()
    )
    return {"sshd": sorted({*chain(*own)}), "systemd": sorted(of_systemd)}


@collector(seconds=5)
def origin(parameters: "Values") -> "Any":
    """Return the controller's address; 127.0.0.1 without ssh."""
    return _connection()[0]


@collector(seconds=5)
def login_groups(parameters: "Values") -> "Any":
    """Return the names of the login's groups, see `groups_of`."""
    return gpuprov_sshd.groups_of(parameters["login"])


@collector(seconds=60)
def port_labels(parameters: "Values") -> "Any":
    """Return requested ports that SELinux does not give to sshd → place of the site's label, or null."""
    return gpuprov_sshd.unlabelled(parameters["ssh_ports"])


@collector(seconds=5)
def pam(parameters: "Values") -> "Any":
    """Return the lines of sshd's PAM service and of those that it includes: service -> [place, text]. Secrets
    are hidden.

    Raises:
        Failed: there are more than `SERVICES_MAX` files.
    """
    found, left = {}, ["other", "sshd"]  # type: tuple[dict[str, list[list[str]]], list[str]]
    while left:
        name = left.pop()
        paths = [name] if name.startswith("/") else [f"{root}/{name}" for root in SERVICES]
        path = next(filter(os.path.isfile, paths), None)
        if name in found or path is None:
            continue
        if len(found) == SERVICES_MAX:
            raise Failed("sshd's PAM service includes too many files")
        found[name] = [[place, redact(text)] for place, text in lines_of(path)]
        left += [
            word for _, text in found[name] for word in re.findall(r"(?i)(?:include|substack)\s+(\S+)", text)
        ]
    return found
