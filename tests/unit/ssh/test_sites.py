"""Services of sites: proof of their identity, permitted messages, and that none of their data is executed."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpuprov.apply.attempts import change
from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.worker_messages import FILE_CHARACTERS
from gpuprov.cli import workers as cli_workers
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import gather, survey
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Refused, Unreachable
from gpuprov.model.lock import Lock, read_lock
from gpuprov.ssh.dispatch import CrewLost, Dispatch
from gpuprov.ssh.workers import hire, hiring, sites, wire
from gpuprov.ssh.workers.certificates import make_certificates
from gpuprov.ssh.workers.hiring import VERSION
from gpuprov.ssh.workers.identity import coordinator_context, site_context
from gpuprov.ssh.workers.service import serve
from gpuprov.untrusted.parsing import VALUES
from gpuprov.verify.runner import run_verification
from tests import RECORDED_LOCK, ROOT
from tests.unit.roles.scripts import load

Say = Callable[[dict[str, Any]], bytes]


class Evil:
    """Object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"import os; open({str(self.path)!r}, 'a').write(f'{{os.getpid()}} ')",)


def frame(message: object) -> bytes:
    """Return a message in a frame: four bytes of length, then JSON or the bytes."""
    content = message if isinstance(message, bytes) else json.dumps(message).encode()
    return len(content).to_bytes(4, "big") + content


def read(stream: Any) -> bytes:
    """Return the content of the next frame from a stream."""

    def exactly(size: int) -> bytes:
        """Return this many bytes; raise EOFError if the connection ends before."""
        found = b""
        while len(found) < size:
            more = stream.recv(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    return exactly(int.from_bytes(exactly(4), "big"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates of a coordinator and of the sites east and west."""
    made = tmp_path_factory.mktemp("tls") / "workers"
    make_certificates(made, ["east", "west"])
    return made


@contextmanager
def service(context: ssl.SSLContext | None, answer: Say) -> Iterator[str]:
    """Run a service that answers each order with the bytes that the test supplies."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(plain: socket.socket) -> None:
        """Greet one client, and answer each of its orders."""
        with plain, suppress(OSError, EOFError):
            stream = context.wrap_socket(plain, server_side=True) if context else plain
            with stream:
                read(stream)
                stream.sendall(frame({"say": "ready", "version": VERSION}))
                while True:
                    message = json.loads(read(stream))
                    if message["say"] == "order":
                        stream.sendall(answer({**message, "work": read(stream)}))

    def accept() -> None:
        """Serve each client in a thread."""
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def site(folder: Path, name: str, answer: Say) -> Any:
    """Provide a service with a site's certificate, which answers by a function."""
    return service(site_context(folder / f"site-{name}"), answer)


def nothing(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return None for each node."""
    return dict.fromkeys(each)


def ask(address: str, folder: Path, names: Mapping[str, str | None], **how: Any) -> dict[str, Any]:
    """Have services do work on nodes; return node → result, and collect notes and orders if lists
    are given.
    """
    notes: list[str] = how.pop("notes", [])
    asked: list[Collection[str]] = how.pop("asked", [])
    how.setdefault("answer", NodeDrift)

    def part(some: Collection[str]) -> Any:
        asked.append(list(some))
        return nothing

    with hire(address, names, narrate=notes.append, folder=folder) as crew:
        return dict(Dispatch(crew=crew).spread(part, dict.fromkeys(names), **how))


def in_sync(message: Mapping[str, Any], *names: str) -> bytes:
    """Return the messages of an honest service."""
    return b"".join(
        frame({"say": "answer", "id": message["id"], "node": name, "answer": json.dumps(sync(name))})
        for name in names
    ) + frame({"say": "end", "id": message["id"]})


def sync(name: str) -> dict[str, Any]:
    """Return a node's result without differences, as a service sends it."""
    return {"name": name, "status": "in_sync", "drift": [], "reason": None}


def test_an_honest_service_answers_for_its_nodes(folder: Path) -> None:
    with site(folder, "east", lambda message: in_sync(message, "n1", "n2")) as address:
        found = ask(address, folder, {"n1": "east", "n2": None})
    assert found == {name: NodeDrift(name, "in_sync") for name in ("n1", "n2")}


def test_a_plain_scheduler_on_loopback_executes_nothing_here(folder: Path, tmp_path: Path) -> None:
    """Execute nothing from a scheduler without TLS: any local user can listen, and Dask unpickles data."""
    import msgpack

    made = tmp_path / "made"
    header = msgpack.dumps({"pickled-obj": pickle.dumps(Evil(made)), "num-sub-frames": 0})
    frames = [msgpack.dumps({"__Pickled__": 1}), header]
    inside = struct.pack(f"Q{len(frames)}Q", len(frames), *map(len, frames)) + b"".join(frames)
    greeting = struct.pack("Q", len(inside)) + inside
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        """Send each client the greeting."""
        with suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    peer.sendall(greeting)

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Refused, match="does not speak TLS"):
            ask(address, folder, {"n1": None})
        with pytest.raises(Refused, match=r"plain TCP, without authentication.*gpuprov workers serve"):
            ask("tcp://" + address, folder, {"n1": None})
        listener.shutdown(socket.SHUT_RDWR)
    assert not made.exists()


@pytest.mark.parametrize("where", ["whole", "answer", "error", "event", "id"])
def test_a_pickle_of_a_service_is_never_executed(folder: Path, tmp_path: Path, where: str) -> None:
    made = tmp_path / "made"
    evil = pickle.dumps(Evil(made), protocol=0).decode()

    def answer(reported: dict[str, Any]) -> bytes:
        """Return a message with a pickle at the place under test."""
        message: dict[str, Any] = {"say": "answer", "id": reported["id"], "node": "n1", "answer": "null"}
        if where == "whole":
            return frame(pickle.dumps(Evil(made)))
        if where == "error":
            message |= {"say": "failed", "error": {"kind": evil, "seen": evil}}
        elif where == "event":
            message |= {"say": "event", "number": reported["first"], "event": evil}
        else:
            message[where] = evil
        return frame(message) + frame({"say": "end", "id": reported["id"]})

    heard: list[Any] = []
    with site(folder, "east", answer) as address:
        try:
            found = ask(address, folder, {"n1": "east"}, hear=lambda *event: heard.append(event))
        except Unreachable as lost:
            found = {"n1": lost}
    assert isinstance(found["n1"], GpuprovError)
    assert not made.exists()


def test_a_coordinator_does_not_even_load_dask(folder: Path) -> None:
    """Import no Dask in a coordinator, which then cannot unpickle; this also holds with local workers."""
    program = (
        "import sys\nfrom gpuprov.ssh.dispatch import Dispatch\nfrom gpuprov.ssh.workers import hire\n"
        "with hire('local:1', {}) as crew:\n"
        "    work = lambda names: lambda each: dict(each)\n"
        "    found = dict(Dispatch(crew=crew).spread(work, {'n1': 7}, answer=int))\n"
        "print(found, [name for name in sys.modules if name.split('.')[0] in ('dask', 'distributed')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "{'n1': 7} []\n"


def test_a_worker_that_turns_hostile_reaches_its_own_service_alone(tmp_path: Path) -> None:
    """Unpickle a worker's objects only in its own service, also if an exception in Dask contains them."""
    made = tmp_path / "made"

    def returns(each: Mapping[str, Any]) -> dict[str, Any]:
        return {name: Evil(made) for name in each}

    def breaks_out(each: Mapping[str, Any]) -> dict[str, Any]:
        """Raise an error whose pickle runs a program."""
        error = RuntimeError("no")
        error.__reduce__ = Evil(made).__reduce__  # type: ignore[method-assign]
        raise type("Broken", (RuntimeError,), {"__reduce__": lambda self: Evil(made).__reduce__()})

    with hire("local:1", {}) as crew:
        for work in (returns, breaks_out):
            found = dict(Dispatch(crew=crew).spread(lambda names, work=work: work, {"n1": None}, answer=Any))
            assert isinstance(found["n1"], NodeFailed)
    pids = set(map(int, made.read_text().split())) if made.exists() else set()
    assert os.getpid() not in pids
    assert pids, "the exception was unpickled by nobody: this test shows nothing"


def test_a_site_is_what_the_certificate_proves(folder: Path) -> None:
    """Send no node of the site west to a service of east, independent of its messages and its address."""
    asked: list[Collection[str]] = []
    with site(folder, "east", lambda message: in_sync(message, "n1", "n2")) as address:
        with pytest.raises(Refused, match="no service has a certificate of the site west; connected: east"):
            ask(address, folder, {"n1": "east", "n2": "west"}, asked=asked)
        assert not asked
        with site(folder, "west", lambda message: in_sync(message, "n1", "n2")) as other:
            found = ask(f"{address},{other}", folder, {"n1": "east", "n2": "west"}, asked=asked)
    assert sorted(map(tuple, asked)) == [("n1",), ("n2",)]
    assert set(found) == {"n1", "n2"}


def two_sites(folder: Path) -> Lock:
    """Return a lock with a node of the site east and one of the site west."""
    text = RECORDED_LOCK.read_text()
    document = yaml.safe_load(text)
    [(name, group)] = document["groups"].items()
    [address] = group["hosts"].values()
    document["groups"] = {
        f"{name}-{site}": {**group, "hosts": {f"node-{site}": address}, "site": site}
        for site in ("east", "west")
    }
    for stated in document["groups"].values():
        trusted = {"build": "once", "builder": "node-west", "builder_reason": "node-west is ours"}
        stated["components"] = {**stated["components"], "driver": stated["components"]["driver"] | trusted}
    document["racks"] = {f"rack-{site}": [f"node-{site}"] for site in ("east", "west")}
    document["nvlink_domains"] = {f"domain-{site}": [f"node-{site}"] for site in ("east", "west")}
    document["controllers"] = "tls://open-sesame:8790"
    document["rollout"] = {"hooks": {"held": {"run": "notify --token open-sesame"}}}
    path = folder / "fleet.lock.yml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(document))))
    return read_lock(path)


def looks(lock: Lock, names: list[str], dispatch: Dispatch) -> None:
    """Survey nodes; the result is not used."""
    survey(lock, names, dispatch=dispatch)


def judges(lock: Lock, names: list[str], dispatch: Dispatch) -> None:
    """Verify nodes; the result is not used."""
    run_verification(lock, names, dispatch=dispatch)


def gathers(lock: Lock, names: list[str], dispatch: Dispatch) -> None:
    """Gather the facts of nodes; the result is not used."""
    dict(gather(lock, names, dispatch=dispatch))


def changes(lock: Lock, names: list[str], dispatch: Dispatch) -> None:
    """Change nodes; the result is not used."""
    run = RunContext(lock, Path(), Options(dispatch))
    change(lambda run, each: {}, run, dict.fromkeys(names), answer=None)


@pytest.mark.parametrize("verb", [looks, judges, gathers, changes])
def test_an_order_holds_nothing_of_another_site(folder: Path, tmp_path: Path, verb: Any) -> None:
    orders: dict[str, bytes] = {}

    def taking(site: str) -> Say:
        """Return a function that records a site's order and ends it."""

        def take(message: dict[str, Any]) -> bytes:
            orders[site] = message["work"]
            return frame({"say": "end", "id": message["id"]})

        return take

    lock = two_sites(tmp_path)
    sites = {name: group.site for name, group in lock.hosts().items()}
    with (
        site(folder, "east", taking("east")) as east,
        site(folder, "west", taking("west")) as west,
        hire(f"{east},{west}", sites, folder=folder) as crew,
    ):
        verb(lock, list(sites), Dispatch(crew=crew))
    assert set(orders) == {"east", "west"}
    for own, other in (("east", "west"), ("west", "east")):
        assert f"node-{own}".encode() in orders[own]
        for kind in ("node", "rack", "domain"):
            assert f"{kind}-{other}".encode() not in orders[own]
        assert b"open-sesame" not in orders[own]


def test_a_certificate_that_names_no_site_is_refused(folder: Path) -> None:
    """Refuse a service's certificate that does not name exactly one site, such as a coordinator's."""
    from gpuprov.ssh.workers.identity import proven_site

    east, west = ("URI", "gpuprov:site:east"), ("URI", "gpuprov:site:west")
    for names in ((), (east, west), (("DNS", "site:east"),), (("DNS", "gpuprov:site:east"),)):
        with pytest.raises(Refused, match="expected one site"):
            proven_site({"subjectAltName": names}, "gw:1")
    assert proven_site({"subjectAltName": (("URI", "https://gpu.example"), east)}, "gw:1") == "east"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "coordinator.pem", folder / "coordinator.key")
    with (
        service(context, lambda message: b"") as address,
        pytest.raises(Refused, match=r"has no certificate of this fleet: unsuitable|unsupported"),
    ):
        ask(address, folder, {"n1": "east"})


def test_a_certificate_may_be_used_for_its_side_alone(folder: Path) -> None:
    """Check that a reader that does not know the extension has to refuse the certificate (RFC 5280, 4.2)."""
    sides = {
        "coordinator.pem": ExtendedKeyUsageOID.CLIENT_AUTH,
        "site-east/site.pem": ExtendedKeyUsageOID.SERVER_AUTH,
    }
    for name, side in sides.items():
        found = x509.load_pem_x509_certificate((folder / name).read_bytes()).extensions
        use = found.get_extension_for_class(x509.ExtendedKeyUsage)
        assert ([*use.value], use.critical) == ([side], True)


def test_a_service_of_another_fleet_is_refused(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path / "other", ["east"])
    with (
        site(tmp_path / "other", "east", lambda message: b"") as address,
        pytest.raises(Refused, match="has no certificate of this fleet"),
    ):
        ask(address, folder, {"n1": "east"})


def test_answers_count_for_the_nodes_of_the_order_alone(folder: Path) -> None:
    def answer(message: dict[str, Any]) -> bytes:
        """Return answers for a node of no order, for another node, and repeated ones."""
        stranger = frame(
            {"say": "answer", "id": message["id"], "node": "n9", "answer": json.dumps(sync("n9"))}
        )
        other = frame({"say": "answer", "id": message["id"], "node": "n2", "answer": json.dumps(sync("n1"))})
        again = frame({"say": "failed", "id": message["id"], "node": "n1", "error": {}})
        again += b"".join(
            frame({"say": "answer", "id": message["id"], "node": odd}) for odd in ([], {}, None, 1)
        )
        honest = in_sync(message, "n1")
        return (
            stranger
            + other
            + honest[: len(honest) - len(frame({"say": "end", "id": message["id"]}))]
            + (again + frame({"say": "end", "id": message["id"]}))
        )

    with site(folder, "east", answer) as address:
        found = ask(address, folder, {"n1": "east", "n2": "east", "n3": "east"})
    assert found["n1"] == NodeDrift("n1", "in_sync")
    assert "answered for another node" in str(found["n2"])
    assert "sent no answer" in str(found["n3"])
    assert set(found) == {"n1", "n2", "n3"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({**sync("n1"), "status": "fine"}, "answer has an unexpected form: status"),
        ([], "answer has an unexpected form"),
        ({**sync("n1"), "drift": [{"check": 1}]}, "answer has an unexpected form: drift.0"),
    ],
)
def test_an_answer_of_another_shape_is_its_nodes_failure(folder: Path, answer: Any, said: str) -> None:
    def reported(order: dict[str, Any]) -> bytes:
        message = {"say": "answer", "id": order["id"], "node": "n1", "answer": json.dumps(answer)}
        return frame(message) + in_sync(order, "n2")

    with site(folder, "east", reported) as address:
        found = ask(address, folder, {"n1": "east", "n2": "east"})
    assert said in str(found["n1"])
    assert found["n2"] == NodeDrift("n2", "in_sync")


@pytest.mark.parametrize(
    "content",
    [
        (0xFFFFFFFF).to_bytes(4, "big"),
        frame(b"[" * 100_000),
        frame([]),
        frame(b"\xff\xfe"),
    ],
    ids=["4 GiB", "deep", "a list", "no text"],
)
def test_what_is_no_message_ends_that_service(folder: Path, content: bytes) -> None:
    with (
        site(folder, "east", lambda message: content) as address,
        pytest.raises(CrewLost, match=r"the service of east at \S+ sent"),
    ):
        ask(address, folder, {"n1": "east"})


def test_nodes_that_a_lost_service_may_still_change_are_named(folder: Path) -> None:
    said = r"the service of east at \S+ sent .*; still running, until their leases end: n1;"
    with (
        site(folder, "east", lambda message: frame([])) as address,
        pytest.raises(CrewLost, match=said),
    ):
        ask(address, folder, {"n1": "east"}, changes=True)


@pytest.mark.parametrize("changes", [False, True])
def test_a_lost_service_ends_no_work_at_another_site(folder: Path, changes: bool) -> None:
    def west(message: dict[str, Any]) -> bytes:
        time.sleep(0.3)
        return in_sync(message, "w1", "w2")

    with site(folder, "east", lambda _: frame([])) as one, site(folder, "west", west) as other:
        sites_of = {"e1": "east", "w1": "west", "w2": "west"}
        found = ask(f"{one},{other}", folder, sites_of, changes=changes)
    assert isinstance(found["e1"], Unreachable)
    assert ("still running, until their leases end: e1" in str(found["e1"])) is changes
    assert [found[name].status for name in ("w1", "w2")] == ["in_sync", "in_sync"]


def test_many_messages_end_that_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "NODE_BYTES", 1 << 19)

    def answer(message: dict[str, Any]) -> bytes:
        return frame({"say": "event", "id": message["id"], "number": 1, "event": 1}) * 10_000

    with (
        site(folder, "east", answer) as address,
        pytest.raises(CrewLost, match="sent more than the limit of an order"),
    ):
        ask(address, folder, {"n1": "east"}, hear=lambda *event: None)


def test_nodes_that_send_as_much_as_they_may_leave_room_for_the_others() -> None:
    """Give each node's answer, events and files a part of their own in what a service may send."""
    callback = load(ROOT / "plugins/callback/gpuprov_jsonl.py", "gpuprov_jsonl")
    files, tasks = 3 * FILE_CHARACTERS, 2000 * (2 * callback.LAST + sites.COST)
    node = wire.MESSAGE_BYTES + callback.ALL + callback.LONGEST + files + tasks
    crew = sites.SiteCrew([], {}, print)
    assert crew._order(cast("Any", None), ("n1", "n2", "n3"), SimpleQueue(), changes=True).room > 3 * node


def test_a_large_message_over_a_slow_link_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "GONE_S", 0.4)
    monkeypatch.setattr(sites, "PING_S", 0.05)
    ours, theirs = socket.socketpair()
    message = frame({"say": "event", "id": 1, "event": "x" * 1000})

    async def open_link() -> Any:
        return sites.Link(wire.Stream(*await asyncio.open_connection(sock=ours)), "east", "here")

    with theirs, wire.loop() as loop:
        link = wire.call(loop, open_link()).result()
        order = link.orders[1] = sites._Order(1, link, {}.keys(), range(1, 9), SimpleQueue(), set(), 1 << 20)
        with sites.running(loop, [link]):
            for at in range(0, len(message), 100):
                theirs.sendall(message[at : at + 100])
                time.sleep(0.1)
            assert order.inbox.get(timeout=5)[1] == {"say": "event", "id": 1, "event": "x" * 1000}


@pytest.mark.parametrize(("limit", "sent"), [("QUIET_S", 0), ("ORDER_S", 1000)])
def test_a_service_that_only_sends_signs_of_life_ends_no_work_at_another_site(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, sent: int
) -> None:
    """End the order of a service that answers pings, or sends events, and no result."""
    monkeypatch.setattr(sites, "GONE_S", 3600.0)
    monkeypatch.setattr(sites, "PING_S", 0.1)
    monkeypatch.setattr(sites, limit, 0.5)

    def east(message: dict[str, Any]) -> bytes:
        event = {"say": "event", "id": message["id"], "number": message["first"], "event": {}}
        return frame({"say": "pong"}) + frame(event) * sent

    with (
        site(folder, "east", east) as one,
        site(folder, "west", lambda message: in_sync(message, "w1")) as other,
    ):
        found = ask(
            f"{one},{other}", folder, {"e1": "east", "w1": "west"}, hear=lambda *event: None, changes=True
        )
    assert found["w1"].status == "in_sync"
    assert isinstance(found["e1"], Unreachable)
    assert "exceeded the time limit of an order; still running, until their leases end: e1" in str(
        found["e1"]
    )


def test_a_message_of_many_values_ends_that_service(folder: Path) -> None:
    content = b'{"say": "event", "id": 1, "number": 1, "event": [' + b"[]," * wire.MESSAGE_VALUES + b"1]}"
    with (
        site(folder, "east", lambda message: frame(content)) as address,
        pytest.raises(CrewLost, match="sent invalid JSON: more than 10000 values"),
    ):
        ask(address, folder, {"n1": "east"}, hear=lambda *event: None)


def test_an_answer_of_many_values_is_that_nodes_failure(folder: Path) -> None:
    def answer(message: dict[str, Any]) -> bytes:
        """Return an answer with too many values for n1, and a good one for n2."""
        text = "[" + "[]," * VALUES + "1]"
        many = {"say": "answer", "id": message["id"], "node": "n1", "answer": text}
        return frame(many) + in_sync(message, "n2")

    with site(folder, "east", answer) as address:
        found = ask(address, folder, {"n1": "east", "n2": "east"}, answer=Any)
    assert isinstance(found["n1"], NodeFailed)
    assert "the answer cannot be read: more than 131072 values" in str(found["n1"])
    assert found["n2"] == sync("n2")


def test_unread_messages_wait_at_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep messages in memory up to a constant, although an order may have many more, and lose none."""
    event = frame({"say": "event", "id": 1, "number": 1, "event": "x" * 10_000})
    count = 400
    monkeypatch.setattr(sites, "UNREAD_BYTES", 1 << 20)
    monkeypatch.setattr(sites, "GONE_S", 0.3)
    monkeypatch.setattr(sites, "PING_S", 0.05)
    ours, theirs = socket.socketpair()

    async def open_link() -> Any:
        return sites.Link(wire.Stream(*await asyncio.open_connection(sock=ours)), "east", "here")

    with theirs, wire.loop() as loop:
        link = wire.call(loop, open_link()).result()
        room = sites.NODE_BYTES
        order = sites._Order(1, link, ("n1",), range(1, 9), SimpleQueue(), {"n1"}, room)
        link.orders[1] = order
        threading.Thread(target=theirs.sendall, args=(event * count,), daemon=True).start()
        with sites.running(loop, [link]):
            time.sleep(0.8)
            assert 1 <= order.inbox.qsize() <= (1 << 20) // (4 * len(event)) + 1
            assert not link.lost
            found = [sites._next(order.inbox)[1]["event"] for _ in range(count)]
        assert set(map(len, found)) == {10_000}
        assert order.received == order.processed


def test_the_loss_of_one_site_is_the_failure_of_its_nodes(folder: Path) -> None:
    with (
        site(folder, "east", lambda message: frame([])) as east,
        site(folder, "west", lambda message: in_sync(message, "n2")) as west,
    ):
        found = ask(f"{east},{west}", folder, {"n1": "east", "n2": "west"})
    assert isinstance(found["n1"], Unreachable)
    assert found["n2"] == NodeDrift("n2", "in_sync")


def test_lines_of_a_service_cannot_steer_the_terminal(folder: Path) -> None:
    notes: list[str] = []

    def answer(message: dict[str, Any]) -> bytes:
        return frame({"say": "line", "text": "\x1b[2Jhidden\nand more"}) + in_sync(message, "n1")

    with site(folder, "east", answer) as address:
        ask(address, folder, {"n1": "east"}, notes=notes)
    assert notes == [r"\x1b[2Jhidden\nand more"]


def test_numbers_of_another_order_are_not_heard(folder: Path) -> None:
    heard: list[Any] = []

    def answer(message: dict[str, Any]) -> bytes:
        """Return events with valid and invalid numbers, and a good answer."""
        events = [
            {"say": "event", "id": message["id"], "number": number, "event": {}}
            for number in (message["first"] - 1, message["first"], 10**15, "1", None, True)
        ]
        return b"".join(map(frame, events)) + in_sync(message, "n1")

    with site(folder, "east", answer) as address:
        ask(address, folder, {"n1": "east"}, hear=lambda *event: heard.append(event), changes=True)
    assert len(heard) == 1


def test_a_service_reads_nothing_of_who_is_not_the_coordinator(folder: Path, tmp_path: Path) -> None:
    """Refuse clients without a certificate, or with a site's certificate, in the handshake."""
    made, said = tmp_path / "made", list[str]()

    def connect() -> Any:
        raise AssertionError("a stranger got as far as the scheduler")

    with wire.loop() as loop:
        serving = wire.call(
            loop, serve(site_context(folder / "site-east"), "127.0.0.1", 0, connect, said.append)
        )
        while not said:
            time.sleep(0.01)
        [[host, port]] = json.loads(said[0].partition(": ")[2])
        for own in (None, folder / "site-west/site"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(folder / "ca.pem")
            if own:
                context.load_cert_chain(own.with_suffix(".pem"), own.with_suffix(".key"))
            with (
                suppress(OSError),
                socket.create_connection((host, port)) as plain,
                context.wrap_socket(plain) as stranger,
            ):
                stranger.sendall(frame({"say": "hello", "version": VERSION}))
                stranger.sendall(frame({"say": "order", "id": 1, "first": 1, "changes": False}))
                stranger.sendall(frame(pickle.dumps(Evil(made))))
                assert stranger.recv(1) == b""
        serving.cancel()
    assert not made.exists()
    assert not any(line.startswith("a coordinator") for line in said)


@pytest.mark.parametrize(("stated", "expected"), [("local:3", 3), ("local", os.cpu_count() or 1)])
def test_workers_of_this_machine_are_as_many_as_stated(
    monkeypatch: pytest.MonkeyPatch, stated: str, expected: int
) -> None:
    counts: list[int] = []

    def started(count: int) -> None:
        counts.append(count)
        raise NodeFailed("enough")

    monkeypatch.setattr(hiring, "_started", started)
    with pytest.raises(NodeFailed, match="enough"), hire(stated, {}):
        pass
    assert counts == [expected]


@pytest.mark.thorough
def test_workers_of_this_machine_open_no_port_without_tls() -> None:
    """Require a certificate on each port that listens: no web pages and no plain TCP."""
    with hire("local:1", {}) as crew:
        dict(Dispatch(crew=crew).spread(lambda names: nothing, {"n1": None}, answer=None))
        ports = listening(family(os.getpid()))
        assert ports
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                with suppress(ConnectionError):
                    assert b"HTTP" not in plain.recv(100)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with (
                pytest.raises(ssl.SSLError),
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                context.wrap_socket(plain) as stranger,
            ):
                stranger.recv(1)


def family(process: int) -> list[int]:
    """Return the numbers of all processes below a process."""
    found = [process]
    for each in found:
        for message in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, message.read_text().split())
    return found[1:]


def listening(processes: list[int]) -> set[int]:
    """Return the TCP ports on which the processes listen."""
    inodes = set()
    for process in processes:
        for each in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(each.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


@pytest.mark.parametrize(
    ("stated", "password", "kind", "said"),
    [
        ("ctl1", False, InvalidInput, "--workers 'ctl1'; expected local, local:N"),
        ("local:0", False, InvalidInput, "--workers 'local:0'"),
        ("http://ctl1:8786", False, InvalidInput, "expected local"),
        ("tls://127.0.0.1:65536", False, InvalidInput, "expected local"),
        (
            "tcp://192.0.2.1:8786",
            False,
            Refused,
            "plain TCP, without authentication; expected local:N or tls",
        ),
        ("local:1", True, Refused, "sudo's password is not sent to workers"),
        ("127.0.0.1:8786", True, Refused, "sudo's password is not sent to workers"),
        ("127.0.0.1:9", False, Unreachable, "no gpuprov service answers at 127.0.0.1:9"),
    ],
)
def test_an_address_is_refused_in_one_line(
    stated: str, password: bool, kind: type[GpuprovError], said: str, folder: Path
) -> None:
    with pytest.raises(kind) as caught, hire(stated, {}, password=password, folder=folder):
        pass
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("listen", ["8790", "127.0.0.1:65536"])
def test_a_service_has_a_port_of_tcp(listen: str, folder: Path) -> None:
    words = ["--certificates", str(folder / "site-east"), "--listen", listen, "--processes", "1"]
    with pytest.raises(InvalidInput, match=r"--listen .*; expected ADDRESS:PORT"):
        cli_workers.serve.main(words, standalone_mode=False)


def test_a_key_that_others_can_read_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"there is no certificate .*ca.pem; .*gpuprov workers certificates"
    ):
        coordinator_context(tmp_path)
    make_certificates(tmp_path / "made", [])
    key = tmp_path / "made/coordinator.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "made/ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    key.chmod(0o644)
    with pytest.raises(Refused, match="others can read"):
        coordinator_context(tmp_path / "made")
    key.chmod(0o600)
    coordinator_context(tmp_path / "made")
    tmp_path.chmod(0o777)
    with pytest.raises(
        Refused, match=f"ca.pem is not safe: other users may write {tmp_path}, its mode is 777"
    ):
        coordinator_context(tmp_path / "made")


def test_certificates_are_never_written_over(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="exists already"):
        make_certificates(folder, ["east"])
    for name in ("../x", "", "a b", "-x"):
        with pytest.raises(InvalidInput, match="as a site"):
            make_certificates(folder, [name])


def test_a_loop_ends_with_what_it_runs() -> None:
    with wire.loop() as loop:
        waiting = wire.call(loop, asyncio.sleep(100))
    assert waiting.cancelled()


def test_a_loop_waits_for_what_a_task_does_at_its_end() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        """Wait, and take a moment to end."""
        try:
            begun.set()
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    with wire.loop() as loop:
        wire.call(loop, work())
        assert begun.wait(30)
    assert ended.is_set()
