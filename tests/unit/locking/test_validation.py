"""`gpuprov validate`: all mistakes at once, with kind, file and line; and a stale lock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.schemas import json_schema
from gpuprov.locking import build
from gpuprov.locking.archives import Finder
from gpuprov.locking.build import build_lock
from gpuprov.locking.inputs import changed_since
from gpuprov.locking.validation import Problem, validate_files
from gpuprov.model import documents
from gpuprov.model.documents import HOW_TO_BEGIN, MISSING
from gpuprov.model.fleet import Group, read_fleet
from gpuprov.model.lock import write_lock
from tests.unit.locking.fleets import Write

GOOD = """\
groups:
  train:
    profile: hgx-h200-8
    hosts: gpu[01-03]
    os: ubuntu24.04
"""


def problems(folder: Path, text: str) -> list[Problem]:
    """Write a fleet.yml and return the problems that validation finds."""
    (folder / "fleet.yml").write_text(text)
    return validate_files(folder / "fleet.yml").problems


def findings(folder: Path, text: str) -> list[tuple[str, str, int | None]]:
    """Write a fleet.yml and return kind, file and line of each problem."""
    return [(each.kind, Path(each.file).name, each.line) for each in problems(folder, text)]


def test_a_good_fleet_has_no_problem_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Finder, "archives", lambda *_, **__: pytest.fail("an index was read"))
    assert problems(tmp_path, GOOD) == []


def test_rules_of_all_groups_fit_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "{profile: hgx-h200-8, os: ubuntu24.04, settings: {firewall: {}}, hosts: {gpu%d: 10.0.%d.1}}"
    text = "groups:\n" + "".join(f"  g{n}: {kind % (n, 2 * n)}\n" for n in range(4))
    assert problems(tmp_path, text) == []
    monkeypatch.setattr(build, "IN_RULES", 15)
    [problem] = problems(tmp_path, text)
    assert "settings.firewall.fleet" in str(problem.do)


def test_settings_of_all_groups_fit_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "{profile: hgx-h200-8, os: ubuntu24.04, hosts: gpu%d}"
    text = "groups:\n" + "".join(f"  g{n}: {kind % n}\n" for n in range(3))
    monkeypatch.setattr(build, "MAX_BYTES", 2000)
    assert "all groups together have more than 2000 bytes" in str(problems(tmp_path, text)[-1])


@pytest.mark.parametrize("key", ["profile_dirs", "catalog_dirs"])
def test_links_to_one_file_are_not_read_any_number_of_times(tmp_path: Path, key: str) -> None:
    """Count each link and each repetition of a folder: what is read of them is not shared."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "gpus.json").write_text(json.dumps({"x": "a" * (1 << 20)}))
    for number in range(3):
        (own / f"{number}.yml").symlink_to("gpus.json")
    [problem] = problems(tmp_path, f"{GOOD}{key}: [{', '.join(['own'] * 10)}]\n")
    assert "bytes" in problem.seen
    assert "at most" in problem.expected


def test_the_hosts_of_a_group_are_not_read_for_each_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count how often hosts are read: a fleet of 4,000 groups took 25 s."""
    read: list[Group] = []
    hosts = Group.hosts.fget

    def counted(group: Group) -> dict[str, str]:
        read.append(group)
        return hosts(group)  # type: ignore[misc]

    monkeypatch.setattr(Group, "hosts", property(counted))
    kind = "{profile: hgx-h200-8, os: ubuntu24.04, hosts: gpu%d}"
    counts = []
    for groups in (10, 20):
        read.clear()
        lines = [f"  g{number}: {kind % number}\n" for number in range(groups)]
        assert problems(tmp_path, "".join(["groups:\n", *lines])) == []
        counts.append(len(read) / groups)
    assert counts[1] <= counts[0]


def test_all_mistakes_of_a_file_are_told_in_the_order_of_its_lines(tmp_path: Path) -> None:
    wrong = GOOD.replace("profile:", "profle:").replace("gpu[01-03]", "gpu[01-") + "rebot: {}\n"
    assert findings(tmp_path, wrong) == [
        ("unknown-key", "fleet.yml", 3),
        ("wrong-value", "fleet.yml", 4),
        ("unknown-key", "fleet.yml", 6),
    ]


@pytest.mark.parametrize(
    ("old", "new", "kind", "line"),
    [
        ("os: ubuntu24.04", "os: {ubuntu24.04", "not-yaml", 6),
        ("os: ubuntu24.04", "os: ubuntu24.04\n    os: x", "key-twice", 6),
        ("    os: ubuntu24.04\n", "", "missing-key", 2),
        ("hgx-h200-8", "hgx-h2000-8", "unknown-name", 3),
        ("os: ubuntu24.04", "os: ubunto24.04", "unknown-name", 5),
        ("os: ubuntu24.04", "os: ubuntu24.04\nhost_vars: {gpu04: {}}", "unknown-name", 6),
        ("os: ubuntu24.04", "os: ubuntu24.04\n    vars: {__docker_configured: {}}", "wrong-value", 6),
        ("os: ubuntu24.04", "os: ubuntu24.04\nhost_vars:\n  gpu01:\n    _x: 1\n    __x: 1", "wrong-value", 9),
        ("os: ubuntu24.04", "os: ubuntu24.04\nalso: {all: {vars: {__x: 1}}}", "wrong-value", 6),
        ("04\n", "04\n    settings: {firewall: {}}\n", "refused", 2),
        ("04\n", "04\n    stack: {driver: '535', cuda: '13.0'}\n", "refused", 2),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_has_its_name_and_line(
    tmp_path: Path, old: str, new: str, kind: str, line: int
) -> None:
    assert findings(tmp_path, GOOD.replace(old, new)) == [(kind, "fleet.yml", line)]


def test_a_host_in_two_groups_is_reported_at_the_second(tmp_path: Path) -> None:
    second = GOOD.replace("groups:\n  train", "  other")
    assert findings(tmp_path, GOOD + second) == [("host-twice", "fleet.yml", 8)]


def test_profiles_of_the_site_are_read_too_also_those_in_no_use(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/mine.yml").write_text("settings:\n  persistance: true\n")
    assert findings(tmp_path, GOOD) == [("unknown-key", "mine.yml", 2)]


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    [problem] = validate_files(tmp_path / "fleet.yml").problems
    assert (problem.kind, problem.line, problem.do) == ("unreadable", None, HOW_TO_BEGIN)


def test_a_lock_of_another_day_of_the_fleet_is_stale_and_a_fresh_one_is_not(one_group: Write) -> None:
    path = one_group(cuda="13.0")
    lock, place = build_lock(path), path.with_name("fleet.lock.yml")
    write_lock(lock, place)
    assert validate_files(path).problems == []
    assert changed_since(lock, place) is None
    path.write_text(path.read_text().replace("train-[1-2]", "train-[1-3]"))
    [problem] = validate_files(path).problems
    assert (problem.kind, problem.file) == ("stale-lock", str(place))
    assert changed_since(lock, place) == path
    assert changed_since(lock, path.with_name("old.lock.yml")) is None


def test_a_lock_that_is_none_is_reported_by_line(one_group: Write) -> None:
    path = one_group(cuda="13.0")
    lock = path.with_name("fleet.lock.yml")
    write_lock(build_lock(path), lock)
    lock.write_text(lock.read_text().replace("\n    os: ", "\n    oss: "))
    [problem] = validate_files(path).problems
    assert (problem.kind, problem.file) == ("unknown-key", str(lock))
    assert lock.read_text().splitlines()[(problem.line or 0) - 1].startswith("    oss: ")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (GOOD, 0),
        (GOOD.replace("os:", "oss:"), 2),
        (GOOD + "    stack: {driver: '535', module: open, cuda: '13.0'}\n", 5),
    ],
)
def test_the_verb_says_it_for_people_and_for_programs(
    tmp_path: Path, text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yml").write_text(text)
    assert run(["validate", "-F", str(tmp_path / "fleet.yml"), "-o", "json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpuprov.validation/1"
    assert document["valid"] == (code == 0)
    assert run(["validate", "-F", str(tmp_path / "fleet.yml")]) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(document["problems"])
    for line, problem in zip(lines, document["problems"], strict=True):
        assert line.startswith(f"{problem['file']}:{problem['line']}: {problem['seen']}")
        assert line.endswith(f" [{problem['kind']}]")


def test_a_lock_is_not_stale_by_a_fleet_with_mistakes(one_group: Write) -> None:
    """Report the mistake only: what the lock is compared with does not exist yet."""
    path = one_group(cuda="13.0")
    write_lock(build_lock(path), path.with_name("fleet.lock.yml"))
    path.write_text(path.read_text().replace("13.0", "99.9"))
    assert [problem.kind for problem in validate_files(path).problems] == ["refused"]


def test_a_missing_key_says_what_to_write(tmp_path: Path) -> None:
    """Check that each required key of a fleet has an expectation, also that of a form with other keys."""
    schema = json_schema("fleet")
    required = {key for record in (schema, *schema["$defs"].values()) for key in record.get("required", ())}
    assert required - MISSING.keys() == set()
    [problem] = problems(tmp_path, GOOD + "repositories: {nvidia: {key: x.asc}}\n")
    assert "https://" in problem.expected


def test_errors_of_a_file_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """List no errors of a file that has another form: a million of them take gigabytes."""
    monkeypatch.setattr(documents, "ERRORS", 3)
    wrong = [f"x{number}: 1\n" for number in range(4)]
    assert len(problems(tmp_path, GOOD + "".join(wrong[1:]))) == 3
    [problem] = problems(tmp_path, GOOD + "".join(wrong))
    assert (problem.line, problem.seen) == (1, "4 errors")
    with pytest.raises(InvalidInput, match="4 errors"):
        read_fleet(tmp_path / "fleet.yml")


def test_groups_are_checked_in_time_of_their_number(tmp_path: Path) -> None:
    """Check that the line of a wrong name is found without a search of those of all groups."""
    kind = "{profile: hgx-h200-8, os: x1, hosts: gpu%d}"

    def seconds(groups: int) -> float:
        """Return the processor time of a fleet with so many groups."""
        fleet = "groups:\n" + "".join(f"  g{n}: {kind % n}\n" for n in range(groups))
        begun = time.process_time()
        assert len(findings(tmp_path, fleet)) == groups
        return time.process_time() - begun

    assert any(seconds(8000) < 8 * seconds(2000) for _ in range(3)), "also on a busy machine"
