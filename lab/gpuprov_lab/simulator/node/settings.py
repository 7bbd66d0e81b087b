"""Settings that a driver keeps for each GPU, and how long they last.

Persistence mode, clocks, power limit and compute mode last until the driver releases the GPU: at a reboot,
when the module is unloaded, and, with persistence mode off and no client, at once. ECC mode waits for a
reset or reboot and then stays; so does MIG mode before Hopper. From Hopper on, MIG mode changes at once and
is lost with the driver (NVIDIA MIG user guide).
"""

from __future__ import annotations

from typing import Any

from .kernel import Kernel
from .machine import SimGpu


class Settings:
    """Access to the settings of a node's GPUs."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.model = kernel.machine.model

    @property
    def permitted(self) -> bool:
        """Whether this user may change a GPU: may write the simulator's state."""
        return self._kernel.state.writable

    def settle(self) -> None:
        """Apply the effects of time: persistence ends with its daemon, and clocks end with persistence."""
        with self._kernel.state.change() as state:
            self._settle(state)

    def of(self, gpu: SimGpu) -> dict[str, Any]:
        """Return the settings of a GPU: `persistence` and those that were set.

        These are `applications` [memory, graphics], `graphics` [min, max], `memory` [min, max] (MHz), `power`
        (W), `compute`, `mig`.
        """
        state = self._kernel.state.read()
        self._settle(state)
        settings: dict[str, Any] = state.get("gpus", {}).get(str(gpu.number), {"persistence": False})
        return settings

    def _settle(self, state: dict[str, Any]) -> None:
        """Change `state` in place: forget a dead daemon, and all settings of GPUs without persistence."""
        gone = state.get("daemon") is not None and self._kernel.holder(state) is None
        if gone:
            state["daemon"] = None
        for index, settings in state.get("gpus", {}).items():
            if gone or not settings["persistence"]:
                state["gpus"][index] = {"persistence": False}

    def set(self, gpu: SimGpu, name: str, value: Any) -> None:
        """Change one setting, with no check; None restores the driver's default and must follow a stated
        value.
        """
        with self._kernel.state.change() as state:
            settings = state.setdefault("gpus", {}).setdefault(str(gpu.number), {"persistence": False})
            settings[name] = value
            if value is None:
                del settings[name]

    def set_daemon(self, process: int | None, persistence: bool) -> None:
        """Record that a persistence daemon started (with its process id) or stopped (None), and set
        persistence of all GPUs.
        """
        with self._kernel.state.change() as state:
            state["daemon"] = process
        for gpu in self._kernel.machine.gpus:
            self.set(gpu, "persistence", persistence)
        self.settle()

    def daemon_runs(self) -> bool:
        """Return whether the recorded process of the persistence daemon is alive."""
        return self._kernel.holder(self._kernel.state.read()) is not None

    def mode(self, gpu: SimGpu, name: str) -> tuple[str, str]:
        """Return current and pending mode of "ecc" or "mig": "Enabled" or "Disabled"; "N/A" if the model
        lacks it.
        """
        if (name == "ecc" and "ecc" not in self.model.features) or (name == "mig" and self.model.mig is None):
            return "N/A", "N/A"
        if name == "mig" and self.model.mig == "immediate":
            mode = self.of(gpu).get("mig", "Disabled")
            return mode, mode
        default = "Enabled" if name == "ecc" else "Disabled"
        modes = self._kernel.durable.read().get(name, {}).get(str(gpu.number))
        return (modes["current"], modes["pending"]) if modes else (default, default)

    def set_mode(self, gpu: SimGpu, name: str, value: str) -> None:
        """Request an ECC or MIG mode; it becomes current at once or at a reset or reboot, by model."""
        if name == "mig" and self.model.mig == "immediate":
            self.set(gpu, "mig", value)
            return
        current, _ = self.mode(gpu, name)
        with self._kernel.durable.change() as durable:
            durable.setdefault(name, {})[str(gpu.number)] = {"current": current, "pending": value}

    def reset(self, gpu: SimGpu) -> None:
        """Reset one GPU as `nvidia-smi --gpu-reset` does; of its other settings only persistence stays.

        Its pending modes become current.
        """
        with self._kernel.durable.change() as durable:
            for modes in durable.values():
                if str(gpu.number) in modes:
                    modes[str(gpu.number)]["current"] = modes[str(gpu.number)]["pending"]
        with self._kernel.state.change() as state:
            persistence = state.get("gpus", {}).get(str(gpu.number), {}).get("persistence", False)
            state.setdefault("gpus", {})[str(gpu.number)] = {"persistence": persistence}
            faults = state.get("faults", {})
            faults["remap"] = [index for index in faults.get("remap", []) if index != str(gpu.number)]

    def faults(self) -> dict[str, Any]:
        """Return the faults that were added: name → its arguments."""
        faults: dict[str, Any] = self._kernel.state.read().get("faults", {})
        return faults
