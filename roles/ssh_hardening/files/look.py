"""State of a node for the role ssh_hardening, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument: a JSON object with the requested
`options` as `sshd -T` prints them, and `login`, the user for whom they must be in effect. `armed` is the run
for which the dead man's switch is armed.

    {"armed": "", "included": true, "taken": {"2222": "python3"}, "groups": ["root"], "weak_keys": [],
     "drop_ins": true, "policy": false, "selinux": true, "unlabelled": ["2222"],
     "claimed": {"2225": "FILE:7"}, "semanage": true, "unit": "ssh",
     "elsewhere": {"812": "/usr/sbin/sshd"}, "socket": false, "stale": false,
     "hindrance": ["/etc/systemd/system/ssh.service.d/a.conf:2 ConditionPathExists=/none"],
     "differs": {"maxauthtries": "6"},
     "earlier": ["/etc/ssh/sshd_config.d/00-cloud.conf:1 (PasswordAuthentication yes)"], "by": []}

`drop_ins` is whether sshd knows Include (OpenSSH 8.2), and `policy` whether its unit passes the system's
crypto policy on the command line. `unlabelled` are requested ports that SELinux's policy does not give to
sshd, `claimed` those to which the site gives another type, with the place, and `semanage` is whether the
program that labels ports is installed. `elsewhere` are processes of sshd that listen on a requested port and
are not of its unit, with commands. `hindrance` are lines with which systemd would not start sshd. `differs`
are requested options that are not in effect. `by` are the first lines that set them, `earlier` those that
sshd reads before the role's file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gpuprov_sshd
from gpuprov_node import run
from gpuprov_selinux import ENFORCE

CONFIG = Path("/etc/ssh/sshd_config")
OURS = CONFIG.parent / "sshd_config.d/00-gpuprov.conf"
ARMED = Path("/var/lib/gpuprov/deadman/armed")
SYNONYMS = {"without-password": "prohibit-password"}
RSA_BITS_AT_LEAST = 3072
INCLUDES_AT_MOST = 16
PROGRAMS_S = 10
"""Time limit of the question which programs listen on a port, in seconds."""
POLICY = Path("/etc/crypto-policies/back-ends/opensshserver.config")
EARLIER: dict[Path, bool] = {}
"""Included file → whether sshd reads it before the role's, as `first_lines` finds."""

os.environ["PATH"] += ":/usr/sbin:/sbin"
question = json.loads(sys.argv[1])
options = {keyword.lower(): str(value) for keyword, value in question["options"].items()}
options.pop("challengeresponseauthentication", None)  # sshd prints it as kbdinteractiveauthentication


def said(*command: str) -> str:
    """Run a command; return its output, "" if it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def effective() -> dict[str, str]:
    """Return sshd's options in effect for the login from this machine, by `sshd -T`; {} if it fails."""
    who = f"user={question['login']},host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
    found: dict[str, list[str]] = {}
    for line in said("sshd", "-T", "-C", who).splitlines():
        keyword, _space, value = line.partition(" ")
        found.setdefault(keyword, []).append(SYNONYMS.get(value.strip(), value.strip()))
    return {keyword: " ".join(values) for keyword, values in found.items()}


def has_drop_ins() -> bool:
    """Return whether sshd knows Include."""
    tried = said("sh", "-c", "echo Include /none | sshd -t -f /dev/stdin 2>&1; :")
    return "Bad configuration option: Include" not in tried


def taken() -> dict[str, str]:
    """Return the requested ports on which programs other than root's sshd and systemd listen, with them."""
    wanted, others = set(options.get("port", "").split()), []
    ours = gpuprov_sshd.sockets_of(1).union(
        *(gpuprov_sshd.sockets_of(each.pid) for each in gpuprov_sshd.listeners())
    )
    for number, port in gpuprov_sshd.listening(everyone=True).items():
        if port in wanted and number not in ours:
            others.append(port)  # often twice: IPv4 and IPv6
    return {port: programs for port in dict.fromkeys(others) if (programs := programs_on(port))}


def programs_on(port: str) -> str:
    """Return the names of the programs that listen on a port, "" without any.

    They are not known if `ss` takes too long: it looks at all open files, of which a user can have millions.
    """
    status, listed = run("ss", "-Hltnp", f"sport = :{port}", seconds=PROGRAMS_S)
    return "a program" if status else ", ".join(sorted(set(re.findall(r'"([^"]+)",pid=', listed))))


def elsewhere() -> dict[str, str]:
    """Return number and command of each sshd that listens on a requested port and is not of sshd's unit."""
    wanted = set(options.get("port", "").split())
    found = (each for each in gpuprov_sshd.others() if not each.in_unit and wanted.intersection(each.ports))
    return {str(each.pid): each.command for each in found}


def hindrance(unit: str) -> list[str]:
    """Return the lines of a unit's files that would keep systemd from starting sshd, with their places.

    These are its conditions if they fail, or if systemd cannot check them (before 250, or without room for a
    folder in /tmp, which a user can fill; its message follows), or a command that is not sshd.
    """
    path, number, conditions, command = "", 0, {}, ("", "sshd")
    for line in said("systemctl", "cat", unit).splitlines():
        path, number = (line[2:], 0) if line.startswith("# /") else (path, number + 1)
        if re.match(r"(?:Condition|Assert)\w+=", line):
            conditions[f"{path}:{number}"] = line
        elif re.match(r"ExecStart=.", line):
            command = (f"{path}:{number}", line)
    tried = ["sh", "-c", 'systemd-analyze condition "$@" 2>&1', "sh", *conditions.values()]
    found = [] if "sshd" in command[1] else [" ".join(command)]
    status, answer = run(*tried) if conditions else (0, "")
    if status:
        found += [" ".join(row) for row in conditions.items()]
        if not re.search(r"(?m)^\w+ failed", answer):
            found.append(f"({' '.join(answer.split())[:200] or 'systemd-analyze does not answer'})")
    return found


def weak_keys() -> list[str]:
    """Return the requested host keys that are missing, empty, or RSA keys with too few bits."""
    weak = []
    for path in options.get("hostkey", "").split():
        bits, _space, rest = said("ssh-keygen", "-l", "-f", path).partition(" ")
        if not bits.isdecimal() or ("(RSA)" in rest and int(bits) < RSA_BITS_AT_LEAST):
            weak.append(path)
    return weak


def stale(unit: str) -> bool:
    """Return whether a file of sshd, or the folder of its drop-ins, is newer than the running sshd."""
    started = said("systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "--value", unit).strip()
    files = [CONFIG, OURS.parent, *OURS.parent.glob("*"), *map(Path, options.get("hostkey", "").split())]
    files += [Path("/etc/default/ssh"), Path("/etc/sysconfig/sshd"), POLICY]
    youngest = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
    age = time.time() - youngest
    return time.monotonic() - int(started or 0) / 1e6 > age


def first_lines() -> dict[str, tuple[Path, int, str]]:
    """Return keyword → the first line that sets it, in the order in which sshd reads its files."""
    found: dict[str, tuple[Path, int, str]] = {}
    for path in [*sorted(CONFIG.parent.glob("sshd_config.d/*.conf")), CONFIG]:
        for place in lines(path, {CONFIG, path}):
            found.setdefault(place[2].partition(" ")[0].lower(), place)
            if place[0] != path:
                EARLIER.setdefault(place[0], goes_before(path))
    return found


def lines(path: Path, opened: set[Path]) -> list[tuple[Path, int, str]]:
    """Return path, number and text of the lines of a file, and of files that it includes from other folders.

    Args:
        opened: files that were included so far, which is extended; at most `INCLUDES_AT_MOST`.
    """
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        keyword, _space, rest = line.strip().partition(" ")
        found.append((path, number, line.strip()))
        if keyword.lower() == "include" and len(opened) < INCLUDES_AT_MOST:
            patterns = [str(Path("/etc/ssh", pattern.strip('"'))).lstrip("/") for pattern in rest.split()]
            for each in [path for pattern in patterns for path in sorted(Path("/").glob(pattern))]:
                if each.parent != OURS.parent and each.is_file() and each not in opened:
                    opened.add(each)
                    found += lines(each, opened)
    return found


def goes_before(path: Path) -> bool:
    """Return whether sshd reads a file before the role's: an earlier drop-in, or one that this includes."""
    return EARLIER.get(path, path.parent == OURS.parent and path.name < OURS.name)


def place(path: Path, number: int, line: str) -> str:
    """Return a line with its place, as shown in messages."""
    return f"{path}:{number} ({line})"


unit = gpuprov_sshd.unit()[0].partition(".")[0]
now = effective()
text = CONFIG.read_text(errors="replace") if CONFIG.exists() else ""
differs = {keyword: now.get(keyword) for keyword, value in options.items() if now.get(keyword) != value}
first = first_lines() if CONFIG.exists() else {}
ports = gpuprov_sshd.unlabelled(options.get("port", "").split())
socket = said("systemctl", "is-active", f"{unit}.socket").strip() == "active"
look = {
    "earlier": [place(*first[each]) for each in differs if each in first and goes_before(first[each][0])],
    "by": [place(*first[each]) for each in differs if each in first],
    "armed": ARMED.read_text().strip() if ARMED.exists() else "",
    "included": bool(
        re.search(r"^\s*Include\s+(?:.*\s)?/etc/ssh/sshd_config\.d/\*\.conf", text, re.M | re.I)
    ),
    "drop_ins": has_drop_ins(),
    "policy": "$CRYPTO_POLICY" in said("systemctl", "cat", f"{unit}.service"),
    "taken": taken(),
    "selinux": Path(ENFORCE).exists(),
    "unlabelled": [port for port, place in ports.items() if not place],
    "claimed": {port: place for port, place in ports.items() if place},
    "semanage": shutil.which("semanage") is not None,
    "elsewhere": elsewhere(),
    "groups": gpuprov_sshd.groups_of(question["login"]),
    "weak_keys": weak_keys(),
    "unit": unit,
    "socket": socket,
    "hindrance": [] if socket else hindrance(f"{unit}.service"),
    "stale": stale(f"{unit}.service"),
    "differs": differs,
}
json.dump(look, sys.stdout)
