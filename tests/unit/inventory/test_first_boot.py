"""User-data for a new machine: contents, size and refusals."""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import json
import re
import shlex
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.apply.kernel_modules.build import build_of
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.kernel_modules.store import Store, fleet_id
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.exports import cloud_init
from gpuprov.inventory.exports.cloud_init import LIMIT, user_data
from gpuprov.inventory.firstboot.files import FLEET as FLEET_THERE
from gpuprov.inventory.firstboot.files import FOR_TYPES, LOCK, ORDER, PROGRAM, UNIT_PATH, URLS, File
from gpuprov.inventory.firstboot.node import first_boot
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.probe.payload import without_docs
from gpuprov_lab.simulator import stub_module
from tests.unit.inventory.conftest import MakeLock
from tests.unit.programs import write_program

FLEET = """\
groups:
  train:
    profile: hgx-a100-4
    hosts: 'gpu[01-02]'
    os: ubuntu24.04
    stack: {repository: nvidia, builder: gpu01}
    settings: {monitoring: {textfile: /var/lib/node_exporter}}
  infer: {profile: inference-l4, hosts: {l1: 10.0.0.9}, os: ubuntu24.04}
ssh: {user: ops, port: 2222, identity_file: /home/ops/.ssh/secret, jump: bastion}
"""
WHEEL = "https://mirror.example/gpuprov-1-py3-none-any.whl"
HASH = "a" * 64
MODULES = ("--modules-url", "https://mirror.example/modules.zip", "--modules-out", "modules.zip")
KERNEL = "6.8.0-85-generic"


@pytest.fixture
def lock(tmp_path: Path, locked: MakeLock) -> Path:
    """Return the path of a lock for the fleet."""
    path = tmp_path / "fleet.lock.yml"
    write_lock(locked(FLEET), path)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Path) -> Store:
    """Store of a controller that has not compiled anything."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Store(fleet=read_lock(lock).fleet)


def exported(capfdbinary: pytest.CaptureFixture[bytes], lock: Path, *words: str) -> bytes:
    """Return the user-data that `inventory export cloud-init` prints."""
    stated = () if "--wheel" in words else ("--wheel", f"{WHEEL}#sha256={HASH}")
    assert run(["inventory", "export", "cloud-init", "train", "--lock", str(lock), *stated, *words]) == 0
    return capfdbinary.readouterr().out


def written(data: bytes) -> dict[str, str]:
    """Return path → text of the files that cloud-init writes."""
    files = {}
    for each in yaml.safe_load(data)["write_files"]:
        packed = each.get("encoding") == "gz+b64"
        content = each["content"]
        files[each["path"]] = gzip.decompress(base64.b64decode(content)).decode() if packed else content
    return files


def order(data: bytes) -> dict[str, Any]:
    """Return the order in user-data."""
    found: dict[str, Any] = json.loads(written(data)[ORDER])
    return found


def test_it_carries_the_lock_of_one_machine_that_is_this_one(
    lock: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = exported(capfdbinary, lock)
    assert data.startswith(b"#cloud-config\n")
    text = written(data)[LOCK]
    (tmp_path / "own.yml").write_text(text)
    own, whole = read_lock(tmp_path / "own.yml"), read_lock(lock)
    assert own.groups.keys() == {"train"}
    assert own.groups["train"].hosts == {"here": "local"}
    assert own.groups["train"].components == whole.groups["train"].components
    assert order(data)["lock"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_way_to_the_hosts_is_left_out_but_for_what_hardening_goes_by(
    lock: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "own.yml").write_text(written(exported(capfdbinary, lock))[LOCK])
    connection = read_lock(tmp_path / "own.yml").groups["train"].connection
    assert connection.model_dump(exclude_none=True) == {"user": "ops", "port": 2222}


def test_it_names_no_other_machine_and_no_workers(
    tmp_path: Path, locked: MakeLock, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Leave out places and services: with these the machine would refuse to apply its lock to itself."""
    of_all = "controllers: 'tls://gw.example:8790'\nracks: {row7: 'gpu[01-02]', row8: l1}\n"
    write_lock(locked(FLEET + of_all), tmp_path / "fleet.lock.yml")
    text = written(exported(capfdbinary, tmp_path / "fleet.lock.yml"))[LOCK]
    assert not {word for word in ("controllers", "gw.example", "racks", "row8") if word in text}


def test_it_fits_and_the_same_lock_gives_the_same_bytes(
    lock: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    plain, again = exported(capfdbinary, lock), exported(capfdbinary, lock)
    assert plain == again
    assert len(plain) <= LIMIT
    compressed = exported(capfdbinary, lock, "--compress")
    assert len(compressed) < len(plain)
    assert written(gzip.decompress(compressed)) == written(plain)


def test_the_metric_lies_where_the_locks_node_exporter_reads(
    lock: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert order(exported(capfdbinary, lock))["metrics"] == "/var/lib/node_exporter/gpuprov_first_boot.prom"


def test_a_lock_that_is_fetched_is_not_carried(
    lock: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    own = tmp_path / "own.yml"
    words = ("--lock-url", "https://mirror.example/own.yml", "--lock-out", str(own))
    data = exported(capfdbinary, lock, *words)
    assert LOCK not in written(data)
    assert order(data)["lock"] == {
        "path": LOCK,
        "url": "https://mirror.example/own.yml",
        "sha256": hashlib.sha256(own.read_bytes()).hexdigest(),
    }


def test_modules_of_the_store_come_along_with_their_hash(
    lock: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], store: Store
) -> None:
    group = read_lock(lock).groups["train"]
    build = build_of(group, KERNEL, "gcc 13.3.0")
    older = replace(build, driver="550.54.14")
    for each in (build, older):
        files = {"nvidia.ko": stub_module(each.driver, kernel=KERNEL, licence="Dual MIT/GPL")}
        store.keep(each, {"gpu01": pack(files)})
    out = tmp_path / "modules.zip"
    data = exported(capfdbinary, lock, "--modules-url", MODULES[1], "--modules-out", str(out))
    assert order(data)["modules"] == {
        "url": MODULES[1],
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
    }
    with zipfile.ZipFile(out) as archive:
        assert archive.namelist() == [
            f"{fleet_id(FLEET_THERE)}/gpu01/{KERNEL}/{build.folder}/{name}"
            for name in ("modules.tar.gz", "about.json")
        ]
        archive.extractall(tmp_path / "machine")
    (tmp_path / "own.lock.yml").write_text(written(data)[LOCK])
    own = read_lock(tmp_path / "own.lock.yml").groups["train"]
    assert Store(tmp_path / "machine", fleet=FLEET_THERE).find(build_of(own, KERNEL, "gcc 13.3.0"))


def test_modules_of_another_fleet_or_builder_stay_here(
    lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], store: Store
) -> None:
    build = build_of(read_lock(lock).groups["train"], KERNEL, "gcc 13.3.0")
    files = pack({"nvidia.ko": stub_module(build.driver, kernel=KERNEL, licence="Dual MIT/GPL")})
    store.keep(replace(build, builders=("gpu02",)), {"gpu02": files})
    Store(store.folder, fleet=tmp_path / "other/fleet.yml").keep(build, {"gpu01": files})
    words = ["--wheel", f"{WHEEL}#sha256={HASH}", *MODULES, "--lock", str(lock)]
    assert run(["inventory", "export", "cloud-init", "train", *words]) == 2
    assert "expected a build by gpu01" in capsys.readouterr().err


def test_gpuprov_comes_from_a_wheel_by_its_hash_and_the_rest_from_an_index(
    lock: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    how = order(exported(capfdbinary, lock))["install"]
    assert how == {"wheel": WHEEL, "sha256": HASH, "index": None, "program": None}
    signed = f"{WHEEL}?X-Signature=abc"
    words = ("--wheel", f"{signed}#sha256={HASH}", "--index", "https://mirror.example/simple")
    how = order(exported(capfdbinary, lock, *words))["install"]
    assert how == {
        "wheel": signed,
        "sha256": HASH,
        "index": "https://mirror.example/simple",
        "program": None,
    }


def test_no_index_is_ever_asked_for_gpuprov_by_its_name(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), ("--index", "https://mirror.example/simple")):
        assert run(["inventory", "export", "cloud-init", "train", "--lock", str(lock), *words]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert "scripts/release wheel" in said.err
        assert "--wheel" in said.err


def test_a_wheel_that_is_a_file_is_reported_with_its_hash(
    lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "gpuprov-1-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    assert (
        run(["inventory", "export", "cloud-init", "train", "--lock", str(lock), "--wheel", str(wheel)]) == 2
    )
    stated = f"--wheel URL/{wheel.name}#sha256={hashlib.sha256(b'a wheel').hexdigest()}"
    assert stated in capsys.readouterr().err.replace("\n", " ")


def test_the_program_has_what_it_imports_beside_it(
    lock: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = written(exported(capfdbinary, lock))
    assert "from urls import" in files[PROGRAM]
    assert "def public_urls(" in files[URLS]
    assert Path(URLS) == Path(PROGRAM).with_name("urls.py")
    source = ast.parse(without_docs(Path(first_boot.__file__).read_text()).replace(FOR_TYPES, ""))
    assert "TYPE_CHECKING" not in ast.unparse(source)
    assert ast.dump(ast.parse(files[PROGRAM])) == ast.dump(source), "only its form is smaller"


OWN, LIBEXEC = "/usr/bin/python3", "/usr/libexec/platform-python"


@pytest.mark.parametrize(("there", "used"), [((OWN, LIBEXEC), OWN), ((LIBEXEC,), LIBEXEC)])
def test_the_unit_runs_in_the_python_that_the_system_has(
    lock: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    there: tuple[str, ...],
    used: str,
) -> None:
    """Start the unit's command with fake Pythons in a temporary folder in place of /usr."""
    unit = written(exported(capfdbinary, lock))[UNIT_PATH]
    [command] = re.findall(r"(?m)^ExecStart=(.*)$", unit)
    for each in there:
        (tmp_path / each[1:]).parent.mkdir(parents=True)
        write_program(tmp_path / each[1:], f'echo "{each} $*" >{tmp_path}/ran')
    argv = shlex.split(command.replace("$$", "$").replace("/usr/", f"{tmp_path}/usr/"))
    subprocess.run(argv, check=True)
    assert (tmp_path / "ran").read_text() == f"{used} -B {tmp_path}{PROGRAM}\n"


def test_the_unit_is_started_without_waiting_for_it(
    lock: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Start the unit with --no-block: it waits for cloud-init, so a start that waits would be a deadlock."""
    data = exported(capfdbinary, lock)
    assert UNIT_PATH in written(data)
    [*_, start] = yaml.safe_load(data)["runcmd"]
    assert start == ["systemctl", "start", "--no-block", "gpuprov-first-boot.service"]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["nobody"], "the lock has no group 'nobody'; expected one of train, infer"),
        (["train", "infer"], "2 groups; expected one"),
        (["train", "--wheel", WHEEL], "expected https://…/gpuprov-VERSION-py3-none-any.whl#sha256=HASH"),
        (["train", "--lock-url", "https://mirror.example/x"], "only one of --lock-url and --lock-out"),
        (["train", "--modules-out", "modules.zip"], "only one of --modules-url and --modules-out"),
        (["train", *MODULES], "the store has no module 5"),
        (["infer", *MODULES], "every machine of infer compiles its own modules"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    lock: Path, capsys: pytest.CaptureFixture[str], words: list[str], result: str, store: Store
) -> None:
    stated = () if "--wheel" in words else ("--wheel", f"{WHEEL}#sha256={HASH}")
    assert run(["inventory", "export", "cloud-init", *words, *stated, "--lock", str(lock)]) == 2
    assert result in capsys.readouterr().err


def test_what_no_cloud_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that user-data larger than clouds accept is refused, with ways to make it smaller."""
    monkeypatch.setattr(cloud_init, "LIMIT", 500)
    incompressible = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(40))
    with pytest.raises(InvalidInput, match="expected at most 500; use --compress, or fetch the lock"):
        user_data([File(LOCK, incompressible)])
    with pytest.raises(InvalidInput, match="fetch the lock with --lock-url"):
        user_data([File(LOCK, incompressible)], compress=True)


def test_what_is_noted_says_nothing_that_opens_a_url(
    lock: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = "https://me:hunter2@mirror.example/own.yml?sig=hunter2"
    words = ("--wheel", f"{WHEEL}#sha256={HASH}", "--lock-url", url, "--lock-out", str(tmp_path / "own.yml"))
    assert run(["inventory", "export", "cloud-init", "train", "--lock", str(lock), *words]) == 0
    said = capfdbinary.readouterr()
    assert b"hunter2" not in said.err
    assert order(said.out)["lock"]["url"] == url
    [mode] = [
        each["permissions"] for each in yaml.safe_load(said.out)["write_files"] if each["path"] == ORDER
    ]
    assert mode == "0600"
