"""What the role packages decides of what dpkg says, and what it makes of apt's own words."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.scripts import ROLES, script

VARIABLES = ROLES / "packages/vars/main.yml"
FAILURES = yaml.safe_load(VARIABLES.read_text(encoding="utf-8"))["__packages_failures"]
bring = script("packages", "bring")
OLD, NEW = {"libnccl2": "2.27-1", "libnccl-dev": "2.27-1"}, {"libnccl2": "2.28-1", "libnccl-dev": "2.28-1"}
MIRROR = "http://mirror/compute/cuda/repos/ubuntu2404/x86_64"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "Version '580.1-1' for 'nvidia-open' was not found",
            "the package repository does not have what the lock names",
        ),
        (
            "Unable to locate package nvidia-driver-pinning-580.95.05",
            "the package repository does not have what the lock names",
        ),
        (
            "Unable to locate package linux-headers-6.1.0-99-amd64",
            "the package repository has no headers of the target kernel",
        ),
        (
            f"Failed to fetch {MIRROR}/nvidia-open_580.deb  404  Not Found [IP: 198.18.0.1 8080]",
            "the package repository does not have what the lock names",
        ),
        (
            f"Failed to fetch {MIRROR}/./InRelease  Could not connect to mirror:80 (198.18.0.1). - connect "
            "(111: Connection refused)",
            "the package repository does not answer as it should",
        ),
        (
            f"GPG error: {MIRROR}  InRelease: The following signatures couldn't be verified because the "
            f"public key is not available: NO_PUBKEY A4B469963BF863CC The repository '{MIRROR}  InRelease' "
            "is not signed.",
            "the signature of the package repository does not hold",
        ),
        (
            f"An error occurred during the signature verification. {MIRROR}  InRelease: The following "
            "signatures were invalid: EXPKEYSIG 21B5EB7239F73EEE Failed to fetch",
            "the signature of the package repository does not hold",
        ),
        (
            f"Conflicting values set for option Signed-By regarding source {MIRROR}/ /: /a != /b",
            "another file on the node names the same repository with another key",
        ),
        (
            f"Failed to fetch {MIRROR}/./Packages.gz  File has unexpected size (1 != 2).",
            "the package repository is half synced or stale",
        ),
        (
            "fetching took longer than 600 s",
            "the package repository is too slow",
        ),
        (
            "Packages were downgraded and -y was used without --allow-downgrades.",
            "that would downgrade packages",
        ),
        (
            "Unable to correct problems, you have held broken packages.",
            "the packages do not fit together with others that are installed or held",
        ),
        (
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (apt-get)",
            "another apt or dpkg did not finish in time",
        ),
    ],
)
def test_the_first_cause_that_fits(said: str, cause: str) -> None:
    fitting = [failure for failure in FAILURES if re.search(failure["match"], said)]
    assert fitting[0]["says"] == cause
    assert fitting[0]["do"]


def order(**said: Any) -> Any:
    default = {"sets": {"nccl": NEW}, "first": False, "beside": [], "unwanted": [], "allow_downgrade": False}
    return bring.Order(
        **{**default, "refreshed": True, "only_say": False, "lock_timeout": 1, "fetch_timeout": 1, **said}
    )


@pytest.mark.parametrize(
    ("said", "found", "transaction", "residue"),
    [
        pytest.param({}, ({}, {}, {}), ["libnccl-dev=2.28-1", "libnccl2=2.28-1"], [], id="fresh"),
        pytest.param({}, (NEW, {}, {}), [], [], id="there already"),
        pytest.param(
            {}, (OLD, {}, {}), ["libnccl-dev=2.28-1", "libnccl2=2.28-1"], [], id="of another version"
        ),
        pytest.param(
            {},
            ({**NEW, "libnccl1": "1"}, {}, {"nccl": ["libnccl1", "libnccl2"]}),
            ["libnccl1-"],
            [],
            id="was of the set",
        ),
        pytest.param(
            {},
            ({**NEW, "libnccl1": "1"}, {}, {"nccl": ["libnccl1"], "dcgm": ["libnccl1"]}),
            [],
            [],
            id="is of another set as well",
        ),
        pytest.param(
            {"sets": {"nccl": {}}},
            (OLD, {}, {"nccl": [*OLD]}),
            ["libnccl-dev-", "libnccl2-"],
            [],
            id="nothing wanted any more",
        ),
        pytest.param(
            {"unwanted": ["pinning-[0-9]+=", "libnccl"]},
            ({**NEW, "pinning-570": "1"}, {"pinning-550": "1"}, {}),
            ["pinning-570-"],
            ["pinning-550"],
            id="unwanted, and what it left",
        ),
        pytest.param(
            {"beside": ["dkms", "gcc"]}, ({**NEW, "gcc": "12"}, {}, {}), ["dkms"], [], id="in any version"
        ),
    ],
)
def test_what_a_set_needs(
    said: dict[str, Any], found: tuple[Any, ...], transaction: list[str], residue: list[str]
) -> None:
    plan = bring.planned(order(**said), bring.Found(*found))
    assert (plan.sets, plan.transaction, plan.residue) == (["nccl"], transaction, residue)


def test_first_packages_come_for_sets_that_the_node_has_nothing_of() -> None:
    sets = {"nccl": NEW, "cudnn": {"libcudnn9": "9"}, "dcgm": {"dcgm": "4"}, "tools": {}}
    found = bring.Found({"libnccl2": "2.27-1"}, {}, {"cudnn": []})
    plan = bring.planned(order(sets=sets, first=True), found)
    assert plan == (["dcgm"], ["dcgm=4"], [], ["dcgm"])


def test_what_belongs_to_a_set_is_remembered_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("ii \tlibnccl2\t2.28-1", "hi \tlibnccl-dev\t2.28-1", "rc \tdcgm\t4")
    listing = subprocess.CompletedProcess([], 0, "".join(f"{row}\n" for row in rows))
    monkeypatch.setattr(bring.os, "environ", {})
    monkeypatch.setattr(bring, "RECORDS", tmp_path / "gpuprov/packages")
    monkeypatch.setattr(bring.subprocess, "run", lambda *_, **__: listing)
    for only_say, remembers in ((True, ["nccl"]), (False, ["nccl"]), (False, [])):
        monkeypatch.setattr("sys.argv", ["-", json.dumps(order(only_say=only_say)._asdict())])
        assert bring.main() == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (said["transaction"], said["remembers"]) == ([], remembers)
    assert bring.look() == (NEW, {"dcgm": "4"}, {"nccl": ["libnccl-dev", "libnccl2"]})


def test_success_that_leaves_something_undone_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bring.os, "environ", {})
    monkeypatch.setattr(bring, "RECORDS", tmp_path)
    monkeypatch.setattr(bring.subprocess, "run", run)
    monkeypatch.setattr("sys.argv", ["-", json.dumps(order(refreshed=False)._asdict())])
    assert bring.main() == 1
    said = capsys.readouterr()
    assert said.err == "E: apt reported success and left libnccl-dev=2.28-1, libnccl2=2.28-1 to be done\n"
    assert json.loads(said.out.splitlines()[-1])["refreshed"]
    verbs = ("-W", "update", "--download-only", "install")
    assert [next(verb for verb in verbs if verb in command) for command in ran] == [*verbs, "-W"]
    assert not list(tmp_path.iterdir())


def test_fetching_that_takes_too_long_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command[0])
        return subprocess.CompletedProcess(command, 124, "", "")

    monkeypatch.setattr(bring.subprocess, "run", run)
    plan = bring.planned(order(), bring.Found({}, {}, {}))
    assert bring.transact(order(), plan) == 124
    assert ran == ["timeout"]
    assert "E: fetching took longer than 1 s" in capsys.readouterr().err


def test_lists_are_read_once_nobody_else_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)", ""]
    answers = [subprocess.CompletedProcess([], 100 if line else 0, "", line) for line in said]
    waited: list[float] = []
    monkeypatch.setattr(bring.subprocess, "run", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(bring.time, "sleep", waited.append)
    assert bring.refresh(order()) == 0
    assert (answers, waited) == ([], [bring.PAUSE])
