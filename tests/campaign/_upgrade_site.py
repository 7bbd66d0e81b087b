"""A fleet of lab nodes between two locks, and the mirror with both versions' packages."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any, TypeVar

from gpuprov.catalog import load
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.upgrade.journal import parse
from gpuprov.upgrade.state import Entry
from gpuprov_lab import Lab
from gpuprov_lab.images import saved_images
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import MirrorServer, served
from tests.lab.upgrade_fleet import MIRRORED, Fleet, Kind, mirrored

Result = TypeVar("Result")


@dataclass
class Site:
    """The fleet, its mirror, and the version that the nodes have."""

    fleet: Fleet
    mirror: nvidia.Mirror
    server: MirrorServer
    here: str = MIRRORED[0]

    @property
    def there(self) -> str:
        """The version that the nodes do not have."""
        return next(version for version in MIRRORED if version != self.here)

    def only(self, name: str, count: int) -> Site:
        """Return a site of the first nodes of one group, with separate locks and history."""
        nodes = [node for node in self.fleet.nodes if node.name.startswith(name)][:count]
        folder = self.fleet.folder / f"{name}-{count}"
        folder.mkdir()
        for version in MIRRORED:
            lock = read_lock(self.fleet.folder / f"{version}.lock.yml")
            group = lock.groups[name]
            hosts = {node.name: group.hosts[node.name] for node in nodes}
            alone = {name: group.model_copy(update={"hosts": hosts})}
            write_lock(lock.model_copy(update={"groups": alone}), folder / f"{version}.lock.yml")
        part = Site(Fleet(nodes, folder), self.mirror, self.server, self.here)
        part.settle()
        return part

    def moved(self) -> None:
        """Record that all nodes are on the other version now."""
        self.here = self.there
        self.settle()

    def settle(self) -> None:
        """Write the lock of the nodes' version as the fleet's lock."""
        text = (self.fleet.folder / f"{self.here}.lock.yml").read_text()
        (self.fleet.folder / "fleet.lock.yml").write_text(text)

    def start(self, **rules: Any) -> Popen[str]:
        """Start an upgrade to the other version without waiting for it."""
        return self.fleet.start(
            "upgrade", "--to", self.fleet.lock(self.there, **rules), "--yes", "-o", "json"
        )

    def upgrade(self, **rules: Any) -> CompletedProcess[str]:
        """Upgrade to the other version."""
        return self.fleet.upgrade(self.there, **rules)

    def rollback(self) -> CompletedProcess[str]:
        """Roll back all nodes of the last upgrade; the fleet then has the old lock."""
        text = (self.fleet.folder / f"{self.there}.lock.yml").read_text()
        (self.fleet.folder / "fleet.lock.yml").write_text(text)
        return self.fleet.gpuprov("rollback", "--yes", "-o", "json")

    def journals(self) -> list[Path]:
        """Return the journals of all runs, oldest first."""
        return sorted((self.fleet.folder / "state/gpuprov/runs").glob("*/journal.jsonl"))

    def entries(self) -> list[Entry]:
        """Return the entries in the journal of the latest run; [] without a run."""
        found = self.journals()
        return parse(found[-1].read_bytes(), "journal") if found else []

    def await_step(self, process: Popen[str], step: str, known: Sequence[Path]) -> None:
        """Wait until a run that is not known yet has begun a step, or has ended."""
        while process.poll() is None:
            fresh = [path for path in self.journals() if path not in known]
            if any(f'"step": "{step}"' in path.read_text() for path in fresh):
                return
            time.sleep(0.1)

    def drifted(self) -> dict[str, Any]:
        """Return node → checks in drift, or the error, under the lock of the version that it should have."""
        done = self.fleet.gpuprov("drift", "--lock", f"{self.here}.lock.yml", "-o", "json")
        nodes = json.loads(done.stdout)["nodes"]
        return {
            each["name"]: each.get("reason") or [one["check"] for one in each["drift"]]
            for each in nodes
            if each["status"] != "in_sync"
        }


@contextmanager
def site(kinds: Iterable[tuple[Kind, int]], name: str = "") -> Iterator[Site]:
    """Start a mirror and nodes of each kind with the first version; remove all of it at the end.

    Args:
        name: name of the lab; by default one of this process.
    """
    name = name or f"up-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="gpuprov-campaign-") as scratch:
        folder = Path(scratch)
        (folder / "mirror").mkdir(mode=0o755)
        mirror = nvidia.build(folder / "mirror", load(), ["debian12"])
        (folder / "fleet").mkdir()
        with served(mirror.root) as server, Lab(name) as lab:
            key = str(mirror.key)
            repositories = {each: {"url": url, "key": key} for each, url in mirror.urls(server.url).items()}
            chosen = [replace(kind, count=count) for kind, count in kinds]
            try:
                fleet = mirrored(lab, folder / "fleet", chosen, repositories, name)
                yield Site(fleet, mirror, server)
            finally:
                lab.down()
                for image in [image for image in saved_images() if image.startswith(f"{name}-")]:
                    lab.drop(image)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return a function's result, and its seconds."""
    begun = time.monotonic()
    done = work()
    return done, time.monotonic() - begun
