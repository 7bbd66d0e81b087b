"""Store of compiled modules: contents are verified, and refused after a change."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpuprov.apply.kernel_modules.build import Build, bare, check, modinfo
from gpuprov.apply.kernel_modules.packing import compressed, pack, suffix_of, unpack
from gpuprov.apply.kernel_modules.store import ABOUT, ARCHIVE, Signer, Store, bundled
from gpuprov.errors import NodeFailed, Refused
from gpuprov_lab.simulator import stub_module

KERNEL = "6.1.0-56-amd64"
BUILD = Build(
    "535.309.01",
    "proprietary",
    "nvidia-kernel-dkms=535.309.01-0+deb12u1",
    KERNEL,
    "x86_64",
    "gcc-12 12.2.0",
    ("node1",),
)
MODULE = stub_module("535.309.01", kernel=KERNEL)
TEMPLATE = KERNEL + " {{ lookup('pipe', 'id') }}"
FILES = {"nvidia-current.ko": MODULE, "nvidia-current-uvm.ko": MODULE}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "modules")


def test_what_was_kept_is_found_with_its_sums(store: Store) -> None:
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    found = store.find(BUILD)
    assert found == kept
    assert (found.build.builders, found.vermagic.split()[0]) == (("node1",), KERNEL)
    assert unpack(found.archive.read_bytes()) == FILES
    assert sorted(found.modules) == sorted(FILES)


@pytest.mark.parametrize(
    "other",
    [
        replace(BUILD, kernel="6.1.0-57-amd64"),
        replace(BUILD, compiler="gcc-13 13.1.0"),
        replace(BUILD, source="nvidia-driver=535.309.01-1"),
        replace(BUILD, flavour="open"),
        replace(BUILD, arch="aarch64"),
    ],
)
def test_another_build_is_not_there(store: Store, other: Build) -> None:
    store.keep(BUILD, {"node1": pack(FILES)})
    assert store.find(other) is None


def test_a_changed_byte_is_refused(store: Store) -> None:
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    packed = bytearray(kept.archive.read_bytes())
    packed[len(packed) // 2] ^= 1
    kept.archive.write_bytes(packed)
    with pytest.raises(Refused, match=r"does not match its record.*rm -r"):
        store.find(BUILD)


def test_half_a_record_is_refused(store: Store) -> None:
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    (kept.archive.parent / "about.json").write_text('{"build"')
    with pytest.raises(Refused, match=r"cannot be read.*rm -r"):
        store.find(BUILD)


def test_an_archive_that_cannot_be_read_is_refused(store: Store) -> None:
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    kept.archive.unlink()
    kept.archive.mkdir()
    with pytest.raises(Refused, match=r"cannot be read.*rm -r"):
        store.find(BUILD)


def test_another_machines_store_is_what_is_unpacked_there(store: Store, tmp_path: Path) -> None:
    other = replace(BUILD, kernel="6.1.0-57-amd64")
    kept = [
        store.keep(BUILD, {"node1": pack(FILES)}),
        store.keep(other, {"node1": pack({"nvidia.ko": stub_module("535.309.01", kernel=other.kernel)})}),
    ]
    fleet = Path("/etc/gpuprov/fleet.yml")
    with zipfile.ZipFile(io.BytesIO(bundled(kept, fleet))) as archive:
        archive.extractall(tmp_path / "there")
    assert bundled(kept, fleet) == bundled(kept, fleet)
    there = Store(tmp_path / "there", fleet=fleet)
    for each in kept:
        found = there.find(each.build)
        assert found is not None
        assert replace(found, archive=each.archive) == each
    assert Store(tmp_path / "there", fleet=Path("/srv/fleet.yml")).find(BUILD) is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"nvidia.ko": stub_module("535.261.03", kernel=KERNEL)}, "is of '535.261.03'"),
        ({"nvidia.ko": stub_module("535.309.01", kernel="6.1.0-9-amd64")}, "for kernel '6.1.0-9-amd64'"),
        ({"nvidia.ko": stub_module("535.309.01", kernel=TEMPLATE)}, "as the vermagic of a module"),
        ({"nvidia.ko": stub_module("535.309.01", kernel=KERNEL, licence="Dual MIT/GPL")}, "nvidia is open"),
        (
            {"nvidia-uvm.ko": stub_module("535.309.01", kernel=KERNEL, name="nvidia_uvm")},
            "the module nvidia is missing",
        ),
        ({"nvidia.ko": b"nothing"}, "is of 'None'"),
        ({"../nvidia.ko": MODULE}, "a file '../nvidia.ko'"),
        ({"dropbear.ko": MODULE}, "a file 'dropbear.ko'"),
        ({"nvidia.ko.xz": MODULE}, "cannot be unpacked"),
        ({}, "0 modules"),
    ],
)
def test_what_is_no_such_build_is_not_kept(store: Store, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(NodeFailed) as raised:
        store.keep(BUILD, {"node1": pack(files)})
    assert said in str(raised.value)
    assert store.find(BUILD) is None


def test_the_main_module_alone_tells_the_flavour() -> None:
    """Take the flavour from the module nvidia: names and licences as in Debian 12's package of 535.309.01."""
    licences = {
        "nvidia": "NVIDIA",
        "nvidia_drm": "MIT",
        "nvidia_modeset": "NVIDIA",
        "nvidia_peermem": "Linux-OpenIB",
        "nvidia_uvm": "Dual MIT/GPL",
    }
    check(
        BUILD,
        {
            f"{name.replace('_', '-')}.ko": stub_module(
                "535.309.01", kernel=KERNEL, name=name, licence=licence
            )
            for name, licence in licences.items()
        },
    )


def test_what_is_no_archive_is_not_kept(store: Store) -> None:
    with pytest.raises(NodeFailed, match="cannot be unpacked"):
        store.keep(BUILD, {"node1": b"\x1f\x8bnothing"})


def test_modules_may_be_compressed() -> None:
    files = {"nvidia.ko.xz": lzma.compress(MODULE), "nvidia-uvm.ko.gz": gzip.compress(MODULE)}
    modules = bare(pack(files))
    check(BUILD, modules)
    assert modules == {"nvidia.ko.xz": MODULE, "nvidia-uvm.ko.gz": MODULE}


def test_what_a_store_signs_is_what_nodes_get(tmp_path: Path) -> None:
    store = Store(tmp_path, signer=Signer("ab" * 32, lambda content: content + b"signed"))
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    assert unpack(kept.archive.read_bytes())["nvidia-current.ko"] == MODULE + b"signed"
    assert store.find(BUILD) == kept
    assert Store(tmp_path).find(BUILD) is None


def test_what_was_kept_without_a_signature_is_signed_and_not_compiled_again(tmp_path: Path) -> None:
    plain = Store(tmp_path).keep(BUILD, {"node1": pack(FILES)})
    signing = Store(tmp_path, signer=Signer("ab" * 32, lambda content: content + b"signed"))
    found = signing.find(BUILD)
    assert found is not None
    assert unpack(found.archive.read_bytes())["nvidia-current.ko"] == MODULE + b"signed"
    assert Store(tmp_path).find(BUILD) == plain


def test_what_was_signed_is_not_signed_again(tmp_path: Path) -> None:
    Store(tmp_path).keep(BUILD, {"node1": pack(FILES)})
    signed: list[bytes] = []

    def sign(content: bytes) -> bytes:
        signed.append(content)
        return content + b"signed"

    store = Store(tmp_path, signer=Signer("ab" * 32, sign))
    assert store.find(BUILD) == store.find(BUILD)
    assert signed == list(FILES.values())


def test_a_build_with_another_signature_is_not_adopted(tmp_path: Path) -> None:
    def signer(digits: str) -> Signer:
        return Signer(digits * 32, bytes)

    kept = Store(tmp_path / "first", signer=signer("ab")).keep(BUILD, {"node1": pack(FILES)})
    files = [(kept.archive.parent / name).read_bytes() for name in (ABOUT, ARCHIVE)]
    with pytest.raises(NodeFailed, match=r"is signed by (ab)+; expected none"):
        Store(tmp_path / "second").adopt(*files)
    with pytest.raises(NodeFailed, match=r"is signed by (ab)+; expected (cd)+"):
        Store(tmp_path / "second", signer=signer("cd")).adopt(*files)
    adopted = Store(tmp_path / "second", signer=signer("ab")).adopt(*files)
    assert replace(adopted, archive=kept.archive) == kept


@pytest.mark.parametrize("name", ["nvidia.ko", "nvidia.ko.gz", "nvidia.ko.xz"])
def test_nodes_get_a_module_packed_as_its_name_says(store: Store, name: str) -> None:
    first = store.keep(BUILD, {"node1": pack({name: compressed(suffix_of(name), MODULE)})})
    assert bare(first.archive.read_bytes()) == {name: MODULE}


def test_a_module_says_what_it_is() -> None:
    """Check version and licence that are read from a module; {} from half a module."""
    result = modinfo(MODULE)
    assert (result["version"], result["license"]) == ("535.309.01", "NVIDIA")
    assert modinfo(MODULE[:100]) == {}
