"""Hostfiles, and the SSH pools of dstack, SkyPilot and Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from gpuprov.errors import InvalidInput
from gpuprov.inventory.exports.node import Node
from gpuprov.model.connection import parse_destination
from gpuprov.model.nodeset import fold


@dataclass(frozen=True)
class Access:
    """SSH settings of a pool's nodes."""

    user: str
    port: int = 22
    identity_file: str | None = None
    jump: str | None = None


def hostfile(nodes: Iterable[Node], style: Literal["openmpi", "mpich"] = "openmpi") -> str:
    """Return a line per node with one slot per GPU: `gpu01 slots=8`, or `gpu01:8` for MPICH and Intel MPI.

    A line has the node's address; nodes without GPUs are left out. DeepSpeed and Horovod read the format of
    Open MPI.
    """
    form = "{} slots={}\n" if style == "openmpi" else "{}:{}\n"
    return "".join(form.format(node.address, node.gpus) for node in nodes if node.gpus)


def dstack(name: str, nodes: Iterable[Node], access: Access, own: Mapping[str, Access] | None = None) -> str:
    """Return an SSH fleet of dstack, `fleet.dstack.yml`, as YAML.

    Args:
        name: name of the fleet in dstack.
        own: node → its SSH settings, if they differ from `access`.
    """
    config = _dstack_access(access)
    config["hosts"] = [
        {"hostname": node.address, **_dstack_access(own[node.name])}
        if own and node.name in own
        else node.address
        for node in nodes
    ]
    return _yaml({"type": "fleet", "name": name, "placement": "cluster", "ssh_config": config})


def _dstack_access(access: Access) -> dict[str, Any]:
    """Return SSH settings with dstack's keys, without port 22, a missing key file and a missing jump host."""
    config: dict[str, Any] = {"user": access.user}
    if access.port != Access.port:
        config["port"] = access.port
    if access.identity_file:
        config["identity_file"] = access.identity_file
    if access.jump:
        config["proxy_jump"] = _jump(access, access.jump)
    return config


def _jump(access: Access, jump: str) -> dict[str, Any]:
    """Return dstack's `proxy_jump` for a host `[USER@]HOST[:PORT]`; its user and key default to `access`."""
    user, host, port = parse_destination(jump)
    hop: dict[str, Any] = {"hostname": host, "user": user or access.user}
    hop |= {"port": port} if port else {}
    return {**hop, "identity_file": access.identity_file} if access.identity_file else hop


def skypilot(
    name: str, nodes: Iterable[Node], access: Access, own: Mapping[str, Access] | None = None
) -> str:
    """Return an SSH node pool of SkyPilot, an entry of `~/.sky/ssh_node_pools.yaml`.

    A pool has neither port nor jump host: SkyPilot reads them from `~/.ssh/config`, so hosts that need one
    are listed by name instead of by address.

    Args:
        name: name of the pool.
        own: node → its SSH settings, if they differ from `access`.
    """
    pool = _skypilot_access(access)
    pool["hosts"] = [
        {"ip": _skypilot_host(node, own[node.name]), **_skypilot_access(own[node.name])}
        if own and node.name in own
        else _skypilot_host(node, access)
        for node in nodes
    ]
    return _yaml({name: pool})


def _skypilot_access(access: Access) -> dict[str, Any]:
    """Return user and, if stated, key file with SkyPilot's keys."""
    return {"user": access.user} | ({"identity_file": access.identity_file} if access.identity_file else {})


def _skypilot_host(node: Node, access: Access) -> str:
    """Return a node's name if it needs a port or a jump host, otherwise its address."""
    return node.name if access.port != Access.port or access.jump is not None else node.address


def ray(name: str, nodes: Iterable[Node], access: Access, own: Mapping[str, Access] | None = None) -> str:
    """Return the file of `ray up` for machines that exist (provider `local`); the first node is the head.

    Ray has one user and key for all nodes, and starts `ssh`, which reads ports and jump hosts from
    `~/.ssh/config`: hosts that need one are listed by name, as for SkyPilot.

    Args:
        name: name of the cluster.
        own: node → its SSH settings, if they differ from `access`.

    Raises:
        InvalidInput: there is no node, or nodes have other users or keys.
    """
    others = own or {}
    if other := [each for each, way in others.items() if _skypilot_access(way) != _skypilot_access(access)]:
        raise InvalidInput(
            f"{fold(other)} has another SSH user or key than the other nodes",
            expected="one user and key, as a Ray cluster has",
            do="export nodes with the same ones, or change ssh in fleet.yml",
        )
    hosts = [_skypilot_host(node, others.get(node.name, access)) for node in nodes]
    if not hosts:
        raise InvalidInput("no nodes", expected="at least one, which becomes the head", do="name a node")
    auth = {"ssh_user": access.user}
    auth |= {"ssh_private_key": access.identity_file} if access.identity_file else {}
    provider = {"type": "local", "head_ip": hosts[0], "worker_ips": hosts[1:]}
    return _yaml({"cluster_name": name, "provider": provider, "auth": auth})


def _yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML, with its keys in order."""
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    return text
