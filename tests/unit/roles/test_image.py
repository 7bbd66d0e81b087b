"""Checks that are postponed for an image: exactly those that it cannot fulfil."""

from __future__ import annotations

from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.observations.registry import READS
from gpuprov.model.lock import LockedGroup, Setting, read_lock
from gpuprov.roles import BY_NAME, Expectation, expectations
from gpuprov.roles.image import (
    AT_FIRST_BOOT,
    OF_HARDWARE,
    OF_KERNEL,
    OF_SERVICES,
    SERVICES,
    postponed,
    postponed_roles,
    waits_for,
)
from gpuprov.verify.wanted import proofs, wanted
from tests import RECORDED_LOCK


def recorded_group(**settings: object) -> LockedGroup:
    """Return the recorded group with further settings."""
    [group] = read_lock(RECORDED_LOCK).groups.values()
    stated = {name: Setting(value=value, reason="test", source="test") for name, value in settings.items()}
    return group.model_copy(update={"settings": {**group.settings, **stated}})


SHOWN = {
    *("system.os", "system.arch", "dpkg.consistent", "repositories.file", "repositories.foreign"),
    *(
        "kernel.headers",
        "driver.packages",
        "driver.module_on_disk",
        "driver.module_flavour",
        "driver.loading",
        "driver.initramfs",
        "driver.next_kernel",
        "driver.dkms",
    ),
    *("driver.library", "nouveau.blacklist", "nouveau.initramfs"),
    *("pins.hold", "pins.unattended", "pins.simulated", "pins.candidates", "pins.files", "ssh.pam"),
}


def test_every_statement_of_a_group_is_shown_or_waits_for_one_thing() -> None:
    group = recorded_group()
    assert {check for check, each in wanted(group).items() if waits_for(each) is None} == SHOWN
    assert postponed(wanted(group).values()) == {
        "a boot of its own": [
            *("nouveau.loaded", "driver.loaded", "driver.answers"),
            *("driver.four_versions", "reboot.not_required"),
        ],
        "the machine's hardware": ["gpu.model", "gpu.count", "gpu.visible", "gpu.persistence", "gpu.clocks"],
        "running services": [
            *("driver.unpackaged", "gpu.persistence_unit", "gpu.clocks_unit"),
            *("ssh.logins", "ssh.loaded", "ssh.offered"),
        ],
    }


def test_checks_and_roles_that_are_named_are_there() -> None:
    proved = {each.check for each in proofs(recorded_group())}
    known = (
        OBSERVERS.keys() | proved | {"containerd.plugin", "docker.daemon", "docker.limits", "podman.limits"}
    )
    assert {*OF_HARDWARE, *OF_SERVICES, *OF_KERNEL} <= known
    assert AT_FIRST_BOOT.keys() <= BY_NAME.keys()


def test_what_only_a_driver_answers_waits_for_the_hardware() -> None:
    assert (
        waits_for(Expectation("some.check", 1, "gpu_settings", needs_driver=True)) == "the machine's hardware"
    )
    assert waits_for(Expectation("some.check", 1, "docker")) is None


def test_roles_that_could_harm_wait_as_a_whole_where_they_are_stated() -> None:
    assert postponed_roles(recorded_group()) == {}
    scratch = [{"mount": "/scratch", "filesystem": "xfs", "devices": ["/dev/nvme0n1"]}]
    assert postponed_roles(recorded_group(scratch=scratch, ssh={})) == {
        "storage": "the machine's drives",
        "ssh_hardening": "a login that proves it",
    }
    assert postponed_roles(recorded_group(storage_clients=["nfs"])) == {"storage": "the machine's drives"}
    stated = expectations(recorded_group(scratch=scratch))
    assert {waits_for(each) for each in stated if each.role == "storage"} == {"the machine's drives"}


def test_what_systemd_itself_has_to_answer_waits_for_a_boot() -> None:
    """Check the statements about units, which `systemctl show` reads from a running systemd."""
    whole = ("ssh.", "firewall.", "scratch.")  # of roles that wait as a whole
    asked = {check for check, reads in READS.items() if "units" in reads and not check.startswith(whole)}
    assert {"tuning.sysctl_at_boot", "gpudirect.at_boot", "docker.unit"} <= asked
    waiting = {check: waits_for(Expectation(check, 1, None)) for check in asked}
    assert waiting == dict.fromkeys(asked, SERVICES)
