"""Files of packages that were changed by hand, as drift and verify see them on the same tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpuprov_package_files as files
import pytest

from gpuprov.drift.judge import judge
from gpuprov.errors import NodeFailed
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import effective
from gpuprov.roles import Expectation
from gpuprov.verify.observers import package_files as verify
from tests.unit.programs import leave_no_room_to_sort
from tests.unit.roles.scripts import script

record = script("package_pins", "record")
NAMES = ["libcuda1", "nvidia-smi", "not-there"]
CONTENT = "the library\n"


class Tree:
    """Fake root with dpkg's database and the files of two packages."""

    def __init__(self, root: Path) -> None:
        self.root, self.info = root, root / "info"
        self.library, self.link = root / "lib/libcuda.so.1.1", root / "lib/libcuda.so.1"
        self.program, self.empty = root / "bin/nvidia-smi", root / "lib/empty"
        self.config, self.text = root / "etc/nvidia.conf", root / "share/doc/copyright"
        self.diversions, self.overrides = root / "diversions", root / "statoverride"
        for folder in ("info", "lib/sub", "bin", "etc", "share/doc"):
            (root / folder).mkdir(parents=True)
        for path in (self.library, self.program, self.config, self.text):
            path.write_text(CONTENT)
        self.empty.write_text("")
        self.link.symlink_to("libcuda.so.1.1")
        self.unpack("libcuda1", self.library, self.link, self.empty, self.config, self.text, root / "lib/sub")
        self.unpack("nvidia-smi", self.program)
        (self.info / "libcuda1.conffiles").write_text(f"{self.config}\n")

    def unpack(self, name: str, *paths: Path) -> None:
        """Write dpkg's lists of a package."""
        folders = sorted({parent for path in paths for parent in path.parents if self.root in parent.parents})
        listed = sorted(map(str, [*folders, *paths]))
        (self.info / f"{name}.list").write_text("/.\n" + "".join(f"{path}\n" for path in listed))
        sums = [path for path in paths if path.is_file() and not path.is_symlink()]
        (self.info / f"{name}.md5sums").write_text(
            "".join(f"{md5(path)}  {str(path)[1:]}\n" for path in sums)
        )

    def apply(self) -> None:
        """Write the record, as the role does."""
        _rows, text = record.renewed(NAMES)
        record.remember(text)


def md5(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Return a tree with an installed package, whose records the probe reads."""
    tree = Tree(tmp_path / "root")
    monkeypatch.setattr(files, "INFO", str(tree.info))
    monkeypatch.setattr(files, "DIVERSIONS", str(tree.diversions))
    monkeypatch.setattr(files, "OVERRIDES", str(tree.overrides))
    monkeypatch.setattr(files, "RECORD", str(tmp_path / "record"))
    return tree


def drift(names: list[str] = NAMES) -> list[str]:
    """Return the differences in files of packages that drift reports; [] without any."""
    rows = [list(row) for row in files.differing(names)]
    expectation = Expectation("pins.files", [], "package_pins")
    found = judge("node", Facts("node", "", 0.0, {"package_files": rows}), [expectation]).drift
    assert not found or found[0].by == tuple(dict.fromkeys(row[1] for row in rows))
    return list(found[0].actual) if found else []


def test_dpkg_is_asked_only_for_paths_that_no_package_of_the_lock_lists(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a library of the lock's package, one of another package, and one of none."""
    asked: list[str] = []

    def run(*command: str, **_: object) -> tuple[int, str, str]:
        asked.extend(command)
        return 1, f"libother: {tree.root}/lib/other\n", "dpkg-query: no path found matching pattern"

    monkeypatch.setattr(effective, "has_dpkg", lambda: True)
    monkeypatch.setattr(effective, "run_anyway", run)
    library, other, none = str(tree.library), f"{tree.root}/lib/other", f"{tree.root}/lib/none"
    assert effective._owned([library], NAMES) == {library}
    assert asked == []
    assert effective._owned([library, other, none], NAMES) == {library, other}
    assert asked[:2] == ["dpkg-query", "-S"]
    assert {other, none} <= set(asked)
    assert library not in asked


def asking(tree: Tree) -> verify.PackageFiles:
    """Return verify's observer, whose commands read the tree."""

    def run(command: str) -> Any:
        """Answer a command of verify from the tree."""
        if command == verify.DIVERSIONS:
            lines = tree.diversions.read_text().splitlines() if tree.diversions.exists() else []
            rows = zip(lines[::3], lines[1::3], lines[2::3], strict=True)
            said = [
                f"{'local ' if by == ':' else ''}diversion of {path} to {to}" + f" by {by}" * (by != ":")
                for path, to, by in rows
            ]
            return SimpleNamespace(succeeded=True, stdout="".join(f"{line}\n" for line in said))
        if command == verify.OVERRIDES:
            stated = tree.overrides.read_text() if tree.overrides.exists() else ""
            return SimpleNamespace(succeeded=True, stdout=stated)
        command = command.replace("/var/lib/dpkg/info", files.INFO)
        command = command.replace("/var/lib/gpuprov/files", files.RECORD)
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        return SimpleNamespace(succeeded=done.returncode == 0, stdout=done.stdout, stderr=done.stderr, rc=1)

    observer = object.__new__(verify.PackageFiles)
    observer.__dict__["run"] = run
    return observer


def both(tree: Tree) -> list[str]:
    """Return what both report."""
    seen = drift()
    assert asking(tree).differing(NAMES) == seen
    return [line.replace(f"{tree.root}/", "") for line in seen]


def keep_times(path: Path, change: Callable[[], Any]) -> None:
    """Make a change, and give a file its former time of modification."""
    about = path.stat()
    change()
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def same_size(tree: Tree) -> None:
    """Change a file's content without its size and times."""
    keep_times(tree.library, lambda: tree.library.write_text(CONTENT.upper()))


def divert(tree: Tree, by: str = ":") -> None:
    """Divert a program: rename it and record who did so."""
    tree.program.rename(f"{tree.program}.distrib")
    tree.diversions.write_text(f"{tree.program}\n{tree.program}.distrib\n{by}\n")


CHANGES: dict[str, tuple[Callable[[Tree], object], list[str]]] = {
    "removed": (lambda tree: tree.library.unlink(), ["libcuda1 lib/libcuda.so.1.1 is missing"]),
    "emptied": (lambda tree: tree.library.write_text(""), ["libcuda1 lib/libcuda.so.1.1 was changed"]),
    "diverted": (divert, ["nvidia-smi bin/nvidia-smi is diverted to bin/nvidia-smi.distrib"]),
}
"""Changes that need no record."""
WITH_RECORD: dict[str, tuple[Callable[[Tree], object], list[str]]] = {
    "truncated": (lambda tree: os.truncate(tree.library, 3), ["libcuda1 lib/libcuda.so.1.1 was changed"]),
    "same size and time": (same_size, ["libcuda1 lib/libcuda.so.1.1 was changed"]),
    "a link in its place": (
        lambda tree: (tree.program.unlink(), tree.program.symlink_to("/opt/smi")),
        ["nvidia-smi bin/nvidia-smi was changed"],
    ),
    "a link that leads elsewhere": (
        lambda tree: (tree.link.unlink(), tree.link.symlink_to("/opt/libcuda.so")),
        ["libcuda1 lib/libcuda.so.1 was changed"],
    ),
    "a link removed": (lambda tree: tree.link.unlink(), ["libcuda1 lib/libcuda.so.1 is missing"]),
    "mode": (
        lambda tree: tree.program.chmod(0o4700),
        ["nvidia-smi bin/nvidia-smi has another mode or owner"],
    ),
    "mode and content": (
        lambda tree: (same_size(tree), tree.library.chmod(0o600)),
        ["libcuda1 lib/libcuda.so.1.1 has another mode or owner", "libcuda1 lib/libcuda.so.1.1 was changed"],
    ),
}


def unpacked_again(tree: Tree) -> None:
    """Let dpkg install another version."""
    tree.library.write_text("another version\n")
    tree.unpack("libcuda1", tree.library, tree.link, tree.empty)
    os.utime(tree.info / "libcuda1.list", (1, 1))


def overridden(tree: Tree) -> None:
    """State another mode as an administrator does."""
    tree.program.chmod(0o700)
    tree.overrides.write_text(f"root root 0700 {tree.program}\n")


BENIGN: dict[str, Callable[[Tree], object]] = {
    "nothing": lambda tree: None,
    "touched": lambda tree: tree.library.touch(),
    "copied back": lambda tree: (tree.library.unlink(), tree.library.write_text(CONTENT)),
    "a configuration file edited": lambda tree: tree.config.write_text("mine"),
    "a configuration file removed": lambda tree: tree.config.unlink(),
    "documentation left out": lambda tree: tree.text.unlink(),
    "an empty folder removed": lambda tree: (tree.root / "lib/sub").rmdir(),
    "unpacked again": unpacked_again,
    "another mode by dpkg-statoverride": overridden,
    "diverted by a package": lambda tree: divert(tree, "site-tools"),
    "the record lost": lambda tree: Path(files.RECORD).unlink(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_some_changes_need_no_record(tree: Tree, name: str) -> None:
    change, expected = CHANGES[name]
    change(tree)
    assert both(tree) == expected


@pytest.mark.parametrize("name", {**CHANGES, **WITH_RECORD})
def test_both_name_the_file_with_its_package(tree: Tree, name: str) -> None:
    tree.apply()
    change, expected = {**CHANGES, **WITH_RECORD}[name]
    change(tree)
    assert both(tree) == expected
    before = Path(files.RECORD).read_text()
    tree.apply()
    assert both(tree) != [], "a further apply takes the changed file for the package's"
    assert Path(files.RECORD).read_text() == before


@pytest.mark.parametrize("name", BENIGN)
def test_what_is_no_change_is_silent(tree: Tree, name: str) -> None:
    """Check that harmless changes of a package's files are reported by neither drift nor verify."""
    tree.apply()
    BENIGN[name](tree)
    assert both(tree) == []


def test_verify_needs_no_record_for_checksums(tree: Tree) -> None:
    same_size(tree)
    assert drift() == []
    assert asking(tree).differing(NAMES) == [f"libcuda1 {tree.library} was changed"]
    assert asking(tree).read(NAMES) == (2 * len(CONTENT), 2 * len(CONTENT))


def test_the_role_records_no_file_that_differs_from_its_package(tree: Tree) -> None:
    tree.library.write_text(CONTENT.upper())
    tree.apply()
    assert drift() == []
    text = Path(files.RECORD).read_text()
    assert "# nvidia-smi " in text
    assert "# libcuda1 " not in text


def test_a_copy_of_the_machine_is_not_read_again(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.apply()
    shutil.copytree(tree.info, tmp_path / "copy")
    monkeypatch.setattr(files, "INFO", str(tmp_path / "copy"))
    keep_times(tree.library, tree.library.touch)
    monkeypatch.setattr(files, "run", lambda program, *paths, seconds: read.extend(paths) or (0, ""))
    read: list[str] = []
    assert (drift(), read) == ([], [])
    tree.program.chmod(0o600)
    assert drift()[0] == f"nvidia-smi {tree.program} has another mode or owner"


def test_beyond_the_budget_the_time_counts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.apply()
    monkeypatch.setattr(verify, "BUDGET", 5)
    budget = files.other_content.__defaults__
    monkeypatch.setattr(files.other_content, "__defaults__", (5,))
    assert budget == (files.BUDGET,)
    same_size(tree)
    assert both(tree) == []
    os.utime(tree.library, (1, 1))
    assert both(tree) == ["libcuda1 lib/libcuda.so.1.1 was changed"]
    assert asking(tree).read(NAMES) == (0, 2 * len(CONTENT))


def test_a_second_apply_changes_no_record(tree: Tree) -> None:
    tree.apply()
    assert Path(files.RECORD).stat().st_mode & 0o777 == 0o600
    assert record.remember(record.renewed(NAMES)[1]) is False


def test_files_that_cannot_be_put_in_order_are_no_pass(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_size(tree)
    leave_no_room_to_sort(tmp_path, monkeypatch)
    with pytest.raises(NodeFailed, match="cannot be compared: sort: write failed: No space left"):
        asking(tree).differing(NAMES)


def test_a_file_that_cannot_be_read_is_no_pass(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "COMPARED", verify.COMPARED.replace("md5sum --", "false"))
    with pytest.raises(NodeFailed, match="the packages' files cannot be compared"):
        asking(tree).differing(NAMES)


def test_an_answer_that_breaks_off_is_none() -> None:
    with pytest.raises(NodeFailed, match="did not end"):
        verify.parse_compared("libcuda1\t/lib/x\twas changed\n")
