"""Slurm's configuration as a folder: node lines, gres.conf, cgroup.conf, topology.conf, programs before and
after jobs, and slurmd's drop-in.

The manual pages cgroup.conf(5) and topology.conf(5) describe the keys. slurm.conf belongs to the site, which
includes `NODES_FILE` there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gpuprov.errors import InvalidInput
from gpuprov.inventory.exports.node import Node
from gpuprov.inventory.exports.slurm import gres_conf, slurm_conf
from gpuprov.inventory.exports.slurm_jobs import EPILOG, JOB, PROLOG
from gpuprov.model.nodeset import fold

NODES_FILE = "gpuprov.conf"
HEADER = "# Written whole by `gpuprov inventory export slurm`; the next export overwrites changes.\n"
# Keys of Slurm 22.05 to 25.11. Without ConstrainDevices each job can open all GPUs of its node.
CGROUP = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
ROOT = "gpuprov_root"
Shape = Literal["tree", "block"]

# slurmd waits 20 s for the files that gres.conf lists, then exits, and its unit has no Restart=. nvidia-smi
# creates the device files of all GPUs; a controller without GPUs has none.
DROP_IN = """\
[Unit]
Wants=nvidia-persistenced.service
After=nvidia-persistenced.service

[Service]
ExecStartPre=-/usr/bin/nvidia-smi -L
"""


def slurm_files(nodes: Sequence[Node], shape: Shape = "tree", *, nvml: bool = False) -> Mapping[str, str]:
    """Return path → text of the files for a folder such as /etc/slurm; topology.conf only with stated places.

    Args:
        shape: the form of topology.conf.
        nvml: as for `gres_conf`.

    Raises:
        InvalidInput: as `topology_conf`.
    """
    topology = topology_conf(nodes, shape)
    files = {
        NODES_FILE: slurm_conf(nodes, topology=shape if topology else None),
        "gres.conf": gres_conf(nodes, nvml=nvml),
        "cgroup.conf": CGROUP,
        "slurmd.service.d/gpuprov.conf": DROP_IN,
    }
    if topology:
        files["topology.conf"] = topology
    return {**{path: HEADER + text for path, text in files.items()}, PROLOG: JOB, EPILOG: JOB}


def topology_conf(nodes: Sequence[Node], shape: Shape = "tree") -> str:
    """Return topology.conf from the racks and NVLink domains of the fleet; "" if it states none.

    `tree`: a switch for each NVLink domain, else for each rack; racks above their domains; one switch above
    all. `block`: a block for each NVLink domain, with the size of the smallest.

    Raises:
        InvalidInput: places are stated for some of the nodes only, or none that `block` needs.
    """
    if shape == "block":
        return _blocks(nodes)
    leaf_of = {node.name: _leaf(node) for node in nodes}
    if not any(leaf_of.values()):
        return ""
    _require_all(nodes, [name for name, leaf in leaf_of.items() if not leaf], "racks")
    leaves, above = _grouped(leaf_of), _racks_above(nodes)
    lines = [f"SwitchName={leaf} Nodes={fold(names)}\n" for leaf, names in leaves.items()]
    lines += [f"SwitchName={rack} Switches={fold(domains)}\n" for rack, domains in above.items()]
    inside = {domain for domains in above.values() for domain in domains}
    top = [*above, *(leaf for leaf in leaves if leaf not in inside)]
    lines += [f"SwitchName={ROOT} Switches={fold(top)}\n"] if len(top) > 1 else []
    return "".join(lines)


def _leaf(node: Node) -> str:
    """Return the switch of a node: its NVLink domain, else its rack, else ""."""
    return node.places.get("nvlink_domain") or node.places.get("rack") or ""


def _racks_above(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return rack → NVLink domains of its nodes, for racks in which every node has a domain inside the rack.

    Other racks get no switch above domains, as a switch has either nodes or switches.
    """
    racks: dict[str, set[str]] = defaultdict(set)
    domains: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        rack, domain = node.places.get("rack", ""), node.places.get("nvlink_domain", "")
        racks[rack].add(domain)
        domains[domain].add(rack)
    return {
        rack: sorted(found)
        for rack, found in racks.items()
        if rack and rack not in domains and all(domain and domains[domain] == {rack} for domain in found)
    }


def _blocks(nodes: Sequence[Node]) -> str:
    """Return topology.conf for topology/block.

    Raises:
        InvalidInput: no NVLink domain is stated, or not for all nodes.
    """
    domain_of = {node.name: node.places.get("nvlink_domain", "") for node in nodes}
    _require_all(nodes, [name for name, domain in domain_of.items() if not domain], "nvlink_domains")
    blocks = _grouped(domain_of)
    lines = [f"BlockName={block} Nodes={fold(names)}\n" for block, names in blocks.items()]
    return "".join([*lines, f"BlockSizes={min(map(len, blocks.values()))}\n"])


def _require_all(nodes: Sequence[Node], without: Sequence[str], key: str) -> None:
    """Raise InvalidInput for nodes without a place, which no job could share with others."""
    if without:
        raise InvalidInput(
            f"{fold(without)} is in no place of fleet.yml's {key}",
            expected=f"a place for each of the {len(nodes)} nodes",
            do=f"state it in {key}: {{NAME: {fold(without)!r}}}, then run `gpuprov lock`",
        )


def _grouped(place_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return place → its nodes, in the order of the nodes."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in place_of.items():
        found[place].append(name)
    return found
