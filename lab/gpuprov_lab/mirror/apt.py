"""An apt repository from package specs: flat as NVIDIA's, or a suite as a distribution's, signed."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

from gpuprov_lab.mirror.deb import build_deb, control, deb_name, stanza
from gpuprov_lab.mirror.key import SigningKey
from gpuprov_lab.mirror.specs import PackageSpec


def build_flat(
    folder: Path, specs: Iterable[PackageSpec], key: SigningKey | None, about: Mapping[str, str]
) -> None:
    """Build a flat repository (`deb URL /`) in a folder: packages, Packages, Release, InRelease, Release.gpg.

    Args:
        key: signs; None leaves the repository unsigned.
        about: further fields of Release: Origin, Label, Valid-Until.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listing = "\n".join(_published(folder, "./", spec) for spec in specs)
    _write_index(folder, {"Packages": listing}, key, about)


def build_suite(
    root: Path,
    suite: str,
    components: Mapping[str, Iterable[PackageSpec]],
    architecture: str,
    key: SigningKey | None,
    about: Mapping[str, str] = {},
) -> None:
    """Build a suite below `dists/`, its packages below `pool/`, its index files by hash as well.

    Args:
        components: component → its packages.
        key: signs; None leaves the suite unsigned.
        about: further fields of Release: Origin, Label, Valid-Until.
    """
    listings = {
        component: "\n".join(_published(root, f"pool/{component}/", spec) for spec in specs)
        for component, specs in components.items()
    }
    publish_suite(root, suite, listings, architecture, key, about)


def publish_suite(
    root: Path,
    suite: str,
    components: Mapping[str, str],
    architecture: str,
    key: SigningKey | None,
    about: Mapping[str, str] = {},
) -> None:
    """Write the signed index of a suite below `dists/` for existing packages.

    Args:
        components: component → its Packages, whose `Filename`s are below `root`.
        key: signs; None leaves the suite unsigned.
        about: further fields of Release: Origin, Label, Valid-Until.
    """
    listings = {f"{name}/binary-{architecture}/Packages": text for name, text in components.items()}
    described = {
        "Suite": suite,
        "Components": " ".join(components),
        "Architectures": architecture,
        "Acquire-By-Hash": "yes",
        **about,
    }
    _write_index(root / "dists" / suite, listings, key, described)


def _published(root: Path, place: str, spec: PackageSpec) -> str:
    """Write the package below `root` / `place`; return its stanza in Packages."""
    content = build_deb(spec)
    target = root / place / deb_name(spec)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return stanza(
        {
            **control(spec),
            "Filename": f"{place}{deb_name(spec)}",
            "Size": str(len(content)),
            "SHA256": hashlib.sha256(content).hexdigest(),
        }
    )


def _write_index(
    folder: Path, listings: Mapping[str, str], key: SigningKey | None, about: Mapping[str, str]
) -> None:
    """Write listings plain and as .gz and .xz, and the Release file with their checksums, dated a minute ago.

    Args:
        listings: path below `folder` → text.
        key: signs Release; None leaves it unsigned.
    """
    sums: list[str] = []
    for name, listing in listings.items():
        plain = listing.encode()
        for suffix, content in (
            ("", plain),
            (".gz", gzip.compress(plain, mtime=0)),
            (".xz", lzma.compress(plain)),
        ):
            digest = hashlib.sha256(content).hexdigest()
            target = folder / (name + suffix)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            sums.append(f" {digest} {len(content)} {name}{suffix}")
            if about.get("Acquire-By-Hash") == "yes":
                _write_by_hash(target, digest, content)
    dated = {"Date": format_datetime(datetime.now(UTC) - timedelta(minutes=1), usegmt=True), **about}
    release = stanza(dated) + "SHA256:\n" + "\n".join(sums) + "\n"
    sign_release(folder, release.encode(), key)


def _write_by_hash(target: Path, digest: str, content: bytes) -> None:
    """Write a copy of an index file that apt finds by its SHA-256."""
    place = target.parent / "by-hash" / "SHA256" / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def sign_release(folder: Path, release: bytes, key: SigningKey | None) -> None:
    """Write Release into a folder and, with a key, InRelease and Release.gpg."""
    (folder / "Release").write_bytes(release)
    if key:
        (folder / "InRelease").write_bytes(key.clear_signed(release))
        (folder / "Release.gpg").write_bytes(key.detached(release))
