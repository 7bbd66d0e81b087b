"""Apt repositories: valid ones, and each kind of fault with its message."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, Refused, Unreachable
from gpuprov.locking.repository.apt import open_apt
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Relation
from gpuprov.untrusted.openpgp import UNSIGNED
from gpuprov_lab.mirror import apt as mirror_apt
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import SigningKey, signing_key
from tests.unit.locking.repository.built_repositories import Suite

Rebuild = Callable[..., Suite]


def complaint(suite: Suite, kind: type[GpuprovError], /, **changes: object) -> str:
    """Open a suite with changed arguments; return the message of the expected error."""
    with pytest.raises(kind) as caught:
        suite.open(**changes)
    return str(caught.value)


def test_versions_newest_first_without_foreign_architectures(suite: Suite) -> None:
    index = suite.open()
    assert [package.version for package in index.versions("tool")] == ["1:9.10-1", "1:9.9-1"]
    assert index.versions("foreign") == []
    assert index.versions("library")[0].architecture == "all"


def test_package_as_its_stanza_says(suite: Suite) -> None:
    """Check relations, size, digest and repository of a package in the index."""
    package = suite.open().candidate("tool")
    content = (suite.root / package.filename).read_bytes()
    assert package.depends == ((Relation("library", ">=", "2"),),)
    assert (package.size, package.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert package.repository == suite.root.as_uri()


@pytest.mark.parametrize(("upstream", "version"), [(None, "1:9.10-1"), ("9.9", "1:9.9-1"), ("9", "1:9.10-1")])
def test_candidate(suite: Suite, upstream: str | None, version: str) -> None:
    """Check the newest version that a suite offers for an upstream version."""
    assert suite.open().candidate("tool", upstream).version == version


def test_no_such_version_lists_those_there_are(suite: Suite) -> None:
    with pytest.raises(Refused) as caught:
        suite.open().candidate("tool", "9.1")
    assert str(caught.value) == f"no tool 9.1 in {suite.root.as_uri()}; expected one of 1:9.10-1, 1:9.9-1"


def test_no_such_package(suite: Suite) -> None:
    """Check the message for a package that the suite does not have."""
    with pytest.raises(Refused, match="no package nothing in file:"):
        suite.open().candidate("nothing")


def test_flat_repository(mirror: nvidia.Mirror, fetcher: Fetcher) -> None:
    """Check that a repository without suites, as NVIDIA's, is read."""
    url = mirror.cuda().format(folder="debian12", arch="x86_64")
    index = open_apt(url, "/", [], "amd64", mirror.key, fetcher=fetcher)
    assert index.candidate("nvidia-driver-cuda", "580.95.05").version == "580.95.05-1"


def test_release_with_signature_beside_it(suite: Suite) -> None:
    (suite.folder / "InRelease").unlink()
    assert suite.open().versions("tool")


def test_unsigned_is_taken_only_when_said(suite: Suite) -> None:
    """Check that a suite without signatures is refused, unless none is required."""
    (suite.folder / "InRelease").unlink()
    (suite.folder / "Release.gpg").unlink()
    assert "is not signed" in complaint(suite, Refused)
    assert suite.open(keyring=UNSIGNED).versions("tool")


@pytest.mark.parametrize("left", [".xz", ".gz", ""])
def test_any_compression_will_do(suite: Suite, left: str) -> None:
    shutil.rmtree(suite.packages / "by-hash")
    for suffix in {".xz", ".gz", ""} - {left}:
        (suite.packages / f"Packages{suffix}").unlink()
    assert suite.open().versions("tool")


def test_by_hash_survives_a_mirror_that_moves_on(suite: Suite) -> None:
    for name in ("Packages", "Packages.gz", "Packages.xz"):
        (suite.packages / name).write_bytes(b"of tomorrow")
    assert suite.open().versions("tool")


def test_named_file_gone(suite: Suite) -> None:
    """Check that a missing index that Release names is refused."""
    shutil.rmtree(suite.packages)
    said = complaint(suite, Refused)
    assert "main/binary-amd64/Packages.xz is named by the Release file but is gone (404)" in said
    assert "sync the mirror again: it is incomplete" in said


def test_empty_component_need_not_be_there(tmp_path: Path, key: SigningKey, fetcher: Fetcher) -> None:
    """Accept a component without files, as in Debian's security suites; apt stores no file for it either."""
    mirror_apt.build_suite(tmp_path, "stable", {"main": []}, "amd64", key)
    shutil.rmtree(tmp_path / "dists/stable/main")
    index = open_apt(tmp_path.as_uri(), "stable", ["main"], "amd64", key.binary(), fetcher=fetcher)
    assert index.names() == set()


def test_wrong_checksum(suite: Suite) -> None:
    """Check that an index with another checksum is refused."""
    shutil.rmtree(suite.packages / "by-hash")
    target = suite.packages / "Packages.xz"
    target.write_bytes(bytes(reversed(target.read_bytes())))
    assert "as its index says" in complaint(suite, Refused)


def test_wrong_size(suite: Suite) -> None:
    """Check that an index with another size is refused, with both sizes."""
    shutil.rmtree(suite.packages / "by-hash")
    target = suite.packages / "Packages.xz"
    target.write_bytes(target.read_bytes()[:-7])
    assert f"has {target.stat().st_size} bytes; expected {target.stat().st_size + 7}" in complaint(
        suite, Refused
    )


def test_truncated_before_it_was_signed(rebuild: Rebuild) -> None:
    suite = rebuild(change=_cut_short)
    cut = (suite.packages / "Packages.xz").read_bytes()[:60]
    (suite.packages / "Packages.xz").write_bytes(cut)
    _sign_anew(suite, rebuild, cut)
    assert "Packages.xz cannot be unpacked" in complaint(suite, Refused)


def _cut_short(release: bytes) -> bytes:
    """Return a Release file that names only Packages.xz."""
    lines = release.decode().splitlines()
    kept = [line for line in lines if not line.endswith(("/Packages", "/Packages.gz"))]
    return ("\n".join(line for line in kept if "By-Hash" not in line) + "\n").encode()


def _sign_anew(suite: Suite, rebuild: Rebuild, content: bytes) -> None:
    """Replace the package index and sign a Release file that has only its hash."""
    row = f" {hashlib.sha256(content).hexdigest()} {len(content)} main/binary-amd64/Packages.xz"

    def change(release: bytes) -> bytes:
        head = _cut_short(release).decode().partition("SHA256:")[0]
        return f"{head}SHA256:\n{row}\n".encode()

    rebuild(change=change)
    (suite.packages / "Packages.xz").write_bytes(content)


def test_unknown_suite(suite: Suite) -> None:
    """Check the message for a suite that the mirror does not have."""
    said = complaint(suite, InvalidInput, suite="unstable")
    assert "no InRelease or Release at" in said
    assert "the suite 'unstable'" in said


def test_not_a_repository(suite: Suite) -> None:
    """Check the message for a URL that is no apt repository."""
    assert "expected an apt repository" in complaint(suite, InvalidInput, url=suite.packages.as_uri())


def test_page_of_a_portal_instead_of_release(suite: Suite) -> None:
    (suite.folder / "InRelease").write_bytes(b"<html>Please log in</html>")
    assert "is not signed" in complaint(suite, Refused)
    assert "has no Release file with SHA256 sums" in complaint(suite, InvalidInput, keyring=UNSIGNED)


def test_unknown_component_and_architecture(suite: Suite) -> None:
    said = complaint(suite, InvalidInput, components=["non-free"])
    assert "no packages for non-free amd64; expected a component of main and an architecture of amd64" in said
    assert "no packages for main riscv64" in complaint(suite, InvalidInput, architecture="riscv64")


def test_stale(rebuild: Rebuild) -> None:
    """Check that a Release file that has expired is refused, and is read at an earlier time."""
    today = datetime.now(UTC)
    written, until = (format_datetime(today - timedelta(days=days), usegmt=True) for days in (3, 1))
    suite = rebuild(Date=written, Valid_Until=until)
    assert f"expired at {until}" in complaint(suite, Refused)
    assert suite.open(now=today - timedelta(days=2)).versions("tool")


def test_from_the_future(rebuild: Rebuild) -> None:
    """Check that a Release file with a date in the future is refused."""
    suite = rebuild(Date=format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True))
    assert "which is in the future; check the clock here" in complaint(suite, Refused)


def test_date_that_is_none(rebuild: Rebuild) -> None:
    assert "'tomorrow' in Release" in complaint(rebuild(Valid_Until="tomorrow"), InvalidInput)


def test_rotated_key(suite: Suite, rebuild: Rebuild) -> None:
    """Check that a signature of a key that is not pinned is refused, and accepted with that key."""
    with signing_key() as other:
        suite = rebuild(other)
        assert f"signed by key {other.fingerprint[-16:]}, which is not in the keys given" in complaint(
            suite, Refused
        )
        assert suite.open(keyring=suite.keyring + other.binary()).versions("tool")


def test_expired_key(rebuild: Rebuild) -> None:
    """Check that a signature of an expired key is refused."""
    with signing_key(["--faked-system-time", "20240102T000000!"], expires="1d") as expired:
        suite = rebuild(expired)
        said = complaint(suite, Refused, keyring=expired.binary())
    assert f"signed by key {expired.fingerprint[-16:]}, which has expired on 2024-01-03" in said
    assert "take the repository's current key" in said


def test_sha1_signature(rebuild: Rebuild) -> None:
    """Check that a signature with SHA-1 is refused."""
    with signing_key(["--digest-algo", "SHA1"]) as weak:
        assert "signed with SHA-1, which is broken" in complaint(
            rebuild(weak), Refused, keyring=weak.binary()
        )


def test_text_changed_under_the_signature(suite: Suite) -> None:
    for name in ("InRelease", "Release"):
        text = (suite.folder / name).read_bytes()
        (suite.folder / name).write_bytes(text.replace(b"Suite: stable", b"Suite: stale_"))
    assert "not the file that key" in complaint(suite, Refused)
    (suite.folder / "InRelease").unlink()
    assert "not the file that key" in complaint(suite, Refused)


def test_text_before_the_signed_text_is_refused(suite: Suite) -> None:
    """Refuse an index with another Release text before the signed one, as apt does."""
    target = suite.folder / "InRelease"
    target.write_bytes(b"Suite: forged\nSHA256:\n\n" + target.read_bytes())
    assert "InRelease is not signed" in complaint(suite, Refused)


def test_unknown_key_is_not_no_key(suite: Suite) -> None:
    said = complaint(suite, InvalidInput, keyring=None)
    assert said.startswith(f"no key is known for {suite.root.as_uri()}/; name the repository's key file")


def test_armored_keyring(suite: Suite, key: SigningKey) -> None:
    """Check that a keyring in text form is accepted."""
    assert suite.open(keyring=key.public).versions("tool")


def test_keyring_file_missing(suite: Suite) -> None:
    """Check the message for a key file that does not exist."""
    said = complaint(suite, InvalidInput, keyring=suite.root / "none.gpg")
    assert said.endswith("none.gpg: No such file or directory; name the repository's key file")


def test_stanza_without_version(rebuild: Rebuild) -> None:
    """Check that a list of packages with an entry without a version is refused."""
    content = gzip.compress(b"Package: tool\nArchitecture: amd64\n", mtime=0)
    row = f" {hashlib.sha256(content).hexdigest()} {len(content)} main/binary-amd64/Packages.gz"
    suite = rebuild(change=lambda text: text.partition(b"SHA256:")[0] + f"SHA256:\n{row}\n".encode())
    shutil.rmtree(suite.packages)
    suite.packages.mkdir()
    (suite.packages / "Packages.gz").write_bytes(content)
    assert "a stanza without Package or Version" in complaint(suite, InvalidInput)


def test_unreadable_number_is_no_traceback(suite: Suite, rebuild: Rebuild) -> None:
    content = b"Package: tool\nVersion: 1\nArchitecture: amd64\nSize: many\n"
    row = f" {hashlib.sha256(content).hexdigest()} {len(content)} main/binary-amd64/Packages"
    suite = rebuild(change=lambda text: text.partition(b"SHA256:")[0] + f"SHA256:\n{row}\n".encode())
    shutil.rmtree(suite.packages)
    suite.packages.mkdir()
    (suite.packages / "Packages").write_bytes(content)
    with pytest.raises(InvalidInput, match="the stanza of 'tool'"):
        suite.open().versions("tool")


def test_no_route(suite: Suite) -> None:
    """Check the message for a mirror that refuses the connection."""
    said = complaint(suite, Unreachable, url="http://127.0.0.1:9/debian")
    assert said.startswith(
        "127.0.0.1:9 gives no complete answer for http://127.0.0.1:9/debian/dists/stable/InRelease"
    )
    assert "Connection refused" in said


def test_url_of_no_kind(suite: Suite) -> None:
    assert "expected http:, https: or file:" in complaint(suite, InvalidInput, url="ftp://127.0.0.1/debian")
