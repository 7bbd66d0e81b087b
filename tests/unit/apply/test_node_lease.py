"""The lease that a node keeps, run here."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpuprov.apply.node import lease


@pytest.fixture(autouse=True)
def _own_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lease, "FOLDER", str(tmp_path))
    monkeypatch.setattr(lease, "PATH", str(tmp_path / "lease.json"))


def test_a_lease_is_one_runs_until_it_is_given_back_or_over() -> None:
    assert lease.take("one", "a@b", 60)["run"] == "one"
    assert lease.take("two", "c@d", 60)["run"] == "one"
    assert lease.take("one", "a@b", 60)["run"] == "one"
    lease.release("two")
    assert lease.take("two", "c@d", 60)["run"] == "one"
    lease.release("one")
    assert lease.take("two", "c@d", 0.01)["run"] == "two"
    time.sleep(0.02)
    assert lease.take("one", "a@b", 60)["run"] == "one"


def test_a_lease_from_before_the_clock_was_set_back_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    lease.take("one", "a@b", 60)
    monkeypatch.setattr(lease.time, "time", lambda: now - 3600)
    assert lease.current() is None
    renewed = lease.renew("one", "a@b", 60)
    assert renewed
    assert renewed["run"] == "one"


def test_since_when_a_run_has_the_node_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = lease.take("one", "a@b", 60)["since"]
    now = time.time()
    monkeypatch.setattr(lease.time, "time", lambda: now + 30)
    assert lease.take("one", "a@b", 60)["since"] == begun
    renewed = lease.renew("one", "a@b", 60)
    assert renewed
    assert (renewed["since"], renewed["until"]) == (begun, now + 90)


def test_only_what_nobody_had_in_between_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    lease.take("one", "a@b", -1)
    assert lease.current() is None
    assert lease.renew("one", "a@b", -1)
    assert lease.take("two", "c@d", 60)["run"] == "two"
    renewed = lease.renew("one", "a@b", 60)
    assert renewed
    assert renewed["run"] == "two"
    lease.release("two")
    assert lease.renew("one", "a@b", 60) is None


@pytest.mark.parametrize(
    "text", ['{"run": "one", "unt', "", "7", "[]", "{}", '{"run": 7, "until": 1, "seconds": 1}', "null"]
)
def test_half_a_lease_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "lease.json").write_text(text)
    assert lease.current() is None
    assert lease.take("one", "a@b", 60)["run"] == "one"


def test_a_lease_of_an_older_gpuprov_does_not_say_since_when(tmp_path: Path) -> None:
    old = {"run": "one", "holder": "a@b", "seconds": 600, "until": time.time() + 500}
    (tmp_path / "lease.json").write_text(json.dumps(old))
    held = lease.take("two", "c@d", 60)
    assert (held["run"], held.get("since")) == ("one", None)
