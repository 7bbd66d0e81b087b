"""Secrets in every place that accepts one, and a search for them in every place that could keep one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import Lab, Node
from gpuprov_lab.variants import with_admin
from tests.lab.command_line import PROGRAM, gpuprov, with_own_state

ADMIN = "ops"
PASSWORD = "pl4nted-sudo-passw0rd"  # noqa: S105 - of a throwaway node
TOKEN = "hf_pl4ntedTokenOfTheNode"  # noqa: S105


def typed(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run gpuprov on a terminal, type the password at its prompt; return exit code, output, command lines."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(sys.executable, [*PROGRAM, *words], with_own_state(folder))  # noqa: S606
    shown, processes, answered = b"", "", False
    while chunk := _read(terminal):
        shown += chunk
        listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True)
        processes += listed.stdout
        if not answered and b"password" in shown:
            os.write(terminal, f"{PASSWORD}\n".encode())
            answered = True
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace"), processes


def _read(terminal: int) -> bytes:
    """Return the next output of a terminal; empty at its end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # end of file: no process has the terminal open
        return b""


@pytest.fixture(scope="module")
def fleet(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Path]:
    """Node whose sudo requires a password and whose environment contains a token, and its fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    [node] = module_lab.up(1, "debian13", prepare=[with_admin(ADMIN, PASSWORD)])
    node.run(f"echo NCCL_DEBUG=WARN >>/etc/environment; echo HF_TOKEN={TOKEN} >>/etc/environment")
    stated = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    stated["ssh"]["user"] = ADMIN
    for group in stated["groups"].values():
        group["settings"] = {"kernel": "6.12.94+deb13-amd64", "ssh": {}}
    (folder / "fleet.yml").write_text(yaml.safe_dump(stated))
    gpuprov(folder, "lock")
    return node, folder


@pytest.mark.parametrize(
    "words",
    [
        ("facts", "node1", "-K", "-o", "json"),
        ("drift", "-K", "-o", "json"),
        ("apply", "-K", "--yes", "--no-verify", "--role", "ssh_hardening"),
        pytest.param(("verify", "-K", "-o", "json"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_no_secret_is_shown_or_kept(fleet: tuple[Node, Path], words: tuple[str, ...]) -> None:
    node, folder = fleet
    code, shown, processes = typed(folder, *words)
    assert "password:" in shown.lower(), shown
    assert code in (0, 1, 3), shown  # the node has no driver, so drift is found and verify fails
    kept = "".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())
    looked = (
        f"grep -rlF {PASSWORD} /etc /var /root /home /tmp /run; journalctl -q --no-pager | grep -F {PASSWORD}"
    )
    on_node = node.run(looked, user="root", check=False).stdout
    for secret in (PASSWORD, TOKEN):
        for place, text in {
            "output": shown,
            "process list": processes,
            "files": kept,
            "node": on_node,
        }.items():
            assert secret not in text, place
    assert on_node == ""
