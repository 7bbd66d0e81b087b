"""Part of `nvidia-smi -q -x` in a bundle: listed elements, with values of nvidia-smi's own vocabulary.

Serial numbers, UUIDs and other identities, and the names of processes are left out.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

from gpuprov.doctor.bundle.choosing import OUT, Tally, matching, number
from gpuprov.probe.parse.smi import gpu_elements

_VALUE = matching(
    r"N/A|None|No|Yes|[Ee]nabled|[Dd]isabled|(?:Not )?(?:Active|Supported)|Default|Exclusive_Process"
    r"|Prohibited|Pending|Completed|In Progress|Not Started|Success|Pass-Through|VGPU|Host VSGA|Host VGPU"
    r"|Compute|Graphics|All On|Low DP"
    r"|Requested functionality has been deprecated|Unknown Error"
    r"|\[?(?:GPU is lost|Unknown Error|Not Found)\]?"
    r"|(?:Drain|Drain and Reset|GPU Reset|Node Reboot|Reset|Reboot|Drain P2P)|HMM|ATS"
    r"|P\d{1,2}|D\d|-?\d{1,12}(?:\.\d{1,6})?(?: (?:[KMG]i?B(?:/s)?|W|mW|J|C|MHz|%|[mun]?s|mV|bank\(s\)))?"
    r"|\d{1,3}x"
    r"|0x[0-9A-Fa-f]{1,8}|[0-9A-F]{8}|[0-9A-Z]{1,4}(?:\.[0-9A-F]{1,4}){1,6}|\d{1,4}-\d[A-Z]\d{3}-\d{4}-\d{3}"
    r"|\d{4}-\d{3}-[A-Z]\d|[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
    r"|(?:Maxwell|Pascal|Volta|Turing|Ampere|Ada Lovelace|Hopper|Blackwell|Kepler|Tesla|Quadro|GeForce|Titan)"
    r"|NVIDIA(?: (?:[A-Z]{1,3}\d{1,4}[A-Z]{0,2}|RTX|GTX|TITAN|GeForce|Quadro|Tesla|Graphics|Device|PCIe|NVL"
    r"|SXM\d?"
    r"|[A-Z]\d{2,3}-(?:SXM\d|PCIE|PCIe|SXM)(?:-\d{2,3}GB)?|Ti|SUPER|Ada|Generation|Blackwell"
    r"|Server|Workstation|Edition"
    r"|Max-Q|\d{1,3}GB|\d{3,4}|HBM\de?)){0,8}",
    longest=64,
)
MESSAGES = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "Failed to initialize NVML: Driver/library version mismatch",
    "Failed to initialize NVML: Insufficient Permissions",
    "Failed to initialize NVML: Unknown Error",
    "No devices were found",
    "Unable to determine the device handle for GPU",
    "GPU is lost",
)
"""Messages with which nvidia-smi fails."""
SAID_AT_MOST = 4096
"""Characters of an output that are searched for messages."""
_ELEMENTS = frozenset((files("gpuprov.doctor") / "data/smi_elements.txt").read_text("utf-8").split())


def gpus(value: Any, tally: Tally) -> Any:
    """Return each GPU's elements, nested as in nvidia-smi's output.

    Args:
        value: the output of nvidia-smi.
    """
    if not isinstance(value, str):
        tally.out += 1
        return OUT
    return [_chosen(gpu, tally) for _, gpu in gpu_elements(value)]


def answer(value: Any, tally: Tally) -> Any:
    """Return exit status and GPUs of nvidia-smi, or without GPUs the known messages in its output; no other
    text.

    Args:
        value: of the collector `smi`.
    """
    if not isinstance(value, dict):
        tally.out += 1
        return OUT
    kept: dict[str, Any] = {"stdout": gpus(value.get("stdout"), tally)}
    if "rc" in value:
        kept["rc"] = number(value["rc"], tally)
    text = " ".join(str(value.get(name) or "")[:SAID_AT_MOST] for name in ("stdout", "stderr"))
    said = [message for message in MESSAGES if message in text]
    if said and not kept["stdout"]:
        kept["said"] = said
    return {name: one for name, one in kept.items() if one is not OUT}


def _chosen(element: Element, tally: Tally) -> dict[str, Any]:
    """Return name → value or nested elements of the listed children; several of one name become a list."""
    kept: dict[str, Any] = {}
    for child in element:
        if child.tag not in _ELEMENTS:
            tally.out += 1
            continue
        inner = _chosen(child, tally) if len(child) else _VALUE(child.text or "N/A", tally)
        if inner not in (OUT, {}):
            kept.setdefault(child.tag, []).append(inner)
    return {tag: values[0] if len(values) == 1 else values for tag, values in kept.items()}
