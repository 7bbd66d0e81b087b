"""Bootstrap's report on a node's Secure Boot, and its calls of mokutil."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuprov.bootstrap import secure_boot
from gpuprov.bootstrap.secure_boot import LETTERS, enrolment
from gpuprov.errors import NodeFailed
from gpuprov.probe.parse.state import SecureBoot

OURS = "ab" * 32


@dataclass
class Certificate:
    """The fields of a certificate that bootstrap uses."""

    der: bytes = b"the certificate"
    fingerprint: str = OURS
    signer: str = "Site"


@dataclass
class Output:
    """Result of a command."""

    code: int
    stdout: bytes
    stderr: bytes


def come(monkeypatch: pytest.MonkeyPatch, folder: Path, mokutil: str = "", **seen: Any) -> Any:
    """Bootstrap a node with this mokutil script and these probe results; return the enrolment."""
    result = {
        "on": True,
        "enforced": True,
        "enrolled": frozenset(),
        "trusted": ("Debian CA",),
        "vendor": "QEMU",
    }
    facts = type("Facts", (), {"secure_boot": SecureBoot(**(result | seen))})
    monkeypatch.setattr(secure_boot, "collect", lambda session, parameters: facts)

    def run(session: Any, command: str, password: str | None, stdin: bytes = b"") -> Output:
        """Run the node's command on this machine, with the fake mokutil."""
        (folder / "mokutil").write_text(f"#!/bin/sh\n{mokutil or 'exit 9'}\n")
        (folder / "mokutil").chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        words = ["sh", "-c", command]
        done = subprocess.run(words, input=stdin, capture_output=True, env=environment, cwd=folder)
        return Output(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(secure_boot, "as_root", run)
    return enrolment("gpu01", None, Certificate())  # type: ignore[arg-type]


TAKES = """
case $1 in
--test-key) test -e imported && echo "$2 is already in the enrollment request" || echo "$2 is not enrolled" ;;
--import) cat "$2" >imported; cat >typed; cat /proc/[0-9]*/cmdline >processes; env >environment ;;
esac"""


def test_a_request_has_a_password_for_one_time_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = come(monkeypatch, tmp_path, TAKES)
    assert done.changed == ["enrolment of the certificate of Site requested"]
    assert (tmp_path / "imported").read_bytes() == b"the certificate"
    first, second = (tmp_path / "typed").read_text().split()
    assert first == second
    assert set(first) <= set(LETTERS)
    shown = [line for line in done.notes if "Enroll MOK, Continue, Yes" in line]
    assert re.findall(r"password (\w+),", shown[0]) == [first]
    assert "the kernel trusts Debian CA" in done.notes
    (tmp_path / "imported").unlink()
    again = come(monkeypatch, tmp_path, TAKES)
    assert again.notes != done.notes


def test_the_password_is_in_no_process_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the password out of arguments, which are also in sudo's log."""
    come(monkeypatch, tmp_path, TAKES)
    password, _ = (tmp_path / "typed").read_bytes().split()
    assert b"--import" in (tmp_path / "processes").read_bytes()
    for seen in ("processes", "environment"):
        assert password not in (tmp_path / seen).read_bytes()


def test_a_request_that_waits_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = come(monkeypatch, tmp_path, 'echo "$2 is already in the enrollment request"; test $1 = --test-key')
    assert not done.changed
    assert "waits for the console" in done.notes[-1]


def test_what_mokutil_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check the error if mokutil refuses the import of the certificate."""
    with pytest.raises(NodeFailed, match=r"Site: EFI variables are not supported.*mokutil --import.* gpu01"):
        come(monkeypatch, tmp_path, "echo EFI variables are not supported >&2; exit 1")


def test_a_request_that_mokutil_passed_over_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(NodeFailed, match="does not accept the certificate of Site: SKIP"):
        come(monkeypatch, tmp_path, "echo SKIP >&2")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"on": None}, "no EFI: Secure Boot cannot be on"),
        ({"enrolled": frozenset({OURS})}, "the certificate of Site is enrolled"),
        ({"vendor": "Google"}, "not enrolled; it needs a custom image with it in --signature-database-file"),
        ({"vendor": "Amazon EC2"}, "--uefi-data"),
        ({"vendor": "Microsoft Corporation"}, "uefiSettings.additionalSignatures"),
    ],
)
def test_nothing_is_asked_of_mokutil_where_it_could_not_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: dict[str, Any], said: str
) -> None:
    done = come(monkeypatch, tmp_path, **seen)
    assert not done.changed
    assert said in done.notes[-1]
    assert not (tmp_path / "mokutil").exists()


def test_secure_boot_that_is_off_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = come(monkeypatch, tmp_path, on=False, enrolled=frozenset({OURS}))
    assert done.notes[0].startswith("Secure Boot is off: switch it on")
