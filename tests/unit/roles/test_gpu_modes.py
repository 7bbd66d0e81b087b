"""Script that sets power limit and modes, with a driver that answers as real ones do."""

from __future__ import annotations

import pytest

from tests.unit.roles.conftest import RunScript

SCRIPT = "gpu_settings/files/gpu-modes"
TABLE = """\
| GPU   Name             Profile  Instance   Placement  |
|   0  MIG 2g.20gb         14        3          0:2     |
|   0  MIG 3g.40gb          9        2          4:4     |
"""


@pytest.fixture
def run(run_script: RunScript) -> RunScript:
    """Function that runs the script with an nvidia-smi made of branches of a shell `case`."""
    return lambda cases, *arguments: run_script(SCRIPT, cases, *arguments)


def test_power_limit_and_compute_mode_are_set(run: RunScript) -> None:
    done, calls = run("", "power=300", "compute=EXCLUSIVE_PROCESS")
    assert (done.returncode, done.stdout) == (0, "0 power 300\n0 compute EXCLUSIVE_PROCESS\n")
    assert calls[1:] == ["-i 0 -pl 300", "-i 0 -c EXCLUSIVE_PROCESS"]


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("power=300", "Changing power management limit is not supported for GPU: 00000000:00:06.0."),
        ("ecc=1", "ECC features not supported for GPU 00000000:00:06.0."),
        ("mig=3g.40gb", "Unable to enable MIG Mode for GPU 00000000:00:06.0: Not Supported"),
    ],
)
def test_what_a_gpu_does_not_have_is_said_and_is_no_failure(
    run: RunScript, setting: str, answer: str, status: int
) -> None:
    done, _ = run(f"*' -pl '*|*' -e '*|*' -mig '*) echo '{answer}'; exit {status} ;;", setting)
    assert (done.returncode, done.stdout) == (0, f"0 {setting.partition('=')[0]} unsupported\n")


def test_any_other_refusal_is_a_failure_in_the_drivers_words(run: RunScript) -> None:
    done, _ = run("*-pl*) echo 'not a valid power limit'; exit 2 ;;", "power=900")
    assert done.returncode == 1
    assert "nvidia-smi -i 0 -pl 900: not a valid power limit" in done.stderr


def test_ecc_waits_for_a_reboot(run: RunScript) -> None:
    cases = "*ecc.mode.current*) echo Enabled ;;\n*ecc.mode.pending*) echo Disabled ;;"
    assert run(cases, "ecc=0")[0].stdout == "0 ecc pending\n"


MIG_ON = "*mig.mode*) echo Enabled ;;\n"


def test_instances_that_are_there_are_left_alone(run: RunScript) -> None:
    done, calls = run(f"{MIG_ON}*-lgi*) echo '{TABLE}' ;;", "mig=3g.40gb,2g.20gb")
    assert done.stdout == "0 mig 3g.40gb,2g.20gb\n"
    assert not any("-cgi" in call or "-dgi" in call for call in calls)


def test_other_instances_are_replaced(run: RunScript) -> None:
    done, calls = run(f"{MIG_ON}*-lgi*) echo '{TABLE}' ;;", "mig=7g.80gb")
    assert done.stdout == "0 mig 7g.80gb\n"
    assert calls[-3:] == ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 7g.80gb -C"]


def test_instances_wait_for_mig(run: RunScript) -> None:
    cases = "*mig.mode.current*) echo Disabled ;;\n*mig.mode.pending*) echo Disabled ;;"
    done, calls = run(cases, "mig=7g.80gb")
    assert done.stdout == "0 mig pending\n"
    assert "-i 0 -mig 1" in calls
    assert not any("-cgi" in call for call in calls)


def test_reset_gives_the_drivers_defaults_back(run: RunScript) -> None:
    done, calls = run("*power.default_limit*) echo 400.00 ;;", "reset", "power", "compute")
    assert (done.returncode, done.stdout) == (0, "0 power 400.00\n0 compute DEFAULT\n")
    assert {"-i 0 -pl 400.00", "-i 0 -c DEFAULT"} <= set(calls)


def test_reset_without_a_driver_has_nothing_to_do(run: RunScript) -> None:
    done, _ = run("*) echo broken; exit 9 ;;", "reset", "power")
    assert done.returncode == 0
    assert "keeps nothing to reset" in done.stdout
