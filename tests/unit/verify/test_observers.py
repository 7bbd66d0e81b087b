"""Parsing of nodes' answers by gpuprov's testinfra modules."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from testinfra.host import Host

from gpuprov.errors import NodeFailed
from gpuprov.verify.observers.apt import (
    JOURNAL,
    POLICY,
    SOURCES,
    STANZAS_OF_OTHERS,
    WRITTEN,
    Apt,
    parse_audit,
    parse_blacklist,
    parse_simulation,
    parse_written,
)
from gpuprov.verify.observers.dnf import ARCHITECTURES, OFFERS, OWNERS, REPOSITORIES, UNSIGNED, Dnf
from gpuprov.verify.observers.gpu import (
    Clocks,
    Modes,
    PciGpu,
    parse_clocks,
    parse_modes,
    parse_pci,
    parse_power_range,
    parse_state,
)
from gpuprov.verify.observers.nvidia_driver import (
    KernelModule,
    NvidiaDriver,
    foreign_modules,
    parse_dkms,
    parse_modinfo,
    parse_proc,
    upstream,
)
from gpuprov.verify.observers.server import MOUNTS, Server
from gpuprov.verify.shell import Shell, ShellBackend
from gpuprov.verify.suite import test_storage as checks
from tests.unit.programs import write_program
from tests.unit.verify.nodes_on_paper import PaperShell


def node(answers: dict[str, str]) -> Host:
    """Return a host that gives these outputs."""
    shell = PaperShell({command: (0, out, "") for command, out in answers.items()}, None)
    host = Host(ShellBackend("node", shell, budget_s=60))
    host.backend.set_host(host)
    return host


@pytest.mark.parametrize("end", ["\r", "\v", "\x1c", "\u2028", "\u3000"])
def test_the_name_of_a_user_s_mount_states_no_other_mount(end: str) -> None:
    forged = f"x\v/dev/sdb{end}/scratch{end}xfs{end}rw /home/eve/m fuse.x rw 0 0"
    text = f"/dev/sda1 / ext4 rw 0 0\n{forged}\n/dev/sdc / xfs rw 0 0\n"
    found = Server.get_module(node({MOUNTS: text})).mounted
    assert found == {"/": "xfs", "/home/eve/m": "fuse.x"}


def test_the_read_ahead_is_that_of_the_mount_point(tmp_path: Path) -> None:
    """Answer as findmnt does with a mount of the source `/scratch` by a user."""
    write_program(
        tmp_path / "findmnt", 'case "$*" in *"--mountpoint /scratch") echo /dev/sdb;; *) echo /scratch;; esac'
    )
    write_program(tmp_path / "blockdev", '[ "$*" = "--getra /dev/sdb" ] && echo 8192')

    def run(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(
            ["sh", "-c", command % words], env=environment, check=False, capture_output=True, text=True
        )

    checks.test_scratch_is_read_ahead(SimpleNamespace(run=run), {"/scratch": 4096})  # type: ignore[arg-type]


def test_a_repository_that_another_file_states_too_is_noted() -> None:
    answers = {SOURCES: "http://m/cuda/ \nhttp://m/toolkit/ stable\nhttp://deb/ bookworm\n", POLICY: ""}
    answers |= {WRITTEN: "# deb http://m/cuda/ /\n", STANZAS_OF_OTHERS: "Types: deb\nURIs: http://deb/\n\n"}
    found = {"http://m/cuda /", "http://m/toolkit stable", "http://deb bookworm in another file"}
    assert Apt.get_module(node(answers)).sources == found
    answers[WRITTEN] = "deb [signed-by=/k.gpg] http://m/cuda/ /\n"
    assert "http://m/cuda / in another file" in Apt.get_module(node(answers)).sources


def test_apt_uses_no_source_with_a_preference_that_it_cannot_read() -> None:
    shell = PaperShell(
        {SOURCES: (0, "http://m/cuda/ \n", ""), POLICY: (100, "", "E: Invalid record\n")}, None
    )
    host = Host(ShellBackend("node", shell, budget_s=60))
    host.backend.set_host(host)
    with pytest.raises(NodeFailed, match="Invalid record"):
        _ = Apt.get_module(host).sources


def test_sources_of_source_code_are_none_of_packages() -> None:
    assert parse_written("deb-src http://a x main\n", "Types: deb-src\nURIs: http://b\n") == {}
    assert parse_written("", "Types: deb deb-src\nURIs: http://b\n") == {"http://b": False}
    continued = (
        "Types:\n deb\nURIs:\n http://b\n http://c\nTrusted:\n yes\n\n\nURIs: http://d/\nEnabled: no\n"
    )
    assert parse_written("", continued) == {"http://b": True, "http://c": True}
    with pytest.raises(NodeFailed, match="apt has more than 10000 sources"):
        parse_written("", "".join(f"URIs: http://{number}\n\n" for number in range(10_001)))


def test_a_repository_of_dnf_that_another_file_states_too_is_noted() -> None:
    row = "Repo-id            : {}\nRepo-baseurl       : http://m/cuda/\nRepo-filename      : {}\n\n"
    own, other = "/etc/yum.repos.d/gpuprov.repo", "/etc/yum.repos.d/site.repo"
    alone = node({REPOSITORIES: row.format("cuda", own)})
    assert Dnf.get_module(alone).sources == {"http://m/cuda cuda"}
    both = node({REPOSITORIES: row.format("cuda", own) + row.format("site", other)})
    assert "http://m/cuda cuda in another file" in Dnf.get_module(both).sources


@pytest.mark.parametrize(
    ("owner", "unsigned", "found"),
    [
        ("rocky-repos", "", []),
        ("amazon-linux-repo-s3", "", []),
        ("nvidia-release", "", ["http://m/appstream"]),
        ("rocky-repos", "[appstream]", ["http://m/appstream"]),
        ("site-repos", "", ["http://m/appstream"]),
        ("file /etc/yum.repos.d/rocky.repo is not owned by any package", "", ["http://m/appstream"]),
    ],
)
def test_a_signed_repository_of_the_distribution_is_no_foreign_one(
    owner: str, unsigned: str, found: list[str]
) -> None:
    path = "/etc/yum.repos.d/rocky.repo"
    row = f"Repo-id : appstream\nRepo-baseurl : http://m/appstream/\nRepo-filename : {path}\n\n"
    answers = {REPOSITORIES: row, OWNERS: f"{path} {owner}\n", UNSIGNED: f"{unsigned}\n"}
    answers[OFFERS % "perf"] = "appstream perf\n"
    assert Dnf.get_module(node(answers)).foreign(["perf"], ["http://m/cuda"]) == found


@pytest.mark.parametrize("silent", [REPOSITORIES, OFFERS % "perf"])
def test_without_an_answer_of_dnf_repositories_are_not_known(silent: str) -> None:
    """Have no room for dnf's lock, where users can fill the disk: a foreign repository was hidden so."""
    row = "Repo-id : site\nRepo-baseurl : http://site/\nRepo-filename : /etc/yum.repos.d/site.repo\n\n"
    said = {REPOSITORIES: row, OFFERS % "perf": "site perf\n", OWNERS: "", UNSIGNED: ""}
    answers = {command: (0, out, "") for command, out in said.items()}
    answers[silent] = 1, "", "[Errno 28] No space left on device\n"
    host = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    host.backend.set_host(host)
    with pytest.raises(NodeFailed, match="No space left on device"):
        Dnf.get_module(host).foreign(["perf"], [])


NO_ROOM = "Config error: [Errno 28] No space left on device: '/var/log/dnf.log'"
TABLE = "Upgrading:\n libnccl  x86_64  2.29.7-1  cuda  1 M\n\nTransaction Summary"


@pytest.mark.parametrize(
    ("status", "said", "errors", "moved"),
    [
        (0, "Nothing to do.", "", set()),
        (1, TABLE, "Operation aborted.", {"libnccl"}),
        (1, "", NO_ROOM, None),
        (137, TABLE, "", None),
    ],
    ids=["nothing to do", "answered no", "no room", "killed"],
)
def test_an_upgrade_that_dnf_cannot_simulate_is_not_one_that_moves_nothing(
    status: int,
    said: str,
    errors: str,
    moved: set[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Have no room for dnf's log, where users can fill the disk: its status is that of the answer no."""
    write_program(tmp_path / "dnf", f"cat <<'END'\n{said}\nEND\necho \"{errors}\" >&2; exit {status}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with closing(Shell(["/bin/sh"], timeout_s=20)) as shell:
        host = Host(ShellBackend("node", shell, budget_s=60))
        host.backend.set_host(host)
        with pytest.raises(NodeFailed, match="ended with status") if moved is None else nullcontext():
            assert Dnf.get_module(host).moved_by_upgrade == moved


def test_a_package_of_rpm_in_two_versions_is_named_and_kernels_and_keys_are_not() -> None:
    rows = "libnccl x86_64\nglibc i686\nglibc x86_64\nlibnccl x86_64\n" + 2 * "kernel-headers x86_64\n"
    several = 2 * "kernel-core x86_64\n" + 2 * "gpg-pubkey (none)\n"
    assert Dnf.get_module(node({ARCHITECTURES: rows + several})).half_done == [
        f"{name} in two versions" for name in ("kernel-headers", "libnccl")
    ]


def test_a_journal_of_dpkg_is_named_beside_its_packages() -> None:
    audit = "dpkg --audit || test $? -eq 1"
    assert Apt.get_module(node({audit: " libcuda1  x\n", JOURNAL: "0001\n"})).half_done == [
        "libcuda1",
        "dpkg was interrupted",
    ]
    assert Apt.get_module(node({audit: "", JOURNAL: ""})).half_done == []


def test_a_module_whose_install_line_runs_nothing_is_not_loaded() -> None:
    shown = (
        "blacklist nova_core\ninstall nouveau /bin/false\ninstall nvidia /sbin/modprobe -i nvidia-current\n"
    )
    driver = NvidiaDriver.get_module(node({"modprobe --showconfig": shown}))
    assert driver.blacklisted == {"nova_core", "nouveau"}


def test_pci_tells_gpus_from_the_rest() -> None:
    devices = {
        "0000:00:03.0": ("0x020000", "0x1af4", "0x1041"),  # a NIC
        "0000:07:00.0": ("0x068000", "0x10de", "0x22a3"),  # an NVSwitch
        "0000:01:00.1": ("0x040300", "0x10de", "0x10f9"),  # the sound function of a graphics card
        "0000:00:07.0": ("0x030200", "0x10de", "0x2335"),
        "0000:00:06.0": ("0x030000", "0x10de", "0x2204"),
    }
    text = "".join(
        f"/sys/bus/pci/devices/{address}/{name}:{value}\n"
        for position, name in enumerate(("class", "vendor", "device"))
        for address, value in ((address, values[position]) for address, values in devices.items())
    )
    assert parse_pci(text) == [PciGpu("0000:00:06.0", "10de:2204"), PciGpu("0000:00:07.0", "10de:2335")]


def test_state_of_an_h200() -> None:
    (gpu,) = parse_state("0, 00000000:00:06.0, NVIDIA H200, 580.159.04, Enabled\n")
    assert gpu == (0, "0000:00:06.0", "NVIDIA H200", "580.159.04", True)


@pytest.mark.parametrize(
    ("line", "clocks"),
    [
        ("1980, 3201, 345", {"graphics": 1980, "memory": 3201}),
        ("[N/A], [N/A], 1500", {"graphics": 1500}),
        ("[Not Supported], [Not Supported], 1500", {"graphics": 1500}),
        ("[Requested functionality has been deprecated], [N/A], 1500", {"graphics": 1500}),
        ("[N/A], [N/A], [N/A]", {"graphics": None}),
    ],
)
def test_clocks_fall_back_to_what_the_gpu_shows(line: str, clocks: Clocks) -> None:
    assert parse_clocks(f"0, {line}\n") == {"GPU 0": clocks}


@pytest.mark.parametrize(
    ("line", "module"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)",
            KernelModule("580.159.04", "open"),
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Mon Aug 12 20:39:02 UTC 2024",
            KernelModule("535.309.01", "proprietary"),
        ),
        ("GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)", None),
        ("", None),
    ],
)
def test_loaded_module(line: str, module: KernelModule | None) -> None:
    """Check version and flavour that are parsed from the driver's line in /proc."""
    assert parse_proc(line) == module


def test_modinfo_tells_version_and_flavour() -> None:
    assert parse_modinfo(
        "filename:       /x/nvidia.ko\nversion:        535.309.01\nlicense:        NVIDIA\n"
    ) == (
        "535.309.01",
        "proprietary",
    )
    assert parse_modinfo("version:        580.159.04\nlicense:        Dual MIT/GPL\n") == (
        "580.159.04",
        "open",
    )
    assert parse_modinfo("") is None


def test_dkms_of_both_manners_of_speaking() -> None:
    text = (
        "nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed\n"
        "nvidia/580.95.05, 6.1.0-56-amd64, x86_64: built\n"
        "zfs/2.1.11, 6.1.0-56-amd64, x86_64: installed\n"
    )
    assert parse_dkms(text) == {"535.309.01": "installed", "580.95.05": "built"}


@pytest.mark.parametrize(
    ("version", "stripped"),
    [
        ("535.309.01-1~deb12u1", "535.309.01"),
        ("1:580.95.05-0ubuntu1", "580.95.05"),
        ("580.95.05", "580.95.05"),
    ],
)
def test_upstream_version(version: str, stripped: str) -> None:
    """Check the upstream part of a package's version."""
    assert upstream(version) == stripped


def test_initramfs_with_the_blacklist_may_hold_the_module() -> None:
    listing = "usr/lib/modules/6.1/kernel/drivers/gpu/drm/nouveau/nouveau.ko\nusr/lib/x/nova-core.ko.xz\n"
    assert foreign_modules(listing, ["/etc/modprobe.d/gpuprov.conf"]) == ["nouveau", "nova_core"]
    assert foreign_modules(listing + "etc/modprobe.d/gpuprov.conf\n", ["/etc/modprobe.d/gpuprov.conf"]) == []
    assert foreign_modules("", []) == []


def test_simulated_upgrade_names_what_moves() -> None:
    text = (
        "Inst libcuda1 [535.261.03-1] (535.309.01-1 Debian:12 [amd64])\n"
        "Conf libcuda1 (535.309.01-1 Debian:12 [amd64])\n"
        "Remv nvidia-driver:amd64 [535.261.03-1]\n"
    )
    assert parse_simulation(text) == {"libcuda1", "nvidia-driver"}


def test_effective_blacklist() -> None:
    """Check the patterns of packages that unattended upgrades leave out."""
    text = (
        'Unattended-Upgrade "";\n'
        'Unattended-Upgrade::Package-Blacklist "";\n'
        'Unattended-Upgrade::Package-Blacklist:: "^nvidia-";\n'
        'Unattended-Upgrade::Package-Blacklist:: "^libcuda1$";\n'
    )
    assert parse_blacklist(text) == {"^nvidia-", "^libcuda1$"}


def test_audit_names_packages() -> None:
    """Check the packages that are parsed from `dpkg --audit`."""
    text = (
        "The following packages are only half configured, probably due to problems\n"
        "configuring them the first time.  The configuration should be retried:\n"
        " nvidia-kernel-dkms   NVIDIA binary kernel module DKMS source\n"
        " libc6:i386           GNU C Library: Shared libraries\n\n"
    )
    assert parse_audit(text) == ["libc6", "nvidia-kernel-dkms"]


def test_modes_that_a_gpu_does_not_have_are_none() -> None:
    text = (
        "0, 300.00, Default, Enabled, Disabled, [N/A], [N/A]\n"
        "1, [N/A], Prohibited, [N/A], [N/A], Disabled, Enabled\n"
    )
    assert parse_modes(text) == {
        "GPU 0": Modes(300.0, "default", True, False, None, None),
        "GPU 1": Modes(None, "prohibited", None, None, False, True),
    }


def test_ranges_of_the_power_limit_are_numbers_of_both_ends() -> None:
    text = "0, 200.00, 700.00\n1, [N/A], [N/A]\n2, 100, 400\n3, 1e9, 2\n"
    assert parse_power_range(text) == {"GPU 0": (200.0, 700.0), "GPU 2": (100.0, 400.0)}
