"""Command line that boots a node, and its supervisor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuprov_lab import engine
from gpuprov_lab.engine import SUPERVISOR, boot_command


def test_a_node_boots_unregistered_in_its_own_namespace() -> None:
    command = boot_command(Path("/r"), "lab-node1", "node1", Path("/run/netns/x"), ["--bind-ro=/a:/b"])
    assert command[0] == "systemd-nspawn"
    assert {"--boot", "--directory=/r", "--register=no", "--keep-unit", "--machine=lab-node1"} <= set(command)
    assert "--network-namespace-path=/run/netns/x" in command
    assert command[-1] == "--bind-ro=/a:/b"


@pytest.mark.parametrize(("codes", "runs"), [((133, 133, 0), 3), ((1,), 1), ((133, 137), 2)])
def test_the_supervisor_starts_again_after_a_reboot_only(
    tmp_path: Path, codes: tuple[int, ...], runs: int
) -> None:
    count = tmp_path / "count"
    count.write_text("")
    answers = " ".join(map(str, codes))
    system = f'echo >>{count}; set -- {answers}; shift $(($(wc -l <{count}) - 1)); exit "$1"'
    subprocess.run(["sh", "-c", SUPERVISOR, "supervisor", "sh", "-c", system], check=False, timeout=20)
    assert len(count.read_text()) == runs


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError])
def test_a_process_that_ends_meanwhile_has_no_name(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the errors of opening and of reading a file in /proc."""

    def read(path: Path) -> str:
        """Raise the error."""
        raise error

    monkeypatch.setattr(Path, "read_text", read)
    assert engine._name(1) == ""
