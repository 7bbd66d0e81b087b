"""State of a node for the role nvidia_driver, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"version": "535.309.01", "flavour": "proprietary", "modules": [names that the module may have on disk],
"compiled": whether DKMS builds it, "kernel": its target or "running", "failed": why the role failed, or "",
"waits": whether a kernel that GRUB holds back may lack the module until another node has compiled it,
"builds": [those of other nodes: {"kernel": release, "vermagic": …, "modules": {file: sha256}}]}.

    {"manager": "apt", "system": "debian", "kernels": ["6.1.0-56-amd64"],
     "headers": ["linux-headers-6.1.0-56-amd64"], "unbuilt": [], "fitting": [],
     "source": "nvidia-current/535.309.01", "outdated": false, "packages": {"dkms": "3.0.10-8+deb12u1"},
     "left": [], "broken": ["nvidia-kernel-dkms"], "held": ["libcuda1"], "streams": [], "dracut": false,
     "bls": false, "reason": "NVIDIA driver 535.309.01 …"}

`system` is ID of os-release. `kernels` are those that need the module, `headers` the packages with their
headers, `fitting` those that a build of
another node fits, `unbuilt` those without the module, or with another module than that build. `outdated`: a
new grub.cfg, or the role's program for boot entries, would set another default. `left` are removed packages
with their configuration still there. `dracut`: it is installed. `bls`: kernels are added as entries in
/boot/loader. `streams` are dnf's enabled module streams. `reason` is a failure's message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gpuprov_manager import package_manager
from gpuprov_node import ENVIRONMENT, os_release, output, packages, run
from gpuprov_own_tmp import with_own_tmp

DKMS_PLACES = ("updates/dkms", "extra")
"""Folders of a kernel in which DKMS installs modules: of Debian and Ubuntu, of the RHEL family."""


def images(root: str = "/") -> list[str]:
    """Return the kernels in /boot, the newest first."""
    found = [path.name.partition("-")[2] for path in Path(root, "boot").glob("vmlinuz-[1-9]*")]
    return sorted(found, key=numbers, reverse=True)


def defaults(root: str = "/") -> tuple[str, str | None]:
    """Return GRUB's default as GRUB_DEFAULT states it, and as grub.cfg has it; None without a grub.cfg."""
    places = [Path(root, "etc/default/grub"), *sorted(Path(root, "etc/default/grub.d").glob("*.cfg"))]
    text = "\n".join(path.read_text(errors="replace") for path in places if path.is_file())
    stated = re.findall(r"^\s*GRUB_DEFAULT=[\"']?([^\"'\n]*)", text, re.M)
    config = Path(root, "boot/grub/grub.cfg")
    menu = config.read_text(errors="replace") if config.is_file() else ""
    made = re.findall(r'^\s*set default="([^"\n]*)', menu, re.M)
    return stated[-1].strip() if stated else "saved", made[-1] if made else None


def booted(default: str, root: str = "/") -> str | None:
    """Return the kernel that GRUB boots for a default; None if it is not known.

    It is the newest, unless the default or GRUB's environment block names another (`info grub`).
    """
    blocks = [Path(root, "boot", name, "grubenv") for name in ("grub", "grub2")]
    text = next((path.read_text() for path in blocks if path.is_file()), "")
    said = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
    saved = default in ("saved", "${saved_entry}")
    entry = said.get("next_entry") or (said.get("saved_entry") if saved else default) or "0"
    if entry == "0":
        return next(iter(images(root)), None)
    return max((name for name in images(root) if name in entry), key=len, default=None)


def next_kernels(root: str = "/") -> list[str]:
    """Return the kernel that boots next, and the kernel that is held back while it has no module."""
    stated, made = defaults(root)
    found = [booted(made or stated, root), booted(stated, root), waiting(root)]
    return list(dict.fromkeys(filter(None, found)))


def boots_by_grub() -> bool:
    """Return whether grub.cfg can be made here; not in a tree whose disk GRUB does not see."""
    return bool(shutil.which("update-grub") and output("grub-probe", "--target=device", "/").strip())


def outdated(fits: Callable[[str], bool], root: str = "/") -> bool:
    """Return whether grub.cfg's default, if no user set it, is not the newest kernel with the module."""
    stated, made = defaults(root)
    there = images(root)
    if made is None or made.startswith("$") or stated not in ("0", "saved") or not there:
        return False
    named = max((name for name in there if name in made), key=len, default=None)
    best = next(filter(fits, there), there[0])
    return best != (there[0] if made == "0" else named)


def waiting(root: str = "/") -> str | None:
    """Return the kernel that the role's program for boot entries keeps from booting, or None."""
    record = Path(root, "var/lib/gpuprov/held-back-kernel")
    words = record.read_text().split()[:1] if record.is_file() else []
    return next((name for name in images(root) if name in words), None)


def outdated_entry(fits: Callable[[str], bool], root: str = "/") -> bool:
    """Return whether the default entry is not the newest kernel with the module, and one has it."""
    back, default = waiting(root), booted("saved", root)
    if back and fits(back):
        return True
    return default is not None and not fits(default) and any(map(fits, images(root)))


def numbers(release: str) -> list[tuple[int, str]]:
    """Return a key that sorts 6.1.0-56 after 6.1.0-9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|[A-Za-z]+", release)
    ]


def counting(target: str) -> list[str]:
    """Return the kernels that need the module."""
    if target != "running":
        return [target]
    return list(dict.fromkeys((os.uname().release, *next_kernels())))


def due(kernels: list[str], builds: dict[str, dict], root: str = "/") -> list[str]:
    """Return the kernels, except one that GRUB holds back and that no build fits yet."""
    held_back = next_kernels(root)[1:]
    return [kernel for kernel in kernels if kernel in builds or kernel not in held_back]


def module(kernel: str, names: list[str]) -> tuple[str | None, str | None]:
    """Return version and flavour of the module on disk, under any of its names; None without a module."""
    for name in names:
        version = output("modinfo", "-k", kernel, "-F", "version", name).strip()
        if version:
            # NVIDIA's open modules are "Dual MIT/GPL", the proprietary ones "NVIDIA".
            licence = output("modinfo", "-k", kernel, "-F", "license", name)
            return version, "open" if "GPL" in licence else "proprietary"
    return None, None


def dkms_installed() -> set[str]:
    """Return the kernels for which DKMS has installed a module of the driver."""
    # nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed; before DKMS 3 a comma instead of the slash
    line = re.compile(r"nvidia[\w-]*(?:/|, )[\d.]+, ([^,]+), \S+: installed")
    said = output("dkms", "status", **with_own_tmp(ENVIRONMENT))
    return {found.group(1) for found in map(line.match, said.splitlines()) if found}


def unbuilt(kernels: list[str], asked: dict, builds: dict[str, dict]) -> list[str]:
    """Return the kernels without the lock's module; if DKMS builds it, DKMS must list it as installed, and
    its files must be whole.

    If a build of another node fits, the module must be that build, byte by byte.
    """
    known = dkms_installed() if asked["compiled"] else set(kernels)
    wanted = (asked["version"], asked["flavour"])
    return [
        kernel
        for kernel in kernels
        if kernel not in known
        or module(kernel, asked["modules"]) != wanted
        or (asked["compiled"] and not is_whole(kernel, asked["version"]))
        or (kernel in builds and not same_bytes(kernel, builds[kernel]["modules"]))
    ]


def is_whole(kernel: str, version: str, root: str = "/") -> bool:
    """Return whether all files of a build of the driver are installed if one is, and are whole.

    DKMS 3.0 ignores errors of a full disk.
    """
    folders = [Path(root, "lib/modules", kernel, name) for name in DKMS_PLACES]
    there = []
    for build in Path(root, "var/lib/dkms").glob(f"nvidia*/{version}/{kernel}/*/module"):
        names = [path.name for path in build.iterdir()]
        found = [folder / name for folder in folders for name in names if (folder / name).exists()]
        if found and len(found) < len(names):
            return False
        there += found
    return not there or run("modinfo", "-F", "vermagic", *map(str, there))[0] == 0


def same_bytes(kernel: str, modules: dict[str, str]) -> bool:
    """Return whether exactly these modules are in one of the folders that DKMS installs modules in."""
    return any(
        all(path.is_file() and digest(path) == modules[path.name] for path in map(folder.joinpath, modules))
        for folder in (Path("/lib/modules", kernel, name) for name in DKMS_PLACES)
    )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def vermagic(kernel: str) -> str | None:
    """Return the vermagic that the kernel requires, from its first own module; None if it has no module."""
    own = Path("/lib/modules", kernel, "modules.order")
    first = own.read_text().split()[:1] if own.is_file() else []
    return output("modinfo", "-k", kernel, "-F", "vermagic", Path(*first).stem).strip() if first else None


def fitting(kernels: list[str], builds: list[dict]) -> dict[str, dict]:
    """Return kernel → the build of another node that fits it."""
    here = {build["kernel"]: build for build in builds if build["kernel"] in kernels}
    return {
        kernel: build
        for kernel, build in here.items()
        if build["vermagic"].split() == (vermagic(kernel) or "").split()
    }


def source(version: str) -> str:
    """Return the driver's source on the node in DKMS's form, `name/version`."""
    folders = sorted(path.parent.name for path in Path("/usr/src").glob("nvidia*/dkms.conf"))
    named = ["/".join(folder.rsplit("-", 1)) for folder in folders]
    return next((name for name in named if name.endswith(f"/{version}")), f"nvidia/{version}")


def failed_build(log: str) -> dict | None:
    """Return version, kernel and the compiler's first error from DKMS's log of a failed build; else None."""
    # DKMS make.log for nvidia-current-535.309.01 for kernel …; since 3.2 a version of DKMS and a slash
    head = re.match(r"DKMS .*\bfor \S+[-/]([\d.]+) for kernel (\S+)", log)
    error = re.search(r"(?m)^(?:\S*/)?(\S+:.*\berror: .*)$", log)
    if not head or not error:
        return None
    version, kernel = head.groups()
    return {"version": version, "kernel": kernel, "error": error.group(1)}


def failed_builds() -> list[dict]:
    """Return the failed builds of the driver, from DKMS's logs."""
    logs = Path("/var/lib/dkms").glob("nvidia*/**/make.log")
    return list(filter(None, (failed_build(log.read_text(errors="replace")) for log in logs)))


def reason(failed: str, version: str, kernels: list[str], builds: list[dict]) -> str:
    """Return the message for the user; after a failed build it has the compiler's error."""
    if re.search(r"dpkg returned an error|dkms install ", failed):
        for build in builds:
            if build["version"] == version and build["kernel"] in kernels:
                return (
                    f"NVIDIA driver {version} does not build for kernel {build['kernel']}: {build['error']};"
                    " lock a driver that supports this kernel, or boot a kernel that this driver supports and"
                    " state it as settings.kernel"
                )
    begin = f"NVIDIA driver {version}"
    return failed if failed.startswith(begin) else f"{begin} could not be installed: {failed}"


def main() -> None:
    """Print kernels without the driver's module, fitting builds, packages and boot settings as JSON.

    `reason` is why a build failed, if the role requires that.
    """
    asked = json.loads(sys.argv[1])
    version, kernels = asked["version"], counting(asked["kernel"])
    rows = packages()
    builds = fitting(kernels, asked["builds"])
    kernels = due(kernels, builds) if asked["waits"] else kernels
    wanted = (version, asked["flavour"])
    bls = Path("/boot/loader/entries").is_dir()

    def fits(kernel: str) -> bool:
        return module(kernel, asked["modules"]) == wanted

    look = {
        "manager": package_manager().NAME,
        "system": os_release().get("ID", ""),
        "kernels": kernels,
        "headers": [package_manager().headers_package(kernel) for kernel in kernels],
        "unbuilt": unbuilt(kernels, asked, builds),
        "fitting": list(builds),
        "source": source(version),
        "outdated": outdated_entry(fits) if bls else boots_by_grub() and outdated(fits),
        "packages": {row.name: row.version for row in rows if row.state not in "nc"},
        "left": [row.name for row in rows if row.state == "c"],
        "broken": [row.name for row in rows if row.state in "HUF"],
        "held": [row.name for row in rows if row.wanted == "h"],
        "streams": package_manager().enabled_streams(),
        "dracut": shutil.which("dracut") is not None,
        "bls": bls,
        "reason": reason(asked["failed"], version, kernels, failed_builds()) if asked["failed"] else "",
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()
