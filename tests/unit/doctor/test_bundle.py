"""Support bundle for a vendor: it contains what a table lists, and no free text of the machine."""

from __future__ import annotations

import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from gpuprov.cli.common.group import run
from gpuprov.doctor.bundle.bundle import LEFT_OUT, compose, pack
from gpuprov.doctor.bundle.choosing import OUT, Tally
from gpuprov.doctor.bundle.table import TABLE
from gpuprov.doctor.look import COLLECTORS
from gpuprov.errors import InvalidInput
from tests.unit.doctor.machines import as_examined, bare_metal, four, virtual
from tests.unit.untrusted.secrets import SHAPES, WORD

Place = tuple[tuple[str | int, ...], str]
FREE = {
    "dkms_log": {"text": ""},
    "environment": {"variables": {"/etc/environment": ""}},
    "daemon_json": {"text": ""},
    "containerd": {"dump": ""},
    "limits": {"systemd": ""},
    "modprobe": [["/etc/modprobe.d/x.conf", ""]],
    "programs": {
        "holders": [
            {"pid": 1, "name": "", "state": "S", "waits": "", "variables": {"NCCL_X": ""}, "gpus": []}
        ],
        "mps": False,
        "stuck": [["1", ""]],
    },
    "sources": {"files": {"/etc/apt/sources.list": ""}, "config": ""},
    "nccl": {"conf": "", "libraries": {"/usr/lib/x86_64-linux-gnu/libnccl.so.2": ""}},
    "frameworks": [{"name": "", "version": ""}],
}
"""Values of collectors that the recorded machine does not have."""


def machine() -> dict[str, Any]:
    told = bare_metal()
    for name, value in FREE.items():
        told[name] = deepcopy(value)
    return told


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yield place and text of each string in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value[:3]):
            yield from leaves(inner, (*path, index))
    elif isinstance(value, str) or value is None:
        yield path, value or ""


def put(told: dict[str, Any], path: tuple[str | int, ...], text: str) -> None:
    inner: Any = told
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = text


def into_line(old: str, shape: str) -> str:
    """Return the text with the shape at the end of its first line."""
    first, _, rest = old.partition("\n")
    return f"{first} {shape}\n{rest}"


WAYS: dict[str, Callable[[str, str], str]] = {
    "instead": lambda _old, shape: shape,
    "behind": lambda old, shape: f"{old} {shape}",
    "glued": lambda old, shape: f"{old}{shape}",
    "a line": lambda old, shape: f"{old}\n{shape}\n{old}",
    "in a line": into_line,
}
PLACES = [path for path, _ in leaves(machine())]


def texts(told: dict[str, Any]) -> str:
    return "\n".join(compose(as_examined(told)).files.values())


def test_there_are_enough_shapes_and_places() -> None:
    assert len(SHAPES) >= 60
    assert len(PLACES) >= 100
    assert {path[0] for path in PLACES} >= {
        "units",
        "kernel_log",
        "smi",
        "sources",
        "daemon_json",
        "programs",
    }


@pytest.mark.parametrize("way", WAYS)
def test_no_shape_of_a_secret_enters_from_any_place(way: str) -> None:
    """Keep secrets out of the bundle: every place gets every seventh shape, with other shapes elsewhere."""
    kept, tries = [], 0
    for first in range(0, len(SHAPES), 7):
        told = machine()
        used = []
        for number, (path, old) in enumerate(leaves(machine())):
            shape = SHAPES[(first + number) % len(SHAPES)]
            put(told, path, WAYS[way](old, escape(shape) if path == ("smi", "stdout") else shape))
            used.append((path, shape))
            tries += 1
        if WORD in texts(told):
            kept += [each for each in used if WORD in texts(one(*each, WAYS[way]))]
    assert kept == []
    assert tries >= 13 * len(PLACES)


def one(path: tuple[str | int, ...], shape: str, way: Callable[[str, str], str]) -> dict[str, Any]:
    told = machine()
    old = dict(leaves(told))[path]
    put(told, path, way(old, shape))
    return told


@pytest.mark.parametrize("shape", [WORD, *SHAPES])
@pytest.mark.parametrize("place", ["units", "kernel_log", "nvlink", "smi", "packages", "name"])
def test_no_shape_enters_through_what_is_chosen(shape: str, place: str) -> None:
    """Keep secrets out of selected lines too: each shape is in a line with a valid beginning."""
    told = machine()
    if place == "units":
        told["units"]["text"] += f"\nResult={shape}\nStatusText={shape}\nId={shape}.service\n"
    elif place == "kernel_log":
        for start in (
            "NVRM: Xid (PCI:0000:00:06): 79, pid=1, name=",
            "NVRM: ",
            "nvidia: ",
            "EXT4-fs error (",
            "",
        ):
            told["kernel_log"]["kept"].append([1.0, start + shape])
    elif place == "nvlink":
        told["nvlink"]["status"] += f"\nGPU 7: {shape}\nLink 0: {shape}\n"
        told["topo"]["text"] += f"\nGPU0 {shape} X\n"
    elif place == "smi":
        text = told["smi"]["stdout"]
        for tag in (
            "product_name",
            "vbios_version",
            "persistence_mode",
            "gpu_temp",
            "uuid",
            "board_part_number",
        ):
            text = re.sub(rf"<{tag}>[^<]*<", lambda _m, t=tag: f"<{t}>{escape(shape)}<", text)
        told["smi"]["stdout"] = text
    elif place == "packages":
        told["packages"]["text"] += (
            f"\ncuda-x\tamd64\t{shape}\tx\tinstall ok installed\n{shape}\tamd64\t1\tx\tx"
        )
    else:
        for name in ("pci_links", "sysctls", "cpu", "libraries", "counters"):
            told[name][shape] = next(iter(told[name].values()))
        told["cpu"]["numa"][shape] = "0-1"
    assert WORD not in texts(told)


def test_what_support_asks_for_is_in_it() -> None:
    told = bare_metal()
    told["kernel_log"]["kept"].append(
        [1.5, "NVRM: Xid (PCI:0000:00:06): 79, pid=12, name=python3, GPU has fallen off"]
    )
    files = compose(as_examined(told)).files
    facts = json.loads(files["facts.json"])["collectors"]
    assert facts["system"]["kernel"] == "6.8.0-87-generic"
    assert facts["modules"]["driver"] == "580.159.04"
    assert "nvidia 14299136" in facts["modules"]["loaded"]
    assert facts["dkms"] == [["nvidia", "580.159.04", "6.8.0-87-generic", "x86_64", "installed"]]
    [first, second] = facts["smi"]["stdout"]
    assert first["product_name"] == second["product_name"] == "NVIDIA H200"
    assert first["ecc_errors"]["aggregate"]["dram_uncorrectable"] == "0"
    assert first["vbios_version"] == "96.00.A5.00.1A"
    assert facts["pci_links"]["0000:00:06.0"][0]["current_link_width"] == "16"
    assert facts["libraries"]["taken"]["libcuda.so.1"] == "580.159.04"
    assert any(line.startswith("cuda-cudart-13-0 13.0.96-1") for line in facts["packages"]["text"])
    assert "ActiveState active" in facts["units"]["text"]
    assert "Link 17 26.562 GB/s" in facts["nvlink"]["status"]
    assert files["kernel-log.txt"].endswith("1.500000 NVRM: Xid (PCI:0000:00:06): 79\n")
    fault = next(
        each for each in json.loads(files["diagnosis.json"])["faults"] if each["rule"] == "errors.xid"
    )
    assert fault["severity"] in ("broken", "degraded", "risk")
    assert fault["known_as"]


def test_identities_are_not_in_it() -> None:
    for told in (bare_metal(), virtual(), four()):
        text = texts(told)
        assert not re.search(
            r"GPU-[0-9a-f]{8}-|16500000000|gpu01|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|mirror\.example", text
        )


@pytest.mark.parametrize(
    "value", [None, [], {}, "", 1, True, [[]], {"text": 1}, {"kept": [[1]]}, {"stdout": None}]
)
def test_answers_of_another_kind_leave_the_rest(value: Any) -> None:
    for choose in TABLE.values():
        kept = choose(value, Tally())
        assert kept is OUT or json.dumps(kept)
    told = {**bare_metal(), **dict.fromkeys(TABLE, value)}
    assert json.loads(compose(as_examined(told)).files["facts.json"])["schema"] == "gpuprov.bundle/1"


HOSTILE = (
    "a" * 100_000,
    "1" * 100_000,
    "nvidia" + "-a" * 50_000,
    "NVIDIA" + " SXM4" * 20_000,
    "1," * 50_000 + "x",
    "password" * 10_000,
    "a.b:" * 20_000,
    "6.1" + "-1" * 40_000 + "!",
)


def test_patterns_take_no_time_from_a_hostile_machine() -> None:
    begun = time.monotonic()
    for tried in HOSTILE:
        told = machine()
        for path, _ in leaves(machine()):
            if path[0] not in ("smi",):
                put(told, path, tried)
        compose(as_examined(told))
    assert time.monotonic() - begun < 20


def test_every_collector_of_the_table_is_asked_for() -> None:
    assert set(TABLE) <= set(COLLECTORS)


def test_it_is_packed_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    bundle = compose(as_examined(bare_metal()))
    path = tmp_path / "b.tar.gz"
    pack(path, bundle)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        names = {name.removeprefix("gpuprov-bundle/") for name in archive.getnames()}
        assert names == set(bundle.files)
        left = archive.extractfile("gpuprov-bundle/LEFT-OUT.txt").read().decode()  # type: ignore[union-attr]
    assert left.splitlines() == list(bundle.left_out)
    assert all(f"not in the table: {each}" in bundle.left_out for each in LEFT_OUT)
    with pytest.raises(InvalidInput, match="already exists"):
        pack(path, bundle)


def test_it_is_shown_before_it_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, path = tmp_path / "look.json", tmp_path / "b.tar.gz"
    told = bare_metal()
    told["kernel_log"]["kept"].append([1.5, "NVRM: Xid (PCI:0000:00:06): 79, pid=12"])
    saved.write_text(json.dumps(as_examined(told).to_answer()))
    words = ["doctor", "--facts", str(saved), "--bundle", str(path)]
    assert run(words) == 2
    said = capsys.readouterr()
    assert "kernel-log.txt: 1.500000 NVRM: Xid (PCI:0000:00:06): 79" in said.err
    assert "confirmation is needed" in said.err
    assert "add --yes" in said.err
    assert not path.exists()
    assert run([*words, "--show", "--yes"]) == 0
    said = capsys.readouterr()
    assert "== facts.json\n{" in said.out
    assert path.is_file()
    assert run(["doctor", "--facts", str(saved), "--show"]) == 2


def test_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.tar.gz"
    assert run(["doctor", "--local", "--bundle", str(path), "--yes"]) == 0
    assert path.is_file()
    assert "not in the table: nvidia-bug-report.sh" in capsys.readouterr().err
    assert run(["doctor", "--bundle", str(tmp_path / "c.tar.gz")]) == 2
