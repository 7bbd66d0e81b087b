# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of dpkg's and rpm's packages: missing, diverted and changed ones.

Runs on nodes: Python 3.6 or newer. RECORD describes the files as the last apply left them. Its first line is
`@ FOLDER`, the inode of dpkg's folder of lists, or of that of rpm's database: it differs on a copy of the
machine, such as one made from an image. For each package there is a line `# NAME STAMP DIGEST PLAIN`, then a
line for each file,

    TYPE MODE UID GID SIZE MTIME CTIME PATH<tab>TARGET

MTIME is in seconds, CTIME in nanoseconds, TARGET that of a link. STAMP is the time of dpkg's list of files,
or rpm's time of installation: a package that was unpacked since then has no record any more. DIGEST is over
attributes and times of the files, PLAIN over those that a copy keeps: if it is equal, the lines are not read.
A new time without other changes is no change: then the package's own checksum decides.

Folders, configuration files, documentation (a system may leave it out) and modes that dpkg-statoverride
states are not compared. rpm's database also has size, mode, owner and target of each file, so that with rpm
only a changed content of the same size needs the record.
"""

import hashlib
import os
import re
from array import array
from typing import NamedTuple

import gpuprov_rpm_files as rpm
from gpuprov_node import has_dpkg, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Row = tuple[str, str, str]

INFO = "/var/lib/dpkg/info"
DIVERSIONS = "/var/lib/dpkg/diversions"
OVERRIDES = "/var/lib/dpkg/statoverride"
RECORD = "/var/lib/gpuprov/files"
DOCUMENT_FOLDERS = tuple(
    f"/usr/share/{each}/" for each in ("doc", "man", "info", "locale", "help", "lintian", "gtk-doc")
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BUDGET = 256 << 20
"""Bytes that are read at the most to compare checksums; of further files the time of modification counts."""
AT_ONCE = 1000  # arguments of md5sum
KIND, FOLDER = 0o170000, 0o040000
TYPES = {0o120000: "l", 0o100000: "f"}
PERMISSIONS = 0o7777
EMPTY = "d41d8cd98f00b204e9800998ecf8427e"  # MD5 of no bytes
LOCAL = ":"
"""Name in place of a package's for diversions of the administrator."""
MISSING, CHANGED, MODE = "is missing", "was changed", "has another mode or owner"


class Listed(NamedTuple):
    """An installed package: `paths` of its files, and the `rows` of those that need no record to be wrong.

    `elsewhere` are diverted paths: the package's own files have other names. `sums` are the checksums by
    rpm's database, None with dpkg, see `sums_of`.
    """

    name: str
    stem: str
    stamp: str
    digest: str
    plain: str
    paths: "list[str]"
    elsewhere: "list[str]"
    rows: "list[Row]"
    sums: "dict[str, str] | None" = None


class Known(NamedTuple):
    """A package in the record, with the text of its files' lines."""

    stamp: str
    digest: str
    plain: str
    text: str


class Suspect(NamedTuple):
    """A file whose content may have changed; `later`: it was modified since the record."""

    name: str
    path: str
    size: int
    checksum: str
    later: bool


def differing(packages: "list[str]") -> "list[Row]":
    """Return name, path and state of the packages' files that are not as the last apply left them.

    For a package without a record only missing, empty and diverted files.
    """
    folder, known = record()
    copied = folder != lists_inode()
    rows, suspects = [], []  # type: list[Row], list[Suspect]
    for found in listed(packages):
        rows += found.rows
        before = known.get(found.name)
        if before is None or before.stamp != found.stamp or before.digest == found.digest:
            continue
        if not copied or before.plain != found.plain:
            wrong, doubtful = _compared(found, before)
            rows += wrong
            suspects += doubtful
    return sorted({*rows, *other_content(suspects)})


def listed(packages: "list[str]") -> "Iterator[Listed]":
    """Yield those packages that are installed."""
    return _of_dpkg(packages) if has_dpkg() else _of_rpm(packages)


def _of_rpm(packages: "list[str]") -> "Iterator[Listed]":
    """Yield rpm's packages. Files that differ from its database are in `rows`, with or without a record."""
    for name, stamp, files in rpm.installed(packages):
        numbers, paths = array("q"), []  # type: array[int], list[str]
        rows, sums = [], {}  # type: list[Row], dict[str, str]
        for file in files:
            if file.mode & KIND == FOLDER or is_documentation(file.path):
                continue
            try:
                about = os.lstat(file.path)
            except OSError:
                rows.append((name, file.path, MISSING))
                continue
            mode, size = about.st_mode, about.st_size
            if mode & KIND == FOLDER:
                rows.append((name, file.path, MISSING))
                continue
            paths.append(file.path)
            sums[file.path] = file.digest
            numbers.extend((mode, about.st_uid, about.st_gid, size, int(about.st_mtime), about.st_ctime_ns))
            rows += [(name, file.path, state) for state in _against(file, about)]
        digest = _digest(numbers)
        del numbers[5::6]
        yield Listed(name, name, stamp, digest, _digest(numbers), paths, [], rows, sums)


def _against(file: rpm.File, about: os.stat_result) -> "Iterator[str]":
    """Yield the states of a file that are not those of rpm's database; its content is not read."""
    link = TYPES.get(about.st_mode & KIND) == "l"
    if about.st_mode & KIND != file.mode & KIND or (link and os.readlink(file.path) != file.target):
        yield CHANGED
        return
    if not link and about.st_size != file.size:
        yield CHANGED
    owned = rpm.has_owner(file, about.st_uid, about.st_gid)
    if not owned or not (link or about.st_mode & PERMISSIONS == file.mode & PERMISSIONS):
        yield MODE


def _of_dpkg(packages: "list[str]") -> "Iterator[Listed]":
    """Yield the files' state of those of the packages that dpkg has installed; others are left out."""
    diversions = _diversions()
    for name, stem in _stems(packages):
        yield _read(name, stem, diversions)


def _stems(packages: "list[str]") -> "Iterator[tuple[str, str]]":
    """Yield name, and name of dpkg's files, of those of the packages that dpkg has installed."""
    lists = set(os.listdir(INFO))
    architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    for name in packages:
        stem = next((each for each in (name, f"{name}:{architecture}") if each + ".list" in lists), None)
        if stem is not None:
            yield name, stem


def in_lists(paths: "Iterable[str]", packages: "list[str]") -> "set[str]":
    """Return those of the paths that dpkg's lists of some packages have: 1 ms, and all lists take dpkg 15."""
    return {path for _, stem in _stems(packages) for path in _lines(f"{INFO}/{stem}.list")} & set(paths)


def _read(name: str, stem: str, diversions: "dict[str, tuple[str, str]]") -> Listed:
    """Return the state of a package's files. It costs some microseconds a file, nearly all in lstat."""
    stamp = str(int(os.stat(f"{INFO}/{stem}.list").st_mtime))
    numbers = array("q")
    paths, elsewhere = [], []  # type: list[str], list[str]
    doubtful, rows = {}, []  # type: dict[str, str], list[Row]
    for path in _paths(stem):
        leads_to, by = diversions.get(path, ("", name))
        if by == LOCAL:
            rows.append((name, path, "is diverted to " + leads_to))
        if by != name:
            elsewhere.append(path)
            continue
        try:
            about = os.lstat(path)
        except OSError:
            doubtful[path] = MISSING
            continue
        mode, size = about.st_mode, about.st_size
        if mode & KIND != FOLDER:
            paths.append(path)
            numbers.extend((mode, about.st_uid, about.st_gid, size, int(about.st_mtime), about.st_ctime_ns))
            if size == 0:
                doubtful[path] = CHANGED
    if doubtful:  # folders, or files that the package has empty
        sums = checksums(stem)
        here = {path: state for path, state in doubtful.items() if path in sums}
        rows += [
            (name, path, state) for path, state in here.items() if state == MISSING or sums[path] != EMPTY
        ]
    digest = _digest(numbers)
    del numbers[5::6]
    return Listed(name, stem, stamp, digest, _digest(numbers), paths, elsewhere, rows)


def _digest(numbers: "array[int]") -> str:
    """Return the beginning of the SHA-256 of numbers."""
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:32]


def lists_inode() -> str:
    """Return the inode of dpkg's folder of lists, or of the folder of rpm's database."""
    return str(os.stat(INFO).st_ino) if has_dpkg() else rpm.inode()


def sums_of(found: Listed) -> "dict[str, str]":
    """Return path -> checksum of a package's regular files, by the package."""
    return checksums(found.stem) if found.sums is None else found.sums


def _paths(stem: str) -> "Iterator[str]":
    """Yield the paths of a package's list that are compared; a path before one below it is a folder."""
    paths, configuration = _lines(f"{INFO}/{stem}.list"), set(_lines(f"{INFO}/{stem}.conffiles"))
    for path, following in zip(paths, [*paths[1:], ""]):
        folder = following.startswith(path + "/")
        if not folder and path not in configuration and not is_documentation(path):
            yield path


def is_documentation(path: str) -> bool:
    """Return whether a path is in a folder of documentation, such as /usr/local/cuda-12.8/doc."""
    return path.startswith(DOCUMENT_FOLDERS) or "/doc/" in path or "/docs/" in path


def _lines(path: str) -> "list[str]":
    """Return the lines of one of dpkg's files; none if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []


def _diversions() -> "dict[str, tuple[str, str]]":
    """Return path -> its other name, and the package that diverts it, ":" for an administrator.

    A path below /usr is also found without it, and the other way round: both may be the same folder.
    """
    lines = _lines(DIVERSIONS)
    found = {}
    for path, leads_to, by in zip(lines[::3], lines[1::3], lines[2::3]):
        found[path] = (leads_to, by)
        found[path[4:] if path.startswith("/usr/") else "/usr" + path] = (leads_to, by)
    return found


def checksums(stem: str) -> "dict[str, str]":
    """Return path -> MD5 of a package's regular files, by the package; empty if it has no list of them."""
    rows = (line.partition("  ") for line in _lines(f"{INFO}/{stem}.md5sums"))
    return {"/" + path: digest for digest, _, path in rows}


def record() -> "tuple[str, dict[str, Known]]":
    """Return the folder's inode and the packages of the record; "" and none if it does not exist."""
    try:
        with open(RECORD, encoding="utf-8", errors="surrogateescape") as file:
            head, *parts = re.split(r"(?m)^# ", file.read())
    except OSError:
        return "", {}
    lines = (part.partition("\n") for part in parts)
    rows = ((line.split(" "), text) for line, _, text in lines)
    known = {words[0]: Known(words[1], words[2], words[3], text) for words, text in rows if len(words) == 4}
    return head[2:].strip(), known


def _compared(found: Listed, before: Known) -> "tuple[list[Row], list[Suspect]]":
    """Return the files of a package that differ from the record, and those that have only other times."""
    rows, suspects = [], []  # type: list[Row], list[Suspect]
    sums, here, elsewhere = sums_of(found), set(found.paths), set(found.elsewhere)
    stated = {line.split(" ", 3)[-1] for line in _lines(OVERRIDES)}
    for then in map(_words, before.text.splitlines()):
        path = then[7]
        now = _words(line_of(path))
        if path in elsewhere:
            continue
        if path not in here:
            rows.append((found.name, path, MISSING))
        elif (now[0], now[4], now[8]) != (then[0], then[4], then[8]):
            rows.append((found.name, path, CHANGED))
        elif now != then:
            if now[1:4] != then[1:4] and path not in stated:
                rows.append((found.name, path, MODE))
            if now[0] == "f":
                later = now[5] != then[5]
                suspects.append(Suspect(found.name, path, int(now[4]), sums.get(path, ""), later))
    return rows, suspects


def line_of(path: str) -> str:
    """Return a file's line of the record: type, mode, owner, size, times, path and target; of a missing file
    its type is `-`.
    """
    try:
        about = os.lstat(path)
        kind = TYPES.get(about.st_mode & KIND, "?")
        target = os.readlink(path) if kind == "l" else ""
    except OSError:
        return f"- 0 0 0 0 0 0 {path}\t\n"
    owner, times = f"{about.st_uid} {about.st_gid}", f"{int(about.st_mtime)} {about.st_ctime_ns}"
    return f"{kind} {about.st_mode & 0o7777:o} {owner} {about.st_size} {times} {path}\t{target}\n"


def _words(line: str) -> "list[str]":
    """Return the nine fields of a line of the record."""
    words, _, target = line.rstrip("\n").partition("\t")
    return [*words.split(" ", 7), target]


def other_content(suspects: "list[Suspect]", budget: int = BUDGET) -> "list[Row]":
    """Return the files with another checksum than the package's; one that cannot be read is among them.

    A file beyond the budget, or without a checksum, has another content if it was modified later.
    """
    asked, rows = {}, []  # type: dict[str, Suspect], list[Row]
    for each in suspects:
        if each.checksum and each.size <= budget:
            budget -= each.size
            asked[each.path] = each
        elif each.later:
            rows.append((each.name, each.path, CHANGED))
    seen = {}  # type: dict[str, str]
    for digits, program in rpm.PROGRAMS.items():
        paths = [path for path, each in asked.items() if len(each.checksum) == digits]
        for at in range(0, len(paths), AT_ONCE):
            lines = run(program, "--", *paths[at:][:AT_ONCE], seconds=300)[1].splitlines()
            seen.update((line[digits:][2:], line[:digits]) for line in lines)
    return rows + [
        (each.name, path, CHANGED) for path, each in asked.items() if seen.get(path) != each.checksum
    ]
