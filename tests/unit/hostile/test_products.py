"""Texts of a node with two kinds of words: no reader makes the product of their numbers or lengths."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from gpuprov.drift.majority import ASPECTS
from gpuprov.drift.observations import container_toolkit
from gpuprov.drift.observations.registry import OBSERVERS
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.verify.observers.apt import parse_written

WORDS = 1500
MEMORY = 6 << 20
"""Maximum memory in bytes; the product of `WORDS` and `WORDS` takes more."""


def facts_with(**collectors: Any) -> Facts:
    """Return facts with these answers of collectors."""
    return Facts("a", "", 1.0, collectors)


def clocks() -> object:
    """Parse a GPU with many memory clocks and many graphics clocks."""
    values = "".join(f"<value>{1000 + at}</value>" for at in range(WORDS))
    graphics = "<supported_graphics_clock>9</supported_graphics_clock>" * WORDS
    listed = f"<supported_mem_clock>{values}{graphics}</supported_mem_clock>"
    gpu = f"<gpu id='00000000:3B:00.0'><supported_clocks>{listed}</supported_clocks></gpu>"
    text = f"<?xml version='1.0' ?><nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>"
    return facts_with(smi={"stdout": text, "stderr": ""}).smi.gpus


def sources() -> Facts:
    """Return a node with one stanza of many addresses and many suites."""
    uris = " ".join(f"http://{at:x}/" for at in range(WORDS))
    suites = " ".join(f"{at:x}" for at in range(WORDS))
    text = f"Types: deb\nURIs: {uris}\nSuites: {suites}\nComponents: main\n"
    names = {
        "keys": [],
        "keyrings": {},
        "preferences": {},
        "cleared": [],
        "own": [],
        "pins": {},
        "trusted": [],
    }
    raw = {**names, "files": {"/etc/apt/sources.list.d/a.sources": text}, "config": "", "apt_config": ""}
    return facts_with(
        sources=raw,
        packages={"manager": "dpkg", "text": "", "interrupted": False},
        candidates={"rows": [], "places": []},
    )


def used() -> object:
    """Observe repositories of sources with many URIs and many suites."""
    wanted = Expectation("repositories.sources", ["http://f/ 1f", "http://none bookworm"], "repositories")
    return OBSERVERS["repositories.sources"](sources(), wanted)


def specifications() -> object:
    """Observe a CDI file with a long path and many versions."""
    about = {"missing": [], "versions": [str(at) for at in range(WORDS)], "gpus": 0, "private": False}
    cdi = {"/etc/cdi/" + "a" * 8 * WORDS: about}
    node = facts_with(toolkit={"config": "", "default": "", "cdi": cdi})
    return container_toolkit._unfit(node, "580.1")


def environment() -> object:
    """Return the variables of a file with a long path and many variables."""
    path = "/etc/profile.d/" + "a" * 8 * WORDS
    return ASPECTS["environment"](facts_with(environment={path: {f"N{at}": "" for at in range(WORDS)}}))


def stanzas() -> object:
    """Read stanzas of many short fields and lines, as verify does."""
    return parse_written("deb a\n" * (1 << 16), "a:\n" * (1 << 17) + "a:\n" + " b\n" * (1 << 17))


READERS: dict[str, Callable[[], object]] = {
    "clocks": clocks,
    "sources of drift": used,
    "sources of the majority": lambda: ASPECTS["apt.sources"](sources()),
    "specifications": specifications,
    "environment": environment,
    "stanzas of verify": stanzas,
}


@pytest.mark.parametrize("reader", READERS)
def test_two_kinds_of_words_take_the_memory_of_their_sum(reader: str) -> None:
    tracemalloc.start()
    try:
        READERS[reader]()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
