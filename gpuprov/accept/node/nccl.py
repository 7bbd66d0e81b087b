"""libnccl by ctypes: log, errors and communicators."""

import ctypes
import os
import struct
from ctypes import byref, c_byte, c_char_p, c_int, c_size_t, c_void_p

from gpuprov.accept.node.matrix import load_library
from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.variables import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

UINT8, FLOAT32, SUM = 1, 7, 0
LOG_LIMIT = 512 * 1024


class UniqueId(ctypes.Structure):
    """ncclUniqueId: where the ranks of one communicator find each other."""

    _fields_ = (("internal", c_byte * 128),)


class Library:
    """libnccl of this machine, with its log in a file of this process's memory.

    Args:
        folders: where it is searched in addition to the loader's folders.

    Raises:
        Failed: it cannot be loaded.
        Failed: all methods that call NCCL, if it returns an error.
    """

    def __init__(self, folders: "Sequence[str]") -> None:
        # Not in /tmp, which a user can fill: the log would end before its paths. Python 3.6 has no such call.
        handle = ctypes.CDLL(None).memfd_create(b"nccl", 0)
        self._log = os.fdopen(handle, "r+b")
        os.environ.update(ENVIRONMENT, NCCL_DEBUG_FILE="/proc/self/fd/{}".format(self._log.fileno()))
        self._library, self.path = load_library(["libnccl.so.2"], folders)
        self._library.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)

    def log(self) -> str:
        """Return NCCL's log since the last call, up to `LOG_LIMIT` bytes.

        It contains the paths between GPUs only after the first collective.
        """
        return self._log.read(LOG_LIMIT).decode("utf-8", "replace")

    def _last_warning(self) -> str:
        """Return the last warning of the log after `: `, at most 200 characters, or an empty string."""
        warned = [line for line in self.log().splitlines() if "NCCL WARN" in line]
        return ": " + warned[-1].partition("NCCL WARN")[2].strip()[:200] if warned else ""

    @property
    def version(self) -> str:
        """Return the version of NCCL: `2.27.3`."""
        number = c_int()
        self.call("ncclGetVersion", byref(number))
        return "{}.{}.{}".format(number.value // 10000, number.value % 10000 // 100, number.value % 100)

    def call(self, name: str, *arguments: "Any") -> None:
        """Call one function of NCCL by its name.

        Raises:
            Failed: it returned an error; with NCCL's own message and last warning.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            said = getattr(self._library, "ncclGetErrorString", None)
            raise Failed("{}: error {}{}{}".format(name, code, _words(said, code), self._last_warning()))

    def unique_id(self) -> bytes:
        """Return the id of a new communicator; its ranks meet through this process."""
        made = UniqueId()
        self.call("ncclGetUniqueId", byref(made))
        return bytes(made)

    def join(self, unique_id: bytes, ranks: int, rank: int) -> c_void_p:
        """Join a communicator of `ranks` members as `rank`, and return it.

        GPUs of one process join within `together`.
        """
        communicator = c_void_p()
        self.call("ncclCommInitRank", byref(communicator), ranks, UniqueId.from_buffer_copy(unique_id), rank)
        return communicator

    def together(self, work: "Callable[[], None]") -> None:
        """Run `work` within one NCCL group operation."""
        self.call("ncclGroupStart")
        work()
        self.call("ncclGroupEnd")

    def all_reduce(self, send: int, take: int, size: int, communicator: "Any", stream: "Any") -> None:
        """Start an all-reduce of `size` bytes: sums of float32."""
        self.call(
            "ncclAllReduce", c_void_p(send), c_void_p(take), c_size_t(size // 4), FLOAT32, SUM,
            communicator, stream,
        )  # fmt: skip

    def send(self, memory: int, size: int, peer: int, communicator: "Any", stream: "Any") -> None:
        """Start sending `size` bytes to another rank."""
        self.call("ncclSend", c_void_p(memory), c_size_t(size), UINT8, peer, communicator, stream)

    def receive(self, memory: int, size: int, peer: int, communicator: "Any", stream: "Any") -> None:
        """Start receiving `size` bytes from another rank."""
        self.call("ncclRecv", c_void_p(memory), c_size_t(size), UINT8, peer, communicator, stream)


def constant(number: float) -> "tuple[int, int, int, int]":
    """Return the pattern (`shape` of `Gpu.fill`) that fills memory with one float32."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    return (bits, 0, bits, 0)


def _words(function: "Any", code: int) -> str:
    """Return ` (text)` for an error code, or an empty string."""
    if function is None:
        return ""
    function.restype = c_char_p
    return " ({})".format((function(code) or b"").decode("utf-8", "replace"))
