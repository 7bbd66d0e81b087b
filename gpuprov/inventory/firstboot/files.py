"""The files of a first boot; `node/first_boot.py` says what is done at it, and travels with its order."""

from __future__ import annotations

import hashlib
import io
import json
import tokenize
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.model.lock import Lock, Reboots, render_lock
from gpuprov.probe.payload import without_docs
from gpuprov.roles.monitoring import textfile_path

NODE = "here"
"""The name of the machine in the lock that it carries."""
LOCK = "/etc/gpuprov/fleet.lock.yml"
FLEET = Path("/etc/gpuprov/fleet.yml")
"""Where the fleet of that lock would be: the machine's store is told from others by it."""
ORDER = "/etc/gpuprov/first-boot.json"
PROGRAM = "/usr/local/lib/gpuprov/first_boot.py"
URLS = "/usr/local/lib/gpuprov/urls.py"
"""The program imports it as a module beside itself."""
UNIT = "gpuprov-first-boot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
METRICS = "gpuprov_first_boot.prom"
USUAL_TEXTFILES = "/var/lib/prometheus/node-exporter"
"""Where node_exporter of Debian and Ubuntu reads, if the lock states no other folder."""


@dataclass(frozen=True)
class Installation:
    """Where gpuprov comes from.

    Attributes:
        wheel: the URL of its wheel, which has the hashes of everything that it needs.
        sha256: of the wheel.
        index: a package index for what gpuprov needs, in place of pip's usual one.
        program: gpuprov itself, where it is already installed; then no wheel is needed.
    """

    wheel: str = ""
    sha256: str = ""
    index: str | None = None
    program: str | None = None


@dataclass(frozen=True)
class Modules:
    """Where a machine fetches compiled modules: a zip archive that becomes its store."""

    url: str
    sha256: str


@dataclass(frozen=True)
class Wishes:
    """What a person may say of a first boot.

    Attributes:
        lock_url: where the lock is fetched, instead of being carried.
        report: an address that is told by POST how it ended.
        reboot: whether the machine may reboot itself.
        patience_s: seconds of a boot for which transient trouble is tried again.
        modules: what need not be compiled there.
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
    """The lock of one machine of a group, which is the machine that reads it.

    How the controller reaches the group's hosts is left out, but for who logs in and where sshd answers:
    hardening goes by these.

    Raises:
        InvalidInput: there is no such group.
    """
    if group not in lock.groups:
        raise InvalidInput(f"the lock has no group {group!r}", expected=f"one of {', '.join(lock.groups)}")
    stated = lock.groups[group]
    own = stated.model_copy(
        update={
            "hosts": {NODE: LOCAL},
            "connection": Connection(user=stated.connection.user, port=stated.connection.port),
            "connections": None,
            "reboot": Reboots(),  # the order says, and whoever carries it out reboots
        }
    )
    return lock.model_copy(update={"groups": {group: own}, "rollout": None})


def first_boot_files(lock: Lock, wishes: Wishes) -> list[File]:
    """Everything that lies on a machine before its first boot.

    Args:
        lock: of this machine alone, as `own_lock` makes it.
    """
    text = render_lock(lock)
    unit = (files("gpuprov.inventory.firstboot") / f"node/{UNIT}").read_text("utf-8")
    carried = [] if wishes.lock_url else [File(LOCK, text)]
    # The report's address may hold a token.
    return [
        *carried,
        File(ORDER, _order(lock, text, wishes), 0o600),
        File(PROGRAM, _program("gpuprov.inventory.firstboot", "node/first_boot.py")),
        File(URLS, _program("gpuprov.untrusted", "urls.py")),
        File(UNIT_PATH, unit),
    ]


def _program(package: str, path: str) -> str:
    """Return a module without what only people read: user-data has little room."""
    text = without_docs((files(package) / path).read_text("utf-8"))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _order(lock: Lock, text: str, wishes: Wishes) -> str:
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
