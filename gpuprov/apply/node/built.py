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

    Args:
        kernel: release of the kernel.
        driver: version of the driver.
        arch: architecture in DKMS's tree, such as `x86_64`.
        builder: id of the builder. Modules by another one are refused, because they would count as this
            one's.

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
    """Pack a folder's files, without subfolders, into NAME.tar.gz in `PACKED`, in place of an earlier one.

    Returns:
        Its path, size in bytes and SHA-256.
    """
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
    """Return DKMS's folder of the modules, of the first source whose name begins with nvidia.

    Raises:
        Failed: there are no such modules.
    """
    for source in sorted(names_in(TREE)):
        folder = os.path.join(TREE, source, driver, kernel, arch, "module")
        if source.startswith("nvidia") and names_in(folder):
            return folder
    raise Failed(f"DKMS has no module {driver} for kernel {kernel}")


def piece(path: str, offset: int) -> str:
    """Return up to `PIECE` bytes of a packed archive from an offset in bytes, in base64; "" at its end.

    Only the last component of the path is used.
    """
    with open(os.path.join(PACKED, os.path.basename(path)), "rb") as file:
        file.seek(offset)
        return base64.b64encode(file.read(PIECE)).decode()


def forget(path: str) -> None:
    """Remove a packed archive; only the last component of the path is used."""
    os.unlink(os.path.join(PACKED, os.path.basename(path)))


def main(question: "dict[str, Any]") -> None:
    """Run `act` with `arguments` of the question, and write its result or error with the `nonce`."""
    acts = {"pack": pack, "piece": piece, "forget": forget}  # type: dict[str, Any]
    try:
        answer = {"result": acts[question["act"]](*question["arguments"])}
    except Failed as failed:
        answer = {"error": str(failed)}
    except OSError as error:
        answer = {"error": "{}: {}".format(error.filename or "the node", error.strerror)}
    say(question["nonce"], answer)
