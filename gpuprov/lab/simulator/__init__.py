"""Plays GPUs on lab nodes: all that a driver shows and its tools answer, behind the real names.

The packages stay the real ones. Only the programs that touch hardware are taken over, by dpkg diversions made
before the node's first boot, so that each exists exactly while its package is installed. What a node shows
follows a driver's rules: `node/kernel.py` says what a boot loads, `node/driver.py` when NVML refuses, and
`node/settings.py` how long a setting lasts.
"""

from gpuprov.lab.simulator.install import install, nspawn_arguments
from gpuprov.lab.simulator.machines import machines
from gpuprov.lab.simulator.module import stub_module

__all__ = ["install", "machines", "nspawn_arguments", "stub_module"]
