"""Sets that were stored before anything was measured: no earlier set and no rule of the doctor has their
sources, so that no rule was made from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import RECORDED, ROOT

NEW = ("unheard", "untold")
"""Sets whose sources are held to be new."""
LEARNED: frozenset[str] = frozenset()
"""Sources of those sets that rules or later sets cite since their first measurement."""
_ISSUE = re.compile(r"github\.com/([^/]+/[^/]+)/(?:issues|pull|discussions)/(\d+)")
_CITED = re.compile(r"([\w.-]+/[\w.-]+), (?:issues?|pull requests?|discussions?) ((?:\d+(?:, | and )?)+)")


def key(source: str) -> str:
    """Return what all ways to write an address have in common; of an issue of GitHub, project and number."""
    text = re.sub(r"^https?://(?:www\.)?", "", source.partition("#")[0].partition("?")[0].lower())
    found = _ISSUE.match(text)
    return f"{found[1]}#{found[2]}" if found else re.sub(r"\.(?:html|md)$", "", text.rstrip("/"))


def cited(text: str) -> Iterator[str]:
    """Yield the keys of the issues and addresses in a source of the doctor's rules."""
    for project, numbers in _CITED.findall(text):
        yield from (f"{project.lower()}#{number}" for number in re.findall(r"\d+", numbers))
    yield from map(key, re.findall(r"(?:https?://|pastebin\.com/)[^\s;,)]+", text))


def sources(node: Any) -> Iterator[str]:
    """Yield the sources of all entries of a set."""
    if isinstance(node, dict):
        if isinstance(node.get("source"), str):
            yield node["source"]
        node = list(node.values())
    for each in node if isinstance(node, list) else ():
        yield from sources(each)


def recorded() -> dict[str, set[str]]:
    """Return the keys of the sources of each set, by its name."""
    result: dict[str, set[str]] = {}
    for path in sorted((*RECORDED.glob("reports/**/*.json"), *RECORDED.glob("stacks/*.json"))):
        name = path.stem.removeprefix("healthy-")
        result.setdefault(name, set()).update(map(key, sources(json.loads(path.read_text("utf-8")))))
    return result


def rules() -> set[str]:
    """Return the keys of the sources of the doctor's rules."""
    document = json.loads((ROOT / "gpuprov/doctor/data/faults.json").read_text("utf-8"))
    return {each for text in document["sources"].values() for each in cited(text)}


@pytest.mark.parametrize("name", NEW)
def test_no_rule_and_no_earlier_set_has_the_sources_of_a_new_set(name: str) -> None:
    sets = recorded()
    mine = sets.pop(name)
    assert len(mine) > 50
    assert not mine & set().union(*sets.values()) - LEARNED
    assert not mine & rules() - LEARNED


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("https://github.com/Witko/nvidia-xrun/issues/106#issuecomment-1", "Witko/nvidia-xrun, issue 106"),
        ("https://github.com/nvidia/nvtrust/issues/56", "NVIDIA/nvtrust, issues 19, 51 and 56 (guests)"),
        ("https://github.com/pop-os/pop/pull/3363", "rwth-i6/returnn, issue 1500; pop-os/pop, issue 3363"),
        ("https://www.example.com/page.html", "see http://example.com/page; and others"),
    ],
)
def test_a_source_is_the_same_in_all_ways_to_write_it(address: str, text: str) -> None:
    assert key(address) in set(cited(text))


def test_the_sources_of_rules_and_sets_are_read() -> None:
    assert {"kata-containers/kata-containers#1142", "bumblebee-project/bumblebee#628"} <= rules()
    assert {"unmet", "unheard", "recent"} <= set(recorded())
