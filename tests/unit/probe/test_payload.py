"""The probe run on this machine, and all ways in which a node can fail to answer."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.node import main as node
from gpuprov.probe.node.network import interface_addresses
from gpuprov.probe.payload import (
    ANSWER_LIMIT,
    Answered,
    Parameters,
    build,
    parse_answer,
)
from tests import ROOT
from tests.unit.programs import write_program

NODE = ROOT / "gpuprov/probe/node"
QUICK = ("system", "sysctls", "files", "memory")
PASSWORD = "correct horse"  # noqa: S105
NONCE = "0123456789abcdef"

Programs = Callable[[str, str], Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Function that puts a program before the system's programs in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return lambda name, script: write_program(tmp_path / name, script)


def ask(parameters: Parameters, shell: str = "/bin/sh", before: str = "", after: str = "") -> Facts:
    """Run the probe in a shell on this machine, with text or commands around it; return its facts."""
    payload = build(parameters, become=False)
    command = f"{before}{payload.command}" if not after else f"{before}( {payload.command} ); {after}"
    done = subprocess.run(
        [shell, "-c", command], input=payload.stdin, capture_output=True, timeout=60, check=False
    )
    return Facts.from_answer(payload.answer(done.stdout, done.stderr))


def frame(document: bytes, nonce: str = NONCE) -> bytes:
    """Return a document in a frame: marker with nonce, length and hash, then the compressed text."""
    body = base64.b64encode(zlib.compress(document))
    mark = f"<<gpuprov {nonce} {len(body)} {hashlib.sha256(body).hexdigest()}>>\n"
    return mark.encode() + body + b"\n"


def test_this_machine_answers() -> None:
    """Check the facts of this machine: kernel, sysctls and files, None for missing ones."""
    facts = ask(
        Parameters(files=("/etc/passwd", "/no/such"), sysctls=("kernel.ostype", "no.such"), collectors=QUICK)
    )
    assert facts.kernel == os.uname().release
    assert facts.sysctls == {"kernel.ostype": "Linux", "no.such": None}
    assert facts.files["/etc/passwd"].sha256 == hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest()
    assert (facts.files["/etc/passwd"].mode, facts.files["/etc/passwd"].owner) == ("0644", "root")
    assert not facts.files["/no/such"].exists
    assert facts.memory.total_mib > 100
    assert facts.seconds < 10


def test_every_collector_answers_or_says_why() -> None:
    facts = ask(Parameters(units=("ssh.service",)))
    for name, reason in facts.missing.items():
        assert reason, name
        assert "Error" not in reason, f"{name} failed in a way that nobody thought of: {reason}"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_banners_before_and_after_do_not_matter(shell: str) -> None:
    banner = "echo Welcome; echo '<<gpuprov welcome>>'; head -c 100000 /dev/zero | tr '\\0' x; "
    facts = ask(Parameters(collectors=QUICK), shell, before=banner, after="echo Goodbye")
    assert facts.kernel == os.uname().release


def test_a_hanging_nvidia_smi_costs_its_time_out_only(programs: Programs, tmp_path: Path) -> None:
    programs("nvidia-smi", f"echo $$ > {tmp_path}/pid; sleep 300 & echo $! >> {tmp_path}/pid; wait")
    begun = time.monotonic()
    facts = ask(Parameters(collectors=("smi", *QUICK), seconds={"smi": 1.0}))
    assert time.monotonic() - begun < 8
    assert facts.smi.error == "nvidia-smi: no answer in 1 s"
    assert facts.kernel == os.uname().release
    pids = (tmp_path / "pid").read_text().split()
    while any(map(_is_alive, pids)) and time.monotonic() - begun < 20:
        time.sleep(0.05)  # a killed process ends when it is next scheduled
    assert not any(map(_is_alive, pids)), "a child of the probe is left"


def _is_alive(pid: str) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_nvidia_smis_own_failure_is_a_fact(programs: Programs) -> None:
    programs("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert ask(Parameters(collectors=("smi",))).smi.error == (
        "Failed to initialize NVML: Driver/library version mismatch"
    )


def test_endless_output_is_cut_short(programs: Programs) -> None:
    programs("nvidia-smi", "yes")
    with pytest.raises(Missing, match="nvidia-smi answered more than 4194304 bytes"):
        _ = ask(Parameters(collectors=("smi",))).smi


def test_a_collector_that_crashes_is_alone(programs: Programs) -> None:
    programs("lsblk", "echo '[{]'")
    facts = ask(Parameters(collectors=("disks", *QUICK)))
    with pytest.raises(Missing, match=r"disks: JSONDecodeError: "):
        _ = facts.disks
    assert set(facts.missing) == {"disks"}


@pytest.mark.parametrize(
    "large",
    [["x" * 9_000_000], ["\ufffd" * 1_500_000], [[""] * 70_000], {str(n): [] for n in range(70_000)}],
    ids=["bytes", "escapes", "values", "names"],
)
def test_one_large_value_is_left_out_and_no_other(large: object) -> None:
    """Cover what users choose the size of: texts, characters that JSON escapes, number of processes."""
    small = {"smi": {"stdout": "x" * 300_000}, "kernel_log": {"kept": [[1.5, "x" * 100]] * 4000}}
    values = {**small, "programs": large}
    node.leave_out_largest(values)
    answer = frame(json.dumps({"collectors": values}).encode())
    assert parse_answer(answer, NONCE)["collectors"] == {
        **small,
        "programs": {"error": "the largest part of more than 8000000 bytes"},
    }
    node.leave_out_largest(values)
    assert values["smi"] == small["smi"]


def test_interfaces_are_known_without_ip(programs: Programs) -> None:
    shown = json.loads(subprocess.check_output(["ip", "-json", "address", "show", "dev", "lo"]))
    there = [f"{each['local']}/{each['prefixlen']}" for each in shown[0]["addr_info"]]
    assert interface_addresses()["lo"] == there
    programs("ip", "exit 1")
    assert not ask(Parameters(collectors=("nics",))).missing


def test_nothing_is_left_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    ask(Parameters(collectors=QUICK))
    assert list(tmp_path.iterdir()) == []


def test_no_python_is_said_in_one_line(tmp_path: Path) -> None:
    payload = build(Parameters(), become=False)
    command = payload.command.replace("/usr/", "/no/")
    environment = {"PATH": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", command], input=b"", capture_output=True, env=environment, check=False
    )
    with pytest.raises(NodeFailed, match="no Python 3 on the node; install python3 there"):
        payload.answer(done.stdout, done.stderr)


def test_sudos_password_comes_first_and_is_skipped_when_not_asked_for(programs: Programs) -> None:
    """Send the password as first line: sudo reads it if it needs it, otherwise the program skips it."""
    programs("id", "echo 1000")
    for reads in ("read -r password", ":"):
        programs("sudo", f'{reads}; while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
        payload = build(Parameters(collectors=QUICK), password=PASSWORD)
        assert PASSWORD.encode() not in payload.command.encode()
        done = subprocess.run(
            ["/bin/sh", "-c", payload.command],
            input=payload.stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert payload.answer(done.stdout, done.stderr)["collectors"]["system"]["kernel"]


def test_sudos_refusal_is_quoted(programs: Programs) -> None:
    programs("id", "echo 1000")
    programs("sudo", "echo 'sudo: 3 incorrect password attempts' >&2; exit 1")
    payload = build(Parameters(), password=PASSWORD)
    done = subprocess.run(
        ["/bin/sh", "-c", payload.command], input=payload.stdin, capture_output=True, check=False
    )
    with pytest.raises(NodeFailed, match="no answer from the probe: sudo: 3 incorrect password attempts"):
        payload.answer(done.stdout, done.stderr)


def test_without_leave_for_sudo_the_probe_runs_as_it_is(programs: Programs) -> None:
    programs("id", "echo 1000")
    programs("sudo", "exit 1")
    payload = build(Parameters(collectors=QUICK))
    done = subprocess.run(
        ["/bin/sh", "-c", payload.command], input=payload.stdin, capture_output=True, check=False
    )
    assert payload.answer(done.stdout)["collectors"]["system"]["kernel"] == os.uname().release


@pytest.mark.parametrize(
    ("stdout", "said"),
    [
        (b"", "no answer from the probe"),
        (
            b"Welcome\nThis account is not available.\n",
            "no answer from the probe: This account is not available.",
        ),
        (frame(b"{}", "fedcba9876543210"), "the answer belongs to another request"),
        (frame(b"{}")[:100], "the answer broke off after 3 of 16 bytes"),
        (frame(b"{}").replace(b"eJy", b"eJx"), "the answer is damaged"),
        (b"x" * (ANSWER_LIMIT + 1), "the node printed 8388609 bytes"),
        (frame(bytes(ANSWER_LIMIT + 1)), "the answer unpacks to more than"),
    ],
)
def test_what_is_no_answer(stdout: bytes, said: str) -> None:
    """Check the error for each kind of output that is not the probe's answer."""
    with pytest.raises(NodeFailed, match=said):
        parse_answer(stdout, NONCE)


def test_an_answer_of_many_values_takes_no_memory() -> None:
    answer = frame(b'{"a":[' + b"[]," * (ANSWER_LIMIT // 3 - 10) + b"[]]}")
    assert len(answer) < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(NodeFailed, match="more than 131072 values"):
            parse_answer(answer, NONCE)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * ANSWER_LIMIT


def test_marks_of_others_are_passed_over() -> None:
    others = frame(b'{"a": 1}', "fedcba9876543210")
    assert parse_answer(others + frame(b'{"b": 2}') + others, NONCE) == {"b": 2}


def test_control_characters_of_a_node_do_not_reach_the_terminal() -> None:
    with pytest.raises(NodeFailed) as failed:
        parse_answer(b"", NONCE, stderr=b"\x1b[31mred\x07\n")
    assert str(failed.value) == r"no answer from the probe: \x1b[31mred\x07"


def test_what_is_sent_stays_small() -> None:
    """Check the size of the probe's payload and command, and that any login shell accepts it."""
    payload = build(Parameters())
    assert len(payload.stdin) < 57_500
    assert len(payload.command) < 1_000
    assert "'" not in payload.command[len("exec /bin/sh -c '") : -1], "any login shell has to carry it"
    assert "\n" not in payload.command


def test_each_node_has_its_own_question() -> None:
    """Unpack what three nodes are sent: the beginning is compressed once for all of them."""
    logins = ("one", "two", "three")
    sent = [build(Parameters(login=login), become=False) for login in logins]
    programs = [zlib.decompress(base64.b64decode(each.stdin)).decode() for each in sent]
    for login, payload, program in zip(logins, sent, programs, strict=True):
        begin, call = program.rsplit("\nmain(json.loads(", 1)
        assert begin == programs[0].rsplit("\nmain(json.loads(", 1)[0]
        assert f'"login": "{login}"' in call
        assert payload.nonce in call


def test_answers_are_json_of_one_schema() -> None:
    facts = ask(Parameters(collectors=("system",)))
    again = Facts.from_answer(json.loads(json.dumps(facts.to_answer())))
    assert again == facts
    with pytest.raises(NodeFailed, match=r"facts of schema 'gpuprov\.facts/2'; expected gpuprov\.facts/1"):
        Facts.from_answer({"schema": "gpuprov.facts/2", "collectors": {}})
    with pytest.raises(Missing, match="pci: not collected"):
        _ = facts.pci


@pytest.mark.parametrize("step", [1, 3, 50, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_answer_in_pieces_is_complete_with_its_last_byte(step: int, end: str) -> None:
    marks = [f"<<gpuprov {nonce * 16} {size:09d} {'0' * 64}>>{end}" for nonce, size in (("a", 5), ("b", 20))]
    output = f"Welcome <<gpuprov {marks[0]}12345{marks[1]}{'x' * 20}".encode()
    whole = Answered("b" * 16)
    heard = bytearray()
    for at in range(0, len(output), step):
        assert not whole(heard)
        heard += output[at : at + step]
    assert whole(heard)
