"""The health check on a real node: role, verdicts, and Debian's own Slurm that drains by them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuprov.health.look import SMI
from gpuprov.roles.health import FIRST_S, LIBRARY, PROGRAM, RESERVE, SERVICE, TIMER, VERDICT
from gpuprov_lab import Lab
from tests.campaign._doctor_faults import FORGET
from tests.lab.health_node import FOLDER, HealthNode, health_node, stuck_nvidia_smi

pytestmark = pytest.mark.slow
INTERVAL, HOLD = 10, 60
SETTING = {"interval": INTERVAL, "grace": 0, "hold": HOLD, "rules": {}}
FAULTS = [
    ("cuda.exclusive", "isolate", "nvidia-smi -i 1 -c 2", "nvidia-smi -i 1 -c 0"),
    ("driver.smi", "isolate", "gpuprov-sim fault hang", "gpuprov-sim mend"),
    ("driver.uvm", "isolate", "modprobe -r nvidia_uvm", "modprobe nvidia_uvm"),
    (
        "errors.xid",
        "reset",
        "gpuprov-sim fault xid 2 119",
        FORGET,
    ),
]
"""Rule, class, and the commands that cause and remove the fault."""


@pytest.fixture(scope="module")
def node(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> HealthNode:
    """A lab node with the health setting in its lock; nothing is applied."""
    return health_node(module_lab, tmp_path_factory.mktemp("health"), SETTING)


@pytest.fixture(scope="module")
def applied(node: HealthNode) -> HealthNode:
    """Return the node after a successful apply of the role health."""
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    return node


@pytest.fixture(scope="module")
def slurm(applied: HealthNode) -> HealthNode:
    """Return the node with Slurm and the health check's programs."""
    applied.install_slurm()
    return applied


def test_the_node_is_judged_and_both_witnesses_agree(applied: HealthNode) -> None:
    assert (applied.drift(), applied.failed()) == ({}, {})
    applied.until(lambda: applied.verdict == "watch", 120)  # the stub driver has no module for GPUDirect
    outcome, changed = applied.apply()
    assert (outcome.ok, changed) == (True, [])


def test_both_witnesses_see_changes_and_apply_corrects_them(applied: HealthNode) -> None:
    booted = int(applied.says("ps -o etimes= -p 1"))
    time.sleep(max(0.0, FIRST_S + 2 - booted))  # earlier a verdict may be missing
    applied.stop("disable --now")
    applied.node.run(f"echo '#' >>{PROGRAM}; rm {LIBRARY}/npd-health {VERDICT}")
    assert set(applied.drift()) == {"health.files", "health.timer", "health.verdict"}
    assert set(applied.failed()) == {"health.files", "health.timer", "health.verdict"}
    applied.apply()
    assert (applied.drift(), applied.failed()) == ({}, {})


@pytest.mark.parametrize(("rule", "word", "seed", "undo"), FAULTS)
def test_a_fault_reaches_textfile_plugin_and_slurm(
    slurm: HealthNode, rule: str, word: str, seed: str, undo: str
) -> None:
    slurm.until(lambda: slurm.drained == "", 2 * HOLD)
    slurm.node.run(seed)
    slurm.until(lambda: (rule, word) in slurm.metrics, 150)
    assert re.match(rf"{rule}: .*\n1$", slurm.says(f"{LIBRARY}/npd-health {word}; echo $?"))
    slurm.until(lambda: slurm.drained.startswith(f"gpuprov:health: {word} {rule}: "), 30)
    slurm.node.run(undo, check=False)
    slurm.until(lambda: slurm.drained == "", 4 * HOLD)


def test_a_drain_of_an_administrator_stays(slurm: HealthNode) -> None:
    slurm.node.run(f"scontrol update NodeName={slurm.node.name} State=DRAIN Reason='broken fan'")
    slurm.node.run("nvidia-smi -i 1 -c 2")
    slurm.until(lambda: slurm.verdict == "isolate", 150)
    time.sleep(12)
    assert slurm.drained == "broken fan"
    slurm.node.run("nvidia-smi -i 1 -c 0")
    slurm.until(lambda: slurm.verdict == "watch", 4 * HOLD)
    time.sleep(12)
    assert slurm.drained == "broken fan"
    slurm.node.run(f"scontrol update NodeName={slurm.node.name} State=UNDRAIN")


def test_a_killed_run_leaves_the_verdict_unknown(applied: HealthNode) -> None:
    applied.node.run("gpuprov-sim fault hang")  # a run then takes as long as it waits for nvidia-smi
    applied.node.run(
        f"systemctl start --no-block {SERVICE}; sleep 3; systemctl kill -s KILL {SERVICE}", check=False
    )
    applied.until(lambda: "the last run failed or was killed" in applied.says(f"cat {VERDICT}"), 30)
    assert applied.verdict == "unknown"
    applied.node.run("gpuprov-sim mend")


def test_a_stuck_nvidia_smi_is_named_and_not_started_again(applied: HealthNode) -> None:
    """Watch processes in state D over several runs: there are no more of them, and the verdict stays."""
    stuck = "grep -l '(nvidia-smi) D' /proc/[0-9]*/stat 2>/dev/null"
    with stuck_nvidia_smi(applied):
        applied.until(lambda: applied.verdict == "isolate", 300)
        first, runs, begun = applied.says(stuck), set[str](), time.monotonic()
        assert 1 <= len(first.splitlines()) <= len(SMI)
        while len(runs) < 3:
            line = applied.says(f"cat {VERDICT}")
            verdict, _, at, _, _, rule, *_ = line.split(" ", 6)
            assert (verdict, rule, applied.says(stuck)) == ("isolate", "driver.smi", first), line
            runs.add(at)
            assert time.monotonic() - begun < 400, applied.says(f"journalctl -u {SERVICE} -n 40")
            time.sleep(1)
    applied.until(lambda: applied.verdict == "watch", 6 * HOLD)


@contextmanager
def full(node: HealthNode, folder: str, before: str) -> Iterator[None]:
    """Mount a small file system on a folder, run a command, and fill it."""
    node.node.run(f"mount -t tmpfs -o size=8m,mode=0755 full {folder}")
    try:
        node.node.run(before, check=False)
        node.node.run(f"dd if=/dev/zero of={folder}/fill", check=False)
        yield
    finally:
        node.node.run(f"umount {folder}")


@pytest.mark.parametrize("before", [f"systemctl start {SERVICE}", f"systemctl restart {RESERVE}"])
def test_a_full_folder_hides_no_fault(applied: HealthNode, before: str) -> None:
    """Fill the folder after a verdict, and before the first one."""
    applied.stop()
    with full(applied, "/run/gpuprov", before):
        applied.node.run("nvidia-smi -i 1 -c 2")
        applied.judge()
        time.sleep(INTERVAL / 2 + 1)
        applied.judge()
        said = applied.says(f"{LIBRARY}/npd-health isolate; echo $?")
        applied.node.run("nvidia-smi -i 1 -c 0")
        assert (applied.verdict, said[-2:]) == ("isolate", "\n1"), said
        assert set(applied.drift()) == set(applied.failed()) == {"health.timer"}
    applied.node.run(f"systemctl start {TIMER}")
    applied.until(lambda: applied.verdict == "watch", 60)


def test_a_full_folder_of_the_metrics_keeps_no_old_ones(applied: HealthNode) -> None:
    applied.stop()
    with full(applied, FOLDER, f"systemctl start {SERVICE}"):
        applied.judge()
        assert applied.says(f"ls {FOLDER}") == "fill"
    applied.node.run(f"systemctl start {TIMER}")
    applied.until(lambda: applied.verdict == "watch", 60)
    assert (applied.drift(), applied.failed()) == ({}, {})


@pytest.mark.parametrize(
    ("shown", "reason"), [("+2h", "the clock was set by +7"), ("@2001-01-01 00:00:00", "has lost its time")]
)
def test_a_broken_clock_leaves_the_verdict_unknown(applied: HealthNode, shown: str, reason: str) -> None:
    """Show the program another time: a node of the lab has its machine's clock."""
    applied.node.run("command -v faketime || apt-get -q -y install --no-install-recommends faketime")
    library = applied.says("find /usr/lib -name libfaketime.so.1")
    drop_in = f"""[Service]
Environment=LD_PRELOAD={library} "FAKETIME={shown}" FAKETIME_DONT_FAKE_MONOTONIC=1
"""
    folder = f"/run/systemd/system/{SERVICE}.d"
    applied.until(lambda: applied.verdict == "watch", 60)
    applied.node.run(f"mkdir {folder} && cat >{folder}/clock.conf && systemctl daemon-reload", input=drop_in)
    applied.until(
        lambda: (
            applied.says(f"cat {VERDICT}").startswith("unknown ") and reason in applied.says(f"cat {VERDICT}")
        ),
        60,
    )
    applied.node.run(f"rm -r {folder} && systemctl daemon-reload")
    applied.until(lambda: applied.verdict == "watch", 60)
    assert (applied.drift(), applied.failed()) == ({}, {})


def test_the_first_verdict_after_a_boot_is_not_due_at_once(applied: HealthNode) -> None:
    applied.node.reboot()
    applied.stop()
    entered = f"systemctl show -P ActiveEnterTimestampMonotonic {RESERVE} sysinit.target"
    reserved, initialized = map(int, applied.says(entered).split())
    assert 0 < reserved <= initialized  # programs of users start after sysinit.target
    applied.node.run(f"rm -f {VERDICT}")
    assert set(applied.drift()) == set(applied.failed()) == {"health.timer"}
    booted = int(applied.says("ps -o etimes= -p 1"))
    time.sleep(max(0.0, FIRST_S + 2 - booted))
    assert set(applied.drift()) == set(applied.failed()) == {"health.timer", "health.verdict"}
    applied.node.run(f"systemctl start {TIMER}")
    applied.until(lambda: applied.verdict == "watch", 90)


def test_without_its_program_the_verdict_is_too_old_for_all_readers(applied: HealthNode) -> None:
    applied.judge()
    applied.node.run(f"systemctl stop {TIMER}; sed -i 's/ 120 / 0 /' {VERDICT}; sleep 2")
    assert applied.says(f"{LIBRARY}/npd-health isolate; echo $?").endswith("\n2")
    assert set(applied.drift()) == {"health.timer", "health.verdict"}
    applied.node.run(f"systemctl start {TIMER}")
    applied.judge()
    assert applied.drift() == {}


def test_null_removes_what_the_role_installed(applied: HealthNode) -> None:
    applied.state({"health": None})
    outcome, _ = applied.apply()
    assert outcome.ok, outcome.failed
    left = f"ls {PROGRAM} {LIBRARY}/* {VERDICT} {FOLDER}/*.prom 2>/dev/null"
    assert applied.says(f"{left}; systemctl list-units --all --plain --no-legend 'gpuprov-health*'") == ""
    assert applied.apply()[1] == []
