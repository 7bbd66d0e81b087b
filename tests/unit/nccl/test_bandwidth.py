"""Bandwidths: tables of several versions of nccl-tests, the formula, the estimate."""

from __future__ import annotations

import pytest

from gpuprov.nccl.bandwidth import Results, bus_bandwidth, gradient_seconds

NEW = """\
#       size     count      type   redop    root     time   algbw   busbw #wrong   time   algbw   busbw #wrong
#        (B)    (elements)                           (us)  (GB/s)  (GB/s)           (us)  (GB/s)  (GB/s)
  1073741824  268435456  float     sum      -1   4890.1  219.57  384.25      0   4889.3  219.61  384.32      0
  2147483648  536870912  float     sum      -1   9650.0  222.54  389.44      0   9648.0  222.58  389.52      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 386.882
"""
OLD = """\
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   134217728      33554432   float     sum  14312.1    9.38   16.41  4e-07  14283.7    9.40   16.44  4e-07
"""
WITHOUT_CHECK = (
    "[1,0]<stdout>:   67108864      16777216  bfloat16     sum      -1  400.1  167.7  314.5    N/A\n"
)


def results(text: str) -> Results:
    """Return the bandwidths in the text of a log."""
    found = Results()
    for line in text.splitlines():
        found.feed(line)
    return found


def test_table_with_roots() -> None:
    """Check the results of a table in nccl-tests' newer format."""
    found = results(NEW)
    assert (found.average, found.peak, found.wrong) == (386.882, 389.52, 0)
    assert found.rows[1073741824] == {
        "time_us": 4890.1,
        "algbw": 219.57,
        "busbw": 384.25,
        "in_place_busbw": 384.32,
    }


def test_table_of_old_versions() -> None:
    assert results(OLD).peak == 16.44


def test_table_without_checks_behind_a_launcher() -> None:
    assert results(WITHOUT_CHECK).rows[67108864]["busbw"] == 314.5


def test_wrong_values_are_counted() -> None:
    assert results(NEW.replace("384.25      0", "384.25      7")).wrong == 7


def test_numbers_elsewhere_are_no_results() -> None:
    assert results("1024 256 steps 3 done 4.0 5.0 6.0\n").as_dict() is None


def test_formula_against_a_row_of_nccl_tests() -> None:
    assert bus_bandwidth(1073741824, 4890.1e-6, 8) / 1e9 == pytest.approx(384.25, rel=1e-3)


def test_one_rank_moves_nothing() -> None:
    assert bus_bandwidth(1e9, 1.0, 1) == 0


def test_estimate_of_a_model() -> None:
    assert gradient_seconds(7e9, 100e9) == pytest.approx(0.28)
