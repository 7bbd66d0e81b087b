"""Other parsers: each with the tool's real output, and without an exception for any text."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprov.errors import NodeFailed
from gpuprov.probe.parse import apt, hardware, limits, modules, packages, pci, sshd, system, units, values
from tests import H200


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1980 MHz", 1980), ("700.00 W", 700), ("-2 C", -2), ("N/A", None), ("ERR!", None), ("9" * 400, None)],
)
def test_numbers(text: str, expected: int | None) -> None:
    """Check the integer that is parsed from a text, None if there is none."""
    assert values.integer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("143771 MiB", 143771), ("511 Mb", 511), ("2 GiB", 2048), ("1048576 B", 1), ("N/A", None)],
)
def test_memory(text: str, expected: int | None) -> None:
    """Check the MiB that are parsed from a text, None if there are none."""
    assert values.mebibytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Enabled", True),
        ("Off", False),
        ("Enabled [Deprecated; will be removed in CUDA 14.0]", True),
        ("Requested functionality has been deprecated", None),
        ("ERR!", None),
    ],
)
def test_switches(text: str, expected: bool | None) -> None:
    """Check the state that is parsed from texts such as `Enabled`; None for others."""
    assert values.switch(text) is expected


def test_os_release() -> None:
    """Check id, version and relatives that are parsed from os-release."""
    rocky = 'NAME="Rocky Linux"\nVERSION_ID="8.10"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
    found = system.parse_os_release(rocky)
    assert (found.id, found.version, found.major, found.like) == (
        "rocky",
        "8.10",
        "8",
        ("rhel", "centos", "fedora"),
    )
    assert system.parse_os_release("").id == ""


@pytest.mark.parametrize(
    ("default", "environment", "expected"),
    [
        (None, {}, "6.1.0-56-amd64"),
        ("0", {"saved_entry": "gnulinux-6.1.0-9-amd64"}, "6.1.0-56-amd64"),
        ("saved", {"saved_entry": "gnulinux-6.1.0-9-amd64-advanced-1234"}, "6.1.0-9-amd64"),
        ("Advanced options for Debian>Debian, with Linux 6.1.0-9-amd64", {}, "6.1.0-9-amd64"),
        ("0", {"next_entry": "gnulinux-6.1.0-9-amd64"}, "6.1.0-9-amd64"),
        ("1>2", {}, None),
        ("saved", {"saved_entry": "0123abcd-6.1.0-9-amd64"}, "6.1.0-9-amd64"),
    ],
)
def test_next_boot(default: str | None, environment: dict[str, str], expected: str | None) -> None:
    """Check the kernel that GRUB's default and environment choose for the next boot."""
    following, reason = system.next_boot(("6.1.0-9-amd64", "6.1.0-56-amd64"), default, environment)
    assert following == expected
    assert reason


def test_kernels_are_ordered_by_number() -> None:
    raw = {
        "modules": ["6.1.0-56-amd64", "6.1.0-9-amd64"],
        "boot": ["5.14.0-503.el9.x86_64", "5.14.0-70.el9.x86_64"],
        "headers": [],
        "grub_default": [["/etc/default/grub", "0"], ["/etc/default/grub.d/site.cfg", "saved"]],
        "grub_environment": "# GRUB Environment Block\nsaved_entry=abc-5.14.0-70.el9.x86_64\n####\n",
    }
    kernels = system.parse_kernels(raw, "6.1.0-9-amd64")
    assert kernels.installed == ("6.1.0-9-amd64", "6.1.0-56-amd64")
    assert kernels.bootable[-1] == "5.14.0-503.el9.x86_64"
    assert kernels.next_boot == "5.14.0-70.el9.x86_64"
    assert system.next_boot((), None, {})[0] is None


DPKG = """\
nvidia-driver\tamd64\t535.309.01-1\tnvidia-graphics-drivers\thold ok installed
libcuda1\tamd64\t535.309.01-1\tnvidia-graphics-drivers\tinstall ok installed
libcuda1\ti386\t535.309.01-1\tnvidia-graphics-drivers\tinstall ok installed
nvidia-kernel-dkms\tamd64\t535.309.01-1\tnvidia-graphics-drivers\tinstall ok half-configured
libcudnn8\tamd64\t8.9\tlibcudnn8\tdeinstall ok config-files
"""


def test_dpkg() -> None:
    """Check versions and states that are parsed from dpkg's list."""
    found = packages.parse_dpkg(DPKG)
    assert found.version("nvidia-driver") == "535.309.01-1"
    assert found.version("libcuda1:i386") == "535.309.01-1"
    assert found.version("libcudnn8") is None, "its configuration is left, the package is not installed"
    assert found.version("absent") is None
    assert found.held == {"nvidia-driver"}
    assert [package.name for package in found.broken] == ["nvidia-kernel-dkms"]
    assert (found.version("nvidia-kernel-dkms"), found.complete("nvidia-kernel-dkms")) == (
        "535.309.01-1",
        None,
    )


def test_rpm_and_its_locks() -> None:
    text = (
        "nvidia-driver\tx86_64\t3:580.82.07-1.el9\tnvidia-driver-580.82.07-1.el9.src.rpm\n"
        "kernel\tx86_64\t0:5.14.0-70.el9\tkernel.src.rpm\n"
        "kernel\tx86_64\t0:5.14.0-503.el9\tkernel.src.rpm\n"
        "dkms\tnoarch\t0:3.2.1-1.el9\tdkms.src.rpm\n"
    )
    locks = packages.parse_versionlock(
        "# kept\nnvidia-driver-3:580.82.07-1.el9.*\n!dkms-*\nkernel-0:5.14.0-70*\n"
    )
    found = packages.parse_rpm(text, locks)
    assert found.version("nvidia-driver") == "3:580.82.07-1.el9"
    assert found.version("dkms") == "3.2.1-1.el9"
    assert found.held == {"nvidia-driver", "kernel"}
    assert found.version("kernel-5.14.0-503.el9") == "5.14.0-503.el9"
    assert found.broken == ()
    other = text + "dkms\ti686\t0:3.2.1-1.el9\tdkms.src.rpm\n"
    assert packages.parse_rpm(other, locks).broken == ()
    keys = "".join(f"gpg-pubkey\t(none)\t(none):{each}-1\t(none)\n" for each in ("6275f250", "8ffd4af3"))
    assert packages.parse_rpm(text + keys, locks).broken == ()
    for name in ("dkms", "kernel-headers", "kernel-tools"):
        twice = "".join(f"{name}\tnoarch\t0:{each}-1.el9\tsource.rpm\n" for each in ("3.2.1", "3.2.2"))
        assert [(each.name, each.state) for each in packages.parse_rpm(twice, locks).broken] == [
            (name, "in two versions")
        ]


@pytest.mark.parametrize(
    ("line", "version", "is_open"),
    [
        ((H200 / "proc-driver-version.txt").read_text(), "580.159.04", True),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Tue Jan  1 00:00:00 UTC 2026\n",
            "535.309.01",
            False,
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  340.108  Wed Dec 11 11:06:58 PST 2019\n",
            "340.108",
            False,
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  575.57.08  Release Build  (dvs)\n",
            "575.57.08",
            True,
        ),
    ],
)
def test_loaded_driver(line: str, version: str, is_open: bool) -> None:
    """Check version and flavour that are parsed from the driver's line in /proc."""
    assert modules.parse_driver_version(line) == modules.LoadedDriver(version, is_open)


def test_no_loaded_driver() -> None:
    """Check that an empty text is no loaded driver."""
    assert modules.parse_driver_version("") is None


def test_proc_modules() -> None:
    """Check modules and their numbers of users, None if not stated."""
    text = "nvidia_uvm 1830912 0 - Live 0x0 (OE)\nnvidia 14299136 - - Live 0x0 (O)\nshort\n"
    assert modules.parse_proc_modules(text) == {"nvidia_uvm": 0, "nvidia": None}


def test_modinfo_of_several_modules() -> None:
    text = (
        "filename:       /lib/modules/6.1.0-56-amd64/updates/dkms/nvidia-current.ko.xz\n"
        "version:        535.309.01\nlicense:        NVIDIA\nvermagic:       6.1.0-56-amd64 SMP\n"
        "filename:       /lib/modules/6.1.0-56-amd64/updates/dkms/nvidia-peermem.ko\n"
        "license:        Dual MIT/GPL\nsigner:         DKMS module signing key\n"
    )
    found = modules.parse_disk_modules({"6.1.0-56-amd64": text, "6.1.0-9-amd64": ""})
    assert found["6.1.0-9-amd64"] == {}
    nvidia, peermem = found["6.1.0-56-amd64"].values()
    assert (nvidia.version, nvidia.open, nvidia.signer) == ("535.309.01", False, None)
    assert list(found["6.1.0-56-amd64"]) == ["nvidia_current", "nvidia_peermem"]
    assert (peermem.version, peermem.open, peermem.signer) == (None, True, "DKMS module signing key")


def test_modprobe() -> None:
    """Check what is blacklisted, switched off and set in lines of modprobe.d."""
    lines = [
        ("/etc/modprobe.d/a.conf:1", "blacklist nouveau"),
        ("/etc/modprobe.d/a.conf:2", "install nova-core /bin/false"),
        (
            "/etc/modprobe.d/b.conf:1",
            "options nvidia NVreg_RestrictProfilingToAdminUsers=0 NVreg_EnableMSI=1",
        ),
        ("/etc/modprobe.d/b.conf:2", "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS"),
        ("/etc/modprobe.d/b.conf:3", "blacklist"),
    ]
    found = modules.parse_modprobe(lines, "quiet module_blacklist=nvidiafb,nouveau modprobe.blacklist=i915")
    assert found.blacklisted == {
        "nouveau": "/etc/modprobe.d/a.conf:1",
        "nvidiafb": "kernel command line",
        "i915": "kernel command line",
    }
    assert found.disabled == {"nova_core": "/etc/modprobe.d/a.conf:2"}
    assert found.options["nvidia"]["NVreg_RestrictProfilingToAdminUsers"] == "0"


SHOWN = """\
Result=success
ExecStart={ path=/usr/bin/nv ; argv[]=/usr/bin/nv --user nvpd ; ignore_errors=no ; start_time=[n/a] }
Id=nvidia-persistenced.service
Names=nvidia-persistenced.service persistenced.service
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/lib/systemd/system/nvidia-persistenced.service
DropInPaths=/etc/systemd/system/nvidia-persistenced.service.d/a.conf /etc/b.conf
UnitFileState=enabled

Id=absent.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
"""


def test_units() -> None:
    """Check the states of units that are parsed from `systemctl show`, under each of their names."""
    found = units.parse_units(SHOWN)
    unit = found["nvidia-persistenced.service"]
    assert unit is found["persistenced.service"]
    assert (unit.exists, unit.active, unit.enabled) == (True, True, True)
    assert unit.exec_start == ("/usr/bin/nv --user nvpd",)
    assert len(unit.drop_ins) == 2
    absent = found["absent.service"]
    assert (absent.exists, absent.active, absent.enabled) == (False, False, False)


def test_pci_of_the_recording() -> None:
    rows = [
        line.split() for line in (H200 / "lspci.txt").read_text().splitlines() if line.startswith("0000:")
    ]
    raw = [[row[0], row[2], row[3], row[1], row[2], row[4], "-1", ""] for row in rows]
    gpus = [device for device in pci.parse_pci(raw) if device.is_nvidia_gpu]
    assert [gpu.id for gpu in gpus] == ["10de:2335"] * 4
    assert (gpus[0].address, gpus[0].subsystem, gpus[0].numa_node) == ("0000:00:06.0", "10de:18bf", None)
    bridge = pci.parse_pci(
        [["0000:07:00.0", "0x10DE", "0x22a3", "0x068000", "0x10de", "0x0000", "1", "nvidia-nvswitch"]]
    )
    assert (bridge[0].is_nvswitch, bridge[0].is_nvidia_gpu, bridge[0].numa_node) == (True, False, 1)


def test_sshd() -> None:
    """Check the options that are parsed from `sshd -T`, with all values of repeated ones."""
    found = sshd.parse_sshd(
        "port 22\nhostkey /etc/a\nhostkey /etc/b\nPasswordAuthentication no\n\nbanner none\n"
    )
    assert found["hostkey"] == ("/etc/a", "/etc/b")
    assert found["passwordauthentication"] == ("no",)


def test_apt_sources_in_three_forms() -> None:
    one_line = "deb [arch=amd64 signed-by=/k/cuda.gpg] https://m.example/cuda/ /\n"
    one_line += "deb-src https://m.example/d x main\n"
    (flat,) = apt.parse_sources("/etc/apt/sources.list.d/cuda.list", one_line)
    assert (flat.uris, flat.suites, flat.components) == (("https://m.example/cuda/",), ("/",), ())
    assert flat.signed_by == "/k/cuda.gpg"
    deb822 = "Types: deb deb-src\nURIs: https://m.example/d\nSuites: a a-updates\n"
    deb822 += "Components: main\n contrib\nEnabled: no\n"
    (new,) = apt.parse_sources("/etc/apt/sources.list.d/debian.sources", deb822)
    assert (new.suites, new.components, new.enabled) == (
        ("a", "a-updates"),
        ("main", "contrib"),
        False,
    )
    repo = "[cuda-rhel9]\nname=cuda\nbaseurl=https://m.example/r\ngpgcheck=1\ngpgkey=file:///k\n"
    (dnf,) = apt.parse_sources("/etc/yum.repos.d/cuda.repo", repo)
    assert (dnf.uris, dnf.enabled, dnf.signed_by) == (
        ("https://m.example/r",),
        True,
        "file:///k",
    )


def test_preferences_and_upgrade_settings() -> None:
    (pin,) = apt.parse_preferences(
        "/p",
        "Package: nvidia-* libnvidia-*\nPin: version 5.*\nPin-Priority: 1001\n\nPackage: x\n",
    )
    assert (pin.packages, pin.priority) == (("nvidia-*", "libnvidia-*"), 1001)
    raw = {
        "files": {},
        "keyrings": {"/k.gpg": ["AB12"]},
        "preferences": {},
        "config": 'APT::Periodic::Unattended-Upgrade "1";\n'
        'Unattended-Upgrade::Package-Blacklist "";\n'
        'Unattended-Upgrade::Package-Blacklist:: "nvidia-.*";\n'
        'Unattended-Upgrade::Package-Blacklist:: "libcuda1$";\n'
        'Unattended-Upgrade::Automatic-Reboot "true";\n',
    }
    found = apt.parse_apt(raw)
    assert found.unattended_blacklist == ("nvidia-.*", "libcuda1$")
    assert (found.unattended_enabled, found.automatic_reboot) == (True, True)
    assert apt.parse_apt({**raw, "config": ""}).unattended_enabled is False


def test_disks_of_old_and_new_lsblk() -> None:
    old = {"name": "sda", "type": "disk", "size": "1000", "rota": "1", "mountpoint": None, "model": "X   "}
    new = {
        "name": "nvme0n1",
        "type": "disk",
        "size": 2000,
        "rota": False,
        "mountpoints": [None, "/data"],
        "tran": "nvme",
    }
    tree = {**new, "children": [{"name": "nvme0n1p1", "type": "part", "size": 10, "rota": False}]}
    sda, nvme, part = hardware.parse_disks([old, tree])
    assert (sda.size, sda.rotational, sda.model, sda.mountpoints) == (1000, True, "X", ())
    assert (nvme.mountpoints, nvme.rotational, part.parent) == (("/data",), False, "nvme0n1")


def test_mounts_memory_and_limits() -> None:
    mounts = hardware.parse_mounts("/dev/sda1 / ext4 rw,noatime 0 0\nnas:/x /my\\040data nfs4 ro 0 0\nhalf\n")
    assert mounts["/my data"].options == ("ro",)
    memory = hardware.parse_memory("MemTotal:       2048 kB\nSwapTotal: 0 kB\nHugePages_Total:       4\n")
    assert (memory.total_mib, memory.available_mib, memory.hugepages) == (2, None, 4)
    rows = [["/l", "* soft memlock unlimited # all"], ["/l", "broken"]]
    assert list(limits.parse_pam(rows)) == [limits.PamLimit("/l", "*", "soft", "memlock", "unlimited")]


def test_nics_and_hcas() -> None:
    """Check network cards and RDMA devices that are parsed from the probe's rows."""
    raw = {
        "kind": "physical",
        "state": "up",
        "mtu": "9000",
        "type": "32",
        "numa": "-1",
        "addresses": ["10.0.0.5/24"],
    }
    found = hardware.parse_nics(
        [{**raw, "name": "ib0", "speed": "400000"}, {**raw, "name": "eth0", "speed": "-1", "type": "1"}]
    )
    assert (found["ib0"].speed, found["ib0"].infiniband, found["ib0"].numa_node) == (400000, True, None)
    assert (found["eth0"].speed, found["eth0"].infiniband) == (None, False)
    (port,) = hardware.parse_hcas(
        [{"name": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}]
    )
    assert (port.state, port.port) == ("ACTIVE", 1)


TEXT_PARSERS = {
    "os_release": system.parse_os_release,
    "dpkg": packages.parse_dpkg,
    "rpm": packages.parse_rpm,
    "versionlock": packages.parse_versionlock,
    "proc_modules": modules.parse_proc_modules,
    "modinfo": lambda text: modules.parse_disk_modules({"6.1": text}),
    "driver_version": modules.parse_driver_version,
    "modprobe": lambda text: modules.parse_modprobe([("place", line) for line in text.splitlines()], text),
    "units": units.parse_units,
    "properties": units.parse_properties,
    "sshd": sshd.parse_sshd,
    "list": lambda text: apt.parse_sources("a.list", text),
    "sources": lambda text: apt.parse_sources("a.sources", text),
    "repo": lambda text: apt.parse_sources("a.repo", text),
    "preferences": lambda text: apt.parse_preferences("p", text),
    "apt_config": apt.parse_apt_config,
    "mounts": hardware.parse_mounts,
    "memory": hardware.parse_memory,
    "pam": lambda text: list(limits.parse_pam([["p", text]])),
    "values": lambda text: (values.integer(text), values.mebibytes(text), values.switch(text)),
}
WORDS = (
    "\t",
    "\n",
    " ",
    ":",
    "=",
    "[",
    "]",
    "deb",
    "Types: deb\n",
    "URIs: ",
    "Package: ",
    "Pin-Priority: ",
    "Id=a\n",
    "9" * 5000,
    "hold ok installed",
)


@pytest.mark.parametrize("name", TEXT_PARSERS)
@settings(max_examples=50)
@given(text=st.one_of(st.text(max_size=200), st.lists(st.sampled_from(WORDS), max_size=12).map("".join)))
def test_no_text_raises(name: str, text: str) -> None:
    """Check that no text makes a parser raise another error than NodeFailed."""
    with suppress(NodeFailed):  # a name that no unit or package can have
        TEXT_PARSERS[name](text)
