# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dnf 4 for scripts on a node, and messages for its failures. It has the functions of `gpuprov_apt`.

A transaction is a script of `dnf shell`: module streams, installations and removals, resolved together. The
shell exits with 0 also after errors, so that its output decides.

Runs on nodes: Python 3.6 to 3.13 and its standard library.
"""

import contextlib
import fcntl
import glob
import os
import re
import tempfile
from typing import NamedTuple

from gpuprov_dnf_start import confirm, start
from gpuprov_failures import Cause, Failed, explained
from gpuprov_locks import BLOCKS, DATABASES, RPM, blocker, conflict_of, name_of
from gpuprov_node import (
    ENVIRONMENT,
    RPM_KEY,
    SEVERAL,
    TEMPORARY,
    Package,
    database,
    foreign_removals,
    packages,
    require_words,
    run,
)
from gpuprov_own_tmp import with_own_tmp
from gpuprov_replace import replace
from gpuprov_repos import repositories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuprov_node import Changes

NAME = "dnf"
"""Its name in messages."""
HEADERS = (
    (re.compile(r"(?P<release>.+)\+(?P<kind>[a-z0-9-]+)"), "kernel-{kind}-devel-{release}"),
    (re.compile(r"(?P<release>.+uek\..+)"), "kernel-uek-devel-{release}"),
    (
        re.compile(r"(?P<release>(?!6\.1\.)(?P<series>\d+\.\d+)\..+\.amzn.+)"),
        "kernel{series}-devel-{release}",
    ),
    (re.compile(r"(?P<release>.*)"), "kernel-devel-{release}"),
)
"""Release of a kernel → the package with its headers; as in gpuprov/catalog/platforms.py.

Kernels of another kind (`5.14.0-570.el9.aarch64+64k`), Oracle's, and Amazon's after 6.1 have other names.
"""
NEXT_STEP = "run `dnf --assumeno install` with these packages on the node: its output names the others"

CAUSES = (
    Cause(
        f"{BLOCKS}|locking protocol|database is locked",
        "a user's process prevents all changes of packages",
        f"`lslocks` on the node shows it, with {' or '.join(DATABASES)}; end it and try again",
    ),
    Cause(
        "dnf would remove",
        "other packages would be removed as well",
        "remove them yourself if nothing needs them, or change the lock so that they can stay",
    ),
    Cause(
        "dnf would downgrade",
        "that would downgrade packages",
        "lock a newer version, or run `gpuprov apply --allow-downgrade`",
    ),
    Cause(
        "dnf would change",
        "that would change packages that are locked at their version",
        "remove their lines from /etc/dnf/plugins/versionlock.list on the node, or change the lock",
    ),
    Cause(
        "(No match for argument:|Unable to find a match:|nothing provides) "
        r"kernel[0-9.]*-(\w+-)?(devel|headers)",
        "the package repositories have no headers for the target kernel",
        "install and boot a kernel whose headers they have, or state such a kernel: settings.kernel of"
        " fleet.yml (without gpuprov, the variable nvidia_driver_target_kernel)",
    ),
    Cause(
        "(No match for argument:|Unable to find a match:|nothing provides) "
        r"(dkms|gcc|gcc-c\+\+|make|elfutils-libelf-devel|opencl-filesystem|ocl-icd)\b",
        "the node's own repositories do not have a package of the distribution",
        "enable the repository that has it (EPEL with CRB has dkms) in /etc/yum.repos.d on the node and try"
        " again",
    ),
    Cause(
        "modular filtering",
        "another stream of a module hides the package",
        "compare `dnf module list --enabled` on the node with the stream in the lock",
    ),
    Cause(
        "exclude filtering",
        "the node's settings of dnf exclude the package",
        "remove it from excludepkgs (or exclude) in /etc/dnf/dnf.conf and /etc/yum.repos.d, and try again",
    ),
    Cause(
        "GPG check FAILED|[Ss]ignature|is not signed|Public key|repomd.xml GPG|Bad GPG",
        "the signature of the package repository is not valid",
        "ask its owner whether the key was rotated, state the new key file in fleet.yml and lock again; a key"
        " of a repository of your own, with an http address as gpgkey, has to be installed by `rpm --import`",
    ),
    Cause(
        "[Cc]hecksum|Downloading successful, but|Yum repo downloading error: .*repomd.xml",
        "the package repository is half synced or stale",
        "try again in a few minutes, or sync the mirror",
    ),
    Cause(
        "fetching took longer than",
        "the package repository is too slow",
        "try again later, or use a nearer mirror",
    ),
    Cause(
        r"Curl error|Could not resolve|[Cc]onnection (failed|timed out|refused)|Timeout was reached"
        r"|Status code: (408|429|5\d\d)",
        "the package repository does not answer as it should",
        "check that the node reaches it (proxy, firewall, the mirror itself) and try again",
    ),
    Cause(
        "No match for argument|Unable to find a match|Status code: 404|[Cc]annot download",
        "the package repository does not have what the lock names",
        "lock again with the repository's present content, or use a mirror that keeps old versions",
    ),
    Cause(
        "Problem|conflicting requests|conflicts with|none of the providers can be installed",
        "the packages conflict with others that are installed or locked",
        NEXT_STEP,
    ),
    Cause(
        "another dnf or rpm|transaction lock",
        "another dnf or rpm did not finish in time",
        "wait for it and try again",
    ),
)
"""Causes in order: the first whose pattern is found in the output explains a failure."""

INSTANCES = "%{DBINSTANCE}\t%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
"""Form of a package with its number in rpm's database, which grows with each installation."""
MODULES = "/etc/dnf/modules.d/*.module"
ERASING = "--allowerasing"
"""Option with which dnf removes packages that conflict with others."""
DOWNLOAD = ("--assumeyes", "--downloadonly")
SIMULATION_S = 600
"""Time limit in seconds of a simulation without a download."""
STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*:[A-Za-z0-9.+_-]*\Z")
"""Module and stream, which is empty for one that is reset."""
FORWARD = ("Installing", "Upgrading", "Reinstalling", "Downgrading")
"""First words of headings above packages that will be there, also of `Installing dependencies`."""


class Command(NamedTuple):
    """A transaction: options of dnf, lines for its shell, and whether packages may be downgraded."""

    options: "Sequence[str]"
    lines: "Sequence[str]"
    words: "Sequence[str]"
    allow_downgrade: bool


class Move(NamedTuple):
    """A row of dnf's table: its heading, and the package; of a removal with its present version."""

    heading: str
    name: str
    arch: str
    version: str


def failure(what: str, error: Failed) -> "dict[str, str | None]":
    """Return the message for the user, with a cause of `CAUSES`, see `explained`."""
    return explained(what, error, CAUSES)


def set_environment() -> None:
    """Set the environment of dnf: messages in English."""
    os.environ.update(LC_ALL="C.UTF-8")


def installation(
    words: "Iterable[str]", lock_seconds: int, allow_downgrade: bool, streams: "Collection[str]" = ()
) -> Command:
    """Return one transaction.

    Locks of the packages themselves do not count, and neither does the plugin: `refuse` checks the others.

    Args:
        words: `name`, `name=version`, or `name-` for a package to remove; the epoch is part of a version.
        lock_seconds: ignored; the time limit of a download includes the wait for another dnf.
        allow_downgrade: whether a package may be downgraded.
        streams: module streams to enable, `nvidia-driver:580-open`; without a stream (`nvidia-driver:`) the
            module is reset, so that it has none.

    Raises:
        Failed: as `require_words`, or a stream is something else: a line of dnf's shell can have any command.
    """
    words = require_words(words)
    for stream in streams:
        if not STREAM.match(stream):
            raise Failed(f"{stream!r} is no module stream; expected MODULE:STREAM")
    going = [word[:-1] for word in words if word.endswith("-")]
    coming = [_argument(word) for word in words if not word.endswith("-")]
    lines = [
        f"module reset {stream[:-1]}" if stream.endswith(":") else f"module enable {stream}"
        for stream in streams
    ]
    lines += [
        f"{verb} {' '.join(names)}" for verb, names in (("install", coming), ("remove", going)) if names
    ]
    options = [
        *("--best", ERASING, "--disableplugin=versionlock"),
        *(
            "--setopt=install_weak_deps=False",
            "--setopt=clean_requirements_on_remove=False",
            "--setopt=module_stream_switch=True",
        ),
        *without_open_keys(),
    ]
    return Command(options, [*lines, "run"], words, allow_downgrade)


def without_open_keys() -> "list[str]":
    """Return options with which dnf takes no key over http or ftp, as `--assumeyes` would without a question.

    A key that is installed already still counts. Without any installed key dnf refuses every command if an
    enabled repository states none, so such repositories are left out then: a package that only they have is
    missing until `rpm --import` has installed their key.
    """
    found = [each.id for each in repositories() if each.enabled and each.open_key]
    found = [each for each in found if re.match(r"[\w.:-]+\Z", each)]
    if found and run("rpm", "-q", "gpg-pubkey")[0] != 0:
        return [f"--disablerepo={each}" for each in found]
    return [f"--setopt={each}.gpgkey=" for each in found]


def _argument(word: str) -> str:
    """Return dnf's spelling of `name`, `name=version` or `name:arch=version`."""
    name, equals, version = word.partition("=")
    name, _colon, arch = name.partition(":")
    return name + ("-" + version if equals else "") + ("." + arch if arch else "")


def read_lists(fetch_seconds: int, lock_seconds: int, *words: str) -> None:
    """Update the cache of the repositories' metadata, also before it expires.

    Args:
        fetch_seconds, lock_seconds: together the time limit; dnf waits for its lock itself.
        words: further arguments of dnf.

    Raises:
        Failed: a repository does not answer or its signature is wrong, or another dnf did not end in time.
    """
    # Without --quiet, with which dnf does not print why a repository failed.
    start(fetch_seconds + lock_seconds, "--assumeyes", "--refresh", *words, "makecache")


def only(sources: str) -> "list[str]":
    """Return options for `read_lists` with which only the repositories of one file are read."""
    return [f"--repo={each.id}" for each in repositories(os.path.dirname(sources)) if each.path == sources]


def fetch_packages(
    command: Command, own: "Collection[str]", seconds: int, lock_seconds: "int | None" = None
) -> "Changes":
    """Download all packages of a transaction and check its effects; nothing is installed. Return these, see
    `changes`.

    Args:
        command: as `installation` returns it.
        own: names of packages that may be removed.
        seconds: time limit of each start of dnf.
        lock_seconds: update the cache of the repositories' metadata first, as `read_lists`, without a further
            start; None does not.

    Raises:
        Failed: packages cannot be downloaded or conflict, or as `refuse`.
    """
    options = [] if lock_seconds is None else ["--refresh"]
    limit = seconds + (lock_seconds or 0)
    if not any(word.endswith("-") for word in command.words):
        # Here dnf itself refuses most removals, so that the transaction is resolved only once.
        careful = command._replace(options=[each for each in command.options if each != ERASING])
        try:
            return checked(_simulated(careful, limit, *DOWNLOAD, *options), command, own)
        except Failed as error:
            if "Problem" not in str(error):
                raise
    found = refuse(command, own, limit, *options)
    _simulated(command, seconds, "--setopt=metadata_expire=-1", *DOWNLOAD)
    return found


def transact(command: Command, residue: "Iterable[str]", own: "Collection[str]" = ()) -> None:
    """Install, replace and remove packages in one transaction.

    What dnf is about to do is checked before it does it: a repository, or a timer of dnf, can have replaced
    the metadata since the packages were downloaded.

    Args:
        residue: ignored; rpm keeps no configuration of a removed package that has an effect.
        own: names of packages that may be removed.

    Raises:
        Failed: dnf failed, or as `checked`, or a user's process prevents changes: dnf would wait for it
            without limit.
    """
    pid = blocker()
    if pid is not None:
        raise Failed(f"{name_of(pid)} {BLOCKS}")
    try:
        close_lock()
    except OSError as error:
        raise Failed(f"rpm's lock cannot be replaced: {error}") from error
    with _shell(command) as words:
        confirm(lambda said: checked(said, command, own), SIMULATION_S, "--cacheonly", *words)
    for path in glob.glob(MODULES):
        os.chmod(path, 0o644)  # users' dnf reads them; with the umask of `RUN_DNF` they cannot


def close_lock() -> None:
    """Replace rpm's lock by a file that only root can open, unless rpm holds it.

    rpm creates it readable by everybody, and a read lock of any user prevents a transaction. A lock of the
    old file has no effect on the new one. Nothing is done if rpm has its database in another folder.

    Raises:
        OSError: it cannot be replaced.
    """
    if not os.path.isdir(os.path.dirname(RPM)):
        return
    handle = os.open(RPM, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not os.fstat(handle).st_mode & 0o077:
            return
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so that no rpm begins meanwhile
        except OSError:
            found = conflict_of(handle)
            if found and found[0] == fcntl.F_WRLCK:
                return
        replace(RPM, b"", 0o600)
    finally:
        os.close(handle)


def enabled_streams() -> "list[str]":
    """Return the enabled module streams as `nvidia-driver:580-open`, from dnf's own records; sorted."""
    found = []
    for path in sorted(glob.glob(MODULES)):
        with open(path, encoding="utf-8", errors="replace") as file:
            stated = dict(re.findall(r"(?m)^(name|stream|state)[ \t]*=[ \t]*(\S+)", file.read()))
        if stated.get("state") == "enabled" and "stream" in stated:
            found.append(f"{stated.get('name')}:{stated['stream']}")
    return found


def headers_package(kernel: str) -> str:
    """Return the name of the package with a kernel's headers, which has the kernel's release."""
    found = ((pattern.fullmatch(kernel), form) for pattern, form in HEADERS)
    return next(form.format(**each.groupdict()) for each, form in found if each)


def hold(names: "Iterable[str]") -> None:
    """Do nothing: a transaction does not change the list of version locks."""


def make_requested_initramfs() -> None:
    """Do nothing: no script of an rpm requests an initramfs for later."""


def is_to_be_purged(name: str) -> bool:
    """Return False: rpm has no packages that are removed and configured."""
    return False


def purge(names: "Iterable[str]") -> None:
    """Do nothing, see `is_to_be_purged`."""


def refuse(command: Command, own: "Collection[str]", seconds: int, *options: str) -> "Changes":
    """Simulate a transaction and check its effects; nothing is changed. Return the effects, see `changes`.

    Args:
        options: further options of dnf.

    Raises:
        Failed: it is not possible, or as `checked`.
    """
    return checked(_simulated(command, seconds, "--assumeno", *options), command, own)


def checked(said: str, command: Command, own: "Collection[str]") -> "Changes":
    """Return the effects of a transaction from dnf's table, see `changes`.

    Raises:
        Failed: it would remove a package that is not in `own`, downgrade one without permission, change a
            locked one that is not in `own`, or leave out one of the command; the text names them.
    """
    there = {row.name: row for row in packages()}
    moved = moves(said)
    locked = {name for name, row in there.items() if row.wanted == "h" and name not in own}
    _refuse("remove", foreign_removals(changes(moved, there), own))
    downgraded = {row.name for row in moved if row.heading == "Downgrading"}
    asked = {re.split("[=:]", word)[0] for word in command.words}
    _refuse("downgrade", downgraded - (asked.union(own) if command.allow_downgrade else set()))
    _refuse("change", locked & {named(row) for row in moved})
    left_out = [word for word in command.words if not _is_done(word, moved, there)]
    if left_out:
        raise Failed(_problem(said) or f"dnf leaves out {', '.join(left_out)}")
    return changes(moved, there)


def doubled() -> "dict[str, list[str]]":
    """Return `NAME.ARCH` → versions in the order of their installation, of packages in several versions.

    A killed dnf leaves packages so. Those that dnf installs so, such as kernels, are left out.

    Raises:
        Failed: rpm's database cannot be read.
    """
    rows = [line.split("\t") for line in database("rpm", "-qa", "--qf", INSTANCES).splitlines()]
    found = {}  # type: dict[str, list[str]]
    for _number, name, version, arch in sorted(rows, key=lambda row: int(row[0])):
        if name != RPM_KEY and not SEVERAL.match(name):
            found.setdefault(f"{name}.{arch}", []).append(version)
    return {name: versions for name, versions in found.items() if len(versions) > 1}


def undouble() -> None:
    """Remove all versions of packages in several versions but the one that was installed last.

    dnf installs the new versions of a transaction before it removes the old ones, and replaces the files of
    these: only the files of the last one are complete. Other packages need either.

    Raises:
        Failed: rpm's database cannot be read, or rpm cannot remove one.
    """
    for name, versions in doubled().items():
        for version in versions[:-1]:
            one = "{}-{}.{}".format(name.rpartition(".")[0], version, name.rpartition(".")[2])
            status = run("rpm", "--erase", "--nodeps", one, seconds=1800, **with_own_tmp(ENVIRONMENT))[0]
            if status:
                raise Failed(f"rpm --erase --nodeps {one} exited with {status}")


def upgrade(seconds: int) -> "list[Move]":
    """Return what an upgrade of all packages would change, with the locks in effect; nothing is changed.

    Raises:
        Failed: dnf failed, or exceeded the limit.
    """
    return moves(start(seconds, "--cacheonly", "--assumeno", "upgrade"))


def _refuse(verb: str, names: "Iterable[str]") -> None:
    """Raise `Failed` if there are names."""
    named = ", ".join(sorted(names))
    if named:
        raise Failed(f"dnf would {verb} {named}")


def _is_done(word: str, moved: "Iterable[Move]", there: "Mapping[str, Package]") -> bool:
    """Return whether a word of a transaction is true after the moves: `NAME-` is not installed; `NAME` or
    `NAME=VERSION` is.
    """
    name, _equals, version = word.partition("=")
    if word.endswith("-"):
        return word[:-1] not in there or any(named(row) == word[:-1] for row in moved)
    coming = {named(row): row.version for row in moved if row.heading.startswith(FORWARD)}
    now = coming.get(name.partition(":")[0]) or (there[name].version if name in there else None)
    return now is not None and version in ("", now)


def moves(said: str) -> "list[Move]":
    """Return the rows of the table that dnf prints before it asks, without skipped packages and streams.

    A row begins with one space; a field that is too long for its column continues on an indented line:

         nvidia-driver-cuda   x86_64   3:580.95.05-1.el9   cuda   2.1 k
    """
    rows = []
    heading = ""
    text = re.sub(r"\n {2,}(?=\S)", " ", said)
    for line in text.splitlines():
        if re.match(r"[A-Z][a-z /]+:\Z", line):
            heading = line[:-1]
        elif not line.startswith(" ") or not heading.startswith((*FORWARD, "Removing")):
            heading = heading if line.startswith(" ") else ""
        else:
            rows += _row(heading, line.split())
    return rows


def _row(heading: str, fields: "list[str]") -> "list[Move]":
    """Return a row of the table, and the packages that it replaces (`replacing name.arch version`); [] if the
    line is no row.
    """
    if len(fields) < 4:
        return []
    replaced = [place for place, word in enumerate(fields) if word == "replacing"]
    gone = [(*fields[place + 1].rpartition(".")[::2], fields[place + 2]) for place in replaced]
    return [Move(heading, *fields[:3]), *(Move("Removing", *each) for each in gone)]


def changes(moved: "Iterable[Move]", there: "Mapping[str, Package]") -> "Changes":
    """Return package → version before and after; a new package has None before, a removed one None after."""
    found = {}
    for row in moved:
        name = named(row)
        before = there[name].version if name in there else None
        found[name] = (before, None if row.heading.startswith("Removing") else row.version)
    return found


def named(row: Move) -> str:
    """Return the name that `gpuprov_node.packages` gives the package: a kernel's has its release."""
    return f"{row.name}-{row.version}.{row.arch}" if SEVERAL.match(row.name) else row.name


def _simulated(command: Command, seconds: int, *options: str) -> str:
    """Run a transaction in dnf's shell with options under which nothing is installed; return its standard
    output; raises as `start`.
    """
    with _shell(command) as words:
        return start(seconds, *options, *words)


@contextlib.contextmanager
def _shell(command: Command) -> "Iterator[Sequence[str]]":
    """Yield the arguments of dnf that run a transaction in its shell."""
    with tempfile.NamedTemporaryFile("w", suffix=".dnf", dir=TEMPORARY) as script:
        script.write("".join(f"{line}\n" for line in command.lines))
        script.flush()
        yield [*command.options, "shell", script.name]


def _problem(said: str) -> str:
    """Return the first problem in a table with skipped packages on one line; empty without one."""
    found = re.search(r"(?m)^ ?Problem(?: 1)?: .*(?:\n  - .*)*", said)
    return " ".join(line.strip(" -") for line in found.group(0).splitlines()) if found else ""
