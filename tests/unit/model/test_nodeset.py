"""Names folded into sets: no name makes ClusterShell read a file."""

from __future__ import annotations

import pytest

from gpuprov.model.nodeset import fold


@pytest.mark.parametrize("name", ["a[", "a[1-", "@group", "@*", "a[0-99999999]b[", ""])
def test_a_name_that_is_none_can_be_shown(name: str) -> None:
    assert isinstance(fold([name, "gpu01"]), str)


def test_names_are_one_range() -> None:
    assert fold(["gpu01", "gpu02"]) == "gpu[01-02]"
