"""Status of the fleet: readings in one table, marked differences, and a node that becomes unreachable."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from gpuprov.cli.status import View, _Pressed, _turn
from gpuprov.doctor import status
from gpuprov.doctor.status import NodeNow, Watch, odd, read_node, status_document, usual
from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.model.lock import Connection
from gpuprov.probe.facts import Facts
from gpuprov.report.status import status_lines, status_table
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import Target
from gpuprov.untrusted import json_text
from gpuprov.untrusted.parsing import read_json
from tests import RECORDED_LOCK

GPU = {
    "index": 0,
    "name": "NVIDIA H200",
    "gpu": 97,
    "memory": 20,
    "used_mib": 81920,
    "total_mib": 143771,
    "power_w": 640.0,
    "limit_w": 700.0,
    "clock": 1755,
    "max_clock": 1980,
    "temperature": 61,
    "reasons": 4,
    "ecc": 0,
    "persistence": 1,
}


def facts(*gpus: dict[str, Any], **programs: Any) -> Facts:
    """Return the facts of a node with these GPUs and programs."""
    raw = {
        "gpus": [{**GPU, "index": n, **each} for n, each in enumerate(gpus)],
        "programs": programs,
        "load": "3.1",
    }
    return Facts("gpu01", "2026-11-22T12:00:00Z", 0.1, {"status": raw})


def nodes() -> list[NodeNow]:
    """Return the readings of three nodes: a usual one, one that is throttled, one without an answer."""
    return [
        read_node("gpu01", facts({}, {}, **{"0": [[4711, "python", "alice", 7300, 80000]]})),
        read_node("gpu02", facts({}, {"limit_w": 500.0, "reasons": 64, "ecc": 2})),
        NodeNow("gpu03", failure="no route to host", unreachable=True),
    ]


def test_a_line_a_gpu_and_what_differs_stands_out() -> None:
    lines = list(status_lines(nodes()))
    assert lines[0].split()[:3] == ["NODE", "GPU", "BUSY"]
    assert "97%   80/140 GiB  640/700 W  61 C  1755/1980  python 4711 alice 2 h" in lines[1]
    assert lines[4].endswith(
        "throttled: HW thermal slowdown; 2 uncorrectable ECC errors; limit w 500, not 700"
    )
    assert lines[5].split(maxsplit=2)[2] == "no route to host"


NUMBERS = ("gpu", "used_mib", "total_mib", "power_w", "limit_w", "clock", "max_clock", "temperature", "ecc")


@pytest.mark.parametrize("name", [*NUMBERS, "index", "reasons", "persistence"])
@pytest.mark.parametrize("value", ["nan", "1e999", "5", 1e300, "9" * 4000])
def test_what_is_no_number_fails_in_its_own_line(name: str, value: object) -> None:
    found = contained("gpu09", lambda: read_node("gpu09", facts({name: value})))
    assert isinstance(found, NodeFailed)
    assert "in place of a number" in str(found)


def test_no_value_of_a_node_makes_the_document_of_all_invalid() -> None:
    [node] = nodes()[:1]
    wild = replace(node.gpus[0], busy=float("nan"), power_w=float("inf"), persistence=10**400)
    document = status_document([node, replace(node, name="gpu09", gpus=(wild,))])
    [good, bad] = read_json(json_text(document), 1 << 20)["nodes"]
    assert good["gpus"][0]["busy"] == 0.97
    assert [bad["gpus"][0][name] for name in ("busy", "power_w", "persistence")] == [None, None, None]


def test_a_line_a_node() -> None:
    lines = list(status_lines(nodes(), folded=True))
    assert len(lines) == 4
    assert lines[1].split()[:4] == ["gpu01", "2x", "97%", "160/281"]
    assert "GPU 1 throttled" in lines[2]


def test_a_power_cap_and_idleness_are_nothing_odd() -> None:
    node = read_node("gpu01", facts({"reasons": 4}, {"reasons": 1}, {"reasons": 2}))
    assert [odd(gpu, usual([node])) for gpu in node.gpus] == [(), (), ()]


@pytest.mark.parametrize("changed", [[{"index": 0}] * 2, [{}] * 65])
def test_gpus_that_no_node_has_are_the_error_of_their_node(changed: list[dict[str, Any]]) -> None:
    with pytest.raises(NodeFailed, match="too many GPUs, or one twice; expected at most 64"):
        read_node("gpu01", facts(*changed))
    assert len(read_node("gpu01", facts(*[{}] * 64)).gpus) == 64


def test_only_as_many_programs_as_the_probe_lists_are_read() -> None:
    rows = [[pid, "python", "alice", 60, 1] for pid in range(100)]
    [gpu] = read_node("gpu01", facts({}, **{"0": rows})).gpus
    assert gpu.programs == tuple(f"python {pid} alice 1 min" for pid in range(8))


def test_a_gpu_whose_programs_are_not_known_is_not_shown_as_free() -> None:
    free, unknown = read_node("gpu01", facts({}, {}, **{"0": []})).gpus
    assert (free.programs, unknown.programs) == ((), ("programs not known",))


def test_long_names_of_a_node_are_cut() -> None:
    long, row = "x" * 10_000, {"name": "y" * 10_000}
    node = read_node("gpu01", facts(row, **{"0": [[1, long, long, 60, 1]] * 8}))
    [gpu] = node.gpus
    assert gpu.name == "y" * status.NAME
    assert gpu.programs[0] == f"{'x' * status.NAME} 1 {'x' * status.NAME} 1 min"
    assert len(json.dumps(status_document([node]))) < 5000


def test_one_node_does_not_widen_the_lines_of_others() -> None:
    other = read_node("gpu01", facts({}, **{"0": [[1, "x" * 100_000, "u", 60, 1]]}))
    sound = read_node("gpu02", facts({}))
    failed = NodeNow("gpu03", failure="x" * 100_000)
    assert max(map(len, status_lines([other, sound]))) < 200
    assert max(map(len, list(status_lines([sound, failed]))[:-1])) < 200


def test_each_node_has_one_vote_on_what_is_usual() -> None:
    honest = [read_node(f"gpu{n}", facts({}, {})) for n in range(10)]
    other = read_node("other", facts(*[{"name": "H100", "persistence": 0}] * 64))
    for order in ([*honest, other], [other, *honest]):
        common = usual([*order, NodeNow("lost", failure="no route")])
        assert (common["name"], common["persistence"]) == ("NVIDIA H200", 1)
        assert odd(other.gpus[0], common) == ("name H100, not NVIDIA H200", "persistence 0, not 1")
    assert usual([honest[0], other])["name"] is None
    assert usual([]) == dict.fromkeys(status.COMPARED)


def test_as_json() -> None:
    """Check the document of `status -o json`, with a throttled GPU and a node without an answer."""
    document = status_document(nodes())
    assert document["schema"] == "gpuprov.status/1"
    assert document["nodes"][1]["gpus"][1]["odd"][0] == "throttled: HW thermal slowdown"
    assert document["nodes"][2]["error"] == "no route to host"
    json.dumps(document)


def test_a_table_fits_the_terminal() -> None:
    from rich.console import Console

    many = [read_node(f"gpu{n:03}", facts(*[{}] * 8)) for n in range(40)]
    for lines in (12, 24, 80):
        console = Console(width=140, height=lines, record=True, file=io.StringIO())
        table, top = status_table(many, lines, folded=False, only_odd=False, top=5000)
        console.print(table)
        assert len(console.export_text().splitlines()) == lines - 1
        assert top == 320 - (lines - 4), "the last rows fill the terminal, and a step up shows at once"


def test_keys() -> None:
    """Check what the keys f, o, j, k and page down do to the view."""
    view = View(folded=False, only_odd=False)
    for key in ("f", "o", "j", "j", "k", "\x1b[6~"):
        _turn(view, key, 24)
    assert (view.folded, view.only_odd, view.top) == (True, True, 21)


def test_keys_that_come_together_are_handled_one_by_one() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"ff\x1b[B\x1bOA\x1b[6~ q")
    assert _Pressed(reader)(1) == ["f", "f", "\x1b[B", "\x1bOA", "\x1b[6~", " ", "q"]
    assert _Pressed(reader)(0.01) == []


@pytest.fixture
def target() -> Target:
    return Target("gpu01", "192.0.2.1", Connection())


def test_a_node_that_dies_in_the_middle_comes_back(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([facts({}), facts({}), Unreachable("the connection broke"), facts({}), *[facts({})] * 1000])
    connections = []

    @contextmanager
    def session(node: Target, limits: object) -> Iterator[Any]:
        connections.append(node)
        yield type("Session", (), {"target": node})()

    def answer(*_: object) -> Facts:
        """Return or raise the next of the node's answers."""
        result = next(said)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(status, "open_session", session)
    monkeypatch.setattr(status, "ask", answer)
    seen = set()
    with Watch([target], 0.05) as watch:
        deadline = time.monotonic() + 5
        while watch.readings["gpu01"] < 6 and time.monotonic() < deadline:
            seen.add(watch.nodes()[0].failure)
            time.sleep(0.005)
    assert len(connections) == 2
    assert {"the connection broke", None} <= seen
    assert watch.nodes()[0].failure is None


def test_leaving_does_not_wait_for_silent_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(node: Target, limits: object) -> Iterator[Any]:
        yield type("Session", (), {"target": node})()

    monkeypatch.setattr(status, "open_session", session)
    monkeypatch.setattr(status, "ask", lambda *_: time.sleep(30))
    monkeypatch.setattr(status, "LEAVE_S", 0.3)
    begun = time.monotonic()
    with Watch([Target(f"gpu{n}", "192.0.2.1", Connection()) for n in range(40)], 0.05):
        time.sleep(0.2)
    assert time.monotonic() - begun < 3


def test_a_reading_that_failed_keeps_the_connection(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = []

    @contextmanager
    def session(node: Target, limits: object) -> Iterator[Any]:
        connections.append(node)
        yield type("Session", (), {"target": node})()

    def answer(*_: object) -> Facts:
        raise NodeFailed("nvidia-smi did not answer in time")

    monkeypatch.setattr(status, "open_session", session)
    monkeypatch.setattr(status, "ask", answer)
    with Watch([target], 0.02) as watch:
        time.sleep(0.3)
    assert len(connections) == 1
    assert watch.nodes()[0].failure == "nvidia-smi did not answer in time"


def test_here_and_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check `status` for this machine and for a node that is not reached; none or both are refused."""
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 2
    assert run(["status", "--local", "gpu01"]) == 2
    assert run(["status", "root@127.0.0.1:1", "--known-hosts", str(tmp_path / "none"), "-o", "json"]) == 4
    capsys.readouterr()
    code = run(["status", "--local", "-o", "json"])
    here = json.loads(capsys.readouterr().out)["nodes"][0]
    assert (code, bool(here["error"])) in ((1, True), (0, False))


def test_an_old_reading_is_none(target: Target) -> None:
    watch = Watch([target], 5)
    watch.now["gpu01"] = read_node("gpu01", facts({}))
    assert watch.nodes()[0].failure is None
    watch.now["gpu01"] = replace(watch.now["gpu01"], read_at=time.time() - 60)
    assert watch.nodes()[0].failure == "no reading for 60 s"


def test_locked_versions_of_a_bulletin_are_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        status, "read_once", lambda targets: [read_node(each.name, facts({})) for each in targets]
    )
    assert run(["status", "--lock", str(RECORDED_LOCK)]) == 0
    printed = capsys.readouterr()
    assert "note: driver 535.309.01 is affected by NVIDIA's security bulletin 5861" in printed.err
    assert "bulletin" not in printed.out
    assert run(["status", "--lock", str(RECORDED_LOCK), "-o", "json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["security"]
    assert (note["version"], note["bulletins"], note["installed"]) == ("535.309.01", ["5861"], False)
