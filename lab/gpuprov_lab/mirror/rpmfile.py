"""RPM packages written in Python: rpmbuild takes a third of a second for a stub, and is not always installed.

The format: "RPM V4 Package format" in rpm's own manual (lead, signature header, header, payload), tag numbers
and types from its "RPM tags" page. Files are one cpio archive (newc) compressed by gzip.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from gpuprov.locking.repository.apt import parse_depends
from gpuprov_lab.mirror.specs import PackageSpec

LEAD = struct.pack(">4sBBhh66shh16x", b"\xed\xab\xee\xdb", 3, 0, 0, 1, b"stub", 1, 5)
HEADER_MAGIC = b"\x8e\xad\xe8\x01\x00\x00\x00\x00"
INT16, INT32, STRING, BINARY, STRINGS, I18N = 3, 4, 6, 7, 8, 9
WIDTHS = {INT16: 2, INT32: 4}

# Tags of the header: number and type.
NAME, VERSION, RELEASE, EPOCH = (1000, STRING), (1001, STRING), (1002, STRING), (1003, INT32)
SUMMARY, DESCRIPTION, BUILD_TIME, BUILD_HOST = (1004, I18N), (1005, I18N), (1006, INT32), (1007, STRING)
SIZE, LICENSE, GROUP, OS, ARCH = (1009, INT32), (1014, STRING), (1016, I18N), (1021, STRING), (1022, STRING)
FILE_SIZES, FILE_MODES, FILE_RDEVS, FILE_TIMES = (1028, INT32), (1030, INT16), (1033, INT16), (1034, INT32)
FILE_DIGESTS, FILE_LINKS, FILE_FLAGS = (1035, STRINGS), (1036, STRINGS), (1037, INT32)
FILE_USERS, FILE_GROUPS, SOURCE_RPM = (1039, STRINGS), (1040, STRINGS), (1044, STRING)
FILE_DEVICES, FILE_INODES, FILE_LANGS = (1095, INT32), (1096, INT32), (1097, STRINGS)
DIR_INDEXES, BASE_NAMES, DIR_NAMES = (1116, INT32), (1117, STRINGS), (1118, STRINGS)
PAYLOAD_FORMAT, PAYLOAD_COMPRESSOR, PAYLOAD_FLAGS = (1124, STRING), (1125, STRING), (1126, STRING)
FILE_DIGEST_ALGORITHM, PAYLOAD_DIGEST, PAYLOAD_DIGEST_ALGORITHM = (
    (5011, INT32),
    (5092, STRINGS),
    (5093, INT32),
)
RELATION_TAGS = {
    "provides": ((1047, STRINGS), (1112, INT32), (1113, STRINGS)),
    "requires": ((1049, STRINGS), (1048, INT32), (1050, STRINGS)),
    "conflicts": ((1054, STRINGS), (1053, INT32), (1055, STRINGS)),
    "obsoletes": ((1090, STRINGS), (1114, INT32), (1115, STRINGS)),
    "recommends": ((5046, STRINGS), (5048, INT32), (5047, STRINGS)),
}
I18N_TABLE = (100, STRINGS)
SIGNATURES_REGION, HEADER_REGION = 62, 63
SIGNATURE_SIZE, SIGNATURE_MD5, SIGNATURE_SHA256 = (1000, INT32), (1004, BINARY), (273, STRING)
SIGNATURE_RSA = (268, BINARY)
"""A signature of the header alone, as rpmsign(8) has made since rpm 4.14 for V4 packages."""
SCRIPTS = {
    "prein": ((1023, STRING), (1085, STRING)),
    "post": ((1024, STRING), (1086, STRING)),
    "preun": ((1025, STRING), (1087, STRING)),
    "postun": ((1026, STRING), (1088, STRING)),
}
"""A script's name in a spec file → tags of its text and its interpreter."""

SHA256 = 8
SENSES = {"LT": 2, "GT": 4, "EQ": 8, "LE": 10, "GE": 12}
FLAGS = {"<<": "LT", "<=": "LE", "=": "EQ", ">=": "GE", ">>": "GT"}
RPMLIB = [("rpmlib(CompressedFileNames)", "3.0.4-1"), ("rpmlib(PayloadFilesHavePrefix)", "4.0-1")]
RPMLIB_SENSE = (1 << 24) | SENSES["LE"]
LINK, FOLDER = 0o120777, 0o040755
BUILT = 1_700_000_000

Tag = tuple[int, int]
Value = str | bytes | Sequence[str] | Sequence[int]


CONFIGURATION = 1 | 1 << 4
"""Flags of a configuration file that an upgrade does not replace: RPMFILE_CONFIG, RPMFILE_NOREPLACE."""


class File(NamedTuple):
    """A file of a package; the content of a symbolic link is its target, a folder has none."""

    content: bytes
    mode: int

    @property
    def special(self) -> bool:
        """Whether it is a link or a folder, which have no digest."""
        return self.mode in (LINK, FOLDER)

    @property
    def target(self) -> str:
        """Target of a link, "" of a regular file."""
        return self.content.decode() if self.mode == LINK else ""


class Evr(NamedTuple):
    """Epoch, version, release; an empty release means any."""

    epoch: int
    version: str
    release: str


def split(text: str) -> Evr:
    """Split `3:610.57.04-1.el9` into its parts; epoch 0 and an empty release if they are not stated."""
    epoch, colon, rest = text.rpartition(":")
    version, _, release = rest.partition("-")
    return Evr(int(epoch) if colon else 0, version, release)


def rpm_name(spec: PackageSpec) -> str:
    """Return a package's file name, `nvidia-open-610.57.04-1.el9.noarch.rpm`, without the epoch."""
    evr = split(spec.version)
    return f"{spec.name}-{evr.version}-{evr.release}.{spec.architecture}.rpm"


def relations(spec: PackageSpec) -> dict[str, list[tuple[str, str, Evr]]]:
    """Return relations in rpm's form: kind → (name, `EQ` and so on or empty, version to compare with).

    A package provides itself. Of alternatives (`a | b`) only the first is kept.
    """
    kinds = {
        "Provides": "provides",
        "Depends": "requires",
        "Conflicts": "conflicts",
        "Replaces": "obsoletes",
        "Recommends": "recommends",
    }
    found: dict[str, list[tuple[str, str, Evr]]] = {
        "provides": [(spec.name, "EQ", split(spec.version))],
    }
    for field, kind in kinds.items():
        for group in parse_depends(spec.relations.get(field, "")):
            wanted = group[0]
            entry = (wanted.name, FLAGS.get(wanted.operator, ""), split(wanted.version))
            found.setdefault(kind, []).append(entry)
    return found


def build_rpm(spec: PackageSpec, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return the package as a file that rpm installs, with digests.

    Args:
        sign: returns the signature of the header; without it the package is not signed.
    """
    files = _files(spec)
    payload = gzip.compress(_cpio(files), compresslevel=1, mtime=0)
    tags = {**_about(spec, files, payload), **_relation_tags(spec), **_file_tags(files), **_scripts(spec)}
    header = _header(HEADER_REGION, tags)
    signed: dict[Tag, Value] = {SIGNATURE_RSA: sign(header)} if sign else {}
    signature = _header(
        SIGNATURES_REGION,
        {
            **signed,
            SIGNATURE_SHA256: hashlib.sha256(header).hexdigest(),
            SIGNATURE_SIZE: [len(header) + len(payload)],
            SIGNATURE_MD5: hashlib.md5(header + payload, usedforsecurity=False).digest(),
        },
    )
    return LEAD + signature + b"\0" * (-len(signature) % 8) + header + payload


def _files(spec: PackageSpec) -> dict[str, File]:
    """Return path → file of a package, sorted by path; folders only below usr/local/cuda."""
    regular = {**_documentation(spec), **spec.files}
    found = {path: File(content, _mode(content)) for path, content in regular.items()}
    found |= {path: File(target.encode(), LINK) for path, target in spec.links.items()}
    parents = {str(parent) for path in found for parent in PurePosixPath(path).parents}
    found |= {path: File(b"", FOLDER) for path in parents if path.startswith("usr/local/cuda")}
    return dict(sorted(found.items()))


def _documentation(spec: PackageSpec) -> dict[str, bytes]:
    """Return the stub's own file; its path has the version, so that two kernels can be installed together."""
    evr = split(spec.version)
    path = f"usr/share/doc/{spec.name}-{evr.version}-{evr.release}/README"
    return {path: f"{spec.name} {spec.version}: a stub.\n".encode()}


def _scripts(spec: PackageSpec) -> dict[Tag, Value]:
    """Return the header's tags of a package's scripts, which sh runs."""
    found: dict[Tag, Value] = {}
    for name, text in spec.scripts.items():
        body, interpreter = SCRIPTS[name]
        found |= {body: text, interpreter: "/bin/sh"}
    return found


def _about(spec: PackageSpec, files: Mapping[str, File], payload: bytes) -> dict[Tag, Value]:
    """Return the header's tags of name, version, size and payload."""
    evr = split(spec.version)
    epoch: dict[Tag, Value] = {EPOCH: [evr.epoch]} if evr.epoch else {}
    return {
        I18N_TABLE: ["C"],
        NAME: spec.name,
        VERSION: evr.version,
        RELEASE: evr.release,
        **epoch,
        SUMMARY: f"stub of {spec.name}",
        DESCRIPTION: "stub of the gpuprov lab mirror",
        BUILD_TIME: [BUILT],
        BUILD_HOST: "localhost",
        SIZE: [sum(len(file.content) for file in files.values())],
        LICENSE: "NVIDIA Proprietary",
        GROUP: "Unspecified",
        OS: "linux",
        ARCH: spec.architecture,
        SOURCE_RPM: f"{spec.name}-{evr.version}-{evr.release}.src.rpm",
        PAYLOAD_FORMAT: "cpio",
        PAYLOAD_COMPRESSOR: "gzip",
        PAYLOAD_FLAGS: "9",
        FILE_DIGEST_ALGORITHM: [SHA256],
        PAYLOAD_DIGEST: [hashlib.sha256(payload).hexdigest()],
        PAYLOAD_DIGEST_ALGORITHM: [SHA256],
    }


def _relation_tags(spec: PackageSpec) -> dict[Tag, Value]:
    """Return the header's tags of the relations, with what every package requires of rpm itself."""
    tags: dict[Tag, Value] = {}
    for kind, entries in relations(spec).items():
        names, senses, versions = RELATION_TAGS[kind]
        rows = [(name, SENSES.get(flags, 0), _text(evr)) for name, flags, evr in entries]
        tags |= {
            names: [row[0] for row in rows],
            senses: [row[1] for row in rows],
            versions: [row[2] for row in rows],
        }
    names, senses, versions = RELATION_TAGS["requires"]
    for name, version in RPMLIB:
        for tag, value in ((names, name), (senses, RPMLIB_SENSE), (versions, version)):
            tags[tag] = [*tags.get(tag, []), value]
    return tags


def _text(evr: Evr) -> str:
    """Return a version as text; an epoch of 0 and an empty release are left out."""
    return (f"{evr.epoch}:" if evr.epoch else "") + evr.version + (f"-{evr.release}" if evr.release else "")


def _file_tags(files: Mapping[str, File]) -> dict[Tag, Value]:
    """Return the header's tags of the files; those below a folder `etc` are configuration."""
    paths = [PurePosixPath("/", path) for path in files]
    each = [*files.values()]
    folders = sorted({f"{path.parent}/" for path in paths})
    count = len(paths)
    return {
        FILE_SIZES: [len(file.content) for file in each],
        FILE_MODES: [file.mode for file in each],
        FILE_RDEVS: [0] * count,
        FILE_TIMES: [BUILT] * count,
        FILE_DIGESTS: ["" if file.special else hashlib.sha256(file.content).hexdigest() for file in each],
        FILE_LINKS: [file.target for file in each],
        FILE_FLAGS: [CONFIGURATION if "etc" in PurePosixPath(path).parts else 0 for path in files],
        FILE_USERS: ["root"] * count,
        FILE_GROUPS: ["root"] * count,
        FILE_DEVICES: [1] * count,
        FILE_INODES: list(range(1, count + 1)),
        FILE_LANGS: [""] * count,
        DIR_INDEXES: [folders.index(f"{path.parent}/") for path in paths],
        BASE_NAMES: [path.name for path in paths],
        DIR_NAMES: folders,
    }


def _mode(content: bytes) -> int:
    """Return the mode of a regular file: executable if its content begins with `#!`."""
    return 0o100755 if content.startswith(b"#!") else 0o100644


def _header(region: int, tags: Mapping[Tag, Value]) -> bytes:
    """Return a header: an index of sixteen bytes for each tag, then their values;
    the region tag covers both.
    """
    index, store = b"", b""
    for (number, kind), value in sorted(tags.items()):
        width = WIDTHS.get(kind, 1)
        store += b"\0" * (-len(store) % width)
        packed, count = _packed(kind, value)
        index += struct.pack(">iiii", number, kind, len(store), count)
        store += packed
    entries = len(tags) + 1
    first = struct.pack(">iiii", region, BINARY, len(store), 16)
    store += struct.pack(">iiii", region, BINARY, -16 * entries, 16)
    return HEADER_MAGIC + struct.pack(">ii", entries, len(store)) + first + index + store


def _packed(kind: int, value: Value) -> tuple[bytes, int]:
    """Return a value in its stored form, big-endian, and its count for the index."""
    if isinstance(value, bytes):
        return value, len(value)
    if isinstance(value, str):
        return value.encode() + b"\0", 1
    if kind in WIDTHS:
        return struct.pack(f">{len(value)}{'H' if kind == INT16 else 'I'}", *value), len(value)
    return b"".join(str(item).encode() + b"\0" for item in value), len(value)


def _cpio(files: Mapping[str, File]) -> bytes:
    """Return a cpio archive of the new ASCII format (cpio(5)), including its end mark."""
    entries = [
        (f"./{path}", file.mode, number, file.content) for number, (path, file) in enumerate(files.items(), 1)
    ]
    return b"".join(_cpio_entry(*entry) for entry in [*entries, ("TRAILER!!!", 0, 0, b"")])


def _cpio_entry(name: str, mode: int, inode: int, content: bytes) -> bytes:
    """Return one entry of a cpio archive, padded to four bytes."""
    numbers = [inode, mode, 0, 0, 1, BUILT if mode else 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)
