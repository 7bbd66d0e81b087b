"""A mirror of a lab: a process of its own that serves until the lab is removed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from gpuprov.catalog import load
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov_lab.host import write_whole
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served

FOLDER, RECORD, LOG = "mirror", "mirror.json", "mirror.log"
"""Names in the lab's folder."""
BUILT_S = 900
"""Longest time until the mirror is served."""


def repositories(lab: Path, systems: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the `repositories` of a fleet.yml for the lab's mirror; build and serve it first, unless it is
    served already.

    Args:
        lab: the lab's folder; the process ends when it is removed.
        systems: ids of the catalog.

    Raises:
        InvalidInput: the lab's mirror has no packages for one of them.
        GpuprovError: the mirror cannot be built or served.
    """
    record = lab / RECORD
    if not _answers(record):
        record.unlink(missing_ok=True)
        _start(lab, systems)
    served_ones, url = json.loads(record.read_text())
    if missing := set(systems) - set(served_ones):
        raise InvalidInput(
            f"the lab's mirror has no packages for {', '.join(sorted(missing))}",
            do="remove the lab by `gpuprov lab down`, or use another one: --name NAME",
        )
    mirror = nvidia.Mirror(lab / FOLDER, lab / FOLDER / "keys/mirror.asc")
    return {name: {"url": each, "key": str(mirror.key)} for name, each in mirror.urls(url).items()}


def _answers(record: Path) -> bool:
    """Return whether the recorded process serves; False without a record."""
    try:
        with urlopen(f"{json.loads(record.read_text())[1]}/keys/mirror.asc", timeout=5):  # noqa: S310
            return True
    except (OSError, ValueError):
        return False


def _start(lab: Path, systems: Sequence[str]) -> None:
    """Start the process that serves the mirror, and wait until it does.

    Raises:
        GpuprovError: it ended first, or took longer than `BUILT_S`; it is killed then.
    """
    with (lab / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuprov_lab.mirror.beside", str(lab), *systems],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + BUILT_S
    while not (lab / RECORD).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            end = (lab / LOG).read_text(errors="replace").strip().splitlines()[-1:]
            raise GpuprovError(f"the lab's mirror does not start: {''.join(end)}", do=f"see {lab / LOG}")
        time.sleep(0.2)


def serve(lab: Path, systems: Sequence[str]) -> None:
    """Build a lab's mirror, and serve it until the lab's folder is gone."""
    root = lab / FOLDER
    root.mkdir(exist_ok=True)
    with served(root) as server:
        nvidia.build(root, load(), systems, base=server.url)
        write_whole(lab / RECORD, json.dumps([list(systems), server.url]))
        while root.exists():
            time.sleep(1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
