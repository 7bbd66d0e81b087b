"""Script that sets clocks, with a driver that answers as real ones do."""

from __future__ import annotations

import pytest

from tests.unit.roles.conftest import RunScript

SCRIPT = "gpu_settings/files/gpu-clocks"
UNSUPPORTED = "Setting applications clocks is not supported for GPU 00000000:00:06.0.\nTreating as warning."
DEPRECATED = "Requested functionality has been deprecated"
BAD_PAIR = 'Specified clock combination "(MEM 1, SM 1)" is not supported for GPU 00000000:00:06.0.'


@pytest.fixture
def run(run_script: RunScript) -> RunScript:
    """Function that runs the script with an nvidia-smi made of branches of a shell `case`."""
    return lambda cases, *arguments: run_script(
        SCRIPT, f"{cases}\n*clocks.applications*) echo '1980, 3201' ;;", *arguments
    )


def test_application_clocks_are_set_and_read_back(run: RunScript) -> None:
    done, calls = run("", "set", "1980", "3201")
    assert (done.returncode, done.stdout) == (0, "0 application 1980 3201\n")
    assert "-i 0 -ac 3201,1980" in calls


@pytest.mark.parametrize("answer", [UNSUPPORTED, DEPRECATED])
@pytest.mark.parametrize("status", [0, 3])
def test_locked_clocks_where_there_are_no_application_clocks(
    run: RunScript, answer: str, status: int
) -> None:
    done, calls = run(f"*-ac*) echo '{answer}'; exit {status} ;;", "set", "1980", "3201")
    assert (done.returncode, done.stdout) == (0, "0 locked 1980 3201\n")
    assert "-i 0 -lgc 1980,1980" in calls


def test_memory_stays_at_its_default_where_it_cannot_be_locked(run: RunScript) -> None:
    done, _ = run(f"*-ac*|*-lmc*) echo '{UNSUPPORTED}' ;;", "set", "1980", "3201")
    assert done.stdout == "0 locked 1980 default\n"


def test_a_gpu_without_clocks_is_said_and_is_no_failure(run: RunScript) -> None:
    done, _ = run(f"*-ac*|*-lgc*) echo '{UNSUPPORTED}' ;;", "set", "1980", "3201")
    assert (done.returncode, done.stdout) == (0, "0 unsupported\n")


def test_a_pair_that_the_gpu_does_not_have_is_a_failure(run: RunScript) -> None:
    done, calls = run(f"*-ac*) echo '{BAD_PAIR}'; exit 6 ;;", "set", "1", "1")
    assert done.returncode == 1
    assert "Specified clock combination" in done.stderr
    assert not any("-lgc" in call for call in calls)


def test_clocks_that_did_not_take_are_a_failure(run: RunScript) -> None:
    done, _ = run("*clocks.applications*) echo '1200, 3201' ;;", "set", "1980", "3201")
    assert done.returncode == 1
    assert "are 1200, 3201 MHz after being set to 1980, 3201 MHz" in done.stderr


def test_graphics_alone_is_locked(run: RunScript) -> None:
    done, calls = run("", "set", "1500")
    assert done.stdout == "0 locked 1500 default\n"
    assert not any("-ac" in call for call in calls)


def test_reset_goes_back_to_defaults_and_minds_no_missing_kind(run: RunScript) -> None:
    done, calls = run(f"*-rac*) echo '{DEPRECATED}'; exit 3 ;;", "reset")
    assert done.returncode == 0
    assert {"-rac", "-rgc", "-rmc"} <= set(calls)
