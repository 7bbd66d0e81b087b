"""`gpuprov nccl check` with fake `nvidia-smi` and `all_reduce_perf` that replay recorded output."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuprov.accept.allreduce import write_script
from gpuprov.cli.nccl import command
from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.nccl import allreduce
from gpuprov.nccl.check import Machine, estimate, inspect_machine, measure, tool
from gpuprov.nccl.limits import Limit, nvlink_limit, pcie_limit
from gpuprov.nccl.shells import Local
from tests import H200
from tests.unit.programs import write_program

NVIDIA_SMI = f"""\
case "$*" in
  -L) for i in 0 1 2 3; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done ;;
  "nvlink -s") cat {H200}/nvlink.txt ;;
  *) for i in 0 1 2 3; do echo "5, 16"; done ;;
esac
"""
ALL_REDUCE_PERF = f"""\
if [ "$NCCL_P2P_DISABLE" = 1 ]; then cat {H200}/nccl-socket.log; else cat {H200}/nccl-p2p.log; fi
echo "host:1:1 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to $NCCL_NVLS_ENABLE."
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a fake nvidia-smi and all_reduce_perf, which are first on the PATH."""
    write_program(tmp_path / "nvidia-smi", NVIDIA_SMI)
    write_program(tmp_path / "all_reduce_perf", ALL_REDUCE_PERF)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def check(*arguments: str) -> dict[str, object]:
    """Run `gpuprov nccl check` for this machine; return its JSON document."""
    result = CliRunner().invoke(
        command, ["check", "--local", "-o", "json", *arguments], standalone_mode=False
    )
    assert result.exception is None, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.usefixtures("machine")
def test_default_against_nvlink() -> None:
    """Check `nccl check` against the limit of NVLink, with an estimate for a model."""
    [row] = check("--parameters", "7e9")["runs"]  # type: ignore[misc]
    assert row["limit"] == {"gbs": 478.116, "path": "NVLink, 18 links of 26.562 GB/s"}
    assert row["share"] == pytest.approx(0.688, abs=0.001)
    assert row["estimate"]["seconds"] == pytest.approx(28 / 328.81, rel=1e-3)
    assert {finding["level"] for finding in row["verdict"]} == {"ok"}


@pytest.mark.usefixtures("machine")
def test_compare_runs_all_three_and_blames_none_for_what_it_asked() -> None:
    rows = check("--compare")["runs"]
    assert [row["variant"] for row in rows] == ["default", "no-p2p", "socket"]  # type: ignore[attr-defined]
    assert rows[1]["limit"]["path"] == "PCIe generation 5, 16 lanes"  # type: ignore[index]
    assert rows[2]["limit"] is None  # type: ignore[index]
    levels = {f["rule"]: f["level"] for f in rows[2]["verdict"]}  # type: ignore[index]
    assert (levels["intra.transport"], levels["environment.off"]) == ("ok", "ok")


@pytest.mark.usefixtures("machine")
def test_multicast_stays_off_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    outcome = measure(inspect_machine(), "default", *tool(4), timeout_s=30)
    assert outcome.log.environment["NCCL_NVLS_ENABLE"].keys() == {"0"}


@pytest.mark.usefixtures("machine")
def test_a_path_without_nvlink_fails_the_check() -> None:
    outcome = measure(
        inspect_machine(), "default", "stub", ["cat", str(H200 / "nccl-socket.log")], timeout_s=30
    )
    levels = {finding.rule: finding.level for finding in outcome.verdict}
    assert (levels["intra.transport"], levels["check.speed"]) == ("bad", "warn")


def test_a_run_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    write_program(tmp_path / "hang", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match="did not end in 1 s"):
        measure(Machine(2, None, None), "default", "stub", [str(tmp_path / "hang")], timeout_s=1)
    assert time.monotonic() - begun < 20
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_that_fails_without_a_word_of_nccl() -> None:
    with pytest.raises(NodeFailed, match="ended with 3: no CUDA"):
        measure(Machine(2, None, None), "default", "stub", ["sh", "-c", "echo no CUDA; exit 3"], timeout_s=30)


def test_a_failure_that_nccl_explains_is_a_verdict() -> None:
    line = "h:1:1 [0] x.cc:1 NCCL WARN Duplicate GPU detected"
    outcome = measure(Machine(2, None, None), "default", "stub", ["sh", "-c", f"echo '{line}'; exit 3"], 30)
    assert {finding.rule for finding in outcome.verdict} >= {"nccl.error", "check.result"}


def test_one_gpu_has_nothing_to_reduce_with(machine: Path) -> None:
    write_program(machine / "nvidia-smi", 'echo "GPU 0: NVIDIA H200"')
    with pytest.raises(NodeFailed, match="1 GPU"):
        inspect_machine()


@pytest.mark.usefixtures("machine")
def test_more_gpus_than_there_are() -> None:
    with pytest.raises(InvalidInput, match="8 GPUs requested, 4 found"):
        inspect_machine(8)


def test_an_interpreter_reads_no_module_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the modules of a folder that may be another user's."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    for name in ("functools", "importlib", "torch/__init__"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w')\n")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    for python in (None, "./python"):
        with pytest.raises(NodeFailed, match="--python"):
            tool(2, python)
    assert not (tmp_path / "started").exists()


def test_an_interpreter_is_named_by_a_path_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "python", "exit 0")
    monkeypatch.chdir(tmp_path)
    assert tool(2, "./python")[0] == "PyTorch"


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check the message without nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeFailed, match="nvidia-smi: not found"):
        inspect_machine()


def test_no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check the message without a program that measures."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeFailed, match="--python"):
        tool(2, python=str(tmp_path / "python"))


def test_a_python_with_pytorch_is_taken(tmp_path: Path) -> None:
    write_program(tmp_path / "python", "exit 0")
    assert tool(4, str(tmp_path / "python")) == (
        "PyTorch",
        [str(tmp_path / "python"), allreduce.__file__, "4"],
    )


def test_the_driver_ends_all_ranks_when_one_fails(tmp_path: Path) -> None:
    broken = tmp_path / "torch.py"
    broken.write_text("import os, sys, time\nif os.environ['RANK'] == '0': sys.exit(7)\ntime.sleep(60)\n")
    done = subprocess.run(
        [sys.executable, allreduce.__file__, "3"], env={"PYTHONPATH": str(tmp_path)}, timeout=20, check=False
    )
    assert done.returncode == 7


def test_limits() -> None:
    """Check the limits that NVLink's or PCIe's output allows; None if a GPU has no active link or the output
    is not usual.
    """
    assert nvlink_limit((H200 / "nvlink.txt").read_text()) == Limit(
        478.116, "NVLink, 18 links of 26.562 GB/s"
    )
    assert (
        nvlink_limit("GPU 0: A (UUID: x)\n\t Link 0: 25 GB/s\nGPU 1: A (UUID: y)\n\t Link 0: <inactive>\n")
        is None
    )
    assert nvlink_limit("") is None
    assert nvlink_limit(f"GPU {'9' * 5000}: A\n\t Link 0: 1.2.3 GB/s\n") is None
    assert pcie_limit("4, 16\n5, 16\n") == Limit(31.507, "PCIe generation 4, 16 lanes")
    assert pcie_limit("[N/A], [N/A]\n") is None


def test_estimate() -> None:
    """Check the seconds that an all-reduce of a model's gradients takes at a bandwidth."""
    assert estimate(7e9, 100.0, 4) == {"parameters": 7e9, "seconds": 0.28, "seconds_ring": 0.42}


@pytest.mark.parametrize(("code", "name"), [(0, "libnccl"), (1, "PyTorch")])
def test_libnccl_itself_is_taken_where_it_loads(code: int, name: str, tmp_path: Path) -> None:
    write_program(tmp_path / "torch-python", "exit 0")
    script = tmp_path / "own.py"
    script.write_text(f"import sys; sys.exit({code})")
    found, line = tool(4, None, Here(), script)
    assert found == name
    assert (str(script) in line, line[-1]) == (code == 0, "4")


class Here(Local):
    """This machine, with a Python that appears to have PyTorch."""

    pythons = (sys.executable,)

    def run(self, command: Any, environment: Any, timeout_s: float) -> tuple[str, int]:
        """Return success for commands about PyTorch; run all others."""
        return ("", 0) if "torch" in str(command) else super().run(command, environment, timeout_s)


def test_the_program_for_libnccl_says_what_is_missing(tmp_path: Path) -> None:
    line = [sys.executable, "-IBS", str(write_script(tmp_path)), "0"]
    assert Local().run(line, {}, 30) == (
        "libcuda.so.1 cannot be loaded: libcuda.so.1: cannot open shared object file: No such file or"
        " directory\n",
        1,
    )
