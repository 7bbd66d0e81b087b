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


def test_a_hand_has_what_its_run_has_and_passes_it_back() -> None:
    lease.take("one", "a@b", 600)
    assert lease.take("one/7.aa", "c@w1", 600)["run"] == "one/7.aa"
    renewed = lease.renew("one", "a@b", 600)
    assert renewed
    assert renewed["run"] == "one/7.aa"
    assert lease.take("two", "e@f", 60)["run"] == "one/7.aa"
    assert lease.complaint("one/7.aa") == ""
    assert "leased by c@w1, run one/7.aa" in lease.complaint("one/8.bb")
    passed = lease.pass_on("one/7.aa", "c@w1", 600)
    assert passed
    assert passed["run"] == "one"


def test_the_next_hand_waits_until_the_last_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    lease.take("one/7.aa", "c@w1", 600)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/7.aa"
    monkeypatch.setattr(lease.time, "time", lambda: now + lease.HAND_S - 5)
    lease.renew("one/7.aa", "c@w1", 600)
    monkeypatch.setattr(lease.time, "time", lambda: now + lease.HAND_S + 5)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/7.aa"
    assert lease.take("two", "e@f", 60)["run"] == "one/7.aa"
    monkeypatch.setattr(lease.time, "time", lambda: now + 2 * lease.HAND_S + 5)
    assert lease.take("one/8.bb", "c@w2", 600)["run"] == "one/8.bb"


def test_a_hand_that_thaws_after_a_later_one_has_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    lease.take("one/7.aa", "c@w1", 600)
    monkeypatch.setattr(lease.time, "time", lambda: now + 2 * lease.HAND_S)
    lease.take("one/8.bb", "c@w2", 600)
    held = lease.renew("one/7.aa", "c@w1", 600)
    assert held
    assert held["run"] == "one/8.bb"
    assert lease.complaint("one/7.aa")
    lease.pass_on("one/7.aa", "c@w1", 600)
    lease.pass_on("one/8.bb", "c@w2", 600)
    assert lease.complaint("one") == ""


def test_a_hand_that_was_frozen_before_it_took_the_node_does_not_get_it_after_a_later_one() -> None:
    lease.take("one/8.bb", "c@w2", 600)
    lease.pass_on("one/8.bb", "c@w2", 600)
    with pytest.raises(OSError, match="a later hand of this run has had the node"):
        lease.take("one/7.aa", "c@w1", 600)
    lease.release("one")
    with pytest.raises(OSError, match="a later hand"):
        lease.take("one/7.aa", "c@w1", 600)
    assert lease.current() is None
    assert lease.take("two/3.cc", "c@w1", 600)["run"] == "two/3.cc"
