"""Meaning of the lock for Podman: packages, its file of defaults, CDI; and the role's reading of a node."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import gpuprov_apt as apt
import gpuprov_containers as containers
import gpuprov_node
import pytest

from gpuprov.roles import container_toolkit, docker, podman
from tests.unit.programs import write_program
from tests.unit.roles.scripts import script
from tests.unit.roles.test_expectations import group
from tests.unit.roles.test_templates import render

STATED = {"shm_size": "1g", "memlock": "unlimited", "stack": 67108864, "cgroup_driver": "cgroupfs"}
look, transaction = script("podman"), script("packages", "transaction")


def test_the_lock_in_podman_s_terms() -> None:
    [*others, config] = podman.expectations(group("podman", containers=STATED))
    assert [each.check for each in others] == ["podman.packages", "podman.readable"]
    assert config.check == "podman.config"
    assert config.expected == {
        "shm_size": 2**30,
        "memlock": "unlimited",
        "stack": 67108864,
        "cgroup_manager": "cgroupfs",
    }


def test_only_what_is_stated_is_configured() -> None:
    found = [each.check for each in podman.expectations(group("podman"))]
    assert found == ["podman.packages", "podman.readable"]
    assert podman.variables(group("podman", containers={"cdi": True}))["podman_config"] == {}
    assert podman.expectations(group(containers=STATED)) == []
    assert podman.variables(group(containers=STATED))["podman_config"] == {}


def written(config: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the role's file, on a node without others."""
    text = render("podman/templates/containers.conf.j2", __podman_last_look={"config": config})
    assert text.startswith("# Written by gpuprov, role podman: ")
    return tomllib.loads(text)


def test_the_file_states_the_same_in_containers_conf() -> None:
    config = podman.variables(group("podman", containers=STATED))["podman_config"]
    assert written(config) == {
        "containers": {
            "shm_size": "1073741824",  # Podman would read 1g as 1000000000
            "default_ulimits": ["memlock=-1:-1", "stack=67108864:67108864"],
        },
        "engine": {"cgroup_manager": "cgroupfs"},
    }
    config = podman.variables(group("podman", containers={"stack": 1}))["podman_config"]
    assert written(config) == {"containers": {"default_ulimits": ["stack=1:1"]}}


@pytest.mark.parametrize(
    ("others", "limits"),
    [
        ([], ["memlock=1:1"]),
        (["nofile=1:2"], ["nofile=1:2", "memlock=1:1"]),
        (["memlock=5:5", "nofile=1:2"], ["nofile=1:2", "memlock=1:1"]),
    ],
)
def test_limits_of_the_site_stay_unless_the_lock_states_them(others: list[str], limits: list[str]) -> None:
    config = {"containers": {"shm_size": "1", "default_ulimits": ["memlock=1:1"]}, "engine": {"a": "b"}}
    both = {"shm_size": "1", "default_ulimits": limits}
    assert look.merged(config, others) == {"containers": both, "engine": {"a": "b"}}


ULIMIT = "      --ulimit strings                           Ulimit options"
CREATE = """\
echo "$*" >>"$0.asked"
test "$*" = "create --help" || exit 2
cat <<'END'
  -e, --env strings      Set environment variables (default [TERM=xterm])
{}
END
"""
MASKS = """\
test "$1 $2" = "--mount sh" || exit 2
shift; exec "$@"
"""
MEMLOCK = {"containers": {"default_ulimits": ["memlock=1:1"]}}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of Podman, and of mount and unshare, which record what would be hidden."""
    monkeypatch.setattr(look, "installed", dict)
    monkeypatch.setattr(look, "OURS", tmp_path / "gpuprov.conf")
    monkeypatch.setattr(containers, "PROCESSES", f"{tmp_path}/no/*")
    monkeypatch.setitem(gpuprov_node.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    write_program(tmp_path / "unshare", MASKS)
    write_program(tmp_path / "mount", 'echo "$*" >>"$0.asked"')
    return tmp_path


@pytest.mark.parametrize(
    ("printed", "limits"),
    [
        (ULIMIT, ["memlock=1:1"]),
        (f"{ULIMIT} (default [nofile=1:2,nproc=-1:-1])", ["nofile=1:2", "nproc=-1:-1", "memlock=1:1"]),
        (f"{ULIMIT} (default [memlock=5,host])", ["host", "memlock=1:1"]),
    ],
)
def test_podman_states_the_limits_of_other_files(
    programs: Path, capsys: pytest.CaptureFixture[str], printed: str, limits: list[str]
) -> None:
    write_program(programs / "podman", CREATE.format(printed))
    found = seen(capsys, MEMLOCK)
    assert found["config"]["containers"]["default_ulimits"] == limits
    assert found["unread"] is None


@pytest.mark.parametrize(
    ("podman", "why"),
    [
        ("exit 125", "`podman create --help` exited with 125"),
        ("echo Error: no table >&2; exit 125", "`podman create --help` exited with 125: Error: no table"),
        ("echo nothing", "`podman create --help` has no option --ulimit"),
        (CREATE.format(f"{ULIMIT} (default nofile=1)"), "`podman create --help` has no option --ulimit"),
        (
            CREATE.format(f'{ULIMIT} (default [nofile=1,"a=b,c"])'),
            "the limit 'a=b,c' of another file is not NAME=SOFT:HARD",
        ),
    ],
)
def test_limits_that_cannot_be_read_are_a_reason_not_to_replace_them(
    programs: Path, capsys: pytest.CaptureFixture[str], podman: str, why: str
) -> None:
    write_program(programs / "podman", podman)
    assert seen(capsys, MEMLOCK)["unread"] == why


def test_podman_is_asked_without_the_role_s_file_and_later_ones(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("50-site.conf", "gpuprov.conf", "zz-site.conf", "zz-site.toml"):
        (programs / name).touch()
    write_program(programs / "podman", CREATE.format(ULIMIT))
    seen(capsys, MEMLOCK)
    hidden = [f"--bind /dev/null {programs / name}" for name in ("gpuprov.conf", "zz-site.conf")]
    assert (programs / "mount.asked").read_text().splitlines() == hidden


def test_a_tree_that_is_no_mount_point_hides_no_file(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "unshare: cannot change root filesystem propagation: Invalid argument"
    write_program(programs / "unshare", f"echo '{said}' >&2; exit 1")
    write_program(programs / "podman", CREATE.format(ULIMIT))
    assert seen(capsys, MEMLOCK)["unread"] is None  # with nothing to hide
    (programs / "gpuprov.conf").touch()
    assert "mount --bind TREE TREE" in str(seen(capsys, MEMLOCK)["unread"])


def test_podman_is_asked_only_if_the_lock_states_limits(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_program(programs / "podman", "exit 127")  # what the shell ends with if there is no Podman
    assert seen(capsys, MEMLOCK)["config"] == MEMLOCK
    write_program(programs / "podman", CREATE.format(ULIMIT))
    for config in ({}, {"engine": {"a": "b"}}, {"containers": {"shm_size": "1"}}):
        assert seen(capsys, config)["config"] == config
    assert not (programs / "podman.asked").exists()


@pytest.mark.parametrize(
    ("size", "count"),
    [("1g", 2**30), ("64m", 2**26), ("65536k", 2**26), ("12", 12), (None, None), ("9" * 30, "9" * 30)],
)
def test_sizes_are_bytes(size: str | None, count: int | str | None) -> None:
    """Check the bytes of a size with a unit."""
    assert podman.in_bytes(size) == count


def test_without_docker_its_daemon_is_not_configured() -> None:
    assert docker.daemon_config(group("podman", containers=STATED)) == {}
    assert docker.daemon_config(group("podman", "docker", containers=STATED)) != {}


@pytest.mark.parametrize(
    ("components", "stated", "interface"),
    [
        (("container_toolkit",), {}, None),
        (("container_toolkit", "podman"), {}, True),
        (("container_toolkit", "podman"), {"cdi": False}, False),
        (("container_toolkit",), {"cdi": True}, True),
        (("podman",), {}, None),
        (("docker", "container_toolkit"), {"cdi": False}, False),
    ],
)
def test_podman_has_the_device_interface_by_default(
    components: tuple[str, ...], stated: dict[str, Any], *, interface: bool | None
) -> None:
    locked = group(*components, containers=stated)
    assert container_toolkit.variables(locked)["container_toolkit_cdi"] is interface
    expected = [
        each.expected for each in container_toolkit.expectations(locked) if each.check.endswith("cdi")
    ]
    assert expected == ([] if interface is None else ["enabled" if interface else "disabled"])


def seen(capsys: pytest.CaptureFixture[str], config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what the role sees of the machine.

    Args:
        config: tables that the lock states.
    """
    look.main(config or {})
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


LISTED = """\
test "$*" = "ps --all --format=json" || exit 2
cat <<'END'
[{"Names": ["web"], "State": "running"}, {"Names": ["db"], "State": "paused"},
 {"Names": ["ending"], "State": "stopping"}, {"Names": ["kept"], "State": "exited"},
 {"Names": ["new"], "State": "created"}, {"Names": ["newer"], "State": "configured"}]
END
"""


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that the role takes for /proc, next to the only Podman in the PATH."""
    monkeypatch.setattr(look, "installed", dict)
    monkeypatch.setattr(containers, "PROCESSES", f"{tmp_path}/proc/[0-9]*")
    monkeypatch.setattr(containers, "ROOT", os.getuid())
    monkeypatch.setitem(gpuprov_node.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    write_program(tmp_path / "podman", LISTED)
    return tmp_path / "proc"


def process(folder: Path, program: str, comm: str = "conmon") -> None:
    """Write a process as /proc has it."""
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "exe").symlink_to(program)


@pytest.mark.parametrize("program", ["/usr/bin/conmon", "/usr/libexec/podman/conmon (deleted)"])
def test_containers_of_root_that_have_a_process_are_listed(
    processes: Path, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    process(processes / "1", "/usr/bin/conman")
    (processes / "2").mkdir()  # a process that has ended
    assert seen(capsys)["containers"] == []
    process(processes / "3", program)
    assert seen(capsys)["containers"] == ["db", "ending", "web"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("exit 125", "`podman ps` exited with 125"),
        ("echo web", "`podman ps` printed no list of containers"),
        ("echo '[{}]'", "`podman ps` printed no list of containers"),
        ("echo null", "`podman ps` printed no list of containers"),
    ],
)
def test_podman_that_lists_no_containers_is_named(
    processes: Path, capsys: pytest.CaptureFixture[str], answer: str, why: str
) -> None:
    process(processes / "1", "/usr/bin/conmon")
    write_program(processes.parent / "podman", answer)
    found = seen(capsys)
    assert (found["containers"], found["silent"]) == ([], why)


def test_a_user_s_processes_do_not_make_root_ask_podman(
    processes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process(processes / "1", "/usr/bin/sudo", comm="conmon")  # root's, by a link of that name
    write_program(processes.parent / "podman", "exit 125")
    assert seen(capsys)["silent"] is None
    process(processes / "2", "/usr/bin/conmon")
    monkeypatch.setattr(containers, "ROOT", os.getuid() + 1)
    assert seen(capsys)["silent"] is None


def test_container_that_starts_during_the_download_keeps_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(*idle: str) -> Any:
        return transaction.Order("x", {}, [], {}, [], [], list(idle), False, False, False, 1, 1)

    monkeypatch.setattr(containers, "of_podman", lambda: ["late"])
    monkeypatch.setattr(containers, "of_docker", list)
    transaction.idle(order("docker"))
    with pytest.raises(apt.Failed, match="would end late, started meanwhile"):
        transaction.idle(order("podman"))
