"""A lab node: a system with its own address that answers SSH, restarts and stops like a server."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov_lab import efi, engine, selinux, vm
from gpuprov_lab.archive import harvest, lend
from gpuprov_lab.host import execute, remove_tree, write_whole
from gpuprov_lab.identity import personalise
from gpuprov_lab.login import PATIENCE, Patience, greets, ssh_command
from gpuprov_lab.network import Link, connect, disconnect

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Node:
    """One node of a lab.

    Attributes:
        name: its host name.
        os: name of its system, such as `debian12`.
        gpu: the machine that the simulator simulates, or None.
        address: its IPv4 address; "" until it has one.
        layers: the image below its root, topmost layer first.
        folder: the node's folder; its lab's folder is two above.
        complete: whether the `up` that made it finished.
        off: whether it was stopped on purpose.
        virtual: whether it is a machine with its own kernel; see `gpuprov_lab.vm`.
    """

    name: str
    os: str
    gpu: str | None
    address: str
    layers: tuple[str, ...]
    folder: Path
    complete: bool = False
    off: bool = False
    virtual: bool = False

    @property
    def lab_folder(self) -> Path:
        """Folder of the lab: its key pair and known hosts."""
        return self.folder.parent.parent

    @property
    def machine(self) -> str:
        """A name that no other node on this machine has."""
        return f"{self.lab_folder.name}-{self.name}"

    @property
    def link(self) -> Link:
        """Its place on the lab network."""
        return Link(f"gpuprov-{self.machine}", self.address)

    @property
    def root(self) -> Path:
        """Its root folder, seen from outside; it exists as long as the node, running or not.

        For a virtual node it is the tree from which its disk was made.
        """
        return self.folder / "root"

    @property
    def disk(self) -> Path:
        """A virtual node's disk."""
        return self.folder / "disk"

    @property
    def upper(self) -> Path:
        """Files that the node has written on top of its image."""
        return self.folder / "upper"

    @property
    def console(self) -> Path:
        """Console output of all its boots."""
        return self.folder / "console.log"

    @property
    def running(self) -> bool:
        """Whether it is booted: its supervisor's process runs."""
        return engine.runs(self.machine)

    @property
    def broken(self) -> bool:
        """Whether it should run and does not, or lost its root: it was killed, or the machine restarted."""
        return not self.root.is_mount() or not (self.off or self.running)

    @property
    def state(self) -> str:
        """`running`, `off`, or `broken`."""
        return "broken" if self.broken else "running" if self.running else "off"

    @property
    def kernel(self) -> str:
        """Release of the kernel that is installed on it, the newest if there are several; "" without one.

        The running kernel is this machine's, so nodes name the one to build modules for. A virtual node runs
        its own, and the value is just `running`.
        """
        if self.virtual:
            return "running"
        releases = (path.name for path in (self.root / "usr/lib/modules").glob("*"))
        return max(releases, key=lambda name: [int(each) for each in re.findall(r"\d+", name)], default="")

    def record(self) -> None:
        """Write the node's record to node.json in its folder, so that any later run knows the node."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {**asdict(self), "folder": None}
        write_whole(self.folder / "node.json", json.dumps(fields, indent=1) + "\n")

    def make(
        self, public_key: str, ports: Collection[int], prepare: Collection[Callable[[Path], None]] = ()
    ) -> Node:
        """Create the node from its image and start its boot; return it with its address, before it answers
        SSH.

        Its record is written first, so that the remains of a killed run can be removed.

        Args:
            public_key: key that may log in as root.
            ports: TCP ports of the package archive.
            prepare: further changes of its root before the first boot.

        Raises:
            GpuprovError: a step fails; what was made stays.
        """
        self.record()
        made: list[Node] = [self]

        def remember(link: Link) -> None:
            made[0] = replace(self, address=link.address)
            made[0].record()

        connect(self.link.namespace, remember, ports)
        node = made[0]
        lend(node.upper)
        node.mount()
        personalise(node.root, node.name, public_key)
        if node.gpu:
            from gpuprov_lab import simulator

            simulator.install(node.root, node.gpu)
        for step in prepare:
            step(node.root)
        node.start(wait=False)
        return node

    def mount(self) -> None:
        """Mount the node's root from its image and its own layer."""
        engine.mount(self.root, [Path(layer) for layer in self.layers], self.upper, self.folder / "work")

    def virtualised(self, kernel: str = "", firmware: efi.Firmware | None = None) -> Node:
        """Stop the node, and return the same system as a booted machine with its own kernel; the old tree is
        left in place. A played system without apt boots its only kernel with SELinux; see
        `gpuprov_lab.selinux`.

        Args:
            kernel: release that boots first, the newest by default; from the next boot on GRUB decides.
            firmware: the firmware that enforces Secure Boot; without it the machine has a BIOS.

        Raises:
            NodeFailed, Unreachable: the disk cannot be made, or the machine does not boot.
        """
        self.stop()
        harvest(self.upper)
        enforcing = selinux.is_for(self.root)
        if enforcing:
            selinux.make_disk(self.root, self.disk, vm.NETWORK)
        else:
            vm.make_disk(self.root, self.disk, kernel or self.kernel, firmware)
        node = replace(self, virtual=True, off=True)
        node.record()
        node.start()
        if not enforcing:
            node.run("update-grub")
        return replace(node, off=False)

    def completed(self) -> Node:
        """Return the same node, recorded as complete."""
        node = replace(self, complete=True)
        node.record()
        return node

    def ssh_command(self, user: str = "root") -> list[str]:
        """Return the command line that opens a shell on the node; host keys are checked strictly."""
        return ssh_command(self.address, user, self.lab_folder)

    def run(
        self,
        command: str,
        *,
        user: str = "root",
        check: bool = True,
        timeout: float = 600,
        input: str = "",  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the node over SSH.

        Raises:
            Unreachable: SSH itself failed (its exit code 255).
            NodeFailed: the command failed and `check` is set, or it ran longer than `timeout` seconds.
        """
        arguments = [*self.ssh_command(user), command]
        try:
            done = subprocess.run(arguments, input=input, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise NodeFailed(f"{self.name}: `{command}` did not end within {timeout:.0f} s") from None
        if done.returncode == 255:
            raise Unreachable(f"{self.name}: {done.stderr.strip() or 'the connection ended'}")
        if check and done.returncode:
            result = (done.stderr or done.stdout).strip()[-2000:]
            raise NodeFailed(f"{self.name}: `{command}` exited with {done.returncode}: {result}")
        return done

    def boot_id(self) -> str:
        """Return the kernel's id of this boot, read over SSH; raises as `run`."""
        return self.run(f"cat {BOOT_ID}").stdout.strip()

    def start(self, *, wait: bool = True) -> None:
        """Boot the node if it is off; with `wait`, return only when it answers SSH.

        Raises:
            NodeFailed: it does not start, or does not answer in time.
        """
        if not self.running:
            self._mark(off=False)
            engine.start(self._boot_command(), self.machine, self.console)
        if wait:
            self.await_ssh()

    def stop(self) -> None:
        """Shut the node down in order, and kill what remains; its root and its address stay.

        Raises:
            NodeFailed: it still runs after the time of its kind, 60 s or 900 s.
        """
        self._mark(off=True)
        if self.running:
            if self.virtual:
                vm.press_power_button(self.disk)
            else:
                engine.terminate(self.machine)
            engine.await_end(self.machine, self._patience.boot_s)
        engine.kill(self.machine, self.root)

    def reboot(self, *, wait: bool = True) -> None:
        """Have the node restart itself; with `wait`, return only when it answers SSH in its next boot.

        Raises:
            NodeFailed: it did not come back as another boot in time.
            Unreachable: it does not answer before the restart.
        """
        before = self.boot_id()
        with suppress(Unreachable):  # sshd can end before the command's exit code is sent
            self.run("systemctl reboot", check=False)
        deadline = time.monotonic() + self._patience.boot_s
        while wait:
            self.await_ssh()
            try:
                if self.boot_id() != before:
                    return
            except Unreachable:  # the connection broke during the shutdown
                pass
            if time.monotonic() > deadline:
                raise NodeFailed(
                    f"{self.name} did not restart within {self._patience.boot_s:.0f} s",
                    do=f"see {self.console}",
                )
            time.sleep(0.05)

    def await_ssh(self) -> None:
        """Wait until the node's SSH server greets, for at most 60 s, of a virtual node 900 s.

        Raises:
            NodeFailed: it ended meanwhile, or did not greet in time.
        """
        deadline = time.monotonic() + self._patience.boot_s
        while not greets(self.address, self._patience.greeting_s):
            if not self.running:
                raise NodeFailed(
                    f"{self.name} ended while booting: {self._last_words()}", do=f"see {self.console}"
                )
            if time.monotonic() > deadline:
                raise NodeFailed(
                    f"{self.name} did not answer SSH within {self._patience.boot_s:.0f} s",
                    do=f"see {self.console}",
                )
            time.sleep(self._patience.pause_s)

    def add_interface(self, name: str, address: str) -> None:
        """Give the running node another network interface, such as `fabric0` with `10.9.0.1/24`.

        Its peer is the interface NAME-far in the node. Both are removed with the node.
        """
        cable = f"link add {name} type veth peer name {name}-far\nlink set {name}-far up\n"
        lines = f"{cable}addr add {address} dev {name}\nlink set {name} up\n"
        execute(["ip", "-n", self.link.namespace, "-batch", "-"], input=lines)

    def destroy(self) -> None:
        """Remove the node, or the remains that a killed run left; its downloaded packages are kept."""
        engine.kill(self.machine, self.root)
        harvest(self.upper)
        engine.unmount_below(self.folder)
        if self.address:
            disconnect(self.link)
        remove_tree(self.folder)

    def _mark(self, *, off: bool) -> None:
        """Record on the disk whether the node is off on purpose."""
        replace(load_node(self.folder), off=off).record()

    @property
    def _patience(self) -> Patience:
        """The time limits of its kind of node."""
        return vm.PATIENCE if self.virtual else PATIENCE

    def _boot_command(self) -> list[str]:
        """Return the command that boots it, by QEMU or systemd-nspawn."""
        if self.virtual:
            return vm.boot_command(self.disk, self.address, self.link.path)
        extra: list[str] = []
        if self.gpu:
            from gpuprov_lab import simulator

            extra = simulator.nspawn_arguments(self.root, self.gpu)
        return engine.boot_command(self.root, self.machine, self.name, self.link.path, extra)

    def _last_words(self) -> str:
        """Return the last three lines of its console."""
        return "\n".join(self.console.read_text(errors="replace").strip().splitlines()[-3:])


def load_node(folder: Path) -> Node:
    """Return the node of a folder; an incomplete one if a killed run left the folder without a record."""
    if not (folder / "node.json").is_file():
        return Node(folder.name, "", None, "", (), folder)
    fields = json.loads((folder / "node.json").read_text())
    return Node(**{**fields, "layers": tuple(fields["layers"]), "folder": folder})
