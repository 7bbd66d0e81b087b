"""Users' mistakes: the message names the input, the expected value, and the next command to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.apply.plan import NodePlan
from gpuprov.apply.proposal import Proposal
from gpuprov.cli.common import options
from gpuprov.cli.common.group import run
from gpuprov.cli.schedule import closed
from gpuprov.drift.judge import Difference
from gpuprov.errors import Exit
from gpuprov.model.lock import Lock, read_lock, write_lock
from tests import RECORDED_LOCK

FLEET = """\
groups:
  train:
    hosts: gpu[01-02]
    profile: hgx-h100-8
    os: debian12
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def screen(line: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Run a command line, check its exit code, and return its standard error."""
    assert run(line.split()) == code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "seen", "do"),
    [
        ("lock drivr", "no component 'drivr'", "did you mean 'driver'?"),
        ("lock --upgrade container-tolkit", "no component", "did you mean 'container_toolkit'?"),
        ("lock driver cuda", "driver, cuda named without --upgrade", "gpuprov lock --upgrade driver cuda"),
        ("explain drivr --gpu H200 --os debian12", "no component 'drivr'", "did you mean 'driver'?"),
        ("explain driver", "--gpu is missing", '--gpu "H100 SXM5 80GB"'),
        ("resolve --gpu H200", "--os is missing", "`gpuprov catalog os`"),
        ("resolve --gpu H1OO --os debian12", "GPU 'H1OO' is ambiguous", '"H100 SXM5 80GB"'),
        ("catalog gpu", "no table 'gpu'", "did you mean 'gpus'?"),
        ("catalog gpus H100", "'H100' after the table gpus", 'gpuprov catalog show "H100"'),
        ("init --instance aws:p5.48xlarge --hosts gpu[01-08]", "missing: --os;", "--os ubuntu24.04"),
        ("init --profile x --instance y", "both --profile and --instance", "give one of them"),
        ("upgrade --to next.yml", "next.yml does not exist", "gpuprov lock --lock next.yml"),
    ],
)
def test_a_command_line(line: str, seen: str, do: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the message for a wrong line names the input and what to do."""
    said = screen(line, capsys)
    assert seen in said, said
    assert do in said, said


def test_a_lock_that_is_there_is_named_before_a_new_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "fleet.lock.yml").write_text("")
    assert "name one that is there (fleet.lock.yml), or make it" in screen("upgrade --to flet.yml", capsys)


def test_a_folder_without_a_fleet_says_how_to_begin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no fleet.yml either: change to the fleet's folder" in screen("drift", capsys)
    (folder / "fleet.yml").write_text(FLEET)
    assert "run `gpuprov lock` to write it" in screen("drift", capsys)


def test_help_is_a_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("help", "help drift", "help inventory import"):
        assert run(line.split()) == 0
        [_, *words] = line.split()
        asked = capsys.readouterr().out
        assert run([*words, "--help"]) == 0
        assert capsys.readouterr().out == asked


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "os: debian12",
            "os: debian12\n    stack: {cuda: 12.10}",
            'fleet.yml:6: groups.train.stack.cuda is 12.10; expected a version in quotes, "12.10": YAML '
            "reads it without quotes as the number 12.1",
        ),
        (
            "os: debian12",
            "os: debian12\n    stack: {cuda: [12.10]}",
            'fleet.yml:6: groups.train.stack.cuda.0 is 12.10; expected a version in quotes, "12.10"',
        ),
        (
            "hgx-h100-8",
            "hgx-h1oo-8",
            "fleet.yml:4: there is no profile 'hgx-h1oo-8'; expected one of hgx-h",
        ),
        ("debian12", "debain12", "fleet.yml:5: operating system 'debain12' is not known"),
        (
            "groups:",
            "repositories: {nvida: 'http://m/'}\ngroups:",
            "fleet.yml:1: no repository 'nvida'",
        ),
        ("groups:", "repositories: {nvida: 'http://m/'}\ngroups:", "did you mean 'nvidia'?"),
        ("    profile:", "   profile:", "fleet.yml:4: not YAML: "),
        ("    profile:", "   profile:", "indent the line as its neighbours are"),
        ("    profile:", "\tprofile:", "indent with spaces"),
        (
            "os: debian12",
            "os: debian12\n    settings: {persistence: enabled}",
            'groups.train.settings.persistence is "enabled"; expected true or false',
        ),
        (FLEET, "", "fleet.yml:1: the file is empty; expected the key groups; `gpuprov init`"),
    ],
)
def test_a_line_of_the_fleet(
    folder: Path, right: str, wrong: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert right in FLEET
    (folder / "fleet.yml").write_text(FLEET.replace(right, wrong))
    assert said in screen("lock", capsys)
    run(["validate"])
    assert said.split("; ")[0].removeprefix("fleet.yml:") in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_changed_fleet_without_a_new_lock_is_warned_of(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(Lock(inputs="0" * 64, groups={}), folder / "fleet.lock.yml")
    assert "Warning" not in screen(verb, capsys, 0)
    (folder / "fleet.yml").write_text(FLEET)
    said = screen(verb, capsys, 0)
    assert "Warning: fleet.lock.yml was not made from fleet.yml" in said
    assert "run `gpuprov lock`" in said
    (folder / "fleet.yml").write_text(FLEET.replace("hosts", "host"))
    assert "Warning: fleet.yml:3: unknown key 'host'" in screen(verb, capsys, 0)


def test_a_nightly_user_who_cannot_reach_the_fleet_is_reported_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(Lock(inputs="0" * 64, groups={}), folder / "fleet.lock.yml")
    folder.chmod(0o700)
    said = screen("schedule drift", capsys, 0)
    assert f"Warning: gpuprov cannot read {folder}: " in said
    assert "install -m 644 ~/.ssh/known_hosts /var/lib/gpuprov-controller/.ssh/known_hosts" in said
    assert "cannot read" not in screen("schedule drift --user root", capsys, 0)
    assert closed(Path("/usr/bin/env"), "gpuprov") is None


def test_a_job_of_root_warns_of_what_others_can_replace(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(Lock(inputs="0" * 64, groups={}), folder / "fleet.lock.yml")
    monkeypatch.setattr("gpuprov.apply.image.is_of_others", lambda path: path == folder)
    said = screen("schedule drift --user root", capsys, 0)
    assert f"Warning: root runs {folder}, and other users can replace it, by {folder}; move gpuprov" in said


def test_a_question_names_the_nodes_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text) or True)
    options.ask("change GPU[1-2]", yes=False)
    assert asked == ["Change GPU[1-2]?"]


@pytest.mark.parametrize(("words", "asked"), [("", False), (" --allow-downgrade", True)])
def test_a_run_that_refuses_every_node_asks_nothing(
    words: str, asked: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = read_lock(RECORDED_LOCK)
    write_lock(lock, folder / "fleet.lock.yml")
    [name] = lock.hosts()
    newer = Difference(
        "driver.packages", {"libcuda1": "1"}, {"libcuda1": "2"}, "error", "nvidia_driver", False
    )
    plan = NodePlan(name, ("nvidia_driver",), False, (newer,), ())
    monkeypatch.setattr("gpuprov.cli.apply.proposed", lambda *_, **__: Proposal([], [plan]))
    monkeypatch.setattr("gpuprov.cli.apply.show_plan", lambda *_: None)
    monkeypatch.setattr("gpuprov.cli.apply.carry_out", lambda *_, **__: Exit.REFUSED)
    said = screen(f"apply{words}", capsys, Exit.USAGE if asked else Exit.REFUSED)
    assert (f"would change {name}; confirmation is needed" in said) == asked


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("accept --share 25", 2, "--share 25; expected a percentage of the fleet a week"),
        ("accept --share 25% --local", 2, "--share with other measurements"),
        ("accept --share 25%", 5, "no drain hook keeps jobs away from a node under test"),
        ("schedule accept", 5, "no drain hook keeps jobs away from a node under test"),
        ("schedule accept --share 0%", 2, "--share 0%; expected a percentage of the fleet a week"),
        ("schedule drift --write none", 2, "the folder none does not exist; --write /etc/systemd/system, or"),
        ("schedule accept --as github", 2, "expected systemd or cron of one controller"),
        ("doctor --all --local", 2, "more than one of HOSTs, --local, --all and --facts"),
        ("history --worst --since latest", 2, "--worst --since latest; expected a time"),
        (
            "report --criteria none.yml",
            2,
            "none.yml does not exist; name a file, or public for the",
        ),
        ("repair --bmc none.yml", 2, "none.yml does not exist; name the file of BMCs with --bmc FILE"),
        ("repair --resume", 2, "no run of repair is 'latest'"),
    ],
)
def test_mistakes_about_checks_and_repairs(
    line: str, code: int, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = read_lock(RECORDED_LOCK).model_copy(update={"rollout": None})
    write_lock(lock, folder / "fleet.lock.yml")
    assert says in screen(line, capsys, code)
