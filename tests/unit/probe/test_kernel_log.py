"""Collector of the kernel's log: who wrote a line, and that no line pushes out those of another kind."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gpuprov.probe.node import kernel_log as module
from gpuprov.probe.node import kernel_messages
from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.kernel_log import kernel_log
from gpuprov.probe.node.kernel_messages import KINDS, LINES_AT_MOST, OF_A_KIND

BOOT = 1_795_700_000
BEGIN = "Linux version 6.1.0-44-amd64 (debian-kernel@lists.debian.org)"
LOST = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:{:02x}:00): {}, pid={}, name=python, Ch 00000008"
CRASH = "python[{}]: segfault at 0 ip 000055d2 sp 00007fff error 4 in python[55d2+1000]"


class Log:
    """The two sources; texts of the journal are what `journalctl` prints, those of the ring are records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put both in place of this machine's."""
        self.journal: list[str] = []
        self.ring: list[bytes] = []
        self.kind, self.place = stat.S_IFCHR, os.SEEK_CUR
        self.arguments: tuple[str, ...] = ()
        self.characters: int | None = None
        self.code, self.users, self.in_run = 0, "0", False
        clock = Mock(time=lambda: BOOT + 9000.0, monotonic=lambda: 9000.0)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "run", lambda *_: self.users)
        monkeypatch.setattr(module, "_is_in_run", lambda: self.in_run)
        monkeypatch.setattr(module, "find_program", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(
            threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None, cancel=lambda: None)
        )
        monkeypatch.setattr(module, "stop", lambda _: None)
        system = SimpleNamespace(
            open=lambda *_: 99,
            close=lambda _: None,
            lseek=lambda _handle, _offset, place: setattr(self, "place", place),
            read=self._read,
            fstat=lambda _: SimpleNamespace(st_mode=self.kind),
            O_RDONLY=os.O_RDONLY,
            O_NONBLOCK=os.O_NONBLOCK,
        )
        monkeypatch.setattr(module, "os", system)

    def says(self, texts: Iterable[str]) -> None:
        """Add lines of the kernel to the journal."""
        begun = BOOT + len(self.journal)
        self.journal += [f"{begun + number}.5 kernel: {text}" for number, text in enumerate(texts)]

    def rings(self, texts: Iterable[str], priority: int = 3) -> None:
        """Add records to the ring."""
        self.ring += [
            f"{priority},{number},{number}000000,-;{text}\n".encode() for number, text in enumerate(texts)
        ]

    def _start(self, argv: tuple[str, ...], **_: Any) -> Any:
        """Record the arguments; return a fake journalctl that is killed after it has printed the first
        `characters` of the messages.
        """
        self.arguments = argv
        messages = re.split(r"(?m)^(?=\d)", "".join(f"{line}\n" for line in self.journal))
        text = "".join(reversed(messages) if "--reverse" in argv else messages)
        child = Mock(stdout=io.BytesIO(text[: self.characters].encode()))
        child.wait.return_value = self.code if self.characters is None else -9
        return child

    def _read(self, _handle: int, _size: int) -> bytes:
        """Return the next record of the ring buffer; raise BrokenPipeError for an empty one, which stands for
        others that were overwritten, and BlockingIOError at the end.
        """
        if not self.ring:
            raise BlockingIOError
        if record := self.ring.pop(0):
            return record
        raise BrokenPipeError


@pytest.fixture
def machine() -> Iterator[Log]:
    """Provide a machine whose journal and ring buffer the test fills."""
    with contextlib.ExitStack() as stack:
        yield Log(stack.enter_context(pytest.MonkeyPatch.context()))


def texts() -> list[str]:
    """Return the texts of the collector."""
    return [text for _, text in kernel_log({})["kept"]]


def test_only_what_the_journal_itself_notes_is_the_kernels(machine: Log) -> None:
    """Ignore the identifier: each user writes with the kernel's, by `logger -t kernel`."""
    machine.says([LOST])
    assert texts() == [LOST]
    assert {"_TRANSPORT=kernel", "SYSLOG_IDENTIFIER=kernel"} < set(machine.arguments)
    assert "-t" not in machine.arguments


@pytest.mark.parametrize("origin", ["systemd[1]: Started kernel: ", "kernelx: ", "kernel[x]: ", ""])
def test_a_line_of_another_origin_is_none(machine: Log, origin: str) -> None:
    machine.journal = ["1795700000.5 kernel: Linux version 6.1.0", f"1795700001.5 {origin}{LOST}"]
    assert texts() == []


def test_a_text_with_several_lines_is_one(machine: Log) -> None:
    machine.journal = ["1795700000.5 kernel: python[1]: segfault", f"             {LOST}"]
    assert texts() == [f"python[1]: segfault {LOST}"]
    machine.journal = ["1795700000.5 kernel: python[1]: segfault", f"1795700001.5 {LOST}"]
    assert texts() == ["python[1]: segfault"]


def test_programs_push_out_no_fault(machine: Log) -> None:
    machine.says([LOST, *(CRASH.format(pid) for pid in range(LINES_AT_MOST + 100))])
    result = kernel_log({})
    assert result["kept"][0][1] == LOST
    assert len(result["kept"]) == OF_A_KIND + 1
    assert result["left_out"] == LINES_AT_MOST + 100 - OF_A_KIND
    assert result["kept"][-1][1] == CRASH.format(LINES_AT_MOST + 99)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: API mismatch: the client 'a{}' (pid {})",
        FAULT.format(0xC1, 31, "{}{}"),
        "traps: a{} segfault{}",
    ],
)
def test_messages_that_a_user_causes_push_out_no_other(machine: Log, line: str) -> None:
    machine.says([LOST, "NVRM: BAR1 is 0M @ 0x0", *(line.format(number, number) for number in range(9999))])
    assert texts()[:2] == [LOST, "NVRM: BAR1 is 0M @ 0x0"]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: {}[{}]: segfault at 0 ip 55d2 sp 7fff error 4 in a[55d2+1000]",
        "nvidia-{}: renamed from a{}",
        "NVRM: {} is a beginning that no pattern for users' names has, {}",
    ],
)
def test_names_of_users_push_out_no_error(machine: Log, line: str) -> None:
    """Write more names than there are kinds before the error, and more than a kind has lines after it."""
    names = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=4)][: 3 * KINDS]
    lines = [line.format(name, number) for number, name in enumerate(names)]
    machine.says([*lines, LOST, *lines])
    assert LOST in texts()


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-{}: entered promiscuous mode",
        "nvidia_{}: left allmulticast mode",
        "mlx5_{}: entered promiscuous mode",
        "NVRM: Port device BAR{} added",
        "NVRM: Setting {} as primary slave",
        "NVRM: an unknown text with the name {}",
        "nvidia: Device {} is up. Set it down before adding it as a team port",
        "NVRM: received packet on a{}rror with own address as source address (addr:96:5d:93:25, vlan:0)",
        "NVRM: Slave A (BAR1{}) is not up; please bring it up to get a fully working HSR network",
        "BUG: a text with the name {}",
        "Oops: a text with the name {}",
        "BUG: {}[1]: segfault at 0 ip 55d2 sp 7fff error 4 in a[55d2+1000]",
    ],
)
def test_interfaces_that_users_name_push_out_no_message_of_a_driver(machine: Log, line: str) -> None:
    """Write more names than there are kinds before the errors, and more than a kind has lines after them."""
    errors = [
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error message received from 0000:c1:00.0",
        "NVRM: GPU at PCI:0000:c1:00: GPU-11111111-2222 GPU has fallen off the bus.",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0",
        "INFO: task python:812 blocked for more than 120 seconds.",
        "BUG: unable to handle page fault for address: ffffffffc1a2b3c4",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error",
        "nvidia-nvswitch3: Version mismatch",
    ]
    names = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=4)][: 3 * KINDS]
    lines = [line.format(name) for name in names]
    machine.says([*lines, *errors, *lines])
    assert not set(errors).difference(texts())


def test_kinds_are_of_closed_lists() -> None:
    """Name interfaces like drivers, with all letters: there are as many kinds as drivers."""
    begins = ("NVRM", "nvidia", "nvidia-{}", "nvidia_{}", "nvidia-nvswitch{}", "mlx5_{}", "nova{}", "EDAC {}")
    begins += ("libspdm_{}", "BAR{}", "ata{}", "pci 0{}:00.0", "XFS ({}", "nvme nvme{}", "rcu", "DMAR", "{}")
    names = ["".join(letters) for letters in itertools.product("abcdef0-_", repeat=4)]
    texts = ("entered promiscuous mode", "Caught tx_queue_len zero misconfig", "a text with {}")
    kinds = {
        kernel_messages.kind_of(f"{begin}: {text}".replace("{}", name))
        for begin in begins
        for text in texts
        for name in names
    }
    assert len(kinds) < KINDS // 16


def test_errors_of_two_kinds_of_one_device_are_two_kinds(machine: Log) -> None:
    port = "pcieport 0000:00:01.0: "
    fatal = f"{port}PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    corrected = f"{port}PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID) "
    machine.says([fatal, f"{port}AER: Uncorrected (Fatal) error message received"])
    machine.says(f"{text}{number}" for text in (corrected, f"{port}AER: Corrected ") for number in range(999))
    assert texts()[:2] == [fatal, f"{port}AER: Uncorrected (Fatal) error message received"]


def test_all_kinds_together_are_bounded(machine: Log) -> None:
    """Log errors of more kinds than there are: each has its share, and the last ones of each are there."""
    kinds = [(bus, code) for bus in range(16) for code in range(1, 41)]
    machine.says(FAULT.format(bus, code, pid) for pid in range(30) for bus, code in kinds)
    found = texts()
    assert len(found) <= LINES_AT_MOST
    assert {FAULT.format(bus, code, 29) for bus, code in kinds[: KINDS - 1]} <= set(found)


def test_the_ring_has_what_the_journal_has_lost(machine: Log) -> None:
    machine.says([CRASH.format(2), LOST, LOST])
    machine.rings([FAULT.format(1, 48, 7), CRASH.format(2), LOST, LOST, LOST])
    result = kernel_log({})
    assert sorted(text for _, text in result["kept"]) == sorted(
        [FAULT.format(1, 48, 7), CRASH.format(2), LOST, LOST, LOST]
    )
    assert result["source"] == "journal and ring"


def test_the_last_lines_of_a_kind_stay_although_the_ring_has_older_ones(machine: Log) -> None:
    machine.says(FAULT.format(1, 31, pid) for pid in range(900))
    machine.rings(FAULT.format(1, 31, pid) for pid in range(900))
    assert texts()[-1] == FAULT.format(1, 31, 899)
    assert len(texts()) == OF_A_KIND


def test_the_ring_alone_is_enough_and_its_users_are_none(machine: Log) -> None:
    machine.rings([r"NVRM: The NVIDIA GPU\x0aNVRM: (PCI ID: 10de:1) \x5c", LOST])
    assert texts() == ["NVRM: The NVIDIA GPU NVRM: (PCI ID: 10de:1) \\", LOST]
    machine.rings([LOST], priority=11)
    with pytest.raises(Failed, match="no kernel log"):
        kernel_log({})


def test_the_newest_messages_are_read_if_there_is_no_time_for_all(machine: Log) -> None:
    """Kill journalctl within a line: `Xid … 48` is no `Xid … 4`."""
    machine.says([*(CRASH.format(pid) for pid in range(9)), FAULT.format(1, 48, 7), LOST])
    cut = f"1795700010.5 kernel: {LOST}\n1795700009.5 kernel: NVRM: Xid (PCI:0000:01:00): 4"
    machine.characters = len(cut)
    result = kernel_log({})
    assert (texts(), result["since"]) == ([LOST], BOOT + 10.5)


def test_a_log_is_whole_from_the_first_message_of_the_boot(machine: Log) -> None:
    machine.says([BEGIN, "microcode: updated early", LOST])
    assert "since" not in kernel_log({})
    machine.code = 1
    assert kernel_log({})["since"] == BOOT + 9000


@pytest.mark.parametrize(
    "said", ["Linux version 7 uses obsolete (PF_INET,SOCK_PACKET)", "Linux version: x", LOST]
)
def test_a_journal_without_the_beginning_of_the_boot_is_not_whole(machine: Log, said: str) -> None:
    """Lose the oldest messages, as a journal that was filled by a user removes its files."""
    machine.says([said, LOST])
    assert kernel_log({})["since"] == BOOT + 0.5
    machine.says([*itertools.repeat(CRASH, 16), BEGIN])
    assert kernel_log({})["since"] == BOOT + 0.5


@pytest.mark.parametrize(("seconds", "since"), [(60, None), (4000, BOOT + 4000.5)])
@pytest.mark.parametrize(
    "said",
    ["Missed 811 kernel messages", "Time spent on flushing to /var/log/journal/1b is 1.2ms for 811 entries."],
)
def test_messages_that_the_journal_has_missed_are_stated(
    machine: Log, seconds: int, since: float | None, said: str
) -> None:
    """Lose messages before users can log in, when large machines write more than the ring holds, or later."""
    machine.users = "61000000"
    machine.journal = [
        f"{BOOT + 1}.5 kernel: {BEGIN}",
        f"{BOOT + 1}.6 kernel: {LOST}",
        f"{BOOT + seconds}.5 systemd-journald[7]: {said}",
        f"{BOOT + seconds}.6 kernel: systemd-journald[7]: {said}",
    ]
    result = kernel_log({})
    assert (texts(), result["lines"], result.get("since")) == ([LOST], 3, since)
    assert machine.arguments[-2:] == ("+", "_TRANSPORT=driver")


def test_a_journal_that_had_to_leave_the_disk_is_not_whole(machine: Log) -> None:
    machine.says([BEGIN, LOST])
    machine.in_run = True
    assert kernel_log({})["since"] == BOOT + 9000


def test_the_journal_is_in_run_after_it_was_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, in_run, on_disk = (tmp_path / name for name in ("flushed", "run", "disk"))
    for constant, path in (("_FLUSHED", flushed), ("_IN_RUN", in_run), ("_ON_DISK", on_disk)):
        monkeypatch.setattr(module, constant, str(path))
    for path in (flushed, in_run, on_disk):
        assert not module._is_in_run()
        path.touch()
    assert module._is_in_run()
    os.utime(on_disk, (1, 1))
    assert not module._is_in_run()


def test_the_name_of_a_program_is_printed_whatever_its_bytes(machine: Log) -> None:
    fault = LOST.replace("GPU has", "name=train\x01, GPU has")
    machine.says([fault])
    assert texts() == [fault]
    assert "--all" in machine.arguments


def test_the_source_with_more_of_the_log_counts(machine: Log) -> None:
    machine.says([LOST])
    machine.ring = [f"3,{number},7000000,-;{LOST}\n".encode() for number in (990123, 990124)]
    assert kernel_log({})["since"] == BOOT + 0.5
    machine.journal = [f"{BOOT + 500}.5 kernel: {LOST}"]
    machine.ring = [f"3,990123,7000000,-;{LOST}\n".encode()]
    assert kernel_log({})["since"] == BOOT + 7
    machine.ring = [f"3,0,0,-;{BEGIN}\n".encode()]
    assert "since" not in kernel_log({})


def test_records_that_are_overwritten_while_the_ring_is_read_are_missing(machine: Log) -> None:
    machine.ring = [f"3,0,0,-;{BEGIN}\n".encode(), b"", f"3,811,9000000,-;{LOST}\n".encode()]
    assert kernel_log({})["since"] == BOOT + 9


def test_kinds_beyond_the_limits_are_stated(machine: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.says([BEGIN, LOST, *(f"nvme nvme0: {word}" for word in ("timeout", "controller is down"))])
    assert "since" not in kernel_log({})
    monkeypatch.setattr(kernel_messages, "KINDS", 1)
    machine.says(
        [*(f"nvme nvme0: controller is down {number}" for number in range(OF_A_KIND)), "nvme nvme0: timeout"]
    )
    assert kernel_log({})["since"] == BOOT + 9000


def test_records_without_a_word_are_left_out(machine: Log) -> None:
    machine.rings([CRASH.format(9), LOST, CRASH.format(8)])
    assert [text for _, text in module.records(99, b"Xid")] == [LOST]


def test_a_pipe_is_no_log(machine: Log) -> None:
    machine.kind = stat.S_IFIFO
    machine.rings([LOST])
    with pytest.raises(Failed, match="is no device"):
        kernel_log({})


def test_the_ring_is_opened_at_its_end_for_messages_from_now_on(machine: Log) -> None:
    for place in (os.SEEK_END, os.SEEK_SET):
        module.open_ring(place)
        assert machine.place == place
