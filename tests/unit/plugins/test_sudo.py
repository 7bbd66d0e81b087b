"""The become plugin gpuprov_sudo, with texts that sudo 1.9.16 and sudo-rs 0.2.5 of Debian 13 printed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests import ROOT

PROMPT = "[sudo via ansible, key=abc] password:"


@pytest.fixture
def sudo() -> Any:
    """Return the become plugin, loaded from its file."""
    spec = importlib.util.spec_from_file_location("gpuprov_sudo", ROOT / "plugins/become/gpuprov_sudo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin = module.BecomeModule()
    plugin.prompt = PROMPT
    return plugin


@pytest.mark.parametrize("printed", [PROMPT, f"[sudo: {PROMPT}] Password: "])
def test_a_prompt_is_recognized(sudo: Any, printed: str) -> None:
    assert sudo.check_password_prompt(printed.encode())
    assert not sudo.check_password_prompt(printed.replace("key=abc", "key=abd").encode())


def test_without_a_password_nothing_is_a_prompt(sudo: Any) -> None:
    sudo.prompt = ""
    assert not sudo.check_password_prompt(PROMPT.encode())


@pytest.mark.parametrize("printed", ["Sorry, try again.", "sudo: Authentication failed, try again."])
def test_a_wrong_password_is_recognized(sudo: Any, printed: str) -> None:
    assert sudo.check_incorrect_password(printed.encode())
    assert not sudo.check_missing_password(printed.encode())


@pytest.mark.parametrize(
    "printed", ["sudo: a password is required", "sudo: interactive authentication is required"]
)
def test_a_missing_password_is_recognized(sudo: Any, printed: str) -> None:
    assert sudo.check_missing_password(printed.encode())
    assert not sudo.check_incorrect_password(printed.encode())
