"""New images of kernels whose initramfs has modules that its settings exclude, or an older driver.

Runs on the node, with the modules of plugins/module_utils. Argument: {"settings": [files that must not be
newer than an image], "kernels": [release], "modules": [names that the driver's module may have]}.
Prints {"changed": whether an image was made, "rebuilt": [paths], "failure": null}.

The installation of a driver often makes images; one that is newer than a setting contains it. An older one
without any of the modules is as good as a new one, which can take a minute.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_initramfs as initramfs
from gpuprov_cpio import paths_in
from gpuprov_failures import Failed
from gpuprov_node import output
from gpuprov_own_tmp import run_with_own_tmp

MODULE = re.compile(r"(?:^|/)nvidia(?:[-_](?:current|tesla|open|uvm|modeset|drm|peermem|\d+))*\.ko")
FOREIGN = re.compile(r"(?:^|/)(?:nouveau|nova[-_]core)\.ko")
"""Files of the modules that the settings exclude; as FOREIGN_MODULES in gpuprov/roles/nvidia_driver.py."""
PACKED = re.compile(r"(?:squash|squashfs|erofs)-root\.img\Z")
"""A file system inside an image, whose files are not listed (dracut's module `squash`)."""
LIST_OF_MODULES = re.compile(r"/modules\.dep\Z")
"""End of the path of a file that every image with kernel modules contains."""


def newer(path: str, image: str) -> bool:
    """Return whether a file exists and is newer than an image."""
    return Path(path).exists() and Path(path).stat().st_mtime > Path(image).stat().st_mtime


def has(inside: list[str], pattern: re.Pattern[str]) -> bool:
    """Return whether a path in an image matches."""
    return any(map(pattern.search, inside))


def outdated(image: str, kernel: str, asked: dict) -> bool:
    """Return whether an image is older than a setting and has modules that the settings exclude, or is older
    than the driver's module and has one of the driver.

    Raises:
        Failed: its files cannot be listed.
    """
    set_later = any(newer(path, image) for path in asked["settings"])
    found = [output("modinfo", "-k", kernel, "-F", "filename", name).strip() for name in asked["modules"]]
    built_later = any(newer(path, image) for path in found if path)
    if not set_later and not built_later:
        return False
    inside = paths_in(image)
    if not has(inside, LIST_OF_MODULES) or has(inside, PACKED):
        return True  # modules that the list does not show
    return (set_later and has(inside, FOREIGN)) or (built_later and has(inside, MODULE))


def failure(command: list[str]) -> dict | None:
    """Run a command with own temporary folders, pass on its standard error; return its failure or None."""
    status, errors = run_with_own_tmp(*command)
    if status == 0:
        return None
    *_, last = ["no message", *errors.strip().splitlines()]
    return {"says": f"{' '.join(command)} exited with {status}: {last}", "do": None}


def remade(image: str, kernel: str, asked: dict) -> tuple[bool, dict | None]:
    """Make an image again if it is outdated; return whether it was made, and the failure."""
    try:
        if not outdated(image, kernel, asked):
            return False, None
        failed = failure(initramfs.making(kernel, image))
        return not failed and not outdated(image, kernel, asked), failed
    except Failed as error:
        return False, {"says": f"{image}: {error}", "do": None}


def main() -> None:
    """Make the outdated images of the kernels again, until one fails; print the new images and the failure as
    JSON.
    """
    asked = json.loads(sys.argv[1])
    rebuilt, failed = [], None
    for kernel in asked["kernels"]:
        image = initramfs.image_of(kernel)
        if failed or image is None:
            continue
        made, failed = remade(image, kernel, asked)
        rebuilt += [image] if made else []
    sys.stdout.write(
        "\n" + json.dumps({"changed": bool(rebuilt), "rebuilt": rebuilt, "failure": failed}) + "\n"
    )


if __name__ == "__main__":
    main()
