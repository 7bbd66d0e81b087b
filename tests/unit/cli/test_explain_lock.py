"""`gpuprov explain` of a locked fleet: version, reason and source of each group, and other versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.model.lock import read_lock, write_lock
from tests import RECORDED_LOCK

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a lock of two groups."""
    monkeypatch.chdir(tmp_path)
    lock = read_lock(RECORDED_LOCK)
    [group] = lock.groups.values()
    other = group.model_copy(update={"hosts": {"other": "192.0.2.9"}})
    write_lock(
        lock.model_copy(update={"groups": {"train": group, "test": other}}), tmp_path / "fleet.lock.yml"
    )
    return tmp_path


def test_every_group_has_its_version_and_reason(capsys: Capture) -> None:
    assert run(["explain", "driver"]) == 0
    said = capsys.readouterr().out
    assert (
        "train: driver 535.309.01\n  because: driver 535.309.01 comes from the archive of Debian 12" in said
    )
    assert "test: driver 535.309.01" in said
    assert "source: Debian's own archive" in said
    assert "older branches\n" in said
    assert "525.147.05" in said


def test_one_group_as_json(capsys: Capture) -> None:
    assert run(["explain", "driver", "test", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpuprov.explain_lock/1"
    [group] = document["groups"]
    assert (group["group"], group["version"]) == ("test", "535.309.01")
    verdicts = {each["value"].split(".")[0]: each["verdict"] for each in group["older"]}
    assert verdicts["525"] == "warn"
    assert verdicts["515"] == "refused"


def test_branches_with_long_term_support_are_named_though_they_are_far(capsys: Capture) -> None:
    run(["explain", "driver", "test", "-o", "json"])
    [group] = json.loads(capsys.readouterr().out)["groups"]
    assert "580" in {each["value"].split(".")[0] for each in group["newer"]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explain nccl", "fleet.lock.yml locks no nccl; state it in fleet.yml: stack: {nccl: auto}"),
        ("explain drivr", "no component 'drivr'; did you mean 'driver'?"),
        ("explain driver trian", "the lock has no group 'trian'; expected one of train, test; did you mean"),
        ("explain driver train --gpu L4 --os rhel9", "train with options of a machine"),
    ],
)
def test_mistakes(line: str, said: str, capsys: Capture) -> None:
    """Check the message for arguments that are wrong, and exit code 2."""
    assert run(line.split()) == 2
    assert said in capsys.readouterr().err


def test_options_of_a_machine_come_before_the_lock(capsys: Capture) -> None:
    assert run(["explain", "driver", "--gpu", "L4", "--os", "rhel9"]) == 0
    assert "train" not in capsys.readouterr().out


def test_another_lock_is_read(folder: Path, capsys: Capture) -> None:
    (folder / "fleet.lock.yml").rename(folder / "next.lock.yml")
    assert run(["explain", "driver"]) == 2
    assert run(["explain", "driver", "--lock", "next.lock.yml"]) == 0
