"""`host.packages` and `host.package_files`: of the node's package manager, by the database that it has."""

from __future__ import annotations

from typing import Any, Protocol

from testinfra.host import Host

from gpuprov.verify.observers.apt import Apt
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.dnf import Dnf
from gpuprov.verify.observers.package_files import PackageFiles
from gpuprov.verify.observers.rpm_files import RpmFiles

WITHOUT_DPKG = "test ! -e /var/lib/dpkg/status && command -v rpm"


class Packages(Protocol):
    """Interface of the observers of package managers, see `Apt`."""

    versions: dict[str, str]
    held: set[str]
    ignores_holds: bool
    sources: set[str]
    unattended_blacklist: set[str]
    moved_by_upgrade: set[str]
    half_done: list[str]

    def foreign(self, packages: list[str], own: list[str]) -> list[str]: ...

    def own_parts(self, expected: dict[str, str]) -> dict[str, str]: ...

    def long(self, packages: list[str]) -> list[str]: ...

    def preferred(self, packages: list[str]) -> list[str]: ...


class PackageManager(Observed):
    """A module of testinfra that is another one: the observer of the node's package manager."""

    @classmethod
    def get_module(cls, host: Host) -> Any:
        """Return the observer of dnf on a node that has rpm and no database of dpkg, else that of apt."""
        return (Dnf if host.run(WITHOUT_DPKG).succeeded else Apt).get_module(host)


class FilesOfPackages(Observed):
    """A module of testinfra that is another one: the observer of the files of the node's packages."""

    @classmethod
    def get_module(cls, host: Host) -> Any:
        """Return the observer of rpm's files on a node that has rpm and no database of dpkg, else dpkg's."""
        return (RpmFiles if host.run(WITHOUT_DPKG).succeeded else PackageFiles).get_module(host)
