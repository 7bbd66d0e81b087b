"""The probe as one command with standard input, and the parser of its answer.

The command is a short POSIX shell script that finds a Python and gains root's rights. The compressed program
follows on standard input: nothing is written to the node, and no limit on the length of a command applies.
The answer follows a mark with a nonce, its length and its checksum: output of a login shell before and after
it is ignored, and an incomplete answer is detected.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from gpuprov.errors import NodeFailed
from gpuprov.files.resources import module_of
from gpuprov.probe.parameters import Parameters as Parameters
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.parsing import VALUES, read_json

if TYPE_CHECKING:
    import node_program
else:
    node_program = module_of("plugin_utils/node_program")

MODULES = (
    *("base", "logins", "effective", "system", "secure_boot", "packages", "candidates", "gpu", "loading"),
    *("network", "hardware", "services", "containers", "sshd", "main"),
)
EXAMINATION = ("kernel_log", "links", "software", "host")
"""Additional collectors for `gpuprov doctor`."""
PROBE = tuple(f"gpuprov.probe.node.{name}" for name in MODULES)
LOAD_PROBE = ("gpuprov.probe.node.load", PROBE[-1])
STATUS_PROBE = ("gpuprov.probe.node.status", PROBE[-1])
CLOSER_PROBE = (*PROBE[:-1], *(f"gpuprov.probe.node.{name}" for name in EXAMINATION), PROBE[-1])
ANSWER_LIMIT = 8 * 1024 * 1024
"""Maximum size of an answer in bytes, compressed and uncompressed."""
_UNPACKING = Lock()
"""Lock of the unpacking: memory for it is needed once, and not for each connection."""


@dataclass(frozen=True)
class Payload:
    """One request to a node: the command, its input, and the nonce of its answer."""

    command: str
    stdin: bytes
    nonce: str

    def answer(self, stdout: bytes, stderr: bytes = b"") -> dict[str, Any]:
        """Return the document in a command's output; raises as `parse_answer`."""
        return parse_answer(stdout, self.nonce, stderr)


# The login shell passes this to sh in single quotes, so it contains none. Lines on standard input shorter
# than the program are skipped: one is sudo's password, which remains there if sudo does not read it. -I and
# -S exclude the user's own modules and settings, -B prevents byte code on the disk.
_BOOTSTRAP = """\
for p in python3 /usr/libexec/platform-python /usr/bin/python3 /usr/local/bin/python3; do
 p=$(command -v "$p") && break; done
if [ -z "$p" ]; then echo "<<gpuprov NONCE no-python>>"; exit 127; fi
set --; if [ "$(id -u)" != 0 ]; then SUDO; fi
exec "$@" "$p" -IBS -c "READ"
"""
_READ = (
    "import sys,zlib,base64;"
    "exec(zlib.decompress(base64.b64decode(next(l for l in sys.stdin.buffer if len(l)>999))))"
)
_SUDO_IF_ALLOWED = "if sudo -n true </dev/null >/dev/null 2>&1; then set -- sudo -n --; fi"
_SUDO_ASKED = 'set -- sudo -S -p "" --'
_NO_SUDO = ":"


def build(
    parameters: Parameters,
    *,
    become: bool = True,
    password: str | None = None,
    modules: tuple[str, ...] = PROBE,
) -> Payload:
    """Return the probe for one node.

    Args:
        parameters: the collectors' parameters, as JSON in the program.
        modules: modules of the program, such as `CLOSER_PROBE` for the doctor.
        become: use sudo if the login is not root. Without a password, the probe runs as the login if sudo
            requires one or is not permitted; a password that sudo refuses gives no answer.
        password: sudo's password, if it requires one; sent only on standard input.
    """
    return pack(modules, asdict(parameters), become=become, password=password)


def pack(
    modules: tuple[str, ...],
    question: Mapping[str, Any],
    *,
    become: bool = True,
    password: str | None = None,
    python: str | None = None,
) -> Payload:
    """Return any program for a node: the last module's `main` is called with the question and the answer's
    nonce.

    Args:
        modules: full names; the modules that they import are added.
        become, password: as for `build`.
        python: an interpreter of the site that runs the program with its own packages and without root's
            rights; None: the first Python 3 of the node's system.
    """
    nonce = secrets.token_hex(8)
    program = _compressed(modules, _call({**question, "nonce": nonce}))
    secret = b"" if password is None or python is not None else password.encode() + b"\n"
    command = _command(nonce, become, password) if python is None else _by(python)
    return Payload(command, secret + base64.b64encode(program) + b"\n", nonce)


def _command(nonce: str, become: bool, password: str | None) -> str:
    """Return the command line that runs the program on standard input with the node's first Python 3.

    Without `become` sudo is not used; without a password it is used only if it requires none.
    """
    sudo = _NO_SUDO if not become else _SUDO_IF_ALLOWED if password is None else _SUDO_ASKED
    script = _BOOTSTRAP.replace("NONCE", nonce).replace("SUDO", sudo).replace("READ", _READ)
    # One line of sh: csh does not allow a newline inside quotes.
    return "exec /bin/sh -c '" + script.strip().replace("; do\n", "; do").replace("\n", "; ") + "'"


def _by(python: str) -> str:
    """Return the command line that runs the program on standard input with one given interpreter."""
    return "exec /bin/sh -c " + shlex.quote(f'exec {shlex.quote(python)} -B -c "{_READ}"')


def standalone(modules: tuple[str, ...], question: Mapping[str, Any]) -> str:
    """Return a program with its question as the text of a Python file that reads no standard input."""
    return _program(modules) + _call(question)


def _call(question: Mapping[str, Any]) -> str:
    """Return the end of a program: the call of `main` with its question."""
    return f"\nmain(json.loads({json.dumps(dict(question))!r}))\n"


@lru_cache(maxsize=8)
def _program(modules: tuple[str, ...]) -> str:
    """Return one text that contains all modules, those that they import, and `main` of the last one."""
    packed = node_program.loader(modules, Path(__file__).parents[2])
    return f"{packed}import json\nmain = sys.modules[{modules[-1]!r}].main"


def _compressed(modules: tuple[str, ...], call: str) -> bytes:
    """Return the compressed program with a call at its end."""
    begin, begun = _compressor(modules)
    rest = begun.copy()
    return begin + rest.compress(call.encode()) + rest.flush()


@lru_cache(maxsize=8)
def _compressor(modules: tuple[str, ...]) -> tuple[bytes, zlib._Compress]:
    """Return what a compressor has written of the program, and the compressor, which the nodes share: a
    program of its own for each takes 10 ms.
    """
    begun = zlib.compressobj(9)
    return begun.compress(_program(modules).encode()), begun


def without_docs(source: str) -> str:
    """Return the program with empty docstrings; line numbers stay the same."""
    return node_program.parsed(source).text


def parse_answer(
    stdout: bytes, nonce: str, stderr: bytes = b"", *, most: int = ANSWER_LIMIT, values: int = VALUES
) -> dict[str, Any]:
    """Return the probe's document from a node's complete output.

    Args:
        most: maximum size of the document in bytes.
        values: maximum number of its values.

    Raises:
        NodeFailed: no Python, or no answer; an incomplete, damaged or too large one, or one to another
            request.
    """
    if len(stdout) > ANSWER_LIMIT:
        raise NodeFailed(f"the node printed {len(stdout)} bytes", expected=f"at most {ANSWER_LIMIT}")
    if f"<<gpuprov {nonce} no-python>>".encode() in stdout:
        raise NodeFailed("no Python 3 on the node", do="install python3 there; 3.6 or later is enough")
    marks = {mark[1].decode(): mark for mark in _MARK.finditer(stdout)}
    if not marks:
        raise NodeFailed(f"no answer from the probe{_last_words(stdout, stderr)}")
    if nonce not in marks:
        raise NodeFailed("the answer belongs to another request", expected=f"nonce {nonce}")
    begin = marks[nonce]
    size = int(begin[2])
    body = stdout[begin.end() : begin.end() + size]
    if len(body) < size:
        raise NodeFailed(f"the answer broke off after {len(body)} of {size} bytes{_last_words(b'', stderr)}")
    if hashlib.sha256(body).hexdigest().encode() != begin[3]:
        raise NodeFailed(
            "the answer is damaged: its checksum differs",
            do="check what the login's start files print",
        )
    with _UNPACKING:
        return _unpack(body, most, values)


class Answered:
    """A test of whether a growing output contains the complete answer to a request.

    Each call searches only what is new since the last one. The content of the answer is not checked.
    """

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._searched = 0
        self._end: int | None = None

    def __call__(self, stdout: bytes | bytearray) -> bool:
        """Return whether the answer is complete in an output that begins as those of all calls before."""
        while self._end is None and (mark := _MARK.search(stdout, self._searched)):
            self._searched = mark.end()
            if mark[1] == self._nonce:
                self._end = mark.end() + int(mark[2])
        self._searched = max(self._searched, len(stdout) - _LONGEST_MARK)
        return self._end is not None and len(stdout) >= self._end


_MARK = re.compile(rb"<<gpuprov ([0-9a-f]{16}) (\d{1,9}) ([0-9a-f]{64})>>\r?\n")
_LONGEST_MARK = 104
"""Length of the longest match of `_MARK` without its last byte: as much of the output's end can begin one."""


def _unpack(body: bytes, most: int, values: int) -> dict[str, Any]:
    """Return the JSON document of an answer with a correct checksum; its content is still untrusted.

    Raises:
        NodeFailed: it cannot be unpacked, exceeds the limits, or is not a JSON object.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(base64.b64decode(body, validate=True), most)
        if unpacker.unconsumed_tail:
            raise NodeFailed(f"the answer unpacks to more than {most} bytes")
        document = read_json(text, most, values)
    except (ValueError, zlib.error) as error:
        raise NodeFailed(
            f"the answer is no document: {str(error)[:100]}", do="check the node's python3"
        ) from None
    if not isinstance(document, dict):
        raise NodeFailed("the answer is no mapping")
    return document


def _last_words(stdout: bytes, stderr: bytes) -> str:
    """Return `: ` and the last line that a node printed, preferably on standard error, cut to 200 characters
    and quoted unless it is ASCII; empty without one.
    """
    for said in (stderr, stdout[-4096:]):
        lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            last = on_one_line(lines[-1])[:200]
            return f": {last}" if last.isascii() else f": {shlex.quote(last)}"
    return ""
