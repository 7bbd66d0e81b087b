"""Values of one node that are hard to print or to compare: they do not reach the verdict of another node."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.model.lock import LockedGroup, Setting
from gpuprov.verify.nodes import ask_all_ahead
from gpuprov.verify.observers.apt import Apt
from gpuprov.verify.observers.module_loading import DEVICES
from gpuprov.verify.observers.tuning import LOGIN, SERVICE
from gpuprov.verify.processor_time import NODE_S
from gpuprov.verify.readings import own_unit_state
from gpuprov.verify.sharing import COMMANDS_WITH_WORDS
from tests.unit.hostile.timing import SECONDS, seconds_of
from tests.unit.verify.nodes_on_paper import Answers, judge, locked_group, paper_node


class UnitFile:
    """Host whose `systemctl cat` prints one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, command: str, *_: str) -> SimpleNamespace:
        """Return the unit's text for `systemctl cat`, and `enabled` for any other command."""
        out = self.text if command == "systemctl cat %s" else "enabled"
        return SimpleNamespace(stdout=out, stderr="", failed=False)

    def service(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(systemd_properties={"ActiveState": "active"})


def test_commands_of_a_unit_are_read_in_linear_time() -> None:
    text = "# /usr/lib/systemd/system/x.service\n" + "ExecStart=/bin/a\n" * 60_000
    assert seconds_of(lambda: own_unit_state(UnitFile(text), "x.service", "/bin/b")) < SECONDS  # type: ignore[arg-type]
    whole = UnitFile("# /usr/lib/x\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b\n")
    assert own_unit_state(whole, "x.service", "/bin/b") == "enabled"  # type: ignore[arg-type]
    more = UnitFile("# /usr/lib/x\nExecStart=/bin/a\nExecStart=/bin/b\n")
    assert own_unit_state(more, "x.service", "/bin/b") == "enabled, with another command"  # type: ignore[arg-type]


def limited_group() -> LockedGroup:
    """Return a group of an evil and a good node with a limit of locked memory."""
    group = locked_group("evil", "good")
    limits = Setting(value={"limits": {"memlock": "unlimited"}}, reason="", source="")
    return group.model_copy(update={"settings": {**group.settings, "tuning": limits}})


@pytest.mark.parametrize("digits", ["9" * 4300, "9" * 100_000, "\N{ARABIC-INDIC DIGIT NINE}" * 4300])
def test_a_limit_of_many_digits_fails_its_check_alone(digits: str, tmp_path: Path) -> None:
    group = limited_group()

    def enlarge(answers: Answers) -> None:
        text = f"S memlock {digits}\nH memlock {digits}\n"
        answers |= {LOGIN % who: (0, text, "") for who in ("root", "nobody")} | {SERVICE: (0, text, "")}

    def allow(answers: Answers) -> None:
        text = "S memlock unlimited\nH memlock unlimited\n"
        answers |= {LOGIN % who: (0, text, "") for who in ("root", "nobody")} | {SERVICE: (0, text, "")}

    verdicts = judge([paper_node("evil", group, enlarge), paper_node("good", group, allow)], tmp_path)
    assert "tuning.limits" in [check.check for check in verdicts["evil"].failed_checks]
    assert "tuning.limits" not in [check.check for check in verdicts["good"].failed_checks]
    assert {verdict.message for verdict in verdicts.values()} == {""}


def test_combining_marks_are_compared_in_linear_time(tmp_path: Path) -> None:
    """Compare a text whose normalization, which pytest's explanation needs, sorts its marks for minutes."""
    group, marks = locked_group("evil", "good"), "a" + "\u0301" * 200_000 + "\u0323" * 200_000

    def lengthen(answers: Answers) -> None:
        for command, (code, out, err) in list(answers.items()):
            answers[command] = (code, out.strip() + marks, err)

    nodes = [paper_node("evil", group, lengthen), paper_node("good", group, lambda _: None)]
    start = time.process_time()
    verdicts = judge(nodes, tmp_path)
    assert verdicts["evil"].status == "failed"
    assert verdicts["good"].status == "passed"
    assert time.process_time() - start < len(verdicts["evil"].checks) * SECONDS


def test_a_reader_that_takes_long_ends_its_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use up a node's processor time in a reader that also catches errors."""
    group = locked_group("evil", "good")
    nodes = [paper_node("evil", group, lambda _: None), paper_node("good", group, lambda _: None)]
    nodes[0].processor_time.left = 0.2
    judged: property = vars(Apt)["held"]

    def slow(apt: Apt) -> set[str]:
        """On the first node, compute until its time is spent; then read as usual."""
        while apt._host.backend is nodes[0].backend and nodes[0].processor_time.left:
            with suppress(NodeFailed):
                sum(range(10_000))
        return set(judged.__get__(apt))

    monkeypatch.setattr(Apt, "held", property(slow))
    verdicts = judge(nodes, tmp_path)
    assert verdicts["evil"].message.startswith("the node's answers take too long to read")
    assert verdicts["good"].status == "passed"
    assert 0 < nodes[1].processor_time.left < NODE_S


def test_devices_without_number_take_no_time_on_other_nodes(tmp_path: Path) -> None:
    def multiply(answers: Answers) -> None:
        answers[DEVICES] = (0, "\n".join(f"pci:v0{at}" for at in range(5000)), "")

    group = locked_group("evil", "good")
    evil, good = paper_node("evil", group, multiply), paper_node("good", group, lambda _: None)
    judge([evil], tmp_path)
    asked = list[str]()
    good.backend.remember = asked.append  # type: ignore[method-assign,assignment]
    ask_all_ahead(evil, [good])
    assert sum(command.startswith("modprobe") and "pci:v0" in command for command in asked) <= 4
    assert COMMANDS_WITH_WORDS < len(asked) < 100
