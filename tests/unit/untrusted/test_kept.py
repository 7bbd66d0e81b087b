"""Results that are kept: of short arguments only, and as many as stated."""

from __future__ import annotations

import sys

import pytest

from gpuprov.access import pam
from gpuprov.catalog import gpu_words
from gpuprov.catalog.version import version
from gpuprov.doctor.concerns import packages as concerns
from gpuprov.nccl import lines
from gpuprov.probe.parse import apt, gpu, modules, packages, sshd, system, values
from gpuprov.untrusted.kept import kept

LONG = 1 << 20


def test_a_long_argument_is_not_kept() -> None:
    seen: list[object] = []

    @kept(2, 10)
    def read(text: str | None, more: tuple[str, ...] = (), *, last: str = "") -> int:
        seen.append(text)
        return len(seen)

    assert [read("a"), read("a"), read(None), read(None)] == [1, 1, 2, 2]
    assert [read("a" * 11), read("a" * 11)] == [3, 4]
    assert [read("b", ("c" * 5, "c" * 5)), read("b", ("c" * 5, "c" * 5))] == [5, 6]
    assert [read("b", last="c" * 10), read("b", last="c" * 10)] == [7, 8]
    assert [read("x"), read("y"), read("a")] == [9, 10, 11]


READERS = {
    "dpkg": lambda text: packages.parse_dpkg(text),
    "rpm": lambda text: packages.parse_rpm(text),
    "locks": lambda text: packages.parse_rpm("", (text,)),
    "apt-config": apt.parse_apt_config,
    "clocks": gpu._supported,
    "command line": modules.named_on,
    "sshd": sshd.parse_sshd,
    "os-release": system.parse_os_release,
    "trouble": values.trouble,
    "value": values.text_or_none,
    "transport": lines._transport,
    "control": pam._actions,
    "name": gpu_words.plain,
    "patterns": lambda text: concerns._safe((text,)),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_parser_keeps_a_long_text_of_a_node(reader: str) -> None:
    text = "a" * LONG
    before = sys.getrefcount(text)
    READERS[reader](text)
    assert sys.getrefcount(text) == before


def test_a_version_is_short() -> None:
    assert version("1" + ".2" * 15).parts[-1] == 2
    with pytest.raises(ValueError, match="is not a version"):
        version("1" + ".2" * 16)
