"""Tables of text: column widths as on a terminal, no trailing spaces."""

from __future__ import annotations

from gpuprov.report.table import aligned


def test_columns_are_as_wide_as_what_a_terminal_shows() -> None:
    rows = [("NAME", "WHAT", "N"), ("a", "日本", ""), ("bb", "[bold]x", "1")]
    assert list(aligned(rows)) == ["NAME  WHAT     N", "a     日本", "bb    [bold]x  1"]
    assert list(aligned([("a", "b")], indent="  ")) == ["  a  b"]
    assert list(aligned([])) == []
