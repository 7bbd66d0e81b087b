"""Rules for virtual machines: a virtual GPU's licence, and confidential computing."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.concerns.board import unanswered
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, rule
from gpuprov.untrusted import shell

_NO_CRYPTOGRAPHY = (
    r"libspdm_\w{12,40}: Error - libspdm expects LKCA",
    r"NVRM: .{0,60}SPDM: Certificate retrieval failed",
)
"""Messages of a driver that has not found the kernel's cryptography."""
_BROKEN_SESSION = (
    r"NVRM: confCompute\w{1,60}: ConfCompute: Fatal error",
    r"NVRM: .*Fatal error detected in GSP-DMA (?:de|en)crypt",
)
"""Messages of a session between CPU and GPU that cannot go on."""


@rule("driver.licence", "D135", source="vgpu-op aks-4870")
def licence(seen: Examination) -> Iterator[Fault]:
    """Report a virtual GPU whose guest driver has no licence."""
    for gpu in seen.health:
        if gpu.virtualization == "vgpu" and (gpu.licence or "").lower().startswith("unlicensed"):
            yield Fault(
                "degraded",
                f"GPU {gpu.index} is a virtual GPU without a licence: {gpu.licence}",
                (
                    f"nvidia-smi -q, GPU {gpu.index}: Virtualization Mode VGPU",
                    f"nvidia-smi -q, GPU {gpu.index}: License Status {gpu.licence}",
                ),
                "the guest driver (GRID) has reached no licence server: after a while it allocates memory "
                "slowly and refuses programs",
                (
                    shell("journalctl -u nvidia-gridd | tail   (the server that was asked, and its answer)"),
                    shell("/etc/nvidia/gridd.conf, /etc/nvidia/ClientConfigToken: server and token"),
                    shell("sudo systemctl restart nvidia-gridd"),
                ),
            )


@rule("driver.confidential", "D136", source="nvtrust-51 nvtrust-54 open-893", after=("bus.lost",))
def confidential(seen: Examination) -> Iterator[Fault]:
    """Report confidential computing that cannot start: without the kernel's cryptography, with a broken
    session, or with GPUs that wait for the guest's consent.
    """
    yield from _no_session(seen)
    state = "" if "host_state" in seen.missing else str(seen.raw("host_state").get("confidential") or "")
    if "not-ready" in state.replace(" ", "-"):
        yield Fault(
            "broken",
            "confidential computing: the GPUs are not ready, and CUDA fails with 802",
            (f"nvidia-smi conf-compute -grs: {state[:120]}",),
            "the guest has to accept the GPUs after their attestation",
            (shell("sudo nvidia-smi conf-compute -srs 1   (after the attestation, at each boot)"),),
        )


def _no_session(seen: Examination) -> Iterator[Fault]:
    """Yield one fault for a driver whose session with the GPU's firmware does not start or has ended; none if
    all GPUs answer.
    """
    if "kernel_log" in seen.missing or not unanswered(seen):
        return
    if lines := seen.log_lines(*_NO_CRYPTOGRAPHY):
        stubs = "expects LKCA" in lines[-1].text
        yield Fault(
            "broken",
            "confidential computing: the driver has not found the kernel's cryptography",
            tuple(line.quoted(200) for line in lines[-2:]),
            "the module was compiled for a kernel whose headers lack ECC, or whose interface it does not know"
            if stubs
            else "the kernel's modules for ECDSA and ECDH are not loaded before NVIDIA's",
            (
                *((shell("another version of the driver, which knows this kernel"),) if stubs else ()),
                shell(
                    "echo 'softdep nvidia pre: ecdsa_generic ecdh_generic' | "
                    "sudo tee /etc/modprobe.d/nvidia-lkca.conf"
                ),
                shell("sudo update-initramfs -u 2>/dev/null || sudo dracut --force"),
                shell("sudo reboot"),
            ),
        )
    elif lines := seen.log_lines(*_BROKEN_SESSION):
        yield Fault(
            "broken",
            "confidential computing: the encrypted session with the GPU is broken",
            tuple(line.quoted(200) for line in lines[-2:]),
            "the GPU keeps the session's keys until it is reset; the driver has started it once already, or "
            "lacks a cryptographic module",
            (
                shell("lsmod | grep -E 'ecdsa_generic|ecdh_generic'   (both are needed)"),
                shell("stop the guest, reset the GPU on its host, start the guest again"),
                shell("sudo systemctl enable nvidia-persistenced   (it keeps the session open)"),
            ),
        )
