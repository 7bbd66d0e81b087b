"""Terms for states that verify and drift read independently: both use the same ones."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gpuprov_node
import pytest
from testinfra.host import Host

from gpuprov.drift.observations.registry import NAMERS, OBSERVERS
from gpuprov.drift.observations.units import (
    commanded_by,
    enabled,
    in_place_of,
    not_applied,
    not_applied_by,
    own_unit_state,
)
from gpuprov.errors import NodeFailed
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import services
from gpuprov.probe.node import sshd as probe_sshd
from gpuprov.probe.parse import packages
from gpuprov.probe.parse.units import parse_units
from gpuprov.roles import Expectation
from gpuprov.roles.container_toolkit import CDI_SERVICE, CDI_UNIT
from gpuprov.roles.gpu_settings import PERSISTENCE_UNIT
from gpuprov.roles.overruling import APPLIED_BY, UNMET
from gpuprov.verify import readings
from gpuprov.verify.observers import dnf
from gpuprov.verify.observers import sshd as observer_sshd
from gpuprov.verify.readings import unit_state
from gpuprov.verify.shell import ShellBackend
from gpuprov.verify.suite import test_container_toolkit as suite
from tests.unit.verify.nodes_on_paper import PaperShell

SITES = "/etc/systemd/system/x.service"


def facts(shown: dict[str, str], states: str = "", replaced: dict[str, str] | None = None) -> Facts:
    """Return facts with units of these properties."""
    text = "\n".join(f"{name}={value}" for name, value in shown.items())
    return cast(Facts, SimpleNamespace(units=parse_units(text, {}, states, replaced)))


def host(
    shown: dict[str, str], at_boot: str, delta: str | None = "", *, ours: bool = False, error: str = ""
) -> Any:
    """Return a node that answers the commands of verify; without systemd-delta if `delta` is None."""

    def run(command: str, *_words: str) -> Any:
        """Answer systemctl's and systemd-delta's commands."""
        texts = {readings.ENABLED: f"{at_boot}\n", "systemd-delta": delta or ""}
        out = next((text for start, text in texts.items() if command.startswith(start)), "")
        said = error if command == readings.ENABLED else ""
        failed = delta is None if command == readings.REPLACED else not ours
        return SimpleNamespace(stdout=out, stderr=said, rc=int(failed), failed=failed)

    return SimpleNamespace(service=lambda name: SimpleNamespace(systemd_properties=shown), run=run)


@pytest.mark.parametrize(
    ("load", "file", "active", "word"),
    [
        ("loaded", "enabled", "active", "enabled"),
        ("loaded", "enabled", "failed", "enabled, but failed"),
        ("loaded", "enabled", "inactive", "enabled, but inactive"),
        ("loaded", "enabled", "reloading", "enabled"),
        ("loaded", "enabled", "activating", "enabled"),
        ("loaded", "disabled", "active", "disabled"),
        ("loaded", "static", "active", "static"),
        ("loaded", "enabled-runtime", "active", "enabled-runtime"),
        ("loaded", "linked", "active", "linked"),
        ("loaded", "", "inactive", "disabled"),
        ("masked", "masked", "inactive", "masked"),
        ("masked", "masked-runtime", "active", "masked-runtime"),
        ("not-found", "", "inactive", "not installed"),
    ],
)
def test_a_unit(load: str, file: str, active: str, word: str) -> None:
    """Check that drift and verify have the same word for a unit's state."""
    shown = {"Id": "x.service", "LoadState": load, "UnitFileState": file, "ActiveState": active}
    assert enabled(facts(shown), "x.service") == unit_state(host(shown, file), "x.service") == word


def test_a_unit_that_waits_to_be_started_again_is_not_active() -> None:
    shown = {**ACTIVE, "ActiveState": "activating", "SubState": "auto-restart"}
    word = "enabled, but activating"
    assert enabled(facts(shown), "x.service") == unit_state(host(shown, "enabled"), "x.service") == word


ACTIVE = {"Id": "x.service", "LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}


@pytest.mark.parametrize("state", ["masked", "masked-runtime", "disabled"])
def test_the_files_count_that_systemd_has_not_read(state: str) -> None:
    found = facts(ACTIVE, f"x.service {state} enabled\n")
    assert enabled(found, "x.service") == unit_state(host(ACTIVE, state), "x.service") == state


@pytest.mark.parametrize(
    ("at_boot", "error"), [("", "Failed to get unit file state for x.service: No such file or directory\n"),
                           ("generated", ""), ("not-found", "")],
)  # fmt: skip
def test_a_unit_whose_file_is_gone(at_boot: str, error: str) -> None:
    """Judge a unit that systemd still runs, also if a script in /etc/init.d is left."""
    text = "\n".join(f"{name}={value}" for name, value in ACTIVE.items())
    found = cast(Facts, SimpleNamespace(units=parse_units(text, {}, "", {}, ["x.service"])))
    word = "not installed"
    assert enabled(found, "x.service") == unit_state(host(ACTIVE, at_boot, error=error), "x.service") == word


@pytest.mark.parametrize("expected", ["enabled", "disabled"])
def test_a_masked_unit_stays_off(expected: str) -> None:
    """Check that a masked unit counts as disabled, for drift as for verify."""
    expectation = Expectation("gpu.persistence_unit", expected, "gpu_settings")
    shown = {**ACTIVE, "Id": PERSISTENCE_UNIT}
    state = own_unit_state(facts(shown, f"{PERSISTENCE_UNIT} masked enabled\n"), expectation)
    assert state == readings.stays_off("masked", expected)
    assert (state == expected) is (expected == "disabled")


@pytest.mark.parametrize(
    ("expected", "path_unit", "service", "word"),
    [
        ("enabled", "enabled", "enabled", "enabled"),
        ("enabled", "enabled", "masked", f"enabled, but {CDI_SERVICE} is masked"),
        ("enabled", "enabled", "masked-runtime", f"enabled, but {CDI_SERVICE} is masked-runtime"),
        ("enabled", "enabled", "disabled", f"enabled, but {CDI_SERVICE} is disabled"),
        ("enabled", "disabled", "enabled", f"disabled, but {CDI_SERVICE} is enabled"),
        ("enabled", "masked", "masked", "masked"),
        ("disabled", "disabled", "disabled", "disabled"),
        ("disabled", "masked", "masked", "disabled"),
        ("disabled", "disabled", "enabled", f"disabled, but {CDI_SERVICE} is enabled"),
    ],
)
def test_the_service_that_a_path_unit_starts(expected: str, path_unit: str, service: str, word: str) -> None:
    files = {CDI_UNIT: path_unit, CDI_SERVICE: service}
    shown = {name: {**ACTIVE, "Id": name, "UnitFileState": state} for name, state in files.items()}
    shown[CDI_SERVICE]["ActiveState"] = "inactive"  # a oneshot, which is done
    text = "\n\n".join("\n".join(map("=".join, each.items())) for each in shown.values())
    units = cast(Facts, SimpleNamespace(units=parse_units(text, {}, "")))
    expectation = Expectation("container_toolkit.cdi", expected, "container_toolkit")
    assert OBSERVERS["container_toolkit.cdi"](units, expectation) == word
    node = host(shown[CDI_UNIT], path_unit)
    node.service = lambda name: SimpleNamespace(systemd_properties=shown[name])
    answer = node.run
    node.run = lambda command, *words: answer(command) if words[:1] != (CDI_SERVICE,) else SimpleNamespace(
        stdout=f"{service}\n", stderr="", rc=0, failed=False
    )  # fmt: skip
    refused: AbstractContextManager[Any] = (
        nullcontext() if word == expected else pytest.raises(AssertionError)
    )
    with refused:
        suite.test_cdi_specification_is_kept_up_to_date(node, expected)


@pytest.mark.parametrize("kind", ["OVERRIDDEN", "REDIRECTED"])
def test_a_file_in_place_of_the_packages(kind: str) -> None:
    delta = (
        f"[{kind}] {SITES} -> /usr/lib/systemd/system/x.service\n\n1 overridden configuration files found.\n"
    )
    word = "enabled, by another unit file"
    assert enabled(facts(ACTIVE, replaced={"x.service": SITES}), "x.service") == word
    assert unit_state(host(ACTIVE, "enabled", delta), "x.service") == word
    assert unit_state(host(ACTIVE, "enabled", delta, ours=True), "x.service") == "enabled"
    others = delta.replace("x.service", "other-x.service")
    assert unit_state(host(ACTIVE, "enabled", others), "x.service") == "enabled"


DROP_IN = "/etc/systemd/system/x.service.d/site.conf"
PACKAGES = "/usr/lib/systemd/system/x.service"
OTHER = "enabled, with another command"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("/bin/true", OTHER),
        ("/usr/bin/xx -c /etc/x", OTHER),
        ("/usr/bin/x --debug", "enabled"),
        ("-/usr/bin/x", "enabled"),
        ("/usr/bin/numactl -m 0 /usr/bin/x", "enabled"),
        ("/bin/sh -c 'exec /usr/bin/x'", "enabled"),
    ],
)
def test_a_drop_in_that_starts_another_program(command: str, word: str, tmp_path: Path) -> None:
    """Check the state of a unit of a package; other options of its program belong to the site."""
    package = tmp_path / "x.service"
    package.write_text("[Service]\nExecStart = -@/usr/bin/x -d\n")
    argv = command.lstrip("-").replace("'", "")  # as systemctl prints it
    shown = {**ACTIVE, "FragmentPath": PACKAGES, "DropInPaths": DROP_IN}
    shown["ExecStart"] = f"{{ path=/x ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] }}"
    text = "\n".join(f"{name}={value}" for name, value in shown.items())
    commands = {PACKAGES: [f"{PACKAGES}:2"], DROP_IN: [f"{DROP_IN}:3"]}
    units = parse_units(text, commands, programs={PACKAGES: services._programs(str(package))})
    found = cast(Facts, SimpleNamespace(units=units))
    node = host(shown, "enabled")
    files = f"# {PACKAGES}\n{package.read_text()}\n# {DROP_IN}\n[Service]\nExecStart=\nExecStart={command}\n"
    answer = node.run
    node.run = lambda asked, *words: (
        SimpleNamespace(stdout=files) if asked.startswith("systemctl cat") else answer(asked, *words)
    )
    assert enabled(found, "x.service") == unit_state(node, "x.service") == word
    assert [*filter(None, in_place_of(found, "x.service"))] == ([f"{DROP_IN}:3"] if word == OTHER else [])


@pytest.mark.parametrize(
    ("path", "text", "word"),
    [
        (DROP_IN, "ConditionPathExists=/none", UNMET),
        (DROP_IN, "AssertPathExists = /none\nConditionPathExists=/etc", UNMET),
        (DROP_IN, "ConditionPathExists=/etc", "enabled"),
        (DROP_IN, "ConditionPathExists=|/none\nConditionPathExists=|/etc", "enabled"),
        (DROP_IN, "ConditionPathExists=/none\nConditionPathExists=", "enabled"),
        (DROP_IN, "ConditionOfNoSystemd=/none", "enabled"),
        (PACKAGES, "ConditionPathExists=/proc/driver/none/version", "enabled"),
        (PACKAGES, "ConditionPathExists=!/etc/hosts", UNMET),
        (PACKAGES, "ConditionPathExists=|/etc/none\nConditionPathExists=|/usr", "enabled"),
    ],
)
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_conditions_that_keep_a_unit_from_starting(
    path: str, text: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the state of a unit with conditions, which this machine's systemd judges."""
    written = tmp_path / "site.conf"
    written.write_text(f"[Unit]\n{text}\n")
    monkeypatch.setattr(services, "OF_SITE", (str(tmp_path),) if path == DROP_IN else ())
    place = services._unmet(str(written))
    shown = {**ACTIVE, "FragmentPath": PACKAGES, "DropInPaths": DROP_IN}
    properties = "\n".join(f"{name}={value}" for name, value in shown.items())
    units = parse_units(properties, unmet={path: place} if place else {})
    found = cast(Facts, SimpleNamespace(units=units))
    node, files = host(shown, "enabled"), f"# {path}\n{written.read_text()}"
    answer = node.run

    def run(asked: str, *words: str) -> Any:
        """Answer as `host` does; run systemd-analyze."""
        if asked.startswith("systemd-analyze"):
            done = subprocess.run([*asked.split()[:2], *words], capture_output=True, text=True, check=False)
            return SimpleNamespace(succeeded=done.returncode == 0, stderr=done.stderr)
        return SimpleNamespace(stdout=files) if asked.startswith("systemctl cat") else answer(asked, *words)

    node.run = run
    assert enabled(found, "x.service") == unit_state(node, "x.service") == word
    assert [*filter(None, in_place_of(found, "x.service"))] == [place] * (word == UNMET)


@pytest.mark.parametrize(
    ("said", "unknown"),
    [
        ("Failed to initialize unit search paths: No space left on device", True),
        ("Killed", True),
        ("Unknown command verb condition.", False),
    ],
)
def test_conditions_that_systemd_cannot_check_are_not_in_order(
    said: str, unknown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a /tmp that a user has filled, where `systemd-analyze` makes a folder; before 250 it cannot."""
    text = "# /etc/x.conf\n[Unit]\nConditionPathExists=/none\n"
    (tmp_path / "x.conf").write_text(text)
    monkeypatch.setattr(services, "OF_SITE", (str(tmp_path),))
    monkeypatch.setattr(services, "run_anyway", lambda *_: (1, "", said))
    answers = {
        "systemctl cat x.service": (0, text, ""),
        "systemd-analyze condition ConditionPathExists=/none": (1, "", said),
    }
    node: Any = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    node.backend.set_host(node)
    place = f"{tmp_path}/x.conf:3" if unknown else None  # no failure, which would hide all units' faults
    assert services._unmet(str(tmp_path / "x.conf")) == place
    with pytest.raises(NodeFailed, match=f"/etc/x.conf: {said}") if unknown else nullcontext():
        assert not readings.unmet(node, "x.service")


ANOTHER = f"# {DROP_IN}\n[Service]\nExecStart=\nExecStart=/bin/true\n"
NEVER = f"# {DROP_IN}\n[Unit]\nConditionPathExists=/none\n"


@pytest.mark.parametrize("check", APPLIED_BY)
@pytest.mark.parametrize(
    ("state", "drop_in", "by", "word"),
    [
        ("static", "", "", ""),
        ("enabled", "", "", ""),
        ("masked", "", SITES, "masked"),
        ("static", "", SITES, "enabled, by another unit file"),
        ("static", ANOTHER, f"{DROP_IN}:4", OTHER),
        ("static", NEVER, f"{DROP_IN}:3", UNMET),
    ],
    ids=["static", "enabled", "masked", "replaced", "another program", "conditions"],
)
def test_a_unit_of_systemd_that_applies_settings_at_boot(
    check: str, state: str, drop_in: str, by: str, word: str
) -> None:
    """Check that both say which unit does not apply a check's settings, and that drift names the place."""
    *others, name = APPLIED_BY[check]
    program = "/usr/lib/systemd/x"
    plain = {**ACTIVE, "UnitFileState": "static", "FragmentPath": PACKAGES, "ExecStart": _argv(program)}
    changed = {**plain, "DropInPaths": DROP_IN} if drop_in else plain
    changed |= {"ExecStart": _argv("/bin/true")} if drop_in == ANOTHER else {}
    rows = [*({**plain, "Id": each} for each in others), {**changed, "Id": name}]
    units = parse_units(
        "\n\n".join("\n".join(map("=".join, row.items())) for row in rows),
        {PACKAGES: [f"{PACKAGES}:9"], **({DROP_IN: [by]} if drop_in == ANOTHER else {})},
        f"{name} {state} enabled\n",
        {name: by} if by == SITES else {},
        programs={PACKAGES: [program]},
        unmet={DROP_IN: by} if drop_in == NEVER else {},
    )
    found, expectation = cast(Facts, SimpleNamespace(units=units)), Expectation(check, ["x"], "role")
    said = f"{name} is {word}" if word else None
    assert not_applied(found, expectation) == said
    assert [*filter(None, not_applied_by(found, expectation))] == [by] * bool(by)

    delta = f"[OVERRIDDEN] {SITES.replace('x.service', name)} → {PACKAGES}\n" if by == SITES else ""
    text = f"# {PACKAGES}\n[Service]\nExecStart={program}\n"
    answers = {unit: (host(plain, "static"), text) for unit in others}
    answers[name] = (host(changed, state, delta), text + drop_in)

    def run(asked: str, *words: str) -> Any:
        """Answer for the unit in the words, else for the last one."""
        node, files = answers.get(words[0] if words else name, answers[name])
        if asked.startswith("systemctl cat"):
            return SimpleNamespace(stdout=files)
        failed = SimpleNamespace(succeeded=False, stderr="Conditions failed.\n")
        return failed if asked.startswith("systemd-analyze") else node.run(asked, *words)

    node = cast(Any, SimpleNamespace(service=lambda unit: answers[unit][0].service(unit), run=run))
    assert readings.not_applied(node, check) == said


def _argv(command: str) -> str:
    """Return ExecStart as systemctl prints it."""
    return f"{{ path=/x ; argv[]={command} ; ignore_errors=no ; start_time=[n/a] }}"


def test_an_sshd_that_is_not_to_be_run() -> None:
    """Check `ssh.at_boot` of a unit that is enabled, and whose conditions fail."""
    shown = {**ACTIVE, "Id": "ssh.service", "FragmentPath": "/lib/systemd/system/ssh.service"}
    line = "ConditionPathExists=!/etc/ssh/sshd_not_to_be_run"
    text = "\n".join(f"{name}={value}" for name, value in shown.items())
    place = f"{shown['FragmentPath']}:5"
    units = parse_units(text, unmet={shown["FragmentPath"]: place})
    found = cast(Facts, SimpleNamespace(units=units))
    expectation = Expectation("ssh.at_boot", "enabled", "ssh_hardening")
    assert OBSERVERS["ssh.at_boot"](found, expectation) == f"ssh.service is {UNMET}"
    assert [*filter(None, NAMERS["ssh.at_boot"](found, expectation))] == [place]
    answers = {
        observer_sshd.UNITS: (0, "ssh.service enabled enabled\nssh.socket disabled enabled\n", ""),
        "systemctl cat ssh.service": (0, f"# {shown['FragmentPath']}\n[Unit]\n{line}\n", ""),
        f"systemd-analyze condition '{line}'": (1, "", f"test.service: {line} failed.\nConditions failed.\n"),
    }
    node: Any = Host(ShellBackend("node", PaperShell(answers, None), budget_s=60))
    node.backend.set_host(node)
    node.sshd = observer_sshd.Sshd.get_module(node)
    assert readings.sshd_at_boot(node) == f"ssh.service is {UNMET}, ssh.socket is disabled"


def test_a_node_that_cannot_tell_is_not_in_order() -> None:
    with pytest.raises(NodeFailed, match="systemd-delta"):
        unit_state(host(ACTIVE, "enabled", None), "x.service")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders of units: the site's, and the packages' by both of its names."""
    site, packages = tmp_path / "etc", tmp_path / "usr/lib"
    site.mkdir()
    packages.mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    monkeypatch.setattr(services, "UNIT_FOLDERS", (str(site), str(packages), str(tmp_path / "lib")))
    (packages / "x.service").write_text("[Service]\nExecStart=/usr/bin/x\n")
    return {"site": site, "packages": packages}


def test_which_file_counts_on_the_node(folders: dict[str, Path]) -> None:
    assert services._replacement("x.service") is None
    own = folders["site"] / "x.service"
    own.symlink_to(folders["packages"] / "x.service")
    assert services._replacement("x.service") is None
    own.unlink()
    own.write_text("[Service]\nExecStart=/usr/bin/x\n")
    assert services._replacement("x.service") == str(own)
    own.write_text("# Written by gpuprov, role x\n[Service]\n")
    assert services._replacement("x.service") is None
    own.unlink()
    own.symlink_to("/dev/null")
    assert services._replacement("x.service") == str(own)
    (folders["site"] / "alone.service").write_text("[Service]\n")
    assert services._replacement("alone.service") is None


CLOCKS = {**ACTIVE, "Id": "gpuprov-gpu-clocks.service", "FragmentPath": SITES}


def started(*commands: str) -> tuple[dict[str, str], str]:
    """Return properties and text of a unit that gpuprov's file starts with commands."""
    line = "{{ path=/x ; argv[]={} ; ignore_errors=no ; start_time=[n/a] }}"
    lines = "".join(f"ExecStart={each}\n" for each in commands)
    shown = {**CLOCKS, "ExecStart": " ".join(map(line.format, commands))}
    return shown, f"# {SITES}\n# Written by gpuprov, role x\n[Service]\n{lines}"


@pytest.mark.parametrize(
    ("drop_in", "word"),
    [
        ("/etc/systemd/system/gpuprov-gpu-clocks.service.d/site.conf", "enabled, changed by a drop-in"),
        ("/run/systemd/system/service.d/zzz-lxc-service.conf", "enabled"),
    ],
)
def test_a_drop_in_of_our_own_unit_is_noted(drop_in: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, text = started("/x set 1410")
    expectation = Expectation("gpu.clocks_unit", "enabled", "gpu_settings", subject="/x set 1410")
    found = facts({**shown, "DropInPaths": drop_in})
    assert own_unit_state(found, expectation) == word
    off = facts({**shown, "DropInPaths": drop_in, "UnitFileState": "disabled"})
    assert own_unit_state(off, expectation) == "disabled"
    assert list(filter(None, commanded_by(found, expectation))) == ([] if word == "enabled" else [drop_in])
    monkeypatch.setattr(readings, "unit_state", lambda host, unit: "enabled")
    text += f"\n# {drop_in}\n[Service]\nNice=5\n"
    node: Any = SimpleNamespace(run=lambda command, unit: SimpleNamespace(stdout=text))
    assert readings.own_unit_state(node, "gpuprov-gpu-clocks.service", "/x set 1410") == word


@pytest.mark.parametrize(
    ("commands", "word"),
    [
        (["/x set 1410"], "enabled"),
        (["/x set 1000"], "enabled, with another command"),
        (["/x set 1410", "/x reset"], "enabled, with another command"),
        ([], "enabled, with another command"),
    ],
)
def test_a_command_in_our_own_file_is_ours_only_as_stated(
    commands: list[str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, text = started(*commands)
    expectation = Expectation("gpu.clocks_unit", "enabled", "gpu_settings", subject="/x set 1410")
    assert own_unit_state(facts(shown), expectation) == word
    monkeypatch.setattr(readings, "unit_state", lambda host, unit: "enabled")
    node: Any = SimpleNamespace(run=lambda command, unit: SimpleNamespace(stdout=text))
    assert readings.own_unit_state(node, "gpuprov-gpu-clocks.service", "/x set 1410") == word


def test_an_sshd_that_could_not_run_prints_one_message() -> None:
    assert probe_sshd.NO_FOLDER == observer_sshd.NO_FOLDER


def test_packages_that_may_have_several_versions_have_the_same_names() -> None:
    assert packages.SEVERAL == dnf.SEVERAL
    for name in ("kernel", "kernel-core", "kernel-devel", "kernel-headers", "kernel-tools-libs", "dkms"):
        assert bool(packages.SEVERAL.match(name)) == bool(gpuprov_node.SEVERAL.match(name)), name
