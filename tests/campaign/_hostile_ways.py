"""Ways in which a node, a repository or a file is hostile, each against the functions that the verbs call."""

from __future__ import annotations

import base64
import json
import lzma
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gpuprov.apply.deadman import source_address
from gpuprov.bootstrap.hostkeys import HostKeys
from gpuprov.catalog import load
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import gather, survey
from gpuprov.errors import GpuprovError, Refused
from gpuprov.inventory.discover import kinds, match_hosts
from gpuprov.locking.repository.apt import AptRecords, parse_depends, unpack
from gpuprov.locking.repository.index import Index
from gpuprov.model.connection import Connection
from gpuprov.probe.facts import Facts
from gpuprov.report.documents import drift_document
from gpuprov.report.facts import describe
from gpuprov.report.history.record import of_majority, of_survey
from gpuprov.report.text import drift_lines
from gpuprov.runs import now
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import ConnectionLimits, Target
from gpuprov.untrusted import printable
from gpuprov.upgrade import hooks
from gpuprov.upgrade.fetching import fetch
from gpuprov.upgrade.gate import ask_gate
from gpuprov.upgrade.leases import leases_for, take_all
from tests.campaign._hostile_fleet import BAD, GOOD, Answer, Fleet, PaperSession, answering, framed, healthy

TEXT = st.text(st.characters(exclude_categories=[]), max_size=30)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**400, -1, 1e308, ""])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)


@dataclass
class Tally:
    """What was tried, and how often nobody had thought of what came back."""

    tried: Counter[str] = field(default_factory=Counter)
    unforeseen: Counter[str] = field(default_factory=Counter)


class Ways:
    """Each way takes what hypothesis draws, and asserts what has to hold whatever was drawn."""

    def __init__(self, folder: Path) -> None:
        self.fleet, self.tally, self.folder = Fleet(folder), Tally(), folder
        self.healthy = json.dumps(healthy())
        self.kinds = kinds(load())

    def answers(self, data: st.DataObject) -> None:
        """Bytes that are no answer, or one that is damaged on purpose with a checksum that fits."""
        bad = data.draw(ANSWERS)
        with self.fleet.in_which(bad):
            self._reported("answers", survey(self.fleet.lock, self.fleet.names))

    def facts(self, data: st.DataObject) -> None:
        """Facts in which one to three places are something else or not there; every judge sees them."""
        document = json.loads(self.healthy)
        for _ in range(data.draw(st.integers(1, 3))):
            _spoil(document, data)
        with self.fleet.in_which(answering(document)):
            self._reported("facts", survey(self.fleet.lock, self.fleet.names))
            answers = dict(gather(self.fleet.lock, self.fleet.names))
            one_group = dict.fromkeys(self.fleet.names, "all")
            self._reported("facts", of_majority(one_group, answers, "").nodes)
            gates = {gate.name: gate for gate in ask_gate(self.fleet.context(), self.fleet.names)}
            assert all("facts" not in [each.rule for each in gates[name].findings] for name in GOOD)
            json.dumps([gate.as_dict() for gate in gates.values()], allow_nan=False).encode()
            found = dict(match_hosts(self.fleet.names, Connection(), self.kinds))
            assert not any(isinstance(found[name], GpuprovError) for name in GOOD)
        if isinstance(facts := answers[BAD], Facts):
            told = contained(BAD, lambda: printable("\n".join(describe(facts))))
            str(told).encode("utf-8", "strict")

    def acts(self, data: st.DataObject) -> None:
        """Answers of an upgrade's acts: leases, and packages fetched ahead."""
        result = data.draw(VALUE | st.fixed_dictionaries({}, optional=dict.fromkeys(ACT_KEYS, VALUE)))
        document = data.draw(st.sampled_from([{"result": result}, result, {"error": result}]))
        context, names = self.fleet.context(), self.fleet.names
        own = {"run": context.id, "holder": "us", "until": 0, "now": 0, "built": []}
        with self.fleet.in_which(answering(document), answering({"result": own})):
            with Documented():
                take_all(leases_for(context), names, context.narrate)
            failed = contained(BAD, lambda: fetch(context, names, []))
        assert not any(name in str(failed) for name in GOOD)
        assert failed is None or (isinstance(failed, Refused) and BAD in str(failed))

    def hooks(self, data: st.DataObject) -> None:
        """What a hook prints on a node, and how it ends."""
        said = data.draw(st.binary(max_size=200))
        context = self.fleet.context(drain={"run": "true", "on": "node"})
        with self.fleet.in_which(lambda _: said, lambda _: b""):
            failed = hooks.run_hook(context, "drain", self.fleet.names)
        assert not set(failed) & set(GOOD)
        "".join(failed.values()).encode()

    def origins(self, data: st.DataObject) -> None:
        """What a login shell prints where it is asked for the address that we come from."""
        said = data.draw(st.binary(max_size=200) | TEXT.map(lambda text: text.encode("utf-8", "replace")))
        echoed = data.draw(st.booleans())

        def answer(command: str) -> bytes:
            return said + (command.encode() if echoed else b"") + said

        session = PaperSession(Target(BAD, "127.0.0.1", Connection()), ConnectionLimits(), answer)
        with Documented():
            source_address(session)

    def indexes(self, data: st.DataObject) -> None:
        """Stanzas of packages and packed files that are none."""
        text = "\n\n".join(data.draw(st.lists(STANZA, max_size=3)))
        with Documented():
            index = Index(AptRecords("file:/x", [text], "amd64"))
            for name in index.names():
                index.versions(name)
        with Documented():
            parse_depends(data.draw(TEXT | DEPENDS))
        suffix = data.draw(st.sampled_from(["", ".gz", ".xz", ".bz2", ".zst"]))
        with Documented():
            unpack(data.draw(st.binary(max_size=200) | PACKED), suffix, "Packages")

    def known_hosts(self, data: st.DataObject) -> None:
        """Lines of known-hosts files."""
        from gpuprov.ssh.known_hosts import read_known_hosts

        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            path = Path(name) / "known_hosts"
            path.write_bytes(b"\n".join(data.draw(st.lists(KNOWN, max_size=4))))
            with Documented():
                HostKeys(Path(name) / "pinned", path).knows("gpu01", 22)
            with Documented():
                read_known_hosts(path).keys("gpu01")

    def _reported(self, way: str, nodes: Any) -> None:
        """Every node is there, those that are well as they are, and all can be shown and kept."""
        told: dict[str, NodeDrift] = {node.name: node for node in nodes}
        assert list(told) == self.fleet.names
        for name in GOOD:
            assert told[name].reason is None, told[name]
        if "could not be read" in (told[BAD].reason or ""):
            self.tally.unforeseen[f"{way}: {told[BAD].reason.partition(';')[0]}"] += 1  # type: ignore[union-attr]
        for line in drift_lines(told.values()):
            line.encode("utf-8", "strict")
        run = of_survey(self.fleet.lock, self.folder / "fleet.lock.yml", list(told.values()))
        json.dumps(drift_document(run.nodes, now()), allow_nan=False, ensure_ascii=False).encode()


class Documented:
    """Nothing but errors of ours comes out."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, GpuprovError)


def _spoil(document: dict[str, Any], data: st.DataObject) -> None:
    """Something else, or nothing, in one place of a document."""
    where: Any = document
    while True:
        keys = sorted(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        inner = where[key]
        if (
            not isinstance(inner, (dict, list))
            or not inner
            or (where is not document and data.draw(st.booleans()))
        ):
            break
        where = inner
    if data.draw(st.integers(0, 3)):
        where[key] = data.draw(VALUE)
    else:
        del where[key]


def packed(text: bytes) -> Answer:
    body = base64.b64encode(zlib.compress(text, 1))
    return lambda nonce: framed(body, nonce)


def raw(body: bytes) -> Answer:
    return lambda nonce: framed(body, nonce)


def _cut(document: Any, share: float) -> Answer:
    def answer(nonce: str) -> bytes:
        whole = answering(document)(nonce)
        return whole[: int(len(whole) * share)]

    return answer


DEEP = st.integers(10, 20000)
ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    st.binary(max_size=300).map(lambda text: lambda nonce: text),
    st.binary(max_size=300).map(raw),
    st.binary(max_size=300).map(lambda text: raw(base64.b64encode(text))),
    st.binary(max_size=300).map(packed),
    TEXT.map(lambda text: packed(text.encode("utf-8", "surrogatepass"))),
    DEEP.map(lambda depth: packed(b"[" * depth + b"]" * depth)),
    DEEP.map(lambda depth: packed(b'{"schema":' * depth + b"1" + b"}" * depth)),
    DEEP.map(lambda digits: packed(b'{"schema": ' + b"9" * digits + b"}")),
    st.sampled_from([b"NaN", b"[Infinity]", b'{"seconds": 1e999}', b'"\\ud800"']).map(packed),
    VALUE.map(answering),
    st.fixed_dictionaries(
        {"schema": st.just("gpuprov.facts/1"), "collectors": VALUE, "seconds": VALUE, "host": VALUE}
    ).map(answering),
    st.floats(0, 1).map(lambda share: _cut({"schema": "gpuprov.facts/1"}, share)),
)
ACT_KEYS = ("run", "holder", "since", "until", "now", "built", "error", "result")
WORD = st.text("abz019.+-~:<>=()|, ${}", max_size=12)
FIELD = st.sampled_from(
    ["Package", "Version", "Depends", "Pre-Depends", "Provides", "Size", "SHA256", "Architecture", "Filename"]
)
STANZA = st.lists(st.tuples(FIELD, WORD | TEXT), max_size=8).map(
    lambda fields: "\n".join(f"{name}: {value}" for name, value in fields)
)
DEPENDS = st.lists(WORD, max_size=4).map(", ".join)
PACKED = st.binary(max_size=50).map(zlib.compress) | st.binary(max_size=50).map(lzma.compress)
KNOWN = st.one_of(
    st.binary(max_size=80).map(lambda text: text.replace(b"\n", b"")),
    st.tuples(
        st.sampled_from(["gpu01", "*", "|1|x|y", "@revoked gpu01", "@cert-authority *", "", "[::1]:22"]),
        st.sampled_from(["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "none", ""]),
        st.binary(max_size=60).map(lambda key: base64.b64encode(key).decode()) | TEXT,
    ).map(lambda words: " ".join(words).replace("\n", "").encode("utf-8", "surrogatepass")),
)
SHARES = {
    "answers": 30,
    "facts": 25,
    "acts": 10,
    "hooks": 5,
    "origins": 10,
    "indexes": 10,
    "known_hosts": 10,
}
"""Ways, and how many of a hundred tries each gets."""


def way(ways: Ways, name: str) -> Callable[[st.DataObject], None]:
    """One try of a way, counted."""

    def once(data: st.DataObject) -> None:
        ways.tally.tried[name] += 1
        getattr(ways, name)(data)

    return once
