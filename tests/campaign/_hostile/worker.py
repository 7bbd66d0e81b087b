"""A hostile service of a site, and its workers: messages, results and files for a controller."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpuprov.apply.context import RunContext
from gpuprov.apply.worker_messages import WorkerMessages
from gpuprov.errors import GpuprovError
from gpuprov.ssh.workers.certificates import make_certificates
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.wire import paper_lock
from tests.campaign._hostile.words import payload, shape, spoil
from tests.unit.ssh.test_sites import ask, frame, in_sync, site, sync

Try = Callable[[random.Random], None]


class Evil:
    """An object that runs a program when it is unpickled."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __reduce__(self) -> Any:
        return os.system, (self._program,)


@way("worker", "events", "file", "code", "node", share=4000)
def events(field: Field) -> Try:
    """Try a worker's messages about a change: events, lines, files of its folder."""
    folder = field.work / "run"
    folder.mkdir()
    lines: list[str] = []
    heard: list[dict[str, Any]] = []
    run = RunContext(paper_lock(field), folder, narrate=lines.append, listen=heard.append)

    def once(rng: random.Random) -> None:
        """Make one try: process a hostile message; raise Reached if an event of another node counts."""
        lines.clear()
        heard.clear()
        message: Any = rng.choice(
            (
                {"file": payload(rng, field, "path", "path", "odd"), "text": "x"},
                {"file": "site-events.jsonl", "text": payload(rng, field, "bomb", "terminal", "odd")},
                {"file": "again-1/" + payload(rng, field, "path"), "text": "x"},
                {"line": payload(rng, field, "terminal", "odd", "bomb")},
                {"event": {"host": rng.choice(("node1", "node3", payload(rng, field))), "status": "ok"}},
                {"event": shape(rng, field)},
                {"file": shape(rng, field), "text": shape(rng, field)},
                shape(rng, field),
            )
        )
        with suppress(GpuprovError):
            WorkerMessages(run).take(["node1"], rng.randrange(9), message)
        for line in lines:
            field.show(line, "a worker's line")
        if others := [each for each in heard if each.get("host") not in (None, "node1")]:
            raise Reached("node", f"an event of a node of another site: {str(others[0])[:200]}")

    return once


@way("worker", "messages", "code", "node", "file", share=600, seconds=60, mib=600)
def messages(field: Field) -> Try:
    """Try a service with its site's certificate: other structures, other nodes, pickles."""
    folder = field.work / "tls"
    make_certificates(folder, ["east", "west"])

    def once(rng: random.Random) -> None:
        """Make one try: an order to a service that answers with hostile messages; raise Reached if another
        node is affected.
        """

        def answer(reported: dict[str, Any]) -> bytes:
            """Return the hostile messages about an order."""
            pickled = pickle.dumps(Evil(field.program), protocol=rng.choice((0, 4)))
            text = pickled.decode("latin-1")
            judged: Any = sync(rng.choice(("n1", "n2", "n3")))
            for _ in range(rng.choice((0, 1, 2))):
                spoil(rng, field, judged)
            message: dict[str, Any] = {
                "say": "answer",
                "id": reported["id"],
                "node": "n1",
                "answer": json.dumps(judged),
            }
            spoil(rng, field, message)
            drawn = rng.choice(
                (
                    frame(message),
                    frame(message),
                    frame(pickled),
                    frame({**message, "answer": text}),
                    frame(
                        {
                            "say": "event",
                            "id": reported["id"],
                            "number": reported["first"],
                            "event": shape(rng, field),
                        }
                    ),
                    frame({"say": "line", "text": payload(rng, field, "terminal")}),
                    frame({"say": "failed", "id": reported["id"], "node": "n1", "error": shape(rng, field)}),
                    in_sync(reported, "n3"),
                    (1 << 31).to_bytes(4, "big") + b"x",
                    rng.randbytes(50),
                )
            )
            return drawn + in_sync(reported, "n1", "n2", "n3")

        notes: list[str] = []
        found: dict[str, Any] = {}
        with (
            site(folder, "east", answer) as east,
            site(folder, "west", lambda reported: in_sync(reported, "n3")) as west,
            suppress(GpuprovError),
        ):
            names = {"n1": "east", "n2": "east", "n3": "west"}
            found = ask(f"{east},{west}", folder, names, notes=notes, hear=lambda *_: None)
        for note in notes:
            field.show(note, "a service's line")
        third = found.get("n3")
        if found and (isinstance(third, GpuprovError) or third is None or third.status != "in_sync"):
            raise Reached("node", f"a node of another site counts as {third}")

    return once


@way("worker", "certificates", "key", "node", share=60, seconds=60)
def certificates(field: Field) -> Try:
    """Try a service that claims another site, by address or by another fleet's certificate."""
    folder, other = field.work / "tls", field.work / "other"
    make_certificates(folder, ["east", "west"])
    make_certificates(other, ["east", "west"])

    def once(rng: random.Random) -> None:
        """Make one try: raise Reached if a service of another site gets nodes."""
        asked: list[Any] = []
        whose, name = rng.choice(((folder, "west"), (other, "east")))
        with site(whose, name, lambda message: in_sync(message, "n1")) as address, suppress(GpuprovError):
            ask(address, folder, {"n1": "east"}, asked=asked)
        if asked:
            raise Reached("node", f"a service of {name} got nodes of east")

    return once
