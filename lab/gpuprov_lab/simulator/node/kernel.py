"""The kernel's part of a driver: a boot, modules that load and unload, and the state
that is lost with them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .files import Files
from .machine import Machine
from .modprobe import blacklisted, booted_kernel, listed_for_boot, module_field, module_file, option
from .publish import publish
from .store import Store

REQUIRES = {
    "nvidia": None,
    "nvidia_uvm": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
    "nvidia_peermem": "nvidia",
    "nvidia_fs": "nvidia",
    "nouveau": None,
}
"""The simulated modules, each with the module that it requires."""


class ModuleError(Exception):
    """Error of loading or unloading a module, with the kernel's text."""


class Kernel:
    """The node's modules and all state that a reboot clears."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.machine = Machine.load(files)
        self.state = Store(files.boot_state)
        self.durable = Store(files.durable_state)
        self.power = Store(files.power_state)

    def modules(self) -> dict[str, dict[str, str]]:
        """Return the loaded modules by name.

        NVIDIA's have `version`, `flavour` ("open" or "proprietary") and the settings of modprobe.d at their
        loading.
        """
        modules: dict[str, dict[str, str]] = self.state.read().get("modules", {})
        return modules

    def boot(self) -> None:
        """Clear the state of the last boot, make pending modes current, and load the modules for the PCI ids
        and of modules-load.d.

        nouveau, part of every distribution's kernel, is loaded first unless it is blacklisted, and keeps
        NVIDIA's module from binding. ModuleError if a module cannot be loaded.
        """
        with self.state.change() as state:
            state.clear()
            state |= {"kernel": booted_kernel(self.files), "modules": {}, "gpus": {}, "faults": {}}
        self.make_pending_modes_current()
        if not blacklisted(self.files, "nouveau"):
            self.load("nouveau")
            return
        publish(self.files, self.machine, {})
        kernel = self.running(self.state.read())
        wanted = [] if blacklisted(self.files, "nvidia") else ["nvidia", "nvidia_uvm"]
        wanted += [name.replace("-", "_") for name in listed_for_boot(self.files)]
        for name in wanted:
            if name in REQUIRES and self._file_of(name, kernel) is not None:
                self.load(name)

    def load(self, name: str) -> None:
        """Load a module and those it requires, in the version on disk now.

        Raises ModuleError if the file is missing or another driver holds the GPUs.
        """
        required = REQUIRES[name]
        if required is not None:
            self.load(required)
        with self.state.change() as state:
            modules = state.setdefault("modules", {})
            if name in modules:
                return
            modules[name] = self._facts_of(name, modules, self.running(state))
            publish(self.files, self.machine, modules)

    def unload(self, name: str) -> None:
        """Unload a module and those that require it.

        Raises ModuleError if it is not loaded or a program holds the GPUs.
        """
        with self.state.change() as state:
            modules = state.get("modules", {})
            if name not in modules:
                raise ModuleError(f"Module {name} is not currently loaded")
            if name == "nvidia" and self.holder(state) is not None:
                raise ModuleError(f"Module {name} is in use")
            for dependant in [*self.dependants(name, modules), name]:
                modules.pop(dependant, None)
            if name == "nvidia":
                state["gpus"] = {}
            publish(self.files, self.machine, modules)

    def dependants(self, name: str, modules: dict[str, Any]) -> list[str]:
        """Return those of the loaded `modules` that require a module, the outermost first."""
        direct = [other for other, required in REQUIRES.items() if required == name and other in modules]
        return [deeper for other in direct for deeper in [*self.dependants(other, modules), other]]

    def holder(self, state: dict[str, Any]) -> int | None:
        """Return the process id of the persistence daemon if it is alive, else None."""
        process = state.get("daemon")
        return process if process is not None and Path(f"/proc/{process}").exists() else None

    def make_pending_modes_current(self) -> None:
        """Make pending ECC and MIG modes current, as a power cycle or a GPU reset does."""
        if os.geteuid() == 0 or not self.files.real:
            with self.durable.change() as durable:
                for modes in durable.values():
                    for mode in modes.values():
                        mode["current"] = mode["pending"]

    def running(self, state: dict[str, Any]) -> str:
        """Return the release of the simulated running kernel, or '' if the node has none."""
        return str(state["kernel"]) if "kernel" in state else booted_kernel(self.files)

    def _facts_of(self, name: str, modules: dict[str, Any], kernel: str) -> dict[str, str]:
        """Return what is recorded about a module at its loading: version, flavour and settings; {} for
        nouveau.

        Raises:
            ModuleError: the other driver is loaded, or the module's file is missing.
        """
        rival = "nvidia" if name == "nouveau" else "nouveau"
        if rival in modules:
            raise ModuleError(f"could not insert '{name}': No such device")
        if name == "nouveau":
            return {}
        path = self._file_of(name, kernel)
        if path is None:
            raise ModuleError(f"Module {name} not found in directory /lib/modules/{kernel}")
        terms = module_field(path, "license")
        flavour = "open" if "MIT" in terms or "GPL" in terms else "proprietary"
        called = path.name.split(".ko")[0]
        counters = option(self.files, called, "NVreg_RestrictProfilingToAdminUsers")
        return {
            "version": module_field(path, "version"),
            "flavour": flavour,
            **({"admin_only": counters} if counters else {}),
        }

    def _file_of(self, name: str, kernel: str) -> Path | None:
        """Return the module's own file, None if it is missing; the smaller modules are next to nvidia's,
        named after it.
        """
        core = module_file(self.files, kernel)
        if core is None or name == "nvidia":
            return core
        stem, suffix = core.name.split(".ko")
        sibling = core.with_name(f"{stem}-{name.removeprefix('nvidia_')}.ko{suffix}")
        return sibling if sibling.is_file() else None
