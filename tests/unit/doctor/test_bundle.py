"""Support bundle for a vendor: it contains what a table lists, and no free text of the machine."""

from __future__ import annotations

import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from gpuprov.cli.common.group import run
from gpuprov.doctor.bundle.bundle import LEFT_OUT, compose, pack
from gpuprov.doctor.bundle.choosing import OUT, Tally
from gpuprov.doctor.bundle.table import TABLE
from gpuprov.doctor.collecting import COLLECTORS
from gpuprov.errors import InvalidInput
from gpuprov.probe.node import base, host, links
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
    """Return a healthy machine's facts with free text in the collectors that have some."""
    result = bare_metal()
    for name, value in FREE.items():
        result[name] = deepcopy(value)
    return result


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


def put(result: dict[str, Any], path: tuple[str | int, ...], text: str) -> None:
    """Replace the value at a path of keys and indexes."""
    inner: Any = result
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


def texts(result: dict[str, Any]) -> str:
    """Return the text of all files of a bundle."""
    return "\n".join(compose(as_examined(result)).files.values())


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


def draws(way: str) -> Iterator[list[str]]:
    """Yield one shape per place, in the order of the places, for each document of a way."""
    for first in range(list(WAYS).index(way), len(SHAPES), len(WAYS)):
        yield [SHAPES[(first + number) % len(SHAPES)] for number in range(len(PLACES))]


def test_every_place_gets_every_shape() -> None:
    tried = {each for way in WAYS for drawn in draws(way) for each in zip(PLACES, drawn, strict=True)}
    assert tried == set(product(PLACES, SHAPES))


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_no_shape_of_a_secret_enters_from_any_place(way: str) -> None:
    """Keep secrets out of the bundle: each document has a shape in every place; the ways share the shapes."""
    kept = []
    for drawn in draws(way):
        result = machine()
        used = list(zip(leaves(machine()), drawn, strict=True))
        for (path, old), shape in used:
            put(result, path, WAYS[way](old, escape(shape) if path == ("smi", "stdout") else shape))
        if WORD in texts(result):
            kept += [(path, shape) for (path, _), shape in used if WORD in texts(one(path, shape, WAYS[way]))]
    assert kept == []


def one(path: tuple[str | int, ...], shape: str, way: Callable[[str, str], str]) -> dict[str, Any]:
    """Return a machine's facts with one value replaced: `way` gets the old one and a shape."""
    result = machine()
    old = dict(leaves(result))[path]
    put(result, path, way(old, shape))
    return result


@pytest.mark.parametrize("place", ["units", "kernel_log", "nvlink", "packages", "name"])
def test_no_shape_enters_through_what_is_chosen(place: str) -> None:
    """Keep secrets out of selected lines too: each shape is in a line with a valid beginning."""
    shapes = [WORD, *SHAPES]
    if WORD in texts(chosen(place, shapes)):
        assert [shape for shape in shapes if WORD in texts(chosen(place, [shape]))] == []
        pytest.fail("a secret enters if it is beside others")


def chosen(place: str, shapes: list[str]) -> dict[str, Any]:
    """Return a machine with each shape in lines that are selected."""
    result = machine()
    for shape in shapes:
        if place == "units":
            result["units"]["text"] += f"\nResult={shape}\nStatusText={shape}\nId={shape}.service\n"
        elif place == "kernel_log":
            for start in (
                "NVRM: Xid (PCI:0000:00:06): 79, pid=1, name=",
                "NVRM: ",
                "nvidia: ",
                "EXT4-fs error (",
                "",
            ):
                result["kernel_log"]["kept"].append([1.0, start + shape])
        elif place == "nvlink":
            result["nvlink"]["status"] += f"\nGPU 7: {shape}\nLink 0: {shape}\n"
            result["topo"]["text"] += f"\nGPU0 {shape} X\n"
        elif place == "packages":
            result["packages"]["text"] += (
                f"\ncuda-x\tamd64\t{shape}\tx\tinstall ok installed\n{shape}\tamd64\t1\tx\tx"
            )
        else:
            for name in ("pci_links", "sysctls", "cpu", "libraries", "counters"):
                result[name][shape] = next(iter(result[name].values()))
            result["cpu"]["numa"][shape] = "0-1"
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [WORD, *SHAPES])
def test_no_shape_enters_through_nvidia_smi(shape: str) -> None:
    result = machine()
    text = result["smi"]["stdout"]
    for tag in (
        "product_name",
        "vbios_version",
        "persistence_mode",
        "gpu_temp",
        "uuid",
        "board_part_number",
    ):
        text = re.sub(rf"<{tag}>[^<]*<", lambda _m, t=tag: f"<{t}>{escape(shape)}<", text)
    result["smi"]["stdout"] = text
    assert WORD not in texts(result)


def test_what_support_asks_for_is_in_it() -> None:
    result = bare_metal()
    result["kernel_log"]["kept"].append(
        [1.5, "NVRM: Xid (PCI:0000:00:06): 79, pid=12, name=python3, GPU has fallen off"]
    )
    files = compose(as_examined(result)).files
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


class Sysfs:
    """A tree in place of /sys for the collectors, whose paths are absolute."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def glob(self, pattern: str) -> list[str]:
        """Return matching paths below the folder, as if it were the root."""
        return ["/" + str(path.relative_to(self.folder)) for path in self.folder.glob(pattern[1:])]

    def below(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `base` that takes its path from this tree."""
        return lambda path, *limit: read(f"{self.folder}{path}", *limit)


AER, PORT = "sys/bus/pci/devices/0000:15:01.0", "sys/class/infiniband/mlx5_0/ports/1"
SYS = {
    f"{AER}/aer_dev_correctable": "RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n",
    f"{AER}/aer_dev_nonfatal": "CmpltTO 1\nTOTAL_ERR_NONFATAL 1\n",
    f"{AER}/aer_dev_fatal": "MalfTLP 2\nTOTAL_ERR_FATAL 2\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/counters/symbol_error": "7\n",
    f"{PORT}/hw_counters/rnr_nak_retry_err": "9\n",
    "sys/class/infiniband/rocep24s0f1/ports/1/phys_state": "3: Disabled\n",
    "sys/class/infiniband/rocep24s0f1/ports/1/hw_counters/roce_adp_retrans": "5\n",
    "sys/class/infiniband/rocep24s0f1/ports/2/phys_state": "4: PortConfigurationTraining\n",
    "proc/vmstat": "pswpin 1\npswpout 2\noom_kill 4\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "6\n",
}


def test_counters_and_states_of_ports_as_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Sysfs(tmp_path, SYS)
    for module in (links, host):
        monkeypatch.setattr(module, "glob", tree)
        for name in ("names_in", "read_or_none", "text_in"):
            monkeypatch.setattr(module, name, tree.below(getattr(base, name)))
    monkeypatch.setattr(host, "read", lambda path: "" if path.startswith("/proc/") else "0")
    monkeypatch.setattr(links, "PAUSE_S", 0)
    counters, states = links.counters({}), host.host_state({})["phys_states"]
    assert len(counters["first"]) == 13
    assert states == {
        "mlx5_0/1": "5: LinkUp",
        "rocep24s0f1/1": "3: Disabled",
        "rocep24s0f1/2": "4: PortConfigurationTraining",
    }
    result = bare_metal()
    result["counters"] = counters
    result["host_state"]["phys_states"] = states
    facts = json.loads(compose(as_examined(result)).files["facts.json"])["collectors"]
    assert facts["counters"] == counters
    assert facts["host_state"]["phys_states"] == states


def test_identities_are_not_in_it() -> None:
    for result in (bare_metal(), virtual(), four()):
        text = texts(result)
        assert not re.search(
            r"GPU-[0-9a-f]{8}-|16500000000|gpu01|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|mirror\.example", text
        )


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("eth0", True),
        ("enp3s0f0np0", True),
        ("ens1f1", True),
        ("ibp65s0", True),
        ("ib0", True),
        ("docker0", True),
        ("enx0a1b2c3d4e5f", False),
        ("brdeadbeef0001", False),
        ("ethcustomer", False),
    ],
)
def test_the_name_of_an_interface_has_no_address(name: str, kept: bool) -> None:
    """Keep names by place or number; systemd names an interface of USB by its MAC address."""
    result = bare_metal()
    result["nics"][0]["name"] = name
    assert (name in texts(result)) is kept


@pytest.mark.parametrize(
    "value", [None, [], {}, "", 1, True, [[]], {"text": 1}, {"kept": [[1]]}, {"stdout": None}]
)
def test_answers_of_another_kind_leave_the_rest(value: Any) -> None:
    for choose in TABLE.values():
        kept = choose(value, Tally())
        assert kept is OUT or json.dumps(kept)
    result = {**bare_metal(), **dict.fromkeys(TABLE, value)}
    assert json.loads(compose(as_examined(result)).files["facts.json"])["schema"] == "gpuprov.bundle/1"


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
        result = machine()
        for path, _ in leaves(machine()):
            if path[0] not in ("smi",):
                put(result, path, tried)
        compose(as_examined(result))
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
    result = bare_metal()
    result["kernel_log"]["kept"].append([1.5, "NVRM: Xid (PCI:0000:00:06): 79, pid=12"])
    saved.write_text(json.dumps(as_examined(result).to_answer()))
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
    """Check that the bundle of this machine is written, and that `--bundle` without a machine is refused."""
    path = tmp_path / "b.tar.gz"
    assert run(["doctor", "--local", "--bundle", str(path), "--yes"]) == 0
    assert path.is_file()
    assert "not in the table: nvidia-bug-report.sh" in capsys.readouterr().err
    assert run(["doctor", "--bundle", str(tmp_path / "c.tar.gz")]) == 2
