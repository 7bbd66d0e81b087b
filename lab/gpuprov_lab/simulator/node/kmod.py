"""modprobe, rmmod, insmod and lsmod: simulated for GPU drivers, kmod's own for
commands that only read files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .files import Files
from .kernel import REQUIRES, Kernel, ModuleError
from .modprobe import blacklisted

_READS_ONLY = {
    "-c",
    "--showconfig",
    "-D",
    "--show-depends",
    "-n",
    "--dry-run",
    "--show",
    "-R",
    "--resolve-alias",
}
_READS_ONLY |= {"-V", "--version", "-h", "--help", "--dump-modversions"}
_REMOVES = {"-r", "--remove"}


def modprobe(files: Files, arguments: list[str]) -> int:
    """Load or unload driver modules as modprobe(8); return its exit status.

    Requests for other modules or for the configuration go to the real one.
    """
    flags = {word for word in arguments if word.startswith("-")}
    names = [word.replace("-", "_") for word in arguments if not word.startswith("-") and "=" not in word]
    if flags & _READS_ONLY or not any(name in REQUIRES for name in names):
        return _real(files, "modprobe", arguments)
    kernel = Kernel(files)
    every = bool(flags & {"-a", "--all"} | flags & _REMOVES)
    for name in names if every else names[:1]:
        if flags & {"-b", "--use-blacklist"} and blacklisted(files, name):
            continue
        try:
            if not flags & _REMOVES:
                kernel.load(name)
            elif name in kernel.modules():
                kernel.unload(name)
        except ModuleError as error:
            kind = "FATAL" if str(error).startswith("Module") else "ERROR"
            return _fail(f"modprobe: {kind}: {error}", silent=bool(flags & {"-q", "--quiet"}))
    return 0


def rmmod(files: Files, arguments: list[str]) -> int:
    """Unload driver modules as rmmod(8), other modules by the real one; return the exit status.

    Unlike `modprobe -r` it does not unload a module that others require.
    """
    kernel = Kernel(files)
    names = [word.replace("-", "_").removesuffix(".ko") for word in arguments if not word.startswith("-")]
    if not any(name in REQUIRES for name in names):
        return _real(files, "rmmod", arguments)
    for name in names:
        dependants = kernel.dependants(name, kernel.modules())
        if dependants:
            return _fail(f"rmmod: ERROR: Module {name} is in use by: {' '.join(dependants)}")
        try:
            kernel.unload(name)
        except ModuleError as error:
            return _fail(f"rmmod: ERROR: {error}")
    return 0


def insmod(files: Files, arguments: list[str]) -> int:
    """Load a driver module as insmod(8), known by its file's name, other modules by the real one; return the
    exit status.
    """
    stem = Path(arguments[0]).name.split(".ko")[0] if arguments else ""
    name = "nvidia" if stem in ("nvidia", "nvidia-current", "nvidia-current-open") else stem.replace("-", "_")
    if name not in REQUIRES:
        return _real(files, "insmod", arguments)
    try:
        Kernel(files).load(name)
    except ModuleError as error:
        return _fail(f"insmod: ERROR: could not insert module {arguments[0]}: {error}")
    return 0


def lsmod(files: Files, arguments: list[str]) -> int:
    """Print the simulated modules as lsmod(8); return 0."""
    kernel = Kernel(files)
    modules = kernel.modules()
    sys.stdout.write(f"{'Module':<24}{'Size':>8}  Used by\n")
    for name in reversed(modules):
        users = [other for other, required in REQUIRES.items() if required == name and other in modules]
        size = (files.sys_module / name / "coresize").read_text().strip()
        used_by = f"{len(users)} {','.join(users)}".rstrip()
        sys.stdout.write(f"{name:<24}{size:>8}  {used_by}\n")
    return 0


def _real(files: Files, program: str, arguments: list[str]) -> int:
    """Run kmod under the program's name, from which it takes its task; return its exit status, 1 without
    kmod.
    """
    kmod = files.at("/bin/kmod")
    if not kmod.exists():
        return _fail(f"{program}: not simulated: {' '.join(arguments)}")
    return subprocess.run([program, *arguments], executable=kmod, check=False).returncode


def _fail(text: str, *, silent: bool = False) -> int:
    """Write an error to stderr unless `silent`; return exit status 1."""
    if not silent:
        sys.stderr.write(f"{text}\n")
    return 1
