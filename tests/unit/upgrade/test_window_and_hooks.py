"""Maintenance windows, predefined hooks with recorded tools, and generated schedules."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpuprov.cli import apply
from gpuprov.errors import InvalidInput
from gpuprov.inventory.wheel import Wheel
from gpuprov.model.connection import Connection
from gpuprov.model.rollout import DAYS, Hook, Window
from gpuprov.ssh.transport import Target
from gpuprov.upgrade import hooks, schedule
from gpuprov.upgrade.hooks import command
from gpuprov.upgrade.known_hooks import KNOWN_HOOKS
from gpuprov.upgrade.window import is_open
from tests.unit.programs import write_program

WHEEL = Wheel("https://mirror.example/gpuprov-1-py3-none-any.whl", "0" * 64)
SATURDAY = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "moment", "opened"),
    [
        (Window(start="22:00", end="04:00", days=["sat"]), SATURDAY, True),
        (Window(start="22:00", end="04:00", days=["sat"]), SATURDAY + timedelta(hours=4), True),
        (Window(start="22:00", end="04:00", days=["sat"]), SATURDAY + timedelta(hours=5), False),
        (Window(start="22:00", end="04:00", days=["sun"]), SATURDAY, False),
        (Window(start="22:00", end="04:00", days=["sun"]), SATURDAY + timedelta(hours=3), False),
        (Window(start="01:00", end="02:00", zone="Europe/Berlin"), SATURDAY + timedelta(hours=1), True),
        (None, SATURDAY, True),
    ],
)
def test_windows(window: Window | None, moment: datetime, opened: bool) -> None:
    """Check whether a maintenance window is open at a moment."""
    assert is_open(window, moment) is opened


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 7 * 1440 - 1))
def test_a_window_is_open_as_long_as_it_says(start: int, end: int, at: int) -> None:
    assume(start != end)
    window = Window(start=f"{start // 60:02}:{start % 60:02}", end=f"{end // 60:02}:{end % 60:02}")
    since = (at - start) % 1440
    assert is_open(window, datetime(2026, 1, 26, tzinfo=UTC) + timedelta(minutes=at)) is (
        since < (end - start) % 1440
    )


def test_a_window_has_times_and_a_zone() -> None:
    for wrong in (
        {"start": "25:00", "end": "1:00"},
        {"start": "01:00", "end": "02:00", "zone": "Mars"},
        {"start": "01:00", "end": "02:00", "zone": "Europe"},
    ):
        with pytest.raises(ValidationError):
            Window(**wrong)


def test_a_process_that_keeps_the_output_open_delays_no_hook() -> None:
    begun = time.monotonic()
    assert hooks._here("setsid sleep 30 & exit 0", {}, 20) is None
    assert hooks._here("setsid sleep 30 & echo bad; exit 3", {}, 20) == "the hook ended with 3: bad"
    assert hooks._here("setsid sleep 30 & sleep 30", {}, 0.5) == "the hook did not end within 0.5 s"
    waiting = "echo drained; echo job 7 is running; sleep 30"
    assert hooks._here(waiting, {}, 0.5) == "the hook did not end within 0.5 s: job 7 is running"
    assert time.monotonic() - begun < 20


def test_the_output_of_a_hook_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "OUTPUT_BYTES", 1000)
    assert hooks._here("yes", {}, 30) == "the hook was ended: it answered more than 0 MB"


def test_a_hook_has_no_terminal_and_no_input() -> None:
    assert hooks._here('test "$(ps -o sid= -p $$)" -eq $$ && ! read line', {}, 30) is None


def test_a_hook_on_a_node_does_not_get_the_password_that_sudo_leaves(tmp_path: Path) -> None:
    write_program(tmp_path / "id", "echo 0")
    line = hooks._line("cat; echo $A; false", {"A": "1"}, hooks._SUDO_ASKED)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", line], input=b"S3cret\n", capture_output=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (1, b"1\n")


def test_an_unknown_hook_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="'slurmm'; expected one of slurm, kubernetes"):
        command(Hook(use="slurmm"), "drain")
    with pytest.raises(InvalidInput, match="expected one of lvm"):
        command(Hook(use="slurm"), "snapshot")
    assert command(Hook.model_validate("true"), "drain") == ("true", "controller")


# Name → script that simulates the tool; each call is recorded in $CALLS.
TOOLS = {
    "squeue": "[ -e $CALLS.asked ] || { touch $CALLS.asked; echo '  7 gpu job user R 1:00 1 gpu01'; }",
    "sleep": ":",
    "findmnt": 'case "$*" in *"--mountpoint /") echo /dev/vg0/root;; *) echo /;; esac',  # a user's mount
    "lvs": 'case "$*" in *vg_name*/) exit 5;; *vg_name*) echo "  vg0";; *) [ -e $CALLS.made ];; esac',
    "lvcreate": "touch $CALLS.made",
    "zfs": "case $1 in list) [ -e $CALLS.made ];; *) touch $CALLS.made;; esac",
    "aws": "case $2 in describe-snapshots) [ ! -e $CALLS.made ] || echo snap-1;; "
    "describe-instances) echo i-0abc;; create-snapshots) touch $CALLS.made;; esac",
    "gcloud": "case $3 in describe) [ -e $CALLS.made ] && echo READY;; *) touch $CALLS.made;; esac",
    "az": 'case "$1 $2" in "vm list") printf "rg1\\t/disks/os1\\n";; '
    '"snapshot show") [ -e $CALLS.made ] && echo Succeeded;; *) touch $CALLS.made;; esac',
    # $CALLS.node has the node's state and reason.
    "scontrol": """case $* in
    show*) read -r state reason <$CALLS.node; echo "NodeName=gpu01 Arch=x86_64"
        [ ! -e $CALLS.os ] || while IFS= read -r line; do echo "$line"; done <$CALLS.os
        echo "   OS=Linux Boards=1"
        echo "   State=$state ThreadsPerCore=1"
        [ ! -e $CALLS.extra ] || while IFS= read -r line; do echo "$line"; done <$CALLS.extra
        [ -z "$reason" ] || echo "   Reason=$reason [root@2026-11-26T04:14:51]";;
    *State=DRAIN*) echo "IDLE+DRAIN ${*#*Reason=}" >$CALLS.node;;
    *State=RESUME) echo IDLE >$CALLS.node;;
esac""",
    "btrfs": ":",
    "kubectl": "case $1 in get) echo true:1-2-upgrade-run1;; esac",
}
SAYS = {
    ("slurm", "drain"): "scontrol update NodeName=gpu01 State=DRAIN Reason=gpuprov:upgrade:1-2-upgrade-run1",
    ("slurm", "resume"): "scontrol update NodeName=gpu01 State=RESUME",
    ("slurm", "held"): (
        "scontrol update NodeName=gpu01 State=DRAIN"
        " Reason=gpuprov:upgrade:1-2-upgrade-run1 verify: clocks.gpu failed"
    ),
    ("kubernetes", "drain"): "kubectl drain gpu01 --ignore-daemonsets --delete-emptydir-data",
    ("kubernetes", "resume"): "kubectl patch node gpu01 --type=merge --patch",
    (
        "lvm",
        "snapshot",
    ): "lvcreate --snapshot --name gpuprov-1-2-upgrade-run1 --extents 20%ORIGIN /dev/vg0/root",
    ("btrfs", "snapshot"): "btrfs subvolume snapshot -r / /.gpuprov-1-2-upgrade-run1",
    ("zfs", "snapshot"): "zfs snapshot /dev/vg0/root@gpuprov-1-2-upgrade-run1",
    ("aws", "snapshot"): "aws ec2 create-snapshots --instance-specification InstanceId=i-0abc",
    (
        "gcloud",
        "snapshot",
    ): "gcloud compute snapshots create gpuprov-1-2-upgrade-run1-gpu01 --source-disk gpu01",
    ("azure", "snapshot"): (
        "az snapshot create --resource-group rg1 --name gpuprov-1-2-upgrade-run1-gpu01 --source /disks/os1"
    ),
}


def call(folder: Path, text: str, **otherwise: str) -> tuple[int, list[str]]:
    """Run a hook with only the simulated tools; return its exit code and the calls of the tools."""
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        for name, body in {**TOOLS, **otherwise}.items():
            write_program(tools / name, f'echo "{name} $*" >>$CALLS\n{body}')
        for real in ("sh", "grep", "touch"):
            (tools / real).symlink_to(shutil.which(real) or "")
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    if not (node := folder / "calls.node").exists():
        node.write_text("IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1\n")
    environment = {"PATH": str(tools), "CALLS": str(calls), "GPUPROV_NODE": "gpu01"}
    environment |= {"GPUPROV_ADDRESS": "10.1.2.3", "GPUPROV_RUN": "1-2-upgrade-run1", "GPUPROV_TIMEOUT": "60"}
    environment["GPUPROV_REASON"] = "verify: clocks.gpu failed"
    done = subprocess.run(
        ["/bin/sh", "-c", text], env=environment, capture_output=True, check=False, timeout=20
    )
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize(("name", "moment"), SAYS)
def test_a_ready_hook_tells_its_tool_once(tmp_path: Path, name: str, moment: str) -> None:
    code, calls = call(tmp_path, KNOWN_HOOKS[name].commands[moment])
    assert code == 0, calls
    assert any(line.startswith(SAYS[name, moment]) for line in calls), calls
    if moment == "snapshot" and name != "btrfs":  # btrfs searches for its snapshot in / itself
        code, calls = call(tmp_path, KNOWN_HOOKS[name].commands[moment])
        assert code == 0
        assert not any(line.startswith(SAYS[name, moment]) for line in calls), "a second snapshot"


def test_slurm_waits_for_running_jobs(tmp_path: Path) -> None:
    _, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands["drain"])
    assert [line.split()[0] for line in calls] == ["scontrol", "scontrol", "squeue", "sleep", "squeue"]


@pytest.mark.parametrize(
    ("before", "drained", "after"),
    [
        ("IDLE", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1", "IDLE"),
        ("MIXED+PLANNED", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1", "IDLE"),
        ("IDLE gpuprov:upgrade:1-2-upgrade-run0", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1", "IDLE"),
        ("IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-0", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1", "IDLE"),
        ("IDLE+DRAIN gpuprov:upgrade:1-2-rollback-0", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1", "IDLE"),
        *((each, each, each) for each in (
            "IDLE+DRAIN gpuprov:upgrade:1-2-repair-run1", "IDLE+DRAIN gpuprov:upgrade:1-2-accept-run1",
            "IDLE+DRAIN bad fan", "MIXED+DRAIN gpuprov:health: Xid 79", "DOWN* Not responding", "IDLE+DRAIN",
            "UNKNOWN+DRAIN+INVALID_REG Low RealMemory",
        )),
    ],
)  # fmt: skip
def test_slurm_resumes_only_what_it_drained(tmp_path: Path, before: str, drained: str, after: str) -> None:
    (tmp_path / "calls.node").write_text(f"{before}\n")
    for moment, then in (("drain", drained), ("resume", after)):
        code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])
        assert code == 0, calls
        assert (tmp_path / "calls.node").read_text() == f"{then}\n"


@pytest.mark.parametrize("moment", ["resume", "held"])
@pytest.mark.parametrize(
    "reason", ["bad fan", "gpuprov:upgrade:1-2-upgrade-run10", "gpuprov:upgrade:1-2-upgrade-run2"]
)
def test_slurm_leaves_a_node_whose_reason_changed_meanwhile(tmp_path: Path, moment: str, reason: str) -> None:
    (tmp_path / "calls.node").write_text(f"IDLE+DRAIN {reason}\n")
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])
    assert (code, len(calls)) == (0, 1), calls


def test_slurm_resumes_a_node_that_says_why_it_was_held(tmp_path: Path) -> None:
    node = tmp_path / "calls.node"
    for moment, then in (
        ("drain", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1"),
        ("held", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1 verify: clocks.gpu failed"),
        ("drain", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1"),
        ("held", "IDLE+DRAIN gpuprov:upgrade:1-2-upgrade-run1 verify: clocks.gpu failed"),
        ("resume", "IDLE"),
    ):
        assert call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])[0] == 0
        assert node.read_text() == f"{then}\n"


def test_a_node_in_service_has_no_reason_in_slurm(tmp_path: Path) -> None:
    (tmp_path / "calls.node").write_text("IDLE\n")
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands["held"])
    assert (code, len(calls)) == (0, 1), calls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("verify: clocks.gpu failed", "verify: clocks.gpu failed"),
        ("apply: a\n   State=IDLE\tb\x1b[2J\u2028é", "apply: a State=IDLE b?[2J ?"),
        ("x" * 999, "x" * 200),
    ],
)
def test_the_reason_of_a_hook_is_a_line_of_printable_text(text: str, said: str) -> None:
    node, hook = Target("gpu01", "10.1.2.3", Connection()), Hook(run="true")
    context: Any = SimpleNamespace(id="1-2-upgrade-run1")
    assert hooks._environment(context, node, hook, {"gpu01": text})["GPUPROV_REASON"] == said
    assert "GPUPROV_REASON" not in hooks._environment(context, node, hook, {})


@pytest.mark.parametrize("verb", ["accept", "upgrade", "rollback"])
def test_no_other_run_takes_over_what_a_repair_left_out(tmp_path: Path, verb: str) -> None:
    left = "IDLE+DRAIN gpuprov:upgrade:1-2-repair-run0\n"
    for hook in (KNOWN_HOOKS["slurm"].commands[moment] for moment in ("drain", "resume")):
        (tmp_path / "calls.node").write_text(left)
        assert call(tmp_path, f"GPUPROV_RUN=1-2-{verb}-run1\n{hook}")[0] == 0
        assert (tmp_path / "calls.node").read_text() == left
    drain = KNOWN_HOOKS["slurm"].commands["drain"]
    assert call(tmp_path, f"GPUPROV_RUN=1-2-repair-run1\n{drain}")[0] == 0
    assert (tmp_path / "calls.node").read_text() == "IDLE+DRAIN gpuprov:upgrade:1-2-repair-run1\n"


@pytest.mark.parametrize("moment", ["drain", "resume"])
@pytest.mark.parametrize(
    "text",
    [
        "   OS=Linux State=IDLE #1 SMP",
        "   OS=Linux State=DRAIN Reason=gpuprov:upgrade:1-2-upgrade-run1 #1",
        "   OS=Linux\n   Reason=gpuprov:upgrade:1-2-upgrade-run1 [root]",
    ],
)
def test_the_text_of_a_node_is_not_its_state_in_slurm(tmp_path: Path, moment: str, text: str) -> None:
    (tmp_path / "calls.os").write_text(f"{text}\n")
    for before in ("IDLE+DRAIN bad memory", "IDLE+DRAIN"):
        (tmp_path / "calls.node").write_text(f"{before}\n")
        code, _ = call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])
        assert (code, (tmp_path / "calls.node").read_text()) == (0, f"{before}\n")


@pytest.mark.parametrize("moment", ["drain", "resume"])
def test_two_states_in_slurm_are_none(tmp_path: Path, moment: str) -> None:
    (tmp_path / "calls.os").write_text("   OS=Linux\n   State=IDLE ThreadsPerCore=1\n")
    (tmp_path / "calls.node").write_text("IDLE+DRAIN bad memory\n")
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])
    assert (code, len(calls)) == (1, 1), calls


@pytest.mark.parametrize("moment", ["drain", "resume"])
@pytest.mark.parametrize(
    "text", ["   Reason=gpuprov:upgrade:1-2-upgrade-run1 [root@2026-11-26T04:14:51]", "x" * 70_000]
)
def test_nor_are_two_reasons_and_long_texts(tmp_path: Path, moment: str, text: str) -> None:
    """Put the text of a slurmd (`--extra`) after the state."""
    (tmp_path / "calls.extra").write_text(f"   Extra=rack 7\n{text}\n")
    (tmp_path / "calls.node").write_text("IDLE+DRAIN bad memory\n")
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands[moment])
    assert (code, len(calls)) == (1, 1), calls


ASKED = [(name, moment, SAYS[name, moment].split()[0]) for name, moment in SAYS]
ASKED += [("slurm", "drain", "squeue"), ("lvm", "snapshot", "lvs"), ("lvm", "snapshot", "findmnt")]
ASKED += [("zfs", "snapshot", "findmnt")]


@pytest.mark.parametrize(("name", "moment", "tool"), ASKED)
@pytest.mark.parametrize("status", [1, 127, 255])
def test_a_ready_hook_fails_when_a_tool_does(
    tmp_path: Path, name: str, moment: str, tool: str, status: int
) -> None:
    code, calls = call(tmp_path, KNOWN_HOOKS[name].commands[moment], **{tool: f"exit {status}"})
    assert code != 0, calls


def test_slurm_fails_when_a_later_question_does(tmp_path: Path) -> None:
    answers = "[ ! -e $CALLS.asked ] || exit 1; touch $CALLS.asked; echo '7 gpu job user R 1:00 1 gpu01'"
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands["drain"], squeue=answers)
    programs = [line.split()[0] for line in calls]
    assert (code, programs) == (1, ["scontrol", "scontrol", "squeue", "sleep", "squeue"])


@pytest.mark.parametrize("state", ["CF", "R", "S", "ST", "CG"])
def test_slurm_waits_for_jobs_in_every_state_that_holds_the_node(tmp_path: Path, state: str) -> None:
    asked = rf"""[ -e $CALLS.asked ] && exit; touch $CALLS.asked
case "$*" in *[=,]{state},*|*[=,]{state}\ *) echo "7 gpu job user {state} 1:00 1 gpu01";; esac"""
    code, calls = call(tmp_path, KNOWN_HOOKS["slurm"].commands["drain"], squeue=asked)
    assert (code, len(calls)) == (0, 5), calls


SAVED_BADLY = {
    "gcloud": "case $3 in describe) echo FAILED;; *) exit 1;; esac",
    "azure": 'case "$1 $2" in "vm list") printf "rg1\\t/disks/os1\\n";; "snapshot show") echo Failed;; '
    "*) exit 1;; esac",
    "aws": "case $2 in describe-snapshots) case $* in *status,Values=*) ;; *) echo snap-1;; esac;; "
    "describe-instances) echo i-0abc;; *) exit 1;; esac",
}


@pytest.mark.parametrize("name", SAVED_BADLY)
def test_a_snapshot_that_failed_is_none(tmp_path: Path, name: str) -> None:
    tool = SAYS[name, "snapshot"].split()[0]
    code, calls = call(tmp_path, KNOWN_HOOKS[name].commands["snapshot"], **{tool: SAVED_BADLY[name]})
    assert code != 0, calls


@pytest.mark.parametrize("found", ["", "rg1\\t/disks/os1\\nrg2\\t/disks/os2\\n"])
def test_azure_takes_no_other_machines_disk(tmp_path: Path, found: str) -> None:
    tool = f'case "$1 $2" in "vm list") printf "{found}";; "snapshot show") exit 1;; esac'
    code, calls = call(tmp_path, KNOWN_HOOKS["azure"].commands["snapshot"], az=tool)
    assert (code, [line for line in calls if "snapshot create" in line]) == (1, [])


def test_every_ready_command_is_tried_here() -> None:
    tried = {(name, moment) for name, ready in KNOWN_HOOKS.items() for moment in ready.commands}
    assert tried == set(SAYS)


FLEET = Path("/srv/fleet")


def test_the_timer_is_what_systemd_reads(tmp_path: Path) -> None:
    window = Window(days=["sat", "sun"], start="22:00", end="04:00", zone="Europe/Berlin")
    job = schedule.upgrade(FLEET, FLEET / "next.lock.yml", window, notify="mail -s 'gpuprov 50%' ops")
    texts = schedule.files(replace(job, folder=tmp_path), "systemd", "/usr/bin/true")
    assert "OnCalendar=Sat,Sun *-*-* 22:00:00 Europe/Berlin" in texts["gpuprov-upgrade.timer"]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in texts]
    checked = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False
    )
    assert str(tmp_path) not in checked.stderr.replace("Unit file", ""), checked.stderr


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_a_hook_gets_what_there_is_to_say_and_the_exit_code_stays(
    tmp_path: Path, forge: schedule.Kind
) -> None:
    program = write_program(tmp_path / "gpuprov", "echo 'node1 100% gone'; exit 3")
    job = schedule.drift(tmp_path, notify=f"sh -c 'cat; echo code $GPUPROV_EXIT' >{tmp_path}/told")
    job = replace(job, wheel=WHEEL)
    [text] = schedule.files(job, forge, str(program)).values()
    document = yaml.safe_load(text)
    if forge == "github":
        [step] = [each["run"] for each in document["jobs"]["drift"]["steps"] if each.get("id") == "look"]
    else:
        [step] = document["gpuprov-drift"]["script"]
    done = subprocess.run(["/bin/sh", "-e", "-c", step], check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert (tmp_path / "told").read_text() == "node1 100% gone\ncode 3\n"


def test_text_of_nodes_is_no_command_for_github(tmp_path: Path) -> None:
    """Have GitHub's runner take commands again only after a mark that the text cannot have."""
    program = write_program(tmp_path / "gpuprov", "printf '  ::add-mask::gpu'; exit 3")
    job = replace(schedule.drift(tmp_path, None), wheel=WHEEL)
    [text] = schedule.files(job, "github", str(program)).values()
    [step] = [
        each["run"] for each in yaml.safe_load(text)["jobs"]["drift"]["steps"] if each.get("id") == "look"
    ]
    marks = set()
    for _twice in range(2):
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", step], check=False, cwd=tmp_path, capture_output=True, text=True
        )
        said = re.fullmatch(
            r"::stop-commands::([0-9a-f]{32})\n  ::add-mask::gpu\n::([0-9a-f]{32})::\n", done.stdout
        )
        assert done.returncode == 3
        assert said is not None, done.stdout
        assert said[1] == said[2]
        marks.add(said[1])
    assert len(marks) == 2


def test_a_forges_job_keeps_what_was_said_and_junit(tmp_path: Path) -> None:
    program = write_program(tmp_path / "gpuprov", 'echo "node1: $*"; exit 3')
    for forge in ("github", "gitlab"):
        job = replace(schedule.drift(tmp_path, None), wheel=WHEEL)
        [text] = schedule.files(job, forge, str(program)).values()
        [command] = re.findall(r"code=0\n(.*)\n", text)
        done = subprocess.run(["/bin/sh", "-c", f"code=0; {command}; exit $code"], check=False, cwd=tmp_path)
        assert done.returncode == 3
        assert (tmp_path / "gpuprov.txt").read_text() == "node1: drift --junit gpuprov.xml\n"
        assert "gpuprov.xml" in text or "gpuprov.*" in text


@pytest.mark.parametrize(
    ("found", "posted"),
    [
        ("[]", "--data-urlencode description@gpuprov.md --data-urlencode title=gpuprov drift URL/issues"),
        (
            '[{"iid": 9, "title": "not gpuprov drift"}, {"iid": 7, "title": "gpuprov drift"}]',
            "--data-urlencode body@gpuprov.md URL/issues/7/notes",
        ),
    ],
)
def test_gitlab_adds_to_the_open_issue(tmp_path: Path, found: str, posted: str) -> None:
    write_program(
        tmp_path / "curl",
        f'echo "$*" >>{tmp_path}/calls\ncat >>{tmp_path}/config\n'
        f"case $* in *--get*) echo '{found}';; */user) echo '{{\"id\": 5}}';; esac",
    )
    job = replace(schedule.drift(tmp_path, None), wheel=WHEEL)
    [text] = schedule.files(job, "gitlab", "gpuprov").values()
    [step] = yaml.safe_load(text)["gpuprov-drift"]["after_script"]
    told = {
        "CI_JOB_STATUS": "failed",
        "GPUPROV_TOKEN": "glpat-1",
        "CI_API_V4_URL": "https://g/v4",
        "CI_PROJECT_ID": "1",
    }
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **told}
    subprocess.run(["/bin/sh", "-e", "-c", step], check=True, env=environment, cwd=tmp_path)
    who, look, post = (tmp_path / "calls").read_text().splitlines()
    assert who.endswith("https://g/v4/user")
    assert "search=gpuprov drift https://g/v4/projects/1/issues?state=opened&in=title&author_id=5&" in look
    assert post.endswith(posted.replace("URL", "https://g/v4/projects/1"))
    assert "glpat-1" not in who + look + post  # other users see arguments
    header = 'header = "PRIVATE-TOKEN: glpat-1"'
    assert set((tmp_path / "config").read_text().splitlines()) == {header}


@pytest.mark.parametrize(
    ("author", "title", "call"),
    [
        ("github-actions[bot]", "gpuprov drift", "issue comment 7 --body-file gpuprov.md"),
        ("eve", "gpuprov drift", "issue create --title gpuprov drift --body-file gpuprov.md"),
        ("github-actions[bot]", "Re: gpuprov drift", "issue create --title gpuprov drift"),
    ],
)
def test_github_adds_to_its_own_open_issue(tmp_path: Path, author: str, title: str, call: str) -> None:
    """Let jq select the issue, as gh does."""
    document = json.dumps([{"number": 7, "title": title, "user": {"login": author}}])
    select = f"case $* in *--jq*) for last; do :; done; jq -r \"$last\" <<'END'\n{document}\nEND\n;; esac"
    write_program(tmp_path / "gh", f'echo "$*" >>{tmp_path}/calls\n{select}')
    [text] = schedule.files(
        replace(schedule.drift(tmp_path, None), wheel=WHEEL), "github", "gpuprov"
    ).values()
    [step] = [
        each["run"]
        for each in yaml.safe_load(text)["jobs"]["drift"]["steps"]
        if "GH_TOKEN" in each.get("env", {})
    ]
    (tmp_path / "gpuprov.txt").write_text("x")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r"}
    subprocess.run(["/bin/sh", "-e", "-c", step], check=True, env=environment, cwd=tmp_path)
    look, post = (tmp_path / "calls").read_text().splitlines()
    assert "repos/o/r/issues?state=open" in look
    assert post.startswith(call)


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_text_of_nodes_in_an_issue_is_fenced_and_fits(tmp_path: Path, forge: str) -> None:
    """Run the line that writes the issue: one node's long value prevented the issue about all nodes."""
    [text] = schedule.files(replace(schedule.drift(tmp_path, None), wheel=WHEEL), forge, "gpuprov").values()
    [line] = {each.strip() for each in text.splitlines() if each.endswith(">gpuprov.md")}
    others = "\nof another node" + "\nmore" * 30_000
    (tmp_path / "gpuprov.txt").write_text("```\n@all <details>\n" + "€" * 70_000 + others)
    subprocess.run(["/bin/bash", "-eo", "pipefail", "-c", line], check=True, cwd=tmp_path)
    found = (tmp_path / "gpuprov.md").read_text(encoding="utf-8")
    assert found.startswith("```text\n'''\n@all <details>\n€")
    assert "€\nof another node\nmore\n" in found
    assert found.endswith("\n```\n")
    assert 50_000 < len(found) < 65_536
    assert found.count("`") == 6


def test_a_service_has_a_user_of_its_own_and_metrics(tmp_path: Path) -> None:
    job = replace(schedule.drift(tmp_path, None), metrics=tmp_path / "text/gpuprov.prom")
    unit = schedule.files(job, "systemd", "/usr/bin/true")["gpuprov-drift.service"]
    assert "User=gpuprov\nStateDirectory=gpuprov-controller\n" in unit
    assert f"--prometheus {tmp_path}/text/gpuprov.prom" in unit
    assert f"ReadWritePaths=-{tmp_path}/text" in unit
    alone = schedule.files(replace(job, user="root"), "systemd", "/usr/bin/true")["gpuprov-drift.service"]
    assert "User=" not in alone


def test_a_percent_sign_of_a_folder_is_no_specifier() -> None:
    job = replace(schedule.drift(Path("/srv/50%n"), None), metrics=Path("/srv/%h/gpuprov.prom"))
    unit = schedule.files(job, "systemd", "/usr/bin/true")["gpuprov-drift.service"]
    assert "WorkingDirectory=/srv/50%%n\n" in unit
    assert "ReadWritePaths=-/srv/%%h\n" in unit


def test_modules_are_made_before_drift_looks() -> None:
    job = schedule.modules(FLEET, None)
    texts = schedule.files(job, "systemd", "/usr/bin/gpuprov")
    assert "/usr/bin/gpuprov apply --role nvidia_driver --yes" in texts["gpuprov-modules.service"]
    assert "OnCalendar=*-*-* 02:17:00 UTC" in texts["gpuprov-modules.timer"]
    assert job.at < schedule.drift(FLEET, None).at
    words = [word for word in job.words[1:] if word.startswith("-")]
    known = {option for each in apply.command.params for option in each.opts}
    assert set(words) <= known


@pytest.mark.parametrize(("code", "mail"), [(0, ""), (3, "node1 100% gone\n")])
def test_cron_prints_only_what_differs(tmp_path: Path, code: int, mail: str) -> None:
    program = write_program(tmp_path / "gpuprov", f"echo 'node1 100% gone'; exit {code}")
    [cron] = schedule.files(schedule.drift(tmp_path, None), "cron", str(program)).values()
    line = cron.splitlines()[1].split(maxsplit=5)[5].replace("\\%", "%")  # as cron reads it
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, mail)


def test_a_page_is_written_where_the_service_may_write(tmp_path: Path) -> None:
    job = replace(schedule.drift(tmp_path, None), page=tmp_path / "www/fleet.html")
    unit = schedule.files(job, "systemd", "/usr/bin/true")["gpuprov-drift.service"]
    assert f"drift --html {tmp_path}/www/fleet.html" in unit
    assert f"ReadWritePaths=-{tmp_path}/www\n" in unit


def test_cron_and_ci() -> None:
    """Check the line of cron; a CI schedule with a time zone, or an upgrade without a window, is refused."""
    [cron] = schedule.files(schedule.drift(FLEET, None), "cron", "/usr/bin/gpuprov").values()
    assert cron.startswith("CRON_TZ=UTC\n17 3 * * * cd /srv/fleet && ")
    window = Window(days=list(DAYS[:2]), start="22:05", end="04:00", zone="Europe/Berlin")
    with pytest.raises(InvalidInput, match="the only time zone of CI schedules"):
        schedule.files(schedule.upgrade(FLEET, FLEET, window, None), "github", "gpuprov")
    with pytest.raises(InvalidInput, match="no window"):
        schedule.upgrade(FLEET, FLEET, None, None)


def test_active_checks_follow_the_nightly_drift(tmp_path: Path) -> None:
    job = schedule.accept(tmp_path, "25%", None)
    unit = schedule.files(job, "systemd", "/usr/bin/gpuprov")["gpuprov-accept.service"]
    assert "/usr/bin/gpuprov accept --share 25%%" in unit, "systemd would read a single %"
    look = schedule.doctor(tmp_path, None)
    assert (
        "gpuprov doctor --all"
        in schedule.files(look, "systemd", "/usr/bin/gpuprov")["gpuprov-doctor.service"]
    )
    assert schedule.drift(tmp_path, None).at < job.at < look.at
    [cron] = schedule.files(job, "cron", "/usr/bin/gpuprov").values()
    assert "--share '25\\%'" in cron or "--share 25\\%" in cron, cron
