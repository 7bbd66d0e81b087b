"""Marked console blocks of the documentation, run on a lab node and compared with their printed output."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from mcp import Client, StdioServerParameters

from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.lab.command_line import gpuprov, with_own_state
from tests.lab.marks import slow_ones
from tests.lab.provisioned_node import provision

MARKED = re.compile(r"<!-- on a lab node -->\n```console\n(.*?)```", re.DOTALL)
WITH_KEYS = re.compile(r"<!-- on a lab node with these keys -->\n```console\n(.*?)```", re.DOTALL)
INDENTED = re.compile(r"^(?:    .+\n)+", re.MULTILINE)
NAME = "gpu1"
"""The node's name in the documentation."""
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
BLOCKS = {
    f"{page}-{number}": block
    for page, text in PAGES.items()
    for number, block in enumerate(MARKED.findall(text))
}
CHANGES = {
    f"{page}-{number}": (INDENTED.findall(text[: found.start()])[-1], found[1])
    for page, text in PAGES.items()
    for number, found in enumerate(WITH_KEYS.finditer(text))
}
"""Name → keys of a group, which are the indented lines before the block, and the block."""


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
    type_block(BLOCKS[name], *site)


@pytest.fixture(scope="module")
def changing(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Node, str]:
    """A node whose fleet may change: its folder, and the first fleet."""
    folder = tmp_path_factory.mktemp("changing")
    node = provision(module_lab, folder)
    return folder, node, (folder / "fleet.yml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_block_with_keys_of_the_fleet_says_what_is_printed(
    name: str, changing: tuple[Path, Node, str]
) -> None:
    keys, block = CHANGES[name]
    folder, node, first = changing
    fleet = yaml.safe_load(first)
    [group] = fleet["groups"].values()
    for key, stated in yaml.safe_load(textwrap.dedent(keys)).items():
        group[key] = {**group.get(key, {}), **stated}
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    type_block(block, folder, node)


def type_block(block: str, folder: Path, node: Node) -> None:
    """Run the lines of a block, and find its output in theirs."""
    for typed, code, printed in steps(block.replace(NAME, node.name)):
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
    page = PAGES["own-checks"]
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


@pytest.mark.slow
def test_an_assistant_starts_the_server_as_documented_and_calls_each_tool(site: tuple[Path, Node]) -> None:
    folder, node = site
    page = PAGES["assistants"]
    [stated] = re.findall(r'^    (\{"mcpServers": .*\})$', page, re.MULTILINE)
    server = json.loads(stated)["mcpServers"]["gpuprov"]
    tools, answers = (
        re.findall(r"^\| `(\w+)`", part, re.MULTILINE) for part in page.split("Each call returns")
    )
    calls: dict[str, dict[str, Any]] = {
        "facts": {"host": node.name},
        "drift": {"nodes": [node.name]},
        "plan": {},
        "doctor": {"hosts": [node.name]},
        "status": {},
        "explain": {"component": "driver"},
        "resolve": {"gpu": ["H100 SXM5 80GB"], "os": "debian12"},
    }
    assert tools == list(calls)
    environment = with_own_state(folder) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = StdioServerParameters(**server, env=environment, cwd=str(folder))

    async def session() -> dict[str, dict[str, Any]]:
        async with Client(command) as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            assert sorted(offered) == sorted(tools)
            return {tool: (await client.call_tool(tool, calls[tool])).structured_content for tool in tools}

    for tool, answer in anyio.run(session).items():
        assert set(answers) <= set(answer)
        assert (answer["verb"], answer["exit"], answer["document"] is None) == (tool, "ok", False), answer


def test_blocks_are_found() -> None:
    """Check that marked blocks are found, and are split into commands, exit codes and output."""
    assert len(BLOCKS) >= 5
    assert steps("$ a b    # exit 3\nsaid\n$ c\n") == [("a b", 3, ["said"]), ("c", 0, [])]
