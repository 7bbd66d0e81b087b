"""One node among several: joins groups by orders, one a line, and measures the links to the other nodes.

Nodes connect only through NCCL; the controller passes its id from one node to the others.
"""

import json
import mmap
import os
import signal
import struct
import sys
import time

from gpuprov.accept.node.main import START_S, read_nvml, refusal
from gpuprov.accept.node.member import Member
from gpuprov.accept.node.storage import rdma_ports
from gpuprov.accept.node.workers import Crew, Gone, Worker
from gpuprov.probe.node.base import Failed, names_in
from gpuprov.probe.node.main import say
from gpuprov.probe.node.network import interface_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprov.probe.node.base import Values


def hardware_addresses(root: str = "/sys") -> "list[str]":
    """Return ADDRESS/PREFIX of every interface of hardware, also through bonds, VLANs and bridges; [] if the
    kernel does not answer.

    The networks of containers and virtual machines, which other nodes have, too, are left out.
    """
    try:
        found = interface_addresses()
    except OSError:
        return []
    return [address for name in sorted(found) if _is_hardware(name, root) for address in found[name]]


def _is_hardware(name: str, root: str, depth: int = 4) -> bool:
    """Return whether an interface, or one of those below it down to `depth` levels, belongs to a device."""
    folder = "{}/class/net/{}".format(root, name)
    lower = [each[len("lower_") :] for each in names_in(folder) if each.startswith("lower_")]
    device = os.path.exists(folder + "/device")
    return device or (depth > 0 and any(_is_hardware(each, root, depth - 1) for each in lower))


class Node:
    """The program's state: it examines the machine by the order `look`, then passes orders to a `Member`."""

    def __init__(self, crew: Crew, plan: "Values") -> None:
        self._crew, self._plan = crew, plan
        self._progress = mmap.mmap(-1, 8)
        self._indices = []  # type: list[int]
        self._worker = None  # type: Worker | None

    def carry_out(self, order: "Values") -> "Values":
        """Carry out one order and return `value`, or `error` with the step and the member that it waited for.

        The order `look` examines the machine and returns a description or `refused`. After an error the
        worker is ended; the next order gets a new one.

        Args:
            order: `do`, its name; `with`, its arguments; `seconds`, its time limit.

        Raises:
            Gone: the controller is gone.
        """
        name = order["do"]
        if name == "look":
            return self._look()
        worker = self._hired()
        answer = self._crew.ask([worker], name, order.get("with"), order["seconds"])[0]
        if "error" not in answer:
            return {"value": answer["value"]}
        # A broken communicator takes the process with it; the next order gets a new one.
        worker.end()
        step, member = struct.unpack("<ii", self._progress[:8])
        return {"error": answer["error"], "step": step, "member": member}

    def _hired(self) -> "Worker":
        """Return the worker that holds the GPUs; start a new one if the last one died."""
        if self._worker is None or not self._worker.alive:
            member = Member(self._indices, list(self._plan.get("folders") or ()), self._progress)
            self._worker = self._crew.hire("NCCL", member)
        return self._worker

    def _look(self) -> "Values":
        """Examine the GPUs by NVML, in a worker, and keep the indexes of those to load, by default all.

        Return host, indexes and names of these GPUs, the fewest active NVLinks of a GPU, RDMA ports and
        addresses; or only `refused`: why not to load it, see `refusal`.
        """
        looker = self._crew.hire("NVML", read_nvml)
        answer = self._crew.ask([looker], "first", None, START_S)[0]
        looker.end()
        before = answer.get("value", {"error": answer.get("error", "no answer")})  # type: Values
        refused = refusal(before, self._plan)
        if refused:
            return {"refused": refused}
        stated = self._plan.get("gpus")
        self._indices = [row["index"] for row in before["gpus"] if stated is None or row["index"] in stated]
        links = [row["nvlinks"]["up"] for row in before["counters"]]
        return {
            "host": os.uname()[1],
            "gpus": self._indices,
            "names": [row["name"] for row in before["gpus"]],
            "nvlinks": min(links) if links else 0,
            "rdma": rdma_ports(),
            "addresses": hardware_addresses(),
        }


def main(plan: "Values") -> None:
    """Carry out orders, one JSON object a line of the input, until it ends; then end all processes and exit.

    Each answer is written with the order's `nonce`. The plan's `environment` is set, and SIGALRM ends the
    program after its `seconds`.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update(plan.get("environment") or {})
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.alarm(int(plan["seconds"]))  # if the controller is cut off without closing the connection
    crew = Crew(time.monotonic() + plan["seconds"], beat=True)
    node = Node(crew, plan)
    try:
        for line in sys.stdin.buffer:
            order = json.loads(line.decode())
            try:
                result = node.carry_out(order)
            except Failed as failed:
                result = {"error": str(failed)}
            say(order["nonce"], result)
    except (Gone, OSError, ValueError):
        pass
    finally:
        crew.end()
    os._exit(0)
