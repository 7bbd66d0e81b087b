"""Replacement of files: the old or the new content, complete, and no change outside."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import gpuprov_lines
import gpuprov_place
import gpuprov_replace
import pytest
from gpuprov_lines import edit_lines
from gpuprov_replace import make_folders, read, replace, replace_link

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")
STRANGER, OTHER = 4321, 4322


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Forget before and after the test which folders were cleaned."""
    gpuprov_replace._cleaned.clear()
    yield
    gpuprov_replace._cleaned.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with old content and permissions 0640, in its own folder."""
    path = tmp_path / "folder/file"
    path.parent.mkdir()
    path.write_bytes(b"old\n")
    path.chmod(0o640)
    return path


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_content_changes_and_the_mode_stays(file: Path) -> None:
    """Check that a replaced file keeps its mode, and no temporary file is left."""
    replace(str(file), b"new\n")
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new\n", 0o640)
    assert names(file.parent) == ["file"]


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_nobody_else_may_write_to_a_new_file_whatever_the_umask(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        replace(str(tmp_path / "new"), b"")
        replace(str(tmp_path / "stated"), b"", 0o664)
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == mode
    assert (tmp_path / "stated").stat().st_mode & 0o7777 == 0o664


@ROOT_ONLY
def test_owner_and_attributes_stay(file: Path) -> None:
    os.chown(file, STRANGER, OTHER)
    os.setxattr(file, "user.origin", b"site")
    replace(str(file), [b"new", b"\n"])
    assert (file.stat().st_uid, file.stat().st_gid) == (STRANGER, OTHER)
    assert os.getxattr(file, "user.origin") == b"site"


@pytest.mark.parametrize("call", ["write", "fsync", "fchmod", "rename", "fstat", "open"])
@pytest.mark.parametrize("at", range(1, 6))
def test_whatever_fails_the_old_file_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str, at: int
) -> None:
    real: Callable[..., object] = getattr(os, call)
    count = 0

    def failing(*words: object, **named: object) -> object:
        """Fail at the stated call, else do the real one."""
        nonlocal count
        count += 1
        if count == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*words, **named)

    monkeypatch.setattr(os, call, failing)
    with suppress(OSError):
        replace(str(file), b"new\n")
    monkeypatch.undo()
    assert file.read_bytes() in (b"old\n", b"new\n")
    assert names(file.parent) == ["file"]


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_not_disturbed(file: Path) -> None:
    (file.parent / ".gpuprov-new-0123456789abcdef").write_text("half")
    kept = [".gpuprov-new-", ".gpuprov-new-0123456789abcdeg.conf", "gpuprov-new-0123456789abcdef"]
    for name in kept:
        (file.parent / name).write_text("not ours")
    with (
        gpuprov_place.Place(str(file)) as place,
        gpuprov_replace.TemporaryReplacement(place, b"living") as half,
    ):
        gpuprov_replace._cleaned.clear()
        replace(str(file), b"new\n")
        half.put()
    assert file.read_bytes() == b"living"
    assert names(file.parent) == sorted(["file", *kept])


def remove_the_first(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Remove the first temporary file before it is locked, as the next writer in the folder may do."""
    removed: list[Path] = []

    def flock(handle: int, operation: int) -> None:
        """Remove the temporary file at the first lock."""
        if not removed:
            [temporary] = file.parent.glob(".gpuprov-new-*")
            temporary.unlink()
            removed.append(temporary)

    monkeypatch.setattr(gpuprov_replace.fcntl, "flock", flock)


def test_a_temporary_file_that_is_removed_is_made_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = len(names(Path("/proc/self/fd")))
    remove_the_first(monkeypatch, file)
    replace(str(file), b"new\n")
    assert (file.read_bytes(), names(file.parent)) == (b"new\n", ["file"])
    assert len(names(Path("/proc/self/fd"))) == handles


def test_no_file_of_others_is_closed_when_that_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another thread open a file, which gets the number of the one that was closed."""
    remove_the_first(monkeypatch, file)
    real, made = os.open, list[int]()

    def full(path: str, flags: int, *rest: int, **others: int) -> int:
        """Open another file in between, then fail as a full disk."""
        if flags != gpuprov_replace._CREATE or not made:
            found = real(path, flags, *rest, **others)
            made.extend([found] if flags == gpuprov_replace._CREATE else [])
            return found
        made.append(real(os.devnull, os.O_RDONLY))
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="full"):
        replace(str(file), b"new\n")
    assert made[1] == made[0]
    os.close(made[1])  # fails if it is closed
    assert (file.read_bytes(), names(file.parent)) == (b"old\n", ["file"])


def test_a_link_is_replaced_or_what_it_leads_to(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to("../folder/./file")
    replace(str(link), b"new\n", follow=True)
    assert (link.is_symlink(), file.read_bytes()) == (True, b"new\n")
    replace(str(link), b"other\n")
    assert (link.is_symlink(), link.read_bytes(), file.read_bytes()) == (False, b"other\n", b"new\n")
    replace_link(str(link), "file")
    assert link.read_bytes() == b"new\n"


@pytest.mark.parametrize("what", ["folder", "fifo", "loop", "slash"])
def test_what_is_no_file_is_refused(file: Path, what: str) -> None:
    """Check that a folder, a pipe or a link to itself is not replaced."""
    path = file.with_name("other")
    if what in ("folder", "slash"):
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises(OSError, match="other"):
        replace(f"{path}/" if what == "slash" else str(path), b"", follow=True)
    assert names(file.parent) == ["file", "other"]


@pytest.mark.parametrize("what", ["folder", "fifo"])
def test_what_takes_the_place_of_a_file_before_it_is_opened_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    handles = len(names(Path("/proc/self/fd")))
    real = gpuprov_place.Place.about

    def about(place: gpuprov_place.Place) -> os.stat_result | None:
        """Return the file's state, then replace it by a pipe or a folder."""
        found = real(place)
        file.unlink()
        os.mkfifo(file) if what == "fifo" else file.mkdir()
        return found

    monkeypatch.setattr(gpuprov_place.Place, "about", about)
    with pytest.raises(OSError, match="Is a directory" if what == "folder" else "not a regular") as raised:
        read(str(file))
    assert raised.value.filename == str(file)
    assert len(names(Path("/proc/self/fd"))) == handles


def test_a_file_whose_content_would_block_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what counts as a regular file and waits for content, as /proc/kmsg does."""
    file.unlink()
    os.mkfifo(file)
    writer = os.open(file, os.O_RDWR)
    monkeypatch.setattr(gpuprov_place.stat, "S_ISREG", lambda _: True)
    with pytest.raises(gpuprov_place.Refused, match="not a regular file"):
        read(str(file))
    os.close(writer)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("owner", "target_owner", "followed"),
    [(0, OTHER, True), (STRANGER, STRANGER, True), (STRANGER, 0, False), (STRANGER, OTHER, False)],
)
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_of_another_user_leads_to_folders_of_theirs(
    tmp_path: Path, owner: int, target_owner: int, followed: bool, what: str
) -> None:
    home, target = tmp_path / "home", tmp_path / "target"
    home.mkdir()
    target.mkdir()
    os.chown(target, target_owner, -1)
    link = home / "link"
    link.symlink_to(target / "file" if what == "file" else target)
    os.chown(link, owner, -1, follow_symlinks=False)
    path = link if what == "file" else link / "file"
    if followed:
        replace(str(path), b"new\n", follow=True)
        assert (target / "file").read_bytes() == b"new\n"
    else:
        with pytest.raises(gpuprov_place.Refused, match="link of another user"):
            replace(str(path), b"new\n", follow=True)
        assert names(target) == []


@ROOT_ONLY
def test_a_link_planted_in_a_folder_of_all_users_is_not_followed(tmp_path: Path) -> None:
    shared, theirs = tmp_path / "shared", tmp_path / "theirs"
    for folder in (shared, theirs):
        folder.mkdir()
    shared.chmod(0o1777)
    os.chown(theirs, STRANGER, -1)
    (shared / "report").symlink_to(theirs / "report")
    os.chown(shared / "report", STRANGER, -1, follow_symlinks=False)
    with pytest.raises(gpuprov_place.Refused, match="folder of all users"):
        replace(str(shared / "report"), b"secret", follow=True)
    assert names(theirs) == []


@ROOT_ONLY
@pytest.mark.parametrize("mode", [None, 0o600])
def test_a_file_created_first_in_a_folder_of_all_users_does_not_become_theirs(
    tmp_path: Path, mode: int | None
) -> None:
    """Refuse it: its creator would own what is written there, such as modules that a controller signs."""
    tmp_path.chmod(0o1777)
    report = tmp_path / "report"
    report.write_bytes(b"theirs")
    os.chown(report, STRANGER, -1)
    for write in (
        lambda: replace(str(report), b"secret", mode),
        lambda: edit_lines(str(report), lambda _: False, [b"secret"]),
    ):
        with pytest.raises(gpuprov_place.Refused, match="belongs to another user, in a folder of all users"):
            write()
    assert (report.read_bytes(), names(tmp_path)) == (b"theirs", ["report"])
    replace(str(report), b"of its user", 0o600, (STRANGER, STRANGER))
    assert report.stat().st_uid == STRANGER
    os.chown(tmp_path, STRANGER, -1)  # a shared folder of that user
    replace(str(report), b"new", mode)
    assert (report.read_bytes(), report.stat().st_uid) == (b"new", STRANGER)


def test_a_file_that_is_too_large_is_not_read(file: Path) -> None:
    os.truncate(file, 200 << 30)  # sparse
    for reads in (lambda: read(str(file)), lambda: edit_lines(str(file), lambda _: False, [b"ours"])):
        with pytest.raises(OSError, match="has 214748364800 bytes; expected at most 16777216") as raised:
            reads()
        assert raised.value.filename == str(file)
    assert (file.stat().st_size, names(file.parent)) == (200 << 30, ["file"])
    replace(str(file), b"new\n")
    assert file.read_bytes() == b"new\n"


def test_folders_are_made_with_their_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = make_folders(str(tmp_path / "one/two/"), 0o755)
    finally:
        os.umask(before)
    assert made == [str(tmp_path / "one"), str(tmp_path / "one/two")]
    assert [Path(each).stat().st_mode & 0o777 for each in made] == [0o755, 0o755]
    assert make_folders(made[1]) == []


def test_lines_of_others_survive_a_concurrent_edit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, late = gpuprov_replace.TemporaryReplacement.put, iter([b"second\n", b"third\n"])

    def put(half: gpuprov_replace.TemporaryReplacement) -> None:
        """Let another program append a line, then put the new file in its place."""
        if line := next(late, b""):
            with file.open("ab") as stream:
                stream.write(line)
        real(half)

    monkeypatch.setattr(gpuprov_replace.TemporaryReplacement, "put", put)
    assert edit_lines(str(file), lambda line: line == b"ours", [b"ours"])
    assert file.read_bytes() == b"old\nsecond\nthird\nours\n"


def test_an_edit_that_would_lose_lines_of_others_is_refused(file: Path) -> None:
    file.write_bytes(b"one\ntwo\nours\n")
    for change in (lambda lines: lines[1:], lambda lines: [], lambda lines: lines[1::-1]):
        with pytest.raises(gpuprov_place.Refused, match="would lose lines"):
            gpuprov_lines.edit(str(file), change, lambda line: line == b"ours")
    assert file.read_bytes() == b"one\ntwo\nours\n"
    assert names(file.parent) == ["file"]


@ROOT_ONLY
def test_a_file_that_is_missing_has_no_content_also_without_its_folder(tmp_path: Path) -> None:
    assert read(str(tmp_path / "file")) is None
    assert read(str(tmp_path / "none" / "file")) is None


def test_a_file_that_cannot_be_read_is_not_an_empty_one(file: Path) -> None:
    file.parent.chmod(0o777)
    for above in file.parents:
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    file.chmod(0o200)
    os.chown(file, STRANGER, -1)
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(gpuprov_lines.__file__).parent)!r})\n"
        f"import gpuprov_lines\nos.setuid({OTHER})\n"
        f"gpuprov_lines.edit_lines({str(file)!r}, bool, [b'ours'])"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], check=False, capture_output=True, text=True)
    assert "PermissionError" in done.stderr
    assert file.read_bytes() == b"old\n"
