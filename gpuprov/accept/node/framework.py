"""Measurements by the frameworks of one Python interpreter; runs in that interpreter."""

import os
import signal
import sys
import time
from importlib import import_module
from importlib.util import find_spec

from gpuprov.accept.node.workers import Crew, Gone
from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.main import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuprov.probe.node.base import Values

SCHEMA = "gpuprov.accept.framework/1"
EDGE, WARM_UP, TURNS, BATCHES = 8192, 10, 20, 5
"""Rows and columns of the matrices; numbers of products to warm up, in a batch, and of batches."""
LIMIT_S = 180.0
"""Time limit for one framework; its first import reads gigabytes."""


def imported(name: str) -> "Any":
    """Return a module of the interpreter by name.

    Raises:
        Failed: it is missing or cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise Failed("it cannot be imported: {}".format(error)) from None


def torch() -> "Values":
    """Measure a bf16 product in TFLOP/s on every GPU that PyTorch sees; return it with versions.

    Versions of CUDA and NCCL are those of the build; NCCL may be None.

    Raises:
        Failed: PyTorch cannot be imported.
    """
    framework = imported("torch")

    cuda = framework.cuda
    names = [cuda.get_device_name(index) for index in range(cuda.device_count())]
    rows = [
        {"name": name, "bf16": _torch_rate(framework, "cuda:{}".format(index))}
        for index, name in enumerate(names)
    ]
    nccl = framework.distributed.is_available() and framework.distributed.is_nccl_available()
    version = cuda.nccl.version() if nccl else None
    return {
        "version": str(framework.__version__),
        "cuda": str(framework.version.cuda),
        "gpus": rows,
        "nccl": ".".join(str(part) for part in version) if version else None,
    }


def _torch_rate(framework: "Any", place: str) -> float:
    """Return the TFLOP/s of a bf16 product on a device such as `cuda:0`."""
    one, other = (framework.randn(EDGE, EDGE, device=place, dtype=framework.bfloat16) for _ in range(2))
    return rated(lambda: framework.matmul(one, other), lambda _: framework.cuda.synchronize(place))


def jax() -> "Values":
    """Measure a bf16 product in TFLOP/s on every GPU that JAX sees; return None as CUDA and NCCL.

    Raises:
        Failed: JAX cannot be imported.
    """
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    framework, numpy = imported("jax"), imported("jax.numpy")

    devices = [each for each in framework.devices() if each.platform in ("gpu", "cuda")]
    rows = [
        {"name": str(device.device_kind), "bf16": _jax_rate(framework, numpy, device)} for device in devices
    ]
    return {"version": str(framework.__version__), "cuda": None, "gpus": rows, "nccl": None}


def _jax_rate(framework: "Any", numpy: "Any", device: "Any") -> float:
    """Return the TFLOP/s of a bf16 product on a device."""
    key = framework.device_put(framework.random.PRNGKey(0), device)
    one = framework.random.normal(key, (EDGE, EDGE), dtype=numpy.bfloat16)
    product = framework.jit(numpy.matmul)
    return rated(lambda: product(one, one), lambda out: out.block_until_ready())


def tensorflow() -> "Values":
    """Measure a bf16 product in TFLOP/s on every GPU that TensorFlow sees; return None as NCCL.

    Raises:
        Failed: TensorFlow cannot be imported.
    """
    framework = imported("tensorflow")

    rows = []  # type: list[Values]
    listed = framework.config.list_physical_devices("GPU")
    for gpu in listed:
        framework.config.experimental.set_memory_growth(gpu, True)
    for index, gpu in enumerate(listed):
        details = framework.config.experimental.get_device_details(gpu)
        with framework.device("/GPU:{}".format(index)):
            rows.append({"name": str(details.get("device_name", "")), "bf16": _tensorflow_rate(framework)})
    build = framework.sysconfig.get_build_info()
    cuda = build.get("cuda_version")
    return {"version": str(framework.__version__), "cuda": cuda, "gpus": rows, "nccl": None}


def _tensorflow_rate(framework: "Any") -> float:
    """Return the TFLOP/s of a bf16 product on the current device."""
    one = framework.cast(framework.random.normal((EDGE, EDGE)), framework.bfloat16)
    return rated(
        lambda: framework.linalg.matmul(one, one),
        lambda out: framework.cast(out[:1, :1], framework.float32).numpy(),
    )


FRAMEWORKS = {"torch": torch, "jax": jax, "tensorflow": tensorflow}


def rated(multiply: "Callable[[], Any]", wait: "Callable[[Any], Any]") -> float:
    """Return the TFLOP/s of a product of square matrices of `EDGE`: the median of several batches.

    Args:
        multiply: starts a product and returns its result.
        wait: waits for that result.
    """
    out = None
    for _ in range(WARM_UP):
        out = multiply()
    wait(out)
    found = []
    for _ in range(BATCHES):
        begun = time.monotonic()
        for _ in range(TURNS):
            out = multiply()
        wait(out)
        found.append(2.0 * EDGE**3 * TURNS / (time.monotonic() - begun) / 1e12)
    return round(sorted(found)[BATCHES // 2], 1)


def work(name: str, _: "Any") -> "Values":
    """Measure the framework of that name in its own worker; the second argument is not used."""
    return FRAMEWORKS[name]()


def installed() -> "list[str]":
    """Return the names of the frameworks that are installed for this interpreter."""
    return [name for name in FRAMEWORKS if find_spec(name) is not None]


def main(plan: "Values") -> None:
    """Measure every installed framework, each in its own process; print the document and exit.

    A framework that failed has `error` in its place. Nothing is printed if the controller is gone.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    crew = Crew(time.monotonic() + plan["seconds"], beat=True)
    result = {"schema": SCHEMA, "python": sys.version.split()[0], "frameworks": {}}  # type: Values
    try:
        for name in installed():
            worker = crew.hire(name, work)
            answer = crew.ask([worker], name, None, LIMIT_S)[0]
            worker.end()
            result["frameworks"][name] = answer.get("value", {"error": answer.get("error", "no answer")})
    except Gone:
        result = {}
    finally:
        crew.end()
    if result:
        say(plan["nonce"], result)
    os._exit(0)
