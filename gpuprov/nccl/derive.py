"""NCCL's network environment, derived from a node's devices, each value with its reason.

Pure functions of interfaces and RDMA ports. The meaning of the variables is that of NCCL's user guide
(Environment Variables) and, for GLOO_SOCKET_IFNAME, of PyTorch's documentation of torch.distributed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuprov.finding import Finding
from gpuprov.model.nodeset import fold
from gpuprov.nccl.networks import Choice, NetworkInterface, choose
from gpuprov.nccl.rdma import Rails, RdmaPort, choose_rails, gid_index
from gpuprov.nccl.site import check_site

_JUMBO_FROM_MBITS = 10_000
_JUMBO_MTU = 4200  # RoCE's largest payload is 4096 bytes plus headers; switches are usually set to 9000


@dataclass(frozen=True)
class Decision:
    """The value of a variable and its reason; `site` if the site stated it."""

    value: str
    reason: str
    site: bool = False


@dataclass(frozen=True)
class Derived:
    """A node's NCCL environment.

    Attributes:
        variables: name → decision; without variables whose default in NCCL is best.
        excluded: interface or RDMA port → why it is not used.
        mtu: of the interfaces in use; None if unknown or different.
        findings: warnings for the administrator.
    """

    variables: dict[str, Decision]
    excluded: dict[str, str] = field(default_factory=dict)
    mtu: int | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables' names and values."""
        return {name: decision.value for name, decision in self.variables.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: variables with reasons, excluded devices, MTU and findings."""
        return {
            "variables": {name: asdict(decision) for name, decision in self.variables.items()},
            "excluded": self.excluded,
            "mtu": self.mtu,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def derive(
    nics: Sequence[NetworkInterface], hcas: Sequence[RdmaPort] = (), site: Mapping[str, str] | None = None
) -> Derived:
    """Derive a node's NCCL environment; return it with reasons and findings.

    Args:
        nics: its network interfaces.
        hcas: its RDMA ports.
        site: variables that the site states; they override, and must name existing devices.
    """
    sockets = choose(nics)
    rails = choose_rails(hcas, {nic.name: nic for nic in nics})
    variables = {**_sockets(sockets, rails), **_rdma(rails), **_cross_nic(sockets, rails)}
    findings = [*_doubts(sockets, rails, hcas), *_mtu(sockets, rails, nics)]
    for name, value in (site or {}).items():
        variables[name] = Decision(value, "stated by the site", site=True)
        findings += check_site(name, value, nics, hcas)
    taken = {nic.mtu for nic in sockets.nics}
    return Derived(
        dict(sorted(variables.items())),
        sockets.excluded | rails.excluded,
        taken.pop() if len(taken) == 1 else None,
        tuple(findings),
    )


def _sockets(choice: Choice, rails: Rails) -> dict[str, Decision]:
    """Return the interfaces for NCCL and Gloo, none without a usable one; with RDMA they carry only the first
    contact, so one is enough. The address family is added if they have only IPv6.
    """
    if not choice.nics:
        return {}
    used = choice.nics[:1] if rails.hcas else choice.nics
    first = used[0].name
    reason = f"{choice.reason}; first contact only, data goes over RDMA" if rails.hcas else choice.reason
    found = {
        "NCCL_SOCKET_IFNAME": Decision("=" + ",".join(nic.name for nic in used), reason),
        "GLOO_SOCKET_IFNAME": Decision(first, f"as NCCL: {choice.reason}; Gloo takes one, without `=`"),
    }
    if all(nic.ipv6_only for nic in used):
        found["NCCL_SOCKET_FAMILY"] = Decision("AF_INET6", f"{first} has IPv6 addresses only")
    return found


def _rdma(rails: Rails) -> dict[str, Decision]:
    """Return the variables of RDMA: off without usable ports, else the ports, and for RoCE the GID index if
    it is known.
    """
    if not rails.hcas:
        return {"NCCL_IB_DISABLE": Decision("1", rails.reason)}
    found = {
        "NCCL_IB_DISABLE": Decision("0", rails.reason),
        "NCCL_IB_HCA": Decision("=" + ",".join(map(str, rails.hcas)), rails.reason),
    }
    if rails.roce:
        index, reason = gid_index(rails.hcas)
        if index is not None:
            found["NCCL_IB_GID_INDEX"] = Decision(str(index), reason)
    return found


def _cross_nic(choice: Choice, rails: Rails) -> dict[str, Decision]:
    """Return whether a ring may enter a node by one NIC and leave by another; nothing without a network."""
    count = len(rails.hcas) or len(choice.nics)
    if count == 0:
        return {}
    if count == 1:
        return {"NCCL_CROSS_NIC": Decision("0", "one rail: there is nothing to cross")}
    if not rails.hcas or rails.roce:
        networks = _networks(choice.nics)
        if len(networks) == len(choice.nics) > 1:
            reason = f"{len(networks)} rails, each a network of its own: none reaches another"
            return {"NCCL_CROSS_NIC": Decision("0", reason)}
    return {"NCCL_CROSS_NIC": Decision("2", f"{count} rails on one fabric: the same NIC where possible")}


def _networks(nics: Iterable[NetworkInterface]) -> set[str]:
    """Return the networks of the interfaces' first routable addresses."""
    return {str(nic.routable[0].network) for nic in nics if nic.routable}


def _doubts(choice: Choice, rails: Rails, hcas: Sequence[RdmaPort]) -> list[Finding]:
    """Return findings about the choice: doubts, no usable interface (bad), unused RDMA ports, EFA, and RoCE
    without known GIDs.
    """
    found = [Finding("warn", "network.doubt", doubt) for doubt in choice.doubts]
    if not choice.nics:
        found.append(Finding("bad", "network.none", f"{choice.reason}: {_listed(choice.excluded)}"))
    idle = [hca for hca in hcas if not hca.is_efa]
    if idle and not rails.hcas:
        found.append(Finding("warn", "rdma.unused", rails.reason))
    if any(hca.is_efa for hca in hcas):
        text = "the node has EFA: without the aws-ofi-nccl plugin NCCL uses plain sockets"
        found.append(Finding("warn", "rdma.efa", text))
    if rails.roce and not any(gid.type for hca in rails.hcas for gid in hca.gids):
        found.append(Finding("warn", "rdma.gid", gid_index(rails.hcas)[1]))
    return found


def _mtu(choice: Choice, rails: Rails, nics: Sequence[NetworkInterface]) -> list[Finding]:
    """Return a warning about an MTU below `_JUMBO_MTU` on Ethernet of 10 Gbit/s or more that carries data,
    which costs throughput; otherwise nothing.
    """
    roce = {name for hca in rails.hcas for name in hca.interfaces} if rails.roce else set()
    data = [nic for nic in nics if nic.name in roce] or ([] if rails.hcas else list(choice.nics))
    small = [
        nic
        for nic in data
        if nic.mtu and nic.mtu < _JUMBO_MTU and (nic.speed or 0) >= _JUMBO_FROM_MBITS and not nic.infiniband
    ]
    if not small:
        return []
    names = ", ".join(f"{nic.name} ({nic.mtu})" for nic in small)
    return [
        Finding("warn", "network.mtu", f"small MTU on fast links: {names}; 9000 if the switches carry it")
    ]


def _listed(excluded: Mapping[str, str]) -> str:
    """Return the excluded interfaces with the reasons as text."""
    return ", ".join(f"{name} ({why})" for name, why in excluded.items()) or "there are no interfaces"


def agree(nodes: Mapping[str, Derived]) -> list[Finding]:
    """Compare the variables and the MTU of a group's nodes; return a finding for each value that differs from
    the most frequent one.
    """
    names = sorted({name for derived in nodes.values() for name in derived.variables})
    found = []
    for name in [*names, "MTU"]:
        groups: dict[str, list[str]] = defaultdict(list)
        for node, derived in nodes.items():
            groups[_shown(derived, name)].append(node)
        common, count = Counter({value: len(members) for value, members in groups.items()}).most_common(1)[0]
        for value, members in groups.items():
            if value != common:
                most = f"{common} on {count} other{'s' if count > 1 else ''}"
                text = f"{fold(members)}: {name} is {value}, {most}"
                found.append(Finding("bad", "group.odd", text))
    return found


def _shown(derived: Derived, name: str) -> str:
    """Return a variable's value, or the MTU, as text; `not set` or `not known` without it."""
    if name == "MTU":
        return str(derived.mtu or "not known")
    decision = derived.variables.get(name)
    return decision.value if decision else "not set"
