# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions that scripts on a node share. Runs there: Python 3.6 to 3.13 and its standard library."""

import os
import re
import subprocess
from typing import NamedTuple

import gpuprov_versionlock as versionlock
from gpuprov_failures import Failed
from gpuprov_locks import BLOCKS, blocker, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    Changes = Mapping[str, "tuple[str | None, str | None]"]

ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8"}
TEMPORARY = "/run" if os.access("/run", os.W_OK) else None
"""Folder of files for programs with own temporary folders; Python's default where root does not run."""
MISSING, TIMED_OUT = 127, 124
"""Exit statuses of a program that does not exist, and of one that exceeded its time limit."""


DPKG_STATUS = "/var/lib/dpkg/status"
RPM_FORM = "%{NAME}\t%{EVR}\t%{ARCH}\n"
RPM_KEY = "gpg-pubkey"
"""Name of the keys in the database of rpm, which are no packages."""
SEVERAL = re.compile(r"kernel(?:\d+\.\d+)?(?:-(?!headers|tools|srpm|rpm|doc)[a-z0-9]+)*\Z")
"""Packages that dnf installs in several versions at a time (dnf.conf(5), `installonlypkgs`)."""

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9.+_:-]*[A-Za-z0-9.+_])?"
"""Pattern of a package's name, with an architecture or without: no option, and not apt's `NAME-`."""
WORD = re.compile(NAME + r"(?:=[A-Za-z0-9.+:~^_-]*[A-Za-z0-9.~^_]|-)?\Z")
"""Word of a transaction: `NAME`, `NAME=VERSION`, or `NAME-` for a removal. apt would take a last `-` or `+`
of a version for a sign of its own.
"""


class Package(NamedTuple):
    """A package in the database of dpkg or rpm.

    `wanted` is i, h (held), r, p or u, `state` i, n, c … (dpkg-query(1)). rpm's packages are all in state i.
    """

    wanted: str
    state: str
    name: str
    version: str


def require_words(words: "Iterable[str]") -> "list[str]":
    """Return the words of a transaction.

    Raises:
        Failed: one is something else, such as an option of the package manager.
    """
    found = list(words)
    for word in found:
        if not WORD.match(word):
            raise Failed(f"{word!r} is no package; expected NAME, NAME=VERSION or NAME-")
    return found


def require_names(names: "Iterable[str]") -> None:
    """Check names of packages that are to be installed.

    Raises:
        Failed: one is something else, such as an option, or `NAME-`, by which apt removes a package.
    """
    for name in names:
        if not re.match(NAME + r"\Z", name):
            raise Failed(f"{name!r} is no name of a package")


def run(*argv: str, seconds: float = 60, **more: "Any") -> "tuple[int, str]":
    """Return exit status and standard output of a program, without its standard error.

    The status is 127 if it does not exist, and 124 if it exceeded the limit; then there is no output.

    Args:
        seconds: the time limit.
        more: further arguments of `subprocess.run`, such as `env`.
    """
    try:
        done = subprocess.run(
            argv,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **{"env": ENVIRONMENT, **more},
        )
    except FileNotFoundError:
        return MISSING, ""
    except subprocess.TimeoutExpired:
        return TIMED_OUT, ""
    return done.returncode, done.stdout.decode(errors="replace")


def output(*argv: str, seconds: float = 60, **more: "Any") -> str:
    """Return a program's standard output at any exit status; empty if it is missing; arguments as of `run`.

    Raises:
        Failed: it exceeded the time limit: its answer is then not known, which is something else than none.
    """
    status, said = run(*argv, seconds=seconds, **more)
    if status == TIMED_OUT:
        raise Failed(f"`{' '.join(argv)[:80]}` gave no answer in {seconds:g} s", status)
    return said


def answer(*argv: str, seconds: float = 60) -> str:
    """Return the standard output of a program that succeeds.

    Raises:
        Failed: it is missing, failed or exceeded the time limit: its answer is then not known. Without room
            on a disk that users can fill dnf prints nothing.
    """
    status, said = run(*argv, seconds=seconds)
    if status:
        how = f"gave no answer in {seconds:g} s" if status == TIMED_OUT else f"exited with {status}"
        raise Failed(f"`{' '.join(argv)[:80]}` {how}", status)
    return said


def os_release(path: str = "/etc/os-release") -> "dict[str, str]":
    """Return the values of os-release(5) by name, without quotes.

    Raises:
        OSError: there is no such file.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = (line.partition("=") for line in file.read().splitlines())
        return {name: value.strip("\"'") for name, _equals, value in rows}


def database(*argv: str) -> str:
    """Return what a package manager prints about its database; empty if it does not exist.

    Raises:
        Failed: it failed or exceeded the time limit: what is installed is then not known, which is something
            else than nothing.
    """
    status, said = run(*argv)
    if status in (0, MISSING):
        return said
    pid = blocker()
    why = "" if pid is None else f": {name_of(pid)} {BLOCKS}"
    raise Failed(f"`{' '.join(argv[:2])}` ended with status {status}{why}", status)


def has_dpkg() -> bool:
    """Return whether the node's packages are dpkg's; on a system of rpm the program may be installed too."""
    return os.path.exists(DPKG_STATUS)


def packages() -> "list[Package]":
    """Return the packages in the database of dpkg, or of rpm on a node without dpkg.

    Of dpkg also the removed ones with configuration. Names are apt's: without the node's own architecture,
    as in `libc6:i386`. Empty with neither database.

    Raises:
        Failed: the database cannot be read.
    """
    return _of_dpkg() if has_dpkg() else _of_rpm()


def _of_dpkg() -> "list[Package]":
    """Return dpkg's packages, without the node's own architecture in their names; raises as `database`."""
    form = "${db:Status-Abbrev}\t${binary:Package}\t${Version}\n"
    native = ":" + database("dpkg", "--print-architecture").strip()
    rows = []
    for line in database("dpkg-query", "-W", "-f", form).splitlines():
        (wanted, state, *_error), name, version = line.split("\t")
        rows.append(Package(wanted, state, name[: -len(native)] if name.endswith(native) else name, version))
    return rows


def _of_rpm() -> "list[Package]":
    """Return rpm's packages, held if a version lock has them; raises as `database`.

    A kernel's name has its release, as in `kernel-core-5.14.0-570.el9.x86_64`.
    """
    locks, native, rows = versionlock.locks(), (os.uname().machine, "noarch"), []
    for line in database("rpm", "-qa", "--qf", RPM_FORM).splitlines():
        name, version, arch = line.split("\t")
        if name == RPM_KEY:
            continue
        version = version[2:] if version.startswith("0:") else version
        wanted = "h" if versionlock.is_locked(name, version, arch, locks) else "i"
        if SEVERAL.match(name):
            name = f"{name}-{version.rpartition(':')[2]}.{arch}"
        elif arch not in native:
            name = f"{name}:{arch}"
        rows.append(Package(wanted, "i", name, version))
    return rows


def installed() -> "dict[str, str]":
    """Return package → version of the completely installed packages, with names as in `packages`; raises as
    `packages`.
    """
    return {row.name: row.version for row in packages() if row.state == "i"}


def foreign_removals(moved: "Changes", own: "Collection[str]") -> "list[str]":
    """Return the names of packages that a transaction removes and that are not in `own`; sorted.

    Args:
        moved: package → its version before and after; None after of a removed one.
        own: names of packages that may be removed, with or without architecture.
    """
    gone = (name for name, (_before, now) in moved.items() if now is None)
    return sorted(name for name in gone if name.partition(":")[0] not in own and name not in own)


def started(unit: str) -> "float | None":
    """Return the start of a service's process in seconds since the epoch; None if it has no process."""
    pid = output("systemctl", "show", "--value", "--property=MainPID", unit).strip()
    try:
        return os.stat("/proc/" + pid).st_ctime if pid not in ("", "0") else None
    except FileNotFoundError:  # it ended meanwhile, as in a loop of restarts
        return None
