"""Commands that are run on all nodes of a group contain no text of the node that was judged first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.roles import Expectation
from gpuprov.verify.nodes import NodeUnderTest, ask_all_ahead
from gpuprov.verify.observers.nvidia_driver import DKMS
from gpuprov.verify.sharing import COMMANDS, COMMANDS_WITH_WORDS, constants, rules
from tests.unit.verify.nodes_on_paper import Answers, judge, lock_of, locked_group, paper_node

HOSTILE = "/etc/shadow -fprint"
"""A path and an option that a node names."""


def test_most_commands_of_a_node_are_run_on_all_in_advance(tmp_path: Path) -> None:
    node = paper_node("one", locked_group("one"), lambda _: None)
    judge([node], tmp_path)
    own = [command for command in node.backend._answers if command not in node.backend.sharable]
    assert len(own) < 0.25 * len(node.backend._answers), "\n".join(own)


def test_text_of_the_first_node_is_in_no_command_of_another(tmp_path: Path) -> None:
    def lie(answers: Answers) -> None:
        """Add hostile lines to every answer."""
        for command, (code, out, err) in list(answers.items()):
            answers[command] = (
                code,
                f"{out}\n{HOSTILE}\npidfile {HOSTILE}\nLD_LIBRARY_PATH={HOSTILE}\n",
                err,
            )

    node = paper_node("one", locked_group("one"), lie)
    judge([node], tmp_path)
    assert any(HOSTILE.split()[0] in command for command in node.backend._answers)
    assert not [command for command in node.backend.sharable if HOSTILE.split()[0] in command]


@pytest.mark.parametrize(
    ("command", "arguments", "shared"),
    [
        (DKMS, ["6.1.0-56-amd64"], True),
        (DKMS, ["/etc/shadow"], False),
        (DKMS, ["-fprint"], False),
        (DKMS, ["a b"], False),
        (DKMS, ["x" * 200], False),
        ("dkms status -k /etc/shadow", [], False),
        ("%s", ["reboot"], False),
    ],
)
def test_only_words_and_texts_of_the_code_are_shared(
    command: str, arguments: list[str], shared: bool
) -> None:
    assert rules(lock_of("one"))["one"](command, arguments) is shared


def test_ports_are_asked_ahead_if_the_lock_states_them(monkeypatch: pytest.MonkeyPatch) -> None:
    group, asked = locked_group("one", "two"), list[tuple[str, int]]()
    first, other = (paper_node(name, group, lambda _: None) for name in ("one", "two"))
    first.__dict__["wanted"] = {"ssh.ports": Expectation("ssh.ports", [2222], "ssh_hardening")}
    first.ports = {22: [], 2222: [], 4444: []}

    def offered(node: NodeUnderTest, port: int) -> list[str]:
        """Record the node and port; return no way to log in."""
        asked.append((node.name, port))
        return []

    monkeypatch.setattr(NodeUnderTest, "offered", offered)
    ask_all_ahead(first, [other])
    assert asked == [("two", 22), ("two", 2222)]


def test_a_node_shares_a_limited_number_of_commands_and_fewer_with_its_own_words() -> None:
    rule = rules(lock_of("one"))["one"]
    assert sum(rule(DKMS, [f"6.1.{number}"]) for number in range(5000)) == COMMANDS_WITH_WORDS
    known = sorted(constants())
    assert len(known) > 1000
    assert sum(rule(DKMS, [each]) for each in known) == COMMANDS - COMMANDS_WITH_WORDS
