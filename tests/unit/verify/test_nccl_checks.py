"""NCCL's variables as verify finds them: in the environment, in a login's own file, in the system's."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.model.lock import Component, LockedGroup, Setting
from gpuprov.verify.observers.libraries import CLOSED_NCCL, SYSTEM_NCCL
from gpuprov.verify.observers.tuning import LOGIN, SERVICE, USERS
from gpuprov.verify.observers.user_files import TEXT
from tests.unit.verify.nodes_on_paper import Answers, judge, locked_group, paper_node

COMMANDS = {
    "login": LOGIN % "root",
    "service": SERVICE,
    "users": USERS,
    "system": SYSTEM_NCCL,
    "own": TEXT % "/root/.nccl.conf",
}
HOMES = "getent passwd root root | cut -d: -f6"
OFF = "NCCL_P2P_DISABLE=1\n"
FOUND = {"NCCL_P2P_DISABLE": "1"}
# Node → what the lock states, the outputs of commands, and the result: None if the check passes.
NODES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any] | None]] = {
    "nothing": ({}, {"login": "NCCL_HOME=/opt\nNCCL_DEBUG=WARN\n"}, None),
    "stated": ({"NCCL_P2P_LEVEL": "SYS"}, {"system": "NCCL_P2P_LEVEL=SYS\nNCCL_P2P_LEVEL=LOC\n"}, None),
    "first": (
        {"NCCL_P2P_LEVEL": "SYS"},
        {"system": "NCCL_P2P_LEVEL=LOC\nNCCL_P2P_LEVEL=SYS\n"},
        {"NCCL_P2P_LEVEL": "LOC"},
    ),
    "closed": (
        {"NCCL_P2P_LEVEL": "SYS"},
        {"system": "NCCL_P2P_LEVEL=SYS\n", "closed": "/etc/nccl.conf\n"},
        {"NCCL_P2P_LEVEL": "SYS, for root alone"},
    ),
    **{where: ({}, {where: OFF}, FOUND) for where in COMMANDS},
}


def group_with(stated: dict[str, str], host: str) -> LockedGroup:
    """Return a group with NCCL in its lock."""
    group = locked_group(host)
    nccl = Component(
        version="2", repository="r", packages={}, closure={}, hold_patterns=[], reason="", source=""
    )
    settings = {"nccl": Setting(value=stated, reason="", source="")}
    components = group.components.model_copy(update={"nccl": nccl})
    return group.model_copy(update={"components": components, "settings": settings})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Node → result of the check of NCCL's configuration."""
    nodes = []
    for name, (stated, outputs, _) in NODES.items():
        asked = {**COMMANDS, "closed": CLOSED_NCCL}
        said = {command: (0, outputs.get(which, ""), "") for which, command in asked.items()}

        def change(answers: Answers, said: Answers = said) -> None:
            answers.update({**said, HOMES: (0, "/root\n/root\n", "")})

        nodes.append(paper_node(name, group_with(stated, name), change))
    verdicts = judge(nodes, tmp_path_factory.mktemp("suite"))
    return {
        name: next(each for each in node.checks if each.check == "nccl.configuration")
        for name, node in verdicts.items()
    }


@pytest.mark.parametrize("name", NODES)
def test_what_is_stated_is_expected_and_nothing_else(results: dict[str, Any], name: str) -> None:
    actual = NODES[name][2]
    assert results[name].status == ("failed" if actual else "passed"), results[name]
    assert not actual or results[name].actual == actual
