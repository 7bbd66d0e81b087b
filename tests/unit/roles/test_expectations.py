"""Expectations of roles from a group's settings and components: only what is stated."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.access.sshd import BANNER, PRINCIPALS, USER_CA
from gpuprov.model.lock import Component, LockedGroup, Setting, read_lock
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.roles import cudnn, docker, gpu_settings, preflight, ssh_hardening, system_tuning
from tests import RECORDED_LOCK


def group(*components: str, **settings: Any) -> LockedGroup:
    """Return the recorded group with these components and settings."""
    [recorded] = read_lock(RECORDED_LOCK).groups.values()
    one = Component(
        version="1", repository="r", packages={}, closure={}, hold_patterns=[], reason="", source=""
    )
    stack = recorded.components.model_copy(update=dict.fromkeys(components, one))
    stated = {name: Setting(value=value, reason="", source="") for name, value in settings.items()}
    return recorded.model_copy(update={"components": stack, "settings": stated})


@pytest.mark.parametrize(
    ("components", "configured"),
    [((), True), (("docker",), True), (("docker", "containerd"), True), (("containerd",), False)],
)
def test_containers_have_docker_s_daemon_configured_unless_there_is_only_containerd(
    components: tuple[str, ...], *, configured: bool
) -> None:
    """Docker itself runs on containerd, so both may be locked."""
    stated = group(*components, containers={"shm_size": "1g"})
    assert docker.daemon_config(stated) == ({"default-shm-size": "1g"} if configured else {})


def test_tuning_expects_only_what_is_stated_and_no_variables_for_debugging() -> None:
    expected = system_tuning.expectations(group(tuning={"governor": "performance"}))
    assert {each.check: each.expected for each in expected} == {
        "tuning.governor": "performance",
        "tuning.debugging": [],
    }


def test_without_tuning_nothing_is_expected() -> None:
    assert system_tuning.expectations(group()) == []


def test_a_role_is_given_the_version_of_a_locked_component() -> None:
    assert cudnn.variables(group("cudnn"))["cudnn_version"] == "1"
    without = group().model_copy(update={"components": group().components.model_copy(update={"cudnn": None})})
    assert cudnn.variables(without)["cudnn_version"] is None


def test_a_compute_mode_that_is_not_stated_is_unset() -> None:
    for stated, expected in (({}, "unset"), ({"compute_mode": "PROHIBITED"}, "PROHIBITED")):
        assert gpu_settings.variables(group(**stated))["gpu_settings_compute_mode"] == expected


def test_of_two_keywords_for_one_method_the_one_is_expected_by_which_sshd_shows_both() -> None:
    options = {"Port": "22", "KbdInteractiveAuthentication": "no", "ChallengeResponseAuthentication": "no"}
    found = ssh_hardening.expectations(group(ssh={"options": options}))
    assert next(each.expected for each in found if each.check == "ssh.options") == {
        "port": "22",
        "kbdinteractiveauthentication": "no",
    }


def test_the_texts_that_options_of_sshd_name_are_files() -> None:
    stated = {"options": {}, "user_ca": ["ssh-ed25519 A a", "ssh-ed25519 B b"], "banner": "Keep out"}
    assert ssh_hardening.files(group(ssh=stated)) == {
        USER_CA: "ssh-ed25519 A a\nssh-ed25519 B b",
        BANNER: "Keep out",
    }
    assert ssh_hardening.files(group(ssh={"options": {}, "principals": ["ops"]})) == {PRINCIPALS: "ops"}
    assert ssh_hardening.files(group()) == {}


@pytest.mark.parametrize(("build", "needed"), [("once", True), (None, False)])
def test_the_certificate_is_needed_where_a_shared_module_is_signed(
    build: str | None, *, needed: bool
) -> None:
    stated = LockedSecureBoot(fingerprint="ab" * 32, signer="Site", serial="1F")
    one = group()
    driver = one.components.driver.model_copy(update={"build": build})
    stack = one.components.model_copy(update={"driver": driver})
    found = preflight.variables(one.model_copy(update={"components": stack, "secure_boot": stated}))
    assert driver.shared == needed
    assert found.get("preflight_certificate") == ("ab" * 32 if needed else None)
