"""Keys of fleet.yml in the campaign of neighbouring fleets: each has a pair or a reason."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.model.fleet import Fleet
from tests.campaign import _neighbours_keys as keys
from tests.campaign._neighbours_keys import CHANGED, REASONS, Site, covers, forgotten, reason, schema_keys
from tests.campaign._neighbours_pairs import LEFT_OUT, merged, pairs
from tests.campaign._roles_fleet import SETTINGS

SITE = Site("gpu01", "10.0.0.1", "https://moved.example/{}".format, "/srv/key", "/srv/id", "/srv/hosts")
FULL: dict[str, Any] = {
    "ssh": {"user": "root"},
    "groups": {
        "debian12": {
            "profile": "board",
            "os": "debian12",
            "hosts": {"gpu01": {"address": "10.0.0.1"}},
            "stack": {"driver": "580.95.05", "cuda": ["12.6", "12.8"]},
            "settings": {
                **SETTINGS[0],
                "firewall": SETTINGS[1]["firewall"],
                "scratch": [{"device": "/dev/loop244", "mount": "/scratch/fast"}],
            },
        }
    },
    "repositories": {
        name: {"url": f"https://a.example/{name}", "key": "/srv/a"}
        for name in ("nvidia", "container-toolkit")
    },
}


def test_every_key_has_a_pair_or_a_reason() -> None:
    assert forgotten() == []


def test_a_new_key_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "schema_keys", lambda: [*schema_keys(), "groups.*.settings.hugepages"])
    assert forgotten() == ["groups.*.settings.hugepages"]


def test_pairs_and_reasons_are_of_keys() -> None:
    known = schema_keys()
    assert [key for key in CHANGED if not any(covers(key, each) for each in known)] == []
    assert [key for key in CHANGED for each in known if covers(key, each) and reason(each)] == []
    said = {reason(key) for key in known}
    assert [pattern for pattern, why in REASONS.items() if why not in said] == []


def test_each_pair_differs_from_the_full_fleet_and_from_every_other() -> None:
    found = list(pairs(FULL, SITE))
    documents = [str(pair.document) for pair in found]
    assert str(FULL) not in documents
    assert len({str(pair) for pair in found}) == len(found)
    assert len(found) > len(CHANGED)


def test_every_stated_value_makes_a_pair() -> None:
    made = [pair.key for pair in pairs(FULL, SITE) if pair.change != LEFT_OUT]
    assert [key for key in CHANGED if not any(covers(each, key) for each in made)] == []


def test_a_stated_key_is_changed_and_left_out_and_no_other() -> None:
    found = {str(pair): pair.document for pair in pairs(FULL, SITE)}
    key = "groups.debian12.settings.persistence"
    settings = [
        found[f"{key}: {how}"]["groups"]["debian12"]["settings"] for how in ("True → False", LEFT_OUT)
    ]
    assert [each.get("persistence") for each in settings] == [False, None]
    moved = found["repositories.nvidia.url: https://a.example/nvidia → https://moved.example/nvidia"]
    assert moved["repositories"]["container-toolkit"] == FULL["repositories"]["container-toolkit"]
    assert moved["groups"] == FULL["groups"]


def test_neighbours_are_fleets_unless_a_needed_key_is_left_out() -> None:
    for pair in pairs(FULL, SITE):
        if pair.change != LEFT_OUT:
            Fleet.model_validate(pair.document)


def test_neighbours_with_different_keys_are_one_fleet() -> None:
    full: dict[str, Any] = {"a": {"b": 1, "c": [1], "d": 4}, "e": 5}
    one, other = {"a": {"b": 2, "c": [1], "d": 4}, "e": 5}, {"a": {"b": 1, "c": [2]}, "e": 5, "f": 6}
    assert merged(full, one, other) == {"a": {"b": 2, "c": [2]}, "e": 5, "f": 6}
    assert merged(full, one, full) == one
    assert merged(full, one, {"a": {"b": 3, "c": [1], "d": 4}, "e": 5}) is None
    assert merged(full, one, {"e": 5}) is None
