"""Checks of a site's own values for NCCL's network variables: they must name devices of the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuprov.finding import Finding
from gpuprov.nccl.networks import NetworkInterface, reason_against
from gpuprov.nccl.rdma import RdmaPort


def check_site(
    name: str, value: str, nics: Sequence[NetworkInterface], hcas: Sequence[RdmaPort]
) -> list[Finding]:
    """Return findings about a site's value; none for a correct value or a variable that names no device."""
    if name == "NCCL_SOCKET_IFNAME":
        return _interfaces(name, {*matching(value, [nic.name for nic in nics])}, value, nics)
    if name == "GLOO_SOCKET_IFNAME":
        wanted = {part.strip() for part in value.split(",")}
        return _interfaces(name, {nic.name for nic in nics if nic.name in wanted}, value, nics)
    if name == "NCCL_IB_HCA":
        return _ports({*matching(value, [str(hca) for hca in hcas])}, value, hcas)
    return []


def matching(value: str, names: Sequence[str]) -> list[str]:
    """Return the names that an NCCL list selects: `=` exact, `^` all but these, `^=` both, otherwise by
    prefix.

    A device of `NCCL_IB_HCA` without a port means all its ports.
    """
    negated = value.startswith("^")
    exact = value.removeprefix("^").startswith("=")
    parts = [part.strip() for part in value.lstrip("^").removeprefix("=").split(",") if part.strip()]
    fits: Callable[[str, str], bool] = _is if exact else _begins
    return [name for name in names if any(fits(name, part) for part in parts) != negated]


def _is(name: str, part: str) -> bool:
    """Return whether a device has this name; a name without a port fits all ports."""
    return name == part or (":" not in part and name.partition(":")[0] == part)


def _begins(name: str, part: str) -> bool:
    return name.startswith(part)


def _interfaces(name: str, chosen: set[str], value: str, nics: Sequence[NetworkInterface]) -> list[Finding]:
    """Return a finding if a value selects no interface, or only ones that cannot carry traffic between nodes
    (bad), or some such (a warning); [] otherwise.
    """
    if not chosen:
        have = ", ".join(nic.name for nic in nics) or "none"
        return [Finding("bad", "site.missing", f"{name}={value} fits no interface of the node ({have})")]
    unfit = {nic.name: reason_against(nic) for nic in nics if nic.name in chosen}
    bad = [f"{nic} ({why})" for nic, why in unfit.items() if why]
    if len(bad) == len(chosen):
        return [Finding("bad", "site.unfit", f"{name}={value} takes {', '.join(bad)}")]
    if bad:
        return [Finding("warn", "site.unfit", f"{name}={value} also takes {', '.join(bad)}")]
    return []


def _ports(chosen: set[str], value: str, hcas: Sequence[RdmaPort]) -> list[Finding]:
    """Return findings if a value selects no RDMA port (bad), or ports that are not active (a warning); []
    otherwise.
    """
    if not chosen:
        have = ", ".join(map(str, hcas)) or "none"
        return [Finding("bad", "site.missing", f"NCCL_IB_HCA={value} fits no RDMA port of the node ({have})")]
    down = [str(hca) for hca in hcas if str(hca) in chosen and hca.state.upper() != "ACTIVE"]
    if down:
        return [
            Finding(
                "warn",
                "site.unfit",
                f"NCCL_IB_HCA={value} takes ports that are not active: {', '.join(down)}",
            )
        ]
    return []
