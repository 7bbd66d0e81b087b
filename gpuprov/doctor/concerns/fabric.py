"""Rules for NVLink and NVSwitch: the fabric manager, the subnet manager of NVLink 5, IMEX, links."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from gpuprov.doctor.examination import LOG_LINE, Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.untrusted import shell

UNIT = "nvidia-fabricmanager.service"
KEEP = "hardware.nvswitch with stack.driver: VERSION (the fabric manager follows the driver's version)"
KEEP_IMEX = "settings.imex: service, dra, dra-host or off"
COUNTER = re.compile(r"(?:Replay|Recovery|CRC)[^:;]{0,80}: ?(\d{1,18})")
"""A counter of serious errors in a link's text; its name ends soon, so that the time is linear."""
PEERLESS = ("SYS", "NODE", "PHB", "PXB", "PIX")


def has_switches(seen: Examination) -> bool:
    """Return whether this machine's own bus has NVSwitches; in NVLink 5 systems they are elsewhere."""
    return any(device.is_nvswitch for device in seen.pci)


def waits_for_fabric(seen: Examination) -> list[str]:
    """Return the GPUs whose fabric is expected and not ready, as text with the state: `GPU 0: In
    Progress`.
    """
    waiting = ("in progress", "not started", "not supported", "n/a", "none")
    return [
        f"GPU {gpu.index}: {gpu.fabric_state}" + (f", {gpu.fabric_status}" if gpu.fabric_status else "")
        for gpu in seen.gpus
        if gpu.fabric_state and gpu.fabric_state.lower() not in ("completed", *waiting[2:])
    ]


@rule(
    "fabric.manager",
    "D30",
    source="torch-35710 awsdl-33 op-trouble",
    after=("driver.not_loaded", "driver.mismatch", "fabric.subnet_manager"),
)
def manager(seen: Examination) -> Iterator[Fault]:
    """Report NVSwitches without a running fabric manager, or GPUs that wait for their fabric: every CUDA
    program fails with 802.
    """
    waiting = waits_for_fabric(seen)
    if not has_switches(seen) and not waiting:
        return
    unit = seen.units.get(UNIT) if has_switches(seen) else None
    if unit is None and not waiting:
        return
    if unit is not None and unit.active and not waiting:
        return
    version = seen.loaded_driver.version if seen.loaded_driver else "VERSION"
    branch = version.partition(".")[0]
    state = f"{unit.file_state or unit.load_state}, {unit.active_state}" if unit else "unknown"
    installed = unit is not None and unit.exists
    yield Fault(
        "broken",
        "the fabric is not set up: CUDA fails with 802, system not yet initialized",
        (
            f"{UNIT}: {state}",
            *(
                [f"PCI: {sum(device.is_nvswitch for device in seen.pci)} NVSwitches"]
                if has_switches(seen)
                else []
            ),
            *waiting[:4],
        ),
        "NVSwitches are set up by the fabric manager, of the driver's own version, before CUDA can start"
        if not installed or not unit or not unit.active
        else "the fabric manager runs and has not finished; training failed, or is still in progress",
        (
            *([] if installed else [shell("sudo apt install nvidia-fabricmanager-{}={}-*", branch, version)]),
            shell("sudo systemctl enable --now nvidia-fabricmanager"),
            shell("journalctl -u {} -n 20", UNIT),
        )
        if not (unit and unit.active)
        else (
            shell("journalctl -u {} -n 20", UNIT),
            shell("sudo systemctl restart nvidia-fabricmanager; if it stays: sudo reboot"),
        ),
        KEEP,
        urgent=True,
    )


@rule("fabric.version", "D31", source="fm-guide", after=("driver.mismatch",))
def manager_version(seen: Examination) -> Iterator[Fault]:
    """Report a packaged fabric manager of another version than the loaded driver, which does not start.
    Broken with NVSwitches, else a risk.
    """
    if not seen.loaded_driver:
        return
    for name in seen.packages.by_name:
        version = seen.packages.version(name)
        if not version or not re.fullmatch(r"(?:cuda-drivers|nvidia)-fabric-?manager(?:-\d+)?", name):
            continue
        bare = re.sub(r"^\d+:", "", version).split("-")[0]
        if re.match(r"\d{3}\.\d+", bare) and bare != seen.loaded_driver.version:
            yield Fault(
                "broken" if has_switches(seen) else "risk",
                f"the fabric manager is {bare}, the loaded driver is {seen.loaded_driver.version}",
                (f"package {name} {version}", f"/proc/driver/nvidia/version: {seen.loaded_driver.version}"),
                "it rejects a driver of another version",
                (
                    shell("sudo apt install {}={}-*", name, seen.loaded_driver.version),
                    shell("sudo systemctl restart {}", UNIT),
                ),
                KEEP,
            )


@rule("fabric.subnet_manager", "D33", source="project")
def subnet_manager(seen: Examination) -> Iterator[Fault]:
    """Report a missing part of nvlsm, which manages the switches of NVLink 5 over InfiniBand, if Blackwell
    GPUs wait for their fabric.
    """
    blackwell = any("Blackwell" in (gpu.architecture or "") for gpu in seen.gpus)
    if not blackwell or not waits_for_fabric(seen):
        return
    lacking = [
        text
        for text, there in (
            ("package nvlsm", any(name.startswith("nvlsm") for name in seen.packages.by_name)),
            ("module ib_umad", "ib_umad" in seen.loaded_modules),
        )
        if not there
    ]
    if lacking:
        yield Fault(
            "broken",
            f"the subnet manager of the NVLink switches cannot work: no {' and no '.join(lacking)}",
            tuple(waits_for_fabric(seen)[:4]),
            "from NVLink 5 on the fabric manager starts nvlsm, which accesses the switches through ib_umad",
            (
                shell("sudo apt install nvlsm infiniband-diags"),
                shell("sudo modprobe ib_umad"),
                shell("sudo systemctl restart {}", UNIT),
            ),
            KEEP,
        )


@rule("fabric.imex", "D34", source="aicr oci-npd")
def imex(seen: Examination) -> Iterator[Fault]:
    """Report Grace-Blackwell trays without active IMEX or its list of nodes, which they need to access each
    other's memory.

    The remedy depends on who runs IMEX: a daemon of the host prevents those of Kubernetes' DRA driver.
    Nothing is reported for a masked unit: that is a decision against a daemon of the host.
    """
    rack = any(re.search(r"GB\d00", gpu.name or "") for gpu in seen.gpus)
    if not rack:
        return
    unit = seen.units.get("nvidia-imex.service")
    nodes = seen.raw("gpu_tools")["imex_nodes"]
    if unit and unit.load_state == "masked" and not unit.active:
        return
    if unit is None or not unit.active or not nodes:
        kubelet = seen.units.get("kubelet.service")
        yield Fault(
            "degraded",
            "IMEX does not run: NVLink reaches no other tray, NCCL falls back to the network",
            (
                f"nvidia-imex.service: {f'{unit.load_state}, {unit.active_state}' if unit else 'not known'}",
                f"/etc/nvidia-imex/nodes_config.cfg: {nodes if nodes is not None else 'absent'}",
            ),
            "who runs it: a daemon of each tray with the same list of nodes (Slurm, MPI), or the DRA driver"
            " of Kubernetes (ComputeDomains), which fails while the host's daemon runs"
            + ("; kubelet is active here" if kubelet and kubelet.active else ""),
            (
                shell("Slurm or MPI: write every node's address into /etc/nvidia-imex/nodes_config.cfg"),
                shell("Slurm or MPI: sudo systemctl enable --now nvidia-imex"),
                shell("ComputeDomains, or no job across trays: sudo systemctl mask --now nvidia-imex"),
            ),
            keep=KEEP_IMEX,
        )


@rule("fabric.health", "D79", source="nvml")
def fabric_health(seen: Examination) -> Iterator[Fault]:
    """Report GPUs whose fabric is completed without success (broken), or degraded, by the driver's state."""
    for health, gpu in zip(seen.health, seen.gpus, strict=False):
        failed = (gpu.fabric_state or "").lower() == "completed" and (
            gpu.fabric_status or ""
        ).lower() not in (
            "",
            "success",
            "n/a",
        )
        if failed or health.degraded_fabric:
            yield Fault(
                "broken" if failed else "degraded",
                f"GPU {gpu.index}: the fabric's set-up ended with {gpu.fabric_status}"
                if failed
                else f"GPU {gpu.index}: the fabric is degraded",
                (
                    f"nvidia-smi -q: fabric {gpu.fabric_state}, {gpu.fabric_status}",
                    *health.degraded_fabric[:4],
                ),
                "a link or a switch failed in training",
                (shell("journalctl -u {} -n 20", UNIT), shell("sudo dmesg | grep -iE 'nvswitch|SXid'")),
            )


def read_nvlink(text: str) -> dict[int, dict[int, str]]:
    """Parse `nvidia-smi nvlink -s` or `-e`: GPU → link → its texts, joined with `; `. Lines are cut to
    `LOG_LINE` characters.
    """
    found: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    gpu = -1
    for line in (whole[:LOG_LINE] for whole in text.splitlines()):
        if result := re.match(r"\s*GPU (\d{1,4}):", line):
            gpu = int(result[1])
            found[gpu].clear()
        elif result := re.match(r"\s*Link (\d{1,3}):\s*(\S.*)", line.rstrip()):
            found[gpu][int(result[1])].append(result[2])
    return {gpu: {link: "; ".join(texts) for link, texts in each.items()} for gpu, each in found.items()}


def _switched(seen: Examination) -> bool:
    """Return whether switches connect all GPUs; bridges connect only some of them."""
    return has_switches(seen) or any((gpu.fabric_state or "") == "Completed" for gpu in seen.gpus)


@rule(
    "fabric.links_down",
    "D79",
    source="oci-hc aznhc",
    after=("fabric.manager", "errors.recovery", "driver.mismatch", "driver.not_loaded"),
    health={"degraded": "reset"},
)
def links_down(seen: Examination) -> Iterator[Fault]:
    """Report a GPU with fewer active links than another one of the machine; one without any only if switches
    connect all GPUs.
    """
    links = read_nvlink(seen.raw("nvlink")["status"])
    active = {gpu: [link for link, text in each.items() if "GB/s" in text] for gpu, each in links.items()}
    most = max(map(len, active.values()), default=0)
    fewer = [gpu for gpu in links if len(active[gpu]) < most]
    if not all(active[gpu] for gpu in fewer) and not _switched(seen):
        fewer = [gpu for gpu in fewer if active[gpu]]
    for gpu in fewer:
        down = sorted(set(links[gpu]) - set(active[gpu]))
        yield Fault(
            "degraded",
            f"GPU {gpu}: {len(active[gpu])} NVLinks are up, other GPUs here have {most}",
            (f"nvidia-smi nvlink -s: GPU {gpu}, inactive links {listed([str(link) for link in down], 8)}",),
            "a link, a bridge or a switch is down",
            (
                shell("drain the node, then: sudo reboot"),
                shell("if it stays: sudo nvidia-bug-report.sh, replacement"),
            ),
        )


@rule("fabric.link_errors", "D80", source="aws-hc stas-debug", after=("fabric.links_down",))
def link_errors(seen: Examination) -> Iterator[Fault]:
    """Report errors that links have counted since the driver was loaded."""
    for gpu, links in read_nvlink(seen.raw("nvlink")["errors"]).items():
        bad = {}
        for link, text in links.items():
            count = sum(map(int, COUNTER.findall(text)))
            if count:
                bad[link] = count
        if bad:
            worst = max(bad, key=lambda link: bad[link])
            yield Fault(
                "risk",
                f"GPU {gpu}: NVLink errors on {len(bad)} links, the most on link {worst}: {bad[worst]}",
                tuple(
                    f"nvidia-smi nvlink -e: GPU {gpu} link {link}: {count}"
                    for link, count in list(bad.items())[:4]
                ),
                "replays and recoveries reduce bandwidth; a link whose counters grow is defective",
                (
                    shell(
                        "repeat in an hour: nvidia-smi nvlink -e -i {}; replace links whose counters grow",
                        gpu,
                    ),
                ),
            )


@rule(
    "fabric.topology",
    "D81",
    source="stas-net",
    after=("fabric.manager", "fabric.links_down", "cuda.mig_left"),
)
def topology(seen: Examination) -> Iterator[Fault]:
    """Report pairs without NVLink if other pairs of the machine have it and switches connect all GPUs."""
    from gpuprov.topology import driver_error, parse_topology

    text = seen.raw("topo")["text"]
    if not text.strip() or driver_error(text):
        return
    pairs = parse_topology(text).gpu_pairs
    joined, apart = [p for p in pairs if p.nvlinks], [p for p in pairs if not p.nvlinks]
    if joined and apart and _switched(seen):
        yield Fault(
            "degraded",
            f"{len(apart)} of {len(pairs)} GPU pairs have no NVLink: "
            + listed([f"{link.a}-{link.b} {link.kind}" for link in apart]),
            ("nvidia-smi topo -m",),
            "a switch or links are down, or MIG is on",
            (shell("nvidia-smi nvlink -s"), shell("journalctl -u {} -n 20", UNIT)),
        )
