"""The end of password logins on a new node, with a fake sshd: its answer for the fleet's login counts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.access.deadman import Guard
from gpuprov.bootstrap import run
from gpuprov.errors import NodeFailed
from gpuprov.ssh.transport import Output

NO = "passwordauthentication no\nkbdinteractiveauthentication no\n"
FAKES = 'write_first() { cat >"$FOLDER/drop-in"; }\nrestart_sshd() { :; }\nsshd_unit() { echo ssh; }\n'
SSHD = '#!/bin/sh\ncase "$*" in *-C\\ user=ops,*) cat "$FOLDER/for-ops" ;; *) cat "$FOLDER/global" ;; esac\n'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a node whose `bin/sshd` answers with the files `global` and `for-ops`; nothing else is run."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sshd").write_text(SSHD)
    (tmp_path / "bin/sshd").chmod(0o755)
    (tmp_path / "global").write_text(f"permitrootlogin no\n{NO}")

    def shell(_: object, command: str, __: object) -> Output:
        env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "FOLDER": str(tmp_path)}
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, check=False)
        return Output(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(run, "node_script", lambda *_: FAKES)
    monkeypatch.setattr(run, "as_root", shell)
    monkeypatch.setattr(run, "arm", lambda *_: None)
    monkeypatch.setattr(run, "prove_and_disarm", lambda *_: None)
    monkeypatch.setattr(run, "undo", lambda *words: words[-1])
    return SimpleNamespace(target=SimpleNamespace(route=SimpleNamespace(user="ops", port=22)), changed=[])


def test_password_logins_are_switched_off(node: Any, tmp_path: Path) -> None:
    (tmp_path / "for-ops").write_text(NO)
    run._passwords_off(node, None, Guard(60))  # type: ignore[arg-type]
    assert node.changed == ["password logins switched off"]
    assert (tmp_path / "drop-in").read_text().startswith("PasswordAuthentication no\n")


@pytest.mark.parametrize("option", ["password", "kbdinteractive", "challengeresponse"])
def test_passwords_that_a_block_of_match_allows_are_not_called_off(
    node: Any, tmp_path: Path, option: str
) -> None:
    (tmp_path / "for-ops").write_text(f"{NO}{option}authentication yes\n")
    with pytest.raises(NodeFailed, match=r"cannot be switched off: a block of Match .* allows them"):
        run._passwords_off(node, None, Guard(60))  # type: ignore[arg-type]
    assert node.changed == []


def test_an_sshd_that_does_not_answer_for_the_login_is_no_success(node: Any) -> None:
    with pytest.raises(NodeFailed, match=r"cannot be switched off: .*for-ops"):
        run._passwords_off(node, None, Guard(60))  # type: ignore[arg-type]
