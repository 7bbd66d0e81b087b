"""Locations of repositories, and the keys that may sign them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository import sources
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.sources import AptSource, archive, parse_sources
from gpuprov.untrusted.openpgp import armored, fingerprints, other_contents
from gpuprov.untrusted.signature import verify_detached
from gpuprov_lab.mirror import nvidia as nvidia_mirror
from gpuprov_lab.mirror.key import SigningKey, signing_key

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEB822 = """\
# As the installer writes it.
Types: deb deb-src
URIs: http://mirror.site/debian/
Suites: bookworm bookworm-updates
Components: main non-free
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.site/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://other.site/
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
# deb http://old.site/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.site/debian bookworm main non-free # the fast one
deb-src http://mirror.site/debian bookworm main
deb [trusted=yes] file:/srv/mirror ./
"""


def test_deb822_format() -> None:
    """Check the sources in a file of the format deb822."""
    assert [(source.uri, source.suite) for source in parse_sources(DEB822)] == [
        ("http://mirror.site/debian", "bookworm"),
        ("http://mirror.site/debian", "bookworm-updates"),
        ("http://mirror.site/debian-security", "bookworm-security"),
    ]


def test_one_line_format() -> None:
    """Check the sources in a file with one line for each."""
    assert parse_sources(ONE_LINE) == [
        AptSource("http://mirror.site/debian", "bookworm", ("main", "non-free"), "/k.gpg"),
        AptSource("file:/srv/mirror", "./", (), trusted=True),
    ]


def test_embedded_key() -> None:
    """Check that a key in the file itself is read."""
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQEN\n"
    text = f"Types: deb\nURIs: http://a\nSuites: x\nComponents: main\n{key}"
    assert parse_sources(text)[0].signed_by == "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQEN"


@pytest.mark.parametrize(
    ("repository", "url", "suites"),
    [
        ("debian", "http://mirror.site/debian", ("trixie",)),
        ("debian-updates", "http://mirror.site/debian", ("trixie-updates",)),
        ("debian-security", "http://mirror.site/debian-security", ("trixie-security",)),
    ],
)
def test_archive_of_another_release_at_the_same_mirror(
    repository: str, url: str, suites: tuple[str, ...]
) -> None:
    found = archive(repository, "trixie", ["main"], parse_sources(DEB822), "bookworm", keyring=KEYRING)
    assert (found.url, found.suites, found.keyring) == (url, suites, KEYRING)


def test_a_stranger_with_the_same_suite_is_not_the_archive() -> None:
    stranger = AptSource("http://stranger.site", "bookworm", ("main",), "/usr/share/keyrings/stranger.gpg")
    found = archive(
        "debian", "bookworm", ["main"], [stranger, *parse_sources(DEB822)], "bookworm", keyring=KEYRING
    )
    assert found.url == "http://mirror.site/debian"


def test_machine_without_the_archive() -> None:
    with pytest.raises(InvalidInput, match=r"the suite noble .* repositories: {ubuntu: URL}"):
        archive("ubuntu", "noble", ["main"], parse_sources(DEB822), "noble", keyring=KEYRING)


def test_unknown_archive() -> None:
    """Check that an archive of an unknown name is refused."""
    with pytest.raises(InvalidInput, match="expected one of debian, debian-updates"):
        archive("slackware", "15", [], [], "15", keyring=KEYRING)


def test_keys_of_a_node_are_read_by_the_caller() -> None:
    found = archive(
        "debian",
        "bookworm",
        [],
        parse_sources(DEB822),
        "bookworm",
        keyring=KEYRING,
        read_key=lambda path: path.encode(),
    )
    assert found.keyring == str(KEYRING).encode()


def test_trusted_and_embedded_keys() -> None:
    trusted = AptSource("http://a", "bookworm", ("main",), trusted=True)
    assert archive("debian", "bookworm", [], [trusted], "bookworm", keyring=KEYRING).keyring == "unsigned"
    embedded = AptSource("http://a", "bookworm", ("main",), "-----BEGIN PGP PUBLIC KEY BLOCK-----")
    found = archive("debian", "bookworm", [], [embedded], "bookworm", keyring=KEYRING)
    assert found.keyring == b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


@pytest.mark.parametrize(
    ("folder", "arch", "manager", "url", "suites"),
    [
        ("debian12", "x86_64", "apt", "http://mirror/repos/debian12/x86_64/", ("/",)),
        ("ubuntu2404", "aarch64", "apt", "http://mirror/repos/ubuntu2404/sbsa/", ("/",)),
        ("rhel9", "aarch64", "rpm", "http://mirror/repos/rhel9/sbsa/", ()),
    ],
)
def test_nvidia(folder: str, arch: str, manager: str, url: str, suites: tuple[str, ...]) -> None:
    """Check URL and suites of NVIDIA's repository for a system."""
    found = sources.nvidia("http://mirror/repos/{folder}/{arch}/", folder, arch, manager, None)  # type: ignore[arg-type]
    assert (found.url, found.suites) == (url, suites)


@pytest.mark.parametrize("manager", ["apt", "rpm"])
def test_container_toolkit(mirror: nvidia_mirror.Mirror, fetcher: Fetcher, manager: str) -> None:
    """Check that the toolkit's repository is opened and offers a version."""
    spec = sources.container_toolkit(mirror.container_toolkit(), "x86_64", manager, mirror.key)  # type: ignore[arg-type]
    assert spec.open("x86_64", fetcher).candidate("nvidia-container-toolkit", "1.18").version == "1.18.1-1"


def test_several_at_once(mirror: nvidia_mirror.Mirror, fetcher: Fetcher) -> None:
    """Check that several repositories are opened as one index, in their order."""
    specs = [
        sources.nvidia(mirror.cuda(), "debian12", "x86_64", "apt", mirror.key),
        sources.container_toolkit(mirror.container_toolkit(), "x86_64", "apt", mirror.key),
    ]
    index = sources.open_all(specs, "x86_64", fetcher)
    assert index.origins == [spec.url.rstrip("/") for spec in specs]


def test_key_that_the_repository_publishes(mirror: nvidia_mirror.Mirror) -> None:
    url, public = (
        mirror.cuda().format(folder="debian12", arch="x86_64") + "3bf863cc.pub",
        mirror.key.read_bytes(),
    )
    [fingerprint] = sources.fingerprints(public)
    assert sources.published_key(url, fingerprint=fingerprint.lower()) == public
    assert sources.published_key(url, sha256=hashlib.sha256(public).hexdigest()) == public
    with pytest.raises(Refused, match=f"has the fingerprint {fingerprint} .*; expected EB69"):
        sources.published_key(url, fingerprint="EB693B3035CD5710E231E123A4B469963BF863CC")
    with pytest.raises(Refused, match="expected a key that the catalog has"):
        sources.published_key(url)
    with pytest.raises(Refused, match="no key at"):
        sources.published_key(url + ".gone", fingerprint=fingerprint)


@pytest.fixture(scope="module")
def other() -> Iterator[SigningKey]:
    """Provide a key that signs no repository."""
    with signing_key() as made:
        yield made


@pytest.mark.parametrize("form", ["binary", "armored", "second-block", "in-front"])
def test_a_key_file_with_another_key_beside_the_pinned_one_is_refused(
    tmp_path: Path, key: SigningKey, other: SigningKey, form: str
) -> None:
    """Refuse other keys in the file: it becomes part of Signed-By, so their holders could sign packages."""
    both = key.binary() + other.binary()
    forms = {
        "binary": both,
        "armored": armored(both).encode(),
        "second-block": key.public + other.public,
        "in-front": other.binary() + key.binary(),
    }
    (tmp_path / "key").write_bytes(forms[form])
    with pytest.raises(Refused) as caught:
        sources.published_key((tmp_path / "key").as_uri(), fingerprint=key.fingerprint)
    said = str(caught.value)
    assert f"has other keys than {key.fingerprint}: {other.fingerprint}; expected only that key" in said
    assert "repositories: {ID: {url: URL, key: FILE}}" in said


def test_subkeys_of_the_pinned_key_are_part_of_it(tmp_path: Path) -> None:
    with signing_key() as made:
        made._gpg(["--passphrase", "", "--quick-add-key", made.fingerprint, "rsa2048", "sign"])
        keys = made.binary()
        (tmp_path / "key").write_bytes(keys)
        assert sources.published_key((tmp_path / "key").as_uri(), fingerprint=made.fingerprint) == keys
        verify_detached(b"text", made.detached(b"text"), keys, "text")  # gpg signs with the newest subkey


def test_a_foreign_key_in_the_clothes_of_a_subkey_verifies_nothing(
    key: SigningKey, other: SigningKey
) -> None:
    """Rely on gpgv for subkeys: it does not use a subkey without a binding signature."""
    foreign = bytearray(other.binary())
    foreign[0] = 0x80 | 14 << 2 | foreign[0] & 3  # the tag of a primary key becomes that of a subkey
    keys = key.binary() + bytes(foreign)
    assert other_contents(keys, key.fingerprint) == []
    with pytest.raises(Refused):
        verify_detached(b"text", other.detached(b"text"), keys, "text")


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (b"\xc6\x03\x05ab", "a key of version 05"),
        (b"\xc5\x03\x04ab", "a packet of tag 5"),
        (b"\xcb\x03\x04ab", "a packet of tag 11"),
    ],
    ids=["version-5", "secret", "literal-data"],
)
def test_what_is_no_part_of_a_public_key_is_beside_it(key: SigningKey, packet: bytes, said: str) -> None:
    assert other_contents(key.binary() + packet, key.fingerprint) == [said]


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"\xc6", b"\xc6\xc0", b"\xc6\xff\0\0", b"\xc6\x05\x04", b"\x9b\x04", b"\xc6\xe1\x04\x04\0"],
    ids=["html", "no-length", "half-length", "half-long", "cut-off", "left-open", "partial"],
)
def test_fingerprint_of_what_is_no_key(content: bytes) -> None:
    """Check that a file without an OpenPGP key is refused."""
    with pytest.raises(InvalidInput, match="an OpenPGP key"):
        fingerprints(content)
