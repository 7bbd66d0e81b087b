"""All-reduce on a node over a session: the same commands, and no files left behind."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.nccl.check import inspect_machine, measure, tool
from gpuprov.nccl.shells import Local, Remote
from tests.unit.nccl.test_check import ALL_REDUCE_PERF, NVIDIA_SMI
from tests.unit.programs import write_program


@dataclass
class Shelled:
    """A session that runs commands in a local shell, with the programs in `path`."""

    path: str

    def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command line in a shell on this machine."""
        return subprocess.run(
            ["/bin/sh", "-c", command],
            input=stdin,
            capture_output=True,
            env={**os.environ, "PATH": self.path},
            check=False,
        )


@pytest.fixture
def node(tmp_path: Path) -> Remote:
    """Return a shell of a fake node with a recorded nvidia-smi."""
    write_program(tmp_path / "nvidia-smi", NVIDIA_SMI)
    return Remote(Shelled(f"{tmp_path}:/usr/bin:/bin"), "gpu01")


def test_a_process_that_keeps_the_output_open_delays_nothing() -> None:
    begun = time.monotonic()
    assert Local().run(["/bin/sh", "-c", "setsid sleep 30 & echo x; echo y >&2"], {}, 20) == ("x\ny\n", 0)
    with pytest.raises(TimeoutError):
        Local().run(["/bin/sh", "-c", "setsid sleep 30 & sleep 30"], {}, 0.5)
    assert time.monotonic() - begun < 20


def test_nccl_tests_on_a_node(node: Remote, tmp_path: Path) -> None:
    write_program(tmp_path / "all_reduce_perf", ALL_REDUCE_PERF)
    machine = inspect_machine(shell=node)
    name, command = tool(machine.gpus, shell=node)
    outcome = measure(machine, "default", name, command, 30, node)
    assert (machine.gpus, name) == (4, "nccl-tests")
    assert outcome.limit is not None
    assert outcome.limit.path.startswith("NVLink")
    assert outcome.log.results.peak
    socket = measure(machine, "socket", name, command, 30, node)
    assert socket.log.transports["intra"] != outcome.log.transports["intra"]


@pytest.mark.parametrize("stated", [None, "/run/mps"])
def test_programs_use_only_an_mps_server_that_a_variable_names(
    stated: str | None, node: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if stated:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", stated)
    program = write_program(tmp_path / "all_reduce_perf", 'echo "$CUDA_MPS_PIPE_DIRECTORY"')
    for shell in (Local(), node):
        assert shell.run([str(program)], {"NCCL_DEBUG": "INFO"}, 5) == (f"{stated or '/proc/none'}\n", 0)


def test_what_is_placed_is_removed(node: Remote, tmp_path: Path) -> None:
    """Check that a script placed on a node is removed at the end."""
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    place = Path(node.place(script))
    assert place.read_text() == "print(1)\n"
    node.clear()
    assert not place.parent.exists()


def test_a_script_without_a_folder_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mktemp fail: the script would be written to the root folder."""
    write_program(tmp_path / "mktemp", "exit 1")
    node = Remote(Shelled(f"{tmp_path}:/usr/bin:/bin"), "gpu01")
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("the script is sent"))
    with pytest.raises(NodeFailed, match="gpu01 makes no folder for a script"):
        node.place(tmp_path / "script.py")


def test_a_node_without_a_driver_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match="nvidia-smi: not found on gpu01"):
        inspect_machine(shell=Remote(Shelled("/usr/bin:/bin"), "gpu01"))


def test_what_hangs_is_ended_there(node: Remote) -> None:
    """Check that a measurement that does not end in time is killed on the node."""
    machine = inspect_machine(shell=node)
    with pytest.raises(NodeFailed, match="did not end in 1 s"):
        measure(machine, "default", "stub", ["sleep", "20"], 1, node)


def test_a_failure_keeps_its_code_and_last_words(node: Remote) -> None:
    assert node.run(["sh", "-c", "echo no CUDA; exit 3"], {}, 5) == ("no CUDA\n", 3)
    assert node.run(["sh", "-c", "printf half"], {"A": "b c"}, 5) == ("half", 0)


def test_an_answer_cut_off_is_no_answer() -> None:
    class Broken:
        def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
            return subprocess.CompletedProcess([], 0, b"half", b"")

    with pytest.raises(NodeFailed, match="no whole answer"):
        Remote(Broken(), "gpu01").run(["true"], {}, 5)
