"""Simulator of GPUs on lab nodes: the files of a driver and the answers of its tools, under the real names.

The packages are the real ones. Only the programs that access hardware are replaced, by dpkg diversions made
before the node's first boot, so each exists exactly while its package is installed. The node follows a
driver's rules: `node/kernel.py` has the modules that a boot loads, `node/driver.py` the cases in which NVML
refuses, and `node/settings.py` how long a setting lasts.
"""

from gpuprov_lab.simulator.install import install, nspawn_arguments
from gpuprov_lab.simulator.machines import machines
from gpuprov_lab.simulator.module import stub_module

__all__ = ["install", "machines", "nspawn_arguments", "stub_module"]
