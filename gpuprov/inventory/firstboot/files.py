"""The files of a first boot; one of them is `node/first_boot.py`, the program that carries out the order."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tokenize
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.model.lock import Lock, Reboots, render_lock
from gpuprov.model.selection import without_site
from gpuprov.probe.payload import without_docs
from gpuprov.roles.monitoring import textfile_path

NODE = "here"
"""The machine's name in its lock."""
LOCK = "/etc/gpuprov/fleet.lock.yml"
FLEET = Path("/etc/gpuprov/fleet.yml")
"""Path that the fleet of that lock would have; the machine's store of modules is named after it."""
ORDER = "/etc/gpuprov/first-boot.json"
FOR_TYPES = 'TYPE_CHECKING = False\nif TYPE_CHECKING:""\n'
"""Rest of a module's block for its type annotations, which are strings, in a program for nodes."""
PROGRAM = "/usr/local/lib/gpuprov/first_boot.py"
URLS = "/usr/local/lib/gpuprov/urls.py"
"""A module that the program imports from its own folder."""
UNIT = "gpuprov-first-boot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
METRICS = "gpuprov_first_boot.prom"
USUAL_TEXTFILES = "/var/lib/prometheus/node-exporter"
"""Folder that node_exporter of Debian and Ubuntu reads, used if the lock states no other."""


@dataclass(frozen=True)
class Installation:
    """Source of gpuprov.

    Attributes:
        wheel: the URL of its wheel, which contains the hashes of all dependencies.
        sha256: hash of the wheel.
        index: a package index for the dependencies, instead of pip's default.
        program: path of gpuprov if it is already installed; then no wheel is needed.
    """

    wheel: str = ""
    sha256: str = ""
    index: str | None = None
    program: str | None = None


@dataclass(frozen=True)
class Modules:
    """Source of compiled kernel modules: a zip archive that becomes the machine's store."""

    url: str
    sha256: str


@dataclass(frozen=True)
class Wishes:
    """Options of a first boot.

    Attributes:
        lock_url: URL that the lock is fetched from, instead of being one of the files.
        report: URL that receives the result by POST.
        reboot: whether the machine may reboot itself.
        patience_s: seconds per boot during which transient failures are retried.
        modules: kernel modules that need not be compiled on the machine.
    """

    installation: Installation
    lock_url: str | None = None
    report: str | None = None
    reboot: bool = True
    patience_s: int = 1800
    modules: Modules | None = None


@dataclass(frozen=True)
class File:
    """One file of the machine."""

    path: str
    text: str
    mode: int = 0o644


def own_lock(lock: Lock, group: str) -> Lock:
    """Return a lock of one machine of a group, to be applied on that machine itself.

    The machine is the only host, `NODE` at the address `local`. The lock keeps only user and port of the
    controller's connection settings: SSH hardening needs them. It has no rollout and no reboots, no services
    of workers, and no places, which have the names of other machines. With IMEX it has the addresses of the
    group's hosts, which are one NVLink domain. Builders are still named: modules count by their builder.

    Raises:
        InvalidInput: there is no such group.
    """
    if group not in lock.groups:
        raise InvalidInput(f"the lock has no group {group!r}", expected=f"one of {', '.join(lock.groups)}")
    stated = lock.groups[group]
    own = stated.model_copy(
        update={
            "hosts": {NODE: LOCAL},
            "peers": stated.addresses if stated.setting("imex") is not None else None,
            "connection": Connection(user=stated.connection.user, port=stated.connection.port),
            "connections": None,
            "reboot": Reboots(),  # the order decides, and its program reboots
        }
    )
    return without_site(lock.model_copy(update={"groups": {group: own}}))


def first_boot_files(lock: Lock, wishes: Wishes) -> list[File]:
    """Return all files that a machine needs before its first boot.

    These are the lock (not if it is fetched), the order, the program with its module, and the unit.

    Args:
        lock: the machine's lock, from `own_lock`.
    """
    text = render_lock(lock)
    unit = (files("gpuprov.inventory.firstboot") / f"node/{UNIT}").read_text("utf-8")
    unit = re.sub("(?m)^#.*\n", "", unit)  # user-data is small
    carried = [] if wishes.lock_url else [File(LOCK, text)]
    # The URL of the report may contain a token.
    return [
        *carried,
        File(ORDER, _order(lock, text, wishes), 0o600),
        File(PROGRAM, _program("gpuprov.inventory.firstboot", "node/first_boot.py")),
        File(URLS, _program("gpuprov.untrusted", "urls.py")),
        File(UNIT_PATH, unit),
    ]


def _program(package: str, path: str) -> str:
    """Return a module without docstrings, comments and what type checkers alone read, indented by one space:
    user-data is small.
    """
    text = without_docs((files(package) / path).read_text("utf-8"))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    short = "".join(f"{line.rstrip()}\n" for line in lines if line.strip()).replace(FOR_TYPES, "")
    return re.sub(r"^(?: {4})+", lambda found: " " * (len(found[0]) // 4), short, flags=re.MULTILINE)


def _order(lock: Lock, text: str, wishes: Wishes) -> str:
    """Return the program's order as JSON; `text` is the rendered lock, for its hash.

    The path of the metrics is in the lock's folder of node_exporter, or in `USUAL_TEXTFILES`.
    """
    [group] = lock.groups.values()
    how = wishes.installation
    stated = textfile_path(group)
    folder = stated.rpartition("/")[0] if stated else USUAL_TEXTFILES
    order = {
        "schema": "gpuprov.first-boot-order/2",
        "node": NODE,
        "lock": {
            "path": LOCK,
            "url": wishes.lock_url,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "install": {
            "wheel": how.wheel,
            "sha256": how.sha256,
            "index": how.index,
            "program": how.program,
        },
        "gpus": group.hardware.gpu_count,
        "reboot": wishes.reboot,
        "metrics": f"{folder}/{METRICS}",
        "report": wishes.report,
        "patience_s": wishes.patience_s,
        "modules": asdict(wishes.modules) if wishes.modules else None,
    }
    return json.dumps(order, indent=1) + "\n"
