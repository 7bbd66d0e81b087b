"""Numbers of nodes: what is no number ends that node's answer, and no document of all nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import json_line, json_text
from gpuprov.untrusted.numbers import finite, whole
from gpuprov.untrusted.parsing import LARGEST_NUMBER, read_json

INFINITE = [float("nan"), float("inf"), -float("inf")]
NONE = ["nan", "1e999", "5", "", None, True, [1], {}, *INFINITE, 1e300, 1 << 64]


@pytest.mark.parametrize("value", NONE, ids=repr)
def test_only_a_bounded_number_is_one(value: object) -> None:
    for read in (finite, whole):
        with pytest.raises(NodeFailed, match="in place of a number; expected a number of at most 64 bits"):
            read(value)


@pytest.mark.parametrize("value", [0, -3, 97, 640.5, LARGEST_NUMBER, -LARGEST_NUMBER])
def test_a_number_is_kept(value: float) -> None:
    assert finite(value) == float(value)
    assert isinstance(finite(value), float)
    assert whole(value) == int(value)
    assert isinstance(whole(value), int)


@pytest.mark.parametrize("value", [*INFINITE, 1 << 64, 1 << 20_000], ids=[*"abcde"])
def test_a_document_has_null_for_what_json_cannot_write(value: float) -> None:
    document = {"nodes": [{"name": "bad", "busy": [value, (value, 1)]}, {"name": "good", "busy": 0.5}]}
    expected = {"nodes": [{"name": "bad", "busy": [None, [None, 1]]}, {"name": "good", "busy": 0.5}]}
    for text in (json_text(document), json_text(document, indent=None), json_line(document)):
        assert read_json(text, 1 << 20) == expected


def test_other_values_are_written_as_before() -> None:
    document: dict[str, Any] = {"a": [True, None, -1, 2.5, "nan", LARGEST_NUMBER], "b": {"c": [[]]}}
    assert json.loads(json_text(document)) == json.loads(json_line(document)) == document
