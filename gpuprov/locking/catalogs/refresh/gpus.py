"""Comparison of GPU lists with the catalog: new devices, releases that list them, and dropped GPUs."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.catalog import Catalog, Version
from gpuprov.catalog.records import GpuModel
from gpuprov.locking.catalogs.refresh.proposal import LAST_READ, Document, Proposal
from gpuprov.locking.catalogs.refresh.seen import GpuList, ListedGpu, Reading

OF_RUN = "capability-of-run"
_SEGMENTS = (
    ("laptop", r"Laptop|Mobile|Max-Q|\d{3,4}M\b"),
    ("geforce", r"GeForce|TITAN"),
    ("mining", r"\bCMP\b"),
    ("data-center", r"Tesla|GRID|\b[ABHLVTP]\d{1,3}[A-Z]?\b|\bG[BH]\d{2,3}\b"),
    ("workstation", r"Quadro|RTX|NVS|\bT\d{3,4}\b"),
)
"""Segments and the patterns of their names, as in `devices.json`: gpuprov's own rule, not NVIDIA's."""


def propose_gpus(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose the changes of `devices.json` and `gpus.json` that follow from the lists of a reading.

    Findings that need a decision become remarks.
    """
    known = {device: gpu for gpu in catalog.gpus for device in gpu.pci_device_ids}
    for listed in sorted(reading.gpu_lists, key=lambda each: each.release.parts):
        for each in listed.gpus:
            gpu = known.get(each.device)
            if gpu is None:
                _unknown(proposal, catalog, reading, listed.release, each)
            elif each.legacy_branch:
                _dropped(proposal, reading, listed, each, gpu)
            elif not gpu.guessed:
                _listed(proposal, reading, listed, each.device, gpu)
        _missing(proposal, catalog, reading, listed, known)


def _row(gpu: GpuModel, catalog_documents: Any) -> tuple[str, str]:
    """Return file and section of a GPU's record: boards are in `gpus.json`, all others in `devices.json`."""
    boards = {str(row["id"]) for row in catalog_documents["gpus"]["gpus"]}
    return ("gpus", "gpus") if gpu.id in boards else ("devices", "devices")


def _unknown(
    proposal: Proposal, catalog: Catalog, reading: Reading, release: Version, new: ListedGpu
) -> None:
    """Propose a record for an unknown device, with the compute capability of neighbouring ids.

    A device outside all known ids becomes a remark instead; a legacy one outside of them is left out.
    """
    guessed = catalog.devices.guess(new.device)
    if guessed is None:
        if new.legacy_branch is None:
            proposal.remarks.append(
                f"device {new.device} ({new.name}) is listed by {release}, outside all known ids: "
                "find its compute capability and write it into the catalog"
            )
        return
    name = new.name.removeprefix("NVIDIA ")
    row = proposal.record("devices", "devices", name)
    why = f"{new.name} [{new.device}] is listed by {release}"
    if row and str(guessed.compute_capability) == row["compute_capability"]:
        to = ("devices", dict(sorted({**row["devices"], new.device: str(release)}.items())))
        proposal.set(("devices", "devices", name), to, why, reading.source, stated_by=())
        return
    if not proposal.record("doubts", "doubts", OF_RUN):
        text = "its compute capability is that of the ids around its own: no source was read for its chip"
        record = {"id": OF_RUN, "text": text, "source": ["pci.ids-2026"]}
        proposal.add("doubts", "doubts", record, why, reading.source)
    new_row: Document = {
        "id": f"{name} (10DE:{new.device})" if row else name,
        "name": new.name,
        "segment": next((each for each, words in _SEGMENTS if re.search(words, name)), "unknown"),
        "compute_capability": str(guessed.compute_capability),
        "devices": {new.device: str(release)},
        "doubts": [OF_RUN],
        "source": [reading.source],
    }
    if new.legacy_branch:
        new_row["max_driver_branch"] = new.legacy_branch
    proposal.add("devices", "devices", new_row, why, reading.source)


def _listed(proposal: Proposal, reading: Reading, listed: GpuList, device: str, gpu: GpuModel) -> None:
    """Propose `first_listed`, the lowest release read that lists a device, if this one is lower or the
    first.
    """
    file, section = _row(gpu, proposal.documents)
    record = proposal.record(file, section, gpu.id)
    field = "first_listed" if file == "gpus" else "devices"
    if record is None or device not in record.get(field, {device: None}):
        return
    first = record.get(field, {}).get(device)
    if first and listed.release >= Version(first):
        return
    to = (field, dict(sorted({**record.get(field, {}), device: str(listed.release)}.items())))
    why = (
        f"device {device} is listed by {listed.release} already"
        if first
        else f"{listed.release} lists {device}"
    )
    proposal.set((file, section, gpu.id), to, why, reading.source, stated_by=())


def _dropped(proposal: Proposal, reading: Reading, listed: GpuList, each: ListedGpu, gpu: GpuModel) -> None:
    """Propose the last branch of a GPU that a driver's list calls a legacy GPU.

    If the catalog has another last branch, add a remark instead.
    """
    branch = each.legacy_branch
    if branch == gpu.max_driver_branch or branch is None:
        return
    file, section = _row(gpu, proposal.documents)
    named = f"{listed.release} calls {gpu.id} [{each.device}] a legacy GPU of {branch}"
    if gpu.max_driver_branch is not None:
        text = f"{named}; the catalog has {gpu.max_driver_branch}"
        if text not in proposal.remarks:
            proposal.remarks.append(text)
        return
    proposal.set((file, section, gpu.id), ("max_driver_branch", branch), named, reading.source)


def _missing(
    proposal: Proposal, catalog: Catalog, reading: Reading, listed: GpuList, known: dict[str, GpuModel]
) -> None:
    """Propose a doubt for devices that the same package listed at the last reading, and no longer lists.

    Devices that the catalog does not know are left out.
    """
    package = listed.package.partition(" ")[0]
    before = proposal.documents.get(LAST_READ, {}).get("gpus", {}).get(package, {})
    now = {each.device for each in listed.gpus}
    doubt = f"unlisted-{listed.release}"
    for device in before.get("devices", []):
        gpu = known.get(device)
        if device in now or gpu is None:
            continue
        text = f"{package} of {before['release']} lists it, that of {listed.release} no longer does"
        if not proposal.record("doubts", "doubts", doubt):
            record = {"id": doubt, "text": text, "source": [reading.source]}
            proposal.add("doubts", "doubts", record, text, reading.source)
        file, section = _row(gpu, proposal.documents)
        row = proposal.record(file, section, gpu.id) or {}
        doubts = ("doubts", [*row.get("doubts", []), doubt])
        why = f"{gpu.id} [{device}]: {text}"
        proposal.set((file, section, gpu.id), doubts, why, reading.source)
