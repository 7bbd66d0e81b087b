"""Choice of Mitogen's strategy for Ansible."""

from __future__ import annotations

import logging
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError

import pytest

from gpuprov.apply import strategy


def installed(
    monkeypatch: pytest.MonkeyPatch, *, there: bool = True, mitogen: str = "0.3.54", core: str = "2.19.14"
) -> None:
    """Install packages in the stated versions; one without a version is not installed."""

    def version(name: str) -> str:
        if found := {"mitogen": mitogen, "ansible-core": core}[name]:
            return found
        raise PackageNotFoundError(name)

    spec = ModuleSpec("ansible_mitogen", None, origin="/lib/ansible_mitogen/__init__.py")
    monkeypatch.setattr(strategy, "find_spec", lambda _: spec if there else None)
    monkeypatch.setattr(strategy, "version", version)


@pytest.mark.parametrize("stated", [None, "", "0"])
def test_installed_mitogen_is_not_used_without_a_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stated: str | None
) -> None:
    installed(monkeypatch)
    monkeypatch.delenv("GPUPROV_MITOGEN", raising=False)
    if stated is not None:
        monkeypatch.setenv("GPUPROV_MITOGEN", stated)
    with caplog.at_level(logging.DEBUG, "gpuprov"):
        assert strategy.settings() == {}
    assert "own strategy: Mitogen is not requested by GPUPROV_MITOGEN=1" in caplog.text


@pytest.mark.parametrize(
    ("there", "mitogen", "core", "says"),
    [
        (True, "0.3.54", "2.19.14", "with Mitogen's strategy"),
        (True, "0.4.0", "2.21.9", "with Mitogen's strategy"),
        (False, "0.3.54", "2.19.14", "own strategy: Mitogen is not installed"),
        (
            True,
            "0.3.53",
            "2.19.14",
            "own strategy: Mitogen 0.3.53 is installed, and 0.3.54 is needed",
        ),
        (True, "0.3.54", "2.22.0", "own strategy: ansible-core 2.22.0 is installed"),
        (True, "", "2.19.14", "own strategy: mitogen is not installed as a package"),
    ],
)
def test_requested_mitogen_is_used_where_it_knows_the_ansible_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    there: bool,
    mitogen: str,
    core: str,
    says: str,
) -> None:
    installed(monkeypatch, there=there, mitogen=mitogen, core=core)
    monkeypatch.setenv("GPUPROV_MITOGEN", "1")
    with caplog.at_level(logging.DEBUG, "gpuprov"):
        found = strategy.settings()
    assert says in caplog.text
    expected = {
        "ANSIBLE_STRATEGY": "mitogen_linear",
        "ANSIBLE_STRATEGY_PLUGINS": "/lib/ansible_mitogen/plugins/strategy",
        "ANSIBLE_TRANSPORT": "ssh",
        "ANSIBLE_BECOME_METHOD": "sudo",
    }
    assert found == (expected if says.startswith("with Mitogen") else {})
