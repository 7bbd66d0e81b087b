"""The probe as one command and its standard input, and the answer read back.

The command is a few words of POSIX shell that find a Python and root's rights; the program itself,
compressed, follows on standard input: nothing is written to the node, and no limit on the length of a command
applies. The answer stands behind a mark with a nonce, its length and its checksum: banners of a login shell
before and after it do not matter, and half an answer is seen to be half.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
import re
import secrets
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.resources import files
from threading import Lock
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.resources import share
from gpuprov.untrusted import on_one_line

MODULES = (
    *("base", "effective", "system", "secure_boot", "packages", "gpu", "network", "hardware", "services"),
    "main",
)
SHARED = ("gpuprov_node", "gpuprov_sources")
"""Of the modules that the roles' scripts use, too."""
EXAMINATION = ("kernel_log", "links", "software", "host")
"""What looks closer than facts need: for `gpuprov doctor`."""
PROBE = (*SHARED, *(f"gpuprov.probe.node.{name}" for name in MODULES))
LOAD_PROBE = tuple(f"gpuprov.probe.node.{name}" for name in ("base", "gpu_sample", "load", "main"))
STATUS_PROBE = tuple(f"gpuprov.probe.node.{name}" for name in ("base", "gpu_sample", "status", "main"))
CLOSER_PROBE = (*PROBE[:-1], *(f"gpuprov.probe.node.{name}" for name in EXAMINATION), PROBE[-1])
ANSWER_LIMIT = 8 * 1024 * 1024
"""Bytes of an answer, before and after it is unpacked."""
DEPTH_LIMIT = 64
"""Levels of an answer; a daemon.json is the deepest thing in it."""


@dataclass(frozen=True)
class Parameters:
    """What to look at: names come from the lock's expectations, patterns add what no lock can name."""

    packages: Sequence[str] = ()
    package_pattern: str = (
        r"nvidia|cuda|cudnn|nccl|nvlink|nvlsm|nvsdm|libxnvctrl|datacenter-gpu-manager|^dkms$|^gpg-pubkey$"
        r"|^linux-(?:image|headers|modules)|^kernel(?:-core|-devel|-headers)?$"
        r"|docker|^containerd|^runc$|rdma-core|^doca|ofed"
    )
    modules: Sequence[str] = ("nvidia", "nvidia_current", "nvidia_current_open", "nvidia_peermem", "gdrdrv")
    """Those to ask modinfo about; Debian's own packages name NVIDIA's module nvidia-current."""
    module_pattern: str = r"(?:nvidia|nouveau|nova|nv_peer|gdrdrv|mlx[45]|ib_|rdma)"
    units: Sequence[str] = (
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-dcgm.service",
        "containerd.service",
        "docker.service",
    )
    login: str = "root"
    """Whose logins sshd is asked about."""
    files: Sequence[str] = ()
    sysctls: Sequence[str] = ()
    environment: str = r"(?:NCCL|OMP|MKL|CUDA|TF|NVIDIA|TORCH|PYTORCH|UCX)_|LD_LIBRARY_PATH$|LD_PRELOAD$"
    """Pattern of the variables whose values may leave the node."""
    scratch: Sequence[str] = ()
    """Mount points of scratch space."""
    repositories: Sequence[str] = ()
    """Addresses of the lock's own repositories, without a slash at the end."""
    containerd: bool = False
    """Whether containerd is asked what it makes of its configuration."""
    sample: float = 0.0
    """Seconds for which a sample of load is taken."""
    mig: bool = False
    """Whether GPU instances are asked for."""
    collectors: Sequence[str] = ()
    """Only these; all when empty."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time-outs that differ from a collector's own."""


@dataclass(frozen=True)
class Payload:
    """What to send over one channel, and how to know the answer."""

    command: str
    stdin: bytes
    nonce: str

    def answer(self, stdout: bytes, stderr: bytes = b"") -> dict[str, Any]:
        """The document in what came back; see `parse_answer`."""
        return parse_answer(stdout, self.nonce, stderr)


# Any login shell hands this to sh in single quotes, so it holds none. Lines on standard input shorter than
# the program are skipped: one is sudo's password, which sudo leaves there when it needs none. -I and -S keep
# the user's own modules and settings out, -B keeps byte code off the disk.
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
    """The probe for one node.

    Args:
        modules: `CLOSER_PROBE` for an examination.
        become: use sudo where the login is not root; without leave for it the probe runs as it is.
        password: sudo's, if it asks for one; sent on standard input only.
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
    """Any program for a node: the last module's `main` gets the question, with the answer's nonce in it.

    Args:
        modules: full names, each after those that it imports.
        become, password: as `build`.
        python: an interpreter of the site's, which runs the program with all that belongs to it, and without
            root's rights; None: whichever Python the node has.
    """
    nonce = secrets.token_hex(8)
    chosen = json.dumps({**question, "nonce": nonce})
    program = zlib.compress(f"{_program(modules)}\nmain(json.loads({chosen!r}))\n".encode(), 9)
    secret = b"" if password is None or python is not None else password.encode() + b"\n"
    command = _command(nonce, become, password) if python is None else _by(python)
    return Payload(command, secret + base64.b64encode(program) + b"\n", nonce)


def _command(nonce: str, become: bool, password: str | None) -> str:
    sudo = _NO_SUDO if not become else _SUDO_IF_ALLOWED if password is None else _SUDO_ASKED
    script = _BOOTSTRAP.replace("NONCE", nonce).replace("SUDO", sudo).replace("READ", _READ)
    # One line of sh: csh cannot carry a newline inside quotes.
    return "exec /bin/sh -c '" + script.strip().replace("; do\n", "; do").replace("\n", "; ") + "'"


def _by(python: str) -> str:
    return "exec /bin/sh -c " + shlex.quote(f'exec {shlex.quote(python)} -B -c "{_READ}"')


_PARSING = Lock()
"""Python 3.11 counts the depth of trees for all threads together, and fails where they mix
(https://github.com/python/cpython/issues/106905)."""


def standalone(modules: tuple[str, ...], question: Mapping[str, Any]) -> str:
    """The same as a file's text, which takes no standard input."""
    return f"{_program(modules)}\nmain(json.loads({json.dumps(dict(question))!r}))\n"


@lru_cache(maxsize=8)
def _program(modules: tuple[str, ...]) -> str:
    """All modules in one text that makes them importable under their names without a file."""
    sources = [(name, _source(name)) for name in modules]
    return (
        "import json, sys, types\n"
        f"for name, source in {sources!r}:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(source, name, 'exec'), module.__dict__)\n"
        "    package, _, short = name.rpartition('.')\n"
        "    if package: setattr(sys.modules.setdefault(package, types.ModuleType(package)), short, module)\n"
        "main = module.main"
    )


def _source(module: str) -> str:
    """A module of a package, or of those that the roles' scripts share."""
    package, _, name = module.rpartition(".")
    folder = files(package) if package else share("plugins") / "module_utils"
    return without_docs((folder / f"{name}.py").read_text("utf-8"))


def without_docs(source: str) -> str:
    """The program without what is said in it to people. Lines keep their numbers."""
    lines = source.splitlines(keepends=True)
    with _PARSING:
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            last = node.end_lineno or node.lineno
            empty = ["\n"] * (last - node.lineno)
            lines[node.lineno - 1 : last] = [" " * node.col_offset + '""\n', *empty]
    return "".join(lines)


def parse_answer(stdout: bytes, nonce: str, stderr: bytes = b"") -> dict[str, Any]:
    """The probe's document from everything that a node printed.

    Raises:
        NodeFailed: no Python, no answer, half an answer, one of another run, a damaged or an oversized one.
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
    return _unpack(body)


def is_answered(stdout: bytes, nonce: str) -> bool:
    """Whether the whole answer to that question is there; what it holds is not looked at."""
    begin = next((mark for mark in _MARK.finditer(stdout) if mark[1].decode() == nonce), None)
    return begin is not None and len(stdout) >= begin.end() + int(begin[2])


_MARK = re.compile(rb"<<gpuprov ([0-9a-f]{16}) (\d{1,9}) ([0-9a-f]{64})>>\r?\n")


def _unpack(body: bytes) -> dict[str, Any]:
    """JSON from an answer whose checksum was right; all in it is still a stranger's word."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(base64.b64decode(body, validate=True), ANSWER_LIMIT)
        if unpacker.unconsumed_tail:
            raise NodeFailed(f"the answer unpacks to more than {ANSWER_LIMIT} bytes")
        document = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, zlib.error, RecursionError) as error:
        raise NodeFailed(
            f"the answer is no document: {str(error)[:100]}", do="check the node's python3"
        ) from None
    if not isinstance(document, dict) or _deeper(document, DEPTH_LIMIT):
        raise NodeFailed(f"the answer is no mapping of at most {DEPTH_LIMIT} levels")
    if _SURROGATE.search(text):  # halves of characters can be neither shown nor recorded
        whole: dict[str, Any] = json.loads(
            json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
        )
        return whole
    return document


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text[:20])


def _deeper(document: object, levels: int) -> bool:
    """Whether mappings and lists are nested more deeply than that."""
    level = [document]
    while level and levels:
        nested = [each for each in level if isinstance(each, (dict, list))]
        level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
        levels -= 1
    return any(isinstance(each, (dict, list)) for each in level)


def _last_words(stdout: bytes, stderr: bytes) -> str:
    """`: ` and the last line that a node said, standard error first; empty when it said nothing."""
    for said in (stderr, stdout[-4096:]):
        lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            last = on_one_line(lines[-1])[:200]
            return f": {last}" if last.isascii() else f": {shlex.quote(last)}"
    return ""
