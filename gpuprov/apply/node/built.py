"""Transfer of the modules that DKMS has built for a kernel: packed once, sent in pieces."""

import base64
import gzip
import hashlib
import io
import os
import tarfile

from gpuprov.probe.node.base import Failed, names_in, read_or_none
from gpuprov.probe.node.main import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TREE = "/var/lib/dkms"
PACKED = "/var/lib/gpuprov/modules"
PIECE = 4 << 20
"""Size of a piece in bytes: half of the limit of an answer (`ANSWER_LIMIT`), so that its base64 fits."""
BY = "compiled by "
"""Start of the log of a module that another node compiled (install.py of the role nvidia_driver)."""


def pack(kernel: str, driver: str, arch: str, builder: str) -> "dict[str, Any]":
    """Pack the modules that DKMS built for a kernel; return path, size and SHA-256 of the archive.

    Modules by another builder are refused, because they would count as this builder's.

    Raises:
        Failed: DKMS has no such modules, or another builder compiled them.
    """
    folder = _folder(kernel, driver, arch)
    log = (read_or_none(os.path.join(os.path.dirname(folder), "log/make.log")) or "").split("\n")[0]
    if log.startswith(("compiled on another node", BY)) and log != BY + builder:
        raise Failed(
            f"DKMS's module {driver} for kernel {kernel} was {log}; to have it compiled here, remove it"
            " (dkms remove) and apply again"
        )
    return packed(folder, f"{driver}-{kernel}")


def packed(folder: str, name: str) -> "dict[str, Any]":
    """Pack a folder's files into a tar.gz in `PACKED`; return its path, size in bytes and SHA-256."""
    os.makedirs(PACKED, mode=0o700, exist_ok=True)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for each in sorted(names_in(folder)):
            archive.add(os.path.join(folder, each), arcname=each, recursive=False)
    content = gzip.compress(plain.getvalue(), 6)
    path = os.path.join(PACKED, name + ".tar.gz")
    with open(path, "wb") as file:
        file.write(content)
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _folder(kernel: str, driver: str, arch: str) -> str:
    """Return DKMS's folder of the modules, of source nvidia-current or nvidia; raise Failed without any."""
    for source in sorted(names_in(TREE)):
        folder = os.path.join(TREE, source, driver, kernel, arch, "module")
        if source.startswith("nvidia") and names_in(folder):
            return folder
    raise Failed(f"DKMS has no module {driver} for kernel {kernel}")


def piece(path: str, offset: int) -> str:
    """Return up to `PIECE` bytes of a packed archive from an offset in bytes, in base64."""
    with open(os.path.join(PACKED, os.path.basename(path)), "rb") as file:
        file.seek(offset)
        return base64.b64encode(file.read(PIECE)).decode()


def forget(path: str) -> None:
    """Remove a packed archive."""
    os.unlink(os.path.join(PACKED, os.path.basename(path)))


def main(question: "dict[str, Any]") -> None:
    """Run `act` with `arguments`, and print its result or its error."""
    acts = {"pack": pack, "piece": piece, "forget": forget}  # type: dict[str, Any]
    try:
        answer = {"result": acts[question["act"]](*question["arguments"])}
    except Failed as failed:
        answer = {"error": str(failed)}
    except OSError as error:
        answer = {"error": "{}: {}".format(error.filename or "the node", error.strerror)}
    say(question["nonce"], answer)
