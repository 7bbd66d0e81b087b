"""Exit codes of benches, and what they leave on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import nan
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import apply, drift, gate, scale, targets, verify
from tests.bench._bars import Bar, verdict
from tests.bench._by_hand import ByHand, File
from tests.bench._commands import commands_of


@pytest.mark.parametrize(
    ("bar", "code"),
    [
        (Bar("a", 2.0, most=2), 0),
        (Bar("a", 2.001, most=2), 1),
        (Bar("a", 8.0, least=8), 0),
        (Bar("a", 7.999, least=8), 1),
        (Bar("a", nan, most=2), 1),
    ],
)
def test_a_figure_outside_its_limit_fails(bar: Bar, code: int) -> None:
    assert verdict([Bar("kept", 1.0, most=1), bar]) == code


def test_a_missed_limit_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict([Bar("gate / drift", 2.0041, most=2), Bar("verify / drift", 9, least=8)]) == 1
    assert capsys.readouterr().out == "missed: gate / drift 2.004, at most 2\n"


@pytest.mark.parametrize(("ours", "code"), [([12, 11, 30], 0), ([12, 13, 14], 1)])
def test_apply_fails_above_its_bar(ours: list[float], code: int) -> None:
    times = {"gpuprov apply": ours, "shell script": [10.0, 10.0], "with Mitogen": [90.0]}
    assert apply.report(times, apply.BAR) == code


@pytest.mark.parametrize(
    ("system", "foreign", "held"),
    [
        ("debian12", ("dnf", "dracut", "versionlock"), "apt-mark hold a >/dev/null"),
        ("rhel9", ("apt", "update-initramfs"), "printf '%s\\n' a >/etc/dnf/plugins/versionlock.list"),
    ],
)
def test_the_script_beside_apply_has_the_commands_of_the_system(
    system: str, foreign: tuple[str, ...], held: str
) -> None:
    commands, ran = commands_of(system), []
    node: Any = SimpleNamespace(run=lambda _command, input, timeout: ran.append(input))  # noqa: A006
    file = File("/etc/b", "644", "")
    ByHand(
        [], [file], f"{commands.install} a", ["c.service"], ["c.service"], ["m/1, 6.1"], ["a"], commands
    ).by_script(node)
    [script] = ran
    assert not [word for word in foreign if word in script]
    lines = script.splitlines()
    assert held in lines
    assert lines.index("chmod 644 /etc/b") < lines.index(f"{commands.install} a") < lines.index(held)
    assert "dkms status m/1 -k 6.1 | grep -q installed || dkms install m/1 -k 6.1 >/dev/null" in lines
    assert lines.index("systemctl enable -q c.service") < lines.index("systemctl start c.service")


@pytest.mark.parametrize("words", [[], ["--full"], ["--stub"]])
def test_apply_compiles_a_driver_on_one_system_only(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["apply", "--system", "rhel9", *words])
    with pytest.raises(SystemExit, match="2"):
        apply.main()
    assert "needs --full --stub" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("decide", "good", "bad"),
    [
        (lambda *medians: drift.ratios(1.0, 1.0, *medians), (2.5, 5.0), [(2.6, 5.0), (2.5, 5.1)]),
        (drift.slow_ratios, (1.0, 8.0, 20.0), [(1.0, 7.9, 20.0), (1.0, 8.0, 19.0)]),
        (lambda *medians: [gate.ratio(*medians)], (1.0, 2.0), [(1.0, 2.1)]),
        (lambda *walls: [scale.ratio("drift", *walls)], (1.1, 1.0), [(1.2, 1.0)]),
        (lambda ours, theirs: [verify.ratio([9, ours, 1], [theirs])], (2.6, 2.0), [(2.7, 2.0)]),
    ],
)
def test_each_ratio_is_held_to_the_limit_that_is_printed(
    decide: Callable[..., list[Bar]], good: tuple[float, ...], bad: list[tuple[float, ...]]
) -> None:
    assert verdict(decide(*good)) == 0
    assert [verdict(decide(*each)) for each in bad] == [1] * len(bad)


@pytest.mark.parametrize("fails", [False, True])
def test_many_addresses_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    left: set[str] = set()

    def execute(words: list[str]) -> None:
        where = "node" if "-n" in words else "here"
        (left.discard if "delete" in words else left.add)(f"{where}: {targets.RANGE}")

    def run(command: str) -> None:
        (left.discard if command.startswith(f"rm -f {targets.LIMITS};") else left.add)(targets.LIMITS)
        assert command.endswith("systemctl restart ssh")

    monkeypatch.setattr(targets, "execute", execute)
    link: Any = SimpleNamespace(namespace="n")
    node: Any = SimpleNamespace(link=link, address="198.18.0.2", run=run, await_ssh=lambda: None)
    with suppress(KeyboardInterrupt), targets.many_addresses(node):
        assert len(left) == 3
        if fails:
            raise KeyboardInterrupt
    assert left == set()
