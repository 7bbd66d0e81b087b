"""A lab: a named set of nodes with one key pair, created and removed together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count as counting
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from gpuprov.errors import InvalidInput
from gpuprov_lab import efi, engine, identity, selinux, vm
from gpuprov_lab.archive import harvest, read_archive
from gpuprov_lab.handover import fleet_text, system_of
from gpuprov_lab.host import (
    LABS,
    hold,
    locked,
    make_folders,
    remove_tree,
    require_root,
    require_tools,
    say,
    write_whole,
)
from gpuprov_lab.images import Image, drop_image, find_image, save_image
from gpuprov_lab.mirror import beside
from gpuprov_lab.node import Node, load_node

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")

Result = TypeVar("Result")


class Lab(AbstractContextManager["Lab"]):
    """A named lab; labs of different names are independent.

    A `with` block marks the lab as used by this process, unless another process uses it, and removes all
    nodes at its end.

    Args:
        name: up to 30 lower-case letters, digits and hyphens.

    Raises:
        InvalidInput: another name, or the user is not root.
    """

    def __init__(self, name: str = "default") -> None:
        require_root()
        make_folders()
        self.name = _valid(name, "lab")
        self.folder = LABS / name
        self._use = self.folder.with_name(f"{name}.use")
        self._held: IO[str] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove every node and the mark of use; raises as `down`."""
        self.down()
        if self._held:
            self._use.unlink(missing_ok=True)
            self._held.close()

    def __enter__(self) -> Self:
        self._held = hold(self._use)
        return self

    @property
    def in_use(self) -> bool:
        """Whether a living process, such as a test, uses this lab in a `with` block."""
        if not self._use.exists():
            return False
        handle = hold(self._use)
        if handle:
            handle.close()
        return handle is None

    @property
    def left_behind(self) -> bool:
        """Whether a process used this lab in a `with` block and ended without removing it, such as a killed
        run.
        """
        return self.folder.is_dir() and self._use.exists() and not self.in_use

    @property
    def identity_file(self) -> Path:
        """The private key that every node accepts."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of every node."""
        return self.folder / "known_hosts"

    def nodes(self) -> list[Node]:
        """Return the complete nodes of this lab, in the order of their names, node2 before node10."""
        return [node for node in self._recorded() if node.complete]

    def node(self, name: str) -> Node:
        """Return the node of that name.

        Raises:
            InvalidInput: the lab has no such node.
        """
        found = {node.name: node for node in self.nodes()}
        if name not in found:
            raise InvalidInput(
                f"lab '{self.name}' has no node '{name}'",
                expected=f"one of {', '.join(found)}" if found else "",
                do="" if found else f"`gpuprov lab up --name {self.name}` makes nodes",
            )
        return found[name]

    def up(
        self,
        count: int = 2,
        os: str | None = None,
        gpu: str | None = None,
        *,
        image: str | None = None,
        names: Sequence[str] | None = None,
        prepare: Sequence[Callable[[Path], None]] = (),
        virtual: bool = False,
    ) -> list[Node]:
        """Add nodes concurrently, under the lab's lock; return them once each answers SSH. Remains of killed
        runs are removed first.

        Args:
            count: number of nodes, without `names`.
            os: `debian12` (the default) or `debian13`.
            gpu: machine that the GPU simulator imitates on them, such as `h200x4`.
            image: a saved image to start from, instead of a fresh `os`.
            names: names of the new nodes; node1, node2, … by default.
            prepare: functions that change each root before its first boot; see `gpuprov_lab.variants`.
            virtual: machines with their own kernel; see `gpuprov_lab.vm`.

        Raises:
            InvalidInput: no such system or image, a name that is taken or not valid, or GPUs for virtual
                machines.
            NodeFailed: a node did not boot. The nodes of this call are then removed again.
        """
        require_tools()
        if virtual and gpu:
            raise InvalidInput(f"a virtual node with the GPUs of {gpu}", do="leave one of both out")
        base = find_image(image or os or "debian12")
        with locked(self.folder / "lock"):
            fresh: list[Node] = []
            try:
                self._mend()
                fresh = [self._planned(name, base, gpu) for name in self._names(count, names)]
                nodes = self._boot(fresh, prepare)
                return self._virtualise(nodes) if virtual else nodes
            except BaseException:
                _side_by_side(Node.destroy, [load_node(node.folder) for node in fresh])
                self._tidy()
                raise

    def virtualise(self, node: Node, kernel: str = "", firmware: efi.Firmware | None = None) -> Node:
        """Turn a node into a machine with its own kernel; see `Node.virtualised`."""
        return self._virtualise([node], kernel, firmware)[0]

    def down(self, names: Iterable[str] | None = None) -> None:
        """Remove nodes and all that belongs to them, also remains of killed runs; with the last one also the
        lab's own files.

        Holds the lab's lock. Nothing is done if the lab does not exist and no names are given.

        Args:
            names: names of nodes; all by default.

        Raises:
            InvalidInput: the lab has no such node.
        """
        if names is None and not self.folder.exists():
            return
        with locked(self.folder / "lock"):
            try:
                going = self._recorded() if names is None else [self.node(name) for name in names]
                _side_by_side(Node.destroy, going)
            finally:
                self._mend()
                self._tidy()

    def fleet(self, profile: str, *, mirror: bool = False) -> str:
        """Return a fleet.yml for all nodes of this lab, with a profile of that name.

        Args:
            mirror: whether NVIDIA's packages come from a mirror, which serves until the lab is removed.

        Raises:
            InvalidInput: the lab's mirror has no packages for a system.
        """
        nodes = self.nodes()
        systems = sorted({system_of(node) for node in nodes})
        sources = beside.repositories(self.folder, systems) if mirror else {}
        return fleet_text(nodes, profile, self.identity_file, self.known_hosts, sources)

    def save(self, node: Node, name: str) -> None:
        """Save a node's changes as an image, for `up(image=name)`; replace an image of that name.

        The node is stopped, and uses that image from now on. Holds the lab's lock.

        Raises:
            InvalidInput: the name is a system's, or not valid; a node uses the image of that name; or the
                node is virtual.
        """
        if node.virtual:
            raise InvalidInput(f"{node.name} is on a disk of its own", do="save a node before it is virtual")
        with locked(self.folder / "lock"):
            node.stop()
            engine.unmount_below(node.root)
            harvest(node.upper)
            image = save_image(name, node.upper, Image(node.os, tuple(map(Path, node.layers))))
            node = replace(load_node(node.folder), layers=tuple(map(str, image.layers)))
            node.record()
            node.mount()

    def drop(self, name: str) -> None:
        """Remove a saved image; raise InvalidInput if there is none, or a node uses it."""
        drop_image(name)

    def _recorded(self) -> list[Node]:
        """Return all nodes of this lab, incomplete ones included, in the order of their names."""
        folders = sorted((self.folder / "nodes").glob("*"), key=lambda folder: _natural(folder.name))
        return [load_node(folder) for folder in folders]

    def _mend(self) -> None:
        """Remove remains of killed runs: incomplete nodes, or nodes whose processes were killed;
        print each.
        """
        for node in self._recorded():
            if not node.complete or node.broken:
                say(f"removing {node.name} of lab '{self.name}', which an interrupted run left behind")
                node.destroy()

    def _names(self, count: int, wanted: Sequence[str] | None) -> list[str]:
        """Return the names of new nodes: the wanted ones, or `count` free ones of node1, node2, …

        Raises:
            InvalidInput: a wanted name is invalid, or taken.
        """
        taken = {node.name for node in self._recorded()}
        if wanted is None:
            fresh = (name for number in counting(1) if (name := f"node{number}") not in taken)
            return list(islice(fresh, count))
        for name in wanted:
            if _valid(name, "node") in taken:
                raise InvalidInput(f"lab '{self.name}' has a node '{name}' already", do="choose another name")
            taken.add(name)
        return list(wanted)

    def _planned(self, name: str, base: Image, gpu: str | None) -> Node:
        """Return a node that is not made yet, without an address."""
        return Node(name, base.os, gpu, "", tuple(map(str, base.layers)), self.folder / "nodes" / name)

    def _boot(self, fresh: list[Node], prepare: Sequence[Callable[[Path], None]]) -> list[Node]:
        """Make and boot new nodes, wait until each answers SSH, and return them as complete."""
        ports = read_archive().ports()
        identity.make_key(self.identity_file, f"gpuprov-lab-{self.name}")
        public_key = self.identity_file.with_suffix(".pub").read_text()
        nodes = _side_by_side(lambda node: node.make(public_key, ports, prepare), fresh)
        _side_by_side(Node.await_ssh, nodes)
        nodes = [node.completed() for node in nodes]
        self._write_known_hosts()
        return nodes

    def _virtualise(
        self, nodes: list[Node], kernel: str = "", firmware: efi.Firmware | None = None
    ) -> list[Node]:
        """Turn nodes into machines with their own kernel, concurrently; install what that needs."""
        require_tools(selinux.TOOLS if any(selinux.is_for(node.root) for node in nodes) else vm.TOOLS)
        if firmware:
            efi.require_firmware()
        return _side_by_side(lambda node: node.virtualised(kernel, firmware), nodes)

    def _tidy(self) -> None:
        """Update the lab's files for its nodes; remove them if there are no nodes."""
        if self.nodes():
            self._write_known_hosts()
        else:
            engine.unmount_below(self.folder)  # a tree that a killed run left; see `gpuprov_lab.tree`
            remove_tree(self.folder)

    def _write_known_hosts(self) -> None:
        """Write the host keys of all complete nodes to `known_hosts`."""
        lines = [f"{node.address} {identity.host_key(node.root)}\n" for node in self.nodes()]
        write_whole(self.known_hosts, "".join(lines))


def lab_names() -> list[str]:
    """Return the names of the labs that exist, complete or not, sorted; raises as `require_root`."""
    require_root()
    return sorted(folder.name for folder in LABS.glob("*") if folder.is_dir())


def _side_by_side(work: Callable[[Node], Result], nodes: Sequence[Node]) -> list[Result]:
    """Call `work` for every node concurrently; return the results in the order of the nodes.

    All calls end before the first error is raised.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        return [future.result() for future in [pool.submit(work, node) for node in nodes]]


def _valid(name: str, kind: str) -> str:
    """Return a valid name unchanged; raise InvalidInput for another, with `kind` in the message."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"'{name}' cannot name a {kind}", expected="up to 30 lower-case letters, digits and hyphens"
        )
    return name


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a sort key by which node2 precedes node10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]
