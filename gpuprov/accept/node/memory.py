"""Tests of a GPU's own memory and of copies to and from the host's memory."""

import os
import random
import time
from ctypes import byref, c_ulonglong, c_void_p

from gpuprov.accept.node import kernels
from gpuprov.accept.node.cuda import PLAIN
from gpuprov.probe.node.base import Failed, read_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprov.accept.node.cuda import Gpu
    from gpuprov.probe.node.base import Values

MIB = 1024 * 1024
GIB = 1024 * MIB
RESERVE = 2 * GIB
"""Bytes of a GPU's free memory that the test does not allocate."""
BLOCK = 1 * GIB
"""Bytes of one allocation of the test."""
STEADY = 0.95
"""Least share of the slowest batch in the fastest one of a copy that nothing disturbs; 0.99 was measured."""
PATTERNS = ((PLAIN, 0), (PLAIN, 0xFFFFFFFF))
"""A hash of the address and its complement: every bit holds both values, and no two words are equal."""


def check_kernels(gpu: "Gpu") -> "Values":
    """Check a pattern written by the GPU against the host's computation; return the number of checked
    `words`, and True as `right`.

    The comparing kernel is checked as well, with an equal and an inverse pattern.

    Raises:
        Failed: they differ; the message has the first wrong word.
    """
    size = 64 * MIB
    address = gpu.allocate(size)
    seed = random.getrandbits(32)
    gpu.fill(address, size, seed)
    gpu.wait()
    places = [0, size // 4 - 4] + [random.randrange(size // 16) * 4 for _ in range(62)]
    for place in places:
        for offset, result in enumerate(memoryview(gpu.read(address + place * 4, 16)).cast("I")):
            right = kernels.word(place + offset, seed, 0, 0, 0xFFFFFFFF)
            if result != right:
                raise Failed("word {} is {:#010x}, expected {:#010x}".format(place + offset, result, right))
    differs = gpu.check(address, size, seed)
    # the comparing kernel must be able to fail: the complement differs in every word
    inverse = gpu.check(address, size, seed, flip=0xFFFFFFFF)
    gpu.free(address)
    if differs or not inverse or inverse["words"] != size // 4:
        raise Failed(
            "the comparing kernel reports {} for its own pattern and {} for the inverse".format(
                differs, inverse
            )
        )
    return {"words": len(places) * 4, "right": True}


def bandwidth(gpu: "Gpu", seconds: float) -> "Values":
    """Measure the GPU's memory in GB/s: `read`, `copy` by a kernel, and `driver_copy`, each for a third of
    `seconds`.

    Copies count both directions.

    Raises:
        Failed: too little memory is free, or a copy is wrong.
    """
    size = min(4 * GIB, (gpu.memory()[0] - RESERVE) // 2 // (64 * MIB) * (64 * MIB))
    if size < 256 * MIB:
        raise Failed("{} MiB of memory are free".format(gpu.memory()[0] // MIB))
    source, target = gpu.allocate(size), gpu.allocate(size)
    gpu.fill(source, size, 1)
    gpu.fill(target, size, 2)
    arguments = c_ulonglong(source), c_ulonglong(size // 16), c_ulonglong(target)

    def copy() -> None:
        gpu.launch("copy", *arguments)

    def copy_by_driver() -> None:
        gpu.call("cuMemcpyDtoDAsync_v2", target, source, size, gpu.stream)

    result = {
        "read": gpu.rate(lambda: gpu.start_checksum(source, size), size / 1e9, seconds / 3),
        "copy": gpu.rate(copy, 2 * size / 1e9, seconds / 3),
    }
    wrong = gpu.check(target, size, 1)
    if wrong:
        raise Failed("a copy within its memory differs from the original: {}".format(wrong))
    result["driver_copy"] = gpu.rate(copy_by_driver, 2 * size / 1e9, seconds / 3)
    gpu.free(source, target)
    return result


def pattern(gpu: "Gpu", most: int, seconds: float) -> "Values":
    """Write and check patterns over most of the free memory, in blocks.

    `RESERVE` stays free. Returns bytes, the free memory before, passes and seconds, and as `wrong` up to 16
    differences with their block.

    Args:
        most: bytes at most.
        seconds: after which no further pattern starts; each pattern is written at least once.

    Raises:
        Failed: too little memory is free for one block in addition to `RESERVE`.
    """
    begun = time.monotonic()
    free = gpu.memory()[0]
    count = min(most, free - RESERVE) // BLOCK
    if count < 1:
        seen = "{} MiB of memory are free".format(free // MIB)
        raise Failed("{}, expected at least {}: nothing was tested".format(seen, (RESERVE + BLOCK) // MIB))
    blocks = []
    try:
        for _ in range(count):
            blocks.append(gpu.allocate(BLOCK))
    except Failed:
        if not blocks:
            raise
    wrong, passes = [], 0  # type: list[Values], int
    while blocks and (passes < len(PATTERNS) or time.monotonic() - begun < seconds):
        shape, flip = PATTERNS[passes % len(PATTERNS)]
        salt = random.getrandbits(32)
        for place, address in enumerate(blocks):
            gpu.fill(address, BLOCK, salt ^ place * 0x9E3779B1 & 0xFFFFFFFF, shape, flip)
        for place, address in enumerate(blocks):
            differs = gpu.check(address, BLOCK, salt ^ place * 0x9E3779B1 & 0xFFFFFFFF, shape, flip)
            if differs and len(wrong) < 16:
                wrong.append(dict(differs, block=place))
        passes += 1
    gpu.free(*blocks)
    return {
        "bytes": len(blocks) * BLOCK,
        "free": free,
        "passes": passes,
        "wrong": wrong,
        "seconds": round(time.monotonic() - begun, 3),
    }


def host_copies(gpu: "Gpu", bus_id: str, seconds: float) -> "Values":
    """Measure copies in GB/s to and from pinned memory of the GPU's NUMA node and of another one.

    The keys end with `near` and `far`. The other node is the highest-numbered one whose processors this
    process may use; it may be missing. The thread is bound to the node's processors meanwhile, so that its
    memory is allocated there. If the GPU's node is not known or not usable, and several others are, `near` is
    None, its copies are made without binding, and there are no others.

    Args:
        bus_id: the GPU's PCI address.
        seconds: for all copies together.

    Raises:
        Failed: the data changes.
    """
    nodes, stated = numa_nodes(), _node_of(bus_id)
    allowed = os.sched_getaffinity(0)
    usable = sorted(node for node, processors in nodes.items() if processors & allowed)
    near = stated if stated in usable else (usable[0] if len(usable) == 1 else None)
    far = next((node for node in reversed(usable) if node != near), None) if near is not None else None
    result = {"stated": stated, "near": near, "far": far}  # type: Values
    places = [("near", near)] + ([("far", far)] if far is not None else [])
    for name, node in places:
        try:
            if node is not None:
                os.sched_setaffinity(0, nodes[node] & allowed)
            copies = _host_copies(gpu, seconds / len(places))
        finally:
            os.sched_setaffinity(0, allowed)
        result.update({"{}_{}".format(direction, name): rate for direction, rate in copies.items()})
    return result


def _host_copies(gpu: "Gpu", seconds: float) -> "Values":
    """Return the rates of copies to (`h2d`) and from (`d2h`) pinned memory in GB/s.

    Raises:
        Failed: the data changes.
    """
    size = 256 * MIB
    device, back, host = gpu.allocate(size), gpu.allocate(size), c_void_p()
    gpu.call("cuMemAllocHost_v2", byref(host), size)
    try:
        gpu.fill(device, size, 7)
        gpu.wait()
        there = gpu.rate(
            lambda: gpu.call("cuMemcpyDtoHAsync_v2", host, device, size, gpu.stream), size / 1e9, seconds / 2
        )
        here = gpu.rate(
            lambda: gpu.call("cuMemcpyHtoDAsync_v2", back, host, size, gpu.stream), size / 1e9, seconds / 2
        )
        wrong = gpu.check(back, size, 7)
    finally:
        gpu.call("cuMemFreeHost", host)
        gpu.free(device, back)
    if wrong:
        raise Failed("what went to the host and back differs: {}".format(wrong))
    return {"h2d": here, "d2h": there}


def unsteady(copies: "Values") -> bool:
    """Return whether batches of a rate of `host_copies` vary: the slowest one is below `STEADY` of the
    fastest.

    Another program, or another virtual machine of the host, that uses the link or the memory slows single
    batches; a link with fewer lanes or of a slower generation slows all of them.
    """
    return any(rate["least"] < STEADY * rate["most"] for rate in _copies(copies).values())


def better(copies: "Values", again: "Values") -> "Values":
    """Return the faster rate of each kind of two results of `host_copies`, or `again` if it is an error.

    `tries` is how often they were measured, `first` has the values of the first time.
    """
    if "error" in again:
        return again
    result = dict(copies, tries=copies.get("tries", 1) + 1)
    result.setdefault("first", {name: rate["value"] for name, rate in _copies(copies).items()})
    for name, rate in _copies(again).items():
        if rate["value"] > copies[name]["value"]:
            result[name] = rate
    return result


def _copies(result: "Values") -> "dict[str, Values]":
    """Return the rates in a result of `host_copies`."""
    return {name: rate for name, rate in result.items() if isinstance(rate, dict) and "value" in rate}


def numa_nodes() -> "dict[int, set[int]]":
    """Return NUMA node → its processors, without nodes that have none; if there is no other, 0 → the allowed
    processors.
    """
    folder, found = "/sys/devices/system/node", {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        listed = (read_or_none(os.path.join(folder, name, "cpulist")) or "").strip()
        if name.startswith("node") and name[4:].isdecimal() and listed:
            found[int(name[4:])] = _processors(listed)
    return found or {0: set(os.sched_getaffinity(0))}


def _processors(listed: str) -> "set[int]":
    """Return the numbers in a list of processors such as `0-3,8`."""
    found = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _node_of(bus_id: str) -> "int | None":
    """Return the kernel's NUMA node of a PCI device, or None if it has none."""
    domain, _, rest = bus_id.rpartition(":")[0].partition(":")
    address = "{}:{}:{}".format(domain[-4:], rest, bus_id.rpartition(":")[2])
    result = (read_or_none("/sys/bus/pci/devices/{}/numa_node".format(address)) or "-1").strip()
    return int(result) if result.isdecimal() else None
