# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package manager of a node: apt or dnf, by the database that its packages are in.

Both modules have the functions of `Manager`; roles call them without knowing which it is. Runs on nodes:
Python 3.6 to 3.13 and its standard library.
"""

import gpuprov_apt
import gpuprov_dnf
import gpuprov_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any, Protocol

    from gpuprov_failures import Failed

    class Manager(Protocol):
        """Functions of a package manager. A command is what `installation` returns, and opaque."""

        NAME: str

        def set_environment(self) -> None:
            """Set the environment of the programs that it starts."""

        def failure(self, what: str, error: Failed) -> "dict[str, str | None]":
            """Return the message for the user about a failed step."""

        def read_lists(self, fetch_seconds: int, lock_seconds: int, *words: str) -> None:
            """Read the lists of the repositories again."""

        def only(self, sources: str) -> list[str]:
            """Return the words that limit it to some sources."""

        def installation(
            self,
            words: Iterable[str],
            lock_seconds: int,
            allow_downgrade: bool,
            streams: Collection[str] = ...,
        ) -> Any:
            """Return the command that installs packages; the words are `NAME=VERSION` or `NAME-`."""

        def fetch_packages(
            self, command: Any, own: Collection[str], seconds: int, lock_seconds: "int | None" = ...
        ) -> object:
            """Download the packages of a command, after the lists if a time to wait for them is stated."""

        def transact(self, command: Any, residue: Iterable[str], own: Collection[str] = ...) -> None:
            """Run a command in one transaction."""

        def enabled_streams(self) -> list[str]:
            """Return the module streams that are enabled."""

        def headers_package(self, kernel: str) -> str:
            """Return the name of the package with a kernel's headers."""

        def hold(self, names: Iterable[str]) -> None:
            """Hold packages at their versions."""

        def make_requested_initramfs(self) -> None:
            """Make the initramfs that packages have requested."""

        def is_to_be_purged(self, name: str) -> bool:
            """Return whether a package is to be removed with its configuration."""

        def purge(self, names: Iterable[str]) -> None:
            """Remove packages with their files."""


def package_manager() -> "Manager":
    """Return the module of the node's package manager."""
    return gpuprov_apt if gpuprov_node.has_dpkg() else gpuprov_dnf
