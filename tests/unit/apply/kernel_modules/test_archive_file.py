"""Modules compiled in an image: exported to a file, imported into the controller's store, others refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gpuprov.apply.kernel_modules.archive_file import (
    export_modules,
    image_store,
    import_into_image,
    import_modules,
)
from gpuprov.apply.kernel_modules.build import Build, build_of
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.kernel_modules.signing import store_of
from gpuprov.apply.kernel_modules.store import Signer, Store, bundled
from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov_lab.simulator import stub_module
from tests.unit.apply.kernel_modules.test_once import KERNEL, locked, signed

MODULE = {"nvidia-current.ko": stub_module("535.309.01", kernel=KERNEL)}


def group_of(lock: Lock) -> LockedGroup:
    """Return the only group of a lock."""
    [group] = lock.groups.values()
    return group


def build(lock: Lock) -> Build:
    """Return the build of a lock's group, for `KERNEL`."""
    return build_of(group_of(lock), KERNEL, "gcc")


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lock:
    """Return a lock whose module is compiled in an image; the state folder is a temporary one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "tree"))
    lock = locked(builder="image")
    driver = group_of(lock).components.driver
    MODULE["nvidia-current.ko"] = stub_module(driver.version, kernel=KERNEL)
    return lock


def made(lock: Lock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the exported file of an image that compiled; then switch to the controller's state folder."""
    image_store(lock).keep(build(lock), {"image": pack(MODULE)})
    file = folder / "modules.zip"
    file.write_bytes(export_modules(lock, group_of(lock)))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "controller"))
    return file


def test_what_an_image_compiled_is_in_the_store(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(lock, tmp_path, monkeypatch)
    store = store_of(lock)
    assert store.find(build(lock)) is None
    [kept] = import_modules(lock, file)
    assert store.find(build(lock)) == kept
    assert store_of(locked(builder="a1")).find(build(locked(builder="a1"))) is None


def test_a_lock_that_trusts_a_node_takes_no_images(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(lock, tmp_path, monkeypatch)
    with pytest.raises(InvalidInput, match="the lock trusts no image"):
        import_modules(locked(builder="a1"), file)
    with pytest.raises(InvalidInput, match="the lock trusts no image"):
        export_modules(locked(builder="a1"), group_of(locked(builder="a1")))


@pytest.mark.parametrize("certificate", ["", "ab" * 32])
def test_what_the_controller_exported_is_laid_into_a_tree_as_it_is(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str
) -> None:
    trusting = locked(builder="a1")
    trusting = signed(trusting) if certificate else trusting
    signer = Signer(certificate, lambda content: content + b"signed") if certificate else None
    controller = Store(tmp_path / "controller", signer=signer)
    kept = controller.keep(build(trusting), {"a1": pack(MODULE)})
    file = tmp_path / "modules.zip"
    file.write_bytes(bundled([kept], Path("/elsewhere.yml")))
    [there] = import_into_image(trusting, file)  # the certificate's key is not needed
    assert there.sha256 == kept.sha256
    assert store_of(trusting).find(there.build) == there
    other = locked(builder="a1") if certificate else signed(locked(builder="a1"))
    with pytest.raises(InvalidInput, match=r"is signed by (no certificate|abab)"):
        import_into_image(other, file)
    with pytest.raises(InvalidInput, match=r"has no module for this lock; expected .* by a2"):
        import_into_image(locked(builder="a2"), file)


def test_a_tree_that_compiled_nothing_exports_nothing(lock: Lock) -> None:
    with pytest.raises(InvalidInput, match="this tree compiled no module"):
        export_modules(lock, group_of(lock))


@pytest.mark.parametrize(
    "what", ["other bytes", "half", "nothing", "huge", "another's name", "no kernel", "twice"]
)
def test_what_is_no_such_file_is_not_taken(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    file = made(lock, tmp_path, monkeypatch)
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    packed, about = (next(name for name in files if name.endswith(each)) for each in (".gz", ".json"))
    match what:
        case "other bytes":
            files[packed] = pack({"nvidia-current.ko": b"module"})
        case "half":
            del files[packed]
        case "huge":
            files[about] = b" " * (65 << 10)
        case "another's name":
            files[about] = files[about].replace(b'"image"', b'"a1"')
        case "no kernel":
            files[about] = files[about].replace(KERNEL.encode(), b"../../x")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if what == "twice":
            archive.filelist.append(archive.getinfo(about))
    if what == "nothing":
        file.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match=r"cannot be used|has no module for this lock"):
        import_modules(lock, file)
    assert store_of(lock).find(build(lock)) is None
