"""Building an image: its kernel, its plan, and that no service is started."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import afterboot
from gpuprov.apply import image as module
from gpuprov.apply.context import RunContext
from gpuprov.apply.image import image_lock, leave_for_first_boot, make_image, offline
from gpuprov.apply.kernel_modules import once
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput, Refused
from gpuprov.inventory.firstboot import files
from gpuprov.model.lock import Lock, Setting, read_lock
from gpuprov.roles.image import postponed
from gpuprov.roles.table import expectations
from tests import RECORDED_LOCK

KERNEL = "6.1.0-56-amd64"
SCRATCH = [{"mount": "/scratch", "filesystem": "xfs", "devices": ["/dev/nvme0n1"]}]


def lock_for(kernel: str, **settings: object) -> Lock:
    """Return the recorded lock with another kernel and other settings."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    stated = {
        key: Setting(value=value, reason="test", source="test")
        for key, value in {"kernel": kernel, **settings}.items()
    }
    changed = group.model_copy(update={"settings": {**group.settings, **stated}})
    assert name
    return lock.model_copy(update={"groups": {"train": changed}})


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root tree with a kernel, and the paths that the image module writes to in it."""
    (tmp_path / "modules" / KERNEL).mkdir(parents=True)
    (tmp_path / "sbin").mkdir()
    monkeypatch.setattr(module, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(module, "NO_STARTS", tmp_path / "sbin/policy-rc.d")
    monkeypatch.setattr(module, "WANTED", tmp_path / "wants/gpuprov-first-boot.service")
    monkeypatch.setattr(module, "ENDED", tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "refuse_program_of_others", lambda _: None)
    for name in ("LOCK", "ORDER", "PROGRAM", "UNIT_PATH"):
        monkeypatch.setattr(files, name, str(tmp_path / "files" / name))
    return tmp_path


@pytest.mark.parametrize("stated", ["running", KERNEL])
def test_the_kernel_is_the_trees(tree: Path, stated: str) -> None:
    [group] = image_lock(lock_for(stated), "train").groups.values()
    assert group.setting("kernel") == KERNEL
    assert group.hosts == {"here": "local"}


def test_of_several_kernels_one_has_to_be_named(tree: Path) -> None:
    (tree / "modules/6.1.0-57-amd64").mkdir()
    with pytest.raises(
        InvalidInput, match=r"this tree has 6.1.0-56-amd64, 6.1.0-57-amd64; .*settings.kernel"
    ):
        image_lock(lock_for("running"), "train")
    [group] = image_lock(lock_for("6.1.0-57-amd64"), "train").groups.values()
    assert group.setting("kernel") == "6.1.0-57-amd64"


def test_a_kernel_that_is_not_there_is_refused(tree: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"the lock is for the kernel 5\.0, and this tree has 6.1.0-56-amd64"
    ):
        image_lock(lock_for("5.0"), "train")


def test_nothing_is_started_meanwhile_and_nothing_is_left_of_that(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYSTEMD_OFFLINE", raising=False)
    with offline():
        assert os.environ["SYSTEMD_OFFLINE"] == "1"
        assert subprocess.run([tree / "sbin/policy-rc.d"], check=False).returncode == 101
        assert os.access(tree / "sbin/policy-rc.d", os.X_OK)
    assert "SYSTEMD_OFFLINE" not in os.environ
    assert not (tree / "sbin/policy-rc.d").exists()


@pytest.mark.parametrize("text", ["the builder's\n", "#!/bin/sh\nexit 101\n", f"{module.POLICY}# kept\n"])
def test_a_builders_own_policy_stays(tree: Path, text: str) -> None:
    """Check that a policy-rc.d that was in the tree before stays; containers often have the second one."""
    (tree / "sbin/policy-rc.d").write_text(text)
    with offline():
        pass
    assert (tree / "sbin/policy-rc.d").read_text() == text


@pytest.mark.parametrize("target", ["missing", "text"])
def test_a_builders_link_in_the_place_of_the_policy_stays(tree: Path, target: str) -> None:
    (tree / "text").write_text(module.POLICY)
    (tree / "sbin/policy-rc.d").symlink_to(tree / target)
    with offline():
        pass
    assert (tree / "sbin/policy-rc.d").is_symlink()
    assert (tree / "text").read_text() == module.POLICY


def test_the_policy_of_a_killed_run_goes_with_the_next_one(tree: Path) -> None:
    context = offline()
    context.__enter__()  # and it is killed
    left = (tree / "sbin/policy-rc.d").read_text()
    (tree / "sbin/policy-rc.d").unlink()
    context.__exit__(None, None, None)
    (tree / "sbin/policy-rc.d").write_text(left)
    with offline():
        assert (tree / "sbin/policy-rc.d").exists()
    assert not (tree / "sbin/policy-rc.d").exists()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in folders that only its owner, in place of root, can write."""
    monkeypatch.setattr(module, "ROOT", os.getuid())
    monkeypatch.setattr(afterboot, "CLEARED", (str(tmp_path / "cleared"),))
    is_of_others = module.is_of_others
    monkeypatch.setattr(
        module, "is_of_others", lambda path: path.is_relative_to(tmp_path) and is_of_others(path)
    )
    for name in ("opt", "cleared"):
        program = tmp_path / name / "bin/gpuprov"
        program.parent.mkdir(parents=True)
        program.touch()
        for each in (program, program.parent, program.parents[1]):
            each.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("place", "mode"), [("opt", 0o777), ("opt/bin", 0o757), ("opt/bin/gpuprov", 0o666)])
def test_a_program_that_others_can_replace_is_run_as_root_on_no_machine(
    installed: Path, place: str, mode: int
) -> None:
    """Refuse it: the first-boot unit runs the program that made the image, as root, at every boot."""
    program = installed / "opt/bin/gpuprov"
    module.refuse_program_of_others([program])
    (installed / place).chmod(mode)
    with pytest.raises(Refused, match=f"other users can replace it, by {installed / place}; expected"):
        module.refuse_program_of_others([program])


def test_a_program_is_refused_also_for_the_folders_that_a_link_leads_to(installed: Path) -> None:
    """Check a folder of root's in the home of a user, who can rename it."""
    (installed / "home").mkdir()
    (installed / "opt").rename(installed / "home/venv")
    (installed / "opt").symlink_to(installed / "home/venv")
    module.refuse_program_of_others([installed / "opt/bin/gpuprov"])
    (installed / "home").chmod(0o777)
    with pytest.raises(Refused, match=f"other users can replace it, by {installed / 'home'}; expected"):
        module.refuse_program_of_others([installed / "opt/bin/gpuprov"])


@pytest.mark.parametrize("relative", [False, True])
def test_a_program_is_refused_also_for_a_link_between_two_links(installed: Path, relative: bool) -> None:
    """Check the folder of a link that is neither in the stated path nor in the real one."""
    (installed / "srv").mkdir()
    (installed / "opt").rename(installed / "srv/venv")
    (installed / "home").mkdir()
    (installed / "home/current").symlink_to(Path("../srv/venv") if relative else installed / "srv/venv")
    (installed / "opt").symlink_to(Path("home/current") if relative else installed / "home/current")
    module.refuse_program_of_others([installed / "opt/bin/gpuprov"])
    (installed / "home").chmod(0o777)
    with pytest.raises(Refused, match=f"other users can replace it, by {installed / 'home'}; expected"):
        module.refuse_program_of_others([installed / "opt/bin/gpuprov"])


def test_a_program_that_a_boot_deletes_is_run_on_no_machine(installed: Path) -> None:
    with pytest.raises(Refused, match="a boot may delete it"):
        module.refuse_program_of_others([installed / "cleared/bin/gpuprov"])


def test_a_folder_that_a_boot_deletes_is_seen_behind_two_dots(installed: Path) -> None:
    (installed / "opt").rename(installed / "venv")
    (installed / "cleared/link").symlink_to(installed / "venv")
    (installed / "srv").mkdir()
    (installed / "srv/opt").symlink_to("../cleared/link")
    with pytest.raises(Refused, match="a boot may delete it"):
        module.refuse_program_of_others([installed / "srv/opt/bin/gpuprov"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's link")
def test_a_link_of_another_user_in_a_shared_folder_leads_to_no_program(installed: Path) -> None:
    (installed / "scratch").mkdir()
    (installed / "scratch").chmod(0o1777)
    link = installed / "scratch/opt"
    link.symlink_to(installed / "opt")
    module.refuse_program_of_others([link / "bin/gpuprov"])
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(Refused, match=f"other users can replace it, by {link}; expected"):
        module.refuse_program_of_others([link / "bin/gpuprov"])


def test_an_image_is_not_made_with_a_program_of_others(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(places: list[Path]) -> None:
        raise Refused(" ".join(map(str, places)))

    monkeypatch.setattr(module, "refuse_program_of_others", refuse)
    played = Played(monkeypatch, [], [])
    with pytest.raises(Refused, match="/gpuprov "):
        make_image(run_of(lock_for(KERNEL), tree))
    assert played.results == []


class Played:
    """Fake survey results in order, and a fake playbook that records its variables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seen: list[Difference]) -> None:
        self.results: list[dict[str, Any]] = []
        looks = iter(seen)
        monkeypatch.setattr(
            module, "survey", lambda *_, **__: [NodeDrift("here", "drifted", tuple(next(looks)))]
        )
        monkeypatch.setattr(once, "run_playbook", self._run)
        monkeypatch.setattr(once, "needed", lambda *_: {})

    def _run(
        self, playbook: str, nodes: dict[str, dict[str, Any]], run: object, part: str
    ) -> dict[str, NodeOutcome]:
        """Record the node's variables, and check that systemd is offline."""
        assert os.environ["SYSTEMD_OFFLINE"] == "1"
        self.results.append(nodes["here"])
        return {"here": NodeOutcome(changed=3)}


def differs(check: str, role: str | None) -> Difference:
    return Difference(check, "as stated", "otherwise", "error", role, reboot=False)


def run_of(lock: Lock, folder: Path) -> RunContext:
    """Return the context of a run that makes an image of the group `train`."""
    return RunContext(image_lock(lock, "train"), folder)


def test_roles_run_but_for_those_that_wait(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [differs("driver.packages", "nvidia_driver"), differs("scratch.mounted", "storage")]
    waiting = [
        differs("gpu.clocks_unit", "gpu_settings"),
        differs("gpu.count", None),
        differs("scratch.mounted", "storage"),
    ]
    played = Played(monkeypatch, before, waiting)
    made = make_image(run_of(lock_for(KERNEL, scratch=SCRATCH), tree))
    assert made.outcome.ok
    assert made.outcome.changed == 3
    assert made.roles == {"storage": "the machine's drives"}
    [result] = played.results
    assert "nvidia_driver" in result["gpuprov_roles"]
    assert "storage" not in result["gpuprov_roles"]
    assert result["system_tuning_booted"] is False


def test_what_an_image_shows_has_to_be_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Played(
        monkeypatch,
        [differs("driver.packages", "nvidia_driver")],
        [differs("driver.packages", "nvidia_driver")],
    )
    made = make_image(run_of(lock_for(KERNEL), tree))
    assert [event["msg"] for event in made.outcome.failed] == ["driver.packages is still otherwise"]


def test_a_tree_that_shows_all_is_not_touched(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [differs("gpu.count", None)], [])
    assert make_image(run_of(lock_for(KERNEL), tree)).outcome.changed == 0
    assert played.results == []


def test_the_first_boot_is_left_with_the_machines_own_kernel(tree: Path) -> None:
    for name in ("done", "state.json"):
        (tree / "state").mkdir(exist_ok=True)
        (tree / "state" / name).write_text("of the builder\n")
    leave_for_first_boot(lock_for("running"), "train")
    order = json.loads((tree / "files/ORDER").read_text())
    assert order["install"]["program"].endswith("/gpuprov")
    assert order["install"]["wheel"] == ""
    assert (tree / "wants/gpuprov-first-boot.service").is_symlink()
    assert list((tree / "state").iterdir()) == []
    [group] = read_lock(tree / "files/LOCK").groups.values()
    assert group.setting("kernel") == "running"


def test_what_is_left_out_is_what_the_lock_states() -> None:
    [group] = lock_for(KERNEL).groups.values()
    assert "gpu.clocks_unit" in postponed(expectations(group))["running services"]
