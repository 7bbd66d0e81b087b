"""The store: each build once, on the controller, with the sums of everything that nodes are to have.

    $XDG_STATE_HOME/gpuprov/modules/KERNEL/DRIVER-FLAVOUR-ARCH-DIGEST[-signed-CERTIFICATE]/
        {modules.tar.gz,about.json}

It is neither locked nor secret: losing it costs a compilation. What was changed in it is refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuprov.apply.modules.build import Build, build_of, check, digest
from gpuprov.errors import NodeFailed, Refused
from gpuprov.model.lock import LockedGroup
from gpuprov.runs import now, state_dir

ARCHIVE, ABOUT = "modules.tar.gz", "about.json"
SCHEMA = "gpuprov.modules/1"
LIMIT = 1 << 30
"""Bytes that modules may unpack to; NVIDIA's have less than a tenth of it."""


@dataclass(frozen=True)
class Signer:
    """Whose signature all nodes are to have on a module.

    Attributes:
        fingerprint: of the certificate.
        sign: a module's file name and its bytes → what nodes are to have.
    """

    fingerprint: str
    sign: Callable[[str, bytes], bytes]


@dataclass(frozen=True)
class Kept:
    """A build in the store.

    Attributes:
        archive: the file that nodes get.
        sha256: the archive's.
        modules: file → SHA-256 of what is on a node's disk afterwards.
        vermagic: as all modules of the kernel have it.
        built_on: the node that compiled it.
    """

    build: Build
    archive: Path
    sha256: str
    modules: Mapping[str, str]
    vermagic: str
    built_on: str

    def offer(self) -> dict[str, Any]:
        """What the role nvidia_driver is told of it."""
        return {
            "kernel": self.build.kernel,
            "archive": str(self.archive),
            "sha256": self.sha256,
            "modules": dict(self.modules),
            "vermagic": self.vermagic,
        }


class Store:
    """All builds of this controller."""

    def __init__(self, folder: Path | None = None, signer: Signer | None = None) -> None:
        """
        Args:
            folder: somewhere else than in the state of the person who runs this.
            signer: signs what is kept; without it modules stay as DKMS made them.
        """
        self.folder = folder or state_dir() / "modules"
        self._signer = signer

    @property
    def signs(self) -> bool:
        """Whether a module has to go through here, as nobody else may sign it."""
        return self._signer is not None

    def find(self, build: Build) -> Kept | None:
        """The build, proven to be what was kept; None where it is not there.

        One that was kept before a signature was wanted is signed now.

        Raises:
            Refused: it was changed since.
            GpuprovError: it cannot be signed.
        """
        kept = self._read(build, self._folder(build))
        unsigned = self._read(build, self._plain(build)) if kept is None and self.signs else None
        return self.keep(build, unsigned.archive.read_bytes(), unsigned.built_on) if unsigned else kept

    def of(self, group: LockedGroup) -> list[Kept]:
        """Every build of a group's driver, for whatever kernel.

        Raises:
            Refused: one was changed since.
            GpuprovError: one cannot be signed.
        """
        builds: dict[Build, None] = {}  # one may be there with and without a signature
        for path in sorted(self.folder.glob(f"*/*/{ABOUT}")):
            with _readable(path.parent):
                builds[_told(path.parent).build] = None
        fit = (each for each in builds if each == build_of(group, each.kernel, each.compiler))
        return [kept for build in fit if (kept := self.find(build))]

    def _read(self, build: Build, folder: Path) -> Kept | None:
        if not (folder / ABOUT).exists():
            return None
        with _readable(folder):
            kept = _told(folder)
            packed = kept.archive.read_bytes()
        if kept.build != build or digest(packed) != kept.sha256:
            raise Refused(
                f"{kept.archive} is not what was kept: SHA-256 {digest(packed)[:16]}…",
                expected=f"{kept.sha256[:16]}…",
                do=f"rm -r {folder}, then again",
            )
        return kept

    def keep(self, build: Build, packed: bytes, built_on: str) -> Kept:
        """Take in what a node compiled.

        Args:
            packed: the modules in a tar archive, as the node sent it.
            built_on: the node.

        Raises:
            NodeFailed: it is no such build.
            GpuprovError: it cannot be signed.
        """
        files = unpack(packed)
        vermagic = check(build, files)
        # Whatever changes bytes has to be done here: sums, and so all nodes, follow from what is packed now.
        if self._signer:
            files = {name: self._signer.sign(name, content) for name, content in files.items()}
        archive = pack(files)
        sums = {name: digest(content) for name, content in sorted(files.items())}
        about = {
            "schema": SCHEMA,
            "build": asdict(build),
            "sha256": digest(archive),
            "modules": sums,
            "vermagic": vermagic,
            "built_on": built_on,
            "at": now(),
        }
        folder = self._folder(build)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / ARCHIVE, archive)
        _write(folder / ABOUT, json.dumps(about, indent=1).encode())
        return Kept(build, folder / ARCHIVE, digest(archive), sums, vermagic, built_on)

    def _folder(self, build: Build) -> Path:
        plain = self._plain(build)
        if self._signer is None:
            return plain
        return plain.with_name(f"{plain.name}-signed-{self._signer.fingerprint[:12]}")

    def _plain(self, build: Build) -> Path:
        return self.folder / build.kernel / build.folder


def _told(folder: Path) -> Kept:
    """What a folder of the store says that it has."""
    told = json.loads((folder / ABOUT).read_text())
    sums = told["sha256"], told["modules"], told["vermagic"], told["built_on"]
    return Kept(Build(**told["build"]), folder / ARCHIVE, *sums)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Refuse a folder of the store that is not whole."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{folder} cannot be read: {error}", do=f"rm -r {folder}, then again") from None


def bundled(builds: Iterable[Kept]) -> bytes:
    """A zip archive that is another machine's store once it is unpacked there. Equal builds, equal bytes."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for kept in builds:
            folder = kept.archive.parent
            for name in (ARCHIVE, ABOUT):
                member = zipfile.ZipInfo(f"{kept.build.kernel}/{folder.name}/{name}")
                archive.writestr(member, (folder / name).read_bytes())
    return whole.getvalue()


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of modules; the same modules always give the same bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), 6, mtime=0)


def unpack(packed: bytes) -> dict[str, bytes]:
    """The files of such an archive; nothing is written.

    Raises:
        NodeFailed: it is none.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            return dict(_files(archive))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise NodeFailed(f"an archive of modules that cannot be read: {error}") from None


def _files(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    room = LIMIT
    for member in archive:
        room -= member.size
        content = archive.extractfile(member) if member.isreg() and room >= 0 else None
        if content is None:
            raise NodeFailed(f"{member.name[:60]!r} in an archive of modules", expected="plain files, 1 GB")
        yield member.name, content.read()


def _write(path: Path, content: bytes) -> None:
    """Whole and on the disk, or not at all; another gpuprov may do the same."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
