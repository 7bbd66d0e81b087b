"""Hostile input: files of a fleet, names, and answers of nodes are refused or contained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpuprov.bootstrap.hostkeys import HostKeys
from gpuprov.bootstrap.public_keys import public_keys
from gpuprov.cli.bootstrap import command as bootstrap
from gpuprov.cli.common.group import gpuprov
from gpuprov.cli.common.verbs import ADDED, VERBS
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput, NodeFailed, Unreachable
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.profile import load_profile
from gpuprov.report.text import drift_lines
from gpuprov.ssh import openssh
from gpuprov.untrusted import on_one_line, printable
from gpuprov.untrusted.programs import Answer
from tests.unit.programs import write_program

GOOD = "groups:\n  g:\n    profile: hgx-h200-4\n    hosts: {HOSTS}\n    os: debian12\n"
ATTACKS = (
    "gpu01; reboot",
    "$(reboot)",
    "`reboot`",
    "gpu01|reboot",
    "gpu01\nProxyCommand=reboot",
    "-oProxyCommand=reboot",
    "gpu 01",
    "gpu01'",
    "../gpu01",
    "gpu01\x1b[2J",
    "gpu01\u202e",
    "",
)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("place", ["name", "address"])
def test_no_host_is_called_like_a_command(name: str, place: str) -> None:
    host = {name: "10.0.0.1"} if place == "name" else {"gpu01": name}
    with pytest.raises(InvalidInput):
        parse_fleet(GOOD.replace("{HOSTS}", json.dumps(host)), "fleet.yml")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a/../../b", "a\x00b"])
def test_no_profile_is_read_from_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.yml").write_text("description: out of reach\n")
    with pytest.raises(InvalidInput, match=r"profile|NUL"):
        parse_fleet(GOOD.replace("hgx-h200-4", json.dumps(name)).replace("{HOSTS}", "gpu01"), "fleet.yml")
    with pytest.raises(InvalidInput, match="no profile"):
        load_profile(name, [tmp_path / "profiles"])


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: [*a, *a]\n",
        "a: &a {x: 1}\nb: {<<: *a}\n",
        "groups: !!python/object/apply:os.system [reboot]\n",
        "[" * 5000,
        "{" * 5000,
        "a: " + "9" * 5000 + "\n",
    ],
    ids=["aliases", "merge", "python", "deep-list", "deep-mapping", "long-number"],
)
def test_yaml_bombs_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_fleet(text, "fleet.yml")


def test_words_of_a_node_do_not_steer_the_terminal() -> None:
    nasty = "535\x1b[2J\x1b]0;owned\x07\nnode9 in sync\u202e"
    differences = (Difference("driver.loaded", "535", nasty, "error", "nvidia_driver", False),)
    nodes = [NodeDrift("gpu01", "drifted", differences), NodeDrift("gpu02", "error", reason=nasty)]
    for line in drift_lines(nodes):
        assert line.isprintable(), line
        assert "\\x1b[2J" in line
    assert on_one_line("a\nb") == "a\\nb"
    assert printable("a\nb\tc é 漢") == "a\nb\tc é 漢"


@pytest.fixture
def flood(tmp_path: Path) -> list[str]:
    """Command of a fake ssh to a node that answers with 100 MB."""
    return [str(write_program(tmp_path / "flood", "exec head -c 100000000 /dev/zero"))]


def test_an_answer_of_100_megabytes_is_cut_off(flood: list[str]) -> None:
    limit = 8 * 1024 * 1024
    with pytest.raises(NodeFailed, match="answered more than 8 MB"):
        openssh.run_command(flood, "probe", b"", seconds=30, limit=limit)


def test_a_node_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match=r"no answer within 0\.3 s"):
        openssh.run_command(["sh", "-c"], "sleep 30", b"", seconds=0.3, limit=100)


def test_a_node_that_answers_is_not_waited_for() -> None:
    found = openssh.run_command(["sh", "-c"], "cat; echo done >&2", b"text", seconds=5, limit=100)
    assert found == Answer(0, b"text", b"done\n")


@pytest.mark.parametrize("code", [0, 3, 254, 255])
def test_a_commands_own_exit_code_is_not_sshs(code: int) -> None:
    command = f"""cat; printf "it's \\$1" >&2; exit {code}"""
    found = openssh.run_command(["sh", "-c"], command, b"text", seconds=5, limit=100)
    assert found == Answer(code, b"text", b"it's $1")


@pytest.mark.parametrize(
    "stderr", ["head -c 100000 /dev/zero >&2", "(sleep 0.1; echo late >&2) &"], ids=["cut", "late"]
)
def test_an_exit_code_does_not_depend_on_the_end_of_stderr(stderr: str) -> None:
    found = openssh.run_command(["sh", "-c"], f"{stderr}\nexit 255", b"", seconds=5, limit=100)
    assert found.code == 255


def test_a_failure_of_ssh_is_no_answer(tmp_path: Path) -> None:
    argv = [
        str(write_program(tmp_path / "ssh", "echo 'ops@n: Permission denied (publickey).' >&2; exit 255"))
    ]
    with pytest.raises(Unreachable, match="ops@n refused every key offered"):
        openssh.run_command(argv, "true", b"", seconds=5, limit=100)


@pytest.mark.parametrize("text", ["gpu01 ssh-ed25519\n", "gpu01 ssh-ed25519 %%%\n", "\x00\x01\n", "\n\n"])
def test_known_hosts_of_a_stranger_vouch_for_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known"
    path.write_text(text)
    try:
        keys = HostKeys(tmp_path / "pinned", path)
    except InvalidInput:
        return
    assert not keys.knows("gpu01", 22)


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n",
        'ssh-ed25519 AAAA me\ncommand="reboot" x\n',
        "",
        "$(reboot)\n",
    ],
    ids=["private", "second-line", "empty", "command"],
)
def test_only_public_keys_are_installed(tmp_path: Path, content: str) -> None:
    (tmp_path / "fleet.yml").write_text(GOOD.replace("{HOSTS}", "gpu01"))
    (tmp_path / "key.pub").write_text(content)
    words = ["--fleet", str(tmp_path / "fleet.yml"), "--key", str(tmp_path / "key.pub")]
    refused = CliRunner().invoke(bootstrap, words)
    assert isinstance(refused.exception, InvalidInput)
    assert "is not a public key" in str(refused.exception)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "ssh-ed25519 AAAA me\n\nssh-rsa BBBB somebody@else\n",
            r"key.pub has 2 keys \(lines 1, 3\); expected one",
        ),
        ("ssh-ed25519 AAAA me\u2028ssh-rsa BBBB x\n", r"has 2 keys \(lines 1, 2\)"),
        ('command="reboot" ssh-ed25519 AAAA me\n', "is not a public key"),
        ("restrict,pty ssh-ed25519 AAAA me\n", "is not a public key"),
        ("ssh-ed25519 AAAA a\x00b\n", "is not a public key"),
        ("x" * 70_000, "larger than 65536 bytes"),
    ],
)
def test_a_key_file_has_one_key_without_options(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "key.pub").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        public_keys(None, [tmp_path / "key.pub"])  # type: ignore[arg-type]


def planted(folder: Path) -> list[str]:
    """Return a command line of bootstrap that reads a password."""
    return [
        sys.executable,
        "-m",
        "gpuprov",
        "bootstrap",
        "--user",
        "debian",
        "--password-fd",
        "0",
        *_fleet(folder),
    ]


def _fleet(folder: Path) -> list[str]:
    """Write a fleet with one node and a public key; return the options that name them."""
    (folder / "fleet.yml").write_text(
        GOOD.replace("{HOSTS}", "{gpu01: 127.0.0.1}") + f"ssh: {{known_hosts: {folder / 'known'}, port: 9}}\n"
    )
    (folder / "key.pub").write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKXl me\n")
    return ["--fleet", str(folder / "fleet.yml"), "--key", str(folder / "key.pub"), "--port", "9"]


def test_a_password_is_never_repeated(tmp_path: Path) -> None:
    secret = "pl4nted-pass-w0rd"  # noqa: S105
    done = subprocess.run(planted(tmp_path), input=f"{secret}\n", capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr  # no server listens on this port
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    for place, text in {"stdout": done.stdout, "stderr": done.stderr, "files": written}.items():
        assert secret not in text, place


def test_no_option_takes_a_secret_as_its_value() -> None:
    context = click.Context(gpuprov)

    def options(verb: str) -> Iterator[Any]:
        """Yield the options and arguments of a verb and its commands."""
        command = gpuprov.get_command(context, verb)
        assert command
        yield from command.params
        for each in getattr(command, "commands", {}).values():
            yield from each.params

    for verb in (*VERBS, *ADDED):
        for option in options(verb):
            if "pass" in option.name and not option.is_flag:
                assert option.name.endswith("_fd") or option.type.name in ("integer", "integer range"), (
                    verb,
                    option.name,
                )
