"""Rules for modules that the kernel refuses: of another kernel, with other symbols, or by modprobe's
alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.concerns.board import INSTALL
from gpuprov.doctor.concerns.bus import REBUILD
from gpuprov.doctor.concerns.driver import BOUND_ELSEWHERE, NAMES, expected, module_for
from gpuprov.doctor.examination import Examination, LogLine
from gpuprov.doctor.fault import Fault, Severity, rule
from gpuprov.doctor.lines import without_line
from gpuprov.probe.parse.modules import module_name
from gpuprov.untrusted import ShellLine, shell

_MAGIC = re.compile(r"(nvidia\w{0,30}|gdrdrv): version magic '([^']{1,200})' should be '([^']{1,200})'")
_SYMBOL = re.compile(
    r"(nvidia(?:_(?:uvm|modeset|drm|fs|current|current_open))?|gdrdrv): "
    r"(disagrees about version of symbol|Unknown symbol"
    r"|module using GPL-only symbols uses symbols) (\w{1,80})"
)
"""Messages of the kernel's loader, from their beginning, as others can quote them. `network.peermem_log`
reports those of the peer-memory modules.
"""
_ALIAS = re.compile(r"([A-Za-z][\w-]{0,60})(?=\s|\Z)")
_TARGET = re.compile(r"(?:^|[\s/])modprobe(?:\s+-\S+)*\s+([A-Za-z][\w-]{0,60})(?=\s|\Z)")
LINE = 400
"""Characters of a line of modprobe.d that are searched."""
_PURPOSE = {
    "nvidia_fs": "GPUDirect Storage",
    "gdrdrv": "GDRCopy",
    "nvidia_drm": "displays and containers with graphics",
    "nvidia_modeset": "displays",
}
"""Modules that CUDA does not need, and what needs them."""


def _severity(seen: Examination, name: str) -> Severity:
    """Return `broken` for a module without which CUDA cannot start, else `degraded`."""
    return (
        "degraded"
        if name in _PURPOSE and (seen.loaded_driver or name in ("nvidia_fs", "gdrdrv"))
        else "broken"
    )


def _loaded(seen: Examination, name: str) -> bool:
    """Return whether a module of the log is loaded now, so that its messages are history."""
    return name in seen.loaded_modules or (name in NAMES and seen.loaded_driver is not None)


def _latest(seen: Examination, pattern: re.Pattern[str]) -> dict[str, tuple[re.Match[str], LogLine]]:
    """Return module → its last message that matches, for modules that are not loaded now."""
    found: dict[str, tuple[re.Match[str], LogLine]] = {}
    for line in seen.kernel_log if "kernel_log" not in seen.missing else ():
        if (result := pattern.match(line.text)) and not _loaded(seen, module_name(result[1])):
            found[module_name(result[1])] = (result, line)
    return found


def _rebuild(seen: Examination, name: str) -> tuple[ShellLine, ...]:
    """Return commands that build a module again for the running kernel and load it."""
    source = {"nvidia_fs": "nvidia-fs", "gdrdrv": "gdrdrv"}.get(name, "nvidia")
    built = [each for each in seen.dkms if each.name.startswith(source)] if "dkms" not in seen.missing else []
    again = (
        shell("sudo dkms install --force {}/{} -k {}", built[0].name, built[0].version, seen.kernel)
        if built
        else shell("reinstall the package with the module {} for the kernel {}", name, seen.kernel)
    )
    return again, shell("sudo depmod -a {}", seen.kernel), shell("sudo modprobe {}", name)


@rule("driver.vermagic", "D120", source="negativo-97 es-16", after=BOUND_ELSEWHERE)
def of_another_kernel(seen: Examination) -> Iterator[Fault]:
    """Report modules that were built for another kernel, by the kernel's message or by the file of the driver
    on disk; nothing for a module that is loaded.
    """
    found = _latest(seen, _MAGIC)
    for name, (result, line) in found.items():
        yield Fault(
            _severity(seen, name),
            f"the module {name} was built for another kernel than {seen.kernel}: it is refused",
            (
                line.dated(200),
                f"built for: {result[2].split(' ')[0]}; running: {result[3].split(' ')[0]}",
            ),
            "a build for a former kernel lies in this kernel's folder: a copy, a weak-updates link, or a "
            "kernel that was replaced under the same name",
            _rebuild(seen, name),
            "stack.driver: VERSION (the module is built for each kernel, and its vermagic compared)",
        )
    module = module_for(seen, seen.kernel)
    if found or seen.loaded_driver or not expected(seen) or module is None or not module.vermagic:
        return
    built_for = module.vermagic.split(" ")[0]
    if built_for != seen.kernel:
        yield Fault(
            "broken",
            f"NVIDIA's module on disk is for {built_for}, the running kernel is {seen.kernel}",
            (f"{module.path}: vermagic {module.vermagic}", f"uname -r: {seen.kernel}"),
            "a build for a former kernel lies in this kernel's folder; modprobe answers: Exec format error",
            _rebuild(seen, "nvidia"),
            "stack.driver: VERSION (the module is built for each kernel, and its vermagic compared)",
        )


@rule("driver.symbols", "D121", source="fs-34 fs-48 coreos-3 surface-374", after=("driver.vermagic",))
def of_other_symbols(seen: Examination) -> Iterator[Fault]:
    """Report modules of the driver, of GPUDirect Storage and of GDRCopy that the kernel refused because a
    symbol is missing, of another version, or only for free software; nothing for a module that is loaded.
    """
    for name, (result, line) in _latest(seen, _SYMBOL).items():
        symbol = result[3] if result[3] != "from" else "of the module nvidia"
        cause, extra = _why(seen, name, result[2], symbol)
        purpose = f" ({_PURPOSE[name]})" if name in _PURPOSE else ""
        yield Fault(
            _severity(seen, name),
            f"the kernel refuses the module {name}{purpose}: symbol {symbol}",
            (line.dated(200),),
            cause,
            (*extra, *_rebuild(seen, name)),
            "stack.driver: VERSION (all modules of one build)",
        )


def _why(seen: Examination, name: str, said: str, symbol: str) -> tuple[str, tuple[ShellLine, ...]]:
    """Return why a symbol does not fit, and the commands that come before a new build."""
    proprietary = seen.loaded_driver is not None and not seen.loaded_driver.open
    if "GPL-only" in said or (name == "nvidia_fs" and symbol.startswith("nvidia_p2p") and proprietary):
        return (
            "this kernel gives symbols that a proprietary module exports to no module under the GPL: it "
            "needs NVIDIA's open kernel module",
            (INSTALL["open"], shell("sudo reboot")),
        )
    if "disagrees" in said:
        return "the module was built against another build of the kernel or of the module nvidia", ()
    if name == "nvidia":
        return (
            "the module uses a part of the kernel that is not loaded or not built into this kernel",
            (shell("modinfo -F depends nvidia; sudo depmod -a"), shell("sudo modprobe -a ipmi_devintf drm")),
        )
    return "the module nvidia is of another version, or was not loaded before it", (
        shell("sudo modprobe nvidia"),
    )


@rule("driver.alias", "D122", source="xrun-106 bumblebee-623", after=BOUND_ELSEWHERE)
def alias_to_nothing(seen: Examination) -> Iterator[Fault]:
    """Report an alias or install line of modprobe by which the name of a module of the driver leads to no
    module of the installed driver, unless the module is loaded.
    """
    if not expected(seen) or "modprobe" in seen.missing:
        return
    for name in ("nvidia", "nvidia_uvm"):
        for verb in ("alias", "install"):
            place, rest = seen.modprobe.lines.get((verb, name), ("", ""))
            target = _target(verb, rest)
            if target == name or not target or _loaded(seen, name) or not _leads_nowhere(seen, target):
                continue
            yield Fault(
                "broken",
                f"modprobe takes {target} for {name}, and there is no such module",
                (f"{place}: {verb} {name} {rest[:120]}", f"/lib/modules/{seen.kernel}: no {target}"),
                "a leftover of another packaging of the driver, of bumblebee, or of a switch between GPUs",
                (without_line(place), REBUILD, shell("sudo modprobe {}", name)),
            )


def _target(verb: str, rest: str) -> str:
    """Return the module that an alias names, or that an install line loads last, in the kernel's spelling;
    empty without one.
    """
    found = _ALIAS.findall(rest[:LINE])[:1] if verb == "alias" else _TARGET.findall(rest[:LINE])
    return module_name(found[-1]) if found else ""


def _leads_nowhere(seen: Examination, target: str) -> bool:
    """Return whether a target is known to be no module of the driver: `off`, a flavour that is not on disk,
    or a name with another branch than that of the driver. The probe does not read other modules.
    """
    if target in ("off", "null"):
        return True
    if target in NAMES:
        return target not in seen.disk_modules.get(seen.kernel, {})
    module = module_for(seen, seen.kernel)
    version = seen.loaded_driver.version if seen.loaded_driver else module.version if module else None
    branch = re.match(r"nvidia_(\d{3})(?:_|\Z)", target)
    return bool(branch and version and not version.startswith(branch[1]))
