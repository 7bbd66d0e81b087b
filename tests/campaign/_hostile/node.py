"""A hostile node with root: its answers to the verbs, and the commands that the doctor prints."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests import H200
from tests.campaign._hostile.field import Field, way
from tests.campaign._hostile.wire import (
    BAD,
    answer_to,
    call,
    check_files,
    document_bytes,
    wired,
    write_paper_lock,
)
from tests.campaign._hostile.words import around, spoil
from tests.campaign._hostile_fleet import healthy
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import bare_metal

MATRIX = (H200 / "topo-m.txt").read_text()
LOGS = [(H200 / name).read_text() for name in ("nccl-p2p.log", "nccl-socket.log")]
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
NOBODY = 65534
Try = Callable[[random.Random], None]


class Fleet:
    """Three simulated nodes, one of them hostile: its data for each verb has some places replaced."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.lock = str(write_paper_lock(field))
        self.good = {
            "facts": document_bytes(_facts(healthy()["collectors"])),
            "doctor": document_bytes(_facts(bare_metal())),
            "server": document_bytes(_facts(bare_metal())),
            "status": document_bytes(_facts(_status())),
        }
        self._plain = {name: json.dumps(each) for name, each in self._collectors().items()}

    def _collectors(self) -> dict[str, Any]:
        """Return kind of question → the answers of a healthy node."""
        return {
            "facts": healthy()["collectors"],
            "doctor": bare_metal(),
            "server": bare_metal(),
            "status": _status(),
        }

    def spoiled(self, rng: random.Random, kind: str) -> dict[str, Any]:
        """Draw a hostile node's collectors for a kind of question."""
        collectors: dict[str, Any] = json.loads(self._plain[kind])
        if kind == "doctor" and rng.random() < 0.8:  # printed commands belong to faults
            FAULTS[rng.choice(sorted(FAULTS))][0](collectors)
        document = _facts(collectors)
        for _ in range(rng.choice((1, 2, 3, 8))):
            spoil(rng, self.field, document if rng.random() < 0.05 else collectors)
        return document

    def wire(self, rng: random.Random, kind: str) -> Any:
        """Let the hostile node give a drawn answer, and the others valid ones."""
        bad = document_bytes(self.spoiled(rng, kind))
        matrix = around(rng, self.field, MATRIX).encode("utf-8", "surrogatepass")

        def answer(name: str, command: str, stdin: bytes) -> bytes:
            """Return the hostile answer of the bad node, and that of a healthy machine for others."""
            if "topo" in command and not stdin:
                return matrix if name == BAD else MATRIX.encode()
            return answer_to(command, bad if name == BAD else self.good[kind])

        return wired(answer)


def _facts(collectors: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the bad node with these answers of collectors."""
    head = {"schema": "gpuprov.facts/1", "host": BAD, "collected_at": "2026-11-22T12:00:00Z", "seconds": 0.4}
    return {**head, "collectors": collectors}


def _status() -> dict[str, Any]:
    """Return the reading of a node with two GPUs and one program."""
    gpus = [{**GPU, "index": index} for index in range(2)]
    return {
        "status": {"gpus": gpus, "programs": {"0": [[4711, "python", "alice", 7300, 80000]]}, "load": "3.1"}
    }


def enter(name: str, kind: str, lines: Callable[[Fleet, random.Random], list[list[str]]], share: int) -> None:
    """Register the tries of a verb: hostile answers, in several output formats."""

    @way("node", name, "code", "file", "key", share=share)
    def verb(field: Field) -> Try:
        """Return the try of a verb."""
        fleet = Fleet(field)
        reports = {each: field.work / f"report.{each}" for each in ("html", "junit", "prometheus")}

        def once(rng: random.Random) -> None:
            """Make one try: run the lines of the verb with a hostile node, and check its outputs
            and files.
            """
            with fleet.wire(rng, kind):
                for words in lines(fleet, rng):
                    files = [word for each in reports for word in (f"--{each}", str(reports[each]))]
                    said = call(
                        field, *[each for word in words for each in (files if word == "FILES" else [word])]
                    )
                    check_files(field, **reports)
                    if name == "doctor" and "json" in words and said.strip():
                        type_mends(field, said)

        return once


def type_mends(field: Field, text: str) -> None:
    """Run the doctor's printed commands that contain a payload, without any program in PATH."""
    lines = {
        line
        for host in json.loads(text).get("hosts", [])
        for fault in host["faults"]
        for line in fault["mend"]
        if str(field.canary) in line
    }
    for line in sorted(lines):
        field.show(line, "a mend")
        subprocess.run(
            ["/bin/sh", "-c", line],
            env={"PATH": "/nowhere"},
            user=NOBODY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )


VERBS: dict[str, tuple[str, Callable[[Fleet, random.Random], list[list[str]]], int]] = {
    "facts": (
        "server",
        lambda f, r: [["facts", BAD, "--lock", f.lock], ["facts", BAD, "--lock", f.lock, "-o", "json"]],
        1500,
    ),
    "drift": (
        "facts",
        lambda f, r: [
            ["drift", "--lock", f.lock, "FILES"],
            r.choice(
                (
                    ["drift", "--lock", f.lock, "-o", "json"],
                    ["report"],
                    ["history", BAD],
                    ["history", "-o", "json"],
                )
            ),
        ],
        1500,
    ),
    "plan": ("facts", lambda f, r: [["plan", "--lock", f.lock, *r.choice(([], ["-o", "json"]))]], 800),
    "doctor": (
        "doctor",
        lambda f, r: [
            ["doctor", BAD, "--lock", f.lock, "-o", "json"],
            ["doctor", BAD, "--lock", f.lock, "FILES"],
        ],
        3000,
    ),
    "status": (
        "status",
        lambda f, r: [["status", "--lock", f.lock, *r.choice(([], ["-o", "json"], ["--folded"], ["--odd"]))]],
        1000,
    ),
    "topo": ("facts", lambda f, r: [["topo", BAD, "--lock", f.lock, *r.choice(([], ["-o", "json"]))]], 500),
    "export": (
        "server",
        lambda f, r: [
            [
                "inventory",
                "export",
                r.choice(("slurm", "gres", "hostfile", "kubernetes", "prometheus", "dstack")),
                "--live",
                "--lock",
                f.lock,
            ]
        ],
        500,
    ),
    "discover": (
        "server",
        lambda f, r: [["inventory", "discover", "node2", "node1", *r.choice(([], ["-o", "json"]))]],
        700,
    ),
}
for verb_name, (kind_, lines_, share_) in VERBS.items():
    enter(verb_name, kind_, lines_, share_)


@way("node", "nccl parse", "code", share=400)
def nccl(field: Field) -> Try:
    """Try a job's NCCL log."""
    path = field.work / "job.log"

    def once(rng: random.Random) -> None:
        """Make one try: parse a changed log."""
        text = rng.choice(LOGS)
        for _ in range(rng.randint(1, 3)):
            text = around(rng, field, text)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        call(field, "nccl", "parse", str(path), *rng.choice(([], ["-o", "json"], ["--expect", "nvlink"])))

    return once


@way("node", "nccl derive", "code", "file", share=500)
def derive(field: Field) -> Try:
    """Try saved facts, from which environment variables are derived."""
    path = field.work / "facts.json"
    whole = json.dumps(_facts(bare_metal()))

    def once(rng: random.Random) -> None:
        """Make one try: derive the environment from spoiled facts."""
        document = json.loads(whole)
        for _ in range(rng.randint(1, 3)):
            area = document["collectors"].get(rng.choice(("hcas", "nics", "system")), document)
            spoil(rng, field, area if isinstance(area, (dict, list)) and area else document)
        path.write_text(json.dumps(document))
        call(field, "nccl", "derive", str(path), *rng.choice(([], ["-o", "json"])))

    return once


@way("node", "accept", "code", share=1200)
def accept(field: Field) -> Try:
    """Try documents of a measurement, judged and shown."""
    from gpuprov.accept.judge import document as judged_document
    from gpuprov.accept.judge import judge
    from gpuprov.report.accept import accept_lines  # type: ignore[attr-defined]
    from tests.unit.accept.recorded import FOLDER

    texts = [text for path in sorted(FOLDER.glob("*.json")) if (text := path.read_text()).startswith("{")]

    def once(rng: random.Random) -> None:
        """Make one try: judge and print a spoiled document."""
        document = json.loads(rng.choice(texts))
        healthy_one = deepcopy(document)
        for _ in range(rng.randint(1, 3)):
            spoil(rng, field, document)
        found = judge({"node1": healthy_one, BAD: document})
        text = json.dumps(judged_document(found), allow_nan=False, ensure_ascii=False)
        field.document(text, "accept -o json")
        for line in accept_lines(found):
            field.show(line, "accept")

    return once
