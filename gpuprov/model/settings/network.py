"""What the network stack of the operating system is told."""

from __future__ import annotations

from pydantic import Field

from gpuprov.model.documents import Strict


class Network(Strict):
    """The network stack; None leaves the system's own."""

    tcp_mtu_probing: bool | None = Field(
        default=None, description="whether TCP probes for the path's MTU where ICMP is dropped"
    )
