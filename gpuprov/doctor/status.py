"""Current state of the fleet: one cheap reading per node and interval, over a permanent connection."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gpuprov.doctor.load.sample import GPUS, THROTTLED
from gpuprov.errors import Exit, GpuprovError, NodeFailed
from gpuprov.probe.collect import ask, collect_local
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import STATUS_PROBE, Parameters, Payload, build
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out, open_session
from gpuprov.untrusted.numbers import finite, whole

SCHEMA = "gpuprov.status/1"
LIMITS = ConnectionLimits(connect_s=10, command_s=20, answer_bytes=512 * 1024)
COMPARED = ("name", "total_mib", "limit_w", "max_clock", "persistence")
"""Values that should be equal on all GPUs; a difference from the majority is highlighted."""
STALE = 3
"""Intervals without a reading, in addition to a connection's time limit, after which the last one is
outdated.
"""
PROGRAMS = 8
"""Maximum number of programs of a GPU, which is also the probe's. Further ones are ignored."""
NAME = 64
"""Maximum length of the name of a GPU, a program or a user; the rest of a longer one is left out."""
LEAVE_S = 3.0
"""Time limit in seconds for closing all connections together; a silent node is not waited for longer."""
_QUESTION = Parameters(collectors=("status",))


@dataclass(frozen=True)
class GpuNow:
    """Current values of one GPU; `None` if the driver does not report the value."""

    index: int
    name: str
    busy: float | None
    used_mib: float | None
    total_mib: float | None
    power_w: float | None
    limit_w: float | None
    temperature: float | None
    clock: float | None
    max_clock: float | None
    persistence: int | None
    throttled: tuple[str, ...]
    ecc: float | None
    programs: tuple[str, ...]
    """`python 4711 alice 3 h`; `programs not known` alone"""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class NodeNow:
    """One node's last reading, or the reason for its absence."""

    name: str
    gpus: tuple[GpuNow, ...] = ()
    failure: str | None = None
    unreachable: bool = False
    read_at: float = 0.0
    load: str = ""


def read_node(name: str, facts: Facts) -> NodeNow:
    """Parse a node's reading, with at most `PROGRAMS` programs of each GPU.

    Raises:
        Missing: the collector `status` did not run or failed.
        NodeFailed: it lists more than `GPUS` GPUs, or one twice, or a value is not a number.
        KeyError, TypeError, ValueError: it has another form.
    """
    raw = facts.raw("status")
    indices = [whole(row["index"]) for row in raw["gpus"]]
    if len(indices) > GPUS or len(set(indices)) < len(indices):
        raise NodeFailed("the reading lists too many GPUs, or one twice", expected=f"at most {GPUS}")
    programs = {int(index): rows[:PROGRAMS] for index, rows in raw["programs"].items()}
    gpus = tuple(_gpu(row, programs.get(whole(row["index"]))) for row in raw["gpus"])
    return NodeNow(name, gpus, read_at=time.time(), load=str(raw["load"])[:NAME])


def _gpu(row: Mapping[str, Any], programs: Iterable[Any] | None) -> GpuNow:
    """Parse one GPU's row of a reading, with its programs; percentages become shares, a missing value None.
    Programs that are None are not known.

    Raises:
        KeyError, TypeError, ValueError, NodeFailed: the row has another form.
    """

    def number(name: str) -> float | None:
        value = row.get(name)
        return None if value is None else finite(value)

    bits = whole(row.get("reasons") or 0)
    busy, persistence = number("gpu"), number("persistence")
    return GpuNow(
        index=whole(row["index"]),
        name=str(row.get("name") or "")[:NAME],
        busy=None if busy is None else busy / 100,
        used_mib=number("used_mib"),
        total_mib=number("total_mib"),
        power_w=number("power_w"),
        limit_w=number("limit_w"),
        temperature=number("temperature"),
        clock=number("clock"),
        max_clock=number("max_clock"),
        persistence=None if persistence is None else int(persistence),
        throttled=tuple(name for bit, name in THROTTLED.items() if bits & bit),
        ecc=number("ecc"),
        programs=("programs not known",) if programs is None else tuple(_who(*each) for each in programs),
    )


def _who(pid: int, name: str, user: str, age: int | None, mib: int) -> str:
    """Return a program as text: `python 4711 alice 3 h`; without its age if that is unknown."""
    since = "" if age is None else f" {_age(whole(age))}"
    return f"{str(name or 'process')[:NAME]} {whole(pid)} {str(user)[:NAME]}{since}".strip()


def _age(seconds: int) -> str:
    """Return a duration in its largest unit: `2 d`, `3 h`, `12 min`, `40 s`."""
    for size, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word}"
    return f"{seconds} s"


def usual(nodes: Iterable[NodeNow]) -> dict[str, Any]:
    """Return name of `COMPARED` → the value with more than half of the votes; None without a majority.

    Each node with GPUs has one vote, which its GPUs share equally.
    """
    every = [node.gpus for node in nodes if node.gpus]
    found: dict[str, Any] = {}
    for name in COMPARED:
        votes: defaultdict[Any, Fraction] = defaultdict(Fraction)
        for gpus in every:
            for gpu in gpus:
                votes[getattr(gpu, name)] += Fraction(1, len(gpus))
        found[name] = next((value for value, share in votes.items() if share * 2 > len(every)), None)
    return found


def odd(gpu: GpuNow, common: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a GPU's throttle reasons and ECC errors, then its differences from the majority, as text."""
    differs = [
        f"{name.replace('_', ' ')} {_short(getattr(gpu, name))}, not {_short(value)}"
        for name, value in common.items()
        if value is not None and getattr(gpu, name) != value
    ]
    wrong = [f"throttled: {', '.join(gpu.throttled)}"] if gpu.throttled else []
    if gpu.ecc:
        wrong.append(f"{gpu.ecc:.0f} uncorrectable ECC errors")
    return (*wrong, *differs)


def _short(value: object) -> str:
    """Return a value as text, a float without unnecessary digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def status_document(nodes: Iterable[NodeNow]) -> dict[str, Any]:
    """Return the document `gpuprov.status/1`: the usual values, and each node's GPUs with the values that are
    unlike them.
    """
    listed = list(nodes)
    common = usual(listed)
    return {
        "schema": SCHEMA,
        "usual": common,
        "nodes": [
            {
                "name": node.name,
                "error": node.failure,
                "read_at": node.read_at,
                "load": node.load,
                "gpus": [{**gpu.as_dict(), "odd": list(odd(gpu, common))} for gpu in node.gpus],
            }
            for node in listed
        ],
    }


def status_here() -> NodeNow:
    """Return this machine's reading, or its failure."""
    result = contained("here", _local)
    return NodeNow("here", failure=str(result)) if isinstance(result, GpuprovError) else result


def _local() -> NodeNow:
    """Read this machine once; raises as `collect_local` and `read_node`."""
    facts = collect_local(_QUESTION, modules=STATUS_PROBE)
    return read_node(facts.host, facts)


@dataclass
class Watch:
    """Repeated readings of nodes, each over one connection, until stopped.

    Args:
        targets: the nodes.
        interval: seconds between readings; a slow node is read less often, never twice at once.
        now: the last reading of each node, or its failure.
        readings: number of readings by node.
    """

    targets: list[Target]
    interval: float
    now: dict[str, NodeNow] = field(default_factory=dict)
    readings: Counter[str] = field(default_factory=Counter)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Watch:
        """Start the readings, one thread for each node."""
        payload = build(_QUESTION, become=False, modules=STATUS_PROBE)
        for place, target in enumerate(self.targets):
            # Spread over the interval: 200 handshakes at once would slow each other down.
            begin = self.interval * place / max(1, len(self.targets))
            thread = threading.Thread(target=self._follow, args=(target, payload, begin), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the readings; wait for their threads for at most `LEAVE_S`."""
        self._stopped.set()
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def nodes(self) -> list[NodeNow]:
        """Return the last reading of each node, in the order of the targets; an outdated one is a failure."""
        return [self._fresh(each.name) for each in self.targets]

    def _fresh(self, name: str) -> NodeNow:
        """Return a node's last reading; a failure without one, or if it is older than `STALE` intervals and
        the time to connect.
        """
        last = self.now.get(name, NodeNow(name, failure="not read yet"))
        age = time.time() - last.read_at
        if last.failure is None and age > STALE * self.interval + LIMITS.connect_s:
            return NodeNow(name, failure=f"no reading for {age:.0f} s")
        return last

    def _follow(self, target: Target, payload: Payload, begin: float) -> None:
        """Read one node until stopped; after an error, which becomes its reading, connect again."""
        self._stopped.wait(begin)
        while not self._stopped.is_set():
            result = contained(target.name, lambda: self._stay(target, payload))
            if isinstance(result, GpuprovError):
                self.now[target.name] = _failed(target.name, result)
            self._stopped.wait(self.interval)

    def _stay(self, target: Target, payload: Payload) -> None:
        """Read one node over one connection until that breaks."""
        with open_session(target, LIMITS) as session:
            while not self._stopped.is_set():
                begun = time.monotonic()
                self.now[target.name] = self._read(session, payload)
                self.readings[target.name] += 1
                self._stopped.wait(max(0.0, self.interval - (time.monotonic() - begun)))

    def _read(self, session: Session, payload: Payload) -> NodeNow:
        """Return one reading; `NodeFailed` becomes a failure, and the connection stays open."""
        try:
            return read_node(session.target.name, ask(session, payload))
        except NodeFailed as failure:
            return NodeNow(session.target.name, failure=str(failure))


def read_once(targets: list[Target], *, dispatch: Dispatch = DIRECT) -> list[NodeNow]:
    """Return one reading of every node, or its failure, in the order of the targets."""
    payload = build(_QUESTION, become=False, modules=STATUS_PROBE)
    found: dict[str, NodeNow] = {}

    def visit(session: Session) -> NodeNow:
        return read_node(session.target.name, ask(session, payload))

    for target, result in fan_out(targets, visit, dispatch=dispatch, limits=LIMITS):
        found[target.name] = _failed(target.name, result) if isinstance(result, GpuprovError) else result
    return [found[target.name] for target in targets]


def _failed(name: str, error: GpuprovError) -> NodeNow:
    """Return the failure of a node in place of a reading."""
    return NodeNow(name, failure=str(error), unreachable=error.exit_code == Exit.UNREACHABLE)
