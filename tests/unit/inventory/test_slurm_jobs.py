"""The program around a job of Slurm, with a simulated nvidia-smi and files of the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuprov.inventory.exports.slurm_jobs import JOB
from tests.unit.programs import write_program

BUSY = "0000:3b:00.0"
# Minor numbers are not in the order of addresses.
MINORS = {"0000:18:00.0": 1, BUSY: 0, "0000:86:00.0": 10}


def run(
    folder: Path, gpus: str | None, *, mig: str = "Disabled", left: str = "", smi: str = "", patience: int = 0
) -> tuple[int, str]:
    """Run the program; return its exit status and output.

    Args:
        gpus: SLURM_JOB_GPUS.
        left: what nvidia-smi prints as the processes on `BUSY`, each time it is asked.
        smi: a line that nvidia-smi runs first.
    """
    for address, minor in MINORS.items():
        card = folder / "gpus" / address
        card.mkdir(parents=True, exist_ok=True)
        card.joinpath("information").write_text(
            f"Model: \t\t NVIDIA H200\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        )
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    write_program(
        tools / "nvidia-smi",
        f"{smi}\necho \"$*\" >>{folder}/calls\ncase $* in *mig.mode*) echo '{mig}';;"
        f" *--id={BUSY}*) {left or ':'};; esac",
    )
    program = JOB.replace("PATH=/usr/sbin", f"PATH={tools}:/usr/sbin")
    program = program.replace("/proc/driver/nvidia/gpus", str(folder / "gpus"))
    program = program.replace('[ "$waited" -lt 30 ]', f'[ "$waited" -lt {patience} ]')
    done = subprocess.run(
        ["/bin/sh", "-c", program],
        env={"SLURM_JOB_GPUS": gpus} if gpus is not None else {},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return done.returncode, done.stdout + done.stderr


def asked(folder: Path) -> list[str]:
    """Return the addresses of the GPUs whose processes nvidia-smi listed."""
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return [word.removeprefix("--id=") for call in calls for word in call.split() if word.startswith("--id=")]


@pytest.mark.parametrize("gpus", [None, ""])
def test_a_job_without_gpus_asks_nothing(tmp_path: Path, gpus: str | None) -> None:
    assert run(tmp_path, gpus, smi="exit 9") == (0, "")


def test_free_gpus_are_accepted_each_by_the_address_of_its_device_file(tmp_path: Path) -> None:
    assert run(tmp_path, "10,1") == (0, "")
    assert asked(tmp_path) == ["0000:86:00.0", "0000:18:00.0"]
    assert run(tmp_path, "1", left="echo 4711, x") == (0, "")


def test_a_process_that_stays_fails_with_its_number(tmp_path: Path) -> None:
    code, said = run(tmp_path, "1,0", left="echo 4711, python; echo 4712, a b")
    assert (code, said) == (
        1,
        f"gpuprov: GPU {BUSY} is in use after or before its job: 4711, python 4712, a b\n",
    )


def test_a_process_may_take_a_while_to_end(tmp_path: Path) -> None:
    left = f"[ -e {tmp_path}/seen ] || echo 4711, x; touch {tmp_path}/seen"
    assert run(tmp_path, "0", left=left, patience=3) == (0, "")
    assert asked(tmp_path) == [BUSY, BUSY]


@pytest.mark.parametrize("said", ["WARNING: infoROM is corrupted at gpu 0000:3B:00.0", "[N/A]"])
def test_what_is_no_process_of_a_job_is_accepted(tmp_path: Path, said: str) -> None:
    assert run(tmp_path, "0", left=f"echo '{said}'") == (0, "")


@contextmanager
def server_of_mps(folder: Path, server: str, control: str) -> Iterator[int]:
    """Run a program as the child of another one, each with the name of MPS's; yield the number of the child.

    Args:
        server, control: their folders, below `folder`. The ones of the program's PATH are in `bin`.
    """
    for place in {"bin", server, control}:
        (folder / place).mkdir(exist_ok=True)
        shutil.copy(shutil.which("sleep") or "", folder / place / "nvidia-cuda-mps-server")
        shutil.copy(shutil.which("sh") or "", folder / place / "nvidia-cuda-mps-control")
    line = f"{folder / server / 'nvidia-cuda-mps-server'} 30 >/dev/null & echo $!; exec >&-; wait"
    argv = [str(folder / control / "nvidia-cuda-mps-control"), "-c", line]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        pid = int(daemon.stdout.read())
        try:
            yield pid
        finally:
            subprocess.run(["kill", str(pid)], check=True)


@pytest.mark.parametrize(
    ("server", "control", "status"), [("bin", "bin", 0), ("nvidia-cuda-mps", "bin", 1), ("bin", "other", 1)]
)
def test_only_a_server_of_the_daemon_of_mps_may_stay(
    tmp_path: Path, server: str, control: str, status: int
) -> None:
    with server_of_mps(tmp_path, server, control) as pid:
        code, said = run(tmp_path, "0", left=f"echo {pid}, nvidia-cuda-mps-server")
    assert code == status, said
    assert str(pid) in said or not status


def test_a_server_of_another_users_daemon_must_not_stay(tmp_path: Path) -> None:
    with server_of_mps(tmp_path, "bin", "bin") as pid:
        write_program(tmp_path / "bin" / "id", f"echo {os.geteuid() + 1}")
        code, said = run(tmp_path, "0", left=f"echo {pid}, nvidia-cuda-mps-server")
    assert code == 1
    assert str(pid) in said


@pytest.mark.parametrize(
    "name",
    [
        "/home/mallory/nvidia-cuda-mps/miner",
        "/usr/bin/nvidia-cuda-mps-server",
        "nvidia-cuda-mps-server",
        r"a\c",
        "*",
        "\x1b[2J",
    ],
)
def test_a_name_that_a_user_chooses_hides_no_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows").write_text(f"{os.getpid()}, {name}\n1, init\n")
    code, said = run(tmp_path, "0", left=f"cat {tmp_path}/rows")
    shown = name.replace("\x1b", "")
    assert (code, said) == (
        1,
        f"gpuprov: GPU {BUSY} is in use after or before its job: {os.getpid()}, {shown} 1, init\n",
    )


def test_a_missing_gpu_fails_with_its_device_file(tmp_path: Path) -> None:
    code, said = run(tmp_path, "1,2")
    assert code == 1
    assert said.startswith("gpuprov: /dev/nvidia2 has no GPU")


@pytest.mark.parametrize("smi", ["echo 'No devices were found'; exit 6", "exit 9"])
def test_a_driver_that_does_not_answer_fails(tmp_path: Path, smi: str) -> None:
    code, said = run(tmp_path, "0", smi=smi)
    assert code == 1
    assert said.startswith("gpuprov: nvidia-smi does not answer: ")


def test_a_gpu_that_does_not_answer_fails_with_its_address(tmp_path: Path) -> None:
    code, said = run(tmp_path, "0", left="echo 'GPU is lost'; exit 15")
    assert (code, said) == (1, f"gpuprov: GPU {BUSY}: GPU is lost\n")


def test_instances_are_left_out(tmp_path: Path) -> None:
    assert run(tmp_path, "0", mig="Enabled", left="echo 4711, x") == (0, "")


@pytest.mark.parametrize("gpus", ["0;1", "$(touch x)", "a", "0 1"])
def test_what_is_no_list_of_numbers_fails(tmp_path: Path, gpus: str) -> None:
    assert run(tmp_path, gpus)[0] == 1
    assert asked(tmp_path) == []
