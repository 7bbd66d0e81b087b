"""gpuprov's own wheel: its hash is mandatory; commands of jobs, and contents of the release lock."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.wheel import Wheel, install_lines, wheel_by_url, wheel_of_job
from gpuprov.model.lock import write_lock
from gpuprov.upgrade import schedule
from tests import ROOT
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_first_boot import FLEET
from tests.unit.programs import write_program

NAME = "gpuprov-1-py3-none-any.whl"
URL = f"https://mirror.example/{NAME}"
HASH = "0a" * 32
NEEDED = "click==8.5.1 --hash=sha256:00\n"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Path of a repository with a wheel."""
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("gpuprov/share/requirements.lock", NEEDED)
    return tmp_path


@pytest.mark.parametrize(
    "stated",
    [
        None,
        URL,
        f"{URL}#sha256=abc",
        f"ftp://mirror.example/{NAME}#sha256={HASH}",
        f"https://mirror.example/other-1-py3-none-any.whl#sha256={HASH}",
        f"https://[x/{NAME}#sha256={HASH}",
        "https://[x",
        f"https://mirror.example/gpuprov-1;x-py3-none-any.whl#sha256={HASH}",
        "gpuprov==1",
        "gpuprov",
    ],
)
def test_a_wheel_without_its_hash_is_refused(stated: str | None, fleet: Path) -> None:
    for refused in (wheel_by_url, lambda text: wheel_of_job(text, fleet)):
        with pytest.raises(InvalidInput, match=r"--wheel|no wheel"):
            refused(stated)


def test_a_refusal_does_not_repeat_a_password() -> None:
    with pytest.raises(InvalidInput) as refused:
        wheel_by_url(f"https://me:hunter2@mirror.example/{NAME}?sig=hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("place", [f"https://me:hunter2@mirror.example/{NAME}", f"{URL}?sig=hunter2"])
def test_a_job_is_a_file_that_others_read(place: str, fleet: Path) -> None:
    assert wheel_by_url(f"{place}#sha256={HASH}") == Wheel(place, HASH)
    with pytest.raises(InvalidInput, match="without password and query") as refused:
        wheel_of_job(f"{place}#sha256={HASH}", fleet)
    assert "hunter2" not in str(refused.value)


def test_a_file_of_the_repository_is_taken_with_its_hash(
    fleet: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sha256 = hashlib.sha256((fleet / NAME).read_bytes()).hexdigest()
    assert wheel_of_job(str(fleet / NAME), fleet) == Wheel(NAME, sha256)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / NAME
    elsewhere.write_bytes((fleet / NAME).read_bytes())
    with pytest.raises(InvalidInput, match="the job checks out"):
        wheel_of_job(str(elsewhere), fleet)


def job_lines(text: str, forge: str) -> str:
    """Return the commands that a job runs before it has a key."""
    document = yaml.safe_load(text)
    if forge == "github":
        steps = document["jobs"]["drift"]["steps"]
        names = [each.get("name", "") for each in steps]
        assert names.index("Install gpuprov") < next(i for i, name in enumerate(names) if "key" in name)
        [step] = [each for each in steps if each.get("name") == "Install gpuprov"]
        assert "env" not in step
        return str(step["run"])
    lines = document["gpuprov-drift"]["before_script"]
    first = next(index for index, line in enumerate(lines) if "ssh-agent" in line)
    return "\n".join(each for each in lines[:first] if not each.startswith("apt-get"))


@pytest.mark.parametrize("forge", ["github", "gitlab"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_job_installs_by_hash_or_not_at_all(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, forge: schedule.Kind, whole: bool
) -> None:
    job = schedule.drift(fleet, None)
    with pytest.raises(InvalidInput, match="no wheel of gpuprov is named"):
        schedule.files(job, forge, "gpuprov")
    object.__setattr__(job, "wheel", wheel_of_job(str(fleet / NAME), fleet))
    [text] = schedule.files(job, forge, "gpuprov").values()
    if not whole:
        (fleet / NAME).write_bytes((fleet / NAME).read_bytes() + b"more")
    programs = fleet / "programs"
    programs.mkdir()
    write_program(programs / "pip", f'echo "$@" >{fleet}/called')
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", job_lines(text, forge)],
        cwd=fleet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is whole, done.stderr
    assert (fleet / "called").exists() is whole
    if whole:
        called = (fleet / "called").read_text()
        assert called == "install --require-hashes --only-binary :all: --requirement gpuprov-install.lock\n"
        own = f"./{NAME} --hash=sha256:{hashlib.sha256((fleet / NAME).read_bytes()).hexdigest()}\n"
        assert (fleet / "gpuprov-install.lock").read_text() == f"{NEEDED}\n{own}"


def test_a_job_fetches_by_url_first() -> None:
    first, second, *_, last = install_lines(Wheel(URL, HASH))
    limits = "ulimit -v 4194304; ulimit -f 524288; exec timeout 600"
    assert last.startswith(f"({limits} pip install --require-hashes ")
    assert first.startswith("curl --fail ")
    assert first.endswith(f"--output {NAME} {URL}")
    assert second == f"echo '{HASH}  {NAME}' | sha256sum --check --quiet"


@pytest.mark.parametrize("kind", ["systemd", "cron"])
def test_a_path_adds_no_line_to_a_schedule(tmp_path: Path, kind: schedule.Kind) -> None:
    """Refuse the name of a folder of another person's repository that has a newline."""
    folder = tmp_path / "x\nExecStartPre=/tmp/x"
    for job in (schedule.drift(folder, None), replace(schedule.drift(tmp_path, None), metrics=folder)):
        with pytest.raises(InvalidInput, match="control characters in the path"):
            schedule.files(job, kind, "gpuprov")
    found = schedule.files(schedule.drift(tmp_path, None), kind, "gpuprov")
    assert all(str(tmp_path) in text for name, text in found.items() if not name.endswith(".timer"))


def test_actions_are_pinned_by_commit(fleet: Path) -> None:
    job = schedule.drift(fleet, None)
    object.__setattr__(job, "wheel", Wheel(URL, HASH))
    [text] = schedule.files(job, "github", "gpuprov").values()
    used = re.findall(r"uses: (\S+)", text)
    assert len(used) == 3
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used)


def test_the_command_refuses_what_no_forge_can_fetch(
    fleet: Path, locked: MakeLock, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = fleet / "fleet.lock.yml"
    write_lock(locked(FLEET), lock)
    words = ["schedule", "drift", "--lock", str(lock)]
    assert run([*words, "--as", "github"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "scripts/release wheel" in said.err
    assert run([*words, "--as", "gitlab", "--wheel", str(fleet / NAME)]) == 0
    assert "--require-hashes" in capsys.readouterr().out
    into = fleet / ".github/workflows"
    assert run([*words, "--as", "github", "--wheel", str(fleet / NAME), "--write", str(into)]) == 0
    assert "--require-hashes" in (into / "gpuprov-drift.yml").read_text()
    assert run([*words, "--wheel", str(fleet / NAME)]) == 2
    assert "leave out --wheel, which is for github and gitlab" in capsys.readouterr().err


def pinned(path: Path) -> Iterator[tuple[Requirement, list[str]]]:
    """Yield the requirements of a lock, each with its hashes."""
    text = "".join(f"{line}\n" for line in path.read_text().splitlines() if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split(" --hash=")
        yield Requirement(requirement), [each.strip() for each in hashes]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize(
    "path", [ROOT / "requirements.lock", ROOT / "scripts/build.lock"], ids=lambda path: path.name
)
def test_the_release_lock_has_what_the_project_states_once_and_by_hash(
    path: Path, python: str, system: str
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = (
        project["project"]["dependencies"]
        if path.name == "requirements.lock"
        else project["build-system"]["requires"]
    )
    where = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": system}
    versions: dict[str, str] = {}
    for requirement, hashes in pinned(path):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement
        if requirement.marker is None or requirement.marker.evaluate(where):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} twice"
            [version] = requirement.specifier
            assert version.operator == "=="
            versions[name] = version.version
    for wanted in map(Requirement, stated):
        if wanted.marker is None or wanted.marker.evaluate(where):
            version_of = versions.get(canonicalize_name(wanted.name))
            do = "type scripts/release lock"
            assert version_of, f"{path.name} has no {wanted.name}: {do}"
            assert version_of in wanted.specifier, f"{path.name} has {wanted.name} {version_of}: {do}"
    assert "gpuprov" not in versions


def test_the_release_lock_names_no_index() -> None:
    for path in (ROOT / "requirements.lock", ROOT / "scripts/build.lock"):
        assert not re.search(r"://|--(extra-)?index|--find-links", path.read_text())


BY_NAME = re.compile(
    r"(?:pip3?|pipx|uv|uvx|tool) (?:tool )?(?:install|run|download|wheel)\b"
    r"[^|;&\n`]*?[\s\"'{-]gpuprov(?:-lab)?(?:\[[a-z,]+\])?"
    r"(?:[=<>~!]=[^\s/]*)?(?=[\s\"'`,;)}]|$)|gpuprov=="
)
BAD = (
    "pip install gpuprov",
    'pip install "gpuprov==1"',
    "pip install -q gpuprov",
    "pipx install gpuprov",
    "uv tool install gpuprov",
    "pip install 'gpuprov[fast]'",
    "pip install gpuprov-lab",
    'f"gpuprov=={version}"',
)
REQUIREMENT = """lab/hatch_build.py: metadata["dependencies"] = [f"gpuprov=={metadata['version']}"]"""
"""Requirement of the lab: its README.md and `gpuprov lab` state lines that read no index (--no-index)."""
KINDS = (
    "*.md",
    "*.py",
    "*.yml",
    "*.yaml",
    "*.toml",
    "*.cfg",
    "*.j2",
    "*.sh",
    "*.hcl",
    "Dockerfile*",
    "*.service",
)


def test_nothing_that_we_ship_or_write_installs_gpuprov_by_its_name() -> None:
    for bad in BAD:
        assert BY_NAME.search(bad), bad
    for good in ("pip install .", "pip install ./gpuprov-1-py3-none-any.whl", "pip install '.[fast]'"):
        assert not BY_NAME.search(good), good
    shipped = [
        "README.md",
        "CONTRIBUTING.md",
        "execution-environment.yml",
        ".pre-commit-hooks.yaml",
        "galaxy.yml",
    ]
    paths = [ROOT / name for name in shipped]
    for folder in (
        "gpuprov",
        "lab",
        "docs",
        "examples",
        "roles",
        "playbooks",
        "plugins",
        "scripts",
        "molecule",
        "inventory",
    ):
        paths += [path for kind in KINDS for path in (ROOT / folder).rglob(kind)]
    paths += [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in paths
        for line in path.read_text("utf-8", "replace").splitlines()
        if BY_NAME.search(line) and "--no-index" not in line
    ]
    assert found == [REQUIREMENT]
