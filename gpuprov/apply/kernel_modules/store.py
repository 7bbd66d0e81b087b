"""Store on the controller: builds of trusted builders, with the checksums of all files that nodes get.

    $XDG_STATE_HOME/gpuprov/modules/FLEET/BUILDERS/KERNEL/DRIVER-FLAVOUR-ARCH-DIGEST[-signed-CERTIFICATE]/
        {modules.tar.gz,about.json}

FLEET is a digest of the path of the fleet's file, BUILDERS lists the builders: only nodes of that fleet find
a build, and only while their lock trusts exactly these builders. Modules have the site's signature or none.
The store is neither locked nor secret: if it is lost, modules are compiled again. A build that was changed in
it is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuprov.apply.kernel_modules import journal
from gpuprov.apply.kernel_modules.build import Build, agreed, bare, build_of, check, digest
from gpuprov.apply.kernel_modules.packing import compressed, pack, suffix_of, unpack
from gpuprov.errors import NodeFailed, Refused
from gpuprov.files.runs import now, state_dir
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.model.lock import LockedGroup
from gpuprov.untrusted import Vermagic, below, vermagic
from gpuprov.untrusted.stated import stated_json

ARCHIVE, ABOUT = "modules.tar.gz", "about.json"
SCHEMA = "gpuprov.modules/2"


@dataclass(frozen=True)
class Signer:
    """Signer of the modules for all nodes.

    Attributes:
        fingerprint: fingerprint of the certificate.
        sign: function: a module → the module with the signature.
    """

    fingerprint: str
    sign: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Kept:
    """A build in the store.

    Attributes:
        archive: the file that nodes get.
        sha256: SHA-256 of the archive.
        modules: file → SHA-256 of the installed file on a node.
        vermagic: vermagic of the modules, the same in all.
    """

    build: Build
    archive: Path
    sha256: str
    modules: Mapping[str, str]
    vermagic: Vermagic

    def offer(self) -> dict[str, Any]:
        """Return the description of the build for a variable of the role nvidia_driver."""
        return {
            "kernel": self.build.kernel,
            "archive": str(self.archive),
            "sha256": self.sha256,
            "modules": dict(self.modules),
            "vermagic": self.vermagic,
            "builders": "+".join(self.build.builders),
        }


class Store:
    """All builds of a fleet on this controller."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        fleet: Path | None = None,
        signer: Signer | None = None,
        run: str = "",
    ) -> None:
        """
        Args:
            folder: a folder in place of the one in the user's state folder.
            fleet: the fleet's file; builds of other fleets are not found.
            signer: signs the stored modules; without it they have no signature.
            run: id of the run, for the journal of signatures.
        """
        self.folder = folder or state_dir() / "modules"
        self._fleet, self._signer, self._run = fleet, signer, run

    @property
    def signs(self) -> bool:
        """Whether the store signs modules; then every module has to come from it."""
        return self._signer is not None

    def find(self, build: Build) -> Kept | None:
        """Return the build, verified by its checksum; None if the store does not have it.

        A build that was stored before a signature was required is signed now.

        Raises:
            Refused: it was changed since.
            GpuprovError: it cannot be signed.
        """
        kept = self._read(build, self._folder(build))
        unsigned = self._read(build, self._plain(build)) if kept is None and self._signer else None
        return self._keep(build, bare(unsigned.archive.read_bytes())) if unsigned else kept

    def of(self, group: LockedGroup) -> list[Kept]:
        """Return every build of a group's driver by the builders that it trusts, for all kernels.

        Raises:
            Refused: one was changed since.
            GpuprovError: one cannot be signed.
        """
        builds: dict[Build, None] = {}  # a build may be stored both with and without a signature
        for path in sorted((self.folder / fleet_id(self._fleet)).glob(f"*/*/*/{ABOUT}")):
            with _readable(path.parent):
                builds[_described(path.parent).build] = None
        fit = (each for each in builds if each == build_of(group, each.kernel, each.compiler))
        return [kept for build in fit if (kept := self.find(build))]

    def leftover(self, build: Build) -> Path | None:
        """Return the folder of unused builds for that kernel, without a stated builder; None without any;
        raises as `below`.
        """
        old = below(self.folder, build.kernel)
        return old if old.is_dir() else None

    def keep(self, build: Build, made: Mapping[str, bytes]) -> Kept:
        """Store the modules that the builders of a build compiled.

        Args:
            made: builder → its tar archive of the modules.

        Raises:
            NodeFailed: it is not that build, the builders' modules differ, or another node compiled them.
            GpuprovError: it cannot be signed.
        """
        return self._keep(build, agreed(build, made))

    def _keep(self, build: Build, modules: Mapping[str, bytes]) -> Kept:
        """Sign modules if the store signs, compress them by suffix, record their signatures and store them.

        Args:
            modules: file → content without compression and signature.

        Raises:
            NodeFailed: they are not of that build.
            GpuprovError: they cannot be signed.
        """
        stated = check(build, modules)
        # All steps that change bytes belong here: the checksums, and so all nodes, depend on this archive.
        sign = self._signer.sign if self._signer else bytes
        files = {name: compressed(suffix_of(name), sign(content)) for name, content in modules.items()}
        sums = {name: digest(content) for name, content in sorted(files.items())}
        self._record(build, modules, sums)
        return self._put(build, pack(files), sums, stated)

    def adopt(self, about: bytes, archive: bytes) -> Kept:
        """Add a build of another store of this fleet unchanged, in a tree that has no key.

        Args:
            about, archive: contents of the two files of its folder there, copied by the operator.

        Raises:
            NodeFailed: it is not such a build, or does not have the signature that is required here.
            ValueError, KeyError, TypeError: the files are invalid.
        """
        build, document = build_in(about), stated_json(about)
        sums = {name: digest(content) for name, content in unpack(archive).items()}
        if digest(archive) != document["sha256"] or sums != document["modules"]:
            raise NodeFailed(f"the {build} differs from its checksums", do="export it again")
        if document["certificate"] != self._certificate:
            seen = document["certificate"] or "no certificate"
            raise NodeFailed(f"the {build} is signed by {seen[:64]}", expected=self._certificate or "none")
        return self._put(build, archive, sums, check(build, bare(archive)))

    @property
    def _certificate(self) -> str:
        """Fingerprint of the certificate; empty if the store does not sign."""
        return self._signer.fingerprint if self._signer else ""

    def _put(self, build: Build, archive: bytes, sums: Mapping[str, str], stated: Vermagic) -> Kept:
        """Write the archive of a build and its about.json to the store, replacing earlier ones; return the
        stored build; raises as `_folder`.
        """
        about = {
            "schema": SCHEMA,
            "fleet": str(self._fleet or ""),
            "build": asdict(build),
            "sha256": digest(archive),
            "modules": sums,
            "vermagic": stated,
            "certificate": self._certificate,
            "at": now(),
        }
        folder = self._folder(build)
        make_folders(folder)
        replace_file(folder / ARCHIVE, archive)
        replace_file(folder / ABOUT, json.dumps(about, indent=1).encode())
        return Kept(build, folder / ARCHIVE, digest(archive), sums, stated)

    def _record(self, build: Build, modules: Mapping[str, bytes], sums: Mapping[str, str]) -> None:
        """Record the signatures in the journal, if the store signs, before the signed modules are stored."""
        if self._signer is None:
            return
        about = (now(), self._run, str(self._fleet or ""), self._signer.fingerprint, asdict(build))
        journal.record(
            journal.Signed(*about, file=name, before=digest(modules[name]), after=after)
            for name, after in sums.items()
        )

    def _read(self, build: Build, folder: Path) -> Kept | None:
        """Return the build in a folder, verified by its checksum; None if the folder has none.

        Raises:
            Refused: it was changed, or is of another build or unreadable.
        """
        if not (folder / ABOUT).exists():
            return None
        with _readable(folder):
            kept = _described(folder)
            packed = kept.archive.read_bytes()
        if kept.build != build or digest(packed) != kept.sha256:
            raise Refused(
                f"{kept.archive} does not match its record: SHA-256 {digest(packed)[:16]}…",
                expected=f"{kept.sha256[:16]}…",
                do=f"rm -r {shlex.quote(str(folder))}, then run the command again",
            )
        return kept

    def _folder(self, build: Build) -> Path:
        """Return the folder of a build, which differs from that of an unsigned one if the store signs; raises
        as `_plain`.
        """
        plain = self._plain(build)
        if self._signer is None:
            return plain
        return plain.with_name(f"{plain.name}-signed-{self._signer.fingerprint[:12]}")

    def _plain(self, build: Build) -> Path:
        """Return the folder of a build without a signature; raises as `_place`."""
        return self.folder / _place(self._fleet, build) / build.folder


def fleet_id(fleet: Path | None) -> str:
    """Return the identifier of a fleet: a digest of the absolute path of its file.

    The content of the file does not identify it: another fleet may have the same content, and it changes with
    every host.
    """
    return hashlib.sha256(str(fleet or "").encode()).hexdigest()[:16]


def _place(fleet: Path | None, build: Build) -> Path:
    """Return the parent of a build's folder, relative to the store; refuse names that lead outside of it."""
    return below(below(Path(fleet_id(fleet)), "+".join(build.builders)), build.kernel)


def _described(folder: Path) -> Kept:
    """Return the build that a folder of the store describes, not verified.

    Raises:
        OSError, ValueError, KeyError, TypeError, NodeFailed: its about.json is missing or not valid.
    """
    about = (folder / ABOUT).read_bytes()
    result = stated_json(about)
    return Kept(
        build_in(about), folder / ARCHIVE, result["sha256"], result["modules"], vermagic(result["vermagic"])
    )


def build_in(about: bytes) -> Build:
    """Return the build that the content of an about.json describes.

    Raises:
        ValueError, KeyError, TypeError: it is not such a file.
    """
    stated = stated_json(about)["build"]
    return Build(**{**stated, "builders": tuple(stated["builders"])})


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raise Refused within the context if a folder of the store is incomplete or cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, NodeFailed) as error:
        raise Refused(
            f"{folder} cannot be read: {error}",
            do=f"rm -r {shlex.quote(str(folder))}, then run the command again",
        ) from None


def bundled(builds: Iterable[Kept], fleet: Path) -> bytes:
    """Return a zip archive that becomes another machine's store when it is unpacked there.

    Equal builds give equal bytes. OSError if a file of the store cannot be read.

    Args:
        fleet: path that the fleet's file would have on that machine, in the folder of its lock.
    """
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for kept in builds:
            folder = kept.archive.parent
            for name in (ARCHIVE, ABOUT):
                member = zipfile.ZipInfo(str(_place(fleet, kept.build) / folder.name / name))
                archive.writestr(member, (folder / name).read_bytes())
    return whole.getvalue()
