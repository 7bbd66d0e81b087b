"""The lease program of a node, run on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprov.apply.node import lease


@pytest.fixture(autouse=True)
def _own_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the lease program use a temporary folder."""
    monkeypatch.setattr(lease, "FOLDER", str(tmp_path))
    monkeypatch.setattr(lease, "PATH", str(tmp_path / "lease.json"))
    monkeypatch.setattr(lease, "RUN", str(tmp_path / "run"))


class Clock:
    """Identity of a node's boot, seconds since that boot, and time of day."""

    def __init__(self) -> None:
        self.boot, self.awake, self.day = "first", 5000.0, 1_000_000.0

    def go(self, seconds: float) -> None:
        """Let time pass."""
        self.awake += seconds
        self.day += seconds

    def reboot(self, seconds: float = 60.0) -> None:
        """Begin another boot, 20 seconds after its start."""
        self.boot, self.awake, self.day = self.boot + "'", 20.0, self.day + seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the lease program's clocks by one that the test sets."""
    found = Clock()
    monkeypatch.setattr(lease, "now", lambda: (found.boot, found.awake))
    monkeypatch.setattr(lease, "time", SimpleNamespace(time=lambda: found.day))
    return found


def test_a_lease_is_one_runs_until_it_is_given_back_or_over() -> None:
    assert lease.take("one", "a@b", 60)["run"] == "one"
    assert lease.take("two", "c@d", 60)["run"] == "one"
    assert lease.take("one", "a@b", 60)["run"] == "one"
    lease.release("two")
    assert lease.take("two", "c@d", 60)["run"] == "one"
    lease.release("one")
    assert lease.take("two", "c@d", 0.01)["run"] == "two"
    time.sleep(0.02)
    assert lease.take("one", "a@b", 60)["run"] == "one"


@pytest.mark.parametrize("step", [-1, -3600, -1e9, 1, 3600, 1e9])
def test_a_step_of_the_clock_neither_ends_a_lease_nor_prolongs_it(clock: Clock, step: float) -> None:
    lease.take("one", "a@b", 60)
    clock.day += step
    clock.go(59)
    assert lease.take("two", "c@d", 60)["run"] == "one"
    assert lease.complaint("one") == ""
    clock.go(2)
    assert lease.take("two", "c@d", 60)["run"] == "two"


@pytest.mark.parametrize("step", [-3600, 0, 3600])
def test_a_hand_is_followed_after_its_time_whatever_the_clock_says(clock: Clock, step: float) -> None:
    lease.take("one/7.aa", "c@w1", 600)
    clock.day += step
    clock.go(lease.ATTEMPT_S - 1)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/7.aa"
    clock.go(2)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/8.bb"


def test_after_a_boot_a_lease_holds_as_long_once_more(clock: Clock) -> None:
    """Renew the full time of a lease after a boot, however long it took, so that its run can continue."""
    lease.take("one", "a@b", 600)
    clock.go(590)
    clock.reboot(seconds=3000)
    held = lease.take("two", "c@d", 60)
    assert (held["run"], held["left_s"], held["silent_s"]) == ("one", 580, 20)
    assert lease.renew("one", "a@b", 600)
    clock.go(599)
    assert lease.take("two", "c@d", 60)["run"] == "one"
    clock.go(2)
    assert lease.take("two", "c@d", 60)["run"] == "two"


def test_after_a_boot_nothing_holds_longer_than_it_was_given_for(clock: Clock) -> None:
    lease.take("one", "a@b", 600)
    clock.reboot()
    clock.day -= 1e6
    clock.awake = 601
    assert lease.current() is None
    clock.reboot()
    clock.awake = 4000  # longer than the time recorded in the first boot
    assert lease.current() is None


def test_since_when_a_run_has_the_node_stays(clock: Clock) -> None:
    lease.take("one", "a@b", 60)
    clock.go(30)
    assert lease.take("one", "a@b", 60)["had_s"] == 30
    clock.day += 1000
    clock.go(30)
    renewed = lease.renew("one", "a@b", 60)
    assert renewed
    assert (renewed["had_s"], renewed["left_s"]) == (60, 60)
    clock.reboot(seconds=100)
    assert lease.take("one", "a@b", 60)["had_s"] == 160


def test_a_lease_is_on_the_disk_before_it_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced = []
    monkeypatch.setattr(lease.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    lease.take("one", "a@b", 60)
    assert synced[-1] == (tmp_path / "lease.json").stat().st_size


def test_an_older_gpuprov_sees_that_a_node_is_leased(clock: Clock, tmp_path: Path) -> None:
    lease.take("one", "a@b", 60)
    result = json.loads((tmp_path / "lease.json").read_text())
    assert 0 < result["until"] - clock.day <= result["seconds"]
    assert result["since"] == clock.day


def test_the_time_since_a_boot_is_that_of_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the start of init: a container boots later than its machine."""
    boot, awake = lease.now()
    assert len(boot) == 36
    assert 0 < awake <= time.clock_gettime(time.CLOCK_BOOTTIME)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("x\n")
    (tmp_path / "uptime").write_text("5000.25 7.00\n")
    (tmp_path / "1").mkdir()
    begun = 4000 * os.sysconf("SC_CLK_TCK")
    (tmp_path / "1/stat").write_text(f"1 (a ) b) S {' '.join(['0'] * 18)} {begun} 0 0\n")
    monkeypatch.setattr(lease, "PROC", str(tmp_path))
    assert lease.now() == ("x", 1000.25)


def test_only_what_nobody_had_in_between_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    lease.take("one", "a@b", -1)
    assert lease.current() is None
    assert lease.renew("one", "a@b", -1)
    assert lease.take("two", "c@d", 60)["run"] == "two"
    renewed = lease.renew("one", "a@b", 60)
    assert renewed
    assert renewed["run"] == "two"
    lease.release("two")
    assert lease.renew("one", "a@b", 60) is None


GIVEN = {"run": "one", "until": 1e9, "seconds": 600}
NEVER_ENDING = [
    json.dumps({**GIVEN, **wrong})
    for wrong in (
        {"seconds": 1e300},
        {"until": float("nan")},
        {"boot": "first"},
        {"boot": "first", "renewed": float("-inf")},
        {"boot": "first", "renewed": "x"},
    )
]


@pytest.mark.parametrize(
    "text",
    [
        '{"run": "one", "unt',
        "",
        "7",
        "[]",
        "{}",
        '{"run": 7, "until": 1, "seconds": 1}',
        "null",
        *NEVER_ENDING,
    ],
)
def test_half_a_lease_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "lease.json").write_text(text)
    assert lease.current() is None
    assert lease.take("one", "a@b", 60)["run"] == "one"


def test_a_lease_of_an_older_gpuprov_does_not_say_since_when(tmp_path: Path) -> None:
    old = {"run": "one", "holder": "a@b", "seconds": 600, "until": time.time() + 500}
    (tmp_path / "lease.json").write_text(json.dumps(old))
    held = lease.take("two", "c@d", 60)
    assert (held["run"], held.get("since")) == ("one", None)


def test_a_hand_has_what_its_run_has_and_passes_it_back() -> None:
    lease.take("one", "a@b", 600)
    assert lease.take("one/7.aa", "c@w1", 600)["run"] == "one/7.aa"
    renewed = lease.renew("one", "a@b", 600)
    assert renewed
    assert renewed["run"] == "one/7.aa"
    assert lease.take("two", "e@f", 60)["run"] == "one/7.aa"
    assert lease.complaint("one/7.aa") == ""
    assert "leased by c@w1, run one/7.aa" in lease.complaint("one/8.bb")
    passed = lease.pass_on("one/7.aa", "c@w1", 600)
    assert passed
    assert passed["run"] == "one"


def test_the_next_hand_waits_until_the_last_one_is_silent(clock: Clock) -> None:
    lease.take("one/7.aa", "c@w1", 600)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/7.aa"
    clock.go(lease.ATTEMPT_S - 5)
    lease.renew("one/7.aa", "c@w1", 600)
    clock.go(10)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/7.aa"
    assert lease.take("two", "e@f", 60)["run"] == "one/7.aa"
    clock.go(lease.ATTEMPT_S)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/8.bb"


def test_a_hand_that_thaws_after_a_later_one_has_nothing_any_more(clock: Clock) -> None:
    lease.take("one/7.aa", "c@w1", 600)
    clock.go(2 * lease.ATTEMPT_S)
    lease.take("one/8.bb", "c@w2", 600)
    held = lease.renew("one/7.aa", "c@w1", 600)
    assert held
    assert held["run"] == "one/8.bb"
    assert lease.complaint("one/7.aa")
    lease.pass_on("one/7.aa", "c@w1", 600)
    lease.pass_on("one/8.bb", "c@w2", 600)
    assert lease.complaint("one") == ""


def test_a_hand_that_was_frozen_before_it_took_the_node_does_not_get_it_after_a_later_one() -> None:
    lease.take("one/8.bb", "c@w2", 600)
    lease.pass_on("one/8.bb", "c@w2", 600)
    with pytest.raises(OSError, match="a later attempt of this run has changed the node"):
        lease.take("one/7.aa", "c@w1", 600)
    lease.release("one")
    with pytest.raises(OSError, match="a later attempt"):
        lease.take("one/7.aa", "c@w1", 600)
    assert lease.current() is None
    assert lease.take("two/3.cc", "c@w1", 600)["run"] == "two/3.cc"


def test_a_file_that_everybody_can_open_is_no_lock(tmp_path: Path) -> None:
    """Lock files must not be readable by other users, who could otherwise hold a shared lock for ever."""
    lease.take("one", "a@b", 60)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        if not stat.S_IMODE(path.stat().st_mode) & 0o044 or path.parent.name == "locks":
            continue
        handle = os.open(path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
    taking = threading.Thread(target=lease.take, args=("one", "a@b", 60), daemon=True)
    taking.start()
    taking.join(5)
    assert not taking.is_alive(), "the lock can be held by anybody"
    lock = tmp_path / "run/locks/lease"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (lock.parent, lock)] == [0o700, 0o600]


def test_a_lock_that_is_not_given_back_is_reported_with_who_has_it(tmp_path: Path) -> None:
    lease.take("one", "a@b", 60)
    program = "import fcntl,sys; f=open(sys.argv[1]); fcntl.flock(f,2); print(flush=True); input()"
    words = [sys.executable, "-c", program, str(tmp_path / "run/locks/lease")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(OSError, match=rf"locked by python\S* \(pid {holder.pid}\) for more than") as said:  # noqa: SIM117
            with lease.alone("lease", 0.2):
                pass
        assert f"`ps -fp {holder.pid}`" in str(said.value)
        holder.communicate(b"")
    assert lease.take("one", "a@b", 60)["run"] == "one"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_have_their_modes_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(lease, "FOLDER", str(tmp_path / "var/lib"))
    monkeypatch.setattr(lease, "PATH", str(tmp_path / "var/lib/lease.json"))
    before = os.umask(umask)
    try:
        lease.take("one", "a@b", 60)
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")
    }
    folders = {"var": 0o755, "var/lib": 0o755, "run": 0o755, "run/locks": 0o700}
    assert modes == {**folders, "run/locks/lease": 0o600, "var/lib/lease.json": 0o644}


@pytest.mark.parametrize("folder", ["", "run"])
def test_folders_that_others_may_write_are_refused(tmp_path: Path, folder: str) -> None:
    lease.take("one", "a@b", 60)
    (tmp_path / folder).chmod(0o777)
    with pytest.raises(OSError, match=r"other users may write it.*`chmod go-w "):
        lease.take("one", "a@b", 60)
    (tmp_path / folder).chmod(0o755)
    assert lease.take("one", "a@b", 60)["run"] == "one"
