"""A tree that becomes an image without a boot: systemd-nspawn runs single programs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuprov.errors import NodeFailed
from gpuprov_lab import engine
from gpuprov_lab.archive import harvest, lend
from gpuprov_lab.host import execute, remove_tree, require_tools
from gpuprov_lab.images import Image, contained, find_image, save_image
from gpuprov_lab.lab import Lab

HOUR_S = 3600.0


@dataclass
class Tree:
    """A root folder of a system that was never booted."""

    folder: Path
    base: Image

    @property
    def root(self) -> Path:
        """The merged root."""
        return self.folder / "root"

    @property
    def kernel(self) -> str:
        """The release of the installed kernel."""
        [path] = (self.root / "usr/lib/modules").iterdir()
        return path.name

    def run(self, command: str) -> str:
        """Run a shell command as root, for at most an hour, and return its output; systemd does not run, and
        the network is this machine's.

        Raises:
            NodeFailed: it failed.
        """
        quiet = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "HOME=/root")
        return execute(contained(self.root, *quiet, "sh", "-c", command), timeout=HOUR_S)

    def fails(self, command: str) -> str:
        """Return the error message of a command that must fail; raise NodeFailed if it succeeds."""
        try:
            said = self.run(command)
        except NodeFailed as failure:
            return str(failure)
        raise NodeFailed(f"`{command}` did not fail: {said}")

    def save(self, name: str) -> None:
        """Save it as an image, for `Lab.up(image=name)`; the tree cannot be used afterwards.

        Raises:
            InvalidInput: the name is a system's, or not valid, or a node uses the image of that name.
        """
        engine.unmount_below(self.root)
        harvest(self.folder / "upper")
        save_image(name, self.folder / "upper", self.base)


@contextmanager
def tree(lab: Lab, image: str = "debian12") -> Iterator[Tree]:
    """Yield a tree of a lab; it is removed when the block ends, or with the lab if the process was killed."""
    require_tools()
    base = find_image(image)
    made = Tree(lab.folder / "tree", base)
    upper = made.folder / "upper"
    lend(upper)
    engine.mount(made.root, base.layers, upper, made.folder / "work")
    try:
        yield made
    finally:
        engine.unmount_below(made.folder)
        remove_tree(made.folder)
