"""Every verb on terminals of 80 and 140 columns: no line is torn or garbled, and both have the same words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuprov.cli.common.group import gpuprov
from tests import RECORDED, RECORDED_LOCK, is_defect
from tests.screens import Screen, gpuprov_lines
from tests.unit.cli.commands import leaves
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import AT, bare_metal
from tests.unit.samples import sample

WIDTHS = (80, 140)
WRONG = """\
groups:
  train: {profil: hgx-h100-8, hosts: 'gpu[01-03]', os: ubuntu24.04}
  other: {profile: hgx-h100-9, hosts: 'gpu[03-05]', os: ubuntu24.05, stack: {driver: "not a version of it"}}
"""
SEALED = """\
repositories: {nvidia: {url: 'file:///nowhere/{folder}/{arch}/'}}
groups: {train: {profile: hgx-h100-8, hosts: gpu1, os: ubuntu24.04}}
"""
SHOWN = """\
init --profile hgx-h100-8 --hosts gpu[01-08] --os ubuntu24.04 --user admin
validate
validate -F wrong.yml
up root@127.0.0.1:1
bootstrap -F wrong.yml
lock -F sealed.yml
resolve --gpu '8x H100 SXM5 80GB' --os ubuntu24.04 --cuda 12.8
resolve --gpu 'Tesla K80' --os ubuntu24.04 --cuda 13.0
explain driver
explain driver --gpu 'H100 SXM5 80GB' --os ubuntu24.04
plan
apply --yes
verify
drift
drift -o html
drift --against-majority
upgrade --to fleet.lock.yml --plan
rollback
repair --plan
history
history node1
history --worst
report latest
report latest --html page.html
facts root@127.0.0.1:1
doctor --facts sick.json
doctor --facts sick.json --brief
accept node1
accept --measured measured.json
status
status --overview
topo matrix.txt
nccl parse nccl.log
nccl check
nccl derive facts.json
inventory profiles
inventory discover 127.0.0.1:1
inventory generate ansible
inventory import nothing.ini
catalog os
catalog show H100
catalog check
catalog update --key none.asc none
workers serve
drfit
"""
"""Command lines whose output is for people. Nothing answers at the address of the lock's only node."""
DOCUMENTS = """\
drift -o json
schedule drift
launch torchrun train.py
launch mpirun train.py
launch horovodrun train.py
launch docker --image pytorch train.py
inventory export prometheus
inventory list
inventory schema
inventory plugins
"""
"""Command lines whose output is a text for a program or a file, which is not folded."""
HELP_ALONE = ("mcp", "workers certificates", "catalog release", "catalog TABLE", "lab")
"""Verbs that serve a program, make keys, or show this machine; of them only the help is shown."""


def write_site(folder: Path) -> Path:
    """Write a lock and the recorded files that the command lines name into a new folder, and return it."""
    sick = bare_metal()
    for fault in ("driver.mismatch", "errors.xid"):
        FAULTS[fault][0](sick)
    facts = {"schema": "gpuprov.facts/1", "host": "gpu01", "collected_at": AT, "seconds": 0.4}
    files = {
        "fleet.lock.yml": RECORDED_LOCK.read_text(),
        "wrong.yml": WRONG,
        "sealed.yml": SEALED,
        "sick.json": json.dumps({**facts, "collectors": sick}),
        "facts.json": (RECORDED / "h200x4/facts.json").read_text(),
        "measured.json": (RECORDED / "accept/h200x2-in-use.json").read_text(),
        "matrix.txt": (RECORDED / "h200x4/topo-m.txt").read_text(),
        "nccl.log": (RECORDED / "h200x4/nccl-socket.log").read_text(),
    }
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Screen]]:
    """Command lines with their screens of each width."""
    sites = tmp_path_factory.mktemp("sites")
    folders = {width: write_site(sites / f"at{width:03}") for width in WIDTHS}
    helps = [f"{path} --help".strip() for path in ("", *dict(leaves(gpuprov)))]
    return gpuprov_lines([*sample(helps, 4, "helps"), *SHOWN.splitlines(), *DOCUMENTS.splitlines()], folders)


def words(screen: Screen) -> list[str]:
    """Return the words of a screen in alphabetical order, with numbers, times and run ids as zeros."""
    text = re.sub(r"\d{8}-\d{6}-[a-z]+-[0-9a-f]{4}", "0", "\n".join(screen.lines))
    return sorted(re.sub(r"[0-9a-f.:-]*\d[0-9a-f.:-]*", "0", text).split())


def test_each_verb_is_shown() -> None:
    shown = tuple(f"{line} " for line in f"{SHOWN}{DOCUMENTS}".splitlines())
    names = [path for path, _ in leaves(gpuprov) if not path.startswith(HELP_ALONE)]
    assert [path for path in names if not any(line.startswith(f"{path} ") for line in shown)] == []


@pytest.mark.thorough
def test_no_verb_tears_or_garbles_a_line(screens: list[tuple[str, Screen]]) -> None:
    documents = DOCUMENTS.splitlines()
    found = [(line, screen.width, screen.complaints(document=line in documents)) for line, screen in screens]
    assert [each for each in found if each[2]] == []


def test_both_widths_have_the_same_words(screens: list[tuple[str, Screen]]) -> None:
    by_width = {(line, screen.width): screen for line, screen in screens}
    narrow, wide = WIDTHS
    for line in dict.fromkeys(line for line, _ in screens):
        assert words(by_width[line, narrow]) == words(by_width[line, wide]), line
        assert by_width[line, narrow].code == by_width[line, wide].code, line
    assert [line for line, screen in screens if is_defect(screen.written.decode(errors="replace"))] == []


def test_what_is_complained_about() -> None:
    long = " ".join(["word"] * 20)
    assert Screen(0, long.encode(), 80).complaints() == [f"torn: {long}"]
    assert Screen(0, long.encode(), 80).complaints(document=True) == []
    assert Screen(0, long.encode(), 140).complaints() == []
    command = "sudo systemctl restart " + "a" * 80
    assert Screen(0, f"  mend  {command}".encode(), 80).complaints() == []
    rest = Screen(0, b"x" * 90 + b"\rdone\r\n", 80)
    assert rest.complaints(document=True) == [f"garbled: {'x' * 80}", f"garbled: done{'x' * 6}"]
