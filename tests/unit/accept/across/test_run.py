"""Rounds on fake nodes, and the node's real program on a machine without a GPU."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any, TextIO

import pytest

from gpuprov.accept.across import mesh, run
from gpuprov.accept.across.fabric import expected_fabric
from gpuprov.accept.across.mesh import Mesh, here
from gpuprov.accept.across.run import LONGEST_S, Outcome, search_across
from gpuprov.accept.node.nccl import LOG_LIMIT
from gpuprov.accept.program import fabric
from gpuprov.errors import Unreachable
from gpuprov.finding import CHARACTERS
from gpuprov.nccl.log import NcclLog, read_log
from gpuprov.nccl.verdict import Inter
from gpuprov.report.across import across_document, across_lines
from gpuprov.ssh.conversation import Conversation, PipeConversation
from tests.unit.accept.across.test_meeting import handle
from tests.unit.accept.recorded import recorded

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


def framed(nonce: str, document: dict[str, Any]) -> bytes:
    """Return a program's answer in its frame: marker with nonce, length and hash, then the compressed
    document.
    """
    body = base64.b64encode(zlib.compress(json.dumps(document).encode()))
    return f"\n<<gpuprov {nonce} {len(body)} {hashlib.sha256(body).hexdigest()}>>\n".encode() + body + b"\n"


class Pretended(Conversation):
    """A node whose answers a function returns."""

    def __init__(self, name: str, answer: Answer) -> None:
        super().__init__(1 << 20)
        self._name, self._make, self._ready = name, answer, b""

    def say(self, text: bytes, seconds: float = 20.0) -> None:
        """Prepare the answer to an order."""
        order = json.loads(text)
        self._ready += framed(order["nonce"], self._make(self._name, order))

    def _piece(self, seconds: float) -> bytes | None:
        """Return the prepared answer, then nothing."""
        piece, self._ready = self._ready, b""
        return piece

    def _complaints(self) -> bytes:
        return b"Killed\n"

    def close(self) -> None:
        pass


ADDRESS = ip_address("192.0.2.2")
"""The address of all nodes here, as in the recordings: those are of two nodes on one machine."""
MADE = handle(ADDRESS)


LOOK = {"gpus": [0, 1], "host": "localhost", "names": ["NVIDIA H200"] * 2, "nvlinks": 0, "rdma": []}


def sound(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of a healthy node."""
    if order["do"] == "look":
        return LOOK
    if order["do"] == "id":
        return {"value": MADE}
    wanted = order["with"]
    assert wanted["id"] == MADE
    assert [first for first, _ in wanted["members"]] == [2 * place for place in range(len(wanted["members"]))]
    exchange = [
        {
            "member": second if first == wanted["me"] else first,
            "value": 48.0 + step / 10,
            "us": 20.0,
            "wrong": None,
        }
        for step, first, second in wanted["steps"]
    ]
    log = "vm:1:1 [0] NCCL INFO NCCL version 2.28.3+cuda13.0\n"
    return {"value": {"exchange": exchange, "reduced": {"value": 45.0, "wrong": None}, "log": log}}


def search(names: list[str], answer: Answer, **others: Any) -> Outcome:
    """Search across fake nodes that answer by a function; return the outcome."""
    others.setdefault("known", {name: [ADDRESS] for name in names})
    with Mesh(names, here(names, lambda name: Pretended(name, answer))) as nodes:
        return search_across(nodes, names, **others)


NAMES = [f"gpu0{number}" for number in range(1, 9)]


def test_sound_nodes_are_accepted_after_three_rounds() -> None:
    outcome = search(NAMES, sound)
    assert {each.verdict for each in outcome.judged()} == {"accepted"}
    lines = list(across_lines(outcome))
    assert lines[0] == "gpu[01-08]: accepted after 3 rounds"
    assert (
        "round 1: 4 groups of 2; from node to node 48.0 GB/s; small message 20.0 µs; all-reduce 45.0"
        in lines[1]
    )
    assert "round 3: 8 together" in lines[3]
    assert json.dumps(across_document(outcome))


@pytest.mark.parametrize("kept", [{"a": [0] * mesh.VALUES}, {"a": "x" * mesh.LARGEST}])
@pytest.mark.parametrize("at", ["look", "join"])
def test_an_answer_that_takes_much_memory_is_refused(kept: dict[str, Any], at: str) -> None:
    """Refuse an answer with more values or bytes than a sound one, as those of all nodes are kept."""

    def large(name: str, order: dict[str, Any]) -> dict[str, Any]:
        result = sound(name, order)
        return result | kept if name == "gpu03" and order["do"] == at else result

    judged = {each.node: each.verdict for each in search(NAMES, large).judged()}
    assert judged.pop("gpu03") in {"failed", "rejected"}
    assert set(judged.values()) == {"accepted"}


def slow(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer as a sound node; gpu03 reports 9 GB/s from each peer."""
    result = sound(name, order)
    if order["do"] == "join" and name == "gpu03":
        for row in result["value"]["exchange"]:
            row["value"] = 9.0
    return result


def test_a_slow_node_is_rejected_and_named() -> None:
    outcome = search(NAMES, slow)
    assert [each.node for each in outcome.judged() if each.verdict == "rejected"] == ["gpu03"]
    assert next(across_lines(outcome)).startswith("bad   gpu03: what it receives 9.0 of 48.0 GB/s")


def refusing(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer as a sound node; gpu02 refuses because its GPUs are in use."""
    if name == "gpu02" and order["do"] == "look":
        return {"refused": "GPUs are in use: GPU 0: pid 4711 (900 MiB)"}
    return sound(name, order)


def test_a_node_in_use_is_refused_and_the_others_are_measured() -> None:
    outcome = search(NAMES, refusing)
    assert str(outcome.refused["gpu02"]).startswith("GPUs are in use: GPU 0: pid 4711")
    assert "gpu02" not in outcome.search.nodes
    assert {each.verdict for each in outcome.judged()} == {"accepted", "refused"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpus": None}, "gpus is not a list of 1 to 64 numbers"),
        ({"gpus": []}, "gpus is not a list"),
        ({"addresses": {"192.0.2.2/24": 1}}, "addresses is not a list of at most 256 addresses"),
        ({"addresses": ["192.0.2.2/24"] * 257}, "addresses is not a list of at most 256 addresses"),
        ({"gpus": {"0": 1}}, "gpus is not a list"),
        ({"gpus": list(range(65))}, "gpus is not a list"),
        ({"gpus": [0, "1"]}, "gpus has an index that is not a number from 0 to 1023"),
        ({"gpus": [True]}, "gpus has an index"),
        ({"gpus": [10**18]}, "gpus has an index"),
        ({"nvlinks": 10**18}, "nvlinks is not a number from 0 to 1023"),
        ({"rdma": [{}] * 1025}, "rdma is not a list of at most 1024 ports"),
    ],
)
def test_a_node_with_an_invalid_description_is_refused_and_the_others_are_measured(
    changed: dict[str, Any], reason: str
) -> None:
    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but change gpu02's description."""
        result = sound(name, order)
        if name == "gpu02" and order["do"] == "look":
            return {key: value for key, value in {**result, **changed}.items() if value is not None}
        return result

    outcome = search(NAMES, answer)
    assert str(outcome.refused["gpu02"]).startswith(f"its description of itself is invalid: {reason}")
    assert "gpu02" not in outcome.search.nodes
    assert {each.verdict for each in outcome.judged() if each.node != "gpu02"} == {"accepted"}


def dying(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer as a sound node; gpu05 dies in groups of more than three, and a group of all eight fails."""
    if name == "gpu05" and order["do"] == "join" and len(order["with"]["members"]) > 3:
        raise Unreachable("the connection broke: EOF")
    if order["do"] == "join" and len(order["with"]["members"]) == 8:
        return {"error": "ncclGroupEnd: error 6 (remote process exited)", "step": 2, "member": 4}
    return sound(name, order)


def test_a_node_that_is_lost_is_named_and_the_others_go_on() -> None:
    outcome = search(NAMES, dying)
    [verdict] = outcome.search.verdicts()
    assert (verdict.rule, verdict.nodes) == ("lost", ("gpu05",))
    assert "the connection broke: EOF" in verdict.text
    assert outcome.rounds[-1][0]["all_reduce"] == 45.0


def nonsense(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer as a sound node; gpu04 sends values of wrong types and numbers of members that do not exist."""
    result = sound(name, order)
    if order["do"] == "join" and name == "gpu04":
        exchange = [{"member": 99, "value": "fast"}, {"member": 10**18, "value": 10**18}, 7]
        return {"value": {"exchange": exchange, "reduced": [], "log": 5}}
    return result


def test_a_node_that_tells_nonsense_stops_nobody() -> None:
    assert search(NAMES, nonsense).search.rounds >= 3


class Replay:
    """Recorded answers of the GPUs of one virtual machine, as two nodes (NCCL_HOSTID) joined by sockets."""

    def __init__(self, machine: str) -> None:
        self._recorded: Any = recorded("two-nodes", machine)

    def __call__(self, name: str, order: dict[str, Any]) -> dict[str, Any]:
        for asked in self._recorded:
            if name in asked["answers"] and asked["orders"].get(name, {}).get("do") == order["do"]:
                answer: dict[str, Any] = asked["answers"].pop(name)
                return answer
        raise AssertionError(order)


REPLAYED = pytest.mark.parametrize("machine", ["h200x2", "h200x4", "h100x4"])
"""Machines with one GPU, and with two GPUs that NVLink joins, in each of the two nodes."""


@REPLAYED
def test_two_real_nodes_with_sockets_between_them(machine: str) -> None:
    outcome = search(["gpu01", "gpu02"], Replay(machine))
    assert {each.verdict for each in outcome.judged()} == {"accepted"}
    paths = {path.rule: path for path in outcome.paths}
    assert {path.level for path in paths.values()} == {"ok"}
    assert "between nodes: NET/Socket" in paths.pop("nccl.inter.transport").text
    within = {"h200x2": [], "h200x4": ["nccl.intra.transport"], "h100x4": ["nccl.intra.transport"]}
    assert list(paths) == within[machine]
    for groups in outcome.rounds:
        assert 3 < groups[0]["all_reduce"] < 6
        assert 3 < groups[0]["slowest"] <= groups[0]["middle"] < 10


@REPLAYED
def test_a_silent_fall_back_to_sockets_is_rejected(machine: str) -> None:
    """Reject nodes that agree with each other but use sockets where InfiniBand is expected."""
    outcome = search(["gpu01", "gpu02"], Replay(machine), inter="ib")
    assert {each.verdict for each in outcome.judged()} == {"rejected"}
    assert "ib expected between nodes, found NET/Socket" in next(across_lines(outcome))


def cut(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer as a sound node; gpu06 cannot create its communicator."""
    if name == "gpu06" and order["do"] == "join":
        return {"error": "ncclCommInitRank: error 5 (invalid usage)", "step": -1, "member": 0}
    return sound(name, order)


def test_a_node_that_never_joins_says_why_itself() -> None:
    outcome = search(NAMES, cut)
    line = next(line for line in across_lines(outcome) if "gpu06" in line)
    assert line.startswith("bad   gpu06: to and from others no exchange finished; in rounds 1, 2; gpu06: ")
    assert "ncclCommInitRank: error 5 (invalid usage)" in line


IB, ROCE = {"layer": "InfiniBand", "active": True}, {"layer": "Ethernet", "active": True}
DOWN = {"layer": "InfiniBand", "active": False}


@pytest.mark.parametrize(
    ("ports", "expected", "without"),
    [
        ([[IB], [IB]], "ib", []),
        ([[ROCE], [ROCE, DOWN]], "roce", []),
        ([[IB], []], None, []),
        ([[IB], [ROCE]], None, []),
        ([[DOWN], [DOWN]], None, []),
        ([[IB, ROCE], [IB], [DOWN]], "ib", ["n2"]),
        ([[IB], [ROCE], [IB]], "ib", ["n1"]),
        ([[], [], [IB]], None, []),
    ],
)
def test_the_fabric_of_most_nodes_has_to_carry_the_traffic(
    ports: list[list[dict[str, object]]], expected: str | None, without: list[str]
) -> None:
    result = {f"n{at}": {"rdma": rdma} for at, rdma in enumerate(ports)}
    assert expected_fabric(result) == (expected, without)


@pytest.mark.parametrize("stated", [[], [DOWN], [ROCE]])
def test_a_node_without_a_port_takes_no_requirement_from_the_others(stated: list[dict[str, object]]) -> None:
    """Reject a node without an active port, and others on sockets; sockets with it are no fault of others."""

    def answer(on_sockets: set[str]) -> Answer:
        """Return answers in which these nodes use sockets."""

        def answered(name: str, order: dict[str, Any]) -> dict[str, Any]:
            """Answer one order."""
            if order["do"] == "look":
                return {**LOOK, "gpus": [0], "rdma": stated if name == "gpu03" else [IB]}
            sockets = {name: {"transport": "NET/Socket/0"}} if name in on_sockets else {}
            return with_log(**sockets)(name, order)

        return answered

    alone = search(NAMES, answer({"gpu03"}))
    assert rejected(alone) == ["gpu03"]
    [text] = [path.text for path in alone.paths if path.rule == "across.fabric"]
    assert text.startswith(
        "gpu03: no active InfiniBand port; 7 of the other nodes have one; run `gpuprov doctor`"
    )
    assert rejected(search(NAMES, answer({"gpu03", "gpu05"}))) == ["gpu03", "gpu05"]
    together = ["gpu01", "gpu02", "gpu03"]  # one group, in which all must use sockets
    assert rejected(search(together, answer(set(together)))) == ["gpu03"]


class Waiting(Pretended):
    """A node that does not answer until its conversation is closed."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sound)
        self.heard, self.closed = threading.Event(), threading.Event()

    def say(self, text: bytes, seconds: float = 20.0) -> None:
        self.heard.set()

    def _piece(self, seconds: float) -> bytes | None:
        """Wait until closed, then return the end of the output."""
        self.closed.wait(seconds)
        return b""

    def close(self) -> None:
        self.closed.set()


def test_an_interrupted_controller_waits_for_nobody() -> None:
    node = Waiting("a")
    begun = time.monotonic()

    def interrupted() -> None:
        """Wait until the node was asked, then interrupt."""
        with Mesh(["a"], here(["a"], lambda name: node)) as nodes:
            asking = threading.Thread(target=nodes.ask, args=({"a": {"do": "look"}}, 90), daemon=True)
            asking.start()
            assert node.heard.wait(10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 10


def test_a_node_that_connects_after_an_interruption_gets_no_order() -> None:
    """Close a conversation that opens after the interruption, instead of waiting for its answer."""
    node, interruption = Waiting("a"), threading.Event()
    connecting = threading.Event()

    def connect(name: str) -> Waiting:
        """Report that a connection begins, and return it after the interruption."""
        connecting.set()
        assert interruption.wait(10)
        return node

    def interrupted() -> None:
        """Begin to connect, then interrupt."""
        with Mesh(["a"], here(["a"], connect)) as nodes:
            threading.Thread(target=nodes.ask, args=({"a": {"do": "look"}}, 90), daemon=True).start()
            assert connecting.wait(10)
            threading.Timer(0.2, interruption.set).start()  # after __exit__ has begun
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 10
    assert node.closed.is_set()
    assert not node.heard.is_set()


def real(name: str) -> PipeConversation:
    """Return a conversation with the node's real program, on this machine."""
    payload = fabric(seconds=LONGEST_S)
    return PipeConversation(["/bin/sh", "-c", payload.command], payload.stdin, 1 << 20)


def test_a_machine_without_a_driver_says_so() -> None:
    with Mesh(["a", "b"], here(["a", "b"], real)) as nodes:
        outcome = search_across(nodes, ["a", "b"])
    assert {str(error) for error in outcome.refused.values()} == {
        "libnvidia-ml.so.1 cannot be loaded; run `gpuprov doctor` on it"
    }
    assert outcome.search.rounds == 0


def test_the_program_ends_with_its_input() -> None:
    payload = fabric(seconds=LONGEST_S)
    process = subprocess.Popen(
        ["/bin/sh", "-c", payload.command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(payload.stdin)
    process.stdin.flush()
    time.sleep(1)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(10) == 0


def test_one_that_is_killed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "BEYOND_S", 2.0)
    begun: list[PipeConversation] = []

    def begin(name: str) -> PipeConversation:
        begun.append(real(name))
        return begun[-1]

    with Mesh(["a"], here(["a"], begin)) as nodes:
        assert "refused" in nodes.ask({"a": {"do": "look"}}, 10)["a"]
        os.kill(begun[0]._process.pid, signal.SIGKILL)
        result = nodes.ask({"a": {"do": "look"}}, 10)["a"]
    assert isinstance(result, Exception)
    assert nodes.ask({"a": {"do": "look"}}, 10)["a"] is result


def test_the_sites_floors_between_nodes() -> None:
    floors = {"gpu02": {"between_nodes": 47.0, "across_nodes": 46.0}}
    outcome = search(NAMES, sound, floors=floors)
    found = {path.rule: nodes for path, nodes in outcome.paths.items()}
    assert set(found) == {"across_nodes.slow"}
    assert "gpu02" in found["across_nodes.slow"]
    assert {each.node: each.verdict for each in outcome.judged()}["gpu02"] == "rejected"


def test_a_slow_exchange_counts_for_the_node_at_fault_or_the_ends_of_its_link() -> None:
    """Reject a node that reports low rates from all others; for a low rate of a link, reject its two ends."""
    floors = {name: {"between_nodes": 20.0} for name in NAMES}
    found = {each.node: each.verdict for each in search(NAMES, slow, floors=floors).judged()}
    assert [name for name, verdict in found.items() if verdict == "rejected"][1:] == ["gpu07"], "its pair"

    def of_link(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but with one slow exchange of gpu03 in the whole group."""
        result = sound(name, order)
        if order["do"] == "join" and name == "gpu03" and len(order["with"]["members"]) == 8:
            result["value"]["exchange"][0]["value"] = 9.0
        return result

    outcome = search(NAMES, of_link, floors=floors)
    [nodes] = [nodes for path, nodes in outcome.paths.items() if path.rule == "between_nodes.slow"]
    assert len(nodes) == 2
    assert "gpu03" in nodes


def test_an_all_reduce_below_the_floor_counts_for_its_group_by_the_median_of_its_reports() -> None:
    """Reject a node that reports less with its partners in pairs, and all nodes where all report less."""

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but with a slow all-reduce from the blamed nodes."""
        result = sound(name, order)
        if order["do"] == "join" and name in blamed:
            result["value"]["reduced"]["value"] = 30.0
        return result

    floors = {name: {"across_nodes": 40.0} for name in NAMES}
    for blamed in (["gpu05"], NAMES):
        judged = search(NAMES, answer, floors=floors).judged()
        found = [each.node for each in judged if "across_nodes.slow" in [one.rule for one in each.faults]]
        assert set(found) >= set(blamed)
        assert found == blamed or len(found) <= 3


def logged(rank: int, ranks: int, transport: str, interface: str = "eth0", version: str = "2.28.3") -> str:
    """Return the log of a node with one GPU that sends to the next rank."""
    lines = (
        f"NCCL version {version}+cuda13.0",
        f"NET/Socket : Using [0]{interface}:192.0.2.2<0>",
        f"comm 0x1 rank {rank} nranks {ranks} cudaDev 0 busId 1 commId 0x9 - Init COMPLETE",
        f"Channel 00/0 : {rank}[0] -> {(rank + 1) % ranks}[0] [send] via {transport}",
    )
    return "".join(f"vm:1:1 [0] NCCL INFO {line}\n" for line in lines)


def with_log(**stated: dict[str, str]) -> Answer:
    """Return the answers of nodes with one GPU, whose logs differ from an InfiniBand node's as stated."""

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer an order; joins get a log of the transport stated for the node, InfiniBand for others."""
        if order["do"] == "look":
            return {**LOOK, "gpus": [0]}
        if order["do"] == "id":
            return {"value": MADE}
        count = len(order["with"]["members"])
        log = logged(order["with"]["me"], count, **{"transport": "NET/IB/0", **stated.get(name, {})})
        exchange = [
            {"member": sum(pair) - order["with"]["me"], "value": 48.0, "us": 20.0}
            for _, *pair in order["with"]["steps"]
        ]
        return {"value": {"exchange": exchange, "reduced": {"value": 45.0}, "log": log}}

    return answer


def rejected(outcome: Outcome) -> list[str]:
    """Return the names of the rejected nodes."""
    return [each.node for each in outcome.judged() if each.verdict == "rejected"]


def test_an_equal_finding_counts_for_the_nodes_of_all_groups() -> None:
    sockets = {name: {"transport": "NET/Socket/0"} for name in NAMES}
    outcome = search(NAMES, with_log(**sockets), inter="ib")
    assert rejected(outcome) == NAMES
    assert [path.level for path in outcome.paths if path.rule == "nccl.inter.transport"] == ["bad"]


@pytest.mark.parametrize("stated", [{"transport": "NET/Socket/0"}, {"interface": "docker0"}])
def test_the_log_of_a_node_rejects_that_node_alone(stated: dict[str, str]) -> None:
    stated = {"transport": "NET/IB/0", **stated}
    assert rejected(search(NAMES, with_log(), inter="ib")) == []
    assert rejected(search(NAMES, with_log(gpu03=stated), inter="ib")) == ["gpu03"]


@pytest.mark.parametrize("log", ["", "vm: no room\n"])
def test_a_node_without_a_log_is_rejected_alone(log: str) -> None:
    """Have a /tmp that a user has filled, where NCCL writes its log: the node's paths are not known."""
    sockets = with_log(gpu03={"transport": "NET/Socket/0"})

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer with that log of gpu03, which sends by sockets."""
        result = sockets(name, order)
        if name == "gpu03" and order["do"] == "join":
            result["value"]["log"] = log
        return result

    outcome = search(NAMES, answer, inter="ib")
    assert rejected(outcome) == ["gpu03"]
    assert {path.rule for path in outcome.paths if path.level == "bad"} == {"nccl.log.empty"}


def test_different_versions_of_nccl_count_for_both_nodes() -> None:
    found = rejected(search(NAMES, with_log(gpu03={"version": "2.20.5"}), inter="ib"))
    assert len(found) == 3
    assert "gpu03" in found


@pytest.mark.parametrize("stuck", [False, True])
def test_a_node_that_names_itself_as_its_peer_stops_nobody(stuck: bool) -> None:
    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but gpu04 reports a fault of itself as its peer."""
        result = sound(name, order)
        if name == "gpu04" and order["do"] == "join":
            me = order["with"]["me"]
            if stuck:
                return {"error": "it hangs", "step": 0, "member": me}
            result["value"]["exchange"].append({"member": me, "value": 1.0, "us": 1.0, "wrong": True})
        return result

    outcome = search(NAMES, answer)
    assert set(rejected(outcome)) <= {"gpu04"}
    assert all(len(seen.link) == 2 for seen in outcome.search.evidence.seen)


@pytest.mark.parametrize(
    "made",
    ["é" * 300_000, "00" * 127, "00" * 129, "00" * 128 + "\n", "0x" + "00" * 127, 5, None, ["00" * 128]],
)
def test_an_id_that_is_none_is_sent_to_no_other_node(made: object) -> None:
    """Reject a node whose id of a communicator is invalid, and measure the others without it."""

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        return {"value": made} if name == "gpu01" and order["do"] == "id" else sound(name, order)

    outcome = search(NAMES, answer)
    assert rejected(outcome) == ["gpu01"]
    [verdict] = outcome.verdicts
    assert (verdict.rule, verdict.nodes) == ("lost", ("gpu01",))
    assert verdict.text == ("gpu01: its id of a communicator is invalid; expected 256 hexadecimal digits")


@pytest.mark.parametrize("leads_to", ["10.0.0.99", "127.0.0.1", "169.254.169.254"])
def test_an_id_that_leads_elsewhere_is_sent_to_no_other_node(leads_to: str) -> None:
    """Refuse an id with which all members would connect, as root, to an address that is not its maker's."""
    sent: set[str] = set()

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but gpu01's id leads elsewhere; record the ids sent."""
        if order["do"] == "join":
            sent.add(order["with"]["id"])
        return (
            {"value": handle(ip_address(leads_to))}
            if (name, order["do"]) == ("gpu01", "id")
            else sound(name, order)
        )

    outcome = search(NAMES, answer)
    assert rejected(outcome) == ["gpu01"]
    assert sent == {MADE}
    [verdict] = outcome.verdicts
    assert f"its id of a communicator leads to {leads_to}; expected 192.0.2.2, or an address" in verdict.text


def test_ids_of_a_network_of_their_own_are_taken() -> None:
    """Take ids with addresses of a fabric in which gpuprov does not log in, as with IPoIB."""

    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, with ids of a second network of the nodes."""
        last = int(name[-1])
        if order["do"] == "id":
            return {"value": handle(ip_address(f"198.51.100.{last}"))}
        if order["do"] == "look":
            return {**LOOK, "addresses": [f"192.0.2.{last}/24", f"198.51.100.{last}/24"]}
        order["with"]["id"] = MADE
        return sound(name, order)

    known = {name: [ip_address(f"192.0.2.{name[-1]}")] for name in NAMES}
    assert rejected(search(NAMES, answer, known=known)) == []


def test_several_versions_of_nccl_in_one_log_count_for_that_node_alone() -> None:
    versions = "2.28.3+cuda13.0\n" + "\n".join(f"NCCL version 2.20.{at}" for at in range(5_000)) + "\n"
    outcome = search(NAMES, with_log(gpu03={"version": versions}), inter="ib")
    assert rejected(outcome) == ["gpu03"]
    [text] = {path.text for path in outcome.paths if path.rule == "nccl.version.mixed"}
    assert len(text) == CHARACTERS


def test_a_log_is_read_up_to_the_limit_of_the_nodes_program() -> None:
    beyond = "2.28.3\n" + "\n" * LOG_LIMIT + "NCCL version 2.20.5"
    outcome = search(NAMES, with_log(gpu03={"version": beyond}), inter="ib")
    assert "nccl.version.mixed" not in {path.rule for path in outcome.paths}


@pytest.mark.parametrize("inter", ["ib", None])
def test_a_log_that_cannot_be_judged_counts_for_its_node(
    monkeypatch: pytest.MonkeyPatch, inter: Inter | None
) -> None:
    def read(streams: Iterable[TextIO]) -> NcclLog:
        """Read logs; one with version 2.99.9 cannot be read."""
        texts = [stream.read() for stream in streams]
        if any("2.99.9" in text for text in texts):
            raise RecursionError
        return read_log(map(io.StringIO, texts))

    monkeypatch.setattr(run, "read_log", read)
    outcome = search(NAMES, with_log(gpu03={"version": "2.99.9"}), inter=inter)
    assert rejected(outcome) == ["gpu03"]
    assert {path.rule for path in outcome.paths if path.level == "bad"} == {"nccl.log.unread"}


def test_a_long_error_of_a_node_is_shortened() -> None:
    def answer(name: str, order: dict[str, Any]) -> dict[str, Any]:
        """Answer well, but gpu04 gives a long error."""
        if name == "gpu04" and order["do"] == "join":
            return {"error": "x" * 100_000, "step": 0, "member": 0}
        return sound(name, order)

    outcome = search(NAMES, answer)
    assert "gpu04" in rejected(outcome)
    assert max(len(verdict.text) for verdict in outcome.verdicts) < 3 * CHARACTERS
    assert len(json.dumps(across_document(outcome))) < 100_000


def test_verdicts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = search(NAMES, slow)
    assert outcome.verdicts
    monkeypatch.setattr(outcome.search, "verdicts", None)
    assert across_document(outcome)["verdicts"]
    assert list(across_lines(outcome))
