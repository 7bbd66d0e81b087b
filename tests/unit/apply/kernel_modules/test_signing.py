"""The store's search for the key of the lock's certificate, and its error if there is no key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from gpuprov.apply.kernel_modules.packing import pack, unpack
from gpuprov.apply.kernel_modules.signing import store_of
from gpuprov.errors import Refused
from gpuprov.files.runs import state_dir
from gpuprov.locking.secure_boot import check_signed, locked_secure_boot
from gpuprov.model.fleet import read_fleet
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.signing.signature import read_signature
from tests.unit.apply.kernel_modules.test_store import BUILD, FILES
from tests.unit.verify.nodes_on_paper import locked_group

FLEET = {"groups": {"train": {"profile": "p", "hosts": "gpu01", "os": "debian12"}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the keys and certificates `site` and `other`; the state folder is a
    temporary one.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("site", "other"):
        words = f"openssl req -new -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN={name}"
        pair = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*words.split(), *pair], cwd=tmp_path, check=True, capture_output=True)
    state(tmp_path, "site")
    return tmp_path


def state(folder: Path, name: str) -> None:
    """Write a fleet into the folder that names this key and its certificate."""
    pair = {"certificate": f"{name}.pem", "key": f"{name}.key"}
    (folder / "fleet.yml").write_text(yaml.safe_dump({**FLEET, "secure_boot": pair}))


def lock_of(folder: Path, name: str = "fleet.lock.yml") -> Lock:
    """Write and return a lock for the fleet in the folder."""
    stated = locked_secure_boot(read_fleet(folder / "fleet.yml").secure_boot, folder)
    group = locked_group("gpu01").model_copy(update={"secure_boot": stated})
    write_lock(Lock(inputs="0" * 64, groups={"train": group}), folder / name)
    return read_lock(folder / name)


@pytest.mark.parametrize("name", ["fleet.lock.yml", "next.lock.yml"])
def test_the_key_is_that_of_the_fleet_beside_the_lock(folder: Path, name: str) -> None:
    kept = store_of(lock_of(folder, name)).keep(BUILD, {"node1": pack(FILES)})
    for content in unpack(kept.archive.read_bytes()).values():
        signature = read_signature(content)
        assert signature is not None
        assert signature.signer == "site"


def test_a_build_that_is_signed_already_needs_no_key(folder: Path) -> None:
    lock = lock_of(folder)
    kept = store_of(lock).keep(BUILD, {"node1": pack(FILES)})
    (folder / "site.key").unlink()
    assert store_of(lock).find(BUILD) == kept


def test_a_lock_without_a_fleet_of_its_certificate_is_refused(folder: Path) -> None:
    lock = lock_of(folder)
    state(folder, "other")
    with pytest.raises(
        Refused, match=r"certificate of site \(.*the fleet's file does not state that certificate.*fleet\.yml"
    ):
        store_of(lock).keep(BUILD, {"node1": pack(FILES)})
    (folder / "fleet.yml").unlink()
    with pytest.raises(Refused, match="the fleet's file does not state that certificate"):
        store_of(lock).keep(BUILD, {"node1": pack(FILES)})
    assert not list((state_dir() / "modules").rglob("*.json"))


def test_a_lock_without_a_certificate_signs_nothing(folder: Path) -> None:
    store = store_of(Lock(inputs="0" * 64, groups={"train": locked_group("gpu01")}))
    kept = store.keep(BUILD, {"node1": pack(FILES)})
    assert not store.signs
    assert unpack(kept.archive.read_bytes()) == FILES


def test_modules_that_are_compiled_once_can_be_signed(folder: Path) -> None:
    stated = lock_of(folder).groups["train"].secure_boot
    driver = locked_group("gpu01").components.driver
    check_signed("train", stated, driver.model_copy(update={"build": "once", "builder": "gpu01"}))
    with pytest.raises(Refused, match=r"stack: \{builder: NODE\}"):
        check_signed("train", stated, driver)
