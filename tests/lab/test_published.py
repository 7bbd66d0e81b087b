"""Access to ports of containers through the firewall's rules: the kernel's nftables, and real HTTP.

A machine outside, a node and two containers have a network namespace each; the machine also has an address of
the fleet.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuprov.access.ruleset import by_number, ruleset
from gpuprov.model.settings.access import Firewall
from tests.unit.roles.test_templates import render

STRANGER, FLEET, NODE = "192.0.2.66", "192.0.2.7", "192.0.2.10"
GATEWAY, CONTAINER = "172.17.0.1", "172.17.0.2"
PUBLISHED = 8080
DOCKERS, ANOTHER = "br-0123456789ab", "br-fedcba987654"
SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={})"
ASK = """
from http.client import HTTPConnection
c = HTTPConnection("{}", {}, timeout=1, source_address={})
c.request("HEAD", "/")
print(c.getresponse().status)
"""
# As Docker 20.10 to 27 write it, with the container's port 80 published as 8080.
RULES_OF_DOCKER = f"""
table ip nat {{
  chain PREROUTING {{
    type nat hook prerouting priority -100;
    fib daddr type local iifname != "BRIDGE" tcp dport {PUBLISHED} dnat to {CONTAINER}:80
  }}
  chain POSTROUTING {{
    type nat hook postrouting priority 100;
    ip saddr {GATEWAY}/16 oifname != "BRIDGE" masquerade
  }}
}}
table ip filter {{
  chain FORWARD {{
    type filter hook forward priority 0; policy drop;
    oifname "BRIDGE" ct state related,established accept
    ip daddr {CONTAINER} iifname != "BRIDGE" oifname "BRIDGE" tcp dport 80 accept
    iifname "BRIDGE" accept
  }}
}}
"""


class Space:
    """A network namespace, which ends with its process."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._process = self._started("unshare", "--net", "sleep", "infinity")
        own = self.says("readlink", "/proc/self/ns/net", inside=False)
        while self.says("readlink", f"/proc/{self.pid}/ns/net", inside=False) == own:
            time.sleep(0.01)
        self.says("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> str:
        """The process whose namespace it is."""
        return str(self._process.pid)

    def says(self, *command: str, inside: bool = True, stdin: str | None = None) -> str:
        """Run a command; return what it prints."""
        entered = [*self._entering(), *command] if inside else command
        return subprocess.run(entered, input=stdin, text=True, stdout=subprocess.PIPE, check=True).stdout

    def serves(self, port: int) -> None:
        """Serve HTTP until the end of the test."""
        self._started(*self._entering(), sys.executable, "-c", SERVE.format(port))
        for _ in range(100):
            if f":{port} " in self.says("ss", "-ltn"):
                return
            time.sleep(0.1)
        pytest.fail("no server")

    def reaches(self, address: str, port: int, source: str | None = None) -> bool:
        """Return whether a server answers."""
        asked = ASK.format(address, port, (source, 0) if source else None)
        command = [*self._entering(), sys.executable, "-c", asked]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "200\n"

    def wired(self, name: str, other: Space, others: str) -> None:
        """Connect the namespaces by an interface in each."""
        peer = ("type", "veth", "peer", "name", others, "netns", other.pid)
        self.says("ip", "link", "add", name, *peer)
        for space, link in ((self, name), (other, others)):
            space.says("ip", "link", "set", link, "up")

    def _entering(self) -> list[str]:
        return ["nsenter", "--net", "--target", self.pid]

    def _started(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


class Segment:
    """The network of a node: a machine outside the fleet, with a route by the node, and containers."""

    def __init__(self, stack: ExitStack, uplink: str, bridge: str) -> None:
        self.node, self.stranger, self.container, self.neighbour = (Space(stack) for _ in range(4))
        self.node.wired(uplink, self.stranger, "eth0")
        self.stranger.says("ip", "address", "add", f"{STRANGER}/24", "dev", "eth0")
        self.stranger.says("ip", "address", "add", f"{FLEET}/24", "dev", "eth0")
        self.node.says("ip", "address", "add", f"{NODE}/24", "dev", uplink)
        self._contain(bridge, self.container, GATEWAY, CONTAINER)
        self._contain(ANOTHER, self.neighbour, "172.18.0.1", "172.18.0.2")
        self.node.says("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        self.node.says("nft", "-f", "-", stdin=RULES_OF_DOCKER.replace("BRIDGE", bridge))
        self.stranger.says("ip", "route", "add", f"{CONTAINER}/32", "via", NODE)
        self.container.serves(80)
        self.stranger.serves(7000)

    def _contain(self, bridge: str, container: Space, gateway: str, address: str) -> None:
        """Put a container behind a bridge of its own."""
        port = f"veth{container.pid}"
        self.node.wired(port, container, "eth0")
        self.node.says("ip", "link", "add", bridge, "up", "type", "bridge")
        self.node.says("ip", "link", "set", port, "master", bridge)
        self.node.says("ip", "address", "add", f"{gateway}/16", "dev", bridge)
        container.says("ip", "address", "add", f"{address}/16", "dev", "eth0")
        container.says("ip", "route", "add", "default", "via", gateway)

    def protect(self, firewall: Firewall) -> None:
        """Load the rules that the role writes."""
        rules = ruleset(firewall, [22], {})
        chains = {chain: by_number(rules[chain]) for chain in ("input", "forward")}
        text = render(
            "firewall/templates/firewall.nft.j2",
            firewall_networks=rules["networks"],
            __firewall_wanted={"chains": chains},
        )
        self.node.says("nft", "-f", "-", stdin=text)

    def reached(self, source: str) -> tuple[bool, bool]:
        """Return whether the port that is published, and the container's own address, answer."""
        ports = ((NODE, PUBLISHED), (CONTAINER, 80))
        published, direct = (self.stranger.reaches(address, port, source) for address, port in ports)
        return published, direct


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Processes of a test, and with them its namespaces, which end with it."""
    with ExitStack() as entered:
        yield entered


@pytest.mark.parametrize(
    ("uplink", "bridge"),
    [("eth0", "docker0"), ("br-ex", "docker0"), ("br-ex", DOCKERS), ("eth0", "podman1")],
)
def test_a_stranger_reaches_no_container_by_a_published_port_or_a_route(
    stack: ExitStack, uplink: str, bridge: str
) -> None:
    segment = Segment(stack, uplink, bridge)
    assert segment.reached(STRANGER) == (True, True)
    segment.protect(Firewall(fleet=[FLEET], uplinks=["br-ex"]))
    assert segment.reached(STRANGER) == (False, False)
    assert segment.reached(FLEET) == (True, True)
    assert segment.neighbour.reaches(NODE, PUBLISHED)
    assert segment.container.reaches(STRANGER, 7000)
    segment.protect(Firewall(fleet=[FLEET], published="any"))
    assert segment.reached(STRANGER) == (True, True)


def test_what_a_node_forwards_to_an_uplink_that_is_stated_stays_forwarded(stack: ExitStack) -> None:
    segment = Segment(stack, "br-ex", "br-mgmt")
    segment.protect(Firewall(fleet=[FLEET], uplinks=["br-ex", "br-mgmt"]))
    assert segment.reached(STRANGER) == (False, True)
