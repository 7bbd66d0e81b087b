"""Program of the first boot with simulated steps: each result is a state that names the next action."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov.inventory.firstboot.node import first_boot
from gpuprov.inventory.firstboot.node.first_boot import POSTPONED, main
from tests.hook import Hook, listening
from tests.unit.programs import write_program

LOCK = "the lock\n"
VERIFIED = {"nodes": [{"name": "here", "checks": []}]}


class Machine:
    """A folder that simulates a machine; fake gpuprov and systemctl record their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: dict[str, Any] = {
            "node": "here",
            "lock": {"path": str(folder / "lock"), "url": None, "sha256": sha256(LOCK)},
            "install": {"wheel": "", "sha256": "", "index": None, "program": str(folder / "gpuprov")},
            "gpus": 4,
            "reboot": True,
            "metrics": str(folder / "metrics/first.prom"),
            "report": None,
            "patience_s": 1800,
            "modules": None,
        }
        (folder / "lock").write_text(LOCK)
        self.gpu()
        self.says(apply=({"nodes": []}, 0), verify=(VERIFIED, 0))
        write_program(folder / "systemctl", f'echo "$@" >>{folder}/calls')

    def gpu(self) -> None:
        """Put an NVIDIA GPU on the bus."""
        device = self.folder / "devices/0000:07:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")

    def says(self, **verbs: tuple[dict[str, Any], int]) -> None:
        """Set the output and exit code of some commands; the others keep theirs."""
        for verb, (document, code) in verbs.items():
            (self.folder / f"{verb}.json").write_text(json.dumps(document))
            (self.folder / f"{verb}.code").write_text(str(code))
        here = self.folder
        write_program(
            here / "gpuprov", f'echo "$1" >>{here}/calls; cat {here}/$1.json; exit $(cat {here}/$1.code)'
        )

    def boot(self) -> int:
        """Run the program of the first boot as at a boot; return its exit code."""
        first_boot.ORDER.write_text(json.dumps(self.order))
        return main()

    @property
    def calls(self) -> list[str]:
        """Return the commands that were called."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(first_boot.STATE.read_text())
        return found

    @property
    def metrics(self) -> str:
        return Path(self.order["metrics"]).read_text()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine whose files are in a temporary folder; its commands are recorded."""
    state = tmp_path / "state"
    places = {
        "ORDER": tmp_path / "order.json",
        "FOLDER": state,
        "STATE": state / "state.json",
        "DONE": state / "done",
        "VERDICT": state / "verify.xml",
        "VOLATILE": tmp_path / "run.json",
        "PROGRAM": tmp_path / "opt",
        "COMMAND": tmp_path / "command",
        "DEVICES": tmp_path / "devices",
        "BROUGHT": state / "modules",
        "STORE": tmp_path / "store",
    }
    for name, path in places.items():
        monkeypatch.setattr(first_boot, name, path)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Machine(tmp_path)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def failing(message: str) -> tuple[dict[str, Any], int]:
    """Return an answer of apply with a failed node, and its exit code."""
    return {"nodes": [{"name": "here", "failed": [{"msg": message}]}]}, 1


def test_a_machine_as_the_lock_says_is_done_and_not_looked_at_again(machine: Machine) -> None:
    assert machine.boot() == 0
    assert machine.calls == [
        "is-system-running",
        "apply",
        "verify",
        "disable --quiet gpuprov-first-boot.service",
    ]
    assert (machine.state["state"], machine.state["exit_code"], machine.state["attempts"]) == ("done", 0, 1)
    assert first_boot.DONE.exists()
    assert 'gpuprov_first_boot_state{state="done"} 1\n' in machine.metrics
    assert 'gpuprov_first_boot_state{state="failed"} 0\n' in machine.metrics
    assert "gpuprov_first_boot_exit_code 0\n" in machine.metrics


STARTING = """\
echo "$@" >>{here}/calls
[ $(grep -c running {here}/calls) -gt 2 ] && echo degraded || echo starting
"""


def test_it_waits_until_the_units_of_this_boot_have_started(machine: Machine) -> None:
    """Check that the state is read again: systemd 239 does not wait itself."""
    write_program(machine.folder / "systemctl", STARTING.format(here=machine.folder))
    assert machine.boot() == 0
    assert machine.calls[:4] == [*["is-system-running"] * 3, "apply"]


def test_a_boot_whose_units_never_end_starting_is_continued(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(machine.folder / "systemctl", "echo starting")
    monkeypatch.setattr(first_boot, "SETTLED_S", 0)
    assert machine.boot() == 0


def test_a_reboot_is_one_step_and_the_next_boot_goes_on(machine: Machine) -> None:
    machine.says(apply=({"nodes": [{"name": "here", "reboot_needed": True}]}, 3))
    machine.boot()
    assert "--no-block reboot" in machine.calls
    machine.says(apply=({"nodes": []}, 0))
    assert machine.boot() == 0
    assert (machine.state["reboots"], machine.state["attempts"]) == (1, 2)


def test_reboots_come_to_an_end(machine: Machine) -> None:
    """Check that a first boot that always needs a reboot ends after three."""
    machine.says(apply=({"nodes": [{"name": "here", "reboot_needed": True}]}, 3))
    for _ in range(first_boot.REBOOTS_AT_MOST + 1):
        machine.boot()
    assert machine.calls.count("--no-block reboot") == first_boot.REBOOTS_AT_MOST
    assert machine.state["message"] == "3 reboots, and one more is needed"


def test_without_leave_to_reboot_it_waits_for_one(machine: Machine) -> None:
    machine.order["reboot"] = False
    machine.says(apply=({"nodes": [{"name": "here", "reboot_needed": True}]}, 3))
    assert machine.boot() == POSTPONED
    assert (machine.state["state"], machine.state["do"]) == ("postponed", "reboot")
    assert "--no-block reboot" not in machine.calls


def test_a_reboot_that_only_verification_sees_is_one_too(machine: Machine) -> None:
    check = {"check": "reboot.not_required", "status": "failed"}
    machine.says(verify=({"nodes": [{"name": "here", "checks": [check]}]}, 1))
    machine.boot()
    assert "--no-block reboot" in machine.calls


def test_a_machine_without_gpus_is_said_before_anything_is_done(machine: Machine) -> None:
    (machine.folder / "devices/0000:07:00.0/vendor").write_text("0x8086\n")
    assert machine.boot() == 1
    assert machine.state["state"] == "failed"
    assert machine.state["message"] == "no NVIDIA GPU on the PCI bus, the lock expects 4"
    assert machine.state["do"] == "take a machine with GPUs, or attach them and reboot"
    assert "apply" not in machine.calls


def test_an_nvidia_device_that_is_no_gpu_does_not_count(machine: Machine) -> None:
    (machine.folder / "devices/0000:07:00.0/class").write_text("0x020700\n")  # an InfiniBand port
    assert machine.boot() == 1


def test_a_lock_without_gpus_needs_none(machine: Machine) -> None:
    (machine.folder / "devices/0000:07:00.0/vendor").write_text("0x8086\n")
    machine.order["gpus"] = 0
    assert machine.boot() == 0


TRANSIENT = "nvidia_driver: the package repository does not answer as it should (Could not connect to x:80)"


def test_a_mirror_that_is_away_is_asked_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.says(apply=failing(TRANSIENT))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        """Record the pause instead of waiting; at the third the mirror works."""
        if seconds < 1:  # shorter sleeps are those of subprocess
            return
        pauses.append(seconds)
        if len(pauses) == 3:
            machine.says(apply=({"nodes": []}, 0))

    monkeypatch.setattr(time, "sleep", sleep)
    assert machine.boot() == 0
    assert pauses == [10, 20, 40]
    assert machine.calls.count("apply") == 4


def test_a_mirror_that_stays_away_postpones(machine: Machine) -> None:
    """Check that a first boot without its mirror is postponed to the next boot."""
    machine.order["patience_s"] = 0
    machine.says(apply=failing(TRANSIENT))
    assert machine.boot() == POSTPONED
    assert machine.state["state"] == "postponed"
    assert "Could not connect" in machine.state["message"]
    assert "the next boot tries again" in machine.state["do"]
    assert not first_boot.DONE.exists()


def test_another_runs_lease_is_waited_for(machine: Machine) -> None:
    machine.order["patience_s"] = 0
    machine.says(apply=({"nodes": [{"name": "here", "reason": "leased to run x", "failed": []}]}, 5))
    assert machine.boot() == POSTPONED
    assert "leased to run x" in machine.state["message"]


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ("No space left on device", "the disk is full: gpuprov apply: No space left on device"),
        ("too little room (/ has 100 MB free, needed are / 4096 MB)", "the disk is full"),
        ("the package repository does not have what the lock names (Failed to fetch x 404)", "does not have"),
        ("the node runs debian13 and the lock was made for debian12", "the lock was made for debian12"),
    ],
)  # fmt: skip
def test_what_waiting_does_not_mend_fails_at_once(machine: Machine, message: str, result: str) -> None:
    machine.says(apply=failing(message))
    assert machine.boot() == 1
    assert machine.state["state"] == "failed"
    assert result in machine.state["message"]
    assert "the next boot tries again" in machine.state["do"]
    assert machine.calls.count("apply") == 1
    assert 'gpuprov_first_boot_state{state="failed"} 1\n' in machine.metrics


def test_what_is_not_as_the_lock_says_is_named(machine: Machine) -> None:
    checks = [{"check": "gpu.count", "status": "failed"}, {"check": "driver.loaded", "status": "passed"}]
    machine.says(verify=({"nodes": [{"name": "here", "checks": checks}]}, 1))
    assert machine.boot() == 1
    assert machine.state["message"] == "does not match the lock: gpu.count"
    assert machine.calls.count("verify") == 2


def test_a_failure_is_mended_by_the_next_boot(machine: Machine) -> None:
    machine.says(apply=failing("dkms failed"))
    assert machine.boot() == 1
    machine.says(apply=({"nodes": []}, 0))
    assert machine.boot() == 0
    assert (machine.state["state"], machine.state["message"]) == ("done", "matches the lock")


def test_a_lock_that_was_changed_on_the_way_is_not_applied(machine: Machine) -> None:
    (machine.folder / "lock").write_text("another\n")
    assert machine.boot() == 1
    assert "is not the lock of this user-data" in machine.state["message"]
    assert "apply" not in machine.calls


def test_a_disk_without_room_for_the_state_still_tells_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = first_boot.write

    def no_room(path: Path, text: str, mode: int = 0o600) -> None:
        """Write only the volatile file; the disk has no room for others."""
        if path != first_boot.VOLATILE:
            raise OSError(28, "No space left on device", str(path))
        write(path, text, mode)

    monkeypatch.setattr(first_boot, "write", no_room)
    machine.says(apply=failing("No space left on device"))
    assert machine.boot() == 1
    assert json.loads(first_boot.VOLATILE.read_text())["message"].startswith("the disk is full")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as server:
        yield server


def test_a_lock_by_its_address_counts_by_its_hash(machine: Machine, hook: Hook) -> None:
    machine.order["lock"]["url"] = hook.url
    hook.content = b"another lock\n"
    assert machine.boot() == 1
    wanted, there = sha256(LOCK), sha256("another lock\n")
    assert machine.state["message"] == f"{hook.url} has the SHA-256 {there}; expected {wanted}"
    hook.content = LOCK.encode()
    assert machine.boot() == 0


def test_modules_are_brought_once_before_gpuprov_looks_for_them(machine: Machine, hook: Hook) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("6.1.0-56-amd64/535/about.json", "{}")
    hook.content = whole.getvalue()
    machine.order["modules"] = {"url": hook.url, "sha256": hashlib.sha256(hook.content).hexdigest()}
    assert machine.boot() == 0
    assert (first_boot.STORE / "6.1.0-56-amd64/535/about.json").read_text() == "{}"
    hook.status = 404
    first_boot.DONE.unlink()
    assert machine.boot() == 0
    first_boot.BROUGHT.unlink()
    assert machine.boot() == 1
    assert machine.state["message"] == f"{hook.url}: HTTP 404"
    assert machine.state["step"] == "modules"


def test_the_store_is_where_gpuprov_of_this_machine_looks() -> None:
    home = {"HOME": "/root", "PATH": os.environ["PATH"]}
    asked = f"import sys; sys.path[:0] = {sys.path!r}; "
    program = "from gpuprov.inventory.firstboot.node.first_boot import STORE; print(STORE)"
    library = "from gpuprov.apply.kernel_modules.store import Store; print(Store().folder)"
    said = [
        subprocess.run(
            [sys.executable, "-c", asked + each], env=home, text=True, stdout=subprocess.PIPE, check=True
        ).stdout
        for each in (program, library)
    ]
    assert said == ["/root/.local/state/gpuprov/modules\n"] * 2


def test_what_never_ends_is_given_up(machine: Machine, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a download larger than the limit ends the first boot."""
    monkeypatch.setattr(first_boot, "LARGEST", len(LOCK) - 1)
    machine.order["lock"]["url"], hook.content = hook.url, LOCK.encode()
    assert machine.boot() == 1
    assert machine.state["message"].startswith(f"{hook.url} is larger than {len(LOCK) - 1} bytes")


@pytest.mark.parametrize(("status", "state"), [(503, "postponed"), (404, "failed")])
def test_a_server_that_has_trouble_is_asked_again_and_one_that_says_no_is_not(
    machine: Machine, hook: Hook, status: int, state: str
) -> None:
    machine.order["patience_s"] = 0
    machine.order["lock"]["url"], hook.status = hook.url, status
    machine.boot()
    assert machine.state["state"] == state
    assert f"HTTP {status}" in machine.state["message"]


def test_nobody_at_the_address_of_the_lock_postpones(machine: Machine, hook: Hook) -> None:
    machine.order["patience_s"] = 0
    machine.order["lock"]["url"] = "http://127.0.0.1:9/lock"
    assert machine.boot() == POSTPONED


def test_the_hook_hears_every_end(machine: Machine, hook: Hook) -> None:
    machine.order["report"] = hook.url
    machine.says(apply=failing("dkms failed"))
    machine.boot()
    machine.says(apply=({"nodes": []}, 0))
    machine.boot()
    assert [(each["state"], each["exit_code"]) for each in hook.posted] == [("failed", 1), ("done", 0)]
    assert hook.posted[0]["message"] == "gpuprov apply: dkms failed"


def test_a_hook_that_is_away_changes_nothing(machine: Machine) -> None:
    machine.order["report"] = "http://127.0.0.1:9/hook"
    assert machine.boot() == 0


PYTHON = """\
case "$2" in *ensurepip*) exit 0;; venv) mkdir -p "$3/bin"; cp {here}/pip "$3/bin/python";; esac
"""
PIP = """\
echo "pip $*" >>{here}/calls; echo "index $PIP_INDEX_URL $PIP_TRUSTED_HOST" >>{here}/calls
cp {here}/opt/requirements.lock {here}/asked; cp {here}/gpuprov {here}/opt/bin/gpuprov
"""
NEEDED = "click==8.5.1 --hash=sha256:00\n"


def wheel(needed: str = NEEDED) -> bytes:
    """Return a wheel that contains the list of its requirements."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("gpuprov/share/requirements.lock", needed)
    return whole.getvalue()


@pytest.fixture
def without_gpuprov(machine: Machine, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine on which gpuprov is not installed; its wheel is on a server."""
    hook.content = wheel()
    machine.order["install"] |= {
        "program": None,
        "wheel": f"{hook.url}/gpuprov-1-py3-none-any.whl?sig=hunter2",
        "sha256": hashlib.sha256(hook.content).hexdigest(),
        "index": "http://me:hunter2@mirror:8080/simple",
    }
    write_program(machine.folder / "python3", PYTHON.format(here=machine.folder))
    write_program(machine.folder / "pip", PIP.format(here=machine.folder))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2000))
    return machine


class Usage:
    def __init__(self, megabytes: int) -> None:
        self.free = megabytes << 20


def installations(machine: Machine) -> list[str]:
    """Return the calls of pip."""
    return [call for call in machine.calls if call.startswith("pip")]


def test_gpuprov_is_installed_once(without_gpuprov: Machine) -> None:
    machine = without_gpuprov
    assert machine.boot() == 0
    [call] = installations(machine)
    pinned = f"--require-hashes --only-binary :all: --requirement {machine.folder}/opt/requirements.lock"
    assert call.endswith(pinned)
    assert "hunter2" not in call, "arguments are in the process list"
    assert "index http://me:hunter2@mirror:8080/simple mirror" in machine.calls
    own = (
        f"{machine.folder}/opt/gpuprov-1-py3-none-any.whl --hash=sha256:{machine.order['install']['sha256']}"
    )
    assert (machine.folder / "asked").read_text() == f"{NEEDED}\n{own}\n"
    first_boot.DONE.unlink()
    assert machine.boot() == 0
    assert len(installations(machine)) == 1


def test_an_installation_that_was_cut_short_is_made_anew(without_gpuprov: Machine) -> None:
    machine = without_gpuprov
    (machine.folder / "opt/bin").mkdir(parents=True)
    (machine.folder / "opt/bin/gpuprov").write_text("half\n")
    assert machine.boot() == 0
    assert len(installations(machine)) == 1


def test_a_wheel_counts_by_its_hash(without_gpuprov: Machine, hook: Hook) -> None:
    machine = without_gpuprov
    stated = machine.order["install"]["sha256"]
    machine.order["install"]["sha256"] = sha256("another wheel")
    assert machine.boot() == 1
    assert "expected " + sha256("another wheel") in machine.state["message"]
    assert not installations(machine)
    machine.order["install"]["sha256"] = stated
    assert machine.boot() == 0
    assert len(installations(machine)) == 1


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_a_wheel_without_hashes_of_what_it_needs_installs_nothing(
    without_gpuprov: Machine, hook: Hook, content: bytes
) -> None:
    machine, hook.content = without_gpuprov, content
    machine.order["install"]["sha256"] = hashlib.sha256(content).hexdigest()
    assert machine.boot() == 1
    assert machine.state["message"].startswith("the wheel has no gpuprov/share/requirements.lock")
    assert not installations(machine)


def test_an_index_without_an_end_is_limited(
    without_gpuprov: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, here = without_gpuprov, without_gpuprov.folder
    write_program(here / "pip", f"ulimit -v >{here}/memory; ulimit -f >{here}/file; {PIP.format(here=here)}")
    assert machine.boot() == 0
    assert (here / "memory").read_text() == "4194304\n"
    assert int((here / "file").read_text()) in (524288, 262144), "in blocks of sh or of bash"
    (here / "opt/.installed").unlink()
    first_boot.DONE.unlink()
    machine.order["patience_s"] = 0
    monkeypatch.setattr(first_boot, "PIP_LIMITS", first_boot.PIP_LIMITS.replace("600", "1"))
    write_program(here / "pip", "exec sleep 20")
    assert machine.boot() == POSTPONED
    assert machine.state["message"] == "sh: exit 124"


def test_a_full_disk_is_seen_before_the_installation(
    without_gpuprov: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(200))
    assert without_gpuprov.boot() == 1
    assert without_gpuprov.state["message"] == "the disk is full: 200 MB are free at /opt, 600 are needed"


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError: Connection refused'\\n"
         "ERROR: No matching distribution found for gpuprov==1", "postponed"),
        ("ERROR: No matching distribution found for gpuprov==1", "failed"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "failed"),
    ],
)  # fmt: skip
def test_pips_trouble_is_reported_apart(without_gpuprov: Machine, said: str, state: str) -> None:
    without_gpuprov.order["patience_s"] = 0
    write_program(without_gpuprov.folder / "pip", f'printf "{said}\\n"; exit 1')
    without_gpuprov.boot()
    assert without_gpuprov.state["state"] == state


DNF = """\
echo "dnf $*" >>{here}/calls
case "$*" in
    *makecache) printf "{unread}"; exit {status} ;;
    *) printf "{said}"; exit 1 ;;
esac
"""
UNREAD = (
    "Errors during downloading metadata for repository 'x':\\n  - {}\\nError: Failed to download metadata for"
    " repo 'x': Cannot download repomd.xml: Cannot download repodata/repomd.xml: All mirrors were tried\\n"
)
REFUSED = (
    "Curl error (7): Couldn't connect to server for http://m:9/repodata/repomd.xml [Failed to connect to m"
    " port 9 after 0 ms: Couldn't connect to server]"
)
BUSY = "Status code: 503 for http://m/repodata/repomd.xml (IP: 192.0.2.1)"
MISSING = "No match for argument: python3.12\\nError: Unable to find a match: python3.12\\n"


@pytest.mark.parametrize(
    ("said", "unread", "state"),
    [
        *((UNREAD.format(each), "", "postponed") for each in (REFUSED, BUSY)),
        (MISSING, UNREAD.format(BUSY), "postponed"),
        (MISSING, "", "failed"),
    ],
)
def test_a_python_whose_repository_does_not_answer_is_tried_again(
    without_gpuprov: Machine, monkeypatch: pytest.MonkeyPatch, said: str, unread: str, state: str
) -> None:
    """Check also a repository that dnf skips, as on Amazon Linux by default."""
    machine, here = without_gpuprov, without_gpuprov.folder
    machine.order["patience_s"] = 0
    monkeypatch.setattr(first_boot, "is_usable_python", lambda _: False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    write_program(here / "dnf", DNF.format(here=here, said=said, unread=unread, status=int(bool(unread))))
    machine.boot()
    assert machine.state["state"] == state, machine.state["message"]


SECRET = "hUnter2xYz9"  # noqa: S105
OPENING = (
    f"http://me:{SECRET}@127.0.0.1:9/{{name}}",
    f"http://127.0.0.1:9/{{name}}?X-Amz-Signature={SECRET}",
    f"http://127.0.0.1:9/s/{SECRET}/{{name}}",
    f"http://me:a@{SECRET}@127.0.0.1:9/{{name}}",
)
"""URLs that contain a secret, at which no server answers."""


@pytest.mark.parametrize(
    ("what", "url"),
    [
        *((what, url) for what in ("lock", "modules", "wheel", "report") for url in OPENING),
        *(("index", url) for url in OPENING if "/s/" not in url),
    ],
)
def test_nothing_that_others_read_says_what_opens_a_url(
    without_gpuprov: Machine, capfd: pytest.CaptureFixture[str], hook: Hook, url: str, what: str
) -> None:
    machine = without_gpuprov
    machine.order["patience_s"], machine.order["report"] = 0, hook.url
    stated = url.format(name="gpuprov-1-py3-none-any.whl")
    if what == "lock":
        machine.order["lock"]["url"] = stated
    elif what == "modules":
        machine.order["modules"] = {"url": stated, "sha256": "0" * 64}
    elif what == "report":
        machine.order["report"] = stated
    else:
        machine.order["install"][what] = stated
    if what == "index":  # pip and its subprocesses print the URL
        write_program(machine.folder / "pip", f"echo 'ERROR: {stated}: connection refused'; exit 1")
    machine.boot()
    said = capfd.readouterr()
    public = [
        said.out,
        said.err,
        first_boot.STATE.read_text(),
        first_boot.VOLATILE.read_text(),
        machine.metrics,
    ]
    public += [json.dumps(hook.posted), *machine.calls]
    marks = [path.read_text() for path in (machine.folder / "opt").glob(".installed")]
    assert not [text for text in [*public, *marks] if SECRET in text]


def test_the_state_is_roots_and_the_metrics_are_everybodys(machine: Machine) -> None:
    os.umask(os.umask(0))
    assert machine.boot() == 0
    modes = {path: path.stat().st_mode & 0o777 for path in (first_boot.STATE, first_boot.VOLATILE)}
    assert set(modes.values()) == {0o600}
    assert first_boot.FOLDER.stat().st_mode & 0o777 == 0o700
    assert Path(machine.order["metrics"]).stat().st_mode & 0o777 == 0o644


def test_the_metrics_folders_owner_leads_no_write_elsewhere(machine: Machine, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was\n")
    victim.chmod(0o600)
    metrics = Path(machine.order["metrics"])
    metrics.parent.mkdir()
    for name in (metrics.name, f".{metrics.name}.half"):
        (metrics.parent / name).symlink_to(victim)
    assert machine.boot() == 0
    assert victim.read_text() == "as it was\n"
    assert victim.stat().st_mode & 0o777 == 0o600
    assert not metrics.is_symlink()


def test_a_folder_named_as_a_left_file_does_not_prevent_the_metric(machine: Machine) -> None:
    metrics = Path(machine.order["metrics"])
    folder, left = (metrics.parent / f".gpuprov-new-{name}" for name in ("x", "0123456789abcdef"))
    folder.mkdir(parents=True)
    left.write_text("half")
    assert machine.boot() == 0
    assert "gpuprov_first_boot_exit_code 0\n" in metrics.read_text()
    assert sorted(metrics.parent.iterdir()) == sorted([metrics, folder])


def test_of_a_folder_with_many_files_only_some_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f".gpuprov-new-{number}").touch()
    monkeypatch.setattr(first_boot, "ENTRIES_AT_MOST", 5)
    first_boot.write(tmp_path / "x.prom", "x")
    assert len(list(tmp_path.iterdir())) == 20 - 5 + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize("link", ["own", "own/above", "shared/above"])
def test_a_link_of_another_user_is_not_followed_at_any_level(tmp_path: Path, link: str) -> None:
    (tmp_path / "etc/inner/own/inner").mkdir(parents=True)
    place = tmp_path / link
    if place.parent != tmp_path:
        place.parent.mkdir()
        place.parent.chmod(0o1777)
        os.chown(place.parent, 65534 if place.parent.name == "own" else 0, -1)
    place.symlink_to(tmp_path / "etc")
    os.chown(place, 65534, -1, follow_symlinks=False)
    if place.parent == tmp_path:
        os.chown(tmp_path, 65534, -1)
    with pytest.raises(OSError, match=re.escape(str(place))):
        first_boot.write(place / "inner/x.prom", "x")
    assert not list((tmp_path / "etc").rglob("x.prom"))


def test_links_of_root_are_followed_and_missing_folders_created(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "var").symlink_to("./disk")
    (tmp_path / "disk/loop").symlink_to("loop")
    first_boot.write(tmp_path / "var/new/../again/x.prom", "x")
    assert (tmp_path / "disk/again/x.prom").read_text() == "x"
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        first_boot.write(tmp_path / "var/loop/x", "x")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//"])
def test_a_redirect_leads_to_no_other_scheme(machine: Machine, hook: Hook, target: str) -> None:
    machine.order["patience_s"] = 0
    machine.order["lock"]["url"], hook.status, hook.headers = hook.url, 302, {"Location": target}
    assert machine.boot() in (1, POSTPONED)
    assert machine.state["state"] in ("failed", "postponed")


def test_a_redirect_never_leaves_tls() -> None:
    asked = urllib.request.Request("https://mirror.example/own.yml")
    with pytest.raises(first_boot.Ended, match="redirects from https to http"):
        first_boot.Redirects().redirect_request(asked, None, 302, "", {}, "http://mirror.example/own.yml")


def test_a_url_of_another_scheme_is_not_read(machine: Machine) -> None:
    machine.order["lock"]["url"] = (machine.folder / "lock").as_uri()
    assert machine.boot() == 1
    assert machine.state["message"] == "file in a URL of the order; expected http or https"


def test_a_server_that_sends_a_byte_at_a_time_is_given_up(
    machine: Machine, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_boot, "FETCH_S", 1)
    machine.order["patience_s"] = 0
    machine.order["lock"]["url"], hook.content, hook.pause_s = hook.url, LOCK.encode(), 0.4
    begun = time.monotonic()
    assert machine.boot() == POSTPONED
    assert "took longer than 1 s" in machine.state["message"]
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("name", ["i-0abc\n{}", "$(id)", "x" * 5000, "\x1b[31m"])
def test_what_the_cloud_calls_the_machine_is_a_plain_name_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "id").write_text(name)
    monkeypatch.setattr(first_boot, "INSTANCE", tmp_path / "id")
    assert first_boot.instance() == ""
    (tmp_path / "id").write_text("i-0abc12\n")
    assert first_boot.instance() == "i-0abc12"


@pytest.mark.parametrize(
    "url",
    ["https://user:s3cret@127.0.0.1/lock", "https://127.0.0.1/lo ck?sig=s3cret", "http://a:s3cret@[/lock"],
)
def test_no_error_has_a_part_of_a_url_that_may_be_secret(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(first_boot.Transient) as error:
        first_boot.fetched(url, "0" * 64, 10)
    assert "s3cret" not in str(error.value)
    monkeypatch.setattr(first_boot.time, "sleep", lambda _: None)
    first_boot.post(url, b"{}")
    assert "s3cret" not in capsys.readouterr().out
