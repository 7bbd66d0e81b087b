"""Rpm repositories: valid ones, module streams, and each kind of fault with its message."""

from __future__ import annotations

import gzip
import hashlib
import sys
import time
from collections.abc import Callable

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.locking.repository import sources
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Relation
from gpuprov.locking.repository.rpm import _streams, with_streams
from gpuprov.untrusted.openpgp import UNSIGNED
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror import rpm as mirror_rpm
from gpuprov_lab.mirror.key import SigningKey, signing_key
from tests.unit.locking.repository.built_repositories import RpmRepository

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def complaint(rpms: RpmRepository, kind: type[GpuprovError], /, **changes: object) -> str:
    """Open a repository with changed arguments; return the message of the expected error."""
    with pytest.raises(kind) as caught:
        rpms.open(**changes)
    return str(caught.value)


def test_versions_with_their_streams(rpms: RpmRepository) -> None:
    offered = rpms.open().versions("driver")
    assert [(package.version, sorted(package.streams)) for package in offered] == [
        ("3:620.1-1.el9", []),
        ("3:610.1-1.el9", ["nvidia-driver:610-open"]),
        ("3:580.9-1.el9", ["nvidia-driver:580-open"]),
    ]


def test_package_as_its_record_says(rpms: RpmRepository) -> None:
    """Check relations, size, digest and architecture of a package in the index."""
    package = rpms.open().candidate("tool")
    content = (rpms.root / package.filename).read_bytes()
    assert package.depends == ((Relation("driver", ">=", "3:580"),),)
    assert (package.size, package.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert package.architecture == "noarch"


def test_foreign_architectures_are_left_out(rpms: RpmRepository) -> None:
    assert rpms.open().versions("foreign") == []
    assert rpms.open(arch="aarch64").versions("foreign")


def test_an_enabled_stream_hides_everything_else_of_its_names(rpms: RpmRepository) -> None:
    index = with_streams(rpms.open(), "nvidia-driver:580-open")
    assert [package.version for package in index.versions("driver")] == ["3:580.9-1.el9"]
    assert index.versions("tool")


def test_without_a_stream_only_what_is_in_none(rpms: RpmRepository) -> None:
    assert [p.version for p in with_streams(rpms.open()).versions("driver")] == ["3:620.1-1.el9"]


def test_unknown_stream_lists_those_there_are(rpms: RpmRepository) -> None:
    with pytest.raises(Refused) as caught:
        with_streams(rpms.open(), "nvidia-driver:999-open")
    assert "expected one of nvidia-driver:580-open, nvidia-driver:610-open" in str(caught.value)


def test_not_a_repository(rpms: RpmRepository) -> None:
    """Check the message for a URL that is no rpm repository."""
    said = complaint(rpms, InvalidInput, url=rpms.repodata.as_uri())
    assert said.startswith("no repodata/repomd.xml at file:")


def test_no_signature(rpms: RpmRepository) -> None:
    """Check that repomd.xml without a signature is refused, unless none is required."""
    (rpms.repodata / "repomd.xml.asc").unlink()
    assert "repomd.xml is not signed" in complaint(rpms, Refused)
    assert rpms.open(keyring=UNSIGNED).versions("tool")


def test_unknown_key_is_not_no_key(rpms: RpmRepository) -> None:
    assert "no key is known for" in complaint(rpms, InvalidInput, keyring=None)


def test_wrong_signature(rpms: RpmRepository) -> None:
    """Check that a changed repomd.xml is refused."""
    target = rpms.repodata / "repomd.xml"
    target.write_bytes(target.read_bytes().replace(b"<revision>1", b"<revision>2"))
    assert "repomd.xml is not the file that key" in complaint(rpms, Refused)


def test_rotated_key(rpms: RpmRepository) -> None:
    """Check that a signature of a key that is not pinned is refused."""
    with signing_key() as other:
        content = (rpms.repodata / "repomd.xml").read_bytes()
        (rpms.repodata / "repomd.xml.asc").write_bytes(other.detached(content))
        assert f"signed by key {other.fingerprint[-16:]}, which is not in" in complaint(rpms, Refused)


def test_expired_key(rpms: RpmRepository) -> None:
    """Check that a signature of an expired key is refused."""
    with signing_key(["--faked-system-time", "20240102T000000!"], expires="1d") as expired:
        content = (rpms.repodata / "repomd.xml").read_bytes()
        (rpms.repodata / "repomd.xml.asc").write_bytes(expired.detached(content))
        assert "which has expired on 2024-01-03" in complaint(rpms, Refused, keyring=expired.binary())


def test_named_file_gone(rpms: RpmRepository) -> None:
    """Check that a missing file that repomd.xml names is refused."""
    next(rpms.repodata.glob("*-primary.xml.gz")).unlink()
    said = complaint(rpms, Refused)
    assert "-primary.xml.gz is named by repomd.xml but is gone (404)" in said


def test_wrong_checksum_and_size(rpms: RpmRepository) -> None:
    target = next(rpms.repodata.glob("*-primary.xml.gz"))
    whole = target.read_bytes()
    target.write_bytes(bytes(reversed(whole)))
    assert "has SHA256" in complaint(rpms, Refused)
    target.write_bytes(whole[:-1])
    assert f"has {len(whole) - 1} bytes; expected {len(whole)}" in complaint(rpms, Refused)


@pytest.mark.parametrize(
    ("primary", "said"),
    [
        (b"<metadata", "is not XML"),
        (b"<metadata xmlns='http://linux.duke.edu/metadata/common'><package/></metadata>", "a package in"),
    ],
)
def test_primary_that_is_none(rpms: RpmRepository, key: SigningKey, primary: bytes, said: str) -> None:
    mirror_rpm.write_repodata(rpms.repodata, {"primary": primary}, key)
    assert said in complaint(rpms, InvalidInput)


def test_primary_cut_off_before_it_was_signed(rpms: RpmRepository, key: SigningKey) -> None:
    _swap_primary(rpms, key, ".gz", lambda plain: gzip.compress(plain)[:20])
    assert "cannot be unpacked" in complaint(rpms, Refused)


def test_zstandard_needs_no_program(rpms: RpmRepository, key: SigningKey) -> None:
    """Read zstd without a program for it: newer versions of createrepo_c compress with zstd."""
    before = [package.version for package in rpms.open().versions("driver")]
    _swap_primary(rpms, key, ".zst", zstd.compress)
    assert [package.version for package in rpms.open().versions("driver")] == before


def _swap_primary(rpms: RpmRepository, key: SigningKey, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """Replace primary.xml with another compression of it, and sign a repomd.xml that names the new file."""
    old = next(rpms.repodata.glob("*-primary.xml.gz"))
    packed = pack(gzip.decompress(old.read_bytes()))
    new = old.with_suffix(suffix)
    words = {
        f'"repodata/{old.name}"': f'"repodata/{new.name}"',
        f">{hashlib.sha256(old.read_bytes()).hexdigest()}<": f">{hashlib.sha256(packed).hexdigest()}<",
        f"<size>{old.stat().st_size}<": f"<size>{len(packed)}<",
    }
    new.write_bytes(packed)
    text = (rpms.repodata / "repomd.xml").read_text()
    for before, after in words.items():
        text = text.replace(before, after)
    (rpms.repodata / "repomd.xml").write_text(text)
    (rpms.repodata / "repomd.xml.asc").write_bytes(key.detached(text.encode()))


def test_repomd_without_primary(rpms: RpmRepository, key: SigningKey) -> None:
    """Check that a repomd.xml that names no list of packages is refused."""
    mirror_rpm.write_repodata(rpms.repodata, {"other": b"<otherdata/>"}, key)
    assert "names no primary" in complaint(rpms, InvalidInput)


@pytest.mark.parametrize(
    "href", ["../secret", "repodata/../../secret", "/etc/hostname", "%2e%2e/secret", "file:///etc/x", "a?b"]
)
def test_no_file_outside_of_the_repository_is_read(rpms: RpmRepository, key: SigningKey, href: str) -> None:
    old = next(rpms.repodata.glob("*-primary.xml.gz"))
    text = (rpms.repodata / "repomd.xml").read_text().replace(f'"repodata/{old.name}"', f'"{href}"')
    (rpms.repodata / "repomd.xml").write_text(text)
    (rpms.repodata / "repomd.xml.asc").write_bytes(key.detached(text.encode()))
    assert "expected a path inside of the repository" in complaint(rpms, Refused)


@pytest.mark.parametrize("modules", [b"document: modulemd\ndata: [", b"document: modulemd\nversion: 2\n"])
def test_modules_that_are_none(rpms: RpmRepository, key: SigningKey, modules: bytes) -> None:
    primary = b"<metadata xmlns='http://linux.duke.edu/metadata/common'/>"
    mirror_rpm.write_repodata(rpms.repodata, {"primary": primary, "modules": modules}, key)
    assert "modules.yaml cannot be read" in complaint(rpms, InvalidInput)


def test_repository_without_streams(mirror: nvidia.Mirror, fetcher: Fetcher) -> None:
    """Check that versions of a system without module streams are offered without one."""
    index = sources.nvidia(mirror.cuda(), "rhel10", "x86_64", "rpm", mirror.key).open("x86_64", fetcher)
    offered = [package.version for package in index.versions("nvidia-open")]
    assert offered[-1] == "3:580.95.05-1.el10"
    assert not any(package.streams for package in index.versions("nvidia-open"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "a: *b",
        "- a",
        "document: modulemd",
        "\x00",
        "{document: modulemd, data: {artifacts: 1}}",
        "{document: modulemd, data: {name: [a], stream: b}}",
        "{document: modulemd, data: {name: a, stream: {b: c}}}",
        "{document: modulemd, data: {name: a, stream: b, artifacts: {rpms: [[c]]}}}",
    ],
)
def test_a_broken_list_of_modules_is_one_line(text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"^https://x: modules\.yaml cannot be read: .*; expected modulemd documents"
    ):
        _streams(text.encode(), "https://x")


def test_lists_of_modules_are_read_as_texts() -> None:
    """Check that a stream is no number, and that keys of one hash do not take the square of their number."""
    module = "document: modulemd\ndata: {name: driver, stream: 570.10, artifacts: {rpms: [a-1.x86_64]}}\n"
    same_hash = "".join(f"{number * ((1 << 61) - 1)}: x\n" for number in range(20_000))
    begun = time.process_time()
    assert _streams((module + same_hash).encode(), "https://x") == {"a-1.x86_64": {"driver:570.10"}}
    assert time.process_time() - begun < 5
