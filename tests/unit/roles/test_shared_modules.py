"""Scripts of the role for a module that another node compiled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.kernel_modules.build import digest
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.node import built
from tests.unit.roles.scripts import script

install, driver = script("nvidia_driver", "install"), script("nvidia_driver")
switch = script("nvidia_driver", "mark")
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
    """Return a build of the modules for a kernel, with this vermagic."""
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


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """File that prevents builds by packages; it does not exist."""
    monkeypatch.setattr(switch, "OURS", str(tmp_path / "gpuprov-"))
    monkeypatch.setattr(switch, "MARK", tmp_path / "gpuprov-no-autoinstall")
    monkeypatch.setattr(switch, "UNBUILT", tmp_path / "dkms/no-autoinstall")
    return tmp_path / "dkms/no-autoinstall"


@pytest.fixture
def set_builds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[bool], Any]:
    """Function that permits builds by packages, or prevents them, and returns the script's failure."""

    def run(compiles: bool) -> Any:
        """Run the script; return its failure."""
        monkeypatch.setattr(sys, "argv", ["mark", json.dumps({"compiles": compiles})])
        switch.main()
        return json.loads(capsys.readouterr().out)["failure"]

    return run


def test_packages_build_nothing_meanwhile(unbuilt: Path, set_builds: Callable[[bool], Any]) -> None:
    for prevented in (True, True, False, False):
        assert set_builds(not prevented) is None
        assert unbuilt.is_file() is prevented
    assert not unbuilt.is_symlink()


def test_a_mark_that_an_interrupted_rollback_left_is_replaced(
    unbuilt: Path, set_builds: Callable[[bool], Any]
) -> None:
    unbuilt.parent.mkdir()
    unbuilt.symlink_to(switch.OURS + "x1y2z3")
    assert set_builds(False) is None
    assert unbuilt.is_file()
    assert set_builds(True) is None
    assert not unbuilt.is_symlink()


def test_an_administrators_mark_stays(unbuilt: Path, set_builds: Callable[[bool], Any]) -> None:
    unbuilt.parent.mkdir()
    unbuilt.write_text("no builds: ask the site")
    assert [set_builds(False), set_builds(True)] == [None, None]
    assert unbuilt.read_text() == "no builds: ask the site"
    unbuilt.unlink()
    unbuilt.symlink_to("/nowhere")
    assert set_builds(False)["says"] == f"{unbuilt} is a link to /nowhere, which does not exist"
    assert set_builds(True) is None
    assert unbuilt.is_symlink()
