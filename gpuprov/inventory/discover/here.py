"""The fleet of one machine, from its facts and the nearest profile: this machine, or one over SSH."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.drift import hardware
from gpuprov.errors import Refused
from gpuprov.inventory.discover.match import Kind, Match, lacking, match
from gpuprov.inventory.discover.propose import Identity, names_of, own_name, system_of
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.probe.facts import Facts

PLAIN = "base"
"""Profile of a machine that fits no other: it states no hardware, so the fleet states the GPUs."""
LESS: dict[str, Any] = {
    "gpu": {"nvlink": None, "nvswitches": None},
    "cpu_cores": None,
    "memory_gib": None,
    "nvme": {"count": None, "total_tb": None},
    "nics": [],
}
"""Overrides of a profile's values that the machine does not reach: these values are not checked then."""


def fleet_here(facts: Facts, among: Iterable[Kind], catalog: Catalog) -> tuple[dict[str, Any], Match]:
    """Return the keys of a fleet for this machine, at the address `local`, and its nearest profile.

    The user for logins is the one who called sudo; without sudo none is stated.

    Raises:
        Refused, InvalidInput, Missing: as `fleet_of`.
    """
    login = os.environ.get("SUDO_USER") or "root"
    return fleet_of(facts, among, catalog, LOCAL, Connection(user=login if login != "root" else None))


def fleet_of(
    facts: Facts, among: Iterable[Kind], catalog: Catalog, address: str, connection: Connection
) -> tuple[dict[str, Any], Match]:
    """Return the keys of a fleet for one machine, and its nearest profile.

    The fleet has one group with one host. Without a matching profile the group has the profile `base` and
    states model and number of the GPUs. `hardware` overrides the values of a profile that the machine does
    not reach.

    Args:
        address: `local`, or `[USER@]HOST[:PORT]`.
        connection: SSH settings of the fleet; without any, `ssh` is left out.

    Raises:
        Refused: the machine has no NVIDIA GPU, or GPUs of several models that no profile has.
        InvalidInput: the catalog does not have its GPU.
        Missing: as `match`.
    """
    machine, place = ("this machine", "--local") if address == LOCAL else (address, address)
    gpus = hardware.gpu_ids(facts)
    if not gpus:
        raise Refused(f"{machine} has no NVIDIA GPU on its PCI bus", do=f"gpuprov doctor {place}")
    kinds = list(among)
    nearest = match(facts, kinds)
    if nearest.profile is None and len(gpus) > 1:
        raise Refused(
            f"{machine} has GPUs of several models: {', '.join(gpus)}",
            do="write a profile in profiles/ that names the GPUs to use: "
            f"gpuprov inventory discover {address}",
        )
    system = system_of(Identity.of(facts).system, catalog)
    group: dict[str, Any] = {"profile": nearest.profile or PLAIN, "os": system}
    if nearest.profile is None:
        [(gpu, count)] = gpus.items()
        group["hardware"] = {"gpu": {"model": find_gpu(catalog, gpu).id, "count": count}}
    elif nearest.differences:
        [kind] = [each for each in kinds if each.profile == nearest.profile][:1]
        group["hardware"] = _laid_over(facts, kind)
    group |= {"arch": facts.arch} if facts.arch != "x86_64" else {}
    name = (own_name(facts.host) or "here") if address == LOCAL else names_of({address: facts.host})[address]
    group["hosts"] = {name: address}
    stated = connection.model_dump(mode="json", exclude_defaults=True)
    return {"groups": {nearest.profile or "gpu": group}, **({"ssh": stated} if stated else {})}, nearest


def _laid_over(facts: Facts, kind: Kind) -> dict[str, Any]:
    """Return the group's `hardware` for a machine that has less than its profile: key → its part of `LESS`.

    For GPUs also their number: those of the profile's model on the PCI bus.
    """
    less = {part: LESS[part] for part in lacking(facts, kind.hardware)}
    if "gpu" in less:
        ours = hardware.gpu_ids(facts)
        count = sum(number for gpu, number in ours.items() if gpu in kind.hardware.gpu_pci_ids)
        less["gpu"] = {"count": count, **less["gpu"]}
    return less
