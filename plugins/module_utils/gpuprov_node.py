# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What scripts on a node ask of it alike. Runs there: Python 3.6 to 3.13 and its standard library."""

import os
import subprocess
from typing import NamedTuple

ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8"}
MISSING, TIMED_OUT = 127, 124


class Package(NamedTuple):
    """A row of dpkg's: `wanted` is i, h (held), r, p or u, `state` i, n, c and so on (dpkg-query(1))."""

    wanted: str
    state: str
    name: str
    version: str


def run(*argv: str, seconds: float = 60) -> "tuple[int, str]":
    """Exit status and output of a program; 127 where there is none such, 124 where it took too long."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            timeout=seconds,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return MISSING, ""
    except subprocess.TimeoutExpired:
        return TIMED_OUT, ""
    return done.returncode, done.stdout.decode(errors="replace")


def output(*argv: str, seconds: float = 60) -> str:
    """What a program prints, whatever its exit status; nothing where it is missing or took too long."""
    return run(*argv, seconds=seconds)[1]


def packages() -> "list[Package]":
    """Everything that dpkg knows of, by the names that apt takes: without the node's own architecture."""
    form = "${db:Status-Abbrev}\t${binary:Package}\t${Version}\n"
    native = ":" + output("dpkg", "--print-architecture").strip()
    rows = []
    for line in output("dpkg-query", "-W", "-f", form).splitlines():
        (wanted, state, *_error), name, version = line.split("\t")
        rows.append(Package(wanted, state, name[: -len(native)] if name.endswith(native) else name, version))
    return rows


def installed() -> "dict[str, str]":
    """Package → version, of those that are whole."""
    return {row.name: row.version for row in packages() if row.state == "i"}


def started(unit: str) -> "float | None":
    """When the process of a service began, in seconds since the epoch; None where none runs."""
    pid = output("systemctl", "show", "--value", "--property=MainPID", unit).strip()
    try:
        return os.stat("/proc/" + pid).st_ctime if pid not in ("", "0") else None
    except FileNotFoundError:  # it ended meanwhile, as one does that systemd starts again and again
        return None
