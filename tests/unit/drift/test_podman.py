"""Podman's defaults as drift sees them: in lines of Podman's help, with the file that sets each."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import pytest

from gpuprov.drift.judge import Difference, judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import base, containers
from gpuprov.roles import Expectation
from gpuprov.roles.podman import CONFIG
from tests.unit.programs import write_program

SIZE = '      --shm-size <number>[<unit>]   Size of /dev/shm (format: <number>[<unit>]) (default "{}")'
ULIMIT = "      --ulimit strings              Ulimit options (default [{}])"
MANAGER = '      --cgroup-manager string       Cgroup manager to use ("cgroupfs"|"systemd") (default "{}")'
LATER = "/etc/containers/containers.conf.d/zz-site.conf"
EXPECTED = {"shm_size": 2**30, "memlock": "unlimited", "stack": 67108864, "cgroup_manager": "systemd"}


def seen(expected: dict[str, Any], *lines: str, **places: str) -> Difference | None:
    """Return the difference of a node whose Podman prints these lines, and whose files set these keys."""
    named = [[CONFIG, key] for key in ("shm_size", "default_ulimits", "cgroup_manager")]
    named += [[path, key] for key, path in places.items()]
    facts = Facts("node", "", 0.0, {"podman": {"options": list(lines), "places": named}})
    found = judge("node", facts, [Expectation("podman.config", expected, "podman")]).drift
    return found[0] if found else None


@pytest.mark.parametrize("closed", [[], ["/etc/hosts"]])
def test_files_that_only_root_can_read_are_named(closed: list[str]) -> None:
    facts = Facts("node", "", 0.0, {"podman": {"options": [], "places": [], "closed": closed}})
    found = judge("node", facts, [Expectation("podman.readable", [], "podman")]).drift
    assert [(each.actual, list(each.by)) for each in found] == ([(closed, closed)] if closed else [])


def test_podman_prints_what_its_files_make_together() -> None:
    limits = "memlock=-1:-1,stack=67108864:67108864,nofile=5:6"
    assert seen(EXPECTED, SIZE.format(2**30), ULIMIT.format(limits), MANAGER.format("systemd")) is None


@pytest.mark.parametrize(
    ("size", "actual"), [("1g", 10**9), ("65536k", 65536000), ("64MB", 64 * 10**6), ("9" * 19, "9" * 19)]
)
def test_sizes_of_podman_s_files_are_decimal(size: str, actual: int | str) -> None:
    found = seen({"shm_size": 2**30}, SIZE.format(size))
    assert found
    assert found.actual == {"shm_size": actual}


def test_a_later_file_overrides_podman_s_defaults() -> None:
    lines = (SIZE.format("65536k"), ULIMIT.format("memlock=1:2"), MANAGER.format("systemd"))
    found = seen(EXPECTED, *lines, default_ulimits=LATER)
    assert found
    assert found.actual == {"shm_size": 65536000, "memlock": "1:2", "stack": None}
    assert found.by == (LATER,)


@pytest.mark.parametrize(
    "line", ["", "   (default 1)", "nothing", "(default ", "  --ulimit strings   Ulimit options"]
)
def test_podman_without_a_default_has_none(line: str) -> None:
    found = seen({"memlock": 1}, line)
    assert found
    assert found.actual == {"memlock": None}


HELP = f"""\
case "$1" in
create) cat <<'END'
      --shm-size-systemd <number>[<unit>]   Size of systemd specific tmpfs mounts
{SIZE.format("1g")}
  -e, --env stringArray   Set environment variables in container (default [TOKEN=pa55])
{ULIMIT.format("memlock=1:1")}
END
;;
--help) cat <<'END'
{MANAGER.format("systemd")}
END
esac
"""


@pytest.mark.parametrize("asked", [True, False])
def test_only_the_lines_of_these_options_leave_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asked: bool
) -> None:
    site = (
        '[containers]\nshm_size = "2g"\n#default_ulimits = []\nenv = ["TOKEN=pa55"]\nengine.cgroup_manager=""'
    )
    files = {"/etc/containers/containers.conf": "", LATER: site}
    write_program(tmp_path / "podman", HELP)
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", f"{tmp_path}:{base.ENVIRONMENT['PATH']}")
    monkeypatch.setattr(containers, "read_or_none", files.get)
    monkeypatch.setattr(glob, "glob", lambda pattern: [LATER])
    monkeypatch.setattr(containers, "closed", {"/etc/hosts": "/etc/hosts", LATER: LATER}.get)
    monkeypatch.setattr(os.path, "realpath", str)
    found = containers.podman({"podman": asked})
    if not asked:
        assert found == {"options": [], "places": [], "closed": []}
        return
    assert found == {
        "options": [MANAGER.format("systemd"), SIZE.format("1g"), ULIMIT.format("memlock=1:1")],
        "places": [[LATER, "shm_size"], [LATER, "cgroup_manager"]],
        "closed": ["/etc/hosts", LATER],
    }
