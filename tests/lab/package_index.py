"""A package index with gpuprov and all that it needs, for nodes without a way to any other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuprov.lab.host import CACHE, locked
from tests import ROOT


def build_index(folder: Path) -> Path:
    """Fill `folder/simple` as an index is laid out (PEP 503); returns gpuprov's wheel, made of this checkout.

    What gpuprov needs is fetched once and kept in the lab's cache.
    """
    kept = CACHE / "wheels"
    with locked(CACHE / "wheels.lock"):
        try:
            wheel = _whole(folder, kept, without_network=True)
        except AssertionError:  # not kept yet, or gpuprov needs something else today
            wheel = _whole(folder, kept, without_network=False)
    for path in [wheel, *kept.glob("*.whl")]:
        name = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
        project = folder / "simple" / name
        project.mkdir(parents=True, exist_ok=True)
        (project / path.name).write_bytes(path.read_bytes())
    return wheel


def _whole(folder: Path, kept: Path, *, without_network: bool) -> Path:
    """gpuprov's wheel; what it needs, to be built and to run, is in the folder `kept` then."""
    offline = ["--no-index", "--find-links", str(kept)] if without_network else []
    pip("download", *offline, "--only-binary", ":all:", "--dest", str(kept), "hatchling")
    pip("wheel", "--no-deps", "--no-index", "--find-links", str(kept), "--wheel-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("gpuprov-*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        pip("download", *offline, "--only-binary", ":all:", "--dest", scratch, str(wheel))
        for path in Path(scratch).glob("*.whl"):
            if path.name != wheel.name:
                shutil.copy(path, kept)
    return wheel


def pip(*words: str) -> None:
    """Run pip; its own words are the failure's."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
