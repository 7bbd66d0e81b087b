"""Limits of JSON and TOML from nodes, mirrors and services, checked before they are parsed."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.ssh.answers import read_answer, write_answer
from gpuprov.untrusted.parsing import (
    TOML_BYTES,
    VALUES,
    count_values,
    memory_limit_of,
    printable_value,
    read_json,
    read_toml,
    whole_number,
    without_surrogates,
)
from tests import ROOT

LISTS = b'{"a": [' + b"[]," * VALUES + b"[]]}"
SHAPES = {
    "lists": [[] for _ in range(2000)],
    "mappings": [{} for _ in range(2000)],
    "one key each": [{"a": 1} for _ in range(2000)],
    "keys": {f"{number:06}": f"{number:06}" for number in range(2000)},
    "wide keys": {f"\N{PILE OF POO}{number:05}": f"\N{PILE OF POO}{number:05}" for number in range(2000)},
    "deep": [
        json.loads("".join(f'{{"{n + depth}":' for depth in range(50)) + "1" + "}" * 50) for n in range(40)
    ],
    "text": ["\N{PILE OF POO}" + "a" * 100_000],
}


def test_many_values_are_refused_before_they_take_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"more than {VALUES} values"):
            read_json(LISTS, len(LISTS))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(LISTS)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_of_a_document_is_stated(shape: str) -> None:
    text = json.dumps(SHAPES[shape]).encode()
    tracemalloc.start()
    try:
        found = read_json(text, len(text))
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == SHAPES[shape]
    assert held <= memory_limit_of(text)
    assert most <= 2 * memory_limit_of(text)


def test_signs_in_strings_are_no_values() -> None:
    text = {'a "quoted" [,\\': "{[,]}" * 1000, "path\\": ["\\\\", '\\"', ",,,"]}
    data = json.dumps(text).encode()
    assert count_values(data, 10) <= 10
    assert read_json(data, len(data), 10) == text
    with pytest.raises(ValueError, match="more than 3 values"):
        count_values(data, 3)


@pytest.mark.parametrize(
    "text",
    [
        b'"' * 1000 + b"[" * 1000,
        b'["' + b'\\"' * 1000 + b'",' + b"[]," * 1000 + b"1]",
        b'\\" [' + b"[]," * 1000 + b"1]",
        ('["\N{APL FUNCTIONAL SYMBOL IOTA}\u2222",' + "[]," * 1000 + "1]").encode("utf-16"),
        ('["\u2222",' + "[]," * 1000 + "1]").encode("utf-16-le"),
    ],
    ids=["quotation marks", "escaped", "backslash outside", "utf-16", "utf-16-le"],
)
def test_no_text_hides_its_values(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - too many values, or no JSON of UTF-8
        read_json(text, len(text), 100)


@pytest.mark.parametrize("text", [b"NaN", b"[-Infinity]", b"1e999", b"[" * 5000, b"\xff", b"{} "])
def test_what_is_no_document(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own message
        read_json(text, 2 if text == b"{} " else 10_000)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 65 + "1" + "]" * 65,
        '{"a":' * 65 + "1" + "}" * 65,
        f"[-{1 << 64}]",
        "9" * 4300,
        f'{{"a": [{1 << 64}]}}',
    ],
    ids=["lists", "mappings", "below zero", "digits", "inside"],
)
def test_what_python_might_not_print_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|a whole number of \d+ bits"):
        read_json(text, 10_000)


def test_the_deepest_document_and_the_largest_numbers_are_read() -> None:
    assert read_json("[" * 63 + "{}" + "]" * 63, 1000)
    assert read_json(f"[-{(1 << 64) - 1}, {(1 << 64) - 1}, true]", 1000)


@pytest.mark.parametrize(
    "text", ["a = 0x" + "f" * 17, "a = " + "[" * 64 + "1" + "]" * 64, "a = " + "9" * 4300]
)
def test_configuration_that_python_might_not_print_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|a whole number of \d+ bits"):
        read_toml(text)


@pytest.mark.parametrize("text", ["[" * 81 + "1" + "]" * 81, str(1 << 64), "[1e999]", "[Infinity]", "[NaN]"])
def test_a_result_that_python_might_not_print_is_refused(text: str) -> None:
    with pytest.raises(NodeFailed, match="the answer cannot be read"):
        read_answer(text, Any)


def test_a_value_that_cannot_be_printed_is_replaced_by_the_reason() -> None:
    assert printable_value([float("inf")]) == "a value that cannot be printed: inf is not a number"
    assert printable_value({"a": [1, 1.5, None]}) == {"a": [1, 1.5, None]}


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("9" * 18, 10**18 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    """Check that numbers of up to 18 digits are read."""
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "9" * 19, "1 ", "1\n", "\N{ARABIC-INDIC DIGIT NINE}", "1.0"])
def test_other_texts_are_no_whole_numbers(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (rb'"a\udcffb"', "a\N{REPLACEMENT CHARACTER}b"),
        (
            rb'{"\ud83d": [{"x": "\udfff"}]}',
            {"\N{REPLACEMENT CHARACTER}": [{"x": "\N{REPLACEMENT CHARACTER}"}]},
        ),
        (rb'["\ud83d\ude00", "\\udcff"]', ["\N{GRINNING FACE}", r"\udcff"]),
        ('["\udcff"]', ["\N{REPLACEMENT CHARACTER}"]),
    ],
    ids=["text", "key", "pair", "not escaped"],
)
def test_half_a_character_is_replaced(text: bytes | str, found: Any) -> None:
    assert read_json(text, 1000) == found


def test_documents_without_text_stay_as_they_are() -> None:
    document = {"a": [1, None, True, 1.5, "é", {}]}
    assert without_surrogates(document) is document
    assert document == {"a": [1, None, True, 1.5, "é", {}]}
    assert without_surrogates(None) is None
    assert without_surrogates("\udcff") == "\N{REPLACEMENT CHARACTER}"


def test_recorded_nodes_are_far_below_the_limit() -> None:
    sizes = [count_values(path.read_bytes()) for path in (ROOT / "tests/recorded").rglob("*.json")]
    assert 100 < max(sizes) < VALUES / 40


def test_results_have_the_same_limit_on_both_sides() -> None:
    found = [[] for _ in range(VALUES)]  # type: list[Any]
    with pytest.raises(NodeFailed, match="more than 131072 values"):
        write_answer(found, Any, len(LISTS))
    with pytest.raises(NodeFailed, match="the answer cannot be read: more than 131072 values"):
        read_answer(json.dumps(found), Any)


DOTTED = "\n".join(f"a.b{number}.c=1" for number in range(10_000))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DOTTED, "larger than 64 KiB"),
        ("é" * (TOML_BYTES // 2 + 1), "larger than 64 KiB"),
        (
            "[" + ".".join("a" * 8000) + "]\n" + "\n".join(f"k{n}=1" for n in range(5000)),
            "more than 512 dots",
        ),
        ('"\u2028".' * 600 + "a = 1", "more than 512 dots"),
        ("x=" + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x = ", "Invalid value"),
    ],
    ids=["large", "wide", "deep key", "line separator", "deep", "broken"],
)
def test_configuration_that_takes_too_long_is_refused(text: str, said: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match=said):
        read_toml(text)
    assert time.process_time() - begun < 1


def test_configuration_is_read() -> None:
    """Check that an ordinary configuration of containerd is within the limits."""
    names = ", ".join(f'"io.containerd.grpc.v1.p{number}"' for number in range(40))
    assert len(read_toml(f"disabled_plugins = [{names}]\n")["disabled_plugins"]) == 40
