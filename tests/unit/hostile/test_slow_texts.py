"""The time and memory that a node can take by a text that a reader parses: no other node is served meanwhile.

Each reader gets texts that repeat the beginnings of its own patterns, its other words, and signs that make
patterns slow. A text grows from 16 KiB until it has `FULL` characters, or until even a reader whose time
grows with the square of the length would be quick enough there.
"""

from __future__ import annotations

import ast
import base64
import importlib
import inspect
import pkgutil
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import gpuprov.doctor.concerns
import gpuprov.probe.parse
import gpuprov.verify.observers
from gpuprov.access import deadman
from gpuprov.cli.common import terminal
from gpuprov.doctor import builds, judge
from gpuprov.doctor.concerns import errors as doctor_errors
from gpuprov.doctor.concerns import packages as doctor_packages
from gpuprov.doctor.examination import LOG_LINE, Examination
from gpuprov.errors import GpuprovError
from gpuprov.nccl import bandwidth, complaints
from gpuprov.nccl import lines as nccl_lines
from gpuprov.nccl import log as nccl_log
from gpuprov.probe.facts import TEXT
from gpuprov.probe.parse import apt, loading, modules, packages, system, units
from gpuprov.probe.parse.loading import DryRun
from gpuprov.topology import driver_error, matrix, parse_topology
from gpuprov.untrusted import gates, openpgp, secrecy, urls
from gpuprov.verify.observers import apt as observers_apt
from gpuprov.verify.observers import dnf as observers_dnf
from gpuprov.verify.observers import gpu, secure_boot, sshd
from gpuprov.verify.observers.base import Observed
from tests.unit.hostile.timing import MEMORY, SECONDS, Cost, cost_of
from tests.unit.samples import sample

FULL = TEXT
FULL_OF = {"untrusted.secrecy.secrecy": FULL >> 4}
"""Readers of shorter texts: the bundle of the doctor hides secrets in lines, of at most some thousand
characters.
"""
SIGNS = (
    " ",
    "\n",
    "\n ",
    " \n",
    "\n\n",
    "\t",
    "a",
    "a ",
    "a\n",
    "a: b\n b\n",
    "a=",
    "a_",
    "a.",
    "a/",
    "/a:",
    "1",
    "1 ",
    "1.",
    ".",
    "-",
    ":",
    "=",
    ",",
    '"',
    '"a',
    "'a",
    "\\",
    "[",
    "[a",
    "(",
    "{",
    "<",
    "<a",
    "<!DOCTYPE",
    "<!DOCTYPE[",
    "<?xml",
    "://",
    'a://"',
    "@",
    "#",
    "|",
    "0\x82",
    "MIIC",
    ".?",
    "(a|a)",
)
NOISE = 16 << 20
"""Memory in bytes that a reader may take without a longer text being tried."""
MEASURABLE = 0.002
"""Processor time in seconds that is exact enough for a comparison with a longer text's."""
MARK = "0123456789abcdef"
"""The mark of a question to a node, which sees it."""
LONG_BLANK, LONG_OPTION = "deb" + 4000 * " " + "\n", "deb [a]" + 4000 * "\t" + "\n"
"""Lines of sources without a URL, each shorter than the lines that readers cut."""
MORE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "nftables": (("", "\tset a {\n", ""), ("\tset a {\n", "elements = {", "\n\t}\n")),
    "access": (("", "\tset ssh {\n", ""), ("\tset ssh {\n", "elements = {", "\n\t}\n")),
    "server": (("", "physical id : 1\n", ""),),
    "tuning": (("a", " ", "b"),),
    "apt": (("", "deb [\n", ""), ("URIs: ", "a ", ""), ("", LONG_BLANK, ""), ("", LONG_OPTION, "")),
    "sshd": (
        ("", "\n", "x"),
        ('match "', "\n", ""),
        ("match ", '" ', "\n"),
        ("-D a", " ", "b"),
        ("-f /a", " ", "-"),
        ("match address ", "1,", ""),
        ("match address", " ", "!"),
    ),
    "units": (("", "argv[]=", ""),),
    "dnf": (("[base]\na", " ", "b"), ("[base]\nexclude", " =", "b"), ("", "a* ", "")),
    "terminal": (("", "expected ", ""),),
    "secure_boot": (("", "0\x82\xff\xff", ""),),
    "log": (("", "# Rank 1 ", ""),),
    "values": (("a", " ", "b"),),
    "urls": (("a://", ".", "x"),),
    "cuda": (("", "uvmhmm", ""),),
    "host": (("", "rcudetected", ""),),
    "network": (("", "mlx5", ""), ("", "Port module event", "")),
    "fabric": (("GPU 0: x\n  Link 0: ", "CRC", "\n"), ("GPU 0: x\n", "Link 0: CRC\n", "")),
    "storage": (("[", "_", ""), ("", "[_", ""), ("", "nvme1", "")),
    "deadman": (("", f"<<{MARK} a ", ""), (f"<<{MARK} ", "a ", "")),
    "smi": (
        (
            "<nvidia_smi_log><gpu ><supported_clocks><supported_mem_clock>",
            "<value>1</value><supported_graphics_clock>9</supported_graphics_clock>",
            "</supported_mem_clock></supported_clocks></gpu></nvidia_smi_log>",
        ),
    ),
    "matrix": (("\tGPU0\tGPU1", "\tmlx5_0", "\nGPU0\tX\n"), ("\tGPU0\tGPU1\n", "GPU0\tX\tNV1\n", "")),
}
"""Further texts by module: what is in front, what is repeated, and what follows."""
Reader = Callable[[str], object]
CALLED_FOR_EACH_WORD = {"signatures", "foreign_in_initramfs"}
"""Methods of observers that run a command for each word of an answer: the node's budget ends them."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "chain": ("input",),
    "networks": (["ssh"],),
    "knows": ("0" * 64,),
    "effective": ("root", ["port"]),
    "versions": ("libnccl",),
    "on_disk": ("6.1.0",),
    "dkms_state": ("6.1.0",),
    "login": ("root",),
    "nccl_configuration": (),
    "nvcc": ("/usr/local/cuda",),
    "inside": (),
}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules of a package, imported."""
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{found.name}")


def _parsers(module: ModuleType) -> Iterator[tuple[str, Reader]]:
    """Yield functions of a module whose name begins with `parse` and that a text suffices for."""
    for name, function in vars(module).items():
        if not name.startswith("parse") or not inspect.isfunction(inspect.unwrap(function)):
            continue
        function = inspect.unwrap(function)  # without a cache
        first, *others = inspect.signature(function).parameters.values()
        sufficient = "str" in str(first.annotation).split(" | ") and all(
            each.default is not each.empty for each in others
        )
        if function.__module__ == module.__name__ and sufficient:
            yield name, function


class _Host:
    """A host that answers every command with the same text."""

    def __init__(self, text: str) -> None:
        self.answer = SimpleNamespace(
            stdout=text, stderr=text, rc=0, succeeded=True, failed=False, command=b"command"
        )

    def run(self, *_: object) -> Any:
        return self.answer


def _observed(module: ModuleType) -> Iterator[tuple[str, Reader]]:
    """Yield the properties of a module's observers, and their methods in `ARGUMENTS`."""
    for kind in vars(module).values():
        if not (inspect.isclass(kind) and issubclass(kind, Observed) and kind.__module__ == module.__name__):
            continue
        for name, member in vars(kind).items():
            if name in ARGUMENTS and inspect.isfunction(member):
                yield name, partial(_call, kind, name)
            elif isinstance(member, (property, cached_property)):
                yield name, partial(_get, kind, name)


def _get(kind: Any, name: str, text: str) -> object:
    """Return a property of an observer whose commands answer with this text."""
    return getattr(kind.get_module(_Host(text)), name)


def _call(kind: Any, name: str, text: str) -> object:
    """Call a method of an observer whose commands answer with this text."""
    return getattr(kind.get_module(_Host(text)), name)(*ARGUMENTS[name])


def _exam(**collectors: Any) -> Examination:
    """Return an examination with these answers of collectors."""
    return Examination("n", "2026-01-01T00:00:00+00:00", 0.0, collectors)


def _log_lines(text: str) -> None:
    """Search the text as lines of a kernel log for the doctor's patterns of errors."""
    cut = 600
    kept = [[0, text[at : at + cut]] for at in range(0, len(text), cut)]
    for line in _exam(kernel_log={"kept": kept}).kernel_log:
        for pattern in _compiled(doctor_errors):
            pattern.search(line.text)


def _rules(name: str, text: str) -> None:
    """Apply all rules of a module to a node whose tools and log print the text."""
    kept = [[0, text[at : at + LOG_LINE]] for at in range(0, len(text), LOG_LINE)]
    state = {"mdstat": [text, *text.splitlines()], "virtual": "", "phys_states": {}, "memory": text}
    seen = _exam(
        kernel_log={"kept": kept},
        nvlink={"status": text, "errors": text},
        topo={"text": text},
        host_state=state,
    )
    for rule in judge.rules():
        if rule.predicate.__module__ == name:
            with suppress(GpuprovError, KeyError, TypeError):
                list(rule.predicate(seen))


def _origin(text: str) -> object:
    """Parse the text as a node's answer to the question for the connection's source address."""
    answer = SimpleNamespace(stdout=text.encode())
    session: Any = SimpleNamespace(run=lambda _: answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda _: MARK)
        return deadman.source_address(session)


def _matrix(text: str) -> object:
    """Parse the text as a topology matrix, or as a driver's error."""
    return driver_error(text) or parse_topology(text)


def _compiled(module: ModuleType) -> list[re.Pattern[str]]:
    """Return the compiled regular expressions of a module."""
    return [each for each in vars(module).values() if isinstance(each, re.Pattern)]


def _excluded(text: str) -> object:
    """Match a package with patterns of excluded packages that contain the text."""
    seen: Any = SimpleNamespace(
        apt=SimpleNamespace(unattended_blacklist=(f"{text[:95]}X", f"{text[:150]}X", text[:150], text))
    )
    return doctor_packages._excluded(seen, "a" * 128)


def _rpm(text: str) -> object:
    """Parse packages of rpm and patterns of locked versions that contain the text."""
    lines = "".join(f"{text[:8].strip() or 'a'}{at}\tx\t0:1\ts\n" for at in range(len(text) // 20))
    locks = tuple(f"z{at}*" for at in range(len(text) // 20))
    long = tuple(f"*{text[:500]}b{at:03}*" for at in range(81))
    with suppress(GpuprovError):
        inspect.unwrap(packages.parse_rpm)(f"a\t{text}\t0:1\ts\n", long)
    return inspect.unwrap(packages.parse_rpm)(lines, locks)


def _dnf(text: str) -> object:
    """Return the packages that are locked, with as many rows of rpm as patterns of locks."""
    rows = "".join(f"{text[:8].strip() or 'a'}{at} 0 1-1\n" for at in range(len(text) // 20))
    locks = "".join(f"z{at}*\n" for at in range(len(text) // 20))
    host: Any = SimpleNamespace(
        run=lambda command, *_: SimpleNamespace(
            stdout=rows if "rpm" in command else locks, rc=0, failed=False
        )
    )
    with suppress(GpuprovError):
        return observers_dnf.Dnf.get_module(host).held
    return None


def _nccl(text: str) -> None:
    """Parse the text as an NCCL log, also behind several beginnings of messages."""
    log = nccl_log.NcclLog()
    for at in range(0, len(text), 1 << 16):
        log.feed(text[at : at + (1 << 16)])
        log.feed("n:1:1 [0] NCCL INFO " + text[at : at + (1 << 16)])
        log.feed("n:1:1 [0] NCCL INFO comm 0x via NET/ " + text[at : at + (1 << 16)])


def _kernels(text: str) -> object:
    """Parse the text as GRUB's environment and default kernel, with many kernels."""
    raw = {"boot": [f"6.1.{at}" for at in range(len(text) // 80)], "grub_default": [["f", text]]}
    return system.parse_kernels({"grub_environment": text, "modules": [], "headers": [], **raw}, "6.1.0")


def _unit(text: str) -> object:
    """Parse the text as a unit's properties: many drop-ins, or a long command."""
    paths = "/a " * (len(text) // 6)
    found = {"/a": [text[:4]] * (len(text) // 6)}
    units.parse_units(f"Id=a.service\nDropInPaths={paths}\n", found)
    return units.parse_units(f"Id=a.service\nExecStart={text}\n")


def _lists(text: str) -> object:
    """Search the text as a database of keys for one key."""
    packed = base64.b64encode(text.encode("latin-1", "replace")).decode()
    return _call(secure_boot.SecureBoot, "knows", packed)


def _deb822(text: str) -> object:
    """Parse the text as package sources, also as URIs and suites of one source."""
    half = " ".join(text[at : at + 8] for at in range(0, len(text) // 2, 8)).replace("\n", " ")
    apt.parse_sources("a.sources", f"Types: deb\nURIs: {half}\nSuites: {half}\nSigned-By: {half}\n")
    return apt.parse_sources("a.sources", text)


def _written(text: str) -> object:
    """Parse the halves of the text as two files of package sources."""
    half = len(text) // 2
    return observers_apt.parse_written(text[:half], text[half:])


def _blocks(text: str) -> object:
    """Parse the text as sshd's configuration: its blocks `Match`, and included files."""
    host = sshd.Sshd.get_module(_Host(text))
    return [host._blocks(keyword, ()) for keyword in ("match", "include")]


def _arguments(text: str) -> object:
    """Split the text into arguments as sshd does; None if it is malformed."""
    with suppress(GpuprovError):
        return list(sshd.arguments(text))
    return None


def _readers() -> Iterator[tuple[str, ModuleType, Reader]]:
    """Yield each parser of the probe and of verify: its name, its module, and a function of a text."""
    for module in _modules(gpuprov.probe.parse):
        for name, reader in _parsers(module):
            yield name, module, reader
    for module in _modules(gpuprov.verify.observers):
        observed = () if module is gpu else _observed(module)  # its properties are its parsers
        for name, reader in (*_parsers(module), *observed):
            yield name, module, reader
    yield "written", observers_apt, _written
    yield "blocks", sshd, _blocks
    yield "arguments", sshd, _arguments
    yield "addresses", sshd, lambda text: list(sshd.addresses("address", text))
    yield "sources.list", apt, partial(apt.parse_sources, "a.list")
    yield "a.sources", apt, _deb822
    yield "a.repo", apt, partial(apt.parse_sources, "a.repo")
    yield "preferences", apt, partial(apt.parse_preferences, "a")
    yield "modprobe.d", modules, lambda text: modules.parse_modprobe([("a", text)], "")
    yield "cmdline", modules, lambda text: modules.parse_modprobe([], text)
    yield "dry run", loading, lambda text: [*DryRun({"a": text}).steps("a"), DryRun({"a": text}).options("a")]
    yield "disk modules", modules, lambda text: modules.parse_disk_modules({"6.1.0": text})
    yield "rpm", packages, _rpm
    yield "held", observers_dnf, _dnf
    yield "kernels", system, _kernels
    yield "unit", units, _unit
    yield "lists", secure_boot, _lists
    yield "kernel log", doctor_errors, _log_lines
    yield "unattended upgrades", doctor_packages, _excluded
    yield "secrecy", secrecy, secrecy.public
    yield "urls", urls, urls.public_urls
    yield "printable", gates, gates.on_one_line
    yield "coloured", terminal, terminal.coloured
    yield "armor", openpgp, lambda text: openpgp.binary(b"-----BEGIN PGP" + text.encode())
    yield "builds", builds, lambda text: builds.cause_of([text, *text.split("\n")])
    for module in _modules(gpuprov.doctor.concerns):
        yield "rules", module, partial(_rules, module.__name__)
    yield "source_address", deadman, _origin
    yield "topology", matrix, _matrix
    yield "nccl", nccl_log, _nccl
    yield "nccl", nccl_lines, _nccl
    yield "nccl", complaints, _nccl
    yield "nccl", bandwidth, _nccl


READERS = {
    f"{module.__name__.removeprefix('gpuprov.')}.{name}": (module, r) for name, module, r in _readers()
}


def _words(module: ModuleType) -> list[str]:
    """Return short texts in a module's code that are no docstrings, and the beginnings of its patterns, also
    as lines.
    """
    tree = ast.parse(inspect.getsource(module))
    prose = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    texts = [each for each in ast.walk(tree) if isinstance(each, ast.Constant) and id(each) not in prose]
    found: dict[str, None] = {}
    for text in (str(each.value) for each in texts if isinstance(each.value, str)):
        pattern = set(text) & set("\\^[(*")
        for word in map(_beginning, text.split("|")) if pattern else [text] * (len(text) <= 24):
            found[word] = None
            found.update({f"{word}\n": None} if pattern else {})
    return [word for word in found if len(word) > 1]


def _beginning(pattern: str) -> str:
    """Return an example of the part of a pattern before its first repetition."""
    bare = re.sub(r"\(\?[a-z]+\)|\(\?:|\(\?P<\w+>|\\b|\^", "", pattern)
    plain = re.match(r"(?:\\[sdwS.\[\]{}()|*+?tn]|[^\\\[\]{}()*+?$])*", bare)
    classes = {r"\s": " ", r"\d": "1", r"\w": "a", r"\S": "a", r"\t": "\t", r"\n": "\n"}
    text = plain[0] if plain else ""
    return re.sub(r"\\(.)", lambda one: classes.get(one[0], one[1]), text)[:40]


def _texts(name: str, module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Yield the texts for a reader: what is in front, what is repeated, and what follows."""
    yield from MORE.get(module.__name__.rpartition(".")[2], ())
    yield from (("", repeated, "") for repeated in (*sample(SIGNS, 5, name), *_words(module)))


def _slowest(reader: Reader, text: tuple[str, str, str], full: int = FULL) -> tuple[int, Cost]:
    """Return the size of the largest text that was needed, and its cost."""
    before, repeated, after = text
    size, last = full >> 6, Cost(0.0, 0)
    while True:
        cost = cost_of(partial(reader, before + repeated * (size // len(repeated)) + after))
        quick = cost.seconds * (full / size) ** 2 < SECONDS and cost.memory < NOISE
        ends = cost.seconds > SECONDS or cost.memory > MEMORY or _grows_little(last, cost, full // size)
        if size == full or quick or ends:
            return size, cost
        size, last = size * 4, cost


def _grows_little(last: Cost, cost: Cost, times: int) -> bool:
    """Return whether a text `times` as long, one or two steps further, cannot reach a limit.

    The cost grows in each of these steps by twice the factor of the last one.
    """
    if times not in (4, 16) or last.seconds < MEASURABLE or last.memory < NOISE / 16 < cost.memory:
        return False
    steps = 1 if times == 4 else 2
    seconds = cost.seconds * (2 * cost.seconds / last.seconds) ** steps
    growth = 2 * cost.memory / last.memory if cost.memory > NOISE / 16 else 16
    return seconds < SECONDS and cost.memory * growth**steps < MEMORY


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_no_text_takes_long(name: str) -> None:
    module, reader = READERS[name]
    slow = {}
    for text in _texts(name, module):
        size, cost = _slowest(reader, text, FULL_OF.get(name, FULL))
        if cost.seconds > SECONDS or cost.memory > MEMORY:
            slow[text] = f"{cost.seconds:.1f} s, {cost.memory >> 20} MiB for {size >> 10} KiB"
            break
    assert not slow
