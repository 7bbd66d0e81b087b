"""A simulated fleet whose nodes answer with a way's bytes, and verbs that run on it in this process."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

from gpuprov.cli.common.group import run
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.ssh import transport
from gpuprov.ssh.connect import BeyondParamiko
from gpuprov.ssh.transport import ConnectionLimits, Output, Session, Target
from tests import RECORDED_LOCK
from tests.campaign._hostile.field import Field, Reached
from tests.campaign._hostile_fleet import NONCE, framed

NAMES = ("node1", "node2", "node3")
BAD = "node2"
OWN_TAGS = re.compile(r"owned", re.IGNORECASE)
Wire = Callable[[str, str, bytes], bytes]
"""Node, command and standard input → the node's output."""


def document_bytes(document: Any) -> bytes:
    """Return the body of an answer."""
    return base64.b64encode(zlib.compress(json.dumps(document).encode(), 1))


def answer_to(command: str, body: bytes) -> bytes:
    """Return a complete answer to a question."""
    found = NONCE.search(command)
    return framed(body, found[1]) if found else body


def question(stdin: bytes) -> dict[str, Any]:
    """Return a payload's question: the document at its end."""
    program = zlib.decompress(base64.b64decode(stdin.splitlines()[-1])).decode()
    _, _, last = program.rpartition("\nmain(json.loads(")
    asked: dict[str, Any] = json.loads(eval(last.strip().removesuffix("))")))  # noqa: S307 - our own program
    return asked


class PaperSession(Session):
    """A session that a function answers."""

    def __init__(self, target: Target, limits: ConnectionLimits, wire: Wire) -> None:
        super().__init__(target, limits)
        self._wire = wire

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Return the node's output."""
        return Output(0, self._wire(self.target.name, command, stdin), b"")


@contextmanager
def wired(wire: Wire) -> Iterator[None]:
    """Replace every connection by a function."""

    def refuse(*_: Any) -> Any:
        """Refuse paramiko, so that ssh is used."""
        raise BeyondParamiko("on paper")

    def opened(target: Target, limits: ConnectionLimits) -> Session:
        return PaperSession(target, limits, wire)

    with patch.object(transport, "connect", refuse), patch.object(transport, "OpenSshSession", opened):
        yield


def paper_lock(field: Field, names: tuple[str, ...] = NAMES, **driver: Any) -> Lock:
    """Return the recorded lock with these nodes, and with other fields of its driver."""
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    changed = group.components.driver.model_copy(update=driver)
    components = group.components.model_copy(update={"driver": changed})
    # Without this setting the lock is for the running kernel.
    settings = {name: each for name, each in group.settings.items() if name != "kernel"}
    mine = {"hosts": dict.fromkeys(names, "127.0.0.1"), "components": components, "settings": settings}
    return recorded.model_copy(update={"groups": {name: group.model_copy(update=mine)}})


def write_paper_lock(field: Field, names: tuple[str, ...] = NAMES) -> Path:
    """Write that lock to the work folder."""
    path = field.work / "fleet.lock.yml"
    path.unlink(missing_ok=True)
    write_lock(paper_lock(field, names), path)
    return path


class Said(str):
    """Standard output of a verb, with its standard error in `errors`."""

    errors: str
    code: int


def call(field: Field, *words: str) -> Said:
    """Run a verb, and check its whole output.

    Raises:
        Reached: it controls a terminal, shows a secret, or is not a JSON document.
    """
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = run(list(words))
    said = Said(out.getvalue())
    said.errors, said.code = errors.getvalue(), code
    verb = " ".join(words[:2])
    field.show(said.errors, f"stderr of {verb}")
    if "json" in words:
        if said.strip():
            field.document(said, f"stdout of {verb}")
    else:
        field.show(said, f"stdout of {verb}")
    return said


def check_files(field: Field, **paths: Path) -> None:
    """Check a page, JUnit and metrics, and remove them.

    Raises:
        Reached: a node's data broke one.
    """
    for kind, path in paths.items():
        if path.exists():
            text = path.read_text()
            path.unlink()
            _CHECKS[kind](field, text)


class _Page(HTMLParser):
    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Raise Reached for an element of a node, a handler of events, or a link that runs code."""
        names = [name for name, _ in attributes if name.startswith("on")]
        values = [
            value for name, value in attributes if name in ("href", "src") and "javascript:" in (value or "")
        ]
        if OWN_TAGS.search(tag) or names or values:
            raise Reached("code", f"an element of a node is in a page: <{tag} {attributes}>"[:200])


def _page(field: Field, text: str) -> None:
    """Raise Reached if a page contains code of a node."""
    if re.search(r"<script[^>]*>\s*owned\(", text):
        raise Reached("code", "a script of a node is in a page")
    _Page().feed(text)
    text.encode()


def _junit(field: Field, text: str) -> None:
    """Raise Reached if a JUnit file is no XML, or contains an element of a node."""
    try:
        tree = ElementTree.fromstring(text)  # noqa: S314 - written by us
    except ElementTree.ParseError as error:
        raise Reached("code", f"JUnit is no XML: {error}") from None
    if any(OWN_TAGS.search(str(each.tag)) for each in tree.iter()):
        raise Reached("code", "an element of a node is in JUnit")


def _metrics(field: Field, text: str) -> None:
    """Raise Reached if metrics cannot be parsed, or contain a metric of a node."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        names = [family.name for family in text_string_to_metric_families(text)]
    except ValueError as error:
        raise Reached("code", f"metrics cannot be read: {error}") from None
    if any(OWN_TAGS.search(name) for name in names):
        raise Reached("code", "a metric of a node's")


_CHECKS: Mapping[str, Callable[[Field, str], None]] = {"html": _page, "junit": _junit, "prometheus": _metrics}
