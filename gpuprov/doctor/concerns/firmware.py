"""Rules for the GPU's firmware: files of another version, and a GSP that does not start."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.concerns.board import flavour, model, unanswered
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.reference import catalog
from gpuprov.untrusted import ShellLine, shell

_EXPLAINED_BY = (
    "bus.lost",
    "bus.bar",
    "bus.bar_log",
    "driver.flavour",
    "driver.unsupported",
    "driver.too_new",
    "driver.mismatch",
    "driver.confidential",
    "errors.recovery",
)


@rule("driver.firmware", "D13", source="open-246 open-120", after=("driver.flavour", "driver.mismatch"))
def firmware_files(seen: Examination) -> Iterator[Fault]:
    """Report firmware files that the driver could not read, unless nvidia-smi lists all GPUs."""
    lines = seen.log_lines(
        r"Direct firmware load for nvidia/.*failed", r"gsp\w{0,20}\.bin.*(?:failed|error|not found)"
    )
    if not lines or not unanswered(seen):
        return
    there = [str(each) for each in seen.raw("libraries")["firmware"]]
    loaded = seen.loaded_driver.version if seen.loaded_driver else None
    absent = loaded is not None and loaded not in there
    yield Fault(
        "broken",
        f"the GPU's firmware for the driver {loaded or 'on this machine'} "
        + ("is missing" if absent else "cannot be read"),
        (
            *(line.quoted(200) for line in lines[-2:]),
            f"/lib/firmware/nvidia: {listed(there) or 'nothing'}",
        ),
        "the driver reads gsp_*.bin of exactly its own version; packages of several versions, or an "
        "initramfs that loads the driver and lacks the files",
        (
            shell("sudo apt install --reinstall nvidia-firmware-VERSION   (Debian: firmware-nvidia-gsp)"),
            shell("sudo update-initramfs -u 2>/dev/null || sudo dracut --force"),
            shell("sudo reboot"),
        ),
        "stack.driver: VERSION (the firmware is held with it)",
    )


@rule(
    "driver.gsp",
    "D125",
    "D13",
    source="open-1230 open-1058 open-1104 open-543 nvtrust-54",
    after=(*_EXPLAINED_BY, "driver.firmware"),
)
def firmware_start(seen: Examination) -> Iterator[Fault]:
    """Report a firmware processor (GSP) that did not start or ended, unless nvidia-smi lists all GPUs.

    A reset, another version of the driver and another flavour of its module come before a new card.
    """
    lines = seen.log_lines(
        r"Cannot initialize GSP firmware RM",
        r"WPR2 already up",
        r"wait for GFW[_ ]?(?:BOOT|boot)",
        r"kgsp\w{1,60}: .*[Ff]ail",
        r"kfsp\w{1,60}: .*(?:timed out|reported error|cmds failed)",
        r"GSP-CrashCat Report|GSP task exception|GSP (?:RM )?heartbeat",
    )
    silent = unanswered(seen)
    if not lines or not silent:
        return
    first = next((line for line in lines if "GFW" in line.text or "WPR2" in line.text), lines[0])
    cause, before = _stage(seen, first.text)
    yield Fault(
        "broken",
        f"the firmware (GSP) of {len(silent)} of {len(seen.pci_gpus)} GPUs does not start: "
        f"{listed([gpu.address for gpu in silent])}",
        (*dict.fromkeys(line.quoted(180) for line in (first, *lines[-2:])),),
        cause,
        (
            *before,
            *_other_driver(seen),
            shell("if it stays: sudo nvidia-bug-report.sh, and have the card replaced"),
        ),
        "stack.driver: another version, then stack.module",
    )


@rule("driver.heartbeat", "D62", source="open-1064 bazzite-4449", after=(*_EXPLAINED_BY, "errors.xid"))
def heartbeat(seen: Examination) -> Iterator[Fault]:
    """Report a firmware processor (GSP) that has missed its heartbeat, if nvidia-smi lists all GPUs."""
    lines = seen.log_lines(r"\ANVRM: (?:GPU\d{1,3} )?_kgsp\w{1,60}: .*[Hh]eartbeat timed out")
    if not lines or unanswered(seen):
        return
    yield Fault(
        "risk",
        "the firmware (GSP) of a GPU has missed its heartbeat; nvidia-smi lists every GPU",
        tuple(line.dated(180) for line in lines[-2:]),
        "the firmware hangs or sleeps while the driver waits for it, as after a suspend or in power saving: "
        "programs stall until it answers, and Xid 119 follows if it does not",
        (
            shell("before a job: sudo nvidia-smi --gpu-reset   (no program may use the GPU)"),
            *_other_driver(seen),
        ),
        "stack.driver: another version",
    )


def _stage(seen: Examination, text: str) -> tuple[str, tuple[ShellLine, ...]]:
    """Return the cause by the stage at which the start ended, and the actions that come first."""
    off = shell("sudo poweroff, wait a minute with the power cut, start again")
    if seen.virtual:
        off = shell("stop the virtual machine, reset the GPU or power off its host, and start it again")
    if "WPR2" in text:
        return (
            "an earlier start has left the firmware's memory locked, as after a failed load, a crash or a "
            "change of the driver: only a reset of the GPU unlocks it",
            (shell("sudo nvidia-smi --gpu-reset   (if it answers)"), off),
        )
    if "GFW" in text:
        return (
            "the GPU's own boot code has not ended: power, the PCIe link, or a GPU that was passed through "
            "without a reset",
            (off, shell("check power cables and seating; update the board's firmware (VBIOS)")),
        )
    return "the driver and the firmware that it loads do not start together on this GPU", (off,)


def _other_driver(seen: Examination) -> Iterator[ShellLine]:
    """Yield the ways to another driver: another version, and the other flavour if the GPUs can use it."""
    from gpuprov.catalog.rules.module import host_flavours

    loaded = seen.loaded_driver
    if loaded:
        yield shell(
            "another version of the driver than {}: gpuprov resolve lists those of the branch", loaded.version
        )
    records = [record for gpu in unanswered(seen) if (record := model(gpu))]
    branch = int(loaded.version.split(".")[0]) if loaded else 0
    flavours = host_flavours(records, branch, catalog().branches.get(branch))
    if flavour(seen) == "open" and records and "proprietary" in flavours:
        yield shell(
            "or the proprietary module, without this firmware: "
            "echo options nvidia NVreg_EnableGpuFirmware=0 | sudo tee /etc/modprobe.d/nvidia-gsp.conf"
        )
