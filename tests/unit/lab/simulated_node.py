"""Root tree of a simulated machine, and its programs as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov_lab.simulator import stub_module
from gpuprov_lab.simulator.node.files import Files
from gpuprov_lab.simulator.node.main import main

KERNEL = "6.1.0-56-amd64"


@dataclass
class Answer:
    """Output and exit status of a program."""

    status: int
    text: str


@dataclass
class Simulated:
    """A simulated node; `call` runs one of its programs."""

    root: Path
    capture: pytest.CaptureFixture[str]

    def call(self, program: str, *arguments: str) -> Answer:
        """Run a program of the simulated machine; return exit code and output."""
        status = main(program, list(arguments))
        captured = self.capture.readouterr()
        return Answer(status, captured.out + captured.err)

    def smi(self, *arguments: str) -> Answer:
        """Run the simulated nvidia-smi."""
        return self.call("nvidia-smi", *arguments)

    def reboot(self) -> None:
        """Remove the files on a tmpfs, then boot."""
        Files(self.root).boot_state.unlink(missing_ok=True)
        assert self.call("gpuprov-sim", "boot").status == 0

    def put_module(self, version: str, *, licence: str = "NVIDIA", kernel: str = KERNEL) -> None:
        """Write the driver's modules to disk with the names that Debian's DKMS uses."""
        folder = self.root / f"lib/modules/{kernel}/updates/dkms"
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("", "-uvm", "-modeset", "-drm"):
            content = stub_module(version, kernel=kernel, licence=licence)
            (folder / f"nvidia-current{part}.ko").write_bytes(content)

    def put_library(self, version: str) -> None:
        """Write libnvidia-ml to disk and link it."""
        folder = self.root / "usr/lib/x86_64-linux-gnu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"libnvidia-ml.so.{version}").touch()
        (folder / "libnvidia-ml.so.1").unlink(missing_ok=True)
        (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")

    def blacklist(self, module: str) -> Path:
        """Blacklist a module in a file of modprobe.d, and return its path."""
        path = self.root / f"etc/modprobe.d/{module}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# a comment\nblacklist {module}\n")
        return path


Bare = Callable[[str], Simulated]
Driven = Callable[..., Simulated]
