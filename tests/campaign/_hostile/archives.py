"""A hostile node that compiles: the effect of its kernel, modules and archive on Ansible and other nodes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpuprov.apply import playbook
from gpuprov.apply.context import RunContext
from gpuprov.apply.kernel_modules.once import Once
from gpuprov.apply.kernel_modules.store import Store
from gpuprov.errors import GpuprovError
from gpuprov_lab.simulator.module import _elf
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.playbooks import Inventories
from tests.campaign._hostile.wire import answer_to, document_bytes, paper_lock, question, wired
from tests.campaign._hostile.words import around, payload
from tests.campaign._hostile_fleet import healthy

KERNEL, OWN = "6.1.0-56-amd64", "6.1.0-99-amd64"
ROLES = ["preflight", "repositories", "nvidia_driver"]
PIECE = 1 << 16
Try = Callable[[random.Random], None]
MARK = b"made by the hostile node"


def module(version: str, vermagic: str, licence: str = "NVIDIA", **more: str) -> bytes:
    """Return a module with these fields."""
    fields = {"version": version, "license": licence, "name": "nvidia", "vermagic": vermagic, **more}
    said = b"".join(f"{key}={value}\0".encode("utf-8", "surrogatepass") for key, value in fields.items())
    return _elf({".modinfo": b"\0" + said})


def tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Return a compressed archive of these members."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), 1)


def _file(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive with its content."""
    return tarfile.TarInfo(name), content


class Builder:
    """Generator of a hostile node's module archives."""

    def __init__(self, field: Field, rng: random.Random, version: str, kernel: str) -> None:
        self._field, self._rng, self._version, self._kernel = field, rng, version, kernel
        self.name = "nvidia-current.ko"

    def archive(self) -> bytes:
        """Draw an archive; half of them are valid except for one text."""
        rng, kinds = self._rng, (self._plain, self._vermagic, self._members, self._bomb, self._noise)
        return rng.choices(kinds, (3, 6, 4, 1, 2))[0]()

    def _plain(self) -> bytes:
        """Return a valid archive of a module."""
        return tar([_file(self.name, module(self._version, f"{self._kernel} SMP mod_unload ") + MARK)])

    def _vermagic(self) -> bytes:
        """Return an archive whose module has hostile text in its vermagic or another field."""
        rng, field = self._rng, self._field
        vermagic = f"{self._kernel} {payload(rng, field, 'ansible', 'ansible', 'shell', 'terminal', 'odd')}"
        fields = {"note": payload(rng, field)} if rng.random() < 0.3 else {}
        return tar([_file(self.name, module(self._version, vermagic.replace("\0", ""), **fields) + MARK)])

    def _members(self) -> bytes:
        """Return an archive with an odd member: of another type than a file, a link in the module's place, or
        a hostile name.
        """
        rng, field = self._rng, self._field
        good = module(self._version, f"{self._kernel} SMP mod_unload ") + MARK
        odd = tarfile.TarInfo(payload(rng, field, "path", "shell", "ansible")[:90] or "x")
        odd.type = rng.choice(
            (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
        )
        odd.linkname = rng.choice((str(field.theirs), "../../../outside/theirs", "/etc/shadow"))
        named = _file(around(rng, field, "nvidia-current.ko", "path", "shell", "ansible")[:4000] or "x", good)
        link = tarfile.TarInfo(self.name)
        link.type, link.linkname = tarfile.SYMTYPE, str(field.theirs)
        drawn = rng.choice(
            ([(odd, b""), _file(self.name, good)], [named], [(link, b""), _file(self.name, good)])
        )
        with suppress(ValueError, UnicodeEncodeError):
            return tar(drawn)
        return self._plain()

    def _bomb(self) -> bytes:
        """Return kilobytes that unpack to hundreds of megabytes or more."""
        return bomb(self._rng.randrange(4))

    def _noise(self) -> bytes:
        """Return a valid archive that is cut, or in which some bytes are changed."""
        whole = bytearray(self._plain())
        if self._rng.random() < 0.5:
            return bytes(whole[: self._rng.randrange(len(whole))])
        for _ in range(self._rng.randint(1, 20)):
            whole[self._rng.randrange(len(whole))] = self._rng.randrange(256)
        return bytes(whole)


class _Zeros(io.RawIOBase):
    """A file of zeros that uses no memory."""

    def read(self, size: int = -1) -> bytes:
        """Return zeros."""
        return bytes(max(size, 0))


def zeros(mib: int) -> bytes:
    """Return this many MiB of zeros, compressed without holding them in memory."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(mib):
            file.write(bytes(1 << 20))
    return packed.getvalue()


@cache
def bomb(kind: int) -> bytes:
    """Return kilobytes that unpack to hundreds of megabytes: as a whole, or in each module."""
    if kind == 0:
        return zeros(900)
    if kind == 1:
        return tar([_file("nvidia-current.ko.gz", zeros(700))])
    if kind == 2:
        return tar([_file("nvidia-current.ko.xz", lzma.compress(bytes(64 << 20), preset=0) * 12)])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for each in "abcde":
            member = tarfile.TarInfo(f"nvidia-{each}.ko")
            member.size = 150 << 20
            archive.addfile(member, _Zeros())
    return packed.getvalue()


class Run:
    """An ordinary apply of a fleet that compiles once; nodes are simulated, Ansible only gets inventories.

    Args:
        bad: the hostile node.
        kernels: node → its running kernel.
    """

    def __init__(self, field: Field, rng: random.Random, bad: str, kernels: dict[str, str]) -> None:
        self.field, self.rng, self.bad, self.kernels = field, rng, bad, kernels
        self.folder = Path(tempfile_in(field))
        self.lock = paper_lock(field, tuple(kernels), build="once", builder=None)
        [group] = self.lock.groups.values()
        self.version = group.components.driver.version
        self.archives: dict[str, bytes] = {}
        self.honest: set[bytes] = set()
        self.slow = rng.random() < 0.004
        self.lies = rng.random() < 0.1

    def apply(self, store: Store, part: str) -> list[Path]:
        """Apply, and return the inventories that Ansible was given."""
        before = set(self.folder.rglob("*inventory*"))
        with wired(self._wire), patch.object(playbook, "_command", lambda *_: ["/bin/true"]):
            folder = self.folder / part
            folder.mkdir()
            run = RunContext(self.lock, folder, narrate=lambda line: self.field.show(line, "apply"))
            nodes = {name: {"gpuprov_roles": ROLES} for name in self.kernels}
            with suppress(GpuprovError):
                Once(run, nodes, store).apply()
        return sorted(set(self.folder.rglob("*inventory*")) - before)

    def _wire(self, name: str, command: str, stdin: bytes) -> bytes:
        """Answer what a node is asked: an act of the program, or its facts."""
        asked = question(stdin)
        result = self._act(name, asked) if "act" in asked else self._facts(name)
        return answer_to(command, document_bytes(result))

    def _facts(self, name: str) -> dict[str, Any]:
        """Return a node's facts with its kernel."""
        document = healthy()
        document["host"] = name
        text = json.dumps(document).replace(KERNEL, self.kernels[name])
        return json.loads(text)  # type: ignore[no-any-return]

    def _act(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer an act of the module's transfer; the bad node may state a wrong size, or send
        single bytes.
        """
        act, arguments = asked["act"], asked["arguments"]
        if act == "pack":
            packed = self._packed(name)
            size = len(packed)
            if name == self.bad and (self.lies or self.slow):
                size = (100 << 20) if self.slow else self.rng.choice((0, 1, 10**9, 10**30))
            result = {
                "path": "/var/lib/gpuprov/modules/x.tar.gz",
                "size": size,
                "sha256": hashlib.sha256(packed).hexdigest(),
            }
            return {"result": result}
        if act == "piece":
            if self.slow and name == self.bad:
                return {"result": base64.b64encode(b"x").decode()}  # one byte, each time a different one
            offset, step = arguments[1], PIECE
            return {"result": base64.b64encode(self.archives[name][offset : offset + step]).decode()}
        return {"result": None}

    def _packed(self, name: str) -> bytes:
        """Return a node's archive; a hostile one of the bad node."""
        builder = Builder(self.field, self.rng, self.version, self.kernels[name])
        if name not in self.archives:
            plain = tar([_file(builder.name, module(self.version, f"{self.kernels[name]} SMP mod_unload "))])
            self.archives[name] = builder.archive() if name == self.bad else plain
        return self.archives[name]


def tempfile_in(field: Field) -> str:
    """Return a new folder in the work folder."""
    import tempfile

    return tempfile.mkdtemp(dir=field.work)


def offered(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Return which node is offered which archive, from the inventories."""
    for path in paths:
        found = json.loads(path.read_text())
        for group in found["all"]["children"].values():
            for host, own in group["hosts"].items():
                for each in _builds(own):
                    yield host, str(each)


def _builds(own: dict[str, Any]) -> Iterator[str]:
    """Return every path of an archive in a node's variables, in any structure."""
    left: list[Any] = [own.get("nvidia_driver_builds", [])]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str) and each.endswith(".tar.gz"):
            yield each


def is_marked(path: str) -> bool:
    """Return whether an archive contains the hostile node's modules."""
    with suppress(OSError, tarfile.TarError, EOFError), tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content and MARK in content.read(1 << 20):
                return True
    return False


@way("node", "modules of a builder", "code", "file", "node", share=300, mib=1200, seconds=90)
def builder(field: Field) -> Try:
    """Try archives of a node that compiles for its group, which become variables of Ansible."""
    inventories = Inventories(field)

    def once(rng: random.Random) -> None:
        """Make one try: apply with a hostile kernel name or archive of the builder; raise Reached if a goal
        is reached.
        """
        names = tuple(f"t{field.number}n{each}" for each in (1, 2, 3))
        kernels = dict.fromkeys(names, KERNEL)
        if rng.random() < 0.4:
            kernels[names[0]] = around(rng, field, KERNEL, "path", "ansible", "shell", "odd", "bomb")[:5000]
            kernels[names[1]] = kernels[names[0]] if rng.random() < 0.5 else KERNEL
        run = Run(field, rng, names[0], kernels)
        both = rng.random() < 0.3
        run.lock = paper_lock(field, names, build="once", builder=[*names[:2]] if both else names[0])
        store = Store(run.folder / "store")
        paths = run.apply(store, "first")
        for path in paths:
            inventories.add(path)
        if both and any(is_marked(archive) for host, archive in offered(paths) if host != names[0]):
            raise Reached(
                "node", "what one of two builders made is offered, and the other made something else"
            )

    once.settle = inventories.settle  # type: ignore[attr-defined]
    return once


@way("node", "modules of a node that is no builder", "node", share=150, mib=1200, seconds=90)
def intruder(field: Field) -> Try:
    """Try archives of a node that is not a builder: later nodes with its kernel must not get its modules."""

    def once(rng: random.Random) -> None:
        """Make one try of two applies; raise Reached if a node is offered modules of the node that is no
        builder.
        """
        names = tuple(f"t{field.number}n{each}" for each in (1, 2, 3))
        run = Run(field, rng, names[1], {names[0]: KERNEL, names[1]: OWN, names[2]: KERNEL})
        driver = {"build": "once", "builder": names[0]}
        run.lock = paper_lock(field, names, **driver)
        store = Store(run.folder / "store")
        first = run.apply(store, "first")
        run.kernels[names[2]] = OWN
        for host, path in offered([*first, *run.apply(store, "second")]):
            if host != names[1] and is_marked(path):
                raise Reached("node", f"{host} is offered what {names[1]} made: {Path(path).parent.name}")

    return once
