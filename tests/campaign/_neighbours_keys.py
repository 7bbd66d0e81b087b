"""Keys of fleet.yml from its schema, and for each the other values that a neighbouring fleet states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from gpuprov.inventory.schemas import json_schema

GONE = object()
"""In place of a value: the key is not stated."""


@dataclass(frozen=True)
class Site:
    """Values of this run: the node, its mirror at another URL, and copies of the controller's files."""

    node: str
    address: str
    moved: Callable[[str], str]
    key: str
    identity_file: str
    known_hosts: str


@dataclass(frozen=True)
class Other:
    """Another value of a key, and values of other keys that come with it.

    Attributes:
        value: the value, or a function of the site.
        also: key → value, stated or `GONE`.
    """

    value: Any
    also: dict[str, Any] = field(default_factory=dict)


def _others(*values: Any) -> tuple[Other, ...]:
    """Return values as `Other`."""
    return tuple(each if isinstance(each, Other) else Other(each) for each in values)


STACK, SET, HARDWARE = "groups.*.stack.", "groups.*.settings.", "groups.*.hardware."
LIBRARIES = ("cuda", "cudnn", "nccl", "container_toolkit", "dcgm")
FROM_DISTRIBUTION = {f"{STACK}driver": GONE, **{f"{STACK}{name}": "none" for name in LIBRARIES}}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMadeForThisRunMadeForThisRunMadeForThis1"
ADMIN = "ops"
"""An account of the node with the lab's key and sudo."""

CHANGED: dict[str, tuple[Other, ...]] = {
    "groups.*.profile": _others("hgx-h200-8"),
    "groups.*.hosts": _others(lambda site: {"renamed": site.address}),
    "groups.*.hosts.*.address": _others(
        lambda site: f"{site.address}:22", lambda site: f"root@{site.address}"
    ),
    "groups.*.hosts.*.ssh.user": _others(ADMIN),
    "groups.*.os": _others("debian13", "ubuntu24.04"),
    "groups.*.arch": _others("aarch64"),
    "groups.*.site": _others("fra1"),
    f"{HARDWARE}gpu.model": _others("H100 SXM5 80GB"),
    f"{HARDWARE}gpu.count": _others(4),
    f"{HARDWARE}gpu.nvlink": _others(True),
    f"{HARDWARE}gpu.nvswitches": _others(4),
    f"{HARDWARE}cpu_cores": _others(1, 4096),
    f"{HARDWARE}memory_gib": _others(1, 8192),
    f"{HARDWARE}nvme.count": _others(8),
    f"{HARDWARE}nvme.total_tb": _others(30),
    f"{HARDWARE}nics": _others([{"kind": "infiniband", "speed_gbits": 400, "count": 8}]),
    f"{STACK}prefer": _others("lts", "newest"),
    f"{STACK}repository": _others(Other("distribution", FROM_DISTRIBUTION)),
    f"{STACK}driver": _others("590.48.01", "580"),
    f"{STACK}module": _others("open", "proprietary"),
    f"{STACK}module_build": _others("dkms", "once", "precompiled"),
    f"{STACK}builder": _others(lambda site: site.node, "image"),
    f"{STACK}compiler": _others(Other("absent", {f"{STACK}builder": lambda site: site.node})),
    f"{STACK}cuda": _others(
        "12.8", ["12.8", "12.6"], Other("none", {f"{STACK}cudnn": "none", f"{STACK}nccl": "none"})
    ),
    f"{STACK}cudnn": _others("9.28", "none"),
    f"{STACK}nccl": _others("auto", "none"),
    f"{STACK}docker": _others("none"),
    f"{STACK}containerd": _others("none", Other("none", {f"{STACK}docker": "none"})),
    f"{STACK}podman": _others("auto", "none"),
    f"{STACK}container_toolkit": _others("1.19", "none"),
    f"{STACK}dcgm": _others("4.6.0", "none"),
    f"{STACK}profiling_tools": _others("none"),
    f"{STACK}node_exporter": _others("none"),
    f"{SET}persistence": _others(False),
    f"{SET}clocks.graphics": _others(345, 1965),
    f"{SET}clocks.memory": _others(2201),
    f"{SET}power_limit": _others(650, 2999),
    f"{SET}compute_mode": _others("exclusive_process"),
    f"{SET}ecc": _others(True, False),
    f"{SET}mig": _others(["3g.71gb", "3g.71gb"], []),
    f"{SET}containers.shm_size": _others("2g"),
    f"{SET}containers.memlock": _others(2097152),
    f"{SET}containers.stack": _others(33554432),
    f"{SET}containers.cdi": _others(True, False),
    f"{SET}containers.default_runtime": _others("nvidia", "runc"),
    f"{SET}scratch.*.mount": _others("/scratch/other"),
    f"{SET}scratch.*.filesystem": _others("xfs"),
    f"{SET}scratch.*.read_ahead_kib": _others(2048),
    f"{SET}storage_clients": _others(["nfs"]),
    f"{SET}tuning.limits.memlock": _others(2097152),
    f"{SET}tuning.limits.stack": _others(33554432),
    f"{SET}tuning.limits.nofile": _others(2048),
    f"{SET}tuning.sysctl": _others({"net.ipv4.tcp_keepalive_time": 900}),
    f"{SET}tuning.environment": _others({"OMP_NUM_THREADS": 4}, {"MKL_NUM_THREADS": 4}),
    f"{SET}profiling_counters": _others(True),
    f"{SET}monitoring.textfile": _others("/var/lib/prometheus/other"),
    f"{SET}nccl": _others({"NCCL_SOCKET_IFNAME": "eth1"}, {"NCCL_DEBUG": "WARN"}),
    f"{SET}ssh.policy": _others("compatible"),
    f"{SET}ssh.root": _others("no"),
    f"{SET}ssh.port": _others(2222),
    f"{SET}ssh.allow_groups": _others(["root"], ["nobody-here"]),
    f"{SET}ssh.forwarding": _others("local"),
    f"{SET}ssh.max_auth_tries": _others(5),
    f"{SET}ssh.exempt": _others(["10.0.0.0/8"]),
    f"{SET}ssh.user_ca": _others([PUBLIC_KEY]),
    f"{SET}ssh.principals": _others(Other(["ops"], {f"{SET}ssh.user_ca": [PUBLIC_KEY]})),
    f"{SET}ssh.banner": _others("for members only"),
    f"{SET}firewall.ssh_from": _others(["203.0.113.0/24"], ["0.0.0.0/0"]),
    f"{SET}firewall.fleet": _others(["203.0.113.0/24"]),
    f"{SET}firewall.monitor_from": _others(["203.0.113.0/24"]),
    f"{SET}firewall.monitor_ports": _others([9100]),
    f"{SET}firewall.open": _others([{"ports": [8888, 8889]}]),
    f"{SET}firewall.open.*.ports": _others([8889]),
    f"{SET}firewall.open.*.protocol": _others("udp"),
    f"{SET}firewall.open.*.sources": _others(["203.0.113.0/24"]),
    f"{SET}firewall.trusted_interfaces": _others(["ib*"]),
    f"{SET}firewall.published": _others("any"),
    f"{SET}firewall.uplinks": _others(["br-ex"]),
    "groups.*.ssh.user": _others(ADMIN),
    "ssh.user": _others(ADMIN),
    "ssh.port": _others(2222, Other(2222, {f"{SET}ssh.port": 2222})),
    "ssh.identity_file": _others(lambda site: site.identity_file),
    "ssh.known_hosts": _others(lambda site: site.known_hosts),
    "reboot.allowed": _others(True),
    "repositories.nvidia.url": _others(lambda site: site.moved("nvidia")),
    "repositories.container-toolkit.url": _others(lambda site: site.moved("container-toolkit")),
    "repositories.nvidia.key": _others(lambda site: site.key),
    "repositories.container-toolkit.key": _others(lambda site: site.key),
    "repositories.nvidia.frozen": _others("2026-01-01"),
}
"""Key → other values. A key that the full fleet states is also left out. `*` is the first item or name."""

MACHINES = "this machine's kernel has it, which nodes of the lab share and may not change"
ROLLOUT = "rules of an upgrade, which are not on nodes: scripts/campaign upgrade"
SAME_CODE = "laid over the fleet's value of the same name, which has its own pair"
GPUDIRECT = "has its own test of two locks: tests/lab/test_gpudirect.py"
REASONS = {
    "plugin": "for ansible-inventory alone",
    "groups": "a fleet without a group is refused by its schema",
    "groups.*.settings": "leaves out the kernel, too, whose headers no archive has for that of a lab node",
    "groups.*.hosts.*.ssh": SAME_CODE,
    "groups.*.hosts.*.ssh.[!u]*": SAME_CODE,
    "groups.*.ssh": SAME_CODE,
    "groups.*.ssh.[!u]*": SAME_CODE,
    "ssh.jump": "a second node: tests/lab/test_connections.py",
    "groups.*.hardware.nics.*.*": "in the pair of the list",
    f"{SET}containers.cgroup_driver": "Docker of a lab node can use one of them only",
    f"{STACK}doca_ofed": GPUDIRECT,
    f"{STACK}gds": GPUDIRECT,
    f"{SET}confidential": "a lab node has no confidential GPU: tests/unit/locking/test_guests.py",
    f"{SET}peer_memory": GPUDIRECT,
    f"{SET}client_options.**": GPUDIRECT,
    f"{SET}imex": "a lab node has no NVLink to others: tests/unit/roles/test_imex.py",
    f"{SET}health.**": "of one program on the node: tests/unit/health/test_program.py",
    f"{SET}kernel": "a lab node has one kernel, and its name is not `running`",
    f"{SET}scratch.*.device": "a lab node has one drive",
    f"{SET}tuning.transparent_hugepages": MACHINES,
    f"{SET}tuning.governor": MACHINES,
    f"{SET}tuning.numa_balancing": MACHINES,
    "groups.*.floors.**": "for `gpuprov accept` alone",
    "groups.*.vars": "variables of the site's own playbooks",
    "host_vars": "variables of the site's own playbooks",
    "also.**": "groups of the site's own playbooks",
    "reboot.[!a]*": "the number of nodes at a time, and their patience",
    "rollout.**": ROLLOUT,
    "secure_boot.**": "scripts/campaign secureboot, on machines with firmware of their own",
    "controllers": "scripts/campaign controllers",
    "security": "decided when the fleet is locked, and not on nodes",
    "racks": "read by exports only",
    "nvlink_domains": "read by exports, by the order of an upgrade, and by the lock for imex",
    "*_dirs": "folders of the controller; their contents are in other keys",
}
"""Pattern of keys without a pair → reason; `**` is every key below."""


def schema_keys() -> list[str]:
    """Return every key of fleet.yml: names are joined by dots, and `*` is any name or item."""
    schema = json_schema("fleet")
    return list(dict.fromkeys(_keys(schema, schema["$defs"], "")))


def _keys(record: dict[str, Any], records: dict[str, Any], before: str) -> Iterator[str]:
    """Yield the dotted keys of a record of the schema, also those of records in it."""
    forms = [record, *record.get("anyOf", [])]  # a record with a short form
    for key, stated in (pair for form in forms for pair in form.get("properties", {}).items()):
        yield before + key
        for name, star in dict.fromkeys(_records_of(stated, "")):
            yield from _keys(records[name], records, f"{before}{key}{star}.")


def _records_of(stated: Any, star: str) -> Iterator[tuple[str, str]]:
    """Yield the records in a key's value, with `.*` if they are items or named values."""
    for each in stated if isinstance(stated, list) else []:
        yield from _records_of(each, star)
    if not isinstance(stated, dict):
        return
    if "$ref" in stated:
        yield stated["$ref"].rpartition("/")[2], star
    for part in ("anyOf", "oneOf", "allOf"):
        yield from _records_of(stated.get(part), star)
    for part in ("items", "additionalProperties"):
        yield from _records_of(stated.get(part), f"{star}.*")


def covers(stated: str, key: str) -> bool:
    """Return whether a key of `CHANGED`, perhaps with the name of a repository, is a key of the schema."""
    ours, theirs = stated.split("."), key.split(".")
    return len(ours) == len(theirs) and all(
        one == two or two == "*" for one, two in zip(ours, theirs, strict=True)
    )


def reason(key: str) -> str:
    """Return the reason why a key has no pair; empty without one."""
    return next((why for pattern, why in REASONS.items() if _matches(key, pattern)), "")


def _matches(key: str, pattern: str) -> bool:
    """Return whether a key has a pattern's parts; `**` at its end is any number of them."""
    wanted, parts = pattern.split("."), key.split(".")
    if wanted[-1] == "**":
        wanted, parts = wanted[:-1], parts[: len(wanted) - 1]
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))


def parents(keys: list[str]) -> set[str]:
    """Return the keys that hold records: each is left out as a whole, and its parts have pairs."""
    return {key for key in keys if any(each.startswith(f"{key}.") for each in keys)}


def forgotten() -> list[str]:
    """Return the keys of the schema with neither a pair nor a reason."""
    keys = schema_keys()
    whole = parents(keys)
    return [
        key
        for key in keys
        if not (key in whole or reason(key) or any(covers(stated, key) for stated in CHANGED))
    ]
