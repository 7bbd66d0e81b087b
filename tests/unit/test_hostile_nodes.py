"""Faulty nodes: each is reported in one line, the run continues, and all other nodes are reported."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import paramiko
import pytest
from click.testing import CliRunner

from gpuprov.access.deadman import Undone, source_address
from gpuprov.apply import guarded
from gpuprov.apply.kernel_modules.fetching import PROGRAM
from gpuprov.apply.remote import ask_nodes
from gpuprov.cli.inventory_discover import command as discover
from gpuprov.doctor.look import conclude
from gpuprov.drift.survey import survey
from gpuprov.errors import TEXT, GpuprovError, InvalidInput, NodeFailed, Refused, Silent, Unreachable
from gpuprov.history.record import of_majority
from gpuprov.model.connection import Connection
from gpuprov.model.fleet import parse_fleet
from gpuprov.probe.facts import Facts
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, CrewLost
from gpuprov.ssh.transport import ConnectionLimits, Target, fan_out, targets
from gpuprov.upgrade.exclusive import leases_for, take_all
from gpuprov.upgrade.fetching import fetch
from gpuprov.upgrade.gate import ask_gate
from gpuprov.upgrade.repair.ladder import patient
from tests.campaign._hostile_fleet import BAD, GOOD, Answer, Fleet, PaperSession, answering, healthy
from tests.campaign._hostile_ways import SHARES, Ways, packed, raw
from tests.campaign.hostile import attempt
from tests.unit.samples import sample

MALFORMED: dict[str, tuple[Answer, str]] = {
    "base64": (raw(b"%%%"), "the answer is no document"),
    "zlib": (raw(b"AAAA"), "the answer is no document"),
    "json": (packed(b"{"), "the answer is no document"),
    "depth": (packed(b"[" * 100_000 + b"]" * 100_000), "the answer is no"),
    "nested": (packed(b"[" * 500 + b"]" * 500), "nested too deeply"),
    "huge integer": (packed(b'{"schema": ' + b"9" * 5000 + b"}"), "the answer is no document"),
    "utf-8": (packed(b'{"schema": "\xff"}'), "the answer is no document"),
    "list": (answering([]), "the answer is no mapping"),
    "seconds": (answering({**healthy(), "seconds": "long"}), "took no number of seconds"),
    "no number": (packed(b'{"seconds": NaN}'), "NaN is not a number"),
}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return a fleet of good nodes and one that the test makes faulty."""
    return Fleet(tmp_path)


LONG = "x" * 2_000_000


@pytest.mark.parametrize("kind", [NodeFailed, Unreachable, Silent, Undone, CrewLost])
def test_the_text_of_a_failure_of_a_node_has_a_limit(kind: type[GpuprovError]) -> None:
    error = kind(LONG, expected=LONG, do=LONG)
    assert TEXT < len(str(error)) < 4 * TEXT
    assert error.args == (error.seen,)


def test_a_long_reason_of_a_node_leaves_room_for_others(fleet: Fleet) -> None:
    """Keep a failure short in results of all verbs: documents and journals of all nodes have limits."""
    hostile = healthy()
    hostile["collectors"] = {name: {"error": LONG} for name in hostile["collectors"]}
    for answer in ({"schema": LONG}, {"error": LONG}, hostile):
        with fleet.in_which(answering(answer)):
            found = survey(fleet.lock, fleet.names)
            assert len(json.dumps([asdict(node) for node in found])) < 100_000
    with fleet.in_which(answering({"error": LONG})):
        asked = ask_nodes(PROGRAM, targets(fleet.lock), {name: {} for name in fleet.names}, dispatch=DIRECT)
    assert len(str(asked[BAD])) <= TEXT
    assert len(patient(conclude(BAD, asked[BAD]), asked[BAD]).faults[0]) <= TEXT


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_answer_is_that_nodes_line(fleet: Fleet, kind: str) -> None:
    answer, said = MALFORMED[kind]
    with fleet.in_which(answer):
        found = {node.name: node for node in survey(fleet.lock, fleet.names)}
    assert [found[name].reason for name in GOOD] == [None, None]
    assert found[BAD].status == "error"
    assert said in str(found[BAD].reason)


def test_half_a_character_can_be_shown(fleet: Fleet) -> None:
    document = healthy()
    document["collectors"]["system"]["os_release"] = "ID=plan\ud800\nVERSION_ID=9\n"
    with fleet.in_which(answering(document)):
        [result] = [node for node in survey(fleet.lock, fleet.names) if node.name == BAD]
    assert "plan\ufffd9" in [each.actual for each in result.drift]


WRONG = (None, True, 7, "text", [7], {"a": 7}, [[7]], {"text": {"a": []}})


@pytest.mark.thorough
@pytest.mark.parametrize("collector", sorted(healthy()["collectors"]))
def test_facts_of_a_wrong_shape_are_that_nodes_line(fleet: Fleet, collector: str) -> None:
    for wrong in sample(WRONG, 4, collector):
        document = healthy()
        document["collectors"][collector] = wrong
        with fleet.in_which(answering(document)):
            found = {node.name: node for node in survey(fleet.lock, fleet.names)}
            gates = {gate.name: gate for gate in ask_gate(fleet.context(), fleet.names)}
        answers: dict[str, Facts | GpuprovError] = {
            name: Facts.from_answer(document if name == BAD else healthy()) for name in fleet.names
        }
        alike = of_majority(dict.fromkeys(fleet.names, "all"), answers.items(), "").nodes
        assert list(found) == list(gates) == [node.name for node in alike] == fleet.names
        assert [found[name].reason for name in GOOD] == [None, None]


def test_an_exception_nobody_thought_of_is_reported_and_its_traceback_kept(
    fleet: Fleet, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(facts: Facts, expectation: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setitem(__import__("gpuprov.drift.judge").drift.judge.OBSERVERS, "system.os", mistaken)
    with fleet.in_which(fleet.good):
        found = survey(fleet.lock, fleet.names)
    log = own_state / "gpuprov/unexpected.log"
    assert {node.status for node in found} == {"error"}
    assert f"(ZeroDivisionError); the traceback is in {log}" in str(found[0].reason)
    assert "in mistaken" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_refused_folder_of_the_log_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Path:
        raise Refused("the state folder is another user's")

    monkeypatch.setattr("gpuprov.ssh.contained.state_dir", refused)
    result = contained(BAD, lambda: 1 // 0)
    assert str(result) == "what it sent could not be read (ZeroDivisionError)"


def test_a_wrong_answer_of_an_act_is_that_nodes_failure(fleet: Fleet) -> None:
    context = fleet.context()
    own = answering(
        {"result": {"run": context.id, "holder": "us", "until": 0, "now": 0, "seconds": 0, "built": []}}
    )
    for wrong in (None, [], "text", 7, {"run": 7}, {"built": "seven"}, {"built": None}):
        for document in ({"result": wrong}, wrong, {}):
            with fleet.in_which(answering(document), own):
                take_all(leases_for(context), fleet.names, context.narrate)
                with pytest.raises(GpuprovError, match=f"^{BAD}: ") as refused:
                    fetch(context, fleet.names, [])
            assert not [name for name in GOOD if name in str(refused.value)]


def session(answer: Any) -> PaperSession:
    """Return a session with the faulty node, which gives this answer."""
    return PaperSession(Target(BAD, "127.0.0.1", Connection()), ConnectionLimits(), answer)


def echo(command: str) -> bytes:
    """Return the shell's output for a command, with a banner before it."""
    import subprocess

    line = (
        f"printf '\\n<<welcome>> 10.0.0.9\\n'; export SSH_CONNECTION='10.1.2.3 5000 10.1.2.4 22'; {command}"
    )
    return subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=True).stdout + b"bye\n"


def test_a_banner_is_no_address() -> None:
    assert source_address(session(echo)) == "10.1.2.3"


@pytest.mark.parametrize("where", [b"", b"UNKNOWN 65535 UNKNOWN 65535", b"\xff 1 2 3"])
def test_a_node_that_does_not_say_where_we_come_from_fails_alone(where: bytes) -> None:
    def answer(command: str) -> bytes:
        return b"Welcome\n" + command.encode().replace(b"$SSH_CONNECTION", where)

    with pytest.raises(NodeFailed, match="does not report the connection's source address"):
        source_address(session(answer))


def test_an_address_among_much_text_is_not_searched() -> None:
    with pytest.raises(NodeFailed, match="answered 20000 bytes to the question"):
        source_address(session(lambda _: b"x" * 20_000))


def test_a_node_that_breaks_while_it_is_armed_is_left_alone(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.apply.test_guarded import Fleet as OnPaper
    from tests.unit.apply.test_guarded import group

    paper = OnPaper(monkeypatch)

    def arm(session: Any, *_: Any) -> None:
        """Break at n2."""
        if session.name == "n2":
            raise IndexError("an empty packet")

    monkeypatch.setattr(guarded, "arm", arm)
    result = paper.apply(tmp_path, train=group("n1", "n2", "n3", ssh={"options": {"Port": "22"}}))
    assert (result["n1"], result["n3"]) == ("", "")
    assert "(IndexError)" in result["n2"]


@pytest.fixture
def empty_packets() -> Iterator[int]:
    """Port of an SSH server that answers with empty packets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        """Answer each connection with an SSH packet without content."""
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.sendall(b"SSH-2.0-empty\r\n")
                client.recv(100)
                client.sendall((12).to_bytes(4, "big") + bytes([11]) + bytes(11))
                client.settimeout(3)
                try:
                    while client.recv(4096):
                        pass
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def test_an_empty_packet_is_unreachable_in_one_line(empty_packets: int, tmp_path: Path) -> None:
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(tmp_path / "id"))
    spec = Connection(port=empty_packets, identity_file=str(tmp_path / "id"), known_hosts=str(tmp_path / "k"))
    [(_, answer)] = fan_out(
        [Target(BAD, "127.0.0.1", spec)],
        lambda session: None,
        limits=ConnectionLimits(connect_s=5, command_s=5),
    )
    assert isinstance(answer, Unreachable)
    assert str(answer).startswith(f"no SSH on port {empty_packets}: its answer breaks the SSH protocol")


FLEET = "groups:\n  g:\n    profile: hgx-h200-4\n    hosts: {HOSTS}\n    os: debian12\n"


def test_an_address_that_is_none_is_refused_with_its_line() -> None:
    for address in ("127.0.0.1:2299", "2001:db8::1", "[2001:db8::1]:22"):
        assert parse_fleet(FLEET.replace("{HOSTS}", f'{{a: "{address}"}}'), "fleet.yml")
    with pytest.raises(InvalidInput, match=r"^fleet.yml:4: "):
        parse_fleet(FLEET.replace("{HOSTS}", '{a: "1:2:3"}'), "fleet.yml")


@pytest.mark.parametrize(
    "jump", ["bastion:22x", "bastion:", "bastion:0", "bastion:65536", "a b", "a@b@c", ""]
)
def test_a_jump_host_that_is_none_is_refused_with_its_line(jump: str) -> None:
    text = FLEET.replace("{HOSTS}", "a") + f"ssh:\n  jump: {json.dumps(jump)}\n"
    with pytest.raises(InvalidInput, match=r"^fleet.yml:7: .*\[USER@\]HOST\[:PORT\]"):
        parse_fleet(text, "fleet.yml")
    refused = CliRunner().invoke(discover, ["gpu01", "--jump", jump])
    assert isinstance(refused.exception, InvalidInput)


@pytest.mark.parametrize("jump", ["bastion", "ops@bastion:2222", "10.0.0.1", "[2001:db8::1]:22", "a,b:22"])
def test_jump_hosts(jump: str) -> None:
    """Check the spellings of a jump host that are accepted."""
    assert Connection(jump=jump).jump == jump


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHARES)
def test_a_short_cut_of_the_campaign(tmp_path: Path, name: str) -> None:
    ways = Ways(tmp_path)
    attempt(ways, name, 10, number=2)
    assert ways.tally.tried[name] >= 5
