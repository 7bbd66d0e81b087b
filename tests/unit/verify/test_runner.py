"""Runner: pytest in separate processes, independent of the operator's environment."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpuprov.errors import Exit, InvalidInput
from gpuprov.verify import TimeLimits, Verdict, run_verification, runner
from gpuprov.verify.plugin import LAST_LINES, _seen_now
from gpuprov.verify.values import SHOWN, plain
from gpuprov.verify.wanted import wanted
from tests.unit.programs import write_program
from tests.unit.verify.nodes_on_paper import VERSION, lock_of

QUICK = TimeLimits(command_s=10, node_s=60)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH, for fake commands of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for slow in ("apt-get", "dpkg", "dpkg-query", "apt-config"):
        answer(folder, slow, "")
    return folder


def answer(folder: Path, name: str, text: str, code: int = 0) -> None:
    """Write a command that prints `text`."""
    (folder / f"{name}.txt").write_text(text)
    write_program(folder / name, f'cat "{folder}/{name}.txt"\nexit {code}')


def statuses(verdict: Verdict) -> dict[str, str]:
    """Return check → status of the only node."""
    (node,) = verdict.nodes
    return {check.check: check.status for check in node.checks}


def test_this_machine_is_judged_and_reported(commands: Path, tmp_path: Path) -> None:
    answer(commands, "nvidia-smi", f"0, 00000000:01:00.0, NVIDIA A100-SXM4-80GB, {VERSION}, Enabled\n")
    junit, report = tmp_path / "verify.xml", tmp_path / "verify.json"
    lock = lock_of("here")
    verdict = run_verification(lock, ["here"], local=True, junit=junit, json=report, limits=QUICK)
    seen = statuses(verdict)
    assert set(seen) == set(wanted(lock.groups["train"]))
    assert seen["driver.answers"] == "passed"
    assert seen["pins.hold"] == "failed"
    assert verdict.exit_code == Exit.FAILED
    document = json.loads(report.read_text())
    assert document == verdict.document()
    assert (document["schema"], document["summary"]["failed"]) == ("gpuprov.verify/1", 1)
    suites = ET.parse(junit).getroot()  # noqa: S314
    assert {case.get("name") for case in suites.iter("testcase")} == set(seen)
    assert suites.get("failures") == str(sum(status == "failed" for status in seen.values()))


@pytest.mark.thorough
def test_pytest_of_the_operator_does_not_interfere(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not for you')")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense")
    (tmp_path / "testinfra.py").write_text("raise RuntimeError('nor you')")
    (tmp_path / "somebody.py").write_text("raise RuntimeError('nor you')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    monkeypatch.setenv("PYTEST_PLUGINS", "somebody")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("BUILD_NUMBER", "1")
    assert not {"CI", "BUILD_NUMBER"} & set(runner._environment())
    (node,) = run_verification(lock_of("here"), ["here"], local=True, limits=QUICK).nodes
    assert (node.status, node.message) == ("failed", "")


def test_hanging_command_fails_its_checks_and_no_others(commands: Path) -> None:
    write_program(commands / "nvidia-smi", "sleep 60")
    closure = lock_of("here").groups["train"].components.driver.closure
    answer(commands, "dpkg-query", "".join(f"hold installed {name} 1\n" for name in closure))
    verdict = run_verification(
        lock_of("here"), ["here"], local=True, limits=TimeLimits(command_s=1, node_s=20)
    )
    (node,) = verdict.nodes
    answers = next(check for check in node.checks if check.check == "driver.answers")
    assert answers.actual.startswith("no answer to `nvidia-smi")
    assert statuses(verdict)["pins.hold"] == "passed"


def test_nodes_out_of_reach_are_a_line_each() -> None:
    verdict = run_verification(lock_of("gpu1", "gpu2"), ["gpu1", "gpu2"])
    assert [(node.name, node.status, node.checks) for node in verdict.nodes] == [
        ("gpu1", "unreachable", []),
        ("gpu2", "unreachable", []),
    ]
    assert (
        verdict.nodes[0].message
        == "no SSH on port 1: connection refused; check the address, and that it is up"
    )
    assert verdict.exit_code == Exit.UNREACHABLE


def test_run_cut_short_is_an_error_with_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprov.verify.runner._isolated", lambda folder: ["--no-such-option"])
    (node,) = run_verification(lock_of("here"), ["here"], local=True, limits=QUICK).nodes
    assert node.status == "error"
    assert node.message.startswith("pytest ended with status 4: ")


def test_this_machine_is_one_node() -> None:
    with pytest.raises(InvalidInput, match="is one node, not 2"):
        run_verification(lock_of("a", "b"), ["a", "b"], local=True)


def test_what_a_failed_check_shows_has_no_password() -> None:
    """Hide them: more people read a report than daemon.json and the drop-ins of units."""
    said = '{"proxies": {"https-proxy": "http://build:hunter2@proxy:3128"}}\npassword = "hunter2"\n'
    host = SimpleNamespace(run=lambda command: SimpleNamespace(stdout=said))
    node: Any = SimpleNamespace(host=host)
    shown = _seen_now(node, ["cat /etc/docker/daemon.json"])
    assert shown == [
        "$ cat /etc/docker/daemon.json",
        '{"proxies": {"https-proxy": "http://proxy:3128"}}',
        'password = "(hidden)"',
    ]


def test_a_line_that_is_cut_off_is_left_out() -> None:
    """Leave out half a URL, which has no mark by which its password is found."""
    said = "x" * (LAST_LINES * SHOWN) + "hunter2@mirror/\nwhole"
    node: Any = SimpleNamespace(host=SimpleNamespace(run=lambda command: SimpleNamespace(stdout=said)))
    assert _seen_now(node, ["cat x"]) == ["$ cat x", "whole"]


def test_a_value_of_a_failed_comparison_has_no_password() -> None:
    value = {"https://ci:hunter2@mirror/a": ["https://ci:hunter2@mirror/rhel9/x86_64"]}
    assert plain(value) == {"https://mirror/a": ["https://mirror/rhel9/x86_64"]}
