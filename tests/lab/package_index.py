"""A package index with what gpuprov needs, and its wheel, for nodes without a way to any other."""

from __future__ import annotations

import hashlib
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

    The index has what the release lock names, and not gpuprov: nothing asks an index for it. All of that is
    fetched once and kept in the lab's cache.
    """
    kept = CACHE / "wheels"
    kept.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "wheels.lock"):
        for locks in (ROOT / "scripts/build.lock", ROOT / "requirements.lock"):
            _keep(locks, kept)
        pip(
            "wheel",
            "--no-deps",
            "--no-index",
            "--find-links",
            str(kept),
            "--wheel-dir",
            str(folder),
            str(ROOT),
        )
        for path in kept.glob("*.whl"):
            name = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
            project = folder / "simple" / name
            project.mkdir(parents=True, exist_ok=True)
            (project / path.name).write_bytes(path.read_bytes())
    [wheel] = folder.glob("gpuprov-*.whl")
    return wheel


def obtained(folder: Path, url: str) -> tuple[str, ...]:
    """Options that say where gpuprov comes from: its wheel by hash, the rest from the index beside it."""
    [wheel] = folder.glob("gpuprov-*.whl")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return ("--wheel", f"{url}/{wheel.name}#sha256={sha256}", "--index", f"{url}/simple")


def _keep(lock: Path, kept: Path) -> None:
    """Have what a lock names in a folder, each by its hash."""
    words = ["download", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock), "--dest"]
    try:
        pip(*words, str(kept), "--no-index", "--find-links", str(kept))
    except AssertionError:  # not kept yet, or gpuprov needs something else today
        with tempfile.TemporaryDirectory() as scratch:
            pip(*words, scratch)
            for path in Path(scratch).glob("*.whl"):
                shutil.copy(path, kept)


def pip(*words: str) -> None:
    """Run pip; its own words are the failure's."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
