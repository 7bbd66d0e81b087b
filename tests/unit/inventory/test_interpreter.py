"""Interpreters of Ansible's modules, by the table of platforms."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.bootstrap import run
from gpuprov.bootstrap.run import Goal, NodeResult
from gpuprov.catalog.platforms import platform
from gpuprov.inventory.variables import variables_of
from gpuprov.model.connection import LOCAL, Connection
from tests.unit.verify.nodes_on_paper import locked_group

TOO_OLD = "rhel8"
"""A system whose own Python no supported Ansible accepts."""


def interpreters(system: str) -> list[str | None]:
    """Return those of this machine and of another node, None: left to Ansible's search."""
    group = locked_group("node").model_copy(update={"os": system})
    hosts = {"here": (LOCAL, Connection()), "far": ("192.0.2.1", Connection())}
    shared, own = variables_of(hosts, group)
    return [{**shared, **own.get(host, {})}.get("ansible_python_interpreter") for host in hosts]


def test_ansible_runs_in_the_python_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert interpreters("debian12") == ["/usr/bin/python3", None]
    assert interpreters(TOO_OLD) == [platform(TOO_OLD).python] * 2 == ["/usr/bin/python3.12"] * 2


def test_a_machine_without_that_python_has_gpuprovs(monkeypatch: pytest.MonkeyPatch) -> None:
    """RHEL 8 before 8.10 has Python 3.11 and no 3.12; gpuprov runs in it, and so can its roles."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert interpreters(TOO_OLD) == [sys.executable, platform(TOO_OLD).python]


@pytest.mark.parametrize(
    ("system", "python"), [("debian12", "python3"), ("rocky8.10", "python3.12"), ("", "python3")]
)
def test_bootstrap_installs_that_python(monkeypatch: pytest.MonkeyPatch, system: str, python: str) -> None:
    scripts: list[str] = []

    def as_root(_session: object, script: str, _password: object) -> Any:
        scripts.append(script)
        return SimpleNamespace(stdout=b"done", stderr=b"", code=0)

    monkeypatch.setattr(run, "as_root", as_root)
    target: Any = SimpleNamespace(route=SimpleNamespace(user="root"))
    goal = Goal({"n1": ("ssh-ed25519 AAAA",)}, systems={"n1": system})
    run._prepare(NodeResult("n1", target), SimpleNamespace(target=target), goal, None)  # type: ignore[arg-type]
    assert f"python={python}\n" in scripts[0]
    assert 'have "$python" "$python"' in scripts[0]
