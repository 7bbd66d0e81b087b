"""Terms for states that verify and drift read independently: both use the same ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuprov.drift.observations.units import enabled
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.units import parse_units
from gpuprov.verify.readings import unit_state


@pytest.mark.parametrize(
    ("load", "file", "active", "word"),
    [
        ("loaded", "enabled", "active", "enabled"),
        ("loaded", "enabled", "failed", "enabled, but failed"),
        ("loaded", "enabled", "inactive", "enabled, but inactive"),
        ("loaded", "disabled", "active", "disabled"),
        ("loaded", "static", "active", "static"),
        ("loaded", "enabled-runtime", "active", "enabled-runtime"),
        ("loaded", "linked", "active", "linked"),
        ("loaded", "", "inactive", "disabled"),
        ("masked", "masked", "inactive", "masked"),
        ("not-found", "", "inactive", "not installed"),
    ],
)
def test_a_unit(load: str, file: str, active: str, word: str) -> None:
    shown = {"Id": "x.service", "LoadState": load, "UnitFileState": file, "ActiveState": active}
    text = "\n".join(f"{name}={value}" for name, value in shown.items())
    facts = cast(Facts, SimpleNamespace(units=parse_units(text)))
    host: Any = SimpleNamespace(service=lambda name: SimpleNamespace(systemd_properties=shown))
    assert enabled(facts, "x.service") == unit_state(host, "x.service") == word
