"""The CUDA driver of this machine by ctypes: contexts, memory, kernels and timing; every error raises."""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from gpuprov.accept.node import kernels
from gpuprov.probe.node.base import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuprov.probe.node.base import Values

MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
BATCHES = 5
"""Number of batches of a rate."""
PLAIN = (0, 0xFFFFFFFF, 0, 0xFFFFFFFF)
"""A pattern of unmasked 32-bit words: base and mask of the even words, and of the odd ones."""
_SIGNATURES = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid": (c_char_p, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuCtxSynchronize": (),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_ulonglong), c_size_t),
    "cuMemFree_v2": (c_ulonglong,),
    "cuMemAllocHost_v2": (POINTER(c_void_p), c_size_t),
    "cuMemFreeHost": (c_void_p,),
    "cuMemsetD32Async": (c_ulonglong, c_uint, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, c_ulonglong, c_size_t),
    "cuMemcpyHtoD_v2": (c_ulonglong, c_void_p, c_size_t),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_ulonglong, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_ulonglong, c_ulonglong, c_size_t, c_void_p),
    "cuMemcpyPeerAsync": (c_ulonglong, c_void_p, c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p,) + (c_uint,) * 7 + (c_void_p, POINTER(c_void_p), c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}  # type: dict[str, tuple[Any, ...]]
"""Function of the driver → types of its arguments."""


class Driver:
    """libcuda.so.1; a call that fails raises `Failed` with the driver's own message.

    GPUs are in the order of their PCI addresses.

    Raises:
        Failed: the library cannot be loaded or does not start.
    """

    def __init__(self) -> None:
        """Load and initialise libcuda, with GPUs in the order of the PCI bus; Failed if that fails."""
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Failed("libcuda.so.1 cannot be loaded: {}".format(error)) from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: "Any") -> None:
        """Call one function of the driver by its name.

        Raises:
            Failed: it returned an error; with its name and text.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            raise Failed("{}: {}".format(name, self._words(code)))

    def _words(self, code: int) -> str:
        """Return the name and text of an error code: `CUDA_ERROR_INVALID_VALUE (invalid argument)`."""
        short, long = c_char_p(), c_char_p()
        self._library.cuGetErrorName(code, byref(short))
        self._library.cuGetErrorString(code, byref(long))
        return " ".join(
            [(short.value or b"error %d" % code).decode(), "({})".format((long.value or b"").decode())]
        )

    def count(self) -> int:
        """Return the number of GPUs that a program may use."""
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def version(self) -> str:
        """Return the CUDA version that this driver supports: `13.0`."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return "{}.{}".format(number.value // 1000, number.value % 1000 // 10)


class Gpu:
    """One GPU's primary context, with the kernels loaded into it; its context becomes the current one.

    Args:
        index: in the order of PCI addresses.

    Raises:
        Failed: the driver fails, as do all methods.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.call, self.index = driver, driver.call, index
        self._device, self.context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(self._device), index)
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self._device)
        self.use()
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), kernels.ptx().encode())
        self._functions = {}
        for name in ("fill", "check", "checksum", "copy"):
            self._functions[name] = c_void_p()
            self.call("cuModuleGetFunction", byref(self._functions[name]), module, name.encode())
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), 1)
        self._events = [self._event(), self._event()]
        self.processors = self.attribute(MULTIPROCESSORS)
        self.capability = "{}.{}".format(self.attribute(MAJOR), self.attribute(MINOR))
        self._result = self.allocate(64)

    def _event(self) -> c_void_p:
        """Return a new CUDA event, which can measure time."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), 0)
        return event

    def use(self) -> None:
        """Make this GPU's context the current one of the thread; other methods require that."""
        self.call("cuCtxSetCurrent", self.context)

    def attribute(self, which: int) -> int:
        """Return an attribute of the device (CUdevice_attribute)."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), which, self._device)
        return value.value

    def describe(self) -> "Values":
        """Return name, PCI address, UUID, compute capability, multiprocessors and memory in bytes."""
        name, bus, raw = (ctypes.create_string_buffer(96) for _ in range(3))
        self.call("cuDeviceGetName", name, 96, self._device)
        self.call("cuDeviceGetPCIBusId", bus, 96, self._device)
        self.call("cuDeviceGetUuid", raw, self._device)
        digits = raw.raw[:16].hex()
        free, total = self.memory()
        return {
            "name": name.value.decode("utf-8", "replace"),
            "bus_id": bus.value.decode().lower(),
            "uuid": "GPU-" + "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]),
            "compute_capability": self.capability,
            "multiprocessors": self.processors,
            "memory_free": free,
            "memory_total": total,
        }

    def memory(self) -> "tuple[int, int]":
        """Return the free and the total memory in bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of device memory and return the address."""
        address = c_ulonglong()
        self.call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def free(self, *addresses: int) -> None:
        """Free device memory at these addresses, which `allocate` returned."""
        for address in addresses:
            self.call("cuMemFree_v2", address)

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of device memory, copied to the host; call `wait` before if work on the stream
        writes them.
        """
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def launch(self, name: str, *arguments: "Any", blocks: "int | None" = None) -> None:
        """Start a kernel on the stream, by default with 4 blocks for each multiprocessor; do not wait.

        `arguments` are values of ctypes.
        """
        holders = (c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
        grid = blocks or self.processors * 4
        function = self._functions[name]
        self.call("cuLaunchKernel", function, grid, 1, 1, kernels.BLOCK, 1, 1, 0, self.stream, holders, None)

    def wait(self) -> None:
        """Wait until all work on the stream is done; Failed if any of it failed."""
        self.call("cuStreamSynchronize", self.stream)

    def fill(
        self, address: int, size: int, seed: int, shape: "tuple[int, ...]" = PLAIN, flip: int = 0
    ) -> None:
        """Start to write the pattern of `seed`; do not wait.

        Args:
            size: bytes, a multiple of 16.
            shape: base and mask of even and of odd words.
            flip: bits to invert in every word.
        """
        self.launch("fill", *_pattern(address, size, seed, shape, flip))

    def check(
        self, address: int, size: int, seed: int, shape: "tuple[int, ...]" = PLAIN, flip: int = 0
    ) -> "Values | None":
        """Compare memory with a pattern and wait; return None if it is equal.

        Otherwise `words`, the number of wrong words, `first`, the first one's offset in bytes, rounded down
        to 16, and `bits`, the wrong bits as hexadecimal text. Arguments are those of `fill`.
        """
        self.call("cuMemcpyHtoD_v2", self._result, (c_ulonglong * 3)(0, 2**64 - 1, 0), 24)
        self.launch("check", *_pattern(address, size, seed, shape, flip), c_ulonglong(self._result))
        self.wait()
        words, first, bits = memoryview(self.read(self._result, 24)).cast("Q")
        if not words:
            return None
        return {"words": words, "first": first * 16, "bits": "{:#010x}".format(bits & 0xFFFFFFFF)}

    def checksum(self, address: int, size: int) -> int:
        """Return the exclusive or of all 32-bit words of a piece of memory.

        `size` is a multiple of 16 bytes.
        """
        self.call("cuMemcpyHtoD_v2", self._result, (c_ulonglong * 3)(0, 0, 0), 24)
        self.start_checksum(address, size)
        self.wait()
        return int.from_bytes(self.read(self._result, 4), "little")

    def start_checksum(self, address: int, size: int) -> None:
        """Start the checksum; do not wait for it or read its result."""
        self.launch("checksum", c_ulonglong(address), c_ulonglong(size // 16), c_ulonglong(self._result))

    def seconds(self, work: "Callable[[], None]", times: int) -> float:
        """Return the seconds that the GPU takes for `times` turns of what `work` starts on the stream."""
        begin, end = self._events
        self.call("cuEventRecord", begin, self.stream)
        for _ in range(times):
            work()
        self.call("cuEventRecord", end, self.stream)
        self.call("cuEventSynchronize", end)
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value / 1000.0

    def rate(self, work: "Callable[[], None]", amount: float, seconds: float) -> "Values":
        """Run `work` for some seconds; return `amount` of one turn per second, as the median of `BATCHES`
        batches.

        Args:
            work: starts one turn on the stream.
            amount: size of one turn, in the unit of the result.
            seconds: duration of all batches together, about; a batch has at most 4,000 turns.

        Returns:
            The median `value`, `least` and `most` of the batches, and `turns`, the number of turns.
        """
        self.seconds(work, 2)
        once = max(self.seconds(work, 2) / 2, 1e-6)
        times = max(1, min(4000, int(seconds / BATCHES / once)))
        found = sorted(amount * times / self.seconds(work, times) for _ in range(BATCHES))
        return {
            "value": round(found[BATCHES // 2], 3),
            "least": round(found[0], 3),
            "most": round(found[-1], 3),
            "turns": times * BATCHES,
        }


def _pattern(address: int, size: int, seed: int, shape: "tuple[int, ...]", flip: int) -> "tuple[Any, ...]":
    """Return the kernels' arguments for a pattern; the size in vectors of 16 bytes."""
    return (c_ulonglong(address), c_ulonglong(size // 16)) + tuple(
        c_uint(each) for each in (seed, flip) + tuple(shape)
    )
