"""Check of confidential computing against GPUs, driver, and what it forbids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuprov.catalog.records import GpuModel
from gpuprov.errors import Refused
from gpuprov.locking.resolve import ABSENT, Answer
from gpuprov.model.lock import Hardware, Setting

KEY = "confidential"
PROTECTED_PCIE = 8
"""GPUs of a guest that has a whole Hopper board, by Protected PCIe; all other guests have one GPU."""


def check_confidential(
    name: str, settings: Mapping[str, Setting], answer: Answer, gpu: GpuModel, hardware: Hardware
) -> None:
    """Check that confidential computing is possible for a group that states it.

    Sources: NVIDIA's release notes of confidential computing, R550 and R580; NVIDIA/nvtrust.

    Raises:
        Refused: its GPUs, driver or modules cannot, or something is stated that such GPUs do not allow.
    """
    stated = settings.get(KEY)
    if stated is None or not stated.value:
        return
    if objections := list(_objections(settings, answer, gpu, hardware.gpu_count)):
        text, do = objections[0]
        raise Refused(f"{name}: confidential is true, and {text}", do=do)


def _objections(
    settings: Mapping[str, Setting], answer: Answer, gpu: GpuModel, count: int
) -> Iterator[tuple[str, str]]:
    """Yield each reason against confidential computing, with the action that resolves it; nothing if it is
    possible.

    The reasons are GPU, driver, modules, number of GPUs, GPUDirect and MIG.
    """
    stack, first = answer.stack, gpu.confidential_from
    off = f"remove {KEY} from the settings"
    if first is None:
        yield f"no release notes name {gpu.id} for confidential computing [confidential-gpu]", off
    elif (stack.branch or 0) < first:
        yield (
            f"{gpu.id} has it from driver branch {first} on, not with {stack.driver} [confidential-driver]",
            f'state stack: {{driver: "{first}"}} or newer',
        )
    if stack.module != "open":
        yield "it needs the open modules [confidential-module]", "state stack: {module: open}"
    if count not in (1, PROTECTED_PCIE):
        yield (
            f"a guest has one GPU, or all {PROTECTED_PCIE} of a board (Protected PCIe), not {count}"
            " [confidential-gpus]",
            "state hardware: {gpu: {count: 1}}",
        )
    if stack.gds not in (None, ABSENT):
        yield "no other device may read a confidential GPU's memory: gds [confidential-direct]", "remove gds"
    if "peer_memory" in settings:
        yield (
            "no other device may read a confidential GPU's memory: peer_memory [confidential-direct]",
            "remove peer_memory",
        )
    if "mig" in settings and settings["mig"].value:
        yield "its GPU is passed through as a whole: mig [confidential-mig]", "remove mig"
