"""Features of the command line for terminals: colour, completion, a log of each call, a manual page."""

from __future__ import annotations

import io
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from gpuprov.cli.common import completion, options, terminal
from gpuprov.cli.common.group import gpuprov, run
from gpuprov.cli.common.logs import KEPT
from gpuprov.cli.common.verbs import VERBS
from gpuprov.doctor.judge import diagnose
from gpuprov.errors import Exit
from gpuprov.model.lock import read_lock, write_lock
from maintenance.manual import manual
from tests import RECORDED_LOCK, ROOT
from tests.unit.cli.commands import leaves
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import as_examined, bare_metal

FLEET = "groups:\n  train: {profile: hgx-h100-8, hosts: 'gpu[01-03]', os: ubuntu24.04}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logs(own_state: Path) -> list[Path]:
    """Return the logs, oldest first by modification time; names within the same second have no order."""
    return sorted((own_state / "gpuprov/logs").glob("*.log"), key=lambda path: path.stat().st_mtime_ns)


def test_colour_is_for_terminals_and_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.colourful(Terminal())
    assert not terminal.colourful(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.colourful(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal.colourful(Terminal())


def test_what_a_node_sends_ends_no_line_of_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    options.note("canary: apply failed on gpu01: no\ngpu02: run this")
    options.note_lines("one\ntwo")
    assert capsys.readouterr().err == "canary: apply failed on gpu01: no\\ngpu02: run this\none\ntwo\n"


def test_colour_changes_no_letter() -> None:
    for line in ("gpu[1-3] in sync", "gpu1 a.b expected on, is off", "gpu1  FAILED  docker: no", "plain"):
        assert click.unstyle(terminal.coloured(line)) == line
    assert "\x1b[32min sync" in terminal.coloured("gpu1 in sync")
    assert terminal.coloured("plain") == "plain"


@pytest.mark.parametrize("width", [80, 140])
def test_a_result_is_folded_between_words(width: int) -> None:
    line = "  gpu1 driver.packages expected " + ", ".join(
        f"libnvidia-compute-{n} 580.95.05-1" for n in range(9)
    )
    parts = terminal.folded(line, width)
    assert all(len(part) <= width for part in parts)
    assert " ".join(" ".join(parts).split()) == " ".join(line.split())
    assert parts[0].startswith("  gpu1")
    assert {part[:6] for part in parts[1:]} == {"      "}
    assert terminal.folded("  short", width) == ["  short"]
    assert max(map(len, terminal.folded(" " * 5000 + "a " * 2000, width))) <= width
    assert terminal.folded("x" * 300, width) == ["x" * 300]


def test_nothing_is_said_of_waiting_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.waiting("asking 2 nodes", of=2) as answered:
        answered()
    assert capsys.readouterr() == ("", "")


def test_every_verb_says_more_and_keeps_a_log() -> None:
    found = dict(leaves(gpuprov))
    assert len(found) > 40
    for path, command in found.items():
        options = {option for param in command.params for option in param.opts}
        assert {"--verbose", "--debug"} <= options, path


def test_a_call_has_one_log_of_its_owner_alone(own_state: Path, tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text(FLEET)
    assert run(["validate", "-F", str(tmp_path / "fleet.yml")]) == 0
    assert run(["drift", "--lock", str(tmp_path / "none.yml")]) == 2
    first, second = logs(own_state)
    assert f"gpuprov validate -F {tmp_path}/fleet.yml" in first.read_text()
    assert "fleet.yml: valid" in first.read_text()
    assert first.read_text().endswith("INFO exit 0\n")
    assert "none.yml does not exist" in second.read_text()
    assert "Traceback" not in second.read_text()
    for path in (first, second):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_debug_says_where_an_error_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drift", "--lock", str(tmp_path / "none.yml"), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert run(["drift", "--lock", str(tmp_path / "none.yml")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_unexpected_exception_is_one_line_and_its_origin_is_in_the_log(
    own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print no traceback: another person's file may have found a defect."""

    def fail(*_: object) -> None:
        raise KeyError("\x1b[2J" + "x" * 1000)

    monkeypatch.setattr("gpuprov.model.lock.read_lock", fail)
    assert run(["plan", "--lock", str(tmp_path / "fleet.lock.yml")]) == Exit.FAILED
    said = capsys.readouterr().err
    found = re.fullmatch(r"gpuprov: unexpected KeyError at gpuprov\.cli\.[a-z.]+:\d+: (.*)\n", said)
    assert found
    assert found[1].endswith(f"; please report it; {own_state}/gpuprov/logs has its origin")
    assert len(said) < 600
    assert "\x1b" not in said
    assert "Traceback" in logs(own_state)[-1].read_text()


def test_what_asks_nobody_leaves_no_log_and_old_logs_go(own_state: Path, tmp_path: Path) -> None:
    assert run(["catalog", "os"]) == 0
    assert logs(own_state) == []
    folder = own_state / "gpuprov/logs"
    folder.mkdir(parents=True)
    for number in range(KEPT + 5):
        (folder / f"20260101-000000-drift-{number:04}.log").write_text("")
    assert run(["drift", "--lock", str(tmp_path / "none.yml")]) == 2
    assert len(logs(own_state)) == KEPT


def test_a_log_that_cannot_be_written_stops_nothing(
    own_state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_state / "gpuprov").mkdir(parents=True)
    (own_state / "gpuprov/logs").write_text("a file")
    assert run(["drift", "--lock", str(tmp_path / "none.yml")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("complete", "begun", "offered"),
    [
        (completion.profiles, "hgx-h1", ["hgx-h100-4", "hgx-h100-8"]),
        (completion.components, "cu", ["cuda", "cudnn"][:1]),
        (completion.systems, "debian13", ["debian13"]),
        (completion.tables, "sh", ["show"]),
        (completion.roles, "fire", ["firewall"]),
        (completion.nodes, "", []),
    ],
)
def test_what_a_tab_offers(
    complete: completion.Complete,
    begun: str,
    offered: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check the completions that are offered for the beginning of a word."""
    monkeypatch.chdir(tmp_path)
    found = complete(click.Context(gpuprov), click.Argument(["x"]), begun)
    assert found[: len(offered)] == offered
    assert bool(found) == bool(offered)


def test_nodes_and_groups_of_the_lock_that_is_named_are_offered() -> None:
    context = click.Context(gpuprov)
    context.params["lock_path"] = ROOT / "tests/recorded/verify/debian12-a100x4.lock.yml"
    assert completion.nodes(context, click.Argument(["x"]), "")


@pytest.mark.parametrize(
    "name", ["$(touch x)", "`x`", "a b", "a;b", "a\nfile,x", "*", "~root", ">x", "\x1b[2J"]
)
def test_a_tab_offers_nothing_that_a_shell_reads(tmp_path: Path, name: str) -> None:
    lock = read_lock(RECORDED_LOCK)
    groups = dict(zip([name, *list(lock.groups)[1:]], lock.groups.values(), strict=True))
    write_lock(lock.model_copy(update={"groups": groups}), tmp_path / "fleet.lock.yml")
    assert name in read_lock(tmp_path / "fleet.lock.yml").groups
    context = click.Context(gpuprov)
    context.params = {"lock_path": tmp_path / "fleet.lock.yml"}
    found = completion.nodes(context, click.Argument(["nodes"]), "")
    assert set(found) == {*lock.hosts(), *list(lock.groups)[1:]}


def test_a_mistyped_verb_is_reported_with_those_that_are_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dirft"]) == 2
    assert "there is no verb 'dirft'; did you mean 'drift'?" in capsys.readouterr().err
    assert run(["xyzzy"]) == 2
    assert "`gpuprov --help` lists them" in capsys.readouterr().err


def test_the_manual_is_the_one_that_is_shipped_and_has_every_verb() -> None:
    text = manual()
    assert (ROOT / "docs/gpuprov.1").read_text(encoding="utf-8") == text, "run: scripts/docs manual"
    for verb in VERBS:
        assert re.search(rf"^\.B gpuprov {verb}$", text, re.MULTILINE)


@pytest.mark.parametrize("width", [80, 140])
def test_a_command_is_not_folded(width: int) -> None:
    lines = [line for each in mends() for line in each if line.startswith(("sudo ", "echo "))]
    commands = {re.split("   |, |; ", line)[0] for line in lines}
    assert len(commands) > 40
    for command in commands:
        mend = f"{' ' * 12}mend    {command}   (before the next job on the node, as it says)"
        assert any(command in row for row in terminal.folded(mend, width)), command
    text = "gpuprov: this cannot be done while the node is in use; run "
    line = "gpuprov upgrade --to fleet.lock.yml --limit gpu[01-64] --plan"
    for each in (f"{text}{line}, then wait", f"{text}`{line}`, then wait", f"{text}{line}"):
        assert any(line in row for row in terminal.folded(each, width))


def mends() -> Iterator[tuple[str, ...]]:
    """Yield the commands of each fault that the doctor's rules find in machines with one fault."""
    for change, *_ in FAULTS.values():
        machine = bare_metal()
        with suppress(KeyError, IndexError, TypeError, ValueError):  # faults of other machines
            change(machine)
            yield from (fault.mend for fault in diagnose(as_examined(machine), "gpu01").faults)


def test_text_below_a_label_begins_below_it() -> None:
    line = "            seen    " + "word " * 30
    assert {row[:20].strip() for row in terminal.folded(line, 80)} == {"seen", ""}
    assert all(row[20] == "w" for row in terminal.folded(line, 80))
    assert terminal.folded(" " * 20 + "sudo " + "x" * 90, 80) == [" " * 20 + "sudo " + "x" * 90]


def test_a_hostile_line_is_folded_in_time() -> None:
    begun = time.monotonic()
    for line in (
        "sudo " + "a-" * 50_000,
        "sudo a " * 20_000,
        "`" * 100_000,
        " " * 100_000 + "x",
        "gpuprov -" * 200,
    ):
        terminal.folded(line, 80)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("words", [["drift", "-o", "html"], ["doctor", "--local", "-o", "html"]])
def test_a_page_is_named_where_another_form_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert "an HTML page: --html FILE" in capsys.readouterr().err
    assert run(["plan", "-o", "html"]) == 2
    assert "'html' is not one of 'table', 'json'" in capsys.readouterr().err
