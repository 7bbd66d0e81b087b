"""Scratch space on a real node, with loop devices in place of NVMe drives."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from gpuprov_lab import Lab
from tests.lab.marks import slow_ones
from tests.lab.stub_driver_node import StubDriverNode

ROLE = "storage"
MOUNT = "/scratch/fast"
FIRST = 64 + 2 * (os.getpid() % 90)
EMPTY, OTHER = f"/dev/loop{FIRST}", f"/dev/loop{FIRST + 1}"
HOOK = "/etc/apt/apt.conf.d/99hand"
SCRATCH = {"device": EMPTY, "mount": MOUNT, "filesystem": "ext4", "read_ahead_kib": 4096}
# Attaches a loop device like a whole drive: a container has no device nodes for the kernel's loop devices.
PLUG_IN = """\
test -e /dev/loop-control || mknod /dev/loop-control c 10 237
mknod {device} b 7 {number}; truncate -s 48M /root/{number}.img; losetup {device} /root/{number}.img
"""


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubDriverNode]:
    """A node with two plugged-in disks, whose lock states scratch file systems."""
    [node] = module_lab.up(1, os="debian12")
    try:
        node.run("apt-get -q update && apt-get -q -y install --no-install-recommends fdisk")
        for number in (FIRST, FIRST + 1):
            node.run(PLUG_IN.format(device=f"/dev/loop{number}", number=number))
        driven = StubDriverNode(module_lab, node, tmp_path_factory.mktemp("storage"))
        driven.state({"scratch": [SCRATCH]})
        yield driven
    finally:
        node.run(f"umount {MOUNT} /mnt", check=False)
        for device in (EMPTY, OTHER):
            subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)


@pytest.mark.slow
def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    outcome, changed = driven.apply(ROLE, check=True)
    assert outcome.ok, outcome.failed
    assert "Make file systems on empty devices" in changed
    assert driven.says(f"blkid -p {EMPTY}; ls -d /scratch; grep scratch /etc/fstab").startswith("ls: cannot")
    checks = {"scratch.mounted", "scratch.at_boot", "scratch.read_ahead", "scratch.read_ahead_at_boot"}
    assert set(driven.drift("scratch.")) == checks


def test_empty_device_becomes_scratch(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert driven.failed("scratch.") == {}
    assert driven.drift("scratch.") == {}
    assert driven.says(f"stat -c %a {MOUNT}") == "1777"


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply(ROLE)[1] == []
    assert driven.apply(ROLE, check=True)[1] == []


FAULTS = {
    "scratch.mounted": f"umount {MOUNT}",
    "scratch.at_boot": "sed -i /scratch/d /etc/fstab",
    "scratch.read_ahead": f"blockdev --setra 256 {EMPTY}",
    "scratch.read_ahead_at_boot": "rm /etc/udev/rules.d/90-gpuprov-scratch.rules",
}


@pytest.mark.parametrize("checks", slow_ones([*FAULTS, " ".join(FAULTS)], FAULTS))
def test_faults_are_seen_by_both_witnesses_and_mended(driven: StubDriverNode, checks: str) -> None:
    driven.node.run(f"echo kept >{MOUNT}/data")
    driven.node.run("; ".join(FAULTS[check] for check in checks.split()))
    assert set(checks.split()) <= driven.drift("scratch.").keys()
    assert set(checks.split()) <= driven.failed("scratch.").keys()
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert driven.failed("scratch.") == {}
    assert driven.says(f"cat {MOUNT}/data") == "kept"


NOT_EMPTY = {
    "file-system": (f"mkfs.ext4 -q -L home {OTHER}", "there is ext4 labelled home on"),
    "partition-table": (f"echo 'label: gpt' | sfdisk -q {OTHER}", "there is gpt on"),
    "swap": (f"mkswap {OTHER}", "there is swap on"),
    "bytes-alone": (
        f"echo precious | dd of={OTHER} bs=512 seek=100 conv=notrunc status=none",
        "is not empty",
    ),
    "ours-of-another-kind": (f"mkfs.ext4 -q -L other {OTHER}", "there is ext4 labelled other on"),
}


@pytest.mark.parametrize("name", NOT_EMPTY)
def test_device_with_anything_on_it_is_never_touched(driven: StubDriverNode, name: str) -> None:
    prepare, objection = NOT_EMPTY[name]
    driven.node.run(f"dd if=/dev/zero of={OTHER} bs=1M status=none 2>/dev/null || true; {prepare}")
    before = driven.says(f"sha256sum {OTHER}")
    wanted = {**SCRATCH, "device": OTHER, "mount": "/other"}
    outcome, changed = driven.apply(ROLE, storage_scratch=[SCRATCH, wanted])
    [failed] = outcome.failed
    assert objection in failed["msg"]
    assert changed == []
    assert driven.says(f"sha256sum {OTHER}") == before


def test_device_that_somebody_takes_meanwhile_is_not_formatted(driven: StubDriverNode) -> None:
    """Check the device again before mkfs: an apt hook makes a file system on it after the first check."""
    hook = f"mkfs.ext4 -q -L home {OTHER}; mount {OTHER} /mnt; echo precious >/mnt/data; umount /mnt"
    driven.node.run(f"dd if=/dev/zero of={OTHER} bs=1M status=none 2>/dev/null || true; cat >{HOOK}",
                    input=f'DPkg::Pre-Invoke {{"{hook}";}};\n')  # fmt: skip
    wanted = {**SCRATCH, "device": OTHER, "mount": "/other"}
    outcome, _ = driven.apply(ROLE, storage_scratch=[SCRATCH, wanted], storage_clients=["hello"])
    driven.node.run(f"rm {HOOK}")
    assert driven.says(f"mount -o ro {OTHER} /mnt; cat /mnt/data; umount /mnt") == "precious"
    [failed] = outcome.failed
    assert f"there is ext4 labelled home on {OTHER}, which was empty a moment ago" in failed["msg"]


def test_device_that_is_mounted_meanwhile_is_not_formatted(driven: StubDriverNode) -> None:
    """Refuse a device that is still empty but held open exclusively, which only the kernel knows."""
    driven.node.run(f"dd if=/dev/zero of={OTHER} bs=1M status=none 2>/dev/null || true")
    hold = f"python3 -c 'import os, time; os.open(\"{OTHER}\", os.O_RDWR | os.O_EXCL); time.sleep(600)'"
    driven.node.run(f"systemd-run --quiet --unit=holder {hold}")
    before = driven.says(f"sha256sum {OTHER}")
    outcome, _ = driven.apply(
        ROLE, storage_scratch=[SCRATCH, {**SCRATCH, "device": OTHER, "mount": "/other"}]
    )
    driven.node.run("systemctl stop holder")
    [failed] = outcome.failed
    assert f"{OTHER} is in use by another program, or by the kernel" in failed["msg"]
    assert driven.says(f"sha256sum {OTHER}") == before


USED = {
    "/root": ("true", "/root has users' files and their SSH keys"),
    "/other": ("mkdir -p /other && touch /other/b /other/a", "/other is not empty: a, b"),
    "/above": (
        "mkdir -p /above/it && mount -t tmpfs none /above/it",
        "below /above, /above/it is mounted",
    ),
}


@pytest.mark.parametrize("mount", USED)
def test_place_that_is_used_is_never_mounted_over(driven: StubDriverNode, mount: str) -> None:
    prepare, objection = USED[mount]
    # `ls` counts blocks, which a file gets when it is written back.
    driven.node.run(f"dd if=/dev/zero of={OTHER} bs=1M status=none 2>/dev/null || true; {prepare}; sync")
    before = driven.says(f"sha256sum {OTHER}; ls -lR {mount}; findmnt --noheadings")
    outcome, changed = driven.apply(
        ROLE, storage_scratch=[SCRATCH, {**SCRATCH, "device": OTHER, "mount": mount}]
    )
    assert objection in outcome.failed[0]["msg"]
    assert changed == []
    assert driven.says(f"sha256sum {OTHER}; ls -lR {mount}; findmnt --noheadings") == before
    driven.node.run("umount /above/it; rm -rf /other /above", check=False)


def test_another_file_system_in_the_place_of_scratch_is_named_before_an_apply(driven: StubDriverNode) -> None:
    before = driven.group
    driven.state({"scratch": [{**SCRATCH, "filesystem": "xfs"}]})
    assert driven.drift("scratch.")["scratch.filesystem"] == {MOUNT: "ext4"}
    assert "scratch.filesystem" in driven.failed("scratch.")
    driven.group = before


@pytest.mark.slow
def test_clients_of_storage_elsewhere(driven: StubDriverNode) -> None:
    driven.state({"storage_clients": {"nfs": "nfs-common"}})
    assert set(driven.drift("storage.")) == {"storage.clients"}
    assert driven.apply(ROLE)[0].ok
    assert driven.drift("storage.") == {}
    assert driven.failed("storage.") == {}
    assert driven.apply(ROLE)[1] == []
    assert driven.says("mount.nfs -V").startswith("mount.nfs")
    driven.state({"storage_clients": {"nfs": "nfs-common", "lustre": "lustre-client-utils"}})
    assert "does not have what the lock names" in driven.apply(ROLE)[0].failed[0]["msg"]
    driven.state({"storage_clients": None})


def test_pattern_that_matches_two_devices_is_refused(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(ROLE, storage_scratch=[{**SCRATCH, "device": "/dev/loop[0-9]*"}])
    assert "not one device" in outcome.failed[0]["msg"]


@pytest.mark.slow
def test_a_users_lock_of_mounts_own_file_keeps_no_apply_waiting(driven: StubDriverNode) -> None:
    """Lock the file in which mount(8) and umount(8) store options, such as x-gpuprov of former releases."""
    lock = "/run/mount/utab.lock"
    driven.node.run(
        f"umount {MOUNT}; mount -o x-gpuprov UUID=$(blkid -o value -s UUID {EMPTY}) {MOUNT}"
        f" && chmod 644 {lock} && systemd-run --quiet --uid=65534 --unit=holder flock {lock} sleep 900"
    )
    try:
        for scratch in ([], [SCRATCH]):
            driven.state({"scratch": scratch})
            outcome, _ = driven.apply(ROLE)
            assert outcome.ok, outcome.failed
            assert bool(driven.says(f"findmnt {MOUNT}")) is bool(scratch)
        assert driven.says("systemctl is-active holder") == "active"
    finally:
        driven.node.run("systemctl stop holder")


@pytest.mark.slow
def test_mount_that_is_not_asked_for_any_more_goes_and_its_data_stays(driven: StubDriverNode) -> None:
    driven.state({"scratch": []})
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert driven.says(f"findmnt {MOUNT}; grep scratch /etc/fstab; ls /etc/udev/rules.d") == ""
    assert driven.apply(ROLE)[1] == []
    driven.state({"scratch": [SCRATCH]})
    assert driven.apply(ROLE)[0].ok
    assert driven.says(f"cat {MOUNT}/data") == "kept"
