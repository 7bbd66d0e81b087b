"""gpuprov_unit with a fake systemctl that records its calls."""

from __future__ import annotations

from pathlib import Path

import gpuprov_unit as unit
import pytest

SYSTEMCTL = """#!/bin/sh
test "$LC_ALL" = C.UTF-8 || exit 9
printf '%s\\n' "$*" >>{log}
case $1 in
    is-enabled) echo "$ENABLED"; test "$ENABLED" = enabled ;;
    show) printf "$SHOWN"; exit $SHOW_STATUS ;;
    reset-failed) echo 'nothing of that name is loaded' >&2; exit 1 ;;
    start|restart) printf "$START" >&2; test -z "$START" ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Log of systemctl's calls, one per line, on a node whose unit is disabled and inactive."""
    log, program = tmp_path / "asked", tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    state(monkeypatch, "disabled", "inactive")
    return log


def state(monkeypatch: pytest.MonkeyPatch, enabled: str, active: str, start: str = "") -> None:
    """Set what the fake systemctl answers about a unit, and what its start runs."""
    monkeypatch.setenv("ENABLED", enabled)
    monkeypatch.setenv("SHOWN", f"LoadState=loaded\\nActiveState={active}\\n")
    monkeypatch.setenv("START", start)
    monkeypatch.setenv("SHOW_STATUS", "0")


def acts(
    enabled: bool | None = None,
    wanted: str | None = None,
    *,
    name: str = "docker.service",
    reload: bool = False,
    check: bool = False,
) -> list[str]:
    """Settle a unit, and return the actions that were needed."""
    done = unit.settle(name, enabled, wanted, reload, check)
    assert done["changed"] == bool(done["acts"])
    return list(done["acts"])


def changing(asked: Path) -> list[str]:
    """Return the calls of systemctl that change something."""
    return [line for line in asked.read_text().splitlines() if not line.startswith(("is-enabled", "show"))]


def test_a_unit_is_enabled_and_started_and_its_count_of_starts_reset_before(asked: Path) -> None:
    assert acts(True, "started", reload=True) == ["enable", "start"]
    assert changing(asked) == ["enable docker.service", "reset-failed docker.*", "start docker.service"]


def test_files_are_read_again_unless_another_verb_does_so(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(monkeypatch, "enabled", "inactive")
    assert acts(True, "started", reload=True) == ["start"]
    assert changing(asked) == ["daemon-reload", "reset-failed docker.*", "start docker.service"]


def test_what_is_so_already_is_left_alone(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch, "enabled", "active")
    assert acts(True, "started") == []
    assert changing(asked) == []


@pytest.mark.parametrize(
    ("enabled", "active", "wanted", "verbs"),
    [
        ("enabled", "active", (True, "restarted"), ["restart"]),
        ("enabled", "active", (False, "stopped"), ["disable", "stop"]),
        ("enabled-runtime", "inactive", (True, None), ["enable"]),
        ("enabled-runtime", "inactive", (False, "stopped"), ["disable"]),
        ("masked", "inactive", (True, "started"), ["unmask", "enable", "start"]),
        ("masked-runtime", "active", (True, None), ["unmask --runtime", "enable"]),
        ("masked", "inactive", (False, "stopped"), []),
        ("disabled", "deactivating", (False, "stopped"), ["stop"]),
        ("static", "activating", (True, "started"), []),
        ("disabled", "failed", (None, "started"), ["start"]),
        ("disabled", "failed", (None, None), []),
    ],
)
def test_what_is_needed(
    asked: Path,
    monkeypatch: pytest.MonkeyPatch,
    enabled: str,
    active: str,
    wanted: tuple[bool | None, str | None],
    verbs: list[str],
) -> None:
    """Check which verbs of systemctl are called to bring a unit from one state to another."""
    state(monkeypatch, enabled, active)
    assert acts(*wanted) == verbs


def test_check_mode_says_what_would_be_done(asked: Path) -> None:
    assert acts(True, "restarted", reload=True, check=True) == ["enable", "restart"]
    assert changing(asked) == []


def test_nothing_is_changed_if_the_condition_fails(asked: Path) -> None:
    no = ["sh", "-c", "echo late >&2; exit 3"]
    with pytest.raises(unit.Failed, match=r"^docker\.service was not changed: late$"):
        unit.settle("docker.service", True, "started", daemon_reload=True, check=False, condition=no)
    assert not asked.exists()


def test_the_condition_is_checked_before_a_change_only(asked: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for check in (True, False):
        assert not ran.exists()
        unit.settle("docker.service", True, None, False, check, ["touch", str(ran)])
    assert ran.exists()
    assert changing(asked) == ["enable docker.service"]


def test_a_tree_that_is_not_booted_has_its_unit_enabled(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN", "")  # "Running in chroot, ignoring command 'show'", to standard error
    assert acts(True, "started") == ["enable"]


NO_FILE = "Failed to get unit file state for docker.service: No such file or directory"


@pytest.mark.parametrize("said", ["not-found", NO_FILE])
def test_a_unit_that_is_not_there_is_refused(asked: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("ENABLED", said)
    with pytest.raises(unit.Failed, match=r"^systemd on the node has no unit docker\.service$"):
        acts(True)
    monkeypatch.setenv("SHOWN", "LoadState=not-found\\nActiveState=inactive\\n")
    with pytest.raises(unit.Failed, match=r"has no unit docker\.service$"):
        acts(wanted="started")


def test_a_systemd_that_does_not_answer_is_no_tree_that_is_not_booted(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLED", "Failed to connect to bus: Host is down")
    with pytest.raises(unit.Failed, match=r"whether docker\.service is enabled: Failed to connect to bus"):
        acts(True)
    monkeypatch.setenv("SHOWN", "")
    monkeypatch.setenv("SHOW_STATUS", "1")
    with pytest.raises(unit.Failed, match=r"systemd did not report the state of docker\.service"):
        acts(wanted="started")


def test_a_start_that_fails_has_systemds_first_line(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch, "enabled", "failed", start="Job for docker.service failed.\\nSee more.\\n")
    with pytest.raises(
        unit.Failed, match=r"^docker\.service could not be started: Job for docker.service failed\.$"
    ):
        acts(wanted="started")


def test_a_node_without_systemd_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(unit.Failed, match="the node has no systemctl"):
        acts(wanted="started")
