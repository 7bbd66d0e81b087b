"""Parser of a log of NCCL_DEBUG=INFO, in one pass; parts may be missing, other output may be mixed in.

Memory grows with the number of ranks and of communicating pairs up to a limit, not with the length of the
log: its author may be any user of a node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, TextIO, TypeVar

from gpuprov.nccl import lines
from gpuprov.nccl.bandwidth import Results
from gpuprov.nccl.communicators import Communicators, Process
from gpuprov.nccl.complaints import Complaints

SCHEMA = "gpuprov.nccl/1"
K = TypeVar("K")

_LONGEST_LINE, _LONGEST_REMARK = 1 << 16, 1 << 12
PATHS, RANKS, PORTS, VALUES = 1 << 21, 1 << 20, 1 << 16, 256
"""Maximum numbers of connections, of ranks that nccl-tests lists, of interfaces and RDMA ports, and of
variables, of values of one, of networks and of versions; further ones are ignored."""
_NCCL_TESTS_RANK = re.compile(r"#\s+Rank\s+(\d{1,18})\s")
_NCCL_TESTS_HOST = re.compile(r"\bPid\s+\d{1,18}\s+on\s+(\S{1,64})\s+device\s+\d")
_PROVIDER = re.compile(r"Selected Provider is (\w+)", re.IGNORECASE)
_NVLS_USED = re.compile(r"NVLS comm 0x|Connected NVLS|[1-9]\d{0,5} nvls channels")
_NO_P2P = re.compile(r"Could not enable P2P|P2P is disabled between", re.IGNORECASE)
_NO_PEER = ("peer access ", " not supported")
_DRIVER_CUDA = re.compile(r"cudaDriverVersion (\d{1,18})\b")


class NcclLog:
    """Contents of a log; `feed` it line by line, then read the properties. Some are computed once."""

    def __init__(self) -> None:
        self.messages = 0
        self.versions: Counter[tuple[str, str | None]] = Counter()
        self.driver_cuda: str | None = None
        self.communicators = Communicators()
        self.environment: dict[str, Counter[str]] = defaultdict(Counter)
        self.interfaces: set[lines.Interface] = set()
        self.hcas: set[lines.LoggedHca] = set()
        self.networks: Counter[str] = Counter()
        self.provider: str | None = None
        self.gdrdma_refused = self.nvls = self.p2p_refused = self.multi_node_nvlink = False
        self.network_lines = self.gdrdma_lines = 0
        self.complaints = Complaints()
        self.results = Results()
        self.paths: Counter[tuple[Process, int, int | None, bool, str]] = Counter()
        self._listed_ranks: dict[int, str] = {}

    def feed(self, line: str) -> None:
        """Parse one line of a log: NCCL's messages in it, or a result or remark of another program."""
        if "CCL " in line:
            spoke = False
            for said in lines.messages(line):
                spoke = True
                self._hear(said)
            if spoke:
                return
        self._other(line[:_LONGEST_REMARK])

    def _hear(self, said: lines.Message) -> None:
        """Parse one message of NCCL by its kind: warning, path, communicator, variable, network or other."""
        self.messages += 1
        text = said.text
        if said.level == "WARN":
            self.complaints.warned(text)
        elif " via " in text:
            self._path(said)
        elif "comm 0x" in text:
            self._member(said)
        elif " set " in text and (variable := lines.environment(text)):
            if variable[0] in self.environment or len(self.environment) < VALUES:
                _count(self.environment[variable[0]], variable[1], VALUES)
        elif text.startswith(("Bootstrap", "NET/")):
            self._network_line(text)
        else:
            self._remark(text)

    def _other(self, line: str) -> None:
        """Parse a line without NCCL's prefix: a result, or a line of a launcher or a framework."""
        if "CCL version" in line:
            self._version(line)
        if "ccl" in line or "NCCL" in line:
            self.complaints.feed(line)
        rank = _NCCL_TESTS_RANK.search(line) if "#" in line else None
        if rank and (host := _NCCL_TESTS_HOST.search(line, rank.end())):
            if len(self._listed_ranks) < RANKS:
                self._listed_ranks[int(rank[1])] = host[1]
        else:
            self.results.feed(line)

    def _path(self, said: lines.Message) -> None:
        """Count the connection that a message reports."""
        path = lines.path(said.text)
        if path is None:
            return
        self.network_lines += path.transport.startswith("NET")
        self.gdrdma_lines += path.gdrdma
        key = ((said.host, said.pid), path.source, path.target, path.receiving, path.transport)
        _count(self.paths, key, PATHS)

    def _member(self, said: lines.Message) -> None:
        """Add a rank of a communicator, and whether NVLS is used."""
        if _NVLS_USED.match(said.text):
            self.nvls = True
        member = lines.member(said.text)
        if member is None:
            return
        self.multi_node_nvlink |= member.multi_node_nvlink
        self.communicators.hear((said.host, said.pid), member)

    def _network_line(self, text: str) -> None:
        """Add the interfaces and RDMA ports in use, the provider, and whether GPUDirect RDMA is refused."""
        if len(self.interfaces) < PORTS:
            self.interfaces.update(lines.interfaces(text))
        if len(self.hcas) < PORTS:
            self.hcas.update(lines.hcas(text))
        if "GPU Direct RDMA Disabled" in text:
            self.gdrdma_refused = True
        if provider := _PROVIDER.search(text):
            self.provider = provider[1]

    def _remark(self, text: str) -> None:
        """Parse other messages: network, version, use of NVLS, refused P2P, the driver's CUDA version."""
        if text.startswith("Using network "):
            _count(self.networks, text.removeprefix("Using network ").strip()[:_LONGEST_REMARK], VALUES)
        elif "CCL version" in text:
            self._version(text)
        elif _NVLS_USED.search(text):
            self.nvls = True
        elif _NO_P2P.search(text) or _NO_PEER[1] in text.lower().partition(_NO_PEER[0])[2]:
            self.p2p_refused = True
        elif found := _DRIVER_CUDA.search(text):
            number = int(found[1])
            self.driver_cuda = f"{number // 1000}.{number % 1000 // 10}"

    def _version(self, text: str) -> None:
        """Count the version that a line states."""
        if stated := lines.version(text):
            _count(self.versions, stated, VALUES)

    # --- results ------------------------------------------------------------------------------------------

    @property
    def version(self) -> tuple[str, str | None] | None:
        """Return NCCL's version and the CUDA version that it was built for, as most lines state them; None if
        no line does. Lines without a CUDA version count only if no line has one.
        """
        stated = [(entry, count) for entry, count in self.versions.items() if entry[1]] or list(
            self.versions.items()
        )
        return max(stated, key=lambda entry: entry[1])[0] if stated else None

    @property
    def ranks(self) -> int | None:
        """Return the number of ranks of the job; None if no line states it."""
        job = self.communicators.largest
        return job.nranks if job else len(self._listed_ranks) or None

    @cached_property
    def hosts(self) -> list[str]:
        """Return the hosts that appear in the log."""
        named = {host for comm in self.communicators for host in comm.hosts.values() if host}
        named |= {process[0] for process, *_ in self.paths if process[0]}
        return sorted(named | set(self._listed_ranks.values()))

    @property
    def nodes(self) -> int | None:
        """Return the number of machines that take part; None if it is unknown.

        NCCL's own count holds unless it contradicts the host names: without P2P and shared memory NCCL counts
        every rank as a separate node, and containers of one machine have different host names.
        """
        comm, hosts = self.communicators.largest, len(self.hosts)
        if comm is None or comm.layout is None:
            return hosts or None
        claimed, local_ranks = comm.layout
        crowd = max(Counter(host for host in comm.hosts.values() if host).values(), default=0)
        if crowd > local_ranks:
            return hosts
        return claimed

    @cached_property
    def transports(self) -> dict[str, dict[str, int]]:
        """Return the connections by transport, within nodes (`intra`) and between them (`inter`).

        A NET connection has a line on each side; it counts once even if one side's lines are missing. One
        whose place the log does not show counts as `inter`, unless the log has at most one node.
        """
        sides: dict[str, dict[str, list[int]]] = {"intra": {}, "inter": {}}
        alone = (self.nodes or 1) == 1
        for (process, source, target, receiving, transport), count in self.paths.items():
            known = self._within(process, source, target, receiving, transport)
            within = alone if known is None else known
            sides["intra" if within else "inter"].setdefault(transport, [0, 0])[receiving] += count
        return {
            side: {transport: max(counts) for transport, counts in sorted(found.items())}
            for side, found in sides.items()
        }

    def _within(
        self, process: Process, source: int, target: int | None, receiving: bool, transport: str
    ) -> bool | None:
        """Return whether a connection stays on one machine; None if the log does not show it."""
        if transport == "SHM" or (transport.startswith("P2P") and not self.multi_node_nvlink):
            return True
        if target is None:
            return False
        own, peer = (target, source) if receiving else (source, target)
        known = self.communicators.same_node(process, own, peer)
        return True if known is None and transport.startswith("P2P") else known

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without the verdict: schema gpuprov.nccl/1."""
        version = self.version
        return {
            "schema": SCHEMA,
            "version": version[0] if version else None,
            "cuda": version[1] if version else None,
            "cuda_driver": self.driver_cuda,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "hosts": self.hosts,
            "communicators": [comm.as_dict() for comm in self.communicators],
            "transports": self.transports,
            "network": self.network,
            "gdrdma": self.gdrdma,
            "nvls": self.nvls,
            "interfaces": sorted({interface.name for interface in self.interfaces}),
            "interface_uses": [vars(interface) for interface in sorted(self.interfaces)],
            "hcas": [str(hca) for hca in sorted(self.hcas)],
            "hca_links": {str(hca): hca.link for hca in sorted(self.hcas)},
            "environment": {
                name: values.most_common(1)[0][0] for name, values in self.environment.items() if values
            },
            "warnings": self.complaints.warnings,
            "errors": self.complaints.errors,
            "bus_bandwidth": self.results.as_dict(),
        }

    @property
    def gdrdma(self) -> bool:
        """Return whether any connection moves data between GPU and NIC without host memory."""
        return self.gdrdma_lines > 0

    @property
    def network(self) -> str | None:
        """Return the network that NCCL reports (`IB`, `Socket`, `AWS Libfabric`); None
        if no line states it.
        """
        return self.networks.most_common(1)[0][0] if self.networks else None


def _count(counter: Counter[K], key: K, most: int) -> None:
    """Count a key; a new one is ignored if there are as many others."""
    if key in counter or len(counter) < most:
        counter[key] += 1


def read_log(streams: Iterable[TextIO]) -> NcclLog:
    """Read one log, or one job's log in several files, one after the other."""
    log = NcclLog()
    for stream in streams:
        for line in _lines(stream):
            log.feed(line)
    return log


def _lines(stream: TextIO) -> Iterator[str]:
    """Yield the lines of a stream; split overlong lines to bound the memory."""
    while line := stream.readline(_LONGEST_LINE):
        yield line
