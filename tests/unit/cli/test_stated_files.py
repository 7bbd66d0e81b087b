"""Files that a user states: any content ends in a result or in one line, never in a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from tests.unit.doctor.machines import AT

FACTS = {"schema": "gpuprov.facts/1", "host": "gpu01", "collected_at": AT, "seconds": 0.4, "collectors": {}}
ACCEPT = {"schema": "gpuprov.accept/1", "nodes": []}
CONTENTS = {
    "deep list": b"[" * 100_000,
    "deep mapping": b'{"a":' * 100_000,
    "number": b'{"schema":' + b"9" * 5000 + b"}",
    "not finite": b'{"schema": 1e999}',
    "no UTF-8": b"\xff\xfe",
    "UTF-16": "{}".encode("utf-16"),
    "empty": b"",
    "NUL": b"\0" * 100,
    "another schema": b'{"schema": {"a": [1]}}',
    "host of another type": json.dumps({**FACTS, "host": [1]}).encode(),
    "seconds of another type": json.dumps({**FACTS, "seconds": [1]}).encode(),
    "collectors of another type": json.dumps({**FACTS, "collectors": [1]}).encode(),
    "nodes of another type": json.dumps({**ACCEPT, "nodes": 5}).encode(),
    "node of another type": json.dumps({**ACCEPT, "nodes": [{"node": 1, "measured": [[1]]}]}).encode(),
}
VERBS = {
    "doctor": ["doctor", "--facts"],
    "accept": ["accept", "--measured"],
    "nccl derive": ["nccl", "derive"],
    "facts": ["facts", "--smi-xml"],
    "topo": ["topo"],
    "resolve": ["resolve", "--batch"],
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("content", CONTENTS)
def test_no_content_ends_in_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, content: str
) -> None:
    path = tmp_path / "stated"
    path.write_bytes(CONTENTS[content])
    code = run([*VERBS[verb], str(path)])
    said = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert code == 0 or len(said.splitlines()) <= 1
    if verb in ("doctor", "accept", "nccl derive"):
        assert code in (1, 2)
        assert said.startswith("gpuprov: ")
        assert "expected" in said


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "words",
    [
        *(words for verb, words in VERBS.items() if verb not in ("topo", "nccl derive")),
        ["nccl", "parse"],
        ["inventory", "import"],
        ["validate", "--fleet"],
    ],
    ids=" ".join,
)
def test_no_verb_waits_for_a_named_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    assert run([*words, str(tmp_path / "link")]) == 2
    printed = capsys.readouterr()
    assert "is a named pipe" in printed.out + printed.err


@pytest.mark.parametrize(
    "line",
    ["Channel 0 : {}[0] -> 1[1] via P2P", "comm 0x1 rank {} nRanks 2 cudaDev 0", "cudaDriverVersion {}"],
)
def test_a_log_with_long_numbers_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "job.log"
    path.write_text("h:1:1 [0] NCCL INFO " + line.format("9" * 5000) + "\n")
    assert run(["nccl", "parse", str(path), "-o", "json"]) == 0
    json.loads(capsys.readouterr().out)
