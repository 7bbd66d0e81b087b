"""Archives and compressed modules: data from nodes is unpacked within limits of bytes, files and time.

A few kB can unpack to gigabytes: every function here that unpacks reads at most its limit and one byte, and
then refuses.
"""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Mapping
from pathlib import PurePath

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.untrusted.archives import tar_files

PACKED_LIMIT = 128 << 20
"""Maximum size of an archive of modules in bytes; NVIDIA's have a third of it."""
LIMIT = 512 << 20
"""Maximum size of all modules of a build in bytes, unpacked; NVIDIA's have a fifth of it."""
FILES_LIMIT = 32
"""Maximum number of modules of a build; NVIDIA's driver has five."""
WINDOW = 64 << 20
"""Maximum memory of a decompressor's window in bytes; the kernel's own files need 1 MiB."""
ZSTD_S = 60


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a tar.gz archive of modules; equal modules give equal bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), 6, mtime=0)


def unpack(packed: bytes) -> dict[str, bytes]:
    """Return the files of such an archive; nothing is written to the disk.

    Raises:
        NodeFailed: it is not such an archive, or has more files or bytes than allowed.
    """
    plain = decompressed("an archive of modules", ".gz", packed, LIMIT)
    try:
        return tar_files(plain, FILES_LIMIT)
    except ValueError as error:
        raise NodeFailed(f"an archive of modules that cannot be read: {error}") from None


def decompressed(what: str, suffix: str, content: bytes, limit: int) -> bytes:
    """Return the decompressed content of a file.

    Args:
        what: name of the file for the message.
        suffix: `.gz`, `.xz` or `.zst`; with any other suffix the content is returned unchanged.
        limit: maximum number of decompressed bytes.

    Raises:
        NodeFailed: it is not in that format, exceeds the limit, or this machine has no program for it.
    """
    try:
        plain = _plain(suffix, content, limit)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise NodeFailed(f"{what} cannot be unpacked: {error}") from None
    if len(plain) > limit:
        raise NodeFailed(f"{what} unpacks to more than {limit >> 20} MB", expected="a driver's modules")
    return plain


def _plain(suffix: str, content: bytes, limit: int) -> bytes:
    """Return the decompressed content, at most `limit` + 1 bytes; unchanged with another suffix.

    Raises:
        OSError, EOFError, zlib.error, LZMAError, SubprocessError: it cannot be decompressed.
    """
    match suffix:
        case ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                return file.read(limit + 1)
        case ".xz":
            return _xz(content, limit)
        case ".zst":
            return _zstd(content, limit, "-d", f"--memory={WINDOW}")
    return content


def _xz(content: bytes, limit: int) -> bytes:
    """Return at most `limit` + 1 bytes of decompressed content.

    Raises:
        EOFError: the content is incomplete.
        lzma.LZMAError: it is not in that format, or requires more memory than `WINDOW`.
    """
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW)
    plain = reader.decompress(content, limit + 1)
    while not reader.eof and not reader.needs_input and len(plain) <= limit:
        plain += reader.decompress(b"", limit + 1 - len(plain))
    if not reader.eof and len(plain) <= limit:
        raise EOFError("it ends before its end mark")
    return plain


def compressed(suffix: str, content: bytes) -> bytes:
    """Compress content so that the kernel itself could unpack it; equal content gives equal bytes.

    The kernel's Makefile.modinst compresses in the same way. With a suffix other than `.gz`, `.xz` and `.zst`
    the content is returned unchanged.

    Raises:
        GpuprovError: this machine has no program for that format, or it fails.
    """
    match suffix:
        case ".gz":
            return gzip.compress(content, mtime=0)
        case ".xz":
            window = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
            return lzma.compress(content, check=lzma.CHECK_CRC32, filters=window)
        case ".zst":
            try:
                return _zstd(content, 2 * LIMIT, "-q")
            except (OSError, subprocess.SubprocessError) as error:
                raise GpuprovError(f"a module cannot be compressed: {error}") from None
    return content


def suffix_of(name: str) -> str:
    """Return the suffix of a module's file, which indicates its compression; `.ko` means none."""
    return PurePath(name).suffix


def _zstd(content: bytes, limit: int, *options: str) -> bytes:
    """Run zstd and read at most `limit` + 1 bytes of its output.

    Raises:
        OSError: zstd is not installed.
        subprocess.SubprocessError: it fails, or takes longer than `ZSTD_S`.
    """
    program = shutil.which("zstd")
    if program is None:
        raise OSError("no program zstd on this machine; install zstd")
    words, pipe = [program, *options, "-c"], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        late = threading.Timer(ZSTD_S, process.kill)
        late.start()
        feeding = threading.Thread(target=_feed, args=(process, content), daemon=True)
        feeding.start()
        plain = b"" if process.stdout is None else process.stdout.read(limit + 1)
        if len(plain) > limit:
            process.kill()
        process.wait()
        late.cancel()
        feeding.join()
    if process.returncode and len(plain) <= limit:
        raise subprocess.SubprocessError(f"zstd ended with {process.returncode}")
    return plain


def _feed(process: subprocess.Popen[bytes], content: bytes) -> None:
    """Write content to a process's standard input, and close it; ignore that the process ends before."""
    try:
        with process.stdin as stdin:  # type: ignore[union-attr]
            stdin.write(content)
    except BrokenPipeError:  # zstd has ended; its exit code is checked
        pass
