"""Checks of the collection with Galaxy's and Ansible's own programs in a separate environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import Version

from tests import ROOT
from tests.collection.build import build

TOOLS = ("galaxy-importer", "antsibull-docs", "ansible-builder")
REPOSITORY = "https://example.com/gpuprov"
"""Address of the sources in the archive that is checked, as long as galaxy.yml has none."""
RUN = re.compile(r'^Running sanity test "(\S+)"')
MISSING = re.compile(r'^WARNING: Required program "(\S+)" not found')
BAD = re.compile(r"^(WARNING|ERROR|FATAL)\b.*", re.MULTILINE)
LEFT_OUT = re.compile(r"^NOT RUN: .*", re.MULTILINE)
MINOR = "import sys; print('%d.%d' % sys.version_info[:2])"
_SIBLING = re.compile(r"^\s*(?:import|from) gpuprov_", re.MULTILINE)
SENT = tuple(
    path.stem
    for path in sorted((ROOT / "plugins/module_utils").glob("gpuprov_*.py"))
    if _SIBLING.search(path.read_text(encoding="utf-8"))
)
"""Module utilities that import others by plain names, as they lie side by side on a node; Ansible imports
none of them."""
STARTS_PROGRAMS = ("gpuprov_apt", "gpuprov_dnf", "gpuprov_files", "gpuprov_node", "gpuprov_unit")
"""Module utilities that start programs without an AnsibleModule; pylint of ansible-core 2.21 expects one."""
COMPOSED = ("plugins/doc_fragments/gpuprov_ssh.py", "plugins/doc_fragments/gpuprov_sudo.py")
"""Documentation that is an expression: ansible-test's yamllint ends with a traceback there."""
OTHER_STYLE = {
    # `_` is an unused value, and no function of gettext.
    "pylint:disallowed-name": (
        "plugins/module_utils/gpuprov_locks.py",
        "plugins/module_utils/gpuprov_package_files.py",
        "roles/nvidia_driver/files/initramfs.py",
    ),
    # True is no number in JSON.
    "pylint:unidiomatic-typecheck": ("plugins/plugin_utils/on_node.py", "roles/containerd/files/merge.py"),
    # Read by type checkers only.
    "pylint:unsupported-binary-operation": ("plugins/module_utils/gpuprov_replace.py",),
    # The options are those of ansible-core's plugins, with its versions.
    "validate-modules:option-invalid-version-added": (
        "plugins/become/gpuprov_sudo.py",
        "plugins/connection/gpuprov_ssh.py",
    ),
}
"""Rule of ansible-test → files that have a reason not to follow it."""
Step = Callable[["Checkers"], str]


class Checkers:
    """The check programs, and the collection both as an archive and as a tree below ansible_collections."""

    def __init__(self, ansible: str, python: str, scratch: Path) -> None:
        self.programs = ROOT / "build" / f"collection-{ansible}" / "bin"
        if not (self.programs / "antsibull-docs").exists():
            subprocess.run([python, "-m", "venv", self.programs.parent], check=True)
            pip = [self.programs / "pip", "install", "--quiet"]
            subprocess.run([*pip, *TOOLS, f"ansible-core=={ansible}.*"], check=True)
        self.ansible = ansible
        self.archive = build(scratch, REPOSITORY)
        self.collections = scratch / "collections"
        self.tree = self.collections / "ansible_collections/gpuprov/gpuprov"
        with tarfile.open(self.archive) as archive:
            archive.extractall(self.tree, filter="data")
        self.scratch = scratch

    def said(self, *words: str | Path, at: Path | None = None) -> str:
        """Return a program's output.

        Raises:
            AssertionError: the program failed; the message is its output.
        """
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ANSIBLE_", "PYTHON"))
            },
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "GALAXY_IMPORTER_CONFIG": str(ROOT / "tests/collection/galaxy-importer.cfg"),
            "HOME": str(self.scratch),
            "NO_COLOR": "1",
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            words, cwd=at or self.tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


def importer(checkers: Checkers) -> str:
    """Import the archive as Galaxy does: structure, documentation of all content, ansible-lint, flake8."""
    return checkers.said(checkers.programs / "python", "-m", "galaxy_importer.main", checkers.archive)


def documentation(checkers: Checkers) -> str:
    """Check markup, links and references in the documentation of plugins and roles."""
    words = [
        "lint-collection-docs",
        "--plugin-docs",
        "--validate-collection-refs",
        "self",
        "--skip-rstcheck",
        ".",
    ]
    return checkers.said(checkers.programs / "antsibull-docs", *words)


def image(checkers: Checkers) -> str:
    """Check the definition of the execution environment, as far as this needs no container engine."""
    shutil.copy(ROOT / "execution-environment.yml", checkers.scratch)  # next to the archive that it names
    program = checkers.programs / "ansible-builder"
    return checkers.said(program, "create", "--context", "context", at=checkers.scratch)


def sanity(checkers: Checkers) -> str:
    """Run all sanity checks of ansible-test; return the lines about those that were left out.

    Their requirements come from the package index.
    """
    requirements = next(checkers.programs.parent.rglob("ansible_test/_internal/python_requirements.py"))
    [version] = re.findall(r"pip='([\d.]+)'", requirements.read_text())
    bootstrap = checkers.scratch / f".ansible/test/cache/get_pip_{version.replace('.', '_')}.py"
    bootstrap.parent.mkdir(parents=True)
    bootstrap.write_text("import ensurepip\n\nensurepip.bootstrap(upgrade=True, default_pip=True)\n")
    minor = checkers.said(checkers.programs / "python", "-c", MINOR).strip()
    ignore = checkers.tree / f"tests/sanity/ignore-{checkers.ansible}.txt"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("".join(f"{line}\n" for line in ignored(checkers.ansible, minor)))
    words = ["sanity", "--color", "no", "--python", minor]
    return "\n".join(not_run(checkers.said(checkers.programs / "ansible-test", *words)))


def ignored(ansible: str, python: str) -> Iterator[str]:
    """Yield the lines of ansible-test's ignore file; ansible-test reports lines that it does not need."""
    yield from (f"plugins/module_utils/{name}.py import-{python}!skip" for name in SENT)
    yield from (f"{path} yamllint!skip" for path in COMPOSED)
    yield from (f"{path} {rule}" for rule, paths in OTHER_STYLE.items() for path in paths)
    if Version(ansible) >= Version("2.21"):
        yield from (f"plugins/module_utils/{name}.py pylint:ansible-bad-function" for name in STARTS_PROGRAMS)


def not_run(text: str) -> Iterator[str]:
    """Yield a line with the reason for each check that ansible-test left out."""
    name = ""
    for line in text.splitlines():
        if found := RUN.match(line):
            name = found[1]
        elif name and (found := MISSING.match(line)):
            yield f"NOT RUN: {name}: no program `{found[1]}` on the PATH"
    yield f"NOT RUN: import of {', '.join(SENT)}: Ansible imports none of them"


STEPS: tuple[Step, ...] = (importer, documentation, image, sanity)


def check(ansible: str, python: str) -> int:
    """Run all checks; return 1 if one fails or prints a warning."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-collection-") as scratch:
        checkers = Checkers(ansible, python, Path(scratch))
        bad = sum(not clean(step, checkers) for step in STEPS)
    print(f"{len(STEPS)} checks, {bad} not clean")
    return 1 if bad else 0


def clean(step: Step, checkers: Checkers) -> bool:
    """Run one check, print its complaints, and return whether it has no complaints."""
    left_out: list[str] = []
    try:
        text = step(checkers)
        found = list(complaints(text))
        left_out = LEFT_OUT.findall(text)
    except AssertionError as failed:
        found = list(complaints(str(failed))) if step is sanity else []  # without the many lines of pip
        found = found or [str(failed)]
    verdict = "clean" if not found else "NOT CLEAN"
    print(f"{step.__name__}: {verdict}", *found, *left_out, sep="\n    ", flush=True)
    return not found


def complaints(text: str) -> Iterator[str]:
    """Yield the lines with warnings and errors."""
    yield from (match[0] for match in BAD.finditer(text))


if __name__ == "__main__":
    sys.exit(check("2.19", sys.executable))
