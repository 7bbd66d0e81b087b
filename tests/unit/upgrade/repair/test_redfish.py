"""Power cycles by Redfish: which request is sent, and what is refused before any is."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, Unreachable
from gpuprov.upgrade.repair import power, redfish
from gpuprov.upgrade.repair.bmc import Bmc, read_bmcs
from gpuprov.upgrade.repair.redfish import ANSWER_BYTES, Redfish, RedfishError
from tests.unit.upgrade.repair.bmc import Board, serving


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waiting of power cycles to 10 ms."""
    for name in ("OFF_S", "AGAIN_S", "SHUTDOWN_S", "STATE_S"):
        monkeypatch.setattr(power, name, 0.01)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """Provide a board whose BMC answers over TLS."""
    with serving(Board(), tmp_path) as board:
        yield board


def bmc(board: Board, **changes: object) -> Bmc:
    """Return the entry of a board, by default with the certificate that signs its own."""
    stated = {
        "address": f"https://127.0.0.1:{board.port}",
        "user": "gpuprov",
        "password_file": board.folder / "password",
        "ca_file": board.folder / "ca.pem",
    }
    return Bmc.model_validate(stated | changes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kinds", "orderly", "sent"),
    [
        (("On", "ForceOff", "PowerCycle", "FullPowerCycle"), False, ["FullPowerCycle"]),
        (("On", "ForceOff", "PowerCycle"), False, ["PowerCycle"]),
        (("On", "ForceOff", "ForceRestart"), False, ["ForceOff", "On"]),
        (("On", "ForceOff", "GracefulShutdown", "PowerCycle"), True, ["GracefulShutdown", "On"]),
        (("On", "ForceOff", "GracefulShutdown", "PowerCycle"), False, ["PowerCycle"]),
    ],
)
def test_the_request_that_takes_the_power_away(
    board: Board, kinds: tuple[str, ...], orderly: bool, sent: list[str]
) -> None:
    board.kinds = kinds
    power.cycle_one(bmc(board), orderly=orderly)
    assert (board.log, board.power, board.open) == (sent, "On", 0)


def test_a_stated_kind_that_is_refused_is_followed_by_the_next(board: Board) -> None:
    board.refuses = ("PowerCycle",)
    power.cycle_one(bmc(board), orderly=False)
    assert board.log == ["ForceOff", "On"]


def test_a_system_that_does_not_shut_down_loses_its_power(board: Board) -> None:
    board.deaf = True
    power.cycle_one(bmc(board), orderly=True)
    assert board.log == ["GracefulShutdown", "PowerCycle"]


def test_one_that_is_off_is_only_switched_on(board: Board) -> None:
    board.power = "Off"
    power.cycle_one(bmc(board), orderly=True)
    assert board.log == ["On"]


def test_kinds_behind_action_info_and_a_board_without_sessions(board: Board) -> None:
    board.info, board.sessions = True, False
    power.cycle_one(bmc(board), orderly=False)
    assert board.log == ["PowerCycle"]


def test_a_board_with_several_systems_needs_an_id(board: Board) -> None:
    board.systems = ("1", "HGX_Baseboard_0")
    with pytest.raises(RedfishError, match="has 2 systems; expected one: state its id as `system`"):
        power.cycle_one(bmc(board), orderly=False)
    power.cycle_one(bmc(board, system="1"), orderly=False)
    assert board.log == ["PowerCycle"]


def test_nothing_is_sent_to_a_board_with_another_certificate(board: Board) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        power.cycle_one(bmc(board, ca_file=None), orderly=False)
    with pytest.raises(Unreachable, match=f"shows a certificate with the fingerprint {board.fingerprint}"):
        power.cycle_one(bmc(board, ca_file=None, fingerprint="ab" * 32), orderly=False)
    assert (board.log, board.open) == ([], 0)
    power.cycle_one(bmc(board, ca_file=None, fingerprint=board.fingerprint.upper()), orderly=False)
    assert board.log == ["PowerCycle"]


def test_a_wrong_password_is_refused(board: Board) -> None:
    (board.folder / "password").write_text("guess")
    with pytest.raises(RedfishError, match="refuses the login of gpuprov: HTTP 401"):
        power.cycle_one(bmc(board), orderly=False)


@pytest.mark.parametrize(
    ("path", "said", "message"),
    [
        ("/redfish/v1/Systems", b"[" * 5000, "not a JSON object"),
        ("/redfish/v1/Systems", b"x" * (ANSWER_BYTES + 1), "more than"),
        ("/redfish/v1/Systems", b'{"Members": [{"@odata.id": "/etc/passwd"}]}', "has 0 systems"),
        ("/redfish/v1/Systems", b'{"Members": 7}', "has 0 systems"),
        ("/redfish/v1/Systems", b'{"Members": [7, {"@odata.id": 7}]}', "has 0 systems"),
        ("/redfish/v1/Systems/1", b'{"PowerState": 7}', "states no PowerState"),
        (
            "/redfish/v1/Systems/1",
            b'{"PowerState": "On", "Actions": {"#ComputerSystem.Reset":'
            b' {"target": "/redfish/v1/Systems/2/Actions/ComputerSystem.Reset"}}}',
            "states no reset of /redfish/v1/Systems/1",
        ),
    ],
)
def test_answers_of_a_board_that_misbehaves(board: Board, path: str, said: bytes, message: str) -> None:
    board.says[path] = said
    with pytest.raises(GpuprovError, match=message):
        power.cycle_one(bmc(board), orderly=False)
    assert board.log == []


def drip(connection: socket.socket, *begin: bytes, piece: bytes = b" ") -> None:
    """Send texts, then a piece again and again until the other end closes."""
    for text in begin:
        connection.sendall(text)
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(piece)
            time.sleep(0.05)


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "body": (b"HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\n", b" "),
    "body without a length": (b"HTTP/1.1 200 x\r\nConnection: close\r\n\r\n", b" "),
    "status line": (b"HTTP/1.1 ", b"2"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "handshake": (b"\x16\x03\x03\x3f\xff", b"\x02"),
}


@pytest.mark.parametrize("how", ENDLESS)
def test_a_board_that_drips_is_left_in_time(board: Board, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(redfish, "TIMEOUT_S", 0.6)
    begin, piece = ENDLESS[how]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(board.folder / "ca.pem", board.folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            """Send one client bytes slowly, in the handshake or as an answer."""
            with contextlib.suppress(OSError):
                plain, _ = server.accept()
                with plain if how == "handshake" else context.wrap_socket(plain, server_side=True) as end:
                    if how != "handshake":
                        end.recv(65536)
                    drip(end, begin, piece=piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        begun = time.monotonic()
        there = bmc(board, address=f"https://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Unreachable, match="no complete answer within"), Redfish(there):
            pass
        assert time.monotonic() - begun < 5
        thread.join(5)


@pytest.mark.parametrize("part", ["..", ".", "%2e%2e", "%2E", ".x"])
def test_a_path_leads_to_no_other_system(board: Board, part: str) -> None:
    target = f"/redfish/v1/Systems/1/{part}/2/Actions/ComputerSystem.Reset"
    said = {"PowerState": "On", "Actions": {"#ComputerSystem.Reset": {"target": target}}}
    board.says["/redfish/v1/Systems/1"] = json.dumps(said).encode()
    with pytest.raises(RedfishError, match="names a path outside of /redfish/v1"):
        power.cycle_one(bmc(board), orderly=False)
    assert board.log == []


def test_a_location_that_is_none_is_no_session(board: Board) -> None:
    board.location = "http://[x/"
    with Redfish(bmc(board)) as session:
        assert session.power() == "On"


def test_a_node_without_a_bmc_and_one_that_does_not_answer(board: Board) -> None:
    gone = bmc(board, address="https://127.0.0.1:9")
    failed = power.cycle({"n1": None, "n2": gone, "n3": bmc(board)}, ())
    assert failed["n1"] == "no BMC is stated for it; state it in a file for --bmc"
    assert failed["n2"].startswith("no connection to https://127.0.0.1:9: ")
    assert set(failed) == {"n1", "n2"}
    with Redfish(bmc(board)) as session:
        assert session.power() == "On"


def test_the_file_of_bmcs(tmp_path: Path) -> None:
    path = tmp_path / "bmc.yml"
    path.write_text(
        "bmcs:\n  gpu[01-02]:\n    address: https://{node}-bmc.example.com\n    user: ops\n"
        "    password_file: secret\n    ca_file: ca.pem\n"
    )
    found = read_bmcs(path, ["gpu02", "gpu09"])
    assert found["gpu02"].address == "https://gpu02-bmc.example.com"
    assert found["gpu02"].password_file == tmp_path / "secret"
    assert set(found) == {"gpu02"}
    (tmp_path / "secret").write_text("word\n")
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(InvalidInput, match=r"has mode 0640; expected 0600; chmod 600 "):
        found["gpu02"].password()
    (tmp_path / "secret").chmod(0o600)
    assert found["gpu02"].password() == "word"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("address: http://bmc\n    user: a\n    password_file: b", "https://{node}-bmc.example.com"),
        ("address: https://a@b/c\n    user: a\n    password_file: b", "https://{node}-bmc.example.com"),
        ("address: https://bmc:99999\n    user: a\n    password_file: b", "https://{node}-bmc.example.com"),
        ("address: https://[::1\n    user: a\n    password_file: b", "https://{node}-bmc.example.com"),
        ("address: https://bmc\n    user: a\n    password: b", "unknown key 'password'"),
        (
            "address: https://bmc\n    user: a\n    password_file: b\n    ca_file: c\n    fingerprint: "
            + "ab" * 32,
            "either ca_file or fingerprint",
        ),
    ],
)
def test_mistakes_in_the_file_of_bmcs(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "bmc.yml"
    path.write_text(f"bmcs:\n  gpu01:\n    {entry}\n")
    with pytest.raises(InvalidInput) as refused:
        read_bmcs(path, ["gpu01"])
    assert message in str(refused.value)


def test_a_node_in_two_entries(tmp_path: Path) -> None:
    path = tmp_path / "bmc.yml"
    entry = "{address: https://bmc, user: a, password_file: b}"
    path.write_text(f"bmcs:\n  gpu[01-03]: {entry}\n  gpu02: {entry}\n")
    with pytest.raises(InvalidInput, match="gpu02 is in two entries"):
        read_bmcs(path, ["gpu01"])
