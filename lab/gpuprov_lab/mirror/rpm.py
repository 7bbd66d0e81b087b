"""An rpm repository from package specs: signed packages, repodata with module streams, signed repomd.xml.

The metadata equals createrepo_c's as far as dnf and gpuprov read it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

import yaml

from gpuprov_lab.mirror.key import SigningKey
from gpuprov_lab.mirror.rpmfile import Evr, build_rpm, relations, rpm_name, split
from gpuprov_lab.mirror.specs import PackageSpec

NAMESPACES = {
    "": "http://linux.duke.edu/metadata/common",
    "rpm": "http://linux.duke.edu/metadata/rpm",
}
REPO = "http://linux.duke.edu/metadata/repo"
MODULE = "nvidia-driver"
"""The only module of NVIDIA's repositories."""
BUILT = 1_700_000_000
"""The time in all metadata: the output is independent of the clock."""


def build(folder: Path, specs: Iterable[PackageSpec], key: SigningKey | None) -> None:
    """Build a repository in a folder: packages next to `repodata/`, as NVIDIA's.

    Args:
        key: signs the packages and repomd.xml; None leaves them unsigned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specs = list(specs)
    built = [(spec, build_rpm(spec, key.of_rpm if key else None)) for spec in specs]
    for spec, content in built:
        (folder / rpm_name(spec)).write_bytes(content)
    files = {
        "primary": _primary(built),
        "filelists": _others("filelists", built),
        "other": _others("other", built),
    }
    modules = _modules(specs)
    if modules:
        files["modules"] = modules
    write_repodata(folder / "repodata", files, key)


def write_repodata(folder: Path, files: dict[str, bytes], key: SigningKey | None) -> None:
    """Write metadata files, compressed and named by their checksum, and the repomd.xml that lists them.

    Args:
        files: kind (`primary`, `modules`, …) → content.
        key: signs repomd.xml, and is written next to it; None leaves it unsigned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = Xml.Element("repomd", {"xmlns": REPO})
    Xml.SubElement(root, "revision").text = str(BUILT)
    for kind, plain in files.items():
        suffix = "yaml" if kind == "modules" else "xml"
        packed = gzip.compress(plain, mtime=0)
        digest = hashlib.sha256(packed).hexdigest()
        name = f"{digest}-{kind}.{suffix}.gz"
        (folder / name).write_bytes(packed)
        data = Xml.SubElement(root, "data", {"type": kind})
        Xml.SubElement(data, "checksum", {"type": "sha256"}).text = digest
        Xml.SubElement(data, "open-checksum", {"type": "sha256"}).text = hashlib.sha256(plain).hexdigest()
        Xml.SubElement(data, "location", {"href": f"repodata/{name}"})
        Xml.SubElement(data, "timestamp").text = str(BUILT)
        Xml.SubElement(data, "size").text = str(len(packed))
        Xml.SubElement(data, "open-size").text = str(len(plain))
    content = _document(root)
    (folder / "repomd.xml").write_bytes(content)
    if key:
        (folder / "repomd.xml.asc").write_bytes(key.detached(content))
        (folder / "repomd.xml.key").write_bytes(key.public)


def _document(root: Xml.Element) -> bytes:
    """Return an XML document in UTF-8, with its declaration."""
    document: bytes = Xml.tostring(root, encoding="UTF-8", xml_declaration=True)
    return document


def _primary(built: Sequence[tuple[PackageSpec, bytes]]) -> bytes:
    """Return primary.xml: name, version, checksum and relations of each package."""
    named = {f"xmlns:{prefix}" if prefix else "xmlns": url for prefix, url in NAMESPACES.items()}
    root = Xml.Element("metadata", {**named, "packages": str(len(built))})
    for spec, content in built:
        package = Xml.SubElement(root, "package", {"type": "rpm"})
        Xml.SubElement(package, "name").text = spec.name
        Xml.SubElement(package, "arch").text = spec.architecture
        Xml.SubElement(package, "version", _attributes(split(spec.version)))
        digest = Xml.SubElement(package, "checksum", {"type": "sha256", "pkgid": "YES"})
        digest.text = hashlib.sha256(content).hexdigest()
        Xml.SubElement(package, "summary").text = f"stub of {spec.name}"
        Xml.SubElement(package, "description").text = "stub of the gpuprov lab mirror"
        Xml.SubElement(package, "packager").text = "NVIDIA"
        Xml.SubElement(package, "url")
        Xml.SubElement(package, "time", {"file": str(BUILT), "build": str(BUILT)})
        Xml.SubElement(package, "size", {"package": str(len(content)), "installed": "0", "archive": "0"})
        Xml.SubElement(package, "location", {"href": rpm_name(spec)})
        _format(package, spec)
    return _document(root)


def _format(package: Xml.Element, spec: PackageSpec) -> None:
    """Add a package's license, source and relations to its element."""
    details = Xml.SubElement(package, "format")
    evr = split(spec.version)
    Xml.SubElement(details, "rpm:license").text = "NVIDIA Proprietary"
    Xml.SubElement(details, "rpm:sourcerpm").text = f"{spec.name}-{evr.version}-{evr.release}.src.rpm"
    for kind, entries in relations(spec).items():
        if not entries:
            continue
        group = Xml.SubElement(details, f"rpm:{kind}")
        for name, flags, wanted in entries:
            stated = {"flags": flags, **_attributes(wanted)} if flags else {}
            Xml.SubElement(group, "rpm:entry", {"name": name, **stated})


def _attributes(evr: Evr) -> dict[str, str]:
    """Return a version's attributes `epoch`, `ver` and, unless it is empty, `rel`."""
    stated = {"epoch": str(evr.epoch), "ver": evr.version}
    return {**stated, "rel": evr.release} if evr.release else stated


def _others(kind: str, built: Sequence[tuple[PackageSpec, bytes]]) -> bytes:
    """Return filelists.xml or other.xml, which dnf requires."""
    root = Xml.Element(kind, {"xmlns": f"http://linux.duke.edu/metadata/{kind}", "packages": str(len(built))})
    for spec, content in built:
        named = {"pkgid": hashlib.sha256(content).hexdigest(), "name": spec.name, "arch": spec.architecture}
        Xml.SubElement(Xml.SubElement(root, "package", named), "version", _attributes(split(spec.version)))
    return _document(root)


def _modules(specs: Sequence[PackageSpec]) -> bytes:
    """Return one modulemd document for each stream, with its packages; empty if no package is in a stream."""
    streams = sorted({stream for spec in specs for stream in spec.streams})
    return yaml.safe_dump_all(
        [_module(stream, [spec for spec in specs if stream in spec.streams]) for stream in streams],
        explicit_start=True,
        explicit_end=True,
        sort_keys=False,
    ).encode()


def _module(stream: str, specs: Sequence[PackageSpec]) -> dict[str, object]:
    """Return the modulemd document of a stream, whose default profile is its driver package."""
    flavour = "nvidia-open" if stream.startswith("open") or stream.endswith("-open") else "cuda-drivers"
    return {
        "document": "modulemd",
        "version": 2,
        "data": {
            "name": MODULE,
            "stream": stream,
            "version": BUILT,
            "context": hashlib.sha256(stream.encode()).hexdigest()[:8],
            "arch": next(spec.architecture for spec in specs if spec.architecture != "noarch"),
            "summary": f"NVIDIA driver for {stream} stream",
            "description": f"NVIDIA driver for {stream} stream, stub of the gpuprov lab mirror",
            "license": {"module": ["MIT"]},
            "profiles": {"default": {"rpms": [flavour]}},
            "artifacts": {"rpms": sorted(_nevra(spec) for spec in specs)},
        },
    }


def _nevra(spec: PackageSpec) -> str:
    """Return `NAME-EPOCH:VERSION-RELEASE.ARCH` of a package."""
    evr = split(spec.version)
    return f"{spec.name}-{evr.epoch}:{evr.version}-{evr.release}.{spec.architecture}"
