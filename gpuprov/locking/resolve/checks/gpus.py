"""Checks of each GPU: support by the driver, sources, and peer access between several."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.rules import driver as rules
from gpuprov.catalog.rules import peer
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, Ruling, reason, violation, warning

_UNPROVEN = "gpu-driver-unproven"


def supported(case: Case, draft: Draft) -> Findings:
    """Check that the driver supports every GPU: a violation if not, a warning if no list proves it."""
    for gpu in case.gpus:
        yield from _gpu(case, draft, gpu)


def guessed(case: Case, draft: Draft) -> Findings:
    """Warn about GPUs that no source names."""
    for gpu in case.gpus:
        if gpu.guessed:
            text = (
                f"no source names the device {gpu.id}: the ids around it belong to {gpu.architecture} "
                f"(compute capability {gpu.compute_capability}), so it is taken for one, which is a guess"
            )
            yield warning(case, "gpu-guessed", text, *gpu.source)


def _gpu(case: Case, draft: Draft, gpu: GpuModel) -> Findings:
    """Yield the findings about the driver's support of one GPU; nothing if a list proves it for all device
    ids.

    A driver that cannot support it, or whose branch is older than the architecture, is a violation; one below
    the advised version is a violation on a complete board, else a warning; one without proof is a warning;
    device ids that only newer drivers list are a reason. The first that applies excludes those after it,
    except that the last two can occur together.
    """
    branch = draft.driver.major
    if rules.gpu_driver_ok(gpu, draft.driver) is False:
        yield violation(case, "gpu-driver", _unsupported(draft, gpu), *gpu.source)
    elif draft.branch and rules.predates_architecture(draft.branch, gpu):
        text = (
            f"driver branch {branch} knows CUDA {draft.branch.native_cuda}; "
            f"{gpu.id} (compute capability {gpu.compute_capability}) came with CUDA {gpu.first_cuda}"
        )
        yield violation(case, "gpu-driver", text, "dc-arch-matrix", "nixpkgs-cuda")
    elif gpu.advised_driver and draft.driver < gpu.advised_driver:
        yield _below_advice(case, draft, gpu)
    else:
        for text in _unproven(case, draft, gpu):
            yield warning(case, _UNPROVEN, text, *gpu.source)
        yield from _other_devices(case, draft, gpu)


def _unsupported(draft: Draft, gpu: GpuModel) -> str:
    """Return why a driver does not support a GPU: it is too new, or too old."""
    branch, named = draft.driver.major, f"{gpu.id} ({gpu.architecture})"
    if gpu.max_driver_branch is not None and branch > gpu.max_driver_branch:
        return f"{named} ends with driver branch {gpu.max_driver_branch}, and {branch} is newer"
    if branch < gpu.min_driver_branch:
        return f"{named} needs driver branch {gpu.min_driver_branch} or newer, not {branch}"
    return f"{gpu.id} needs driver {gpu.min_driver} or newer, not {draft.driver}"


def _below_advice(case: Case, draft: Draft, gpu: GpuModel) -> Ruling:
    """Return the finding for a driver older than the vendor requires on the board that switches the GPUs.

    It is a violation if the host has such a complete board, else a warning.
    """
    whole, count = gpu.switched_board_gpus, case.counts[gpu]
    if whole and count and count >= whole:
        text = f"a board with {count} {gpu.id} needs driver {gpu.advised_driver} or newer, not {draft.driver}"
        return violation(case, "gpu-driver", text, *gpu.source)
    text = f"{gpu.id}: the vendor asks for driver {gpu.advised_driver} or newer on its usual board"
    return warning(case, "gpu-driver-advised", text, *gpu.source)


def _unproven(case: Case, draft: Draft, gpu: GpuModel) -> Iterator[str]:
    """Yield why no list proves that the driver supports the GPU, at most one reason; nothing if a list
    does, or if the GPU is guessed and in no list, about which `guessed` warns.
    """
    driver, branch = draft.driver, draft.driver.major
    stated = [device for device in gpu.pci_device_ids if device in case.devices]
    late = [device for device in stated if device in gpu.first_listed and driver < gpu.first_listed[device]]
    first = gpu.open_module_first_release_listing_device
    if gpu.listed_only and not gpu.first_listed:
        if not gpu.guessed:
            yield f"no driver's list of devices has {gpu.id}: nothing proves that {driver} takes it"
    elif rules.gpu_driver_ok(gpu, driver) is None:
        yield f"{gpu.id} is first listed by branch {gpu.min_driver_branch}; branch {branch} is unproven"
    elif late:
        first_release = gpu.first_listed[late[0]]
        yield f"{gpu.id} with device id {late[0]} is first listed by {first_release}; {driver} is older"
    elif (since := gpu.since.get(str(branch))) and driver < since:
        yield f"branch {branch} lists {gpu.id} from {since} on; {driver} is older"
    elif branch in gpu.unseen_branches:
        yield f"branch {branch} ended before it learned of {gpu.id}, which an older branch lists by now"
    elif draft.flavour == "open" and first and driver < first:
        yield f"{gpu.id} is first listed by the open modules of {first}; {driver} is older"
    elif not stated and (device := rules.unlisted(gpu, driver)):
        text = f"{gpu.id} is first listed by {gpu.first_listed[device]}"
        yield f"{text}; {gpu.not_listed[device]} does not list it, and {driver} is not newer"


def _other_devices(case: Case, draft: Draft, gpu: GpuModel) -> Findings:
    """Yield a reason for a model of several devices if only a newer driver lists some of them.

    Nothing if the request names one of its devices by id.
    """
    later = {device: release for device, release in gpu.first_listed.items() if draft.driver < release}
    if later and len(later) < len(gpu.first_listed) and not case.devices & set(gpu.pci_device_ids):
        named = ", ".join(f"{device} by {release}" for device, release in later.items())
        text = f"{gpu.id} with some device ids is first listed by newer drivers: {named}"
        yield reason(case, "gpu-devices", text, *gpu.source)


def peers(case: Case, draft: Draft) -> Findings:
    """Yield a reason for each model that the host has several times if its GPUs cannot access each other's
    memory, or only over an NVLink bridge.
    """
    for gpu, count in case.counts.items():
        if count is None or count < 2:
            continue
        way = peer.peer_to_peer(gpu)
        if way == "no":
            text = (
                f"{count}x {gpu.id}: these boards do not reach each other's memory (no peer-to-peer), "
                "so NCCL goes through the host's"
            )
            yield reason(case, "gpu-peer", text, *peer.SOURCE)
        elif way == "bridge":
            text = f"{count}x {gpu.id}: peer-to-peer over an NVLink bridge alone, where the board takes one"
            yield reason(case, "gpu-peer", text, *peer.SOURCE)


CHECKS = (guessed, supported, peers)
