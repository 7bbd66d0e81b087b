"""Collectors of NVIDIA's driver: loaded modules, modules on disk, nvidia-smi, processes that use GPUs."""

import glob
import os
import re

from gpuprov_gpu_files import SECONDS, TooManyFiles, devices_in_use

from gpuprov.probe.node.base import (
    Failed,
    collector,
    dropped_in,
    find_program,
    lines_of,
    names_in,
    read,
    read_or_none,
    run,
    run_anyway,
    text_in,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

KERNELS_AT_MOST = 8
"""Maximum number of kernels whose modules are described, those with the newest modules.dep."""
DKMS_TREE = "/var/lib/dkms/"


@collector(seconds=30)
def smi(parameters: "Values") -> "Any":
    """Return `rc`, `stdout` and `stderr` of `nvidia-smi -q -x`, also if it failed."""
    code, out, err = run_anyway("nvidia-smi", "-q", "-x", seconds=29)
    return {"rc": code, "stdout": out, "stderr": err}


@collector(seconds=15)
def mig(parameters: "Values") -> "Any":
    """Return the output of `nvidia-smi mig -lgi`, also if it failed, and file -> text of the instances'
    capabilities; both empty if instances are not requested.
    """
    if not parameters["mig"]:
        return {"text": "", "capabilities": {}}
    instances = "/proc/driver/nvidia/capabilities/gpu*/mig/gi*/"
    paths = glob.glob(instances + "access") + glob.glob(instances + "ci*/access")
    return {
        "text": run_anyway("nvidia-smi", "mig", "-lgi", seconds=14)[1],
        "capabilities": {path: read_or_none(path) for path in sorted(paths)},
    }


@collector(seconds=5)
def modules(parameters: "Values") -> "Any":
    """Return the loaded modules that match the requested pattern, and version and parameters of NVIDIA's.

    The latter are the texts of files in /proc, null if no NVIDIA module is loaded.
    """
    wanted = re.compile(parameters["module_pattern"])
    lines = read_or_none("/proc/modules") or _modules_of_sysfs()
    return {
        "loaded": "\n".join(line for line in lines.splitlines() if wanted.match(line)),
        "driver": read_or_none("/proc/driver/nvidia/version"),
        "params": read_or_none("/proc/driver/nvidia/params"),
    }


def _modules_of_sysfs() -> str:
    """Return the modules in the format of /proc/modules; built-in ones, without initstate, are left out."""
    rows = []
    for name in names_in("/sys/module"):
        folder = "/sys/module/" + name + "/"
        if os.path.exists(folder + "initstate"):
            values = [(read_or_none(folder + each) or "-").strip() for each in ("coresize", "refcnt")]
            rows.append(" ".join([name, *values]))
    return "\n".join(rows)


@collector(seconds=20)
def disk_modules(parameters: "Values") -> "Any":
    """Return kernel -> lines of modinfo of those requested modules that modprobe would find there.

    Kept are file, version, licence, vermagic and signer; "" without any.
    """
    described = {}
    for kernel in kernels_with_modules():
        lines = read(dependencies(kernel)).splitlines()
        present = {line.partition(".ko")[0].rpartition("/")[2].replace("-", "_") for line in lines}
        names = [name for name in parameters["modules"] if name.replace("-", "_") in present]
        text = run_anyway("modinfo", "-k", kernel, *names)[1] if names else ""
        kept = re.findall(r"(?m)^(?:filename|version|license|vermagic|signer|sig_key):.*$", text)
        described[kernel] = "\n".join(kept)
    return described


def kernels_with_modules() -> "list[str]":
    """Return the kernels whose modules depmod has read, the last one first, at most `KERNELS_AT_MOST`."""
    kernels = [name for name in names_in("/lib/modules") if os.path.isfile(dependencies(name))]
    kernels.sort(key=lambda name: os.stat(dependencies(name)).st_mtime, reverse=True)
    return kernels[:KERNELS_AT_MOST]


def dependencies(kernel: str) -> str:
    """Return the path of the kernel's modules.dep."""
    return "/lib/modules/" + kernel + "/modules.dep"


@collector(seconds=5)
def dkms(parameters: "Values") -> "Any":
    """Return [name, version, kernel, architecture, state] of the builds in DKMS's tree.

    The state is `installed`, `built`, or `added` for a source without builds. `dkms status` is not used, as
    it starts a process for each line. Installed builds have a link `kernel-RELEASE-ARCH` in the folder of the
    versions.
    """
    rows = []
    for name in names_in(DKMS_TREE):
        tree = DKMS_TREE + name + "/"
        installed = {os.path.realpath(tree + link) for link in names_in(tree) if link.startswith("kernel-")}
        for version in names_in(tree):
            if not os.path.lexists(tree + version + "/source"):
                continue
            builds = [
                (kernel, arch)
                for kernel in names_in(tree + version)
                for arch in names_in(tree + version + "/" + kernel)
                if os.path.isdir(os.path.join(tree, version, kernel, arch, "module"))
            ]
            for kernel, arch in builds:
                place = os.path.realpath(os.path.join(tree, version, kernel, arch))
                rows.append([name, version, kernel, arch, "installed" if place in installed else "built"])
            if not builds:
                rows.append([name, version, "", "", "added"])
    return rows


@collector(seconds=5)
def modprobe(parameters: "Values") -> "Any":
    """Return [place, line] of the effective lines about the requested modules, and about PCI ids of GPUs.

    Also those of modules-load.d, which have only the name of a module. A file hides those of the same name in
    later folders.
    """
    pattern = parameters["module_pattern"]
    first = rf"{pattern}|pci:v000010DE"
    verbs = rf"\s*(?:blacklist|install|options|softdep|alias)\s+(?:{first})"
    rows = []
    for folder, wanted in (("modprobe.d", verbs), ("modules-load.d", rf"\s*{pattern}[\w-]*\s*$")):
        for path in dropped_in(folder):
            rows += [[place, line] for place, line in lines_of(path) if re.match(wanted, line)]
    return rows


@collector(seconds=15)
def gpu_use(parameters: "Values") -> "Any":
    """Return pid -> name of the processes with an open GPU device, and Docker's containers with GPUs.

    Raises:
        Failed: users have more files open than can be looked at, or docker fails.
    """
    processes = {}
    if os.path.exists("/dev/nvidiactl"):
        for pid in users_of(r"nvidia(?:\d+|ctl|-uvm)", mapped=True):
            processes[pid] = text_in("/proc/" + pid + "/comm")
    return {"processes": processes, "containers": _containers()}


def users_of(pattern: str, mapped: bool = False, seconds: float = SECONDS) -> "dict[str, list[str]]":
    """Return pid -> sorted names of the devices that it has open, of those whose whole name matches.

    Args:
        mapped: whether devices count that a process has only mapped.

    Raises:
        Failed: users have more files open than can be looked at in time.
    """
    try:
        found = devices_in_use(seconds=seconds, mapped=mapped)
    except TooManyFiles as error:
        raise Failed(str(error)) from None
    matching = {pid: sorted(filter(re.compile(pattern + r"\Z").match, names)) for pid, names in found.items()}
    return {pid: names for pid, names in matching.items() if names}


def _containers() -> "list[str]":
    """Return the sorted names of Docker's containers with GPUs that run; [] without it; raises as `run`."""
    if not os.path.exists("/run/docker.sock") or not find_program("docker"):
        return []
    running = run("docker", "ps", "--quiet").split()
    if not running:
        return []
    shown = "{{.Name}} {{.HostConfig.Runtime}} {{json .HostConfig.DeviceRequests}}"
    rows = (line.split(" ", 2) for line in run("docker", "inspect", "--format", shown, *running).splitlines())
    with_gpus = [row for row in rows if row[1] == "nvidia" or row[2] not in ("null", "[]")]
    return sorted(row[0].lstrip("/") for row in with_gpus)
