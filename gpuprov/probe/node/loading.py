"""Collectors of what modprobe would load, and of what keeps a new kernel from its module."""

import glob
import os
import re

from gpuprov.probe.node.base import (
    collector,
    find_program,
    lines_in,
    lines_of,
    names_in,
    read_or_none,
    run,
    run_anyway,
    text_in,
)
from gpuprov.probe.node.gpu import DKMS_TREE, dependencies, kernels_with_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

DRY_RUN = 'set -f; for each; do echo "> $each"; modprobe --show-depends $each 2>&1; done; true'
REQUESTED = ("nvidia", "nvidia-uvm")
"""Modules that services and programs request, under NVIDIA's own names."""
FILE = re.compile(r"nvidia(?:[-_](?:current|tesla))?(?:[-_]\d+)?(?:[-_]open)?(?:[-_]uvm)?\Z")
"""Names of their files: Debian has its own."""
KERNEL_HOOKS = ("/etc/kernel/postinst.d/", "/etc/kernel/header_postinst.d/")
HOOK = re.compile(r"[\w-]+\Z")
"""Names of programs that run-parts(8) runs."""
INSTALLERS = ("/usr/lib/kernel/install.d/", "/etc/kernel/install.d/")
"""Folders of the programs that kernel-install(8) runs; one in the second replaces one of its name."""
AUTOINSTALLER = "/usr/lib/dkms/dkms_autoinstaller"
MODULE_LISTS = (
    "/etc/initramfs-tools/modules",
    "/usr/share/initramfs-tools/modules.d/*",
    "/etc/dracut.conf",
    "/etc/dracut.conf.d/*.conf",
    "/usr/lib/dracut/dracut.conf.d/*.conf",
)
NVIDIA_ADDED = re.compile(r"nvidia|(?:add|force)_drivers\+?=.*nvidia")
"""Lines that add NVIDIA's modules to each initramfs."""
IN_IMAGE = re.compile(r"/nvidia(?:[-_](?:current|tesla|open|uvm|modeset|drm|peermem|\d+))*\.ko")
SETTING = re.compile(r"(?:export\s+)?(\w+)=[\"']?([^\"'\s#]*)")
DRACUT_SETTING = re.compile(r"(omit|add|force)_drivers(\+?)=[\"']?([^\"'#]*)")
DRACUT_FILE = "/etc/dracut.conf"
DRACUT_FOLDERS = ("/etc/dracut.conf.d/", "/usr/lib/dracut/dracut.conf.d/")
"""A file in the first folder replaces the one of its name in the second."""


@collector(seconds=10)
def loading(parameters: "Values") -> "Any":
    """Return kernel -> name -> output of modprobe's dry run, for the kernels with a module of NVIDIA's.

    Requested are the modules, and the GPUs by their modaliases as udev does, both with blacklists (-b); and
    the names of files, as an install line does: without other install lines (-i). `absent` are the module
    files that would be loaded and do not exist.
    """
    devices, asked = _devices(), []
    for kernel in kernels_with_modules():
        files = _files(kernel)
        if files and re.match(r"[\w.+~-]+\Z", kernel):
            asked += [f"-b -S {kernel} {name}" for name in (*REQUESTED, *devices)]
            asked += [f"-i -S {kernel} {name}" for name in files if name not in REQUESTED]
    out = run_anyway("sh", "-c", DRY_RUN, "sh", *asked, seconds=9)[1] if asked else ""
    found = {}  # type: Values
    for answer in ("\n" + out).split("\n> ")[1:]:
        request, _, text = answer.partition("\n")
        kernel, name = request.split(" ")[2:]
        found.setdefault(kernel, {})[name] = text
    paths = set(re.findall(r"(?m)^insmod (\S*/nvidia[^/\s]*)", out))
    absent = sorted(path for path in paths if not os.path.exists(path))
    return {"kernels": found, "devices": devices, "absent": absent}


def _files(kernel: str) -> "list[str]":
    """Return the names of the files of nvidia and nvidia-uvm that depmod has found for a kernel."""
    lines = lines_in(dependencies(kernel))
    stems = {line.partition(".ko")[0].rpartition("/")[2] for line in lines}
    return sorted(stem for stem in stems if FILE.match(stem))


def _devices() -> "list[str]":
    """Return the distinct modaliases of NVIDIA's GPUs, at most 4."""
    folders = [
        folder
        for folder in glob.glob("/sys/bus/pci/devices/*")
        if text_in(folder + "/vendor") == "0x10de" and text_in(folder + "/class").startswith("0x03")
    ]
    aliases = {text_in(folder + "/modalias") for folder in folders}
    return sorted(alias for alias in aliases if re.match(r"pci:\w+\Z", alias))[:4]


@collector(seconds=20)
def initramfs(parameters: "Values") -> "Any":
    """Return kernel -> images with NVIDIA's modules that are older than the module on disk; {} if no setting
    adds such modules to images.

    A list of an image's files takes a second: only images that a setting adds such modules to are read.
    """
    if not any(NVIDIA_ADDED.match(line) for path in _matching(MODULE_LISTS) for _, line in lines_of(path)):
        return {}
    return {
        kernel: [path for path in _images(kernel) if _has_modules(path)] for kernel in kernels_with_modules()
    }


def _matching(patterns: "tuple[str, ...]") -> "list[str]":
    """Return the existing paths that match patterns of the shell."""
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def _images(kernel: str) -> "list[str]":
    """Return the images of a kernel's initramfs in /boot that are older than one of the driver's modules for
    it.
    """
    lines = lines_in(dependencies(kernel))
    files = [f"/lib/modules/{kernel}/{line.partition(':')[0]}" for line in lines if IN_IMAGE.search(line)]
    made = max([os.stat(path).st_mtime for path in files if os.path.exists(path)], default=0.0)
    names = (f"initrd.img-{kernel}", f"initramfs-{kernel}.img")
    paths = [path for path in map("/boot/".__add__, names) if os.path.exists(path)]
    return [path for path in paths if os.stat(path).st_mtime < made]


def _has_modules(image: str) -> bool:
    """Return whether an image contains a module of NVIDIA's driver."""
    lister = "lsinitramfs" if find_program("lsinitramfs") else "lsinitrd"
    return IN_IMAGE.search(run(lister, image, seconds=19)) is not None


@collector(seconds=5)
def next_kernel(parameters: "Values") -> "Any":
    """Return what decides whether a new kernel gets its module: hooks, and settings of GRUB, DKMS and dracut.

    `dracut` has place, name, "+" or "" and value of each setting about drivers, in dracut's order; None
    without dracut.
    """
    framework = ["/etc/dkms/framework.conf", *sorted(glob.glob("/etc/dkms/framework.conf.d/*.conf"))]
    return {
        "hooks": [path for path in _hooks() if _works(path)],
        "bls": os.path.isdir("/boot/loader/entries"),
        "grub": sorted(glob.glob("/etc/default/grub.d/*.cfg")),
        "dkms": find_program("dkms"),
        "off": os.path.isfile("/etc/dkms/no-autoinstall"),
        "folders": [row for path in framework for row in _settings(path, r"\w+_tree\Z")],
        "autoinstall": _autoinstall(),
        "dracut": _dracut() if find_program("dracut") else None,
    }


def _hooks() -> "list[str]":
    """Return the programs that the packages of a kernel and of its headers run."""
    paths = [folder + name for folder in KERNEL_HOOKS for name in names_in(folder) if HOOK.match(name)]
    installers = {name: folder for folder in INSTALLERS for name in names_in(folder)}
    paths += sorted(folder + name for name, folder in installers.items() if name.endswith(".install"))
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def _works(path: str) -> bool:
    """Return whether a hook does anything: DKMS's calls a program that may be missing."""
    calls = AUTOINSTALLER in (read_or_none(path, 65536) or "")
    return not calls or os.access(AUTOINSTALLER, os.X_OK)


def _autoinstall() -> "list[list[str]]":
    """Return name, version, place and value of AUTOINSTALL for NVIDIA's drivers in DKMS, the last one counts.

    dkms.conf is read first, then files of the site (dkms(8), "DKMS.CONF OVERRIDES").
    """
    rows = []
    for source in sorted(glob.glob(DKMS_TREE + "nvidia*/*/source")):
        name, version = source.split("/")[-3:-1]
        for path in (source + "/dkms.conf", f"/etc/dkms/{name}.conf", f"/etc/dkms/{name}-{version}.conf"):
            found = _settings(os.path.realpath(path), r"AUTOINSTALL\Z")
            rows += [[name, version, place, value] for place, _, value in found]
            if path.startswith(source) and not found:
                rows.append([name, version, os.path.realpath(path), ""])
    return rows


def _settings(path: str, names: str) -> "list[list[str]]":
    """Return place, name and value of the assignments in a file of bash, for names that match a pattern."""
    found = ((place, SETTING.match(line)) for place, line in lines_of(path))
    rows = [[place, match.group(1), match.group(2)] for place, match in found if match]
    return [row for row in rows if re.match(names, row[1])]


def _dracut() -> "list[list[str]]":
    """Return place, name, "+" or "" and value of dracut's settings about drivers, in dracut's order.

    The files of both folders are sorted by name together (dracut.conf(5)).
    """
    names = {name: folder for folder in reversed(DRACUT_FOLDERS) for name in names_in(folder)}
    files = [folder + name for name, folder in sorted(names.items()) if name.endswith(".conf")]
    lines = [row for path in (DRACUT_FILE, *files) for row in lines_of(path)]
    found = ((place, DRACUT_SETTING.match(line)) for place, line in lines)
    return [[place, *match.groups()] for place, match in found if match]
