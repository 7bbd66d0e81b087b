"""Hostile content from mirrors, nodes and files: only documented errors are raised, and invariants hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from gpuprov.bootstrap.hostkeys import HostKeys
from gpuprov.catalog.releases import FILE, VERSION, read_manifest
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.inventory.exports.node import PROCESSORS as MOST
from gpuprov.inventory.exports.node import numbers, ranges
from gpuprov.locking.catalogs.refresh.gpu_lists import parse_json, parse_readme
from gpuprov.locking.catalogs.sources import read_wheel
from gpuprov.locking.repository.release import read_release
from gpuprov.locking.repository.rpm import open_rpm
from gpuprov.locking.repository.unpack import UNPACK, unpack
from gpuprov.ssh.known_hosts import read_known_hosts
from gpuprov.untrusted.openpgp import UNSIGNED, armored, binary, fingerprints, other_contents
from tests.unit.hostile import strategies as hostile

WHATEVER = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


class OneFile:
    """Fake fetcher that returns the same content for every address."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def get(self, url: str, **_: object) -> bytes:
        return self.content


@contextmanager
def documented() -> Iterator[None]:
    """Allow only gpuprov's own errors, with messages that can be printed."""
    try:
        yield
    except GpuprovError as error:
        str(error).encode("utf-8", "surrogateescape")
        assert error.seen  # noqa: PT017


@WHATEVER
@given(hostile.RELEASES)
def test_release_files(content: bytes) -> None:
    """Check that any Release file is read with valid sizes and digests, or refused with a
    documented error.
    """
    fetcher: Any = OneFile(content)
    with documented():
        release = read_release("http://mirror/", "stable", UNSIGNED, fetcher)
        assert b"stable" in content
        assert all(size >= 0 and len(sha256) == 64 for size, sha256 in release.files.values())


@WHATEVER
@given(hostile.REPOMDS)
def test_repomd(content: bytes) -> None:
    """Check that any repomd.xml is read, or refused with a documented error."""
    fetcher: Any = OneFile(content)
    with documented():
        open_rpm("http://mirror/", "x86_64", UNSIGNED, fetcher=fetcher)


@WHATEVER
@given(hostile.KEYRINGS)
def test_keyrings(content: bytes) -> None:
    """Check that any key file is read, survives armor, and gives fingerprints of 40 digits, or is refused."""
    with documented():
        found = fingerprints(content)
        assert binary(armored(content).encode()) == binary(content)
        for each in found:
            assert len(each) == 40
            assert len(other_contents(content, each)) >= len(found) - 1


@WHATEVER
@given(hostile.MANIFESTS)
def test_manifests_of_catalogs(content: bytes) -> None:
    """Check that any manifest gives a version and plain names of files, or is refused."""
    with documented():
        said = read_manifest(content, "here")
        assert VERSION.fullmatch(said["version"])
        assert all(FILE.fullmatch(name) for name in set(said) - {"version", "format"})


@WHATEVER
@given(hostile.BYTES | hostile.WHEELS)
def test_wheels_of_catalogs(content: bytes) -> None:
    """Check that any wheel gives names without a folder, or is refused."""
    with documented():
        assert all("/" not in name for name in read_wheel(content, "here"))


@WHATEVER
@given(hostile.GPU_LISTS)
def test_lists_of_gpus(text: str) -> None:
    """Check that any list of GPUs gives devices of 4 digits, or is refused."""
    for read in (lambda: list(parse_json(text, "here")), lambda: list(parse_readme(text))):
        with documented():
            assert all(len(gpu.device) == 4 for gpu in read())


@WHATEVER
@given(hostile.BYTES)
def test_packed_files(content: bytes) -> None:
    """Check that an unpacked file has exactly the stated size, or is refused."""
    for suffix in UNPACK:
        with documented():
            assert len(unpack(content, suffix, "Packages", 50)) == 50


@WHATEVER
@given(hostile.KNOWN_HOSTS)
def test_known_hosts_files(content: bytes) -> None:
    """Check that any known_hosts file is read, or refused with a documented error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "known_hosts")
        path.write_bytes(content)
        with documented():
            found = read_known_hosts(path)
            found.complaint()
            for names in (("gpu01",), ("[gpu01]:2222", "gpu01"), ("",)):
                for key in found.keys(*names).values():
                    assert found.revocation(key, *names) is None


@WHATEVER
@given(hostile.HOST_KEYS)
def test_what_is_pinned_can_be_read_again(line: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "known_hosts")
        try:
            left_out = HostKeys(path, None).pin("gpu01", 22, [line])
        except GpuprovError as error:
            pytest.fail(f"a node's line kept its host key from being pinned: {error}")
        if left_out:
            assert not path.exists()
            return
        assert read_known_hosts(path).broken == {}
        assert HostKeys(path, None).knows("gpu01", 22)
        assert path.read_text().count("\n") == 1


@WHATEVER
@given(hostile.PROCESSORS)
def test_lists_of_processors(text: str) -> None:
    """Check that any list of processors gives numbers within the limit, or NodeFailed."""
    try:
        found = numbers(text)
    except NodeFailed:
        return
    assert len(found) <= MOST
    assert not found or 0 <= min(found) <= max(found) < MOST
    assert numbers(ranges(found)) == sorted(set(found))


def test_a_documented_error_is_one_of_ours() -> None:
    with documented():
        raise InvalidInput("something")
    with pytest.raises(ValueError, match="theirs"), documented():
        raise ValueError("theirs")
