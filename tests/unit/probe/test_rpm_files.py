"""Files of rpm's packages that were changed by hand, as drift and verify see them, from a database of rpm."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpuprov_node
import gpuprov_package_files as files
import gpuprov_rpm_files as rpm
import pytest

from gpuprov.errors import NodeFailed
from gpuprov.verify.observers import package_files, rpm_files
from gpuprov_lab.mirror import rpmfile
from gpuprov_lab.mirror.rpmfile import build_rpm
from gpuprov_lab.mirror.specs import PackageSpec
from tests.unit.programs import leave_no_room_to_sort, write_program
from tests.unit.roles.scripts import script

record = script("package_pins", "record")
NAMES = ["nvidia-driver-cuda", "nvidia-kmod-common", "not-there"]
CONTENT = b"the library\n"
RPM = "rpm --dbpath="


class Tree:
    """Fake root with the files of two packages, and a database of rpm that knows them."""

    def __init__(self, root: Path) -> None:
        self.root, self.database = root, root / "db"
        self.library, self.link = root / "lib64/libcuda.so.1.1", root / "lib64/libcuda.so.1"
        self.program, self.config = root / "bin/nvidia-smi", root / "etc/nvidia.conf"
        self.text, self.rules = root / "share/doc/README", root / "lib/rules"
        self.unpack(
            "nvidia-driver-cuda",
            {
                self.library: CONTENT,
                self.program: b"#!/bin/sh\n",
                self.config: b"a = 1\n",
                self.text: b"hello\n",
            },
            {self.link: "libcuda.so.1.1"},
        )
        self.unpack("nvidia-kmod-common", {self.rules: b"rules\n"}, {})

    def unpack(
        self, name: str, contents: dict[Path, bytes], links: dict[Path, str], release: int = 1
    ) -> None:
        """Write the files of a package as rpm does, and let its database know them."""
        spec = PackageSpec(
            name,
            f"3:1-{release}.el9",
            "noarch",
            files={str(path)[1:]: content for path, content in contents.items()},
            links={str(path)[1:]: target for path, target in links.items()},
        )
        built = self.root.parent / f"{name}-{release}.rpm"
        built.write_bytes(build_rpm(spec))
        self.rpm("-U", "--justdb", "--nodeps", "--nosignature", "--noscripts", "--force-debian", str(built))
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(int(self.modes(name)[str(path)], 8) & 0o7777)
            os.utime(path, (rpmfile.BUILT, rpmfile.BUILT))
        for path, target in links.items():
            path.symlink_to(target)

    def rpm(self, *words: str) -> str:
        """Run rpm with the tree's database."""
        command = ["rpm", f"--dbpath={self.database}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, (done.stdout, done.stderr)
        return done.stdout

    def modes(self, name: str) -> dict[str, str]:
        """Return path → mode of a package's files, by the database."""
        rows = self.rpm("-q", "--qf", "[%{FILENAMES} %{FILEMODES:octal}\n]", name).splitlines()
        return dict(row.rsplit(" ", 1) for row in rows)  # type: ignore[misc]

    def apply(self) -> None:
        """Write the record, as the role does."""
        record.remember(record.renewed(NAMES)[1])


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Return a tree whose files belong to this user, whom rpm's database calls root."""
    tree = Tree(tmp_path / "root")
    run = gpuprov_node.run

    def with_database(program: str, *words: str, **how: Any) -> tuple[int, str]:
        return run(program, *([f"--dbpath={tree.database}"] if program == "rpm" else []), *words, **how)

    me = (os.getuid(), os.getgid())
    monkeypatch.setattr(gpuprov_node, "run", with_database)
    monkeypatch.setattr(rpm, "_numbers", lambda user, group: me)
    monkeypatch.setattr(rpm, "FOLDERS", (str(tree.database),))
    monkeypatch.setattr(files, "has_dpkg", lambda: False)
    monkeypatch.setattr(files, "RECORD", str(tmp_path / "record"))
    return tree


def asking(tree: Tree) -> rpm_files.RpmFiles:
    """Return verify's observer, whose commands read the tree."""
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name

    def run(command: str) -> Any:
        """Run a command of verify with the tree's database of packages."""
        command = command.replace("rpm -q", f"{RPM}{tree.database} -q")
        command = command.replace("%{FILEUSERNAME} %{FILEGROUPNAME}", f"{user} {group}")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        return SimpleNamespace(succeeded=done.returncode == 0, stdout=done.stdout, stderr=done.stderr)

    observer = object.__new__(rpm_files.RpmFiles)
    observer.__dict__["run"] = run
    return observer


def both(tree: Tree) -> list[str]:
    """Return what both report."""
    seen = [" ".join(row) for row in files.differing(NAMES)]
    assert asking(tree).differing(NAMES) == seen
    return [line.replace(f"{tree.root}/", "") for line in seen]


def same_size(tree: Tree) -> None:
    """Change a file's content without its size and times."""
    about = tree.library.stat()
    tree.library.write_bytes(CONTENT.upper())
    os.utime(tree.library, ns=(about.st_atime_ns, about.st_mtime_ns))


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    """Remove a file, and make another at its path."""
    path.unlink()
    make(path)


LIBRARY, PROGRAM = "nvidia-driver-cuda lib64/libcuda.so.1.1", "nvidia-driver-cuda bin/nvidia-smi"
CHANGES: dict[str, tuple[Callable[[Tree], object], list[str]]] = {
    "removed": (lambda tree: tree.library.unlink(), [f"{LIBRARY} is missing"]),
    "emptied": (lambda tree: tree.library.write_bytes(b""), [f"{LIBRARY} was changed"]),
    "truncated": (lambda tree: os.truncate(tree.library, 3), [f"{LIBRARY} was changed"]),
    "a folder in its place": (
        lambda tree: replaced(tree.program, Path.mkdir),
        [f"{PROGRAM} is missing"],
    ),
    "a link in its place": (
        lambda tree: replaced(tree.program, lambda path: path.symlink_to("/opt/smi")),
        [f"{PROGRAM} was changed"],
    ),
    "a link that leads elsewhere": (
        lambda tree: replaced(tree.link, lambda path: path.symlink_to("/opt/libcuda.so")),
        ["nvidia-driver-cuda lib64/libcuda.so.1 was changed"],
    ),
    "a link removed": (
        lambda tree: tree.link.unlink(),
        ["nvidia-driver-cuda lib64/libcuda.so.1 is missing"],
    ),
    "mode": (lambda tree: tree.program.chmod(0o4700), [f"{PROGRAM} has another mode or owner"]),
    "a file of another package": (
        lambda tree: tree.rules.write_bytes(b"other rules\n"),
        ["nvidia-kmod-common lib/rules was changed"],
    ),
}
"""Changes that need no record."""
WITH_RECORD: dict[str, tuple[Callable[[Tree], object], list[str]]] = {
    "same size and time": (same_size, [f"{LIBRARY} was changed"]),
}
BENIGN: dict[str, Callable[[Tree], object]] = {
    "nothing": lambda tree: None,
    "touched": lambda tree: tree.library.touch(),
    "copied back": lambda tree: (tree.library.unlink(), tree.library.write_bytes(CONTENT)),
    "a configuration file edited": lambda tree: tree.config.write_bytes(b"mine\n"),
    "a configuration file removed": lambda tree: tree.config.unlink(),
    "documentation left out": lambda tree: tree.text.unlink(),
    "installed again": lambda tree: tree.unpack("nvidia-kmod-common", {tree.rules: b"new rules\n"}, {}, 2),
    "the record lost": lambda tree: Path(files.RECORD).unlink(),
}


def test_rpm_calls_the_file_a_configuration(tree: Tree) -> None:
    """Check the spec: what is benign below is so because of rpm's flags."""
    flags = tree.rpm("-q", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", NAMES[0])
    assert f"{tree.config} cn" in flags


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
    assert files.differing(NAMES) == []
    assert asking(tree).differing(NAMES) == [f"nvidia-driver-cuda {tree.library} was changed"]
    read, total = asking(tree).read(NAMES)
    assert read == total > len(CONTENT)


def test_the_role_records_no_file_that_differs_from_its_package(tree: Tree) -> None:
    same_size(tree)
    tree.apply()
    text = Path(files.RECORD).read_text()
    assert "# nvidia-kmod-common " in text
    assert "# nvidia-driver-cuda " not in text


def test_beyond_the_budget_the_time_counts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.apply()
    monkeypatch.setattr(package_files, "BUDGET", 5)
    monkeypatch.setattr(files.other_content, "__defaults__", (5,))
    same_size(tree)
    assert both(tree) == []
    os.utime(tree.library, (1, 1))
    assert both(tree) == [f"{LIBRARY} was changed"]
    os.truncate(tree.library, len(CONTENT) - 1)
    os.utime(tree.library, (rpmfile.BUILT, rpmfile.BUILT))
    assert both(tree) == [f"{LIBRARY} was changed"], "the size counts, too"


def test_files_that_cannot_be_put_in_order_are_no_pass(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_size(tree)
    leave_no_room_to_sort(tmp_path, monkeypatch)
    with pytest.raises(NodeFailed, match="cannot be compared: sort: write failed: No space left"):
        asking(tree).differing(NAMES)


def test_a_database_that_a_user_has_locked_is_no_pass(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a user's lock on its list of changes, with which rpm finds no package after half a minute."""
    same_size(tree)
    said = "error: cannot open Packages database in /var/lib/rpm"
    write_program(tmp_path / "rpm", f"echo package x is not installed; echo '{said}' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NodeFailed, match=f"cannot be compared: {said}"):
        asking(tree).differing(NAMES)


def test_a_file_that_cannot_be_read_is_no_pass(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpm_files, "COMPARED", rpm_files.COMPARED.replace('"${each#*:}" --', "false"))
    with pytest.raises(NodeFailed, match="the packages' files cannot be compared"):
        asking(tree).differing(NAMES)


def test_both_leave_out_the_same_documentation() -> None:
    for path in ("/usr/share/doc/x", "/usr/local/cuda/doc/y", "/usr/lib64/docs/z", "/usr/share/locale/x"):
        assert files.is_documentation(path)
        assert package_files.DOCUMENTATION.match(path)
