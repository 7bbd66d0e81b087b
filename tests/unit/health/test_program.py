"""Runs of the program: what leaves a verdict unknown, what flaps nothing, a day without a drain."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuprov.health import look, machine, output, program
from gpuprov.health.output import line
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import NOW, bare_metal, log
from tests.unit.health.machine import Machine

DAY_S = 24 * 3600
DRAINS = ("isolate", "reset")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def mismatch(node: Machine) -> None:
    """Put a fault of the class isolate into a machine."""
    FAULTS["driver.mismatch"][0](node.collectors)


@pytest.mark.thorough
def test_a_day_with_reboots_upgrades_and_load_drains_nothing(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.judge_once(monkeypatch)
    verdicts = []
    for minute in range(DAY_S // 60):
        if minute in (200, 700, 1200):  # a reboot: services start, and the log is short
            node.reboot()
            node.collectors = bare_metal()
            FAULTS["fabric.manager"][0](node.collectors)
        if minute in (204, 704, 1204):
            node.collectors = bare_metal()
        if minute == 400:  # an upgrade, from its lease to the reboot
            node.changing = "the node is leased to run 20261126-upgrade of gpuprov"
            mismatch(node)
        if minute == 420:
            node.reboot()
            node.collectors, node.changing = bare_metal(), ""
        if minute in (500, 600, 900):  # a run that nvidia-smi answers too late
            node.collectors["smi"] = {"error": "no answer in 30 s"}
        if minute in (501, 601, 901):
            node.collectors = bare_metal()
        verdicts.append(node.run()["verdict"])
    assert not set(verdicts) & set(DRAINS)
    assert verdicts.count("healthy") > 0.97 * len(verdicts)


def test_faults_after_a_boot_count_when_the_grace_is_over(node: Machine) -> None:
    node.reboot(uptime=0)
    mismatch(node)
    verdicts = [node.run()["verdict"] for _ in range(7)]
    assert verdicts == ["unknown"] * 5 + ["isolate"] * 2


def test_a_fault_that_comes_and_goes_changes_the_verdict_once(node: Machine) -> None:
    seen = []
    for number in range(60):
        node.collectors = bare_metal()
        if number % 3 == 0 or number % 2:
            FAULTS["fabric.manager"][0](node.collectors)
        seen.append(node.run()["verdict"])
    changes = [one for one, other in pairwise(seen) if one != other]
    assert changes == ["unknown"]
    assert seen[-1] == "isolate"


def test_a_fault_in_an_upgrade_counts_when_it_outlasts_it(node: Machine) -> None:
    node.changing = "process 7 installs packages"
    mismatch(node)
    assert {node.run()["verdict"] for _ in range(5)} == {"unknown"}
    node.changing = ""
    assert node.run(2)["verdict"] == "isolate"


def test_a_change_that_never_ends_is_no_excuse(node: Machine) -> None:
    node.changing = "process 7 installs packages"
    mismatch(node)
    node.run()
    node.pass_time(program.LONGEST_CHANGE_S)
    assert node.run(3)["verdict"] == "isolate"


def test_a_missing_answer_of_nvidia_smi_is_unknown_at_once_and_then_a_fault(node: Machine) -> None:
    assert node.run(2)["verdict"] == "healthy"
    node.collectors["smi"] = {"error": "no answer in 30 s"}
    first, second = node.run(), node.run()
    assert (first["verdict"], second["verdict"], second["rule"]) == ("unknown", "isolate", "driver.smi")


def test_a_stuck_nvidia_smi_is_not_started_again(node: Machine) -> None:
    node.stuck = {"nvidia-smi": [812]}
    document = node.run(3)
    assert (document["verdict"], document["rule"]) == ("isolate", "driver.smi")
    assert [name for asked in node.asked for name in asked if name in look.SMI] == []
    node.stuck = {}
    assert node.run(20)["verdict"] == "healthy"


def test_a_collector_that_an_earlier_run_still_waits_for_is_not_started_again(node: Machine) -> None:
    release = threading.Event()
    waiting = threading.Thread(target=release.wait, name="kernel_log", daemon=True)
    waiting.start()
    node.collectors["kernel_log"] = {"error": "no answer in 10 s"}
    assert node.run()["verdict"] == "unknown"
    release.set()
    waiting.join()
    node.stuck = {"gpuprov-health": [811]}
    node.collectors = bare_metal()
    node.asked.clear()
    document = node.run(3)
    assert document["reasons"][0] == "kernel_log: process 811, an earlier run, still waits for it"
    assert (document["verdict"], {"kernel_log"}.intersection(*node.asked)) == ("unknown", set())
    assert all("smi" in asked for asked in node.asked)
    node.stuck = {}
    assert node.run(2)["verdict"] == "healthy"


def test_the_topology_is_not_read_in_every_run(node: Machine) -> None:
    node.run(10)
    assert [("topo" in asked) for asked in node.asked] == [True] + [False] * 9
    node.run(2)
    assert sum("topo" in asked for asked in node.asked) == 2


@pytest.mark.parametrize("name", look.ESSENTIAL)
def test_an_essential_value_that_is_missing_is_unknown(node: Machine, name: str) -> None:
    node.collectors[name] = {"error": "cannot be read"}
    document = node.run()
    assert document["verdict"] == "unknown"
    assert document["text"] == f"{name}: cannot be read"


def test_a_value_that_a_rule_cannot_read_is_unknown(node: Machine) -> None:
    node.collectors["kernel_log"] = {"source": "journal", "lines": 1, "kept": [["x", 1]]}
    document = node.run()
    assert document["verdict"] == "unknown"
    assert "could not judge" in document["text"]


def test_a_fault_stays_if_its_message_is_pushed_out_of_the_log(node: Machine) -> None:
    """Push it out long ago, so that the log has all of the last day."""
    log(node.collectors, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    assert node.run(3)["verdict"] == "isolate"
    node.collectors = bare_metal()
    node.collectors["kernel_log"]["since"] = 0
    assert node.run(60)["verdict"] == "isolate"
    del node.collectors["kernel_log"]["since"]
    assert node.run(60)["verdict"] == "isolate"
    node.reboot()
    assert node.run(60)["verdict"] == "healthy"


def test_a_fault_that_users_cause_lets_no_other_one_end(node: Machine) -> None:
    """Flood the log, and cause a fault by the same rule."""
    log(node.collectors, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    assert node.run(3)["verdict"] == "isolate"
    node.collectors = bare_metal()
    log(node.collectors, "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=python, Ch 00000008")
    node.collectors["kernel_log"]["since"] = NOW
    assert node.run(60)["verdict"] == "isolate"


@pytest.mark.parametrize("step", [-7200.0, 3600.0, 86400.0])
def test_a_step_of_the_clock_is_unknown_for_a_run(node: Machine, step: float) -> None:
    node.run(2)
    node.wall += step
    document = node.run()
    assert document["verdict"] == "unknown"
    assert "the clock was set" in document["text"]
    assert node.run()["verdict"] == "healthy"


def test_a_step_of_the_clock_ends_no_fault(node: Machine) -> None:
    mismatch(node)
    node.run(2)
    node.wall += 86400.0
    assert node.run()["verdict"] == "isolate"


def test_a_clock_that_lost_its_time_is_unknown(node: Machine) -> None:
    node.wall = 3600.0
    assert "1970-01-01" in node.run()["text"]
    assert node.run()["verdict"] == "unknown"


def test_an_exception_in_a_run_is_unknown(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run(2)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(look, "read_facts", fails)
    document = node.run()
    assert (document["verdict"], document["text"]) == ("unknown", "the run failed: MemoryError: ")


def test_a_reboot_forgets_the_faults_and_when_drains_may_be_lifted(node: Machine) -> None:
    mismatch(node)
    node.run(2)
    node.collectors = bare_metal()
    node.reboot(uptime=400.0)
    document = node.run()
    assert document["verdict"] == "healthy"
    assert document["lift_s"] == document["uptime_s"] + node.config.hold


def test_a_broken_state_is_like_none(node: Machine) -> None:
    node.run()
    (node.folder / program.STATE).write_text('{"boot": 1')
    assert node.run()["verdict"] == "healthy"


def test_the_verdict_is_valid_for_two_intervals(node: Machine) -> None:
    assert node.run()["valid_s"] == 150.0


# files


def start(node: Machine, *options: str) -> int:
    """Run the program by its command line."""
    return program.main(
        ["--config", str(node.folder / "config"), "--folder", str(node.folder / "run"), *options]
    )


def saved(node: Machine) -> dict[str, object]:
    """Return the document in the program's folder."""
    document: dict[str, object] = json.loads((node.folder / "run/health.json").read_text())
    return document


def test_the_command_line_writes_document_line_and_metrics(node: Machine) -> None:
    textfile = node.folder / "gpuprov-health.prom"
    (node.folder / "config").write_text(json.dumps({"interval": 30, "textfile": str(textfile)}))
    assert start(node) == 0
    assert saved(node)["interval_s"] == 30
    assert (node.folder / "run/health").read_text() == line(saved(node))
    assert 'gpuprov_health_verdict{verdict="healthy"} 1' in textfile.read_text()
    assert textfile.stat().st_mode & 0o777 == 0o644
    assert list(node.folder.glob("**/*.new")) == []


def test_metrics_of_a_former_folder_are_removed_and_forgotten_ones_too(node: Machine) -> None:
    for name in ("one.prom", "two.prom"):
        (node.folder / "config").write_text(json.dumps({"textfile": str(node.folder / name)}))
        assert start(node) == 0
    assert [path.name for path in node.folder.glob("*.prom")] == ["two.prom"]
    assert start(node, "--forget") == 0
    assert [path for path in node.folder.rglob("*") if path.is_file() and path.name != "config"] == [
        node.folder / "run/locks/health"
    ]


def test_by_hand_it_runs_for_a_while(node: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(node, "--interval", "0.01", "--seconds", "0.1") == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("text", ["{", '{"interval": 0}', '{"intervall": 60}', '{"interval": "x"}', "[]"])
def test_a_wrong_configuration_is_unknown(node: Machine, text: str) -> None:
    (node.folder / "config").write_text(text)
    assert start(node) == 0
    assert saved(node)["verdict"] == "unknown"


def test_a_failed_run_is_written_as_unknown(node: Machine) -> None:
    assert start(node, "--failed", "timeout") == 0
    assert (saved(node)["verdict"], saved(node)["text"]) == ("unknown", "timeout")


def isolated(node: Machine) -> None:
    """Put a fault into a machine, and run until it counts."""
    mismatch(node)
    for _ in range(2):
        start(node)
        node.pass_time(60)
    assert saved(node)["verdict"] == "isolate"


def test_metrics_that_cannot_be_written_hide_no_verdict(
    node: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit with 0, as the service writes `unknown` after any other code; the folder's user can prevent it."""
    textfile = node.folder / "node-exporter/gpuprov-health.prom"
    textfile.mkdir(parents=True)
    (node.folder / "config").write_text(json.dumps({"textfile": str(textfile)}))
    isolated(node)
    assert start(node) == 0
    assert f"cannot be written: {textfile}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("faulty", [True, False])
def test_metrics_that_state_a_drain_stay_if_they_cannot_be_replaced(
    node: Machine, monkeypatch: pytest.MonkeyPatch, faulty: bool
) -> None:
    """Metrics of other verdicts are removed, so that they are not taken for new."""
    textfile = node.folder / "gpuprov-health.prom"
    (node.folder / "config").write_text(json.dumps({"textfile": str(textfile)}))
    isolated(node) if faulty else start(node)
    before, written = textfile.read_text(), output.replace

    def replace(path: str, *rest: Any) -> None:
        """Raise OSError for the metrics only."""
        if path == str(textfile):
            raise OSError(28, "No space left on device")
        written(path, *rest)

    monkeypatch.setattr(output, "replace", replace)
    start(node)
    assert (textfile.read_text() if textfile.exists() else None) == (before if faulty else None)


def test_a_run_that_is_killed_or_fails_hides_no_fault_that_counts(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated(node)
    start(node, "--failed", "the last run was killed")
    assert (saved(node)["verdict"], saved(node)["reasons"]) == ("isolate", ["the last run was killed"])
    monkeypatch.setattr(look, "examine", lambda document: 1 / 0)
    start(node)
    assert saved(node)["verdict"] == "isolate"
    node.boot = "another"
    start(node, "--failed", "the last run was killed")
    assert (saved(node)["verdict"], saved(node)["text"]) == ("unknown", "the last run was killed")


def test_a_second_run_at_the_same_time_does_nothing(
    node: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "LOCK_S", 0.0)
    start(node)
    before = (node.folder / "run/health.json").read_text()
    with program.mutex.held(str(node.folder / "run/locks/health"), 0):
        assert start(node) == 0
    assert (node.folder / "run/health.json").read_text() == before
    assert "another run" in capsys.readouterr().err


def full(*_: object) -> None:
    """Fail as a function that needs space."""
    raise OSError(28, "No space left on device")


def test_a_full_disk_hides_no_fault(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite the verdict and the memory between runs in place, also with shorter and longer lines."""
    start(node)
    monkeypatch.setattr(output, "replace", full)
    mismatch(node)
    lines = []
    for _ in range(3):
        node.pass_time(60)
        assert start(node) == 0
        lines.append((node.folder / "run/health").read_text())
        assert lines[-1] == line(saved(node))
    assert [each.split()[0] for each in lines][-1] == "isolate"


def test_a_disk_that_is_full_from_the_boot_on_hides_no_fault(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fill the folder after the unit of the boot, before the first run."""
    assert start(node, "--reserve") == 0
    sizes = {path.name: path.stat().st_size for path in (node.folder / "run").iterdir() if path.is_file()}
    assert sizes == {"health": 1, "health.json": 1, "health.command": 1, program.STATE: program.STATE_BYTES}
    monkeypatch.setattr(output, "replace", full)
    isolated(node)
    before = (node.folder / "run/health").read_text()
    monkeypatch.setattr(program, "LOCK_S", 0.0)
    with program.mutex.held(str(node.folder / "run/locks/health"), 0):
        assert start(node, "--reserve") == 0
    assert start(node, "--reserve") == 0
    assert (node.folder / "run/health").read_text() == before


def test_a_sites_program_is_not_started_again_and_again_with_a_full_disk(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = node.folder / "site"
    site.write_text(f"#!/bin/sh\necho $* >>{node.folder}/calls\n")
    site.chmod(0o755)
    (node.folder / "config").write_text(json.dumps({"command": str(site)}))
    assert start(node, "--reserve") == 0
    monkeypatch.setattr(output, "replace", full)
    for _ in range(3):
        start(node)
    assert (node.folder / "calls").read_text() == "healthy -\n"


def test_a_file_that_cannot_be_written_is_removed(
    node: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(node)
    monkeypatch.setattr(output, "replace", full)
    monkeypatch.setattr(output.os, "pwrite", full)
    assert start(node) == 1
    assert [path.name for path in (node.folder / "run").iterdir() if path.is_file()] == []
    assert "No space left" in capsys.readouterr().err


def test_without_a_memory_between_runs_the_verdict_is_unknown(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(program, "save", full)
    document = node.run(2)
    assert document["verdict"] == "unknown"
    assert document["text"] == "the memory between runs cannot be kept: No space left on device"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_metrics_are_not_written_through_a_link_of_the_folders_user(node: Machine) -> None:
    home, own = node.folder / "prometheus", node.folder / "root-only"
    own.mkdir(mode=0o700)
    (own / "gpuprov-health.prom").write_text("of root")
    home.mkdir()
    (home / "node-exporter").symlink_to(own)
    for path in (home, home / "node-exporter"):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    textfile = home / "node-exporter/gpuprov-health.prom"
    (node.folder / "config").write_text(json.dumps({"textfile": str(textfile)}))
    assert start(node) == 0
    assert start(node, "--forget") == 0
    assert (own / "gpuprov-health.prom").read_text() == "of root"
    (home / "node-exporter").unlink()
    (home / "node-exporter").mkdir()
    textfile.write_text("planted")
    os.chown(textfile, 65534, 65534)
    assert start(node) == 0
    assert (textfile.stat().st_uid, textfile.stat().st_mode & 0o777) == (0, 0o644)
    assert "gpuprov_health_verdict" in textfile.read_text()


def test_the_line_is_one_line_whatever_a_machine_says(node: Machine) -> None:
    document = {**node.run(), "text": "a\nb\x1b[31m" + "x" * 500, "rule": "driver.smi"}
    text = line(document)
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert text.split()[5] == "driver.smi"
    assert len(text) < 400


@pytest.mark.thorough
def test_a_user_that_keeps_a_lock_now_and_then_is_no_excuse(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.judge_once(monkeypatch)
    FAULTS["fabric.manager"][0](node.collectors)
    verdicts = []
    for minute in range(24 * 60):
        node.changing = "process 7 installs packages" if minute % 239 else ""
        verdicts.append(node.run()["verdict"])
    assert verdicts.count("isolate") > 0.8 * len(verdicts)
    assert "healthy" not in verdicts


def test_after_a_change_a_fault_is_unknown_until_it_is_confirmed(node: Machine) -> None:
    node.changing = "process 7 installs packages"
    FAULTS["fabric.manager"][0](node.collectors)
    verdicts = [node.run()["verdict"]]
    node.changing = ""
    verdicts += [node.run()["verdict"] for _ in range(2)]
    assert verdicts == ["unknown", "unknown", "isolate"]


def test_the_search_for_earlier_runs_ends_however_many_processes_users_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (("5", 1, "own"), ("6", 1, "user"), ("7", 4, "own"), ("8", 1, "own"), ("self", 1, "own"))
    for pid, parent, group in rows:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(f"{pid} (gpuprov-health) D {parent} 1\n")
        (tmp_path / pid / "cgroup").write_text(f"0::/{group}\n")
    monkeypatch.setattr(machine, "PROC", str(tmp_path))
    assert machine.leftovers("gpuprov-health") == [5, 8]
    clock = count(step=machine.SEARCH_S / 2)
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    assert machine.leftovers("gpuprov-health") == [5]


def test_packages_that_are_installed_are_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    monkeypatch.setattr(machine, "PACKAGE_LOCKS", (str(path),))
    monkeypatch.setattr(machine.lease, "current", lambda: None)
    assert machine.changing() == ""
    code = (
        f"import fcntl, sys; file = open({str(path)!r}, 'w'); fcntl.lockf(file, {fcntl.LOCK_EX}); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert machine.changing() == f"process {child.pid} installs packages ({path} is locked)"
        child.communicate()
    assert machine.changing() == ""
    code = code.replace("'w'", "'r'").replace(f" {int(fcntl.LOCK_EX)})", f" {int(fcntl.LOCK_SH)})")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert machine.changing() == "", "a read lock, which any user can have"
        child.communicate()
