"""Collectors of software from a program's view: libraries, firmware, containers, Python's frameworks."""

import fnmatch
import glob
import itertools
import json
import os
import re
import stat
import time

import gpuprov_cdi

from gpuprov.probe.node.base import (
    Failed,
    collector,
    find_program,
    is_ours,
    lines_of,
    link_name,
    names_in,
    path_of_root,
    read_of_users,
    read_or_none,
    redact,
    run,
    run_anyway,
)
from gpuprov.probe.node.people import in_turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Place, Values
    from gpuprov.probe.node.people import Costly

LIBRARY_FOLDERS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda*/compat",
)
LOGIN_FILES = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
LOGIN_PATTERNS = ("/etc/profile.d/*.sh", "/etc/environment.d/*.conf")
"""Files with variables of all logins, and patterns of further ones."""
PYTHON_FOLDERS = (
    "/usr/lib/python3*/dist-packages",
    "/usr/lib*/python3*/site-packages",
    "/usr/local/lib*/python3*/*-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/.venv/lib/python3*/site-packages",
    "/opt/*/venv/lib/python3*/site-packages",
    "/opt/conda/envs/*/lib/python3*/site-packages",
    "/opt/*/envs/*/lib/python3*/site-packages",
    "/root/.local/lib/python3*/site-packages",
    "/root/*/lib/python3*/site-packages",
    "/root/.*/lib/python3*/site-packages",
    "/home/*/.local/lib/python3*/site-packages",
    "/home/*/*/lib/python3*/site-packages",
    "/home/*/.*/lib/python3*/site-packages",
    "/home/*/*/envs/*/lib/python3*/site-packages",
    "/home/*/*/.venv/lib/python3*/site-packages",
)
"""Patterns of folders with Python packages, those of root first."""
ENVIRONMENTS_AT_MOST = 40
"""Number of found frameworks after which the search ends."""
SEARCH_S = 6.0
"""Seconds after which the search ends: a user can create millions of folders without any packages."""
ENTRIES_AT_MOST = 4096
"""Number of entries of one folder that are looked at."""


@collector(seconds=10)
def libraries(parameters: "Values") -> "Any":
    """Return the libraries of driver, NCCL and cuDNN in the loader's cache, and copies of the driver's.

    `taken` is the file that a program loads for each name, `configured` the folders in ld.so.conf, `led` the
    libcuda to which a login's LD_LIBRARY_PATH leads, with the line that states it, `firmware` the versions of
    NVIDIA's firmware.
    """
    cache = ""
    if find_program("ldconfig"):
        cache = run_anyway("ldconfig", "-p", seconds=9)[1]
    wanted = re.compile(r"lib(?:cuda|nvidia-ml|nccl|cudnn)\.so\.\d+ ")
    copies = {}
    for folder in LIBRARY_FOLDERS:
        for pattern in ("/libcuda.so.[0-9]*.[0-9]*", "/libnvidia-ml.so.[0-9]*.[0-9]*"):
            for path in glob.glob(folder + pattern):
                copies[path] = os.path.realpath(path)
    configured = {}
    for path in ["/etc/ld.so.conf"] + sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):
        lines = [line.strip() for line in (read_or_none(path) or "").splitlines()]
        odd = [line for line in lines if line and not line.startswith(("#", "include"))]
        if odd:
            configured[path] = odd
    return {
        "cache": [line.strip() for line in cache.splitlines() if wanted.search(line)],
        "copies": copies,
        "configured": configured,
        "led": [list(each) for each in _led()],
        "taken": {
            row.split(" ")[0]: os.path.realpath(row.rpartition("=> ")[2])
            for row in reversed(list(filter(wanted.search, map(str.strip, cache.splitlines()))))
        },
        "firmware": names_in("/lib/firmware/nvidia") or names_in("/usr/lib/firmware/nvidia"),
    }


def _led() -> "Iterator[Place]":
    """Yield the libcuda in each folder of a login's LD_LIBRARY_PATH, and the line that states it.

    A folder that users can write is left out: one of them could have the node isolated by a link there.
    """
    for path in [*LOGIN_FILES, *(each for pattern in LOGIN_PATTERNS for each in sorted(glob.glob(pattern)))]:
        for place, line in lines_of(path):
            stated = re.match(r"""(?:export[ \t]+)?LD_LIBRARY_PATH=["']?([^"'#;]*)""", line)
            for folder in stated[1].split(":") if stated else ():
                library = folder.strip() + "/libcuda.so.1"
                real = path_of_root(library) if library.startswith("/") else None
                if real is not None:
                    yield real, place


SUSPECT = re.compile(
    r"(?i)error|not found|no such|no space|cannot|unrecognized|differs|killed|undefined!|GPL-incompatible"
)
FOLLOWS = re.compile(r"\s*(?:make(?:\[\d+\])?:|In file included|from /)|.*\bWaiting for unfinished jobs")
"""Lines of a build's log that can state its cause, and lines that only follow from others."""


@collector(seconds=10)
def dkms_log(parameters: "Values") -> "Any":
    """Return make.log -> lines with errors, of NVIDIA's builds that did not result in a module.

    At most 8 logs with 6 lines each: the first four with a cause of their own, then the last ones; secrets
    are hidden.
    """
    found = {}
    paths = glob.glob("/var/lib/dkms/nvidia*/*/build/make.log") + glob.glob(
        "/var/lib/dkms/gdrdrv/*/build/make.log"
    )
    for path in sorted(paths)[:8]:
        text = read_or_none(path) or ""
        errors = [line for line in text.splitlines() if SUSPECT.search(line)]
        causes = [line for line in errors if not FOLLOWS.match(line)]
        kept = causes[:4] + [line for line in errors[-2:] if line not in causes[:4]]
        found[path] = [redact(line[:300]) for line in kept]
    return found


@collector(seconds=10)
def container_state(parameters: "Values") -> "Any":
    """Return CDI specifications, the toolkit's own settings, links that systemd needs, Docker's origin.

    `running` is from `_running_with_gpus`. Values of programs and settings that are missing are null.
    """
    specifications, compared = {}, gpuprov_cdi.specifications()
    for path in sorted(glob.glob("/etc/cdi/*nvidia*") + glob.glob("/var/run/cdi/*nvidia*")):
        text = read_or_none(path) or ""
        specifications[path] = {
            "versions": sorted(set(re.findall(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)", text))),
            "devices": sorted(set(re.findall(r"/dev/nvidia\d+", text))),
            "missing": compared.get(path, {}).get("missing", []),
        }
    config = read_or_none("/etc/nvidia-container-runtime/config.toml")
    ldconfig = re.search(r'(?m)^\s*ldconfig\s*=\s*"([^"]*)"', config or "")
    no_cgroups = re.search(r"(?m)^\s*no-cgroups\s*=\s*(\w+)", config or "")
    hook, docker = find_program("nvidia-container-runtime-hook"), find_program("docker")
    driver = None
    if os.path.exists("/run/docker.sock") and find_program("docker"):
        code, out, _ = run_anyway(
            "docker", "info", "--format", "{{.CgroupDriver}} {{json .Runtimes}}", seconds=8
        )
        driver = out.strip() if code == 0 else None
    return {
        "cdi": specifications,
        "toolkit": config is not None,
        "ldconfig": ldconfig.group(1) if ldconfig else None,
        "no_cgroups": no_cgroups.group(1) if no_cgroups else None,
        "ldconfig_exists": ldconfig is not None and os.path.exists(ldconfig.group(1).lstrip("@")),
        "hook": hook,
        "runtime": find_program("nvidia-container-runtime"),
        "docker_path": os.path.realpath(docker) if docker else "",
        "docker_info": None if driver is None else redact(driver),
        "char_links": len([name for name in names_in("/dev/char") if name.startswith("195:")]),
        "running": _running_with_gpus(),
    }


def _running_with_gpus() -> "list[list[Any]]":
    """Return name, shared memory in bytes and IPC mode of Docker's containers with GPUs.

    [] without an answer.
    """
    if not os.path.exists("/run/docker.sock") or not find_program("docker"):
        return []
    try:
        running = run("docker", "ps", "--quiet", seconds=5).split()
        if not running:
            return []
        shown = (
            "{{.Name}} {{.HostConfig.ShmSize}} {{.HostConfig.IpcMode}} {{.HostConfig.Runtime}}"
            " {{json .HostConfig.DeviceRequests}}"
        )
        text = run("docker", "inspect", "--format", shown, *running[:200], seconds=5)
    except Failed:
        return []
    rows = [line.split(" ", 4) for line in text.splitlines()]
    return [
        [row[0].lstrip("/"), int(row[1]), row[2]]
        for row in rows
        if len(row) == 5 and row[1].isdecimal() and (row[3] == "nvidia" or row[4] not in ("null", "[]"))
    ]


@collector(seconds=15)
def frameworks(parameters: "Values") -> "Any":
    """Return folder, name, version and CUDA release of each torch and tensorflow in the usual environments,
    until `ENVIRONMENTS_AT_MOST` are found or `SEARCH_S` have passed. There is a row without a name if not all
    folders were looked at.

    Users can write most of these folders: links of users other than root and the probe's are not followed,
    and the homes and all other folders at the first `*` of a pattern take turns, so that none hides another.
    """
    tops, known = {}, set()  # type: dict[str, list[list[str]]], set[str]
    for pattern in PYTHON_FOLDERS:
        before, name, rest = re.split(r"(\*[^/]*)/", pattern, maxsplit=1)
        for top in filter(None, _below("", (before + name)[1:].split("/"))):
            tops.setdefault(top, []).append(rest.split("/"))
    found, is_all = in_turn([_search(*top, known) for top in tops.items()], SEARCH_S)
    return [*([] if is_all else [_row("", "", "", None)]), *sorted(found, key=lambda row: row["folder"])]


def _search(top: str, patterns: "list[list[str]]", known: "set[str]") -> "Costly":
    """Yield seconds, and frameworks that were found in them, in the folders below one that match patterns.

    A framework counts as the share of the time that it has if there are `ENVIRONMENTS_AT_MOST`.
    """
    begun = time.monotonic()
    for folder in itertools.chain.from_iterable(_below(top, parts) for parts in patterns):
        real, found = os.path.realpath(folder or "/"), []  # type: str, list[Values]
        if folder and real not in known:
            known.add(real)
            found = _torch(real) + _tensorflow(real)
        yield max(time.monotonic() - begun, len(found) * SEARCH_S / ENVIRONMENTS_AT_MOST), found
        begun = time.monotonic()


def _below(folder: str, parts: "list[str]") -> "Iterator[str]":
    """Yield the folders below a folder that match the parts of a pattern, as glob does, but without following
    links of other users; and "" after each folder that was looked at.
    """
    if not parts:
        yield folder
        return
    names = folders_in(folder, parts[0])
    yield ""
    for name in names:
        yield from _below(folder + "/" + name, parts[1:])


def folders_in(folder: str, pattern: str) -> "list[str]":
    """Return the names of the folders in a folder that match a pattern; `*` matches no hidden name.

    Links of other users are not followed, and of a folder with more than `ENTRIES_AT_MOST` entries only so
    many are looked at, as a user can create millions.
    """
    if not re.search(r"[*?[]", pattern):
        return [pattern] if _is_folder(folder + "/" + pattern) else []
    matches = re.compile(fnmatch.translate(pattern)).match
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, ENTRIES_AT_MOST)]
    except OSError:
        return []
    names = [name for name in sorted(names) if matches(name) and (name[0] != "." or pattern[0] == ".")]
    return [name for name in names if _is_folder(folder + "/" + name)]


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder, or a link of root's or the probe's user to one."""
    try:
        about = os.lstat(path)
        return stat.S_ISDIR(about.st_mode) or (
            stat.S_ISLNK(about.st_mode) and is_ours(about) and stat.S_ISDIR(os.stat(path).st_mode)
        )
    except OSError:
        return False


def _torch(folder: str) -> "list[Values]":
    """Return a row for PyTorch in a folder of packages, from its version.py; [] without it."""
    text = read_of_users(folder + "/torch/version.py")
    if text is None:
        return []
    version = re.search(r"(?m)^__version__ *(?::[^=\n]*)?= *['\"]([\w.+!-]{1,64})['\"]", text, re.A)
    cuda = re.search(r"(?m)^cuda *(?::[^=\n]*)?= *['\"]([\d.]{1,16})['\"]", text, re.A)
    if version is None:
        return []
    return [_row(folder, "torch", version.group(1), cuda.group(1) if cuda else None)]


def _tensorflow(folder: str) -> "list[Values]":
    """Return a row for TensorFlow in a folder of packages, from its dist-info and build_info.py.

    [] without it.
    """
    for name in folders_in(folder, "tensorflow-[0-9]*.dist-info"):
        text = read_of_users(folder + "/tensorflow/python/platform/build_info.py") or ""
        cuda = re.search(r"['\"]cuda_version['\"][^'\"]+['\"]([\d.]{1,16})['\"]", text)
        version = name.split("-")[1].replace(".dist", "")[:64]
        return [_row(folder, "tensorflow", version, cuda.group(1) if cuda else None)]
    return []


def _row(folder: str, name: str, version: str, cuda: "str | None") -> "Values":
    """Return the row of a framework; `cuda` may be None, for a build without CUDA or of an unknown one."""
    return {"folder": folder, "name": name, "version": version, "cuda": cuda}


def _embedded_containerd() -> "Values":
    """Return the path of containerd's configuration by k3s and RKE2 -> whether it has the runtime nvidia.

    Nothing else of the file is returned: it may contain passwords of registries.
    """
    found = {}
    for name in ("k3s", "rke2"):
        path = "/var/lib/rancher/" + name + "/agent/etc/containerd/config.toml"
        text = read_or_none(path, 1 << 18)
        if text is not None:
            found[path] = bool(re.search(r"\bruntimes\.[\"']?nvidia[\"']?\]", text))
    return found


@collector(seconds=5)
def gpu_tools(parameters: "Values") -> "Any":
    """Return the number of IMEX nodes (null without IMEX), paths of nvidia-modprobe and nvidia-smi (null
    without), the target of /usr/bin/nvidia-smi, whether Docker is a snap, sockets of rootless Docker, and
    configurations of an embedded containerd.
    """
    imex = read_or_none("/etc/nvidia-imex/nodes_config.cfg", 65536)
    return {
        "imex_nodes": None
        if imex is None
        else len([line for line in imex.splitlines() if line.strip() and not line.startswith("#")]),
        "nvidia_modprobe": find_program("nvidia-modprobe"),
        "nvidia_smi": find_program("nvidia-smi"),
        "snap_docker": os.path.exists("/snap/bin/docker"),
        "rootless": json.dumps(glob.glob("/run/user/*/docker.sock")),
        "embedded_containerd": _embedded_containerd(),
        "smi_link": link_name("/usr/bin/nvidia-smi"),
    }
