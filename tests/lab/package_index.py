"""A package index with gpuprov's dependencies, and gpuprov's wheel, for nodes without access to any other."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuprov_lab.host import CACHE, locked
from maintenance.release.wheelhouse import fill
from tests import ROOT


def build_index(folder: Path, python: tuple[int, int] = sys.version_info[:2]) -> Path:
    """Fill `folder/simple` in the layout of an index (PEP 503); return gpuprov's wheel from this checkout.

    The index contains what the release lock names, without gpuprov, which is never requested from an index.
    Packages are downloaded once and kept in the lab's cache.

    Args:
        python: version of the nodes' Python.
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
        index_wheels(kept, folder)
        [wheel] = folder.glob("gpuprov-*.whl")
        if python != sys.version_info[:2]:
            index_wheels(_kept_for(wheel, python), folder)
    return wheel


def _kept_for(wheel: Path, python: tuple[int, int]) -> Path:
    """Return the folder of the packages for another Python, by the lock in gpuprov's wheel; fill it if it is
    of another lock.
    """
    kept = CACHE / "wheels-{}.{}".format(*python)
    lock = (ROOT / "requirements.lock").read_bytes()
    if not (kept / "requirements.lock").exists() or (kept / "requirements.lock").read_bytes() != lock:
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        fill(kept, wheel, python, "x86_64")
    return kept


def index_wheels(wheels: Path, folder: Path) -> None:
    """Add all wheels of a folder to the index in `folder/simple`."""
    for path in wheels.glob("*.whl"):
        name = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
        project = folder / "simple" / name
        project.mkdir(parents=True, exist_ok=True)
        (project / path.name).write_bytes(path.read_bytes())


def obtained(folder: Path, url: str) -> tuple[str, ...]:
    """Return options for gpuprov's source: its wheel by hash, dependencies from the index at the same URL."""
    [wheel] = folder.glob("gpuprov-*.whl")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return ("--wheel", f"{url}/{wheel.name}#sha256={sha256}", "--index", f"{url}/simple")


def _keep(lock: Path, kept: Path) -> None:
    """Complete a folder with the packages that a lock names, verified by hash."""
    words = ["download", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock), "--dest"]
    try:
        pip(*words, str(kept), "--no-index", "--find-links", str(kept))
    except AssertionError:  # not kept yet, or the lock has changed
        with tempfile.TemporaryDirectory() as scratch:
            pip(*words, scratch)
            for path in Path(scratch).glob("*.whl"):
                shutil.copy(path, kept)


def pip(*words: str) -> None:
    """Run pip.

    Raises:
        AssertionError: pip fails; contains its stderr.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
