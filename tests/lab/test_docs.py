"""Marked console blocks of the documentation, run on a lab node and compared with their printed output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.lab.command_line import gpuprov
from tests.lab.marks import slow_ones
from tests.lab.provisioned_node import provision

MARKED = re.compile(r"<!-- on a lab node -->\n```console\n(.*?)```", re.DOTALL)
NAME = "gpu1"
"""The node's name in the documentation."""
BLOCKS = {
    f"{path.stem}-{number}": block
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(MARKED.findall(path.read_text(encoding="utf-8")))
}


def steps(block: str) -> list[tuple[str, int, list[str]]]:
    """Return each command line with its exit code and the output lines in the block."""
    found: list[tuple[str, int, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            typed, _, code = line[2:].partition("    # exit ")
            found.append((typed.strip(), int(code or 0), []))
        else:
            found[-1][2].append(line.strip())
    return found


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Node]:
    """Folder with a fleet and its lock, and the provisioned node."""
    folder = tmp_path_factory.mktemp("site")
    return folder, provision(module_lab, folder)


@pytest.mark.parametrize("name", slow_ones(BLOCKS, {"ci-0", "modules-0", "rented-server-0"}))
def test_a_block_says_what_is_printed(name: str, site: tuple[Path, Node]) -> None:
    """Run the commands of a block of the documentation, and check exit codes and output."""
    folder, node = site
    for typed, code, printed in steps(BLOCKS[name].replace(NAME, node.name)):
        words = shlex.split(typed)
        if typed.startswith(f"ssh {node.name} "):
            done = node.run(" ".join(words[2:]), check=False)  # words joined as by ssh
            assert done.returncode == code, f"{typed}\n{done.stdout}{done.stderr}"
        else:
            done = gpuprov(folder, *words[1:], code=code)
        for line in printed:
            expected = ".*".join(map(re.escape, line.split("…")))
            assert re.search(expected, done.stdout + done.stderr), f"{typed}\n{done.stdout}{done.stderr}"


def test_a_check_of_a_site_is_written_and_run_as_documented(site: tuple[Path, Node]) -> None:
    folder, node = site
    page = (ROOT / "docs/guides/own-checks.md").read_text(encoding="utf-8")
    [(name, code)] = re.findall(r"^    # (checks/\S+\.py)\n((?:    .*\n)+)", page, re.MULTILINE)
    [typed] = re.findall(r"^    pytest (.*)$", page, re.MULTILINE)
    gpuprov(folder, "inventory", "generate", "ansible")
    (folder / name).parent.mkdir()
    (folder / name).write_text(textwrap.dedent(code))

    def judged() -> tuple[int, str]:
        """Run the documented line; return its exit status and output."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["pytest", *shlex.split(typed)],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    status, said = judged()
    assert (status, "1 failed" in said) == (1, True), said
    node.run("mkdir -p /srv/jobs && mount -t tmpfs none /srv/jobs")
    status, said = judged()
    node.run("umount /srv/jobs")
    assert (status, "1 passed" in said) == (0, True), said
    assert 'testcase classname="checks.test_site"' in (folder / "site.xml").read_text()


def test_blocks_are_found() -> None:
    """Check that marked blocks are found, and are split into commands, exit codes and output."""
    assert len(BLOCKS) >= 5
    assert steps("$ a b    # exit 3\nsaid\n$ c\n") == [("a b", 3, ["said"]), ("c", 0, [])]
