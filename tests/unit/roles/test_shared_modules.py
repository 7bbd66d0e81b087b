"""Scripts of the role for a module that another node compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.kernel_modules.build import digest
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.node import built
from tests.unit.roles.scripts import script

install, driver = script("nvidia_driver", "install"), script("nvidia_driver")
FILES = {"nvidia-current.ko": b"one", "nvidia-current-uvm.ko": b"two"}
SUMS = {name: digest(content) for name, content in FILES.items()}


def test_an_archive_is_taken_apart() -> None:
    packed = pack(FILES)
    assert install.unpacked(packed, digest(packed), SUMS) == FILES


@pytest.mark.parametrize("flip", [0, -1])
def test_an_archive_that_changed_on_the_way_is_refused(flip: int) -> None:
    packed = bytearray(pack(FILES))
    packed[flip] ^= 1
    with pytest.raises(install.Refused, match="has SHA-256"):
        install.unpacked(bytes(packed), digest(pack(FILES)), SUMS)


def test_modules_that_are_not_those_of_the_store_are_refused() -> None:
    packed = pack({**FILES, "nvidia-current.ko": b"other"})
    with pytest.raises(install.Refused, match="other modules"):
        install.unpacked(packed, digest(packed), SUMS)


def test_modules_are_placed_as_dkms_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia/535/6.1/x86_64"
    install.place(folder, {"old.ko": b"", **FILES}, "node1")
    install.place(folder, FILES, "node2")
    assert sorted(path.name for path in (folder / "module").iterdir()) == sorted(FILES)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["x86_64"]
    assert (folder / "log/make.log").read_text() == built.BY + "node2\n"


def build(vermagic: str) -> dict[str, Any]:
    return {"kernel": "6.1", "vermagic": vermagic, "modules": SUMS}


def test_a_build_fits_a_kernel_whose_modules_state_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "vermagic", lambda kernel: "6.1 SMP modversions ")
    same = build("6.1 SMP modversions")
    assert driver.fitting(["6.1"], [same]) == {"6.1": same}
    assert driver.fitting(["6.1"], [build("6.1 SMP preempt modversions")]) == {}
    assert driver.fitting(["6.2"], [same]) == {}


@pytest.mark.parametrize(("same", "unbuilt"), [(True, []), (False, ["6.1"])])
def test_a_module_of_other_bytes_than_the_build_is_none(
    monkeypatch: pytest.MonkeyPatch, same: bool, unbuilt: list[str]
) -> None:
    asked = {"compiled": True, "version": "535", "flavour": "open", "modules": ["nvidia"]}
    monkeypatch.setattr(driver, "dkms_installed", lambda: {"6.1"})
    monkeypatch.setattr(driver, "module", lambda *_: ("535", "open"))
    monkeypatch.setattr(driver, "same_bytes", lambda *_: same)
    assert driver.unbuilt(["6.1"], asked, {"6.1": build("")}) == unbuilt
    assert driver.unbuilt(["6.1"], asked, {}) == []
