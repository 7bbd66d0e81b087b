"""Gpuprov's modules for testinfra, attributes of its hosts: `host.gpu`, `host.sshd` and so on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from testinfra.host import Host

from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.containers import Containers
from gpuprov.verify.observers.firewall import Firewall
from gpuprov.verify.observers.gpu import Gpus
from gpuprov.verify.observers.libraries import Libraries
from gpuprov.verify.observers.module_loading import ModuleLoading
from gpuprov.verify.observers.nvidia_driver import NvidiaDriver
from gpuprov.verify.observers.package_files import PackageFiles
from gpuprov.verify.observers.packages import FilesOfPackages, PackageManager, Packages
from gpuprov.verify.observers.podman import Podman
from gpuprov.verify.observers.secure_boot import SecureBoot
from gpuprov.verify.observers.server import Server
from gpuprov.verify.observers.sshd import Sshd
from gpuprov.verify.observers.tuning import Tuning

if TYPE_CHECKING:

    class Node(Host):  # type: ignore[misc]
        """testinfra's Host with the attributes of `register`, for type checkers."""

        gpu: Gpus
        nvidia_driver: NvidiaDriver
        module_loading: ModuleLoading
        packages: Packages
        containers: Containers
        libraries: Libraries
        package_files: PackageFiles
        podman_engine: Podman
        server: Server
        secure_boot: SecureBoot
        sshd: Sshd
        tuning: Tuning
        firewall: Firewall


MODULES: dict[str, type[Observed]] = {
    "gpu": Gpus,
    "nvidia_driver": NvidiaDriver,
    "module_loading": ModuleLoading,
    "packages": PackageManager,
    "containers": Containers,
    "libraries": Libraries,
    "package_files": FilesOfPackages,
    "podman_engine": Podman,
    "server": Server,
    "secure_boot": SecureBoot,
    "sshd": Sshd,
    "tuning": Tuning,
    "firewall": Firewall,
}
"""Name of the attribute of a host → gpuprov's module."""


def register() -> None:
    """Make the modules attributes of every testinfra host.

    testinfra's own table of modules names files inside its own package, so these are cached properties of
    `Host`, created on first use.
    """
    for name, module in MODULES.items():
        attribute = cached_property(module.get_module)
        attribute.__set_name__(Host, name)
        setattr(Host, name, attribute)
