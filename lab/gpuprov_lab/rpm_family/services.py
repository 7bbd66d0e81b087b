"""Debian's firewalls, engines and exporter in the played system: only stub packages bring them into PATH.

The firewalls' units have the names and the start commands of the RHEL family's. The stubs of the engines and
of the exporter are in `gpuprov_lab.mirror.publishers`.
"""

from __future__ import annotations

from gpuprov_lab.mirror.publishers import UNITS, stub
from gpuprov_lab.mirror.specs import PackageSpec
from gpuprov_lab.releases import Release

PROGRAMS = (
    *("nftables", "firewalld", "docker.io", "podman", "crun", "uidmap", "slirp4netns", "netavark"),
    *("aardvark-dns", "prometheus-node-exporter"),
)
"""Debian's packages of them."""
SINCE_TRIXIE = ("docker-cli",)
"""Packages that Debian 12 has as a part of others."""
NFT_UNIT = """\
[Unit]
Description=Netfilter Tables
Wants=network-pre.target
Before=network-pre.target

[Service]
Type=oneshot
ExecStart=/sbin/nft -f /etc/sysconfig/nftables.conf
ExecReload=/sbin/nft 'flush ruleset; include "/etc/sysconfig/nftables.conf";'
ExecStop=/sbin/nft flush ruleset
RemainAfterExit=yes

[Install]
WantedBy=multi-user.target
"""
FIREWALLD_UNIT = """\
[Unit]
Description=firewalld - dynamic firewall daemon
Before=network-pre.target
Wants=network-pre.target
After=dbus.service

[Service]
ExecStart=/usr/sbin/firewalld --nofork --nopid
ExecReload=/bin/kill -HUP $MAINPID
Type=dbus
BusName=org.fedoraproject.FirewallD1
KillMode=mixed

[Install]
WantedBy=multi-user.target
Alias=dbus-org.fedoraproject.FirewallD1.service
"""

MOVED = (
    *("/usr/sbin/dkms", "/usr/bin/gcc", "/usr/bin/make", "/usr/sbin/nft", "/usr/sbin/firewalld"),
    *("/usr/bin/firewall-cmd", "/usr/bin/firewall-offline-cmd", "/usr/bin/docker", "/usr/sbin/dockerd"),
    *("/usr/bin/containerd", "/usr/bin/ctr", "/usr/bin/podman", "/usr/bin/prometheus-node-exporter"),
)
"""Debian's programs that only stub packages bring into PATH."""
MOVED_UNITS = ("nftables", "firewalld", "docker", "containerd", "podman", "prometheus-node-exporter")
"""Beginnings of the names of Debian's units that belong to these programs."""


def programs(release: Release) -> tuple[str, ...]:
    """Return Debian's packages of firewalls, engines and exporter, of the Debian that plays a release."""
    return (*PROGRAMS, *(SINCE_TRIXIE if release.codename == "trixie" else ()))


def firewalls(release: Release) -> list[PackageSpec]:
    """Return the distribution's packages of nftables and firewalld."""
    conf = {"etc/sysconfig/nftables.conf": "# Tables of the site.\n", f"{UNITS}/nftables.service": NFT_UNIT}
    nftables = stub("nftables", release.oldest("nftables"), ("usr/sbin/nft",), conf)
    unit = {f"{UNITS}/firewalld.service": FIREWALLD_UNIT}
    paths = ("usr/sbin/firewalld", "usr/bin/firewall-cmd", "usr/bin/firewall-offline-cmd")
    return [nftables, stub("firewalld", release.oldest("firewalld"), paths, unit, needs="nftables")]
