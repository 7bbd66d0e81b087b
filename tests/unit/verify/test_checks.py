"""Checks of the suite: each passes on a recorded node and fails on a node with its fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuprov.model.lock import Setting
from gpuprov.roles import expectations
from gpuprov.verify.observers.gpu import POWER_RANGE
from gpuprov.verify.verdict import CheckResult, NodeVerdict
from gpuprov.verify.wanted import remedy, wanted
from tests.unit.verify.nodes_on_paper import (
    KERNEL,
    OFFERED,
    VERSION,
    Answers,
    Change,
    judge,
    locked_group,
    paper_node,
)


@dataclass(frozen=True)
class Fault:
    """A change of the recording, and exactly those checks that must fail with it."""

    change: Change
    checks: set[str]


NAMES = ("apt-cache", "cd /var/lib/dpkg/info")
"""Beginnings of commands with the names of all packages."""


def asks(name: str, command: str) -> bool:
    """Return whether a command contains the text; names of packages in its arguments do not count."""
    return command in name and (command.startswith(NAMES) or not name.startswith(NAMES))


def replacing(command: str, old: str, new: str) -> Change:
    """Return a change of text in the answer of every command that contains `command`."""

    def change(answers: Answers) -> None:
        """Replace the text; it must be there."""
        found = {name: answer for name, answer in answers.items() if asks(name, command) and old in answer[1]}
        assert found, f"the recording has no {old!r} in an answer of {command!r}"
        for name, (code, out, err) in found.items():
            answers[name] = (code, out.replace(old, new), err)

    return change


def answering(command: str, code: int, out: str = "", err: str = "") -> Change:
    """Return a change of the whole answer of every command that contains `command`."""

    def change(answers: Answers) -> None:
        """Replace the answers; there must be one."""
        found = [name for name in answers if asks(name, command)]
        assert found, f"the recording has no command {command!r}"
        answers.update(dict.fromkeys(found, (code, out, err)))

    return change


def both(*changes: Change) -> Change:
    """Return a change that applies several changes."""

    def change(answers: Answers) -> None:
        for each in changes:
            each(answers)

    return change


def offering(methods: str) -> Change:
    """Return a change of the methods that sshd offers from outside."""
    return lambda answers: answers.update({OFFERED: (0, methods, "")})


TEXT_ELSEWHERE = "== \nport 22", "== \nauthorizedkeyscommand /opt/keys\nport 22"
RUN = "/run/systemd/system/gpuprov-gpu-clocks.service"
SITE = "# /etc/systemd/system/gpuprov-gpu-clocks.service.d/site.conf"


def per_gpu(row: str, count: int = 4) -> str:
    """Return the same row of a query for each GPU."""
    return "".join(f"{number}, {row}\n" for number in range(count))


HALF_DONE = "The following packages are …:\n nvidia-kernel-dkms  NVIDIA binary kernel module\n"
NOT_REBUILT = answering("-newer", 1)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
SMI_GONE = {"driver.answers", "driver.four_versions", "gpu.visible", "gpu.persistence", "gpu.clocks"}
OLD = "535.261.03"

PREFERRED = f"""\
libcuda1:
  Installed: {VERSION}-0+deb12u1
  Candidate: {OLD}-1
  Version table:
     {OLD}-1 1001
       1001 http://deb.debian.org/debian bookworm/non-free amd64 Packages
 *** {VERSION}-0+deb12u1 500
        500 http://deb.debian.org/debian-security bookworm-security/non-free amd64 Packages
        100 /var/lib/dpkg/status
"""

FAULTS: dict[str, Fault] = {
    "another-os": Fault(replacing("os-release", '"12"', '"13"'), {"system.os"}),
    "another-arch": Fault(answering("uname -m", 0, "aarch64\n"), {"system.arch"}),
    "half-configured": Fault(answering("dpkg --audit", 0, HALF_DONE), {"dpkg.consistent"}),
    "library-package-of-another-version": Fault(
        both(
            replacing("db:Status-Want", f"libnvidia-ml1 {VERSION}", f"libnvidia-ml1 {OLD}"),
            replacing("realpath", f"libnvidia-ml.so.{VERSION}", f"libnvidia-ml.so.{OLD}"),
            answering("nvidia-smi --", 18, MISMATCH),
        ),
        {"driver.packages", "driver.library", *SMI_GONE},
    ),
    "library-gone": Fault(replacing("ldconfig -p", "libnvidia-ml", "libother"), {"driver.library"}),
    "package-gone": Fault(
        replacing("db:Status-Want", "installed libcuda1", "config-files libcuda1"), {"driver.packages"}
    ),
    "headers-gone": Fault(answering("/build/Makefile", 2), {"kernel.headers"}),
    "dkms-not-installed": Fault(replacing("dkms status", ": installed", ": built"), {"driver.dkms"}),
    "module-gone": Fault(
        both(answering("--show-depends", 1), answering("modinfo", 1)),
        {"driver.module_on_disk", "driver.module_flavour", "driver.four_versions"},
    ),
    "old-module": Fault(
        replacing("modinfo", VERSION, OLD), {"driver.module_on_disk", "driver.four_versions"}
    ),
    "never-loaded": Fault(
        replacing("-b --show-depends nvidia", "modprobe -i nvidia-current $CMDLINE_OPTS", "/bin/false"),
        {"driver.loading"},
    ),
    "initramfs-of-an-older-driver": Fault(
        both(
            answering("grep -qsE", 0),
            answering("-nt $image", 0, f"/boot/initrd.img-{KERNEL}\n"),
            answering(
                "lsinitramfs", 0, "usr/lib/modules/nvidia-current.ko\netc/modprobe.d/gpuprov-nouveau.conf\n"
            ),
        ),
        {"driver.initramfs"},
    ),
    "not-built-for-a-new-kernel": Fault(
        replacing("AUTOINSTALL", "AUTOINSTALL yes", "AUTOINSTALL "), {"driver.next_kernel"}
    ),
    "open-module": Fault(replacing("modinfo", "NVIDIA\n", "Dual MIT/GPL\n"), {"driver.module_flavour"}),
    "not-loaded": Fault(
        both(
            answering("/proc/driver/nvidia/version", 1),
            answering("nvidia-smi --", 9, "NVIDIA-SMI has failed\n"),
        ),
        {"driver.loaded", *SMI_GONE},
    ),
    "old-module-loaded": Fault(
        both(replacing("/proc/driver", VERSION, OLD), answering("nvidia-smi --", 18, MISMATCH)),
        {"driver.loaded", *SMI_GONE},
    ),
    "smi-not-there": Fault(answering("nvidia-smi --", 127, "", "sh: 1: nvidia-smi: not found\n"), SMI_GONE),
    "smi-of-another-version": Fault(
        replacing("--query-gpu=index,pci", VERSION, OLD), {"driver.four_versions"}
    ),
    "package-version-apart": Fault(replacing("${Status} ${Version}", VERSION, OLD), {"driver.four_versions"}),
    "nouveau-loaded": Fault(answering("/sys/module/nouveau", 0), {"nouveau.loaded"}),
    "nova-core-loaded": Fault(answering("/sys/module/nova_core", 0), {"nouveau.loaded"}),
    "blacklist-deleted": Fault(
        both(replacing("--showconfig", "blacklist nova_core\n", ""), answering("grep -lsE", 1)),
        {"nouveau.blacklist"},
    ),
    "initramfs-not-rebuilt": Fault(
        both(NOT_REBUILT, answering("lsinitramfs", 0, "usr/lib/nouveau.ko\netc/modprobe.d/other.conf\n")),
        {"nouveau.initramfs"},
    ),
    "initramfs-unreadable": Fault(
        both(NOT_REBUILT, answering("lsinitramfs", 1, "", "cpio: premature end\n")), {"nouveau.initramfs"}
    ),
    "empty-passwords": Fault(
        replacing("sshd -T", "permitemptypasswords no", "permitemptypasswords yes"), {"ssh.logins"}
    ),
    "keys-of-another-command-for-one-address": Fault(
        replacing("sshd -T", TEXT_ELSEWHERE[0], TEXT_ELSEWHERE[1]), {"ssh.logins"}
    ),
    "another-program-listens": Fault(
        replacing("readlink /proc", "/usr/sbin/sshd\n/usr", "/opt/sshd\n/usr"),
        {"ssh.logins", "ssh.loaded", "ssh.offered"},
    ),
    "sshd-with-unknown-arguments": Fault(
        replacing("ps -ww", "sshd -D", "sshd -D -Z"), {"ssh.logins", "ssh.loaded", "ssh.offered"}
    ),
    "sshd-has-not-read-its-file": Fault(
        replacing("date +%s", " /etc/ssh/sshd_config\n", " /x\n9999999999.5 /etc/ssh/sshd_config\n"),
        {"ssh.loaded"},
    ),
    "pam-permits": Fault(replacing("/etc/pam.d", "pam_unix.so nullok", "pam_permit.so"), {"ssh.pam"}),
    "let-in-without-credentials": Fault(offering("none"), {"ssh.offered"}),
    "another-gpu": Fault(replacing("/sys/bus/pci", "0x20b2", "0x20b0"), {"gpu.model"}),
    "gpu-off-the-bus": Fault(
        both(
            replacing("/sys/bus/pci", "0000:c2:00.0/vendor:0x10de", "0000:c2:00.0/vendor:0x1af4"),
            replacing(
                "--query-gpu=index,pci",
                f"3, 00000000:C2:00.0, NVIDIA A100-SXM4-80GB, {VERSION}, Enabled\n",
                "",
            ),
            answering("--query-gpu=index,clocks", 0, per_gpu("1410, 1593, 210", 3)),
        ),
        {"gpu.count", "gpu.visible", "gpu.persistence", "gpu.clocks"},
    ),
    "gpu-on-the-bus-alone": Fault(
        replacing(
            "--query-gpu=index,pci", f"3, 00000000:C2:00.0, NVIDIA A100-SXM4-80GB, {VERSION}, Enabled\n", ""
        ),
        {"gpu.visible", "gpu.persistence"},
    ),
    "persistence-off": Fault(replacing("--query-gpu=index,pci", "Enabled", "Disabled"), {"gpu.persistence"}),
    "persistence-off-on-one": Fault(
        replacing(
            "--query-gpu=index,pci",
            f"2, 00000000:81:00.0, NVIDIA A100-SXM4-80GB, {VERSION}, Enabled",
            f"2, 00000000:81:00.0, NVIDIA A100-SXM4-80GB, {VERSION}, Disabled",
        ),
        {"gpu.persistence"},
    ),
    "library-without-a-package": Fault(
        answering("ldconfig -p | sed", 0, "/usr/local/lib/libcuda.so.550.1\n"), {"driver.unpackaged"}
    ),
    "library-loaded-first": Fault(answering("ld.so.preload", 0, "/opt/libsite.so\n"), {"driver.unpackaged"}),
    "runfile": Fault(answering("ldconfig -p | sed", 0, "/usr/bin/nvidia-uninstall\n"), {"driver.unpackaged"}),
    "source-of-nvidia": Fault(
        answering("cat /etc/apt/sources.list ", 0, "deb https://developer.download.nvidia.com/x /\n"),
        {"repositories.foreign"},
    ),
    "source-with-a-package": Fault(
        answering("apt-cache madison", 0, "libcuda1 | 999 | file:/srv/extra ./ Packages\n"),
        {"repositories.foreign"},
    ),
    "archive-without-a-signature": Fault(
        answering(
            "cat /etc/apt/sources.list ",
            0,
            "deb [trusted=yes] http://deb.debian.org/debian-security x main\n",
        ),
        {"repositories.foreign"},
    ),
    "clocks-by-another-command": Fault(
        answering("systemctl cat gpuprov-gpu-clocks", 0, f"{SITE}\n[Service]\nExecStart=/bin/true\n"),
        {"gpu.clocks_unit"},
    ),
    "holds-ignored": Fault(
        replacing("apt-config dump", 'Dir "/";', 'Dir "/";\nAPT::Ignore-Hold "true";'), {"pins.hold"}
    ),
    "persistence-unit-disabled": Fault(
        answering("is-enabled nvidia-persistenced", 1, "disabled\n"), {"gpu.persistence_unit"}
    ),
    "persistence-unit-failed": Fault(
        replacing("show nvidia-persistenced", "=active", "=failed"), {"gpu.persistence_unit"}
    ),
    "clocks-unit-disabled": Fault(
        answering("is-enabled gpuprov-gpu-clocks", 1, "disabled\n"), {"gpu.clocks_unit"}
    ),
    "clocks-by-another-file": Fault(
        answering(
            "systemd-delta", 0, f"[OVERRIDDEN] {RUN} -> /etc/systemd/system/gpuprov-gpu-clocks.service\n"
        ),
        {"gpu.clocks_unit"},
    ),
    "clocks-of-another-frequency": Fault(
        replacing("systemctl cat gpuprov-gpu-clocks", "set 1410", "set 1000"), {"gpu.clocks_unit"}
    ),
    "clocks-unit-gone": Fault(
        both(
            answering("show gpuprov-gpu-clocks", 0, "LoadState=not-found\nActiveState=inactive\n"),
            answering("is-enabled gpuprov-gpu-clocks", 1),
        ),
        {"gpu.clocks_unit"},
    ),
    "clocks-lost": Fault(
        answering("--query-gpu=index,clocks", 0, per_gpu("1155, 1593, 210")), {"gpu.clocks"}
    ),
    "locked-clocks-lost": Fault(
        answering("--query-gpu=index,clocks", 0, per_gpu("[N/A], [N/A], 210")), {"gpu.clocks"}
    ),
    "hold-removed": Fault(
        replacing("Status-Want", "hold installed libcuda1", "install installed libcuda1"), {"pins.hold"}
    ),
    "unattended-upgrades-free": Fault(
        replacing("apt-config dump", '"libnvidia-.*$"', '"firefox"'), {"pins.unattended"}
    ),
    "upgrade-would-move-one": Fault(
        answering("dist-upgrade", 0, f"Inst libcuda1 [{VERSION}-1] (550.163.01-1 Debian:12 [amd64])\n"),
        {"pins.simulated"},
    ),
    "another-version-preferred": Fault(
        answering("apt-cache policy firmware", 0, PREFERRED), {"pins.candidates"}
    ),
    "file-of-a-package-changed": Fault(
        answering(
            "cd /var/lib/dpkg/info", 0, f"libcuda1\t/usr/lib/libcuda.so.{VERSION}\twas changed\nread\t1\t1\n"
        ),
        {"pins.files"},
    ),
    "files-not-compared": Fault(answering("cd /var/lib/dpkg/info", 1), {"pins.files"}),
    "own-sources-edited": Fault(
        replacing("cat /etc/apt/sources.list.d/gpuprov.sources", "Suites: bookworm\n", "Suites: trixie\n"),
        {"repositories.file"},
    ),
    "apt-interrupted": Fault(answering("ls /var/lib/dpkg/updates", 0, "0001\n"), {"dpkg.consistent"}),
    "nvidia-smi-of-the-site": Fault(
        answering("command -v nvidia-smi", 0, "/usr/local/bin/nvidia-smi\n"), {"driver.unpackaged"}
    ),
    "apt-broken": Fault(answering("dist-upgrade", 100, "", "E: Unmet dependencies.\n"), {"pins.simulated"}),
    "reboot-required": Fault(
        both(
            answering("test -e /run/reboot-required", 0),
            answering("reboot-required.pkgs", 0, "linux-image-amd64\n"),
        ),
        {"reboot.not_required"},
    ),
}


def healthy(answers: Answers) -> None:
    """Change nothing."""


def locked_clocks(answers: Answers) -> None:
    """Remove the application clocks of the GPUs, and lock their clocks."""
    answering("--query-gpu=index,clocks", 0, per_gpu("[N/A], [N/A], 1410"))(answers)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NodeVerdict]:
    """Verdicts of one run of the suite on a node for each fault, and on two without a fault."""
    changes = {"healthy": healthy, "locked-clocks": locked_clocks}
    changes |= {name: fault.change for name, fault in FAULTS.items()}
    group = locked_group(*changes)
    nodes = [paper_node(name, group, change) for name, change in changes.items()]
    return judge(nodes, tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize("name", ["healthy", "locked-clocks"])
def test_node_as_locked_passes_every_check(verdicts: dict[str, NodeVerdict], name: str) -> None:
    node = verdicts[name]
    assert node.failed_checks == []
    assert node.status == "passed"
    assert {check.check for check in node.checks} == set(wanted(locked_group(name)))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_fails_by_name(verdicts: dict[str, NodeVerdict], name: str) -> None:
    node = verdicts[name]
    assert {check.check for check in node.failed_checks} == FAULTS[name].checks
    assert node.status == "failed"


def test_every_check_was_seen_failing() -> None:
    seen = {check for fault in FAULTS.values() for check in fault.checks}
    assert seen == set(wanted(locked_group("any")))


def failed(verdicts: dict[str, NodeVerdict], name: str, check: str) -> CheckResult:
    """Return a node's failed result of a check, which must be the only one."""
    (found,) = [result for result in verdicts[name].failed_checks if result.check == check]
    return found


@pytest.mark.parametrize(
    ("name", "check", "expected", "actual"),
    [
        ("old-module", "driver.module_on_disk", {KERNEL: VERSION}, {KERNEL: OLD}),
        ("old-module-loaded", "driver.loaded", VERSION, OLD),
        ("old-module-loaded", "driver.answers", True, MISMATCH.strip()),
        ("clocks-unit-disabled", "gpu.clocks_unit", "enabled", "disabled"),
        ("clocks-unit-gone", "gpu.clocks_unit", "enabled", "not installed"),
        ("persistence-unit-failed", "gpu.persistence_unit", "enabled", "enabled, but failed"),
        ("nova-core-loaded", "nouveau.loaded", [], ["nova_core"]),
        ("reboot-required", "reboot.not_required", [], ["linux-image-amd64"]),
        ("half-configured", "dpkg.consistent", [], ["nvidia-kernel-dkms"]),
        ("another-os", "system.os", "debian12", "debian13"),
        (
            "file-of-a-package-changed",
            "pins.files",
            [],
            [f"libcuda1 /usr/lib/libcuda.so.{VERSION} was changed"],
        ),
    ],
)
def test_failure_says_what_was_seen(
    verdicts: dict[str, NodeVerdict], name: str, check: str, expected: Any, actual: Any
) -> None:
    """Check expected and actual value of each check that fails."""
    result = failed(verdicts, name, check)
    assert (result.expected, result.actual) == (expected, actual)


def test_a_check_that_passes_states_how_much_it_compared(verdicts: dict[str, NodeVerdict]) -> None:
    (found,) = [result for result in verdicts["healthy"].checks if result.check == "pins.files"]
    assert found.status == "passed"
    assert re.match(r"\d+ of \d+ bytes compared by checksum", found.detail)


def test_command_that_fails_is_quoted_with_its_last_word(verdicts: dict[str, NodeVerdict]) -> None:
    seen = failed(verdicts, "apt-broken", "pins.simulated").actual
    assert seen.endswith("dist-upgrade` ended with status 100: E: Unmet dependencies.")


def test_failure_shows_what_to_look_at_and_what_to_type(verdicts: dict[str, NodeVerdict]) -> None:
    detail = failed(verdicts, "clocks-lost", "gpu.clocks").detail.splitlines()
    assert "$ journalctl -u gpuprov-gpu-clocks.service -n 10 --no-pager" in detail
    assert detail[-1] == "gpuprov apply -l clocks-lost"
    assert failed(verdicts, "not-loaded", "driver.loaded").detail.endswith(
        "gpuprov apply --reboot -l not-loaded"
    )
    assert failed(verdicts, "another-gpu", "gpu.model").detail.endswith("no role can repair this")


def test_logins_without_settings_of_ssh_have_a_remedy() -> None:
    [logins] = [each for each in expectations(locked_group("node")) if each.check == "ssh.logins"]
    assert "state settings: {ssh: {}} in fleet.yml" in remedy(logins, "node")


def test_what_the_lock_does_not_state_is_not_checked(tmp_path: Path) -> None:
    group = locked_group("node")
    without = group.model_copy(update={"settings": {"kernel": group.settings["kernel"]}})
    node = judge([paper_node("node", without, healthy)], tmp_path)["node"]
    checks = {check.check for check in node.checks}
    assert node.status == "passed"
    assert not checks & {"gpu.clocks", "gpu.clocks_unit", "gpu.persistence", "gpu.persistence_unit"}


def test_running_kernel_stands_for_itself_and_the_next_one(tmp_path: Path) -> None:
    group = locked_group("same", "newer", kernel="running")
    boots_next = both(
        lambda answers: answers.update({"uname -r": (0, KERNEL + "\n", "")}),
        lambda answers: answers.update(
            {"ls -1v /boot | grep '^vmlinuz-[0-9]'": (0, f"vmlinuz-{KERNEL}\n", "")}
        ),
    )
    newer = both(
        boots_next,
        lambda answers: answers.update(
            {"ls -1v /boot | grep '^vmlinuz-[0-9]'": (0, f"vmlinuz-{KERNEL}\nvmlinuz-6.1.0-99-amd64\n", "")}
        ),
    )
    found = judge([paper_node("same", group, boots_next), paper_node("newer", group, newer)], tmp_path)
    assert found["same"].status == "passed"
    assert {check.check for check in found["newer"].failed_checks} >= {
        "kernel.headers",
        "driver.module_on_disk",
    }


def test_initramfs_is_looked_into_only_in_doubt(tmp_path: Path) -> None:
    group = locked_group("rebuilt", "in-doubt")
    rebuilt = paper_node("rebuilt", group, answering("lsinitramfs", 1))
    in_doubt = paper_node("in-doubt", group, NOT_REBUILT)
    assert {node.status for node in judge([rebuilt, in_doubt], tmp_path).values()} == {"passed"}


def test_node_lost_on_the_way_is_left_alone(tmp_path: Path) -> None:
    group = locked_group("first", "second", "third")
    nodes = [
        paper_node("first", group, healthy, breaks_at="dkms status"),
        paper_node("second", group, healthy, breaks_at="dkms status"),
        paper_node("third", group, healthy),
    ]
    found = judge(nodes, tmp_path)
    lost = [("unreachable", "Connection reset by peer")] * 2
    assert [(found[name].status, found[name].message) for name in ("first", "second")] == lost
    asked = list(nodes[0].wanted)
    assert [each.check for each in found["first"].checks] == asked[: asked.index("driver.dkms")]
    assert found["third"].status == "passed"


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        (0, per_gpu("100.00, 400.00"), "passed"),
        (0, per_gpu("[N/A], [N/A]"), "passed"),
        (0, per_gpu("100.00, 250.00"), "failed"),
        (18, MISMATCH, "failed"),
    ],
)
def test_a_range_of_power_limits_is_unknown_to_a_gpu_and_not_to_an_nvidia_smi_that_fails(
    tmp_path: Path, code: int, said: str, status: str
) -> None:
    group = locked_group("node")
    limit = Setting(value=300, reason="", source="")
    group = group.model_copy(update={"settings": {**group.settings, "power_limit": limit}})

    def answer(answers: Answers) -> None:
        """Add the answer, which the recorded node does not have."""
        answers[POWER_RANGE] = (code, said, "")

    verdict = judge([paper_node("node", group, answer)], tmp_path)["node"]
    assert {each.check: each.status for each in verdict.checks}["gpu.power_range"] == status
