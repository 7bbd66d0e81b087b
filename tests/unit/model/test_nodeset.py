"""Names folded into sets: no name makes ClusterShell read a file."""

from __future__ import annotations

import pytest

from gpuprov.model import nodeset
from gpuprov.model.nodeset import expand, fold


@pytest.mark.parametrize("name", ["a[", "a[1-", "@group", "@*", "a[0-99999999]b[", ""])
def test_a_name_that_is_none_can_be_shown(name: str) -> None:
    assert isinstance(fold([name, "gpu01"]), str)


def test_names_are_one_range() -> None:
    assert fold(["gpu01", "gpu02"]) == "gpu[01-02]"


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ("gpu[1-12]", "gpu[1-13]"),
        ("gpu[01-12]", "gpu[0-12]"),
        ("gpu[1-24/2]", "gpu[1-25/2]"),
        ("rack[1-3]n[1-4]", "rack[1-3]n[1-4],login"),
    ],
)
def test_a_set_of_too_many_names_is_refused(
    monkeypatch: pytest.MonkeyPatch, allowed: str, refused: str
) -> None:
    monkeypatch.setattr(nodeset, "LARGEST", 12)
    assert len(expand(allowed)) == 12
    with pytest.raises(ValueError, match="at most 12 host names in one set, not 13"):
        expand(refused)
