"""Compressed files that unpack to more than expected."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable

import pytest

from gpuprov.errors import Refused
from gpuprov.locking.repository import unpack as module
from gpuprov.locking.repository.unpack import unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZEROS = bytes(50_000_000)
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstd.compress,
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("size", [None, 1_000_000], ids=["of-no-stated-size", "of-stated-size"])
def test_a_bomb_is_unpacked_to_its_limit_and_no_further(
    monkeypatch: pytest.MonkeyPatch, suffix: str, size: int | None
) -> None:
    monkeypatch.setattr(module, "LIMIT", 2_000_000)
    limit = size or 2_000_000
    with pytest.raises(Refused, match=f"Packages unpacks to more than {limit}; expected {limit} bytes"):
        unpack(PACK[suffix](ZEROS), suffix, "Packages", size)


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_the_stated_size_is_the_size(suffix: str) -> None:
    packed = PACK.get(suffix, bytes)(b"plain")
    assert unpack(packed, suffix, "Packages", 5) == unpack(packed, suffix, "Packages") == b"plain"
    with pytest.raises(Refused, match="unpacks to 5; expected 6 bytes, as its index says"):
        unpack(packed, suffix, "Packages", 6)


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_a_size_below_zero_is_no_licence(suffix: str) -> None:
    """Refuse sizes below zero, which readers take as no limit."""
    with pytest.raises(Refused, match="unpacks to more than 0"):
        unpack(PACK.get(suffix, bytes)(b"plain"), suffix, "Packages", -2)


def test_several_streams_in_a_row_are_one_file() -> None:
    """Read concatenated streams, which parallel compressors write."""
    for suffix, pack in PACK.items():
        assert unpack(pack(b"one ") + pack(b"two"), suffix, "Packages", 7) == b"one two"


@pytest.mark.parametrize("suffix", PACK)
def test_what_is_cut_off_or_no_such_file_is_refused(suffix: str) -> None:
    for packed in (PACK[suffix](b"plain")[:-1], b"no such file"):
        with pytest.raises(Refused, match=r"^Packages cannot be unpacked: .*; expected a whole"):
            unpack(packed, suffix, "Packages")
