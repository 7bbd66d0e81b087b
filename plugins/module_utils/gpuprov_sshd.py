# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listening sshd processes that are not the main process of sshd's unit, labels of ports, groups of a login.

Runs on nodes: Python 3.6 or newer.

systemd can lose the main process: while ssh.service is masked, its alias sshd.service is a unit of its own,
and if another unit names it (as cloud-init's do), the state of either one is kept when they become one again.
A restart then starts a second sshd, which fails as the port is in use, and systemd removes /run/sshd, without
which the first one accepts no login. `access/node/sshd.sh` has the same rules.
"""

import glob
import grp
import os
import pwd
import re
from contextlib import suppress
from typing import NamedTuple

from gpuprov_node import output
from gpuprov_selinux import ENFORCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

UNITS = ("ssh.service", "sshd.service")
LISTENS = re.compile(r"(?:sshd: )?((?:/\S*/)?sshd(?: .*?)?)(?: \[listener\] .*)?\Z")
"""Title or arguments of a process that accepts connections; that of a session is `sshd: USER…`."""
OF_ROOT = re.compile(r"(?ms)^PPid:\s+(\d+)$.*^Uid:\s+0\s+0\s")
"""Parent of a process in its status, if it is root's: a user can give any program the title of sshd, and one
that has gigabytes.
"""
OF_USER = re.compile(r"\suid:[1-9]")
"""Owner of a socket in a line of `ss -e`, other than root."""
INODE = re.compile(r"\sino:(\d+)\s")
"""Number of a socket in a line of `ss -e`, as in a link of /proc/PID/fd. `ss -p` would look at the open files
of all processes: a user can have millions.
"""
RUNNING = ("active", "reloading", "refreshing")
"""ActiveState of a unit whose main process counts."""
LABEL = "ssh_port_t"
"""SELinux's type of the ports on which sshd may listen; policies give it to port 22."""
SITE_LABELS = ("/var/lib/selinux/*/active/ports.local", "/etc/selinux/*/active/ports.local")
"""Files with the ports that the site has labelled, `portcon tcp 2222 system_u:object_r:ssh_port_t:s0`."""


class Listener(NamedTuple):
    """A listening sshd of root.

    Attributes:
        parent: number of its parent.
        in_unit: whether it is in the control group of sshd's unit, which has then started it.
    """

    pid: int
    parent: int
    command: str
    ports: "tuple[str, ...]"
    in_unit: bool


def unit() -> "tuple[str, str]":
    """Return the name of sshd's unit, and the number of its main process; "0" if it has none or does not run.

    Debian's is ssh.service, with the alias sshd.service.
    """
    shown = output("systemctl", "show", "--property=Id,LoadState,ActiveState,MainPID", *UNITS)
    blocks = [dict(re.findall(r"(?m)^(\w+)=(.*)$", block)) for block in shown.split("\n\n")]
    for each in blocks:
        if each.get("Id") in UNITS and each.get("LoadState") != "not-found":
            return each["Id"], each.get("MainPID", "0") if each.get("ActiveState") in RUNNING else "0"
    return UNITS[-1], "0"


def others() -> "list[Listener]":
    """Return those of `listeners` that are not the main process of sshd's unit, nor a child of it."""
    name, number = unit()
    main = int(number)
    return [each for each in listeners(name) if not main or main not in (each.pid, each.parent)]


def listeners(name: "str | None" = None) -> "list[Listener]":
    """Return root's listening sshd processes: a user can give any program the name `sshd`.

    Args:
        name: name of sshd's unit if it is known.
    """
    name, known = name or unit()[0], listening()
    found = []
    for pid in _of_root("sshd"):
        parent = OF_ROOT.search(_text(f"/proc/{pid}/status"))
        title = parent and LISTENS.match(_text(f"/proc/{pid}/cmdline").rstrip("\0 ").replace("\0", " "))
        ports = tuple(sorted(ports_of(pid, known))) if title else ()
        if title and parent and ports:
            own = re.search(rf"(?m)/{re.escape(name)}$", _text(f"/proc/{pid}/cgroup"))
            found.append(Listener(pid, int(parent.group(1)), title.group(1), ports, own is not None))
    return found


def listening(*, everyone: bool = False) -> "dict[str, str]":
    r"""Return the number of each listening TCP socket of root, or of everyone, → its port.

    Only `\n` ends a line: in the name of the control group, which follows, users can have `\r` and `\v`.
    """
    found = {}
    for line in output("ss", "-Hltne").split("\n"):
        inode = INODE.search(line + " ")
        if inode and (everyone or not OF_USER.search(line)):
            found[inode.group(1)] = line.split()[3].rpartition(":")[2]
    return found


def ports_of(pid: int, known: "dict[str, str]") -> "set[str]":
    """Return the ports on which a process listens, by the sockets that `listening` returns."""
    return {known[each] for each in sockets_of(pid) if each in known}


def sockets_of(pid: int) -> "set[str]":
    """Return the numbers of a process's sockets; empty if it has ended."""
    found, folder = set(), f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                found.update(re.findall(r"socket:\[(\d+)\]\Z", os.readlink(f"{folder}/{name}")))
    return found


def _of_root(name: str) -> "list[int]":
    """Return root's processes of a name, by number."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == 0 and _text(f"/proc/{pid}/comm").strip() == name:
                found.append(int(pid))
    return sorted(found)


def unlabelled(ports: "Iterable[str]") -> "dict[str, str | None]":
    """Return the ports that SELinux does not give to sshd; {} without SELinux.

    A value is the place `FILE:LINE` where the site gives the port another type, else None. The site's labels
    are read first, as `semanage` takes a second, and may be missing.
    """
    if not os.path.exists(ENFORCE):
        return {}
    own, other = {"22"}, {}  # type: tuple[set[str], dict[str, str]]
    for path in sorted(path for pattern in SITE_LABELS for path in glob.glob(pattern)):
        for number, line in enumerate(_text(path).splitlines(), 1):
            own |= labelled(line)
            other.update(dict.fromkeys(labelled(line, others=True), f"{path}:{number}"))
    wanted = {port: other.get(port) for port in ports if port in other or port not in own}
    if None not in wanted.values():
        return wanted
    own = labelled(output("semanage", "port", "-l"))
    return {port: place for port, place in wanted.items() if place or port not in own}


def labelled(text: str, *, others: bool = False) -> "set[str]":
    """Return the TCP ports with sshd's type, or with others, in a list of `semanage` or of a policy."""
    lines = [line for line in text.splitlines() if " tcp " in line and (LABEL in line) != others]
    ranges = re.findall(r"(?<![^\s,])(\d{1,5})(?:-(\d{1,5}))?(?![\w-])", "\n".join(lines))
    return {str(port) for first, last in ranges for port in range(int(first), int(last or first) + 1)}


def groups_of(login: str) -> "list[str]":
    """Return the names of an account's groups, sorted; [] if there is no such account.

    Each is looked up by its number, as a directory (LDAP) does not have to list its groups. One without a
    name is left out.
    """
    try:
        account = pwd.getpwnam(login)
    except KeyError:
        return []
    names = set()
    for number in os.getgrouplist(account.pw_name, account.pw_gid):
        with suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return sorted(names)


def _text(path: str) -> str:
    """Return a file's text; "" if it cannot be read, such as that of a process that has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
