"""Load on every GPU of this machine by a plan, and the document of measurements; nothing is judged here."""

import os
import signal
import time

from gpuprov.accept.node import between, dcgm, memory, storage, watch
from gpuprov.accept.node.cuda import Driver, Gpu
from gpuprov.accept.node.matrix import KINDS, Products
from gpuprov.accept.node.workers import Crew, Gone, end_all
from gpuprov.probe.node.main import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuprov.accept.node.workers import Worker
    from gpuprov.probe.node.base import Values

SCHEMA = "gpuprov.accept.measured/1"
GIB = 1024**3
START_S, SPARE_S = 60.0, 45.0
"""Seconds for the first access to a GPU, and for every step beyond its planned duration."""
AGAIN = 2
"""Number of times that copies to the host are measured again while they are unsteady."""
FOLDERS = (
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-*/lib64",
    "/usr/local/cuda-*/targets/*/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)


class OneGpu:
    """Steps of a worker for one GPU; `start` is the first one."""

    def __init__(self, index: int, plan: "Values") -> None:
        self._index, self._plan = index, plan
        self._folders = list(plan.get("folders") or ()) + list(FOLDERS)
        self._driver, self._gpu, self._products = None, None, None  # type: Any, Any, Any

    def __call__(self, name: str, arguments: "Any") -> "Any":
        """Carry out the step (method) of that name."""
        return getattr(self, name)(arguments)

    def start(self, _: "Any") -> "Values":
        """Create a context, run a kernel and check its result; return the GPU's description and CUDA version.

        Raises:
            Failed: the driver fails, or the result is wrong.
        """
        begun = time.monotonic()
        self._driver = Driver()
        self._gpu = Gpu(self._driver, self._index)
        ready = time.monotonic()
        result = self._gpu.describe()  # type: Values
        result.update(
            cuda=self._driver.version(), visible=self._driver.count(), start_seconds=round(ready - begun, 3),
            kernel=memory.check_kernels(self._gpu),
        )  # fmt: skip
        return result

    def bandwidth(self, seconds: float) -> "Values":
        """Measure the bandwidth of the GPU's memory in GB/s, see `memory.bandwidth`."""
        return memory.bandwidth(self._gpu, seconds)

    def host(self, seconds: float) -> "Values":
        """Measure copies to and from the host in GB/s, see `memory.host_copies`."""
        return memory.host_copies(self._gpu, self._gpu.describe()["bus_id"], seconds)

    def matrix(self, arguments: "Any") -> "Values":
        """Measure products in TFLOP/s, see `Products.measure`; add the library's path and version.

        Args:
            arguments: number format, seconds, seconds of load before.
        """
        kind, seconds, hold = arguments
        if self._products is None:
            self._products = Products(self._gpu, self._folders)
        result = self._products.measure(kind, seconds, hold)
        return dict(result, library=self._products.path, version=self._products.version)

    def pattern(self, arguments: "Any") -> "Values":
        """Test the memory with patterns, see `memory.pattern`.

        Args:
            arguments: GiB at most and seconds.
        """
        gib, seconds = arguments
        return memory.pattern(self._gpu, int(gib * GIB), seconds)


class AllGpus:
    """Steps of the worker that uses all GPUs; `open` is the first one."""

    def __init__(self, count: int, plan: "Values") -> None:
        self._count, self._plan = count, plan
        self._folders = list(plan.get("folders") or ()) + list(FOLDERS)
        self._gpus = []  # type: list[Gpu]

    def __call__(self, name: str, arguments: "Any") -> "Any":
        """Carry out the step (method) of that name."""
        return getattr(self, name)(arguments)

    def open(self, _: "Any") -> int:
        """Create a context on every GPU and return their number."""
        driver = Driver()
        self._gpus = [Gpu(driver, index) for index in range(self._count)]
        return len(self._gpus)

    def pairs(self, seconds: float) -> "Any":
        """Measure copies between the GPUs opened by `open` in GB/s, see `between.pairs`."""
        return between.pairs(self._gpus, seconds)

    def collectives(self, arguments: "Any") -> "Values":
        """Measure collectives between the GPUs opened by `open`, see `between.Nccl.measure`.

        Args:
            arguments: sizes in MiB, and seconds for all of them.

        Returns:
            `sizes`, a row for each size, and NCCL's version, path, log and number of ranks.
        """
        sizes, seconds = arguments
        nccl = between.Nccl(self._gpus, self._folders)
        result = {"version": nccl.version, "library": nccl.path, "ranks": self._count}
        result["sizes"] = [nccl.measure(size * between.MIB, seconds / len(sizes)) for size in sizes]
        result["log"] = nccl.log()
        nccl.close()
        return result


def read_nvml(name: str, own: "Any") -> "Values":
    """Return readings of NVML, in a worker: `first_look` if `name` is `first`, `last_look` if it is `last`,
    otherwise `programs_after`.

    Args:
        own: of `programs_after`.
    """
    if name == "first":
        return watch.first_look()
    return watch.last_look() if name == "last" else watch.programs_after(own)


def main(plan: "Values") -> None:
    """Measure by the plan, print the document, end all processes and exit.

    Print nothing if the controller is gone.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    crew = Crew(time.monotonic() + plan["seconds"], beat=True)
    try:
        document = measure(crew, plan)
    except Gone:
        document = None
    finally:
        crew.end()
    if document is not None:
        say(plan["nonce"], document)
    os._exit(0)


def measure(crew: Crew, plan: "Values") -> "Values":
    """Examine the machine, load its GPUs, examine it again; return the document.

    If the GPUs must not be loaded, or programs use them after the load, which they may have used during it,
    too, it has `refused` with the reason, and no measurements but, after a load, the rows of the GPUs as
    `loaded`.

    Raises:
        Gone: the controller is gone.
    """
    begun = time.monotonic()
    result = {
        "schema": SCHEMA,
        "host": os.uname()[1],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "level": plan["level"],
    }  # type: Values
    looker = crew.hire("NVML", read_nvml)
    result["before"] = _unwrapped(crew.ask([looker], "first", None, START_S)[0])
    refused = refusal(result["before"], plan)
    if refused:
        return dict(result, refused=refused)
    unmeasured = dict(result)
    log = crew.hire("kernel log", watch.follow, free=True)
    sampler = crew.hire("samples", watch.sample, free=True)
    count = len(result["before"]["gpus"])
    together = crew.hire("all GPUs", AllGpus(count, plan)) if count > 1 else None
    result["gpus"] = load(crew, count, plan, together)
    if together is not None:
        result["between"] = measure_between(crew, together, plan)
    result["programs"] = _unwrapped(crew.ask([looker], "programs", crew.stuck(), START_S)[0])
    used = None if plan.get("busy") else in_use(result["programs"].get("programs", {}))
    if used:
        return dict(unmeasured, refused=used, loaded=result["gpus"])
    result["host_devices"] = host_devices(crew, plan["drive"])
    if dcgm.installed():
        run, seconds = plan["dcgm"]
        worker = crew.hire("DCGM", dcgm.diagnose)
        result["dcgm"] = _unwrapped(crew.ask([worker], "diag", [run, seconds], seconds + SPARE_S)[0])
        worker.end()
    result["after"] = _unwrapped(crew.ask([looker], "last", None, START_S)[0])
    result["after"]["xids"] = _xids(log)
    _attribute(result["gpus"], sampler.lines if sampler.alive else [])
    result["seconds"] = round(time.monotonic() - begun, 2)
    return result


def _xids(log: "Worker") -> "Values":
    """Return what the worker for the kernel's log knows; `error` if it cannot read one, as in containers."""
    if "lines" not in (log.answer or {}):
        return {"error": "no kernel log is read"}
    return (
        log.answer if log.alive else dict(log.answer, lost="the process that read the kernel's log was ended")
    )


def refusal(before: "Values", plan: "Values") -> "str | None":
    """Return why the GPUs must not be loaded, or None.

    Reasons are programs on them (unless the plan is `busy`), schedulers (unless it is `drained`), MIG, and a
    failed examination.

    Args:
        before: the result of `watch.first_look`, or `error`.
    """
    if "error" in before:
        return str(before["error"])
    if not before["gpus"]:
        return "no GPU answers"
    if before["programs"] and not plan.get("busy"):
        unknown = "NVML does not list the programs on GPU " + ", ".join(sorted(before["programs"]))
        return in_use(before["programs"]) or unknown
    if before["schedulers"] and not plan.get("drained"):
        return "{} may start jobs here".format(" and ".join(before["schedulers"]))
    if any(row["mig"] for row in before["counters"]):
        return "MIG is on: GPUs in parts are not measured"
    return None


def in_use(programs: "Values") -> "str | None":
    """Return which programs use the GPUs, or None if none is known.

    Args:
        programs: of `watch.first_look` or `watch.programs_after`.
    """
    listed = [
        "GPU {}: pid {} ({} MiB)".format(index, pid, mib)
        for index, rows in sorted(programs.items())
        for pid, mib in rows or ()
    ]
    return "GPUs are in use: " + ", ".join(listed[:8]) if listed else None


def load(crew: Crew, count: int, plan: "Values", together: "Worker | None" = None) -> "list[Values]":
    """Measure every GPU and return a row for each.

    Copies to the host are measured one GPU after the other, in equal shares of the planned seconds, the rest
    on all GPUs at once. Copies that were disturbed are measured again at the end, and the faster result
    counts. A GPU that did not start has no further steps; a failed step has `error`.

    Args:
        together: the worker that uses all GPUs; it opens them meanwhile.
    """
    workers = [crew.hire("GPU {}".format(index), OneGpu(index, plan)) for index in range(count)]
    rows = [{"index": index} for index in range(count)]  # type: list[Values]

    def step(name: str, key: str, arguments: "Any", seconds: float, chosen: "list[int]") -> None:
        asked = [index for index in chosen if "error" not in rows[index].get("device", {})]
        answers = crew.ask([workers[index] for index in asked], name, arguments, seconds)
        for index, answer in zip(asked, answers):
            rows[index][key] = _unwrapped(answer)

    every = list(range(count))
    step("start", "device", None, START_S, every)
    step("bandwidth", "memory", plan["memory"], plan["memory"] + SPARE_S, every)
    share = plan["host"] / count
    for index in every:
        step("host", "host", share, share + SPARE_S, [index])
    if together is not None:  # opening takes seconds; nothing is measured while the load is held
        crew.begin([together], "open", None)
    for kind in plan["kinds"]:
        if kind in KINDS:
            hold = plan["hold"] if kind == plan["kinds"][0] else 0.0
            step("matrix", kind, [kind, plan["matrix"], hold], plan["matrix"] + hold + SPARE_S, every)
    step("pattern", "pattern", plan["pattern"], plan["pattern"][1] + SPARE_S, every)
    for _ in range(AGAIN):
        _measure_again(rows, lambda index: step("host", "again", share, share + SPARE_S, [index]))
    end_all(workers)
    for row in rows:
        row["matrix"] = {kind: row.pop(kind) for kind in plan["kinds"] if kind in row}
    return rows


def _measure_again(rows: "list[Values]", copy: "Callable[[int], None]") -> None:
    """Measure copies to the host again where something disturbed them, and keep the faster rates.

    Args:
        copy: measures them on the GPU with this index; the result is `again` of its row.
    """
    for row in rows:
        first = row.get("host", {})
        if "error" not in first and memory.unsteady(first):
            copy(row["index"])
            row["host"] = memory.better(first, row.pop("again"))


def measure_between(crew: Crew, worker: "Worker", plan: "Values") -> "Values":
    """Measure copies between the GPUs, and the collectives; return `pairs` and `nccl`.

    Args:
        worker: the worker that uses all GPUs, which has been asked to open them.
    """
    opened = crew.finish([worker], START_S)[0]
    if "error" in opened:  # a GPU in compute mode exclusive process accepts one process at a time
        opened = crew.ask([worker], "open", None, START_S)[0]
    if "error" in opened:
        worker.end()
        return {"pairs": opened, "nccl": _unwrapped(opened)}
    pairs = crew.ask([worker], "pairs", plan["pairs"], plan["pairs"] + SPARE_S)[0]
    result = {"pairs": pairs.get("value", pairs)}  # type: Values
    seconds = plan["collectives"][1] + 2 * SPARE_S
    result["nccl"] = _unwrapped(crew.ask([worker], "collectives", plan["collectives"], seconds)[0])
    worker.end()
    return result


def host_devices(crew: Crew, seconds: float) -> "Values":
    """Measure the host's devices: read each NVMe drive for `seconds`, and list the network ports.

    A drive that cannot be read has `error` in `read`.
    """
    worker = crew.hire("drives", storage.measure)
    result = _unwrapped(crew.ask([worker], "list", None, SPARE_S)[0])
    for drive in result.get("drives", ()):
        drive["read"] = _unwrapped(crew.ask([worker], "read", [drive["name"], seconds], seconds + SPARE_S)[0])
        if not worker.alive:  # a drive that hangs must not stop the others
            worker = crew.hire("drives", storage.measure)
    worker.end()
    return result


def _unwrapped(answer: "Values") -> "Values":
    """Return the value of a worker's answer with the times of its begin and end, or `error`."""
    if "value" not in answer:
        return {"error": answer.get("error", "no answer")}
    value = answer["value"]  # type: Values
    return dict(value, begun=answer["begun"], ended=answer["ended"])


def _attribute(rows: "list[Values]", samples: "list[Any]") -> None:
    """Add as `load` to every product the `watch.sample_summary` of its GPU in its time window.

    Args:
        samples: of the whole load; none if the process that takes them ended before.
    """
    for row in rows:
        for result in row.get("matrix", {}).values():
            if "error" not in result:
                result["load"] = watch.sample_summary(samples, row["index"], *result["window"])
