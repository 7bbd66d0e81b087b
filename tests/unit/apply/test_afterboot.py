"""Reboot of the local machine: contents of its unit, refusals, and that it happens last and only once."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.apply import afterboot, converge, jobs
from gpuprov.apply.afterboot import Afterwards, Cannot, refuse_what_is_lost, unit
from gpuprov.apply.context import Consent, RunContext
from gpuprov.apply.kernel_modules import once
from gpuprov.apply.plan import NodePlan
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import NodeFailed, Refused
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Lock, read_lock
from gpuprov.probe.facts import GpuUse
from tests import RECORDED_LOCK

MODULE = Difference("driver.loaded", "580", "535", "error", "nvidia_driver", True)
RUN = "20260131-142501-apply-9f3a"


class Machine:
    """The local machine and another node, both with a module that only a reboot replaces."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        [(name, group)] = read_lock(RECORDED_LOCK).groups.items()
        hosts = {"here": LOCAL, "gpu01": "192.0.2.1"}
        lock = Lock(inputs="", groups={name: group.model_copy(update={"hosts": hosts})})
        self.narrated: list[str] = []
        self.went_down: list[Mapping[str, int]] = []
        self.played: list[list[str]] = []
        self.users: list[str] = []
        self.cannot: Exception | None = None
        self.wrong = {"here", "gpu01"}
        (folder / RUN).mkdir()
        self.run = RunContext(
            lock,
            folder / RUN,
            consent=Consent(reboot=True),
            narrate=self.narrated.append,
            afterwards=Afterwards(("apply", "--continue", RUN)),
        )
        monkeypatch.setattr(converge, "SETTLE_S", 0.0)
        monkeypatch.setattr(converge, "START_S", 0.0)
        for name in ("survey", "run_playbook", "go_down", "refuse_running_jobs"):
            monkeypatch.setattr(converge, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(once, "run_playbook", self._run_playbook)

    def converge(self) -> converge.Convergence:
        """Apply the role nvidia_driver, with a reboot, on this machine and on gpu01."""
        plans = [NodePlan(name, ("nvidia_driver",), True, (), ()) for name in ("here", "gpu01")]
        return converge.converge(self.run, plans)

    def _survey(self, lock: Lock, names: list[str], **_: Any) -> list[NodeDrift]:
        """Return the drift of nodes: a wrong module on those in `wrong`."""
        drift = {name: (MODULE,) if name in self.wrong else () for name in names}
        return [NodeDrift(name, "drifted" if found else "in_sync", found) for name, found in drift.items()]

    def _run_playbook(self, playbook: str, nodes: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """Record a playbook with its nodes; a reboot corrects their drift."""
        self.played.append([playbook, *sorted(nodes)])
        if playbook == "reboot":
            self.wrong -= set(nodes)
        return {name: NodeOutcome(changed=3, rebooted=playbook == "reboot") for name in nodes}

    def _go_down(self, run: str, way: Any, afterwards: Afterwards, changed: Any, *, password: Any) -> None:
        """Record that the local machine goes down, or raise `cannot`."""
        if self.cannot:
            raise self.cannot
        assert way.route.local
        self.went_down.append(dict(changed))

    def _refuse_running_jobs(self, way: Any, password: str | None) -> None:
        """Raise Refused if a program uses the GPUs."""
        if self.users:
            raise Refused(f"the GPUs are in use by {self.users[0]}")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_this_machine_goes_down_last_and_never_by_ansible(machine: Machine) -> None:
    result = machine.converge()
    assert machine.played == [["site", "gpu01", "here"], ["reboot", "gpu01"]]
    assert machine.went_down == [{"here": 3, "gpu01": 3}]
    assert not result.outcomes["here"].failed, "what only the boot mends is no failure before it"


def test_without_consent_it_stays_up(machine: Machine) -> None:
    """Check that this machine is not rebooted without consent, and is listed as needing it."""
    machine.run = replace(machine.run, consent=Consent())
    result = machine.converge()
    assert machine.went_down == []
    assert sorted(result.reboot_needed) == ["gpu01", "here"]


def test_the_consent_of_the_fleet_is_enough(machine: Machine) -> None:
    [(name, group)] = machine.run.lock.groups.items()
    allowing = group.model_copy(update={"reboot": group.reboot.model_copy(update={"allowed": True})})
    machine.run = replace(machine.run, consent=Consent(), lock=Lock(inputs="", groups={name: allowing}))
    result = machine.converge()
    assert (result.rebooted, result.reboot_needed) == (["gpu01"], [])
    assert len(machine.went_down) == 1


def test_under_somebody_s_job_it_stays_up(machine: Machine) -> None:
    machine.users = ["python3 (4242)"]
    result = machine.converge()
    assert (machine.went_down, result.reboot_needed) == ([], ["here"])
    assert machine.narrated[-1] == "here: the GPUs are in use by python3 (4242)"


def test_where_the_run_could_not_go_on_it_stays_up_and_says_so(machine: Machine) -> None:
    machine.cannot = Cannot("sudo asks for a password", do="reboot it yourself")
    result = machine.converge()
    assert result.reboot_needed == ["here"]
    assert machine.narrated[-1] == "here: sudo asks for a password; reboot it yourself"


def test_after_its_boot_it_is_not_rebooted_again_whatever_is_loaded(machine: Machine) -> None:
    machine.run = replace(machine.run, afterwards=Afterwards((), before="the boot before"))
    result = machine.converge()
    assert (machine.went_down, result.rebooted) == ([], ["gpu01", "here"])
    assert "driver.loaded is still 535" in result.outcomes["here"].failed[0]["msg"]


def test_a_boot_that_did_not_happen_is_none() -> None:
    assert not Afterwards((), before=afterboot.boot_id()).returned()
    assert not Afterwards(()).returned()
    once = Afterwards((), before="another")
    assert (once.returned(), once.returned()) == (True, False)


@pytest.mark.parametrize("place", ["/tmp/fleet", "/run/fleet", "/dev/shm/x"])
def test_what_a_boot_clears_cannot_go_on(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(afterboot.sys, "executable", f"{place}/bin/python3")
    with pytest.raises(Cannot, match="may be deleted at boot"):
        refuse_what_is_lost(None)


def test_nobody_types_a_password_after_a_boot() -> None:
    with pytest.raises(Cannot, match="cannot be typed"):
        refuse_what_is_lost("secret")


def test_a_program_behind_a_link_to_a_folder_that_a_boot_clears_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another user could create it again there, and root would start it at the next boot."""
    for name in ("cleared", "opt"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(afterboot, "CLEARED", (str(tmp_path / "cleared"),))
    (tmp_path / "cleared/python").touch()
    (tmp_path / "opt/python").symlink_to("../cleared/python")
    monkeypatch.setattr("sys.executable", str(tmp_path / "opt/python"))
    monkeypatch.setattr("gpuprov.__file__", "/opt/gpuprov/__init__.py")
    monkeypatch.chdir("/")
    with pytest.raises(Cannot, match="opt/python may be deleted at boot"):
        refuse_what_is_lost(None)


def test_the_unit_says_what_systemd_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with spaces, quotes, dollar and percent signs are read back unchanged by systemd."""
    folder = tmp_path / 'a "fleet" of 100% $HOME'
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/state")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    text = unit(RUN, "root", ("apply", "--continue", RUN, "--lock", f"{folder}/fleet.lock.yml"))
    [command] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    word = shlex.split(command.removeprefix("ExecStart="))[-1]
    assert word == f"{folder}/fleet.lock.yml".replace("%", "%%").replace("$", "$$")
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith(("User", "Working")))
    assert lines == {"User": "root", "WorkingDirectory": str(folder).replace("%", "%%")}
    stated = dict(line.split("=", 1) for line in afterboot.environment().splitlines())
    values = {name: re.sub(r"\\(.)", r"\1", quoted[1:-1]) for name, quoted in stated.items()}
    assert values["XDG_STATE_HOME"] == f"{folder}/state"
    assert values[afterboot.BEFORE] == afterboot.boot_id()
    assert "SSH_CONNECTION" not in values
    assert f"EnvironmentFile={afterboot.ENVIRONMENT}" in text
    assert f'"-m" "gpuprov" "apply" "--continue" "{RUN}"' in text
    (tmp_path / "gpuprov-resume.service").write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "gpuprov-resume.service")]
    try:
        result = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return
    assert "gpuprov-resume.service:" not in result, result


def test_a_proxy_s_password_is_in_a_file_of_root_s_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keep the password also out of arguments, which are in the process list and in sudo's log."""
    proxy = 'http://anna:geheim"$`\\@proxy:3128'
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    etc = tmp_path / "etc"
    etc.mkdir()
    ran: list[str] = []

    def as_root(session: object, command: str, password: str | None, stdin: bytes = b"") -> Any:
        """Run the command on this machine in a folder of the test; a reboot fails, and modes and contents are
        recorded.
        """
        ran.append(command)
        if command == "systemctl reboot":
            files = {
                path.name: (oct(path.stat().st_mode & 0o777), path.read_text()) for path in etc.iterdir()
            }
            left.update(files)
            return SimpleNamespace(code=1, stdout=b"", stderr=b"no")
        real = "systemctl() { :; }; sync() { :; }; set -e; umask 000; " + command.replace(
            "/etc/systemd/system", str(etc)
        )
        real = real.replace("[ -d /run/systemd/system ]", "true")
        done = subprocess.run(["sh", "-c", real], input=stdin, capture_output=True, check=False)
        return SimpleNamespace(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    left: dict[str, tuple[str, str]] = {}
    way: Any = SimpleNamespace(route=SimpleNamespace(user="root"))
    monkeypatch.setattr(afterboot, "open_session", lambda *_: nullcontext())
    monkeypatch.setattr(afterboot, "as_root", as_root)
    monkeypatch.setattr(afterboot, "refuse_what_is_lost", lambda _: None)
    with pytest.raises(NodeFailed, match="did not start"):
        afterboot.go_down(RUN, way, Afterwards(()), {}, password=None)
    assert "geheim" not in "".join(ran) + left["gpuprov-resume.service"][1]
    mode, text = left["gpuprov-resume.env"]
    assert (mode, left["gpuprov-resume.service"][0]) == ("0o600", "0o644")
    assert 'HTTPS_PROXY="http://anna:geheim\\"\\$\\`\\\\@proxy:3128"' in text.splitlines()
    assert list(etc.iterdir()) == []


def test_programs_on_gpus_are_refused_but_for_the_driver_s_own() -> None:
    use = GpuUse({1: "nvidia-persiste", 4242: "python3"}, ("trainer",))
    seen = SimpleNamespace(gpu_use=use)
    assert jobs.gpu_users(seen) == ["python3 (4242)", "container trainer"]  # type: ignore[arg-type]


def test_a_machine_that_stays_up_keeps_no_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    class Session:
        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_: object) -> None:
            return None

    def as_root(session: Session, command: str, password: str | None, stdin: bytes = b"") -> Any:
        """Record the command's first two words; only a reboot fails."""
        ran.append(command.split(" ", 2)[0] + " " + command.split(" ")[1])
        return type(
            "Output", (), {"code": 1 if command == "systemctl reboot" else 0, "stdout": b"", "stderr": b"no"}
        )

    way = type("Way", (), {"route": type("Route", (), {"user": "root"})})
    monkeypatch.setattr(afterboot, "open_session", lambda *_: Session())
    monkeypatch.setattr(afterboot, "as_root", as_root)
    monkeypatch.setattr(afterboot, "refuse_what_is_lost", lambda _: None)
    with pytest.raises(NodeFailed, match="the reboot of this machine did not start: no"):
        afterboot.go_down(RUN, way, Afterwards(()), {}, password=None)  # type: ignore[arg-type]
    assert ran[-1] == "rm -f"
