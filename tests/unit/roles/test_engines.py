"""Questions to container engines: why one has no answer."""

from __future__ import annotations

import gpuprov_containers as containers
import pytest


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("sleepless", "ps"), "`sleepless ps` could not run: sleepless is not installed"),
        (("false",), "`false` exited with 1"),
        (("sleep", "9"), "`sleep` gave no answer in 0.1 s"),
    ],
)
def test_an_engine_without_an_answer_says_why(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setattr(containers, "ANSWER_S", 0.1)
    with pytest.raises(containers.Silent, match=reason):
        containers.ask(*command)
