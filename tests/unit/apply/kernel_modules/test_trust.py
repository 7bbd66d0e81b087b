"""Trust in builds: a store accepts and finds only builds of builders that the lock trusts, for its fleet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuprov.apply.kernel_modules import journal
from gpuprov.apply.kernel_modules.build import bare, build_of, digest
from gpuprov.apply.kernel_modules.packing import pack, unpack
from gpuprov.apply.kernel_modules.store import Signer, Store
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.signing.signature import MAGIC, PKCS7, TRAILER
from gpuprov_lab.simulator import stub_module
from tests import RECORDED_LOCK
from tests.unit.apply.kernel_modules.test_store import BUILD, FILES, KERNEL

PAIR = replace(BUILD, builders=("node1", "node2"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Store(tmp_path / "modules", fleet=tmp_path / "fleet.yml")


def signed_by_dkms(content: bytes, key: bytes) -> bytes:
    """Return a module's content with a signature appended, in the kernel's format."""
    return content + key + TRAILER.pack(0, 0, PKCS7, 0, 0, len(key)) + MAGIC


def test_a_node_that_is_not_the_builder_puts_nothing_into_the_store(store: Store) -> None:
    with pytest.raises(NodeFailed, match=r"by node2.*expected by node1"):
        store.keep(BUILD, {"node2": pack(FILES)})
    with pytest.raises(NodeFailed, match=r"by node\[1-2\].*expected by node1"):
        store.keep(BUILD, {"node1": pack(FILES), "node2": pack(FILES)})
    with pytest.raises(NodeFailed, match=r"by node1.*expected by node\[1-2\]"):
        store.keep(PAIR, {"node1": pack(FILES)})
    assert store.find(BUILD) is None
    assert store.find(PAIR) is None


def test_a_build_is_found_only_while_the_lock_trusts_its_builder(store: Store) -> None:
    store.keep(BUILD, {"node1": pack(FILES)})
    assert store.find(BUILD)
    for others in (("node2",), ("node1", "node2"), ("image",)):
        assert store.find(replace(BUILD, builders=others)) is None


def test_a_build_of_another_fleet_is_not_found(store: Store, tmp_path: Path) -> None:
    """Builds of another fleet are not found, even if a node there has the same name."""
    store.keep(BUILD, {"node1": pack(FILES)})
    other = Store(store.folder, fleet=tmp_path / "other/fleet.yml")
    assert other.find(BUILD) is None
    assert Store(store.folder, fleet=tmp_path / "fleet.yml").find(BUILD)


def test_a_build_that_was_moved_to_another_builder_is_refused(store: Store) -> None:
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    trusted = store.keep(replace(BUILD, builders=("node2",)), {"node2": pack(FILES)})
    (kept.archive.parent / "about.json").replace(trusted.archive.parent / "about.json")
    with pytest.raises(GpuprovError, match="does not match its record"):
        store.find(trusted.build)


def test_what_two_builders_made_is_kept_if_it_is_the_same_but_for_their_signatures(store: Store) -> None:
    made = {
        name: pack({file: signed_by_dkms(content, name.encode() * 40) for file, content in FILES.items()})
        for name in PAIR.builders
    }
    assert made["node1"] != made["node2"]
    kept = store.keep(PAIR, made)
    assert unpack(kept.archive.read_bytes()) == FILES


def test_a_payload_of_one_of_two_builders_is_seen(store: Store) -> None:
    forged = {**FILES, "nvidia-current.ko": FILES["nvidia-current.ko"] + b"payload"}
    with pytest.raises(
        NodeFailed, match=r"node1 and node2 built different modules, signatures aside: nvidia-current\.ko"
    ):
        store.keep(PAIR, {"node1": pack(FILES), "node2": pack(forged)})
    more = {**FILES, "nvidia-drm.ko": FILES["nvidia-current.ko"]}
    with pytest.raises(NodeFailed, match=r"different modules, signatures aside: nvidia-drm\.ko"):
        store.keep(PAIR, {"node1": pack(more), "node2": pack(FILES)})
    assert store.find(PAIR) is None


def test_a_payload_behind_a_signature_is_no_signature() -> None:
    """Cut off everything that looks like a signature, repeatedly; compare and keep the rest."""
    twice = signed_by_dkms(signed_by_dkms(FILES["nvidia-current.ko"], b"one"), b"payload")
    assert bare(pack({"nvidia-current.ko": twice})) == {"nvidia-current.ko": FILES["nvidia-current.ko"]}


def test_what_was_signed_is_in_the_journal(store: Store, tmp_path: Path) -> None:
    signing = Store(
        store.folder,
        fleet=tmp_path / "fleet.yml",
        signer=Signer("ab" * 32, lambda content: content + b"!"),
        run="20260101-000000-apply-0000",
    )
    kept = signing.keep(BUILD, {"node1": pack(FILES)})
    entries = journal.read()
    assert {each.file: each.after for each in entries} == kept.modules
    [entry] = [each for each in entries if each.file == "nvidia-current.ko"]
    assert (entry.run, entry.certificate) == ("20260101-000000-apply-0000", "ab" * 32)
    assert entry.before == digest(FILES["nvidia-current.ko"])
    assert entry.build["builders"] == ["node1"]
    assert entry.fleet == str(tmp_path / "fleet.yml")
    signing.keep(replace(BUILD, compiler="gcc"), {"node1": pack(FILES)})
    assert journal.read()[: len(entries)] == entries
    assert journal.path().stat().st_mode & 0o777 == 0o600


def test_a_signature_that_cannot_be_written_down_is_not_used(store: Store, tmp_path: Path) -> None:
    signing = Store(store.folder, signer=Signer("ab" * 32, lambda content: content + b"!"))
    journal.path().mkdir(parents=True)
    with pytest.raises(GpuprovError, match=r"journal of signatures .* cannot be written"):
        signing.keep(BUILD, {"node1": pack(FILES)})
    assert not list(store.folder.rglob("about.json"))


def test_a_line_of_the_journal_that_was_cut_off_spoils_no_other(store: Store) -> None:
    signing = Store(store.folder, signer=Signer("ab" * 32, lambda content: content + b"!"))
    signing.keep(BUILD, {"node1": pack(FILES)})
    with journal.path().open("a") as file:
        file.write('{"at": "2026')
    signing.keep(replace(BUILD, compiler="gcc"), {"node1": pack(FILES)})
    assert len(journal.read()) == 2 * len(FILES)


def test_no_kernel_becomes_a_path_outside_of_the_store(store: Store) -> None:
    [group] = read_lock(RECORDED_LOCK).groups.values()
    for kernel in ("../../../etc", "6.1/../../x", "6.1 {{ 1 }}", "", "-6.1"):
        with pytest.raises(NodeFailed, match="as the release of a kernel"):
            build_of(group, kernel, "gcc")
        with pytest.raises(NodeFailed):
            store.find(replace(BUILD, kernel=kernel))
    with pytest.raises(NodeFailed, match="as the compiler of a kernel"):
        build_of(group, KERNEL, "{{ lookup('pipe', 'id') }}")
    assert not store.folder.exists()


def test_the_fleet_of_a_lock_is_the_file_beside_it(tmp_path: Path) -> None:
    lock = read_lock(RECORDED_LOCK)
    for name in ("fleet.lock.yml", "next.lock.yml", "own.lock.yml"):
        write_lock(lock, tmp_path / name)
    (tmp_path / "own.yml").write_text("")

    def fleet(name: str) -> Path | None:
        return read_lock(tmp_path / name).fleet

    assert fleet("fleet.lock.yml") == fleet("next.lock.yml") == tmp_path / "fleet.yml"
    assert fleet("own.lock.yml") == tmp_path / "own.yml"
    assert Lock(inputs="0" * 64, groups={}).fleet is None
    copy = read_lock(tmp_path / "next.lock.yml").of_fleet(tmp_path / "own.yml")
    assert copy.fleet == tmp_path / "own.yml"


def test_about_says_who_made_it(store: Store) -> None:
    """Check that the store's `about.json` names the builders of an archive."""
    kept = store.keep(BUILD, {"node1": pack({"nvidia.ko": stub_module("535.309.01", kernel=KERNEL)})})
    about = json.loads((kept.archive.parent / "about.json").read_text())
    assert (about["schema"], about["build"]["builders"]) == ("gpuprov.modules/2", ["node1"])
    assert kept.archive.relative_to(store.folder).parts[1] == "node1"
