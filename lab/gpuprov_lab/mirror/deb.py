"""Debian packages written in Python: dpkg-deb takes twenty milliseconds and a folder for a stub.

The format: deb(5), an ar archive (ar(5)) of debian-binary, control.tar and data.tar. The output is
independent of the clock, so that the same spec gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath

from gpuprov_lab.mirror.specs import PackageSpec

AR_MAGIC = b"!<arch>\n"


def deb_name(spec: PackageSpec) -> str:
    """Return a package's file name, `nvidia-open_580.95.05-0ubuntu1_amd64.deb`; an epoch is left out, as in
    dpkg.
    """
    return f"{spec.name}_{spec.version.partition(':')[2] or spec.version}_{spec.architecture}.deb"


def build_deb(spec: PackageSpec) -> bytes:
    """Return the package as a file that dpkg installs."""
    files = {**_documentation(spec), **spec.files}
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar(tuple(_control_files(spec, files).items())),
        "data.tar.gz": _tar(tuple(files.items()), tuple(spec.links.items())),
    }
    return AR_MAGIC + b"".join(_member(name, content) for name, content in members.items())


def control(spec: PackageSpec) -> dict[str, str]:
    """Return the package's control fields, as in it and in a Packages file."""
    return {
        "Package": spec.name,
        "Version": spec.version,
        "Architecture": spec.architecture,
        "Section": spec.section,
        "Priority": "optional",
        "Maintainer": "cudatools <cudatools@nvidia.com>",
        **spec.relations,
        "Description": "stub of the gpuprov lab mirror",
    }


def stanza(fields: dict[str, str]) -> str:
    """Return fields as one paragraph of `NAME: VALUE` lines, with a final newline."""
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _documentation(spec: PackageSpec) -> dict[str, bytes]:
    """Return path → content of the stub's own file, which states its name and version."""
    text = f"{spec.name} {spec.version}: a stub of the gpuprov lab mirror.\n"
    return {f"usr/share/doc/{spec.name}/README": text.encode()}


def _control_files(spec: PackageSpec, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return name → content of the control archive: control, scripts, and conffiles and triggers if there are
    any.
    """
    found = {"control": stanza(control(spec)).encode()}
    configuration = [f"/{path}\n" for path in files if path.startswith("etc/")]
    if configuration:
        found["conffiles"] = "".join(configuration).encode()
    if spec.triggers:
        found["triggers"] = "".join(f"activate-noawait {name}\n" for name in spec.triggers).encode()
    return found | {name: text.encode() for name, text in spec.scripts.items()}


@lru_cache(maxsize=1 << 13)
def _tar(files: tuple[tuple[str, bytes], ...], links: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return a tar.gz of files, links and the folders above the files; content that begins with `#!` is
    executable.

    A process that builds several mirrors packs a thousand stubs once.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in _folders(path for path, _ in files):
            entry = tarfile.TarInfo(f"./{folder}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, content in files:
            entry = tarfile.TarInfo(f"./{path}")
            entry.size, entry.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
        for path, target in links:
            entry = tarfile.TarInfo(f"./{path}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return gzip.compress(raw.getvalue(), compresslevel=1, mtime=0)


def _folders(files: Iterable[str]) -> list[str]:
    """Return every folder above the files, outer ones first."""
    parents = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    return sorted(parents - {"."})


def _member(name: str, content: bytes) -> bytes:
    """Return one member of an ar archive, padded to an even size."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)
