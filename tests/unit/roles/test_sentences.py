"""What the driver's role says when it fails, put together by Ansible itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

VARIABLES = ROOT / "roles/nvidia_driver/vars/main.yml"
NAME = "__nvidia_driver_sentence"
BUILD = {
    "msg": "non-zero return code",
    "cmd": ["dkms", "install", "nvidia/580.126.16", "-k", "6.1.0-56-amd64"],
    "rc": 10,
    "stderr": "Error! Bad return status for module build on kernel: 6.1.0-56-amd64\nConsult make.log\n",
}
COMPILER = {
    "source": "nvidia/580.126.16",
    "kernel": "6.1.0-56-amd64",
    "error": "nv.c:7: error: no such thing",
}
APT = {"msg": "Could not connect to 127.0.0.1:9"}


def sentence(error: dict[str, Any], *builds: dict[str, str]) -> str:
    """As `restore.yml` finds it."""
    known = {
        "__nvidia_driver_error": error,
        "__nvidia_driver_look": {"failed_builds": builds},
        "__nvidia_driver_kernels": ["6.1.0-56-amd64"],
        "nvidia_driver_version": "580.126.16",
    }
    words = ["-m", "debug", "-a", f"var={NAME}", "-e", f"@{VARIABLES}", "-e", json.dumps(known)]
    program = Path(sys.executable).with_name("ansible")
    done = subprocess.run([program, "localhost", *words], capture_output=True, text=True, check=True)
    found: str = json.loads(done.stdout[done.stdout.index("{") :])[NAME]
    return found


@pytest.mark.parametrize(
    ("error", "builds", "says"),
    [
        (
            {"results": [{"msg": "All items completed"}, BUILD], "msg": "One or more items failed"},
            [COMPILER],
            "does not build for kernel 6.1.0-56-amd64: nv.c:7: error: no such thing",
        ),
        (
            {"results": [BUILD]},
            [],
            "could not be installed: dkms install nvidia/580.126.16 -k 6.1.0-56-amd64 exited with 10:"
            " Error! Bad return status for module build on kernel: 6.1.0-56-amd64",
        ),
        (APT, [], "could not be installed: Could not connect to 127.0.0.1:9"),
    ],
)
def test_what_failed_is_named(error: dict[str, Any], builds: list[dict[str, str]], says: str) -> None:
    assert sentence(error, *builds).removeprefix("NVIDIA driver 580.126.16 ").startswith(says)
