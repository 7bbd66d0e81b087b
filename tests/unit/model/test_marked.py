"""Limits of a YAML document: aliases, keys, depth, and the values that it can have."""

from __future__ import annotations

import re
import time
import tracemalloc
from typing import Any

import pytest
import yaml

from gpuprov.errors import InvalidInput, did_you_mean
from gpuprov.model import marked
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.marked import Marked


def said(text: str) -> str:
    """Return the error for a document."""
    with pytest.raises(InvalidInput) as caught:
        Marked(text, "x.yml")
    return str(caught.value)


def data(text: str) -> Any:
    """Return the data of a document."""
    return Marked(text, "x.yml").data


@pytest.mark.parametrize("name", ["a", "-0", "_", "9", "-", "a-b"])
@pytest.mark.parametrize(
    "text",
    [
        "a: &{0} [x]\nb: *{0}\n",
        "a: &{0} [x]\n? *{0}\n: y\n",
        "- &{0} [x]\n- *{0}\n",
        "- &{0} x\n- [*{0}]\n",
        "- &{0} x\n- [y,*{0}]\n",
        "- &{0} x\n- {{a: *{0}}}\n",
        '- &{0} x\n- {{"a":*{0}}}\n',
        "- &{0} x\n- {{*{0} : y}}\n",
        "- &{0} x\u2028- *{0}\n",
        "- &{0} {{y: x}}\n- {{<<: *{0}}}\n",
        "&{0} [x, *{0}]\n",
    ],
)
def test_no_alias_is_expanded(text: str, name: str) -> None:
    assert "not YAML: aliases (*name) are not allowed here" in said(text.format(name))


@pytest.mark.parametrize("levels", [3, 9])
def test_nested_aliases_take_no_time(levels: int) -> None:
    begun = time.process_time()
    lines = ["l0: &-0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &-{n} [" + ", ".join([f"*-{n - 1}"] * 10) + "]" for n in range(1, levels)]
    assert said("\n".join(lines)).startswith("x.yml:2: not YAML: aliases")
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "text", ["a: '*b'\nc: 5 * 3\n", "a: R&D\nb: '&x'\n", "a: lib*-*\nb: lib*\n", "a: &b x\n"]
)
def test_texts_with_the_sign_of_an_alias_are_none(text: str) -> None:
    assert data(text) == yaml.safe_load(text)


def test_keys_are_text_or_small_numbers() -> None:
    """Check that keys are no large numbers: those of one hash made reading take the square of their count."""
    assert data("a: {0: b, 100: c}\n") == {"a": {0: "b", 100: "c"}}
    assert said("a:\n  2305843009213693951: b\n") == (
        "x.yml:2: a key in a is no text: '2305843009213693951'; expected text; write it in quotes"
    )
    for number in ("0101", "0x10", "-1", "1_0", "1000000000"):
        assert "is no text" in said(f"{number}: a\n")
    assert "in the document is no text: '1.5'" in said("1.5: a\n")
    assert "is no text: 'on'" in said("on: a\n")
    assert "is no text: '2026-11-30'" in said("2026-11-30: a\n")
    assert "is no text: ''" in said("? !!null\n: a\n")
    assert "is no text; expected text" in said("? [a]\n: b\n")
    assert data("'100': a\n\"on\": b\n") == {"100": "a", "on": "b"}


@pytest.mark.parametrize("text", ["? {}\n: a\n", "a: {{b: {{? {} : c}}}}\n"])
def test_keys_have_a_length(text: str) -> None:
    """Check that thousands of errors do not each contain a long key: a document of 1 MB took 10 GB."""
    seen = "…' has 100000 characters; expected at most 512 together with the keys above it"
    assert seen in said(text.format("k" * 100_000))


def test_the_keys_above_count() -> None:
    keys = [letter * 120 for letter in "abcd"]
    assert data("{" + ": {".join(keys) + ": 1" + "}" * 4) is not None
    assert "expected at most 512" in said("{" + ": {".join([*keys, "e" * 120]) + ": 1" + "}" * 5)


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ("{a: ", "}")])
@pytest.mark.parametrize("place", ["{}", "groups: {{a: {{vars: {{x: {}}}}}}}"])
def test_values_are_not_nested_deeply(opened: str, closed: str, place: str) -> None:
    free = 32 - place.count(":")
    assert data(place.format(opened * free + "x" + closed * free))
    deep = place.format(opened * (free + 1) + "x" + closed * (free + 1))
    assert said(deep) == "x.yml:1: nested too deeply; expected at most 32 levels"


@pytest.mark.parametrize(
    "text",
    ["-\x85", "-\u2028", "? a\u2029", "- - - - - - - - - -\n", "-\t-\t-\n", "? ? ? ?\n"],
    ids=["nel", "line", "paragraph", "lists", "tabs", "keys"],
)
def test_all_signs_of_values_count(text: str) -> None:
    """Check that neither other ends of lines nor lists on one line hide the number of values."""
    values = len(re.findall(r"[-?]", text))
    assert said(text * (marked.VALUES // values + 1)) == "x.yml: more than 2097152 values"


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (
            "!!binary gIGC",
            "a.b has the type 'tag:yaml.org,2002:binary'; expected text, a number, true, false",
        ),
        ("!!map x", "a.b has the type 'tag:yaml.org,2002:map'"),
        (".inf", "a.b is '.inf'; expected a number of at most 64 bits"),
        (".nan", "a.b is '.nan'"),
        ("1.0e+999", "a.b is '1.0e+999'"),
        ("18446744073709551616", "a.b is '18446744073709551616'"),
        ("-18446744073709551616", "a.b is '-18446744073709551616'"),
        ("1" + "0" * 300, "a.b is '1000"),
        ("9" * 310, "a.b is '9999"),
        ("0x" + "f" * 17, "a.b is '0xfff"),
    ],
)
def test_values_are_those_of_json(value: str, seen: str) -> None:
    assert said(f"a:\n  b: {value}\n").startswith(f"x.yml:2: {seen}")


def test_a_long_document_is_refused_in_time_of_its_length() -> None:
    """Check that PyYAML does not read a long text only for its messages: a document of 4 MB took minutes."""

    def seconds(lines: int) -> float:
        """Return the processor time of a document with so many lines."""
        begun = time.process_time()
        assert said("a:\n" + "- a\n" * lines + "]\n").startswith(f"x.yml:{lines + 2}: not YAML: ")
        return time.process_time() - begun

    assert any(seconds(400_000) < 8 * seconds(100_000) for _ in range(3)), "also on a busy machine"


def test_no_node_of_a_document_is_kept() -> None:
    """Check that a process that reads many documents, as `gpuprov mcp` does, does not grow."""
    parse_fleet("groups: {a: {profile: p, os: o, hosts: n1, vars: {x: 1.5}}}\n", "fleet.yml")
    assert not marked._constructor.constructed_objects


def test_a_long_word_is_not_compared_with_others() -> None:
    """Check the memory of a suggestion: for a word of 30 MB it took a gigabyte."""
    long = "driver" * 200_000
    tracemalloc.start()
    try:
        assert did_you_mean(long, ["driver"]) == ""
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
