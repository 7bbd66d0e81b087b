"""Checks of a node's health check: its files, its timer, and a fresh verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.health import FIRST_S, SERVICE, TIMER, VERDICT
from gpuprov.untrusted import shell_words
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

JOURNAL = f"journalctl -u {SERVICE} -n 20 --no-pager"
AGE = (
    f"read -r _ boot at valid _ < {VERDICT} && read -r now _ < /proc/uptime && "
    'test "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" && echo $((${now%%.*} - at)) "$valid"'
)
"""Shell line that prints age and validity of a verdict of this boot."""
BOOTED = (
    "read -r stat </proc/1/stat && set -- ${stat##*) } && shift 19 && read -r now _ </proc/uptime && "
    "echo $((${now%%.*} - $1 / $(getconf CLK_TCK)))"
)
"""Shell line that prints the seconds since the system began to boot, by the start of its first process."""


@pytest.mark.check("health.files")
def test_the_files_of_the_health_check_are_unchanged(host: Node, expected: dict[str, str]) -> None:
    """Check the SHA-256 of program, configuration, scripts and units."""
    said = host.run(f"sha256sum {shell_words(sorted(expected))}").stdout
    rows = (line.split(maxsplit=1) for line in said.splitlines())
    assert {path: digest for digest, path in rows} == expected


@pytest.mark.check("health.timer", f"systemctl list-timers {TIMER} --no-pager", JOURNAL)
def test_the_timer_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    """Check that the timer is enabled and active."""
    assert unit_state(host, TIMER) == expected


@pytest.mark.check("health.verdict", f"cat {VERDICT}", JOURNAL)
def test_the_verdict_is_fresh(host: Node, expected: str) -> None:
    """Check that the last verdict is of this boot and still valid; shortly after a boot it may be missing."""
    words = host.run(AGE).stdout.split()
    if len(words) == 2:
        age, valid = map(int, words)
        assert ("fresh" if age <= valid else f"{age} s old, valid for {valid} s") == expected
    else:
        assert int(host.run(BOOTED).stdout) < FIRST_S, "no verdict of this boot"
