"""Tables of text: column widths as on a terminal, no trailing spaces."""

from __future__ import annotations

from gpuprov.report.catalog import describe_record
from gpuprov.report.table import WIDEST, aligned


def test_columns_are_as_wide_as_what_a_terminal_shows() -> None:
    rows = [("NAME", "WHAT", "N"), ("a", "日本", ""), ("bb", "[bold]x", "1")]
    assert list(aligned(rows)) == ["NAME  WHAT     N", "a     日本", "bb    [bold]x  1"]
    assert list(aligned([("a", "b")], indent="  ")) == ["  a  b"]
    assert list(aligned([])) == []


def test_a_long_cell_is_complete_and_widens_no_other_line() -> None:
    long = "x" * 4_000_000
    first, second = aligned([("a", "b", "c"), ("d", long, long)])
    assert first == f"a  b{' ' * WIDEST} c"
    assert second == f"d  {long}  {long}"


def test_a_record_is_one_field_a_line() -> None:
    doubt = {"text": "unproven", "source": ["a list"]}
    lines = list(describe_record({"name": "H100", "doubts": [doubt], "source": ["pci.ids"]}))
    assert lines == ["name    H100", "", "doubts", "  - unproven [a list]", "", "sources", "  - pci.ids"]
