"""Messages and refusals of `apply --image` and `verify --image`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.apply import image as making
from gpuprov.apply.image import Image
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.cli.common import image as verbs
from gpuprov.cli.common.group import run
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.verify.verdict import CheckResult, NodeVerdict, Verdict
from tests import RECORDED_LOCK

KERNEL = "6.1.0-56-amd64"
SEEN = CheckResult("driver.packages", "passed", {}, {}, "", 0.1)
WRONG = CheckResult("pins.hold", "failed", ["a"], [], "$ apt-mark showhold\ngpuprov apply -l here", 0.1)


def verdict(*checks: CheckResult) -> Verdict:
    """Return a verdict on the node `here` with these checks."""
    failed = any(check.status == "failed" for check in checks)
    return Verdict("2026-01-31", [NodeVerdict("here", "failed" if failed else "passed", list(checks))])


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a lock with the groups `train` and `infer`; the tree has the lock's kernel."""
    recorded = read_lock(RECORDED_LOCK)
    [group] = recorded.groups.values()
    path = tmp_path / "fleet.lock.yml"
    write_lock(recorded.model_copy(update={"groups": {"train": group, "infer": group}}), path)
    (tmp_path / "modules" / str(group.setting("kernel"))).mkdir(parents=True)
    monkeypatch.setattr(making, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(verbs, "_look", lambda _: verdict(SEEN))
    return path


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups for which a first boot was prepared."""
    found: list[str] = []

    def leave(_: Lock, group: str) -> None:
        found.append(group)

    monkeypatch.setattr(making, "leave_for_first_boot", leave)
    return found


def made(monkeypatch: pytest.MonkeyPatch, image: Image) -> None:
    """Make `apply --image` return this image without doing anything."""
    monkeypatch.setattr(making, "make_image", lambda _: image)


def test_what_was_done_and_what_waits(
    lock: Path, left: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check the lines about an image: changes, checks, and what is left for the first boot."""
    made(monkeypatch, Image(NodeOutcome(changed=7), {"storage": "the machine's drives"}))
    assert run(["apply", "--image", "train", "--lock", str(lock), "--yes"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "image  changed=7  verified (1 checks)"
    assert out[1] == "left for the first boot: 16 checks"
    assert "  a boot of its own: nouveau.loaded, driver.loaded, driver.answers" in "\n".join(out)
    assert out[-1] == "  the role storage waits for the machine's drives"
    assert left == ["train"]


def test_an_image_that_is_not_as_the_lock_says_fails(
    lock: Path, left: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(monkeypatch, Image(NodeOutcome(changed=7)))
    monkeypatch.setattr(verbs, "_look", lambda _: verdict(SEEN, WRONG))
    assert run(["apply", "--image", "train", "--lock", str(lock), "--yes"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("image  changed=7  NOT VERIFIED  pins.hold\n")
    assert "$ apt-mark showhold" in captured.err


def test_a_role_that_failed_is_one_line_and_no_first_boot_is_left(
    lock: Path, left: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = NodeOutcome(changed=2)
    failed.failed.append({"role": "docker", "msg": "no such package"})
    made(monkeypatch, Image(failed))
    assert run(["apply", "--image", "train", "--lock", str(lock), "--yes", "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["status"], document["verification"]) == (
        "gpuprov.image/1",
        "failed",
        None,
    )
    assert left == []
    assert run(["apply", "--image", "train", "--lock", str(lock), "--yes"]) == 1
    assert capsys.readouterr().out == "image  changed=2  FAILED  docker: no such package\n"


def test_verify_names_what_it_could_not_judge(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--image", "train", "--lock", str(lock)]) == 0
    assert "\n  the machine's hardware: gpu.model, gpu.count, " in capsys.readouterr().out
    assert run(["verify", "--image", "train", "--lock", str(lock), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpuprov.verify/1"
    assert "driver.loaded" in document["not_judged"]["a boot of its own"]


@pytest.mark.parametrize("verb", ["apply", "verify"])
@pytest.mark.parametrize(
    ("words", "result"),
    [([], "2 groups; expected one: an image is for one"), (["tarin"], "the lock has no group 'tarin'")],
)
def test_an_image_is_for_one_group(
    lock: Path, capsys: pytest.CaptureFixture[str], verb: str, words: list[str], result: str
) -> None:
    assert run([verb, "--image", "--lock", str(lock), *words]) == 2
    assert result in capsys.readouterr().err


def test_it_asks_before_it_changes_the_machine_that_it_runs_on(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["apply", "--image", "train", "--lock", str(lock)]) == 2
    assert "would turn this root tree into an image" in capsys.readouterr().err


def test_failed_checks_are_printed_on_their_own_lines(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verbs, "_look", lambda _: verdict(SEEN, WRONG))
    assert run(["verify", "--image", "train", "--lock", str(lock)]) == 1
    assert "\\n" not in capsys.readouterr().out


def test_a_failed_image_without_a_module_says_why_it_failed(
    lock: Path,
    left: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    outcome = NodeOutcome()
    outcome.fail("here", "Look", "no headers")
    outcome.fail("here", "Look", "no pins")
    made(monkeypatch, Image(outcome))
    words = ("--modules-out", str(tmp_path / "modules.zip"))
    assert run(["apply", "--image", "train", "--lock", str(lock), *words, "--yes"]) == 1
    assert capsys.readouterr().out == "image  changed=0  FAILED  no headers; no pins\n"
    made(monkeypatch, Image(NodeOutcome()))
    assert run(["apply", "--image", "train", "--lock", str(lock), *words, "--yes"]) == 2
    assert "the lock trusts no image's modules" in capsys.readouterr().err
