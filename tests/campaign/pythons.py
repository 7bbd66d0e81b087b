"""Runs the unit tests on every Python version in pyproject.toml, each with the newest compatible packages.

    scripts/campaign pythons [INTERPRETER]...

Without arguments it uses the interpreters in PATH and among pyenv's versions, the newest of each version, in
new environments. Missing versions are listed. Exit 1 if tests fail on one that exists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tests import ROOT

USABLE = "import ensurepip, sqlite3, ssl, sys; print('%d.%d.%d' % sys.version_info[:3])"
ANSIBLE = "from importlib.metadata import version; print(version('ansible-core'))"
PYTEST = ("-m", "pytest", "--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile", "tests/unit")


def main() -> int:
    """Run the unit tests with each version of Python found here; return 1 if one fails or none is found."""
    wanted = versions()
    found = {name: full for name in sys.argv[1:] or candidates(wanted) if (full := full_version(name))}
    bad = 0
    for version in wanted:
        ours = [name for name, full in found.items() if full.startswith(f"{version}.")]
        if not ours:
            print(f"{version:8} not found")
        for name in ours[:1]:
            print(f"{found[name]:8} {name}")
            bad += not tested(name)
    return 1 if bad or not found else 0


def versions() -> list[str]:
    """Return the versions that requires-python allows, such as 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = SpecifierSet(project["requires-python"])
    return [f"3.{minor}" for minor in range(100) if named.contains(f"3.{minor}")]


def candidates(wanted: list[str]) -> list[str]:
    """Return interpreters that may have one of the versions, the newest of each first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted(
        pyenv.glob("versions/3.*/bin/python"), key=lambda path: numbers(path.parts[-3]), reverse=True
    )
    in_path = [shutil.which(f"python{version}") for version in wanted]
    return [*map(str, reversed(kept)), *filter(None, in_path)]


def numbers(version: str) -> list[int]:
    """Return the whole numbers in a version."""
    return [int(number) for number in re.findall(r"\d+", version)]


def full_version(python: str) -> str:
    """Return an interpreter's version; "" if it does not run or lacks a module that an environment needs."""
    done = subprocess.run([python, "-c", USABLE], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def tested(python: str) -> bool:
    """Run the unit tests in a new environment of an interpreter, and print the result; return whether they
    pass.
    """
    with tempfile.TemporaryDirectory(prefix="gpuprov-python-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        program = f"{folder}/bin/python"
        subprocess.run(
            [program, "-m", "pip", "install", "-qq", "-e", f"{ROOT}[dev]", "-e", f"{ROOT}/lab[vm]"],
            check=True,
        )
        ansible = subprocess.check_output([program, "-c", ANSIBLE], text=True).strip()
        done = subprocess.run([program, *PYTEST], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    *before, last = done.stdout.splitlines() or [""]
    if done.returncode:
        print("\n".join(before))
    print(f"         ansible-core {ansible}: {last}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
