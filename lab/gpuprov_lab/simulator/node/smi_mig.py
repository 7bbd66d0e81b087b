"""Simulation of `nvidia-smi mig`: GPU instances listed, created and destroyed, with their compute instances.

An instance is its profile's name; its placement on the GPU is not simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .driver import Driver, NvmlError
from .machine import SimGpu

Say = Callable[[str], None]

_USAGE = 2
_NOT_FOUND = 6
_INSUFFICIENT = 19
_SLICES = 7
_PROFILE = re.compile(r"([1-7])g\.\d+gb(\+me)?")
_HEAD = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|"""
_ROW = "| {gpu:>3}  MIG {name:<15}{profile:>4}{instance:>9}{place:>13}     |"
_RULE = "+-------------------------------------------------------+"


def mig(driver: Driver, words: list[str], say: Say) -> int:
    """Run one command on the GPUs in MIG mode, with `-i` on one of them; return nvidia-smi's exit status.

    Raises:
        NvmlError: the command is unknown, or fails.
    """
    gpus = [gpu for gpu in driver.gpus if driver.settings.mode(gpu, "mig")[0] == "Enabled"]
    if "-i" in words:
        place = words.index("-i")
        gpus = [gpu for gpu in gpus if str(gpu.number) == words[place + 1]]
        del words[place : place + 2]
    if not gpus:
        say("No MIG-enabled devices found.")
        return _NOT_FOUND
    match words:
        case ["-lgi"]:
            return _list(driver, gpus, say)
        case ["-cgi", profiles, "-C"]:
            return _create(driver, gpus, profiles.split(","), say)
        case ["-dci"]:
            return _destroy(driver, gpus, "compute", say)
        case ["-dgi"]:
            return _destroy(driver, gpus, "", say)
    raise NvmlError(_USAGE, "Option is not recognized. Please run 'nvidia-smi mig -h' for help.")


def _instances(driver: Driver, gpu: SimGpu) -> list[str]:
    """Return the profiles of a GPU's instances, in the order of their creation."""
    instances: list[str] = driver.settings.of(gpu).get("instances", [])
    return instances


def _list(driver: Driver, gpus: list[SimGpu], say: Say) -> int:
    """Print a table of the GPU instances; return 0, or `_NOT_FOUND` without any."""
    rows = [(gpu, number, name) for gpu in gpus for number, name in enumerate(_instances(driver, gpu), 1)]
    if not rows:
        say("No GPU instances found: Not Found")
        return _NOT_FOUND
    say(_HEAD)
    for gpu, number, name in rows:
        slices = int(name[0])
        say(_ROW.format(gpu=gpu.number, name=name, profile=slices, instance=number, place=f"0:{slices}"))
        say(_RULE)
    return 0


def _create(driver: Driver, gpus: list[SimGpu], profiles: list[str], say: Say) -> int:
    """Create GPU instances with their compute instances on each GPU; return 0.

    Raises:
        NvmlError: a profile is invalid, or does not fit into a GPU's slices; earlier ones remain.
    """
    for gpu in gpus:
        instances = _instances(driver, gpu)
        for profile in profiles:
            if not _PROFILE.fullmatch(profile):
                raise NvmlError(_USAGE, f"Invalid GPU instance profile: {profile}")
            instances = [*instances, profile]
            if sum(int(name[0]) for name in instances) > _SLICES:
                text = f"Unable to create a GPU instance on GPU {gpu.number:>2} using profile {profile}"
                raise NvmlError(_INSUFFICIENT, f"{text}: Insufficient Resources")
            number = len(instances)
            where = f"GPU instance ID {number:>2} on GPU {gpu.number:>2}"
            say(f"Successfully created {where} using profile MIG {profile}")
            driver.settings.set(gpu, "instances", instances)
    return 0


def _destroy(driver: Driver, gpus: list[SimGpu], kind: str, say: Say) -> int:
    """Destroy all GPU instances, or with `kind` "compute" only print that; return 0, or `_NOT_FOUND` without
    any.

    The real order, compute instances before GPU instances, is not enforced.
    """
    found = [(gpu, number) for gpu in gpus for number, _ in enumerate(_instances(driver, gpu), 1)]
    if not found:
        say(f"No {kind or 'GPU'} instances found: Not Found")
        return _NOT_FOUND
    for gpu, number in found:
        if not kind:
            driver.settings.set(gpu, "instances", [])
        say(f"Successfully destroyed {kind or 'GPU'} instance ID {number:>2} from GPU {gpu.number:>2}")
    return 0
