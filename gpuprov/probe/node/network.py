"""Addresses and default routes from the kernel, for nodes without `ip`."""

import socket
import struct

from gpuprov.probe.node.base import lines_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# rtnetlink(7), netlink(7)
RTM_NEWADDR, RTM_GETADDR, NLMSG_DONE, NLMSG_ERROR = 20, 22, 3, 2
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEADER, ADDRESS, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
RTF_REJECT = 0x200


def interface_addresses() -> "dict[str, list[str]]":
    """Return interface -> its addresses, ADDRESS/PREFIX, in the kernel's order."""
    names = dict(socket.if_nameindex())
    found = {}  # type: dict[str, list[str]]
    for index, address in _dump():
        found.setdefault(names.get(index, str(index)), []).append(address)
    return found


def default_routes() -> "set[str]":
    """Return the interfaces of IPv4 and IPv6 default routes; a kernel may lack one of the families.

    Routes that reject packets, and lo, are left out.
    """
    four = [line.split() for line in lines_in("/proc/net/route")[1:]]
    six = [line.split() for line in lines_in("/proc/net/ipv6_route")]
    found = {row[0] for row in four if row[1] == row[7] == "00000000" and not int(row[3], 16) & RTF_REJECT}
    found |= {row[9] for row in six if row[1] == "00" and not int(row[8], 16) & RTF_REJECT}
    return found - {"lo"}


def _dump() -> "Iterator[tuple[int, str]]":
    """Yield interface index and ADDRESS/PREFIX of every IPv4 and IPv6 address, from the kernel by netlink.

    OSError if it does not answer within 5 s.
    """
    request = ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    header = HEADER.pack(HEADER.size + len(request), RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5)
        kernel.send(header + request)
        while True:
            answer = kernel.recv(1 << 16)
            while answer:
                size, kind = HEADER.unpack_from(answer)[:2]
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    return
                if kind == RTM_NEWADDR and answer[HEADER.size] in (socket.AF_INET, socket.AF_INET6):
                    yield _address(answer[HEADER.size : size])
                answer = answer[_aligned(size) :]


def _address(message: bytes) -> "tuple[int, str]":
    """Return interface index and ADDRESS/PREFIX in a message RTM_NEWADDR."""
    family, prefix, _, _, index = ADDRESS.unpack_from(message)
    found, rest = {}, message[ADDRESS.size :]
    while len(rest) >= ATTRIBUTE.size:
        size, kind = ATTRIBUTE.unpack_from(rest)
        found[kind] = rest[ATTRIBUTE.size : size]
        rest = rest[max(_aligned(size), ATTRIBUTE.size) :]
    # For a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL the own one.
    own = found.get(IFA_LOCAL) or found[IFA_ADDRESS]
    return index, f"{socket.inet_ntop(family, own)}/{prefix}"


def _aligned(size: int) -> int:
    """Return the size rounded up to a multiple of four bytes."""
    return (size + 3) & ~3
