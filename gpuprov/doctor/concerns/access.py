"""Rules for access to the loaded driver: device files, unified memory, persistence, nvidia-smi's output."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.concerns.driver import expected, packaged
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.untrusted import shell
from gpuprov.untrusted.parsing import whole_number


@rule("driver.permissions", "D16", source="tk-trouble")
def permissions(seen: Examination) -> Iterator[Fault]:
    """Report that not every user may use NVML: nvidia-smi was refused (broken), or the device files' mode is
    not open (risk).
    """
    said = seen.smi.error or ""
    mode = seen.driver_parameters.get("DeviceFileMode") if "modules" not in seen.missing else None
    refused = "Insufficient Permissions" in said
    bits = whole_number(mode or "")
    closed = bits is not None and bits & 0o006 != 0o006
    if refused or closed:
        yield Fault(
            "broken" if refused else "risk",
            "the driver's device files are not open to everybody"
            + ("" if refused else f": mode {bits or 0:04o}"),
            (f"nvidia-smi: {said[:120]}",)
            if refused
            else (f"/proc/driver/nvidia/params: DeviceFileMode {mode}",),
            "an option of the module, or SELinux on the files",
            (
                shell("grep -r NVreg_DeviceFileMode /etc/modprobe.d"),
                shell("in containers with SELinux: --security-opt=label=disable"),
            ),
        )


@rule(
    "driver.uvm",
    "D17",
    source="llama-7218 digits-799 ollama-8638",
    after=("driver.not_loaded", "driver.no_module", "driver.symbols", "driver.vermagic", "driver.alias"),
)
def no_unified_memory(seen: Examination) -> Iterator[Fault]:
    """Report a loaded driver without nvidia-uvm: CUDA cannot start without it, but NVML works. In a container
    its device file counts; on the host it is a hint for root if nvidia-modprobe will load it.
    """
    if seen.in_container:
        wanted = (
            "/dev/nvidiactl" in seen.state.device_nodes and "/dev/nvidia-uvm" not in seen.state.device_nodes
        )
    else:
        wanted = "nvidia_uvm" not in seen.loaded_modules
    if not seen.loaded_driver or not wanted:
        return
    helper = seen.raw("gpu_tools")["nvidia_modprobe"]
    yield Fault(
        "hint" if helper and seen.is_root and not seen.in_container else "broken",
        "nvidia_uvm is not loaded"
        + (
            ": the first CUDA program loads it by nvidia-modprobe"
            if helper
            else ": cuInit fails with 999 or 304 while nvidia-smi works"
        ),
        (
            "/proc/modules: no nvidia_uvm",
            f"nvidia-modprobe: {helper or 'not installed'}",
            f"/dev: {listed(list(seen.state.device_nodes), 8)}",
        ),
        "no program has loaded it since boot",
        (
            shell("sudo modprobe nvidia_uvm"),
            shell("echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"),
        ),
        "a group with this host and stack.driver",
    )


@rule(
    "driver.device_files",
    "D17",
    source="project",
    after=("driver.not_loaded", "driver.no_module", "bus.count"),
)
def no_device_files(seen: Examination) -> Iterator[Fault]:
    """Report fewer device files than nvidia-smi lists GPUs; nothing if nvidia-smi fails."""
    if not seen.loaded_driver or seen.smi.error or not seen.smi.gpus:
        return
    nodes = [path for path in seen.state.device_nodes if re.fullmatch(r"/dev/nvidia\d+", path)]
    if len(nodes) < len(seen.smi.gpus):
        yield Fault(
            "degraded",
            f"{len(nodes)} device files for {len(seen.smi.gpus)} GPUs",
            (f"/dev: {listed(list(seen.state.device_nodes), 8)}",),
            "device files are made at the first use by root, or by nvidia-modprobe",
            (shell("sudo nvidia-modprobe -c 0 -u"), shell("sudo systemctl enable --now nvidia-persistenced")),
            "settings.persistence: true",
        )


@rule("driver.infoROM", "D18", source="op-trouble")
def corrupted_board_memory(seen: Examination) -> Iterator[Fault]:
    """Report damage of the infoROM, the board's own memory, from nvidia-smi's messages."""
    words = [*seen.smi.warnings, *(seen.smi.error or "").split("\n")]
    bad = [line for line in words if re.search(r"infoROM is corrupted", line, re.I)]
    if bad:
        yield Fault(
            "broken",
            "the infoROM of a GPU is corrupted",
            tuple(f"nvidia-smi: {line}" for line in bad[:4]),
            "the board's own memory of its identity and errors is damaged; ECC and row remapping are "
            "not kept",
            (shell("have the GPU replaced; sudo nvidia-bug-report.sh for the vendor"),),
        )


@rule("driver.persistence", "D19", "D58", source="aws-hc sichek", after=("driver.mismatch",))
def no_persistence(seen: Examination) -> Iterator[Fault]:
    """Report persistence mode off: the driver releases a GPU when no program uses it."""
    off = [str(gpu.index) for gpu in seen.gpus if gpu.persistence_mode is False]
    if not off:
        return
    unit = seen.units.get("nvidia-persistenced.service") if "units" not in seen.missing else None
    state = f"{unit.file_state or unit.load_state}, {unit.active_state}" if unit else "not known"
    yield Fault(
        "risk",
        f"persistence mode is off on GPU {listed(off, 8)}",
        ("nvidia-smi -q: Persistence Mode Disabled", f"nvidia-persistenced.service: {state}"),
        "each first use initialises the GPU, for seconds; clocks, power limit and volatile counters are lost",
        (
            shell("sudo nvidia-smi -pm 1")
            if unit and unit.active
            else shell("sudo systemctl enable --now nvidia-persistenced")
            if unit and unit.exists
            else shell("sudo nvidia-smi -pm 1   (until the next boot)"),
        ),
        "settings.persistence: true",
    )


@rule(
    "driver.smi",
    "D02",
    source="project",
    after=(
        "driver.mismatch",
        "driver.not_loaded",
        "driver.no_module",
        "driver.absent",
        "driver.permissions",
        "driver.rejected",
        "driver.flavour",
        "driver.unsupported",
        "driver.firmware",
        "driver.gsp",
        "driver.init_failed",
        "bus.count",
        "bus.lost",
        "bus.none",
        "errors.xid",
        "errors.recovery",
        "driver.infoROM",
    ),
)
def no_answer(seen: Examination) -> Iterator[Fault]:
    """Report that nvidia-smi fails or does not answer in time, if a driver is loaded or packaged and
    nvidia-smi is installed.
    """
    said = seen.smi.error
    if not said or not expected(seen) or (seen.loaded_driver is None and not packaged(seen)):
        return
    if "not installed" in said:
        return  # reported by `cuda.no_smi`
    hanging = re.search(r"did not answer in time|no answer in", said)
    yield Fault(
        "broken",
        "nvidia-smi does not answer in time" if hanging else f"nvidia-smi fails: {said[:160]}",
        (f"nvidia-smi -q -x: {said[:300]}",),
        "a GPU or its firmware hangs, or a program holds the driver" if hanging else "see the message",
        (
            shell("sudo dmesg | grep -iE 'NVRM|Xid' | tail"),
            shell("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'") if hanging else shell("nvidia-smi"),
        ),
    )
