"""Files in zip archives: what the archive states about their sizes is not believed."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.locking.catalogs.sources import INSIDE, read_wheel
from gpuprov.untrusted.archives import read_member

METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def packed(method: str, content: bytes, name: str = "file", stated: int | None = None) -> bytes:
    """Return an archive with one file, whose stated size can be false."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", METHODS[method]) as archive:
        archive.writestr(name, content)
    text = buffer.getvalue()
    if stated is None:
        return text
    size = len(content).to_bytes(4, "little")
    return text.replace(size, stated.to_bytes(4, "little"))


@pytest.mark.parametrize("method", ["stored", "deflated"])
def test_a_file_up_to_the_limit(method: str) -> None:
    with zipfile.ZipFile(io.BytesIO(packed(method, b"x" * 1000))) as archive:
        assert read_member(archive, "file", 1000) == b"x" * 1000
        with pytest.raises(ValueError, match="file is larger than"):
            read_member(archive, "file", 999)
        with pytest.raises(KeyError):
            read_member(archive, "other", 999)


@pytest.mark.parametrize("method", ["bzip2", "lzma"])
def test_a_file_that_zipfile_unpacks_at_once_is_refused(method: str) -> None:
    with (
        zipfile.ZipFile(io.BytesIO(packed(method, b"x" * 100))) as archive,
        pytest.raises(ValueError, match="expected stored or deflated"),
    ):
        read_member(archive, "file", 1000)


@pytest.mark.parametrize("method", ["deflated", "bzip2", "lzma"])
def test_a_wheel_that_states_small_sizes_takes_little_memory(method: str) -> None:
    wheel = packed(method, bytes(60_000_000), f"{INSIDE}/manifest.json", stated=1000)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"^catalog\.whl: "):
            read_wheel(wheel, "catalog.whl")
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
