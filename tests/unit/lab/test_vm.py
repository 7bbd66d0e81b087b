"""Disk and command line of a virtual node."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from gpuprov.errors import NodeFailed
from gpuprov_lab import selinux, vm
from gpuprov_lab.node import Node, load_node


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Root tree of a node with GRUB's two images, each of one repeated letter."""
    for path, content in {
        "usr/lib/grub/i386-pc/boot.img": b"b" * 512,
        vm.GRUB + "/core.img": b"c" * 3000,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(content)
    return tmp_path


def test_the_disk_starts_with_a_table_of_one_bootable_partition_between_code_and_core(tree: Path) -> None:
    sectors = vm.boot_sectors(tree)
    assert sectors[:440] == b"b" * 440
    assert sectors[510:512] == b"\x55\xaa"
    assert sectors[512:] == b"c" * 3000
    status, kind, start, length = struct.unpack("<B3xB3xII", sectors[446:462])
    assert (status, kind) == (0x80, 0x83)
    assert (start + length) * 512 == vm.DISK_BYTES
    assert start * 512 >= len(sectors)
    assert not any(sectors[462:510])


def test_a_machine_answers_at_the_address_of_its_node() -> None:
    command = vm.boot_command(Path("/n/disk"), "198.18.0.7", Path("/run/netns/x"))
    assert command[:2] == ["nsenter", "--net=/run/netns/x"]
    ports = ",".join(f"hostfwd=tcp:198.18.0.7:{port}-:{port}" for port in (22, 2222, 8008))
    assert f"user,id=net,{ports}" in command
    assert "file=/n/disk,format=raw,if=virtio,cache=unsafe" in command


def test_a_machine_has_the_firmware_whose_variables_lie_beside_its_disk(tmp_path: Path) -> None:
    def command() -> str:
        return " ".join(vm.boot_command(tmp_path / "disk", "198.18.0.7", Path("/run/netns/x")))

    assert "pflash" not in command()
    vm.variables(tmp_path / "disk").touch()
    assert f"unit=1,format=raw,file={tmp_path}/firmware.vars" in command()
    assert "q35,smm=on" in command()


def test_the_system_partition_is_the_second_and_ends_with_the_disk() -> None:
    sectors = vm.system_sectors()
    rows = [struct.unpack("<B3xB3xII", sectors[at : at + 16]) for at in (446, 462)]
    assert [kind for _, kind, _, _ in rows] == [0x83, 0xEF]
    (_, _, start, length), (_, _, second, rest) = rows
    assert start + length == second
    assert (second + rest) * 512 == vm.DISK_BYTES
    assert len(sectors) == 512


def test_a_machine_starts_the_kernel_that_lies_beside_its_disk(tmp_path: Path) -> None:
    """Check a disk of `gpuprov_lab.selinux`: its format has room for the state of the running machine."""
    for name in ("kernel", "initrd"):
        (tmp_path / name).touch()
    command = vm.boot_command(tmp_path / "disk", "198.18.0.7", Path("/run/netns/x"))
    assert command[command.index("-kernel") + 1] == str(tmp_path / "kernel")
    assert "security=selinux" in command[-1]
    assert f"file={tmp_path}/disk,format=qcow2,if=virtio,cache=unsafe" in command


def test_a_kernel_names_its_release_in_its_header(tmp_path: Path) -> None:
    header = bytes(0x20E) + struct.pack("<H", 0x100)
    (tmp_path / "kernel").write_bytes(header.ljust(0x300, b"\0") + b"6.1.0-56-amd64 (debian) #1\0rest")
    assert selinux.kernel_release(tmp_path / "kernel") == "6.1.0-56-amd64"


def heard_by(
    folder: Path, act: Callable[[], None], connections: int, last: str = '{"return": {}}'
) -> list[str]:
    """Return the commands that the monitor of the disk in that folder receives, except the greeting; `last`
    are its lines after the command.
    """
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "disk.qmp"))
        server.listen()

        def answer() -> None:
            """Answer each connection as QEMU's monitor, and record its lines."""
            for _ in range(connections):
                with server.accept()[0] as peer, peer.makefile("rw") as lines:
                    for said in ('{"QMP": {}}', '{"return": {}}', last):
                        lines.write(said + "\n")
                        lines.flush()
                        heard.append(lines.readline())

        qemu = Thread(target=answer)
        qemu.start()
        act()
        qemu.join()
    return [line for line in heard if line and "qmp_capabilities" not in line]


def test_the_power_button_is_pressed_once_the_monitor_listens(tmp_path: Path) -> None:
    heard = heard_by(tmp_path, lambda: vm.press_power_button(tmp_path / "disk"), 1)
    assert heard == ['{"execute": "system_powerdown"}\n']


def test_a_state_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    """Check that the answer is read after events that come before it."""
    event = '{"event": "RTC_CHANGE"}\n'
    heard = heard_by(tmp_path, lambda: vm.save_state(tmp_path / "disk", "ready"), 1, event + '{"return": ""}')
    assert json.loads(heard[0])["arguments"] == {"command-line": "savevm ready"}
    (tmp_path / "disk.qmp").unlink()

    def act() -> None:
        with pytest.raises(NodeFailed, match="no such state"):
            vm.load_state(tmp_path / "disk", "other")

    heard_by(tmp_path, act, 1, event + '{"return": "no such state"}')


def test_keys_are_pressed_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm, "KEY_PAUSE_S", 0)
    heard = heard_by(tmp_path, lambda: vm.press_keys(tmp_path / "disk", "down", "ret"), 2)
    pressed = [json.loads(line)["arguments"]["keys"] for line in heard]
    assert [each["data"] for [each] in pressed] == ["down", "ret"]


def test_a_virtual_node_builds_for_the_kernel_that_it_runs(tmp_path: Path) -> None:
    node = Node("node1", "debian12", None, "198.18.0.7", (), tmp_path / "node1", virtual=True)
    node.record()
    assert load_node(node.folder).kernel == "running"
