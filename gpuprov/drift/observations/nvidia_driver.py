"""Observations of the driver: modules on disk, loaded module, nvidia-smi, initramfs, and the next kernel."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.loading import Dracut, DryRun, Loading, NextKernel, Step
from gpuprov.probe.parse.modules import ON_COMMAND_LINE, DiskModule, Modprobe, module_name, named_on
from gpuprov.roles import Expectation
from gpuprov.roles.nvidia_driver import (
    BLS_ENTRIES,
    BLS_GUARD,
    BLS_HOOKS,
    DKMS_FOLDERS,
    DKMS_HOOKS,
    FILES,
    FOREIGN_MODULES,
    GUARD,
    LOADED,
    NARROWING,
)


@observes("kernel.headers", "system", "kernels")
def _headers(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected kernel if all kernels that count have headers, else those without as text."""
    without = [kernel for kernel in _kernels(facts, expectation) if kernel not in facts.kernels.headers]
    return expectation.expected if not without else f"no headers for {', '.join(without)}"


@observes("driver.module_on_disk", "system", "kernels", "disk_modules", "loading")
def _module_on_disk(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected version if every kernel that counts has such a module, else the others as text."""
    found = {kernel: _module(facts, kernel) for kernel in _kernels(facts, expectation)}
    wrong = {
        kernel: module.version if module else None
        for kernel, module in found.items()
        if module is None or module.version != expectation.expected
    }
    if not wrong:
        return expectation.expected
    said = (
        f"{version or 'none'} for kernel {kernel}{_role(facts, kernel)}" for kernel, version in wrong.items()
    )
    return ", ".join(said)


@observes("driver.module_flavour", "system", "kernels", "disk_modules", "loading")
def _module_flavour(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected flavour if all modules on disk have it, else the flavours found, or None."""
    modules = [_module(facts, kernel) for kernel in _kernels(facts, expectation)]
    flavours = {"open" if module.open else "proprietary" for module in modules if module}
    return expectation.expected if flavours == {expectation.expected} else ", ".join(sorted(flavours)) or None


@observes("module.signature", "system", "kernels", "disk_modules")
def _signature(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected signature if all NVIDIA modules on disk have it, else the others as text.

    None if there is no NVIDIA module.
    """
    seen = {
        (module.signature or "unsigned", kernel)
        for kernel in _kernels(facts, expectation)
        for module in facts.disk_modules.get(kernel, {}).values()
        if module.path.rpartition("/")[2].startswith("nvidia")
    }
    wrong = sorted(
        f"{signature} for kernel {kernel}" for signature, kernel in seen if signature != expectation.expected
    )
    return ", ".join(wrong) or (expectation.expected if seen else None)


@observes("driver.loaded", "modules")
def _loaded(facts: Facts, expectation: Expectation) -> Any:
    """Return the version of the loaded driver, or None."""
    return facts.loaded_driver.version if facts.loaded_driver else None


@observes("driver.answers", "smi")
def _answers(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected value if nvidia-smi answers, else its error."""
    return facts.smi.error or expectation.expected


@observes("nouveau.blacklist", "system", "modprobe")
def _blacklist(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected modules that modprobe must not load: blacklisted or disabled."""
    shut = {**facts.modprobe.blacklisted, **facts.modprobe.disabled}
    return [name for name in expectation.expected if name in shut]


@observes("nouveau.loaded", "modules")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    """Return the loaded modules among `FOREIGN_MODULES`."""
    return [name for name in FOREIGN_MODULES if name in facts.loaded_modules]


@observes("driver.loading", "system", "kernels", "disk_modules", "loading", "modprobe")
def _loading(facts: Facts, expectation: Expectation) -> Any:
    """Return what keeps modprobe from loading the module or makes it hide GPUs or links, for all kernels that
    have it.
    """
    return list(dict(_hindrances(facts, expectation)))


@names_who("driver.loading")
def _keeps_from_loading(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places of `_hindrances`: lines of modprobe.d and command lines, or None if unknown."""
    for _, places in _hindrances(facts, expectation):
        yield from places


@observes("driver.initramfs", "system", "kernels", "initramfs")
def _initramfs(facts: Facts, expectation: Expectation) -> Any:
    """Return the images of kernels with modules of NVIDIA's that are older than those on disk."""
    kernels = _kernels(facts, expectation)
    return [path for kernel in kernels for path in facts.old_initramfs.get(kernel, ())]


@observes("driver.next_kernel", "next_kernel")
def _next_kernel(facts: Facts, expectation: Expectation) -> Any:
    """Return what keeps a new kernel from getting its module, or lets it boot by default without one."""
    return list(dict(_obstacles(facts.next_kernel, expectation.subject)))


@names_who("driver.next_kernel")
def _keeps_from_building(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places of `_obstacles`: settings of DKMS or dracut, hooks; None if gpuprov mends it."""
    for _, place in _obstacles(facts.next_kernel, expectation.subject):
        yield place


Hindrance = tuple[str, tuple[str | None, ...]]
"""Reason why the module is not loaded, and the places that state it."""


def _hindrances(facts: Facts, expectation: Expectation) -> Iterator[Hindrance]:
    """Yield what keeps each kernel from loading the module, and options with which it hides GPUs or links.

    Kernels without the module are left out.
    """
    stated = facts.modprobe
    for kernel in _kernels(facts, expectation):
        if _module(facts, kernel) is None:
            continue
        run = facts.loading.kernels.get(kernel, DryRun({}))
        shut = dict(_shut(facts, kernel))
        found: list[Hindrance] = [
            (f"{name} is blacklisted on the kernel's command line", (place,)) for name, place in shut.items()
        ]
        found += [*_refused(facts.loading, run, stated, shut), *_narrowed(run, stated)]
        yield from ((f"{text} (kernel {kernel})", places) for text, places in found)


def _shut(facts: Facts, kernel: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of `LOADED` that a kernel's command line blacklists, now or at its next boot, with
    its place; others such as nouveau are left out.
    """
    arguments = facts.kernels.arguments
    place = BLS_ENTRIES if facts.kernels.boot_entries else "/boot/grub/grub.cfg"
    lines = [(place, arguments[kernel])] if kernel in arguments else []
    if kernel == facts.kernel or not lines:
        lines.append((ON_COMMAND_LINE, facts.cmdline))
    for place, line in lines:
        named = named_on(" ".join(word for word in line.split() if not word.startswith("rd.")))
        yield from ((name, place) for name in LOADED if module_name(name) in map(module_name, named))


def _refused(loading: Loading, run: DryRun, stated: Modprobe, shut: Container[str]) -> Iterator[Hindrance]:
    """Yield the modules of `LOADED` that modprobe does not load on request, apart from those in `shut`.

    A result that repeats is reported once. If none is found and `shut` is empty, the PCI ids of the GPUs are
    requested in the same way, and those that do not load nvidia are yielded.
    """
    seen = None
    for name in LOADED:
        result = _result(run.steps(name), name, loading.absent)
        if result and result != seen and name not in shut:
            yield f"{name} {result}", tuple(_lines(stated, name))
        seen = result or seen
    if seen or shut:
        return
    aliases = (line for (_, name), line in stated.lines.items() if name.startswith("pci:"))
    places = tuple(place for place, target in aliases if not target.startswith("nvidia"))
    for device in loading.devices:
        if result := _result(run.steps(device), "nvidia", loading.absent):
            yield f"a GPU's PCI id {result}", places


def _result(steps: Sequence[Step], name: str, absent: Container[str]) -> str | None:
    """Return what the steps of a request do in place of loading its module; None if they load it."""
    for step in steps:
        if FILES[name].fullmatch(step.module):
            return "has no file" if step.what in absent else None
        if step.kind == "command":
            return f"runs {step.what}"
        if step.module in FOREIGN_MODULES:
            return f"loads {step.module} first"
    return f"loads {steps[-1].module}" if steps else "loads nothing"


def _lines(stated: Modprobe, name: str) -> Iterator[str]:
    """Yield the places of the lines of modprobe.d that may keep a module from being loaded.

    These blacklist it, run another program than modprobe, give its name to other modules, or load a foreign
    driver first.
    """
    for (verb, module), (place, rest) in stated.lines.items():
        theirs = {
            "blacklist": True,
            "install": "modprobe" not in rest,
            "alias": not rest.startswith("nvidia"),
            "softdep": any(foreign in rest for foreign in FOREIGN_MODULES),
        }
        if FILES[name].fullmatch(module) and theirs.get(verb):
            yield place


def _narrowed(run: DryRun, stated: Modprobe) -> Iterator[Hindrance]:
    """Yield the options of `NARROWING` that are set and not 0: they take GPUs or links away; each with its
    places.
    """
    names = [name for name in run.answers if FILES["nvidia"].fullmatch(module_name(name))]
    for option, value in run.options(names).items():
        if option in NARROWING and value not in ("", "0"):
            places = (stated.places.get((module_name(name), option)) for name in names)
            yield f"{option}={value}", tuple(places)


def _obstacles(found: NextKernel, built: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield what keeps a new kernel from its module, each with its place; `None` if gpuprov mends it.

    A missing guard is included: without it a kernel without the module boots by default. `built` is the
    driver's version if DKMS builds it; else DKMS and its hooks are not checked.
    """
    if GUARD not in found.grub and not found.bls:
        yield f"{GUARD} is missing", None
    if BLS_GUARD not in found.hooks and found.bls:
        yield f"{BLS_GUARD} does not run", None
    if found.dracut is not None:
        yield from _foreign_drivers(found.dracut)
    if built and found.dkms is None:
        yield "dkms is not installed", None
    elif built:
        yield from _hooks(found)
        yield from _settings(found, built)


def _foreign_drivers(stated: Dracut) -> Iterator[tuple[str, str | None]]:
    """Yield each of `FOREIGN_MODULES` that dracut does not omit from each initramfs, then those that a
    setting adds, with its place.
    """
    for name in FOREIGN_MODULES:
        if name not in stated.omitted:
            yield f"dracut does not omit {name}", None
    for name in FOREIGN_MODULES:
        if name in stated.added:
            yield f"dracut adds {name}", stated.added[name]


def _hooks(found: NextKernel) -> Iterator[tuple[str, str | None]]:
    """Yield what keeps the packages of a new kernel from starting DKMS."""
    if found.off:
        yield "DKMS is switched off", "/etc/dkms/no-autoinstall"
    for hook in BLS_HOOKS if found.bls else DKMS_HOOKS:
        if hook not in found.hooks:
            yield f"{hook} does not run", hook if hook.endswith("/dkms") else None


def _settings(found: NextKernel, built: str) -> Iterator[tuple[str, str | None]]:
    """Yield the settings with which DKMS does not build the driver's module for a new kernel."""
    for name, folder in DKMS_FOLDERS.items():
        value, place = found.folders.get(name, ("", ""))
        if value.rstrip("/") not in ("", folder, f"/usr{folder}"):
            yield f"{name} is {value}", place
    versions = [stated for (_, version), stated in found.autoinstall.items() if version == built]
    if not versions:
        yield f"DKMS does not have driver {built}", None
    for value, place in versions:
        if value[:1] not in ("y", "Y"):
            yield f"AUTOINSTALL is {value or 'not set'}", place


def _kernels(facts: Facts, expectation: Expectation) -> list[str]:
    """Return the kernels that a module must match: the stated one, else the running, next, held back ones."""
    return list(facts.kernels.counting) if expectation.subject == "running" else [str(expectation.subject)]


def _role(facts: Facts, kernel: str) -> str:
    """Return a note about a kernel that boots next or is held back; empty for others."""
    kernels = facts.kernels
    if kernel == kernels.held_back:
        return f" (held back: {kernels.next_boot} boots next)"
    if kernel == kernels.next_boot != kernels.running:
        return f" (boots next: {kernels.next_boot_reason})"
    return ""


def _module(facts: Facts, kernel: str) -> DiskModule | None:
    """Return the module that modprobe loads under a kernel, None if the kernel has none.

    If modprobe loads none, it is nvidia.ko, or Debian's nvidia-current.ko or nvidia-current-open.ko.
    """
    modules = facts.disk_modules.get(kernel, {})
    run = facts.loading.kernels.get(kernel, DryRun({}))
    loaded = [step.module for step in run.steps("nvidia") if FILES["nvidia"].fullmatch(step.module)]
    names = (*loaded, "nvidia", "nvidia_current", "nvidia_current_open")
    return next((modules[name] for name in names if name in modules), None)
