"""Results of frameworks on the GPUs, compared with those of the driver and cuBLASLt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprov.accept.judge import Acceptance, judge
from gpuprov.accept.node import framework as program
from gpuprov.accept.run import frameworks_here, with_frameworks
from gpuprov.cli.common.group import run
from gpuprov.errors import NodeFailed
from tests.unit.accept.recorded import recorded

PYTHON = "/opt/torch/bin/python3"


def frameworks(**changes: Any) -> dict[str, Any]:
    """Return the answer of a node with PyTorch on two H200, with changed keys."""
    rows = [{"name": "NVIDIA H200", "bf16": 690.0} for _ in range(2)]
    torch = {"version": "2.11.0", "cuda": "13.0", "gpus": rows, "nccl": "2.28.3", **changes}
    return {"frameworks": {"torch": torch}}


def judged(answer: Any) -> Acceptance:
    """Return the verdict on a node with sound measurements and this answer about frameworks."""
    [found] = judge({"gpu01": with_frameworks(recorded("quick"), PYTHON, answer)})
    return found


def faults(found: Acceptance) -> dict[str, str]:
    """Return rule → text of each finding about frameworks, also of those that are no fault."""
    return {each.rule: each.text for each in found.findings if each.rule.startswith("framework.")}


def test_a_sound_framework_is_reported() -> None:
    found = judged(frameworks())
    assert found.verdict == "accepted"
    assert faults(found) == {"framework.rate": "torch 2.11.0: 690.0, 690.0 TFLOP/s of bf16"}


@pytest.mark.parametrize(
    ("answer", "rule", "said"),
    [
        (NodeFailed("no answer from the probe: x: not found"), "framework.error", f"{PYTHON}: no answer"),
        ({"frameworks": {}}, "framework.none", f"{PYTHON} has neither PyTorch nor JAX nor TensorFlow"),
        ({"frameworks": {"jax": {"error": "no CUDA"}}}, "framework.error", "jax: no CUDA"),
        (frameworks(gpus=[]), "framework.gpus", "torch 2.11.0 sees 0 GPUs, the driver lists 2"),
        (
            frameworks(gpus=[{"bf16": 690.0}, {"bf16": 60.0}]),
            "framework.slow",
            "GPU 1: torch 2.11.0 reaches 60.0 TFLOP/s of bf16, cuBLASLt",
        ),
    ],
)
def test_what_a_framework_lacks_rejects_the_node(answer: Any, rule: str, said: str) -> None:
    found = judged(answer)
    assert found.verdict == "rejected"
    assert faults(found)[rule].startswith(said)


def test_another_nccl_is_reported_and_no_fault() -> None:
    found = judged(frameworks(nccl="2.27.5"))
    assert found.verdict == "accepted"
    assert "torch 2.11.0 brings NCCL 2.27.5, the node has 2.28.3" in faults(found)["framework.nccl"]


def test_a_node_that_was_not_measured_stays_so() -> None:
    failure = NodeFailed("no answer within 300 s")
    assert with_frameworks(failure, PYTHON, frameworks()) is failure


def test_an_interpreter_without_frameworks_says_so() -> None:
    answer = frameworks_here(sys.executable)
    assert (answer["schema"], answer["frameworks"]) == (program.SCHEMA, {})
    with pytest.raises(NodeFailed, match="/nowhere/python: not found"):
        frameworks_here("/nowhere/python")


def test_a_framework_that_dies_or_breaks_is_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report frameworks that crash or that the site's interpreter cannot import with their errors."""
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (tmp_path / "jax.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    frameworks = frameworks_here(str(wrapper))["frameworks"]
    assert frameworks["torch"]["error"] == "it ended by itself (signal 11)"
    assert (
        frameworks["jax"]["error"] == "it cannot be imported: libcudnn.so.9: cannot open shared object file"
    )


def test_judged_again_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = with_frameworks(recorded("quick"), PYTHON, frameworks(gpus=[]))
    path = tmp_path / "accept.json"
    path.write_text(
        json.dumps({"schema": "gpuprov.accept/1", "nodes": [{"node": "n", "measured": document}]})
    )
    assert run(["accept", "--measured", str(path)]) == 1
    assert "torch 2.11.0 sees 0 GPUs, the driver lists 2  [framework.gpus]" in capsys.readouterr().out


def test_an_interpreter_reads_no_module_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the modules of a folder that may be another user's."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("base64", "torch", "jax"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w')\n")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert frameworks_here("./python")["frameworks"] == {}
    assert not (tmp_path / "started").exists()
