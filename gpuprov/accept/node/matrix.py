"""Dense matrix products by cublasLt: their rate, and whether the results are right."""

import ctypes
import glob
import os
import random
import struct
import time
from ctypes import byref, c_double, c_float, c_int, c_int8, c_int64, c_size_t, c_uint64, c_void_p

from gpuprov.probe.node.base import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gpuprov.accept.node.cuda import Gpu
    from gpuprov.probe.node.base import Values

R_32F, R_64F, R_16F, R_16BF, R_8F_E4M3 = 0, 1, 2, 14, 28
COMPUTE_32F, COMPUTE_TF32, COMPUTE_64F = 68, 77, 70
TRANS_A, FAST_ACCUM, WORKSPACE_LIMIT = 3, 25, 1
TRANSPOSED = 1
WORKSPACE = 64 * 1024 * 1024
CANDIDATES = 8
"""Maximum number of algorithms that are tried."""
SAMPLES = 12
"""Number of entries of a product that are checked."""
WORST = 1e9
"""Error of a product that is infinite or NaN, which JSON cannot express."""
BURST = 10
"""Number of products in a row that finish before the GPU's power limit takes effect."""
EDGE, SMALL_EDGE = 8192, 2048
"""Rows and columns of the matrices."""
FULL_FP64 = {"7.0", "8.0", "9.0", "10.0"}
"""Compute capabilities with many FP64 units; others take seconds for a large product."""
NOT_SUPPORTED = 15


class Kind:
    """One number format: types of a product, and the pattern of its random numbers.

    Args:
        inside, outside: cudaDataType_t of the factors and of the product.
        sizes: bytes of one number inside and outside.
        shape: base and mask of even and odd words, for random signs, fractions and four exponents below 2.
        close: largest error allowed, as a share of the sum of the products' absolute values.
    """

    def __init__(
        self,
        inside: int,
        outside: int,
        compute: int,
        sizes: "tuple[int, int]",
        shape: "tuple[int, int, int, int]",
        close: float,
    ) -> None:
        self.inside, self.outside, self.compute, self.sizes = inside, outside, compute, sizes
        self.shape, self.close = shape, close
        self.scale = R_64F if compute == COMPUTE_64F else R_32F


KINDS = {
    "fp16": Kind(R_16F, R_16F, COMPUTE_32F, (2, 2), (0x30003000, 0x8FFF8FFF) * 2, 2e-4),
    "bf16": Kind(R_16BF, R_16BF, COMPUTE_32F, (2, 2), (0x3E003E00, 0x81FF81FF) * 2, 2e-4),
    "tf32": Kind(R_32F, R_32F, COMPUTE_TF32, (4, 4), (0x3E000000, 0x81FFFFFF) * 2, 2e-4),
    "fp8": Kind(R_8F_E4M3, R_16BF, COMPUTE_32F, (1, 2), (0x20202020, 0x9F9F9F9F) * 2, 2e-3),
    "fp64": Kind(R_64F, R_64F, COMPUTE_64F, (8, 8), (0, 0xFFFFFFFF, 0x3FC00000, 0x803FFFFF), 1e-12),
}
"""Number format by name."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an opaque algorithm and its requirements."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def load_library(names: "Sequence[str]", folders: "Sequence[str]") -> "tuple[Any, str]":
    """Load a shared library by the first name that works; return it and its path.

    Each name is tried with the loader's own search, then in the folders, whose names may be patterns.

    Raises:
        Failed: none could be loaded.
    """
    said = "not found"
    for name in names:
        places = [
            path for folder in folders for path in sorted(glob.glob(os.path.join(folder, name)), reverse=True)
        ]
        for place in [name] + places:
            try:
                return ctypes.CDLL(place), place
            except OSError as error:
                said = str(error) if "cannot open shared object" not in str(error) else said
    raise Failed("{}: {}".format(names[0], said))


class Products:
    """cublasLt on one GPU.

    Args:
        folders: where the library is searched in addition to the loader's folders.

    Raises:
        Failed: the library cannot be loaded or does not start.
        Failed: all methods, if the library or the driver fails.
    """

    def __init__(self, gpu: "Gpu", folders: "Sequence[str]") -> None:
        self._gpu = gpu
        names = ["libcublasLt.so.{}".format(major) for major in (13, 12, 11)]
        self._library, self.path = load_library(names, folders)
        self._library.cublasLtGetVersion.restype = c_size_t
        self._handle = c_void_p()
        self._do("cublasLtCreate", byref(self._handle))
        self._workspace = gpu.allocate(WORKSPACE)

    def close(self) -> None:
        """Free the workspace and the handle."""
        self._gpu.free(self._workspace)
        self._do("cublasLtDestroy", self._handle)

    @property
    def version(self) -> str:
        """Return the version of cublasLt: `13.0.2`."""
        number = int(self._library.cublasLtGetVersion())
        big, small = (10000, 100) if number >= 100000 else (1000, 100)
        return "{}.{}.{}".format(number // big, number % big // small, number % small)

    def _do(self, name: str, *arguments: "Any") -> None:
        """Call one function of cublasLt.

        Raises:
            Failed: it returned an error.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            result = "not supported on this GPU" if code == NOT_SUPPORTED else "status {}".format(code)
            raise Failed("{}: {}".format(name, result))

    def measure(self, name: str, seconds: float, hold: float) -> "Values":
        """Measure products of large square matrices in TFLOP/s, and check the result.

        `value` is the rate under the GPU's power limit, `burst` the rate before the limit takes effect. `off`
        is the largest error, `close` the allowed one, `repeats` whether two products were equal. Also `edge`
        of the matrices, the `algorithms` tried, and the `window` of time of the load.

        Args:
            name: of `KINDS`.
            seconds: for the rate.
            hold: seconds of load before the rate is measured.

        Raises:
            Failed: the GPU or the library does not support the format, or fails.
        """
        kind, gpu = KINDS[name], self._gpu
        edge = EDGE if name != "fp64" or gpu.capability in FULL_FP64 else SMALL_EDGE
        count = edge * edge
        factors = [gpu.allocate(count * kind.sizes[0]) for _ in range(2)]
        out = gpu.allocate(count * kind.sizes[1])
        try:
            for seed, factor in enumerate(factors):
                gpu.fill(factor, count * kind.sizes[0], 77 + seed, kind.shape)
            multiply, tried = self._best(kind, edge, factors, out)
            gpu.call("cuMemsetD32Async", out, 0x7FC07FC0, count * kind.sizes[1] // 4, gpu.stream)
            multiply()
            first = gpu.checksum(out, count * kind.sizes[1])
            worst = self._worst(kind, edge, factors, out)
            work = 2.0 * edge**3 / 1e12
            burst = max(work * BURST / gpu.seconds(multiply, BURST) for _ in range(3))
            begun = time.monotonic()
            if hold:
                once = gpu.seconds(multiply, 4) / 4
                for _ in range(max(1, int(hold / once / 16))):
                    gpu.seconds(multiply, 16)
            result = gpu.rate(multiply, work, seconds)
            result["window"] = [begun, time.monotonic()]
            again = gpu.checksum(out, count * kind.sizes[1])
        finally:
            gpu.free(out, *factors)
        result.update(
            edge=edge,
            burst=round(burst, 3),
            algorithms=tried,
            off=worst,
            close=kind.close,
            repeats=first == again,
        )
        return result

    def _best(
        self, kind: Kind, edge: int, factors: "Sequence[int]", out: int
    ) -> "tuple[Callable[[], None], int]":
        """Try the algorithms that cublasLt proposes; return a function that starts the product by the fastest
        one, and how many were tried.

        Raises:
            Failed: there is no algorithm, or the library fails.
        """
        described, layouts, wish = c_void_p(), [c_void_p() for _ in range(3)], c_void_p()
        self._do("cublasLtMatmulDescCreate", byref(described), kind.compute, kind.scale)
        self._set("cublasLtMatmulDescSetAttribute", described, TRANS_A, c_int(TRANSPOSED))
        if kind.inside == R_8F_E4M3:
            self._set("cublasLtMatmulDescSetAttribute", described, FAST_ACCUM, c_int8(1))
        for layout, number in zip(layouts, (kind.inside, kind.inside, kind.outside)):
            self._do(
                "cublasLtMatrixLayoutCreate",
                byref(layout),
                number,
                c_uint64(edge),
                c_uint64(edge),
                c_int64(edge),
            )
        self._do("cublasLtMatmulPreferenceCreate", byref(wish))
        self._set("cublasLtMatmulPreferenceSetAttribute", wish, WORKSPACE_LIMIT, c_size_t(WORKSPACE))
        found, count = (Algorithm * CANDIDATES)(), c_int()
        self._do(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, described, layouts[0], layouts[1], layouts[2],
            layouts[2], wish, CANDIDATES, found, byref(count),
        )  # fmt: skip
        one, zero = (c_double(1), c_double(0)) if kind.scale == R_64F else (c_float(1), c_float(0))

        def product(which: Algorithm) -> "Callable[[], None]":
            def start() -> None:
                self._do(
                    "cublasLtMatmul", self._handle, described, byref(one), c_void_p(factors[0]), layouts[0],
                    c_void_p(factors[1]), layouts[1], byref(zero), c_void_p(out), layouts[2], c_void_p(out),
                    layouts[2], byref(which), c_void_p(self._workspace), c_size_t(WORKSPACE),
                    self._gpu.stream,
                )  # fmt: skip

            return start

        starts = [product(which) for which in found[: count.value] if which.state == 0]
        if not starts:
            raise Failed("cublasLt knows no algorithm for it")
        times = []
        for place, start in enumerate(starts):
            self._gpu.seconds(start, 1)
            times.append((min(self._gpu.seconds(start, 3) for _ in range(2)), place))
        return starts[min(times)[1]], len(starts)

    def _set(self, function: str, holder: c_void_p, which: int, value: "Any") -> None:
        """Set one attribute of a cublasLt object by the function for that kind of object."""
        self._do(function, holder, which, byref(value), c_size_t(ctypes.sizeof(value)))

    def _worst(self, kind: Kind, edge: int, factors: "Sequence[int]", out: int) -> float:
        """Return the largest error among `SAMPLES` random entries, at most `WORST`, also for NaN.

        It is a share of the sum of the products' absolute values.
        """
        inner, outer = kind.sizes
        worst = 0.0
        for _ in range(SAMPLES):
            row, column = random.randrange(edge), random.randrange(edge)
            left, right = (
                numbers(kind.inside, self._gpu.read(factor + place * edge * inner, edge * inner))
                for factor, place in zip(factors, (row, column))
            )
            products = [a * b for a, b in zip(left, right)]
            result = numbers(kind.outside, self._gpu.read(out + (column * edge + row) * outer, outer))[0]
            error = abs(result - sum(products)) / sum(map(abs, products))
            worst = max(worst, error if error < WORST else WORST)
        return worst


def numbers(kind: int, raw: bytes) -> "list[float]":
    """Return the numbers in bytes of a cudaDataType_t, one of `KINDS`."""
    if kind == R_16BF:
        spread = bytearray(len(raw) * 2)
        spread[2::4], spread[3::4] = raw[0::2], raw[1::2]
        return list(memoryview(bytes(spread)).cast("f"))
    if kind == R_8F_E4M3:
        return [_E4M3[each] for each in raw]
    code = {R_16F: "e", R_32F: "f", R_64F: "d"}[kind]
    return list(struct.unpack("<{}{}".format(len(raw) // struct.calcsize(code), code), raw))


def _e4m3(bits: int) -> float:
    """Return the number in one byte of FP8: sign, 4 bits of exponent with bias 7, 3 bits of fraction.

    0x7f is NaN.
    """
    sign, exponent, fraction = -1.0 if bits & 0x80 else 1.0, bits >> 3 & 15, bits & 7
    if bits & 0x7F == 0x7F:
        return float("nan")
    return sign * (
        fraction / 8.0 * 2.0**-6 if exponent == 0 else (1 + fraction / 8.0) * 2.0 ** (exponent - 7)
    )


_E4M3 = [_e4m3(bits) for bits in range(256)]
