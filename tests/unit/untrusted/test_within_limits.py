"""Work on another person's files ends at the limits of memory and processor time, with one line."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import within_limits as limits
from gpuprov.untrusted.within_limits import within_limits


def _fill() -> None:
    """Take memory until there is no more, at most 1 GiB."""
    kept = [bytearray(1 << 20) for _ in range(1024)]
    assert kept


def _spin() -> None:
    """Take processor time, at most a minute, and handle every error."""
    for _ in range(30_000_000):
        with suppress(Exception):
            sum(range(100))


ENDLESS = """
from gpuprov.untrusted import within_limits as limits

limits.PROCESSOR_S, limits.GRACE_S = 0.1, 0.1
with limits.within_limits():
    while True:
        try:
            while True:
                len([])
        except BaseException:
            pass
"""
"""Program that takes processor time without an end, and handles every exception."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have limits that a test reaches in a moment."""
    monkeypatch.setattr(limits, "MEMORY", 256 << 20)
    monkeypatch.setattr(limits, "PROCESSOR_S", 2.0)


def _in_force() -> tuple[object, ...]:
    """Return the limits and the handler that are in force."""
    timer = signal.getitimer(signal.ITIMER_PROF)[0]
    return resource.getrlimit(resource.RLIMIT_AS), timer, signal.getsignal(signal.SIGPROF)


@pytest.mark.parametrize(
    ("work", "limit"), [(_fill, r"0\.25 GiB of memory"), (_spin, r"min of processor time")]
)
def test_work_ends_at_its_limits(work: Callable[[], None], limit: str) -> None:
    before = _in_force()
    with pytest.raises(InvalidInput, match=limit), within_limits():
        work()
    assert _in_force() == before


def test_the_kernel_ends_work_that_does_not_end_itself() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], timeout=60, check=False)
    assert ended.returncode == -signal.SIGPROF


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    before = _in_force()
    with pytest.raises(KeyError), within_limits():
        raise KeyError
    assert _in_force() == before


def test_work_within_limited_work_has_the_limits_that_are_in_force() -> None:
    with within_limits():
        outer = _in_force()
        with within_limits():
            pass
        assert _in_force()[0] == outer[0]
        assert _in_force()[1]
        with pytest.raises(MemoryError), within_limits():
            _fill()


def test_a_lower_limit_of_the_system_stays() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    lower = pages * resource.getpagesize() + (128 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
    try:
        with within_limits():
            assert resource.getrlimit(resource.RLIMIT_AS) == (lower, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_another_thread_has_no_limits() -> None:
    def work() -> None:
        with within_limits():
            seen.append(_in_force())

    seen: list[object] = []
    before = _in_force()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


VERBS = {
    "validate": ["validate", "--fleet", "{fleet}"],
    "lock": ["lock", "--fleet", "{fleet}"],
    "plan": ["plan", "--lock", "{lock}"],
    "status": ["status", "--lock", "{lock}"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_read_a_fleet_and_its_lock_within_limits(
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"fleet": tmp_path / "fleet.yml", "lock": tmp_path / "fleet.lock.yml"}
    for path in places.values():
        path.write_text("groups: {}\n")
    for module in ("gpuprov.model.lock", "gpuprov.model.fleet", "gpuprov.locking.validation"):
        monkeypatch.setattr(f"{module}.read_text", lambda *_, **__: _fill())
    code = run([word.format(**places) for word in VERBS[verb]])
    said = capsys.readouterr().err
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "take more than" in said
