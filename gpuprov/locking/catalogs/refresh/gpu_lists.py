"""Lists of GPUs in driver packages: supported-gpus.json, or the appendix of README.txt."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO

from debian.arfile import ArError
from debian.debfile import DebError, DebFile

from gpuprov.catalog.version import version
from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.catalogs.refresh.seen import GpuList, ListedGpu
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Package
from gpuprov.untrusted.parsing import read_json

LARGEST = 20_000_000
"""Maximum size of an uncompressed list in bytes; the README of 550 has 700,000."""
_NAMES = ("supported-gpus.json", "README.txt")
_ROW = re.compile(
    r"^ {1,4}(?P<name>\S.{0,120}?) {2,}(?P<device>[0-9A-F]{4})(?: [0-9A-F]{4} [0-9A-F]{4})?(?= |$)",
    re.MULTILINE,
)
_LEGACY = re.compile(
    r"^The (?P<branch>\d{1,4})\.[\d.x]+ driver supports the following set of GPUs:", re.MULTILINE
)
_BEGIN, _END = "Appendix A. Supported NVIDIA GPU Products", "Appendix B."


def gpu_list(package: Package, release: str) -> GpuList | None:
    """Return the list in a Debian package; None if it has none, or is of another packaging system.

    Args:
        release: the driver of the list.

    Raises:
        InvalidInput: the list cannot be parsed.
        Refused: the repository lacks the package, or as for `Fetcher.get`.
        Unreachable: as for `Fetcher.get`.
    """
    if not package.filename.endswith(".deb"):
        return None
    url = f"{package.repository.rstrip('/')}/{package.filename}"
    content = Fetcher().get(url, size=package.size, sha256=package.sha256)
    if content is None:
        raise Refused(f"{url} is named by its index but is gone (404)", do="try again in a few minutes")
    try:
        text, name = _member(content)
    except (ArError, DebError, tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{url}: {error}", expected="a Debian package") from error
    if not name:
        return None
    gpus = parse_json(text, url) if name.endswith(".json") else parse_readme(text)
    return GpuList(version(release), f"{package.name} {package.version}", tuple(gpus))


def _member(content: bytes) -> tuple[str, str]:
    """Return text and name, without `.gz`, of the first list in a package; both are empty if it has none.

    The text is cut at `LARGEST` bytes.
    """
    with DebFile(fileobj=BytesIO(content)).data.tgz() as data:
        files = {
            member.name.rsplit("/", 1)[-1].removesuffix(".gz"): member for member in data if member.isfile()
        }
        for name in _NAMES:
            if name in files and (stream := data.extractfile(files[name])):
                packed = files[name].name.endswith(".gz")
                whole = gzip.GzipFile(fileobj=stream).read(LARGEST) if packed else stream.read(LARGEST)
                return whole.decode("utf-8", errors="replace"), name
    return "", ""


def parse_json(text: str, name: str) -> Iterator[ListedGpu]:
    """Yield the devices of a supported-gpus.json; an id that is not four hexadecimal digits is left out.

    Raises:
        InvalidInput: it has another format.
    """
    try:
        for chip in read_json(text, 4 * LARGEST)["chips"]:
            device = chip["devid"].upper().removeprefix("0X")
            legacy = re.match(r"\d{1,4}(?=\.)", chip.get("legacybranch", ""))
            if re.fullmatch(r"[0-9A-F]{4}", device):
                yield ListedGpu(device, str(chip["name"]), int(legacy[0]) if legacy else None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{name}: supported-gpus.json: {error!r}", expected='{"chips": [{"devid": …}]}'
        ) from None


def parse_readme(text: str) -> Iterator[ListedGpu]:
    """Yield the devices of the appendix "Supported NVIDIA GPU Products" of a README; none without that
    appendix.
    """
    begin = text.rfind(_BEGIN)
    end = text.find(_END, begin)
    appendix = text[begin : end if end > 0 else None] if begin >= 0 else ""
    parts = [(0, None), *((match.start(), int(match["branch"])) for match in _LEGACY.finditer(appendix))]
    for (start, branch), (stop, _) in zip(parts, [*parts[1:], (len(appendix), None)], strict=True):
        for row in _ROW.finditer(appendix[start:stop]):
            yield ListedGpu(row["device"], row["name"], branch)
