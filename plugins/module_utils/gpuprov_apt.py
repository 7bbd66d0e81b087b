# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt-get for scripts on a node, and messages for its failures.

Runs on nodes: Python 3.6 to 3.13 and its standard library.
"""

import contextlib
import os
import re
import subprocess
import sys
import time

import gpuprov_debconf as debconf
import gpuprov_initramfs as initramfs
from gpuprov_failures import Cause, Failed, explained
from gpuprov_node import foreign_removals, require_words, run
from gpuprov_own_tmp import with_own_tmp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpuprov_node import Changes

TIMED_OUT = 124  # timeout(1), "EXIT STATUS"
PAUSE = 5  # seconds between two tries to read the lists
NAME = "apt"
"""Its name in messages."""

NO_TERMINAL = "--option=Dpkg::Use-Pty=0"
"""apt-get's option that keeps dpkg's errors in its standard error, also where there are pseudo-terminals."""
SIGNED = "--option=APT::Get::AllowUnauthenticated=false"
"""apt-get's option that refuses packages of an unsigned source, also if apt.conf permits them. A source can
state `trusted=yes`.
"""
PINNING = re.compile("nvidia-driver-pinning-|cuda-repository-pin")
"""Packages whose configuration selects the version of other packages, even after they are removed."""
PURGED = re.compile(PINNING.pattern + r"|containerd\Z")
"""Packages that are removed with their configuration: pinning packages, and containerd, whose configuration
file must be installed again with the package. No other package is ever purged: a purge may delete data, as
that of docker.io does."""
TAKES_DATA = re.compile(r"\brm\b.* -\w*[rR]|-delete\b|nuke|\b(?:del|)user(?:del|)\b")
"""Commands in a package's postrm script that delete more than its configuration."""

CAUSES = (
    Cause(
        "apt would remove",
        "other packages would be removed as well",
        "remove them yourself if nothing needs them, or change the lock so that they can stay",
    ),
    Cause(
        "Packages were downgraded|allow-downgrades",
        "that would downgrade packages",
        "lock a newer version, or run `gpuprov apply --allow-downgrade`",
    ),
    Cause(
        "Unable to locate package linux-|for 'linux-|No package matching 'linux-",
        "the package repository has no headers for the target kernel",
        "install and boot a kernel whose headers it has, or state such a kernel: settings.kernel of fleet.yml"
        " (without gpuprov, the variable nvidia_driver_target_kernel)",
    ),
    Cause(
        "Signed-By|Conflicting values",
        "another file on the node names the same repository with another key or option",
        "remove that entry below /etc/apt/sources.list.d on the node and try again",
    ),
    Cause(
        "NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|REVKEYSIG|BADSIG|is not signed|Missing key|not signed by",
        "the signature of the package repository is not valid",
        "ask its owner whether the key was rotated, state the new key file in fleet.yml and lock again",
    ),
    Cause(
        "Hash Sum mismatch|unexpected size|Mirror sync in progress|Release file .* not valid yet|is expired"
        "|is not valid yet",
        "the package repository is half synced or stale",
        "try again in a few minutes, or sync the mirror",
    ),
    Cause(
        "'?(build-essential|dkms|gcc|make|tcc|dpkg-dev|initramfs-tools)'? has no installation candidate"
        "|Unable to locate package (build-essential|dkms|gcc|make|tcc|dpkg-dev|initramfs-tools)\\b",
        "the node's own sources do not have a package of the distribution",
        "add a mirror that has it to /etc/apt/sources.list.d on the node and try again",
    ),
    Cause(
        "Version .* was not found|Unable to locate package|no installation candidate|404 +Not Found"
        "|does not have a Release file",
        "the package repository does not have what the lock names",
        "lock again with the repository's present content, or use a mirror that keeps old versions",
    ),
    Cause(
        "fetching took longer than",
        "the package repository is too slow",
        "try again later, or use a nearer mirror",
    ),
    Cause(
        "Could not connect|Could not resolve|Temporary failure|[Cc]onnection (failed|timed out|refused)"
        "|Unable to connect|Unable to fetch|Failed to fetch",
        "the package repository does not answer as it should",
        "check that the node reaches it (proxy, firewall, the mirror itself) and try again",
    ),
    Cause(
        "pkgProblemResolver|held broken packages|unmet dependencies|Unable to correct problems",
        "the packages conflict with others that are installed or held",
        "run `apt-get --simulate install` with these packages on the node: its output names the others",
    ),
    Cause(
        "[Cc]ould not get lock|Unable to lock|Unable to acquire",
        "another apt or dpkg did not finish in time",
        "wait for it and try again",
    ),
)
"""Causes in order: the first whose pattern is found in the output explains a failure."""


def failure(what: str, error: Failed) -> "dict[str, str | None]":
    """Return the message for the user, with a cause of `CAUSES`, see `explained`."""
    return explained(what, error, CAUSES)


def set_environment() -> None:
    """Set the environment of apt and dpkg: no questions, no restarts of services, messages in English."""
    os.environ.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1", LC_ALL="C.UTF-8")


def call(*command: str) -> None:
    """Run a command without input and with own temporary folders; its standard error is copied to this
    process's own.

    Raises:
        Failed: its exit status is not 0; the text has the errors and warnings that it printed.
    """
    # Not a pipe, which a daemon that a script starts would keep open. In a full folder scripts would fail.
    with open(os.memfd_create("errors"), "w+b") as errors:
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stderr=errors, **with_own_tmp())
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    sys.stderr.write(said)
    if status:
        raise Failed(errors_of(said) or f"{command[0]} exited with {status}", status, said)


def errors_of(said: str) -> str:
    """Return the errors and warnings in the output of apt and dpkg on one line, each once.

    dpkg writes its reason on the indented lines after `dpkg: error processing` and `dpkg: dependency
    problems`, DKMS in scripts of packages after `Error!`. Empty without any.
    """
    reasoned = r"dpkg: (?:error processing|dependency problems).*(?:\r?\n .*)+"
    lines = re.findall(rf"(?m)^(?:{reasoned}|(?:E|W|Err|Error|dpkg):.*|Error! .*)", said)
    return " ".join(dict.fromkeys(" ".join(re.sub("^(E|W|Err): ?", "", line).split()) for line in lines))


def rejects_sources() -> bool:
    """Return whether apt rejects its lists of sources as a whole, as where two contradict each other.

    It then reads none, and offers nothing to install, until a role writes the lock's sources.
    """
    status, said = run("sh", "-c", "exec 2>&1; exec apt-get indextargets --no-release-info")
    return status != 0 and "E: The list of sources could not be read." in said.splitlines()


def fetch(seconds: int, *words: str) -> None:
    """Run an apt-get that only downloads and can be killed at any time, with a time limit.

    apt itself gives up on a mirror that sends nothing, but not on one that sends slowly.

    Args:
        seconds: the time limit.
        words: further arguments of apt-get.

    Raises:
        Failed: a download failed, or exceeded the limit.
    """
    patience = ["--option=Acquire::Retries=2"]
    patience += [f"--option=Acquire::{scheme}::Timeout=30" for scheme in ("http", "https")]
    try:
        call("timeout", str(seconds), "apt-get", "--quiet", *patience, *words)
    except Failed as error:
        if error.status != TIMED_OUT:
            raise
        raise Failed(f"fetching took longer than {seconds} s ({error})", TIMED_OUT) from None


def read_lists(fetch_seconds: int, lock_seconds: int, *words: str) -> None:
    """Update the package lists; wait for their lock, which apt itself does not do.

    Args:
        fetch_seconds: time limit of one update.
        lock_seconds: time limit of the wait for the lock.
        words: further arguments of apt-get.

    Raises:
        Failed: a repository does not answer, or another apt did not end in time.
    """
    last = time.monotonic() + lock_seconds
    while True:
        try:
            return fetch(fetch_seconds, *words, "update")
        except Failed as error:
            if not re.search("Could not get lock|Unable to lock", str(error)) or time.monotonic() > last:
                raise
        time.sleep(PAUSE)


def only(sources: str) -> "list[str]":
    """Return options for `read_lists` with which only the sources of one file are read.

    Errors in other sources do not count then, and their lists stay as they are.
    """
    return [
        "--error-on=any",
        "--option=Acquire::AllowInsecureRepositories=false",
        "--option=Acquire::AllowDowngradeToInsecureRepositories=false",
        f"--option=Dir::Etc::SourceList={sources}",
        "--option=Dir::Etc::SourceParts=-",
        "--option=APT::Get::List-Cleanup=false",
    ]


def fetch_packages(
    command: "Sequence[str]", own: "Collection[str]", seconds: int, lock_seconds: "int | None" = None
) -> None:
    """Download all packages of a transaction; nothing is installed.

    Args:
        command: arguments of apt-get: options, `install`, and `name`, `name=version` or `name-`.
        own: names of packages that may be removed.
        seconds: time limit of each step.
        lock_seconds: update the package lists first, as `read_lists`; None does not.

    Raises:
        Failed: packages cannot be downloaded or conflict, or apt would remove a package that is not in `own`.
    """
    if lock_seconds is not None:
        read_lists(seconds, lock_seconds)
    _resolve(command, own, lambda *words: fetch(seconds, "--download-only", *words))


def transact(command: "Sequence[str]", residue: "Iterable[str]", own: "Collection[str]" = ()) -> None:
    """Install, replace and remove packages in one transaction, and make one new initramfs if they request it.

    What it removes is checked again: apt-daily.timer can have replaced the lists since the download. Pinning
    packages to remove, and the packages of `residue`, are purged first.

    Args:
        command: as for `fetch_packages`.
        residue: removed packages whose configuration is left and must be purged.
        own: names of packages that may be removed.

    Raises:
        Failed: apt would remove a package that is not in `own`; or apt or dpkg failed: the initramfs is made
            all the same if possible.
    """
    first = [*residue, *(word[:-1] for word in command if PINNING.match(word) and word.endswith("-"))]
    if first:
        refuse_removals(command, own)
        purge(first)  # after the transaction it would also delete the file of the new pinning package
    try:
        with debconf.closed(), initramfs.postponed() as option:
            _resolve(command, own, lambda *words: call("apt-get", "--quiet", option, *words))
    except Failed:
        with contextlib.suppress(Failed):
            make_requested_initramfs()
        raise
    make_requested_initramfs()


def enabled_streams() -> "list[str]":
    """Return []: apt has no module streams."""
    return []


def headers_package(kernel: str) -> str:
    """Return the name of the package with a kernel's headers."""
    return "linux-headers-" + kernel


def hold(names: "Iterable[str]") -> None:
    """Hold packages at their versions; without names, apt-mark is not run.

    Raises:
        Failed: apt-mark failed.
    """
    names = list(names)
    if names:
        call("apt-mark", "hold", *names)


def make_requested_initramfs() -> None:
    """Make the initramfs that package scripts have requested; do nothing without a request.

    Raises:
        Failed: it cannot be made.
    """
    if initramfs.is_requested():
        call(initramfs.PROGRAM, "-u")
        initramfs.clear_request()


def common_options(lock_seconds: int) -> "list[str]":
    """Return apt-get's options for every installation: no questions, and files that users changed stay.

    Args:
        lock_seconds: time for which apt waits for dpkg's lock.
    """
    return [
        "--yes",
        "--no-install-recommends",
        "--allow-change-held-packages",
        f"--option=DPkg::Lock::Timeout={lock_seconds}",
        NO_TERMINAL,
        SIGNED,
        "--option=Dpkg::Options::=--force-confdef",
        "--option=Dpkg::Options::=--force-confold",
    ]


def installation(
    words: "Iterable[str]", lock_seconds: int, allow_downgrade: bool, streams: "Collection[str]" = ()
) -> "list[str]":
    """Return the arguments of apt-get for one transaction.

    Args:
        words: `name`, `name=version`, or `name-` for a package to remove.
        lock_seconds: as for `common_options`.
        allow_downgrade: whether a package may be downgraded.
        streams: ignored; apt has no module streams.

    Raises:
        Failed: as `require_words`.
    """
    downgrades = f"--option=APT::Get::allow-downgrades={str(allow_downgrade).lower()}"
    return [*common_options(lock_seconds), downgrades, "install", *require_words(words)]


def _resolve(command: "Sequence[str]", own: "Collection[str]", run: "Callable[..., None]") -> None:
    """Run a transaction that removes only packages in `own`.

    If it removes none, apt itself refuses removals, and the transaction is resolved only once; otherwise it
    is simulated before.

    Args:
        run: runs apt-get with the words of the command.

    Raises:
        Failed: as `refuse_removals`, and as `run`.
    """
    if not any(word.endswith("-") for word in command):
        try:
            run("--no-remove", *command)
        except Failed as error:
            if "remove is disabled" not in str(error):
                raise
        else:
            return
    refuse_removals(command, own)
    run(*command)


def refuse_removals(command: "Sequence[str]", own: "Collection[str]") -> None:
    """Simulate a transaction, and check what it removes; nothing is changed.

    Raises:
        Failed: it is not possible, or apt would remove packages that are not in `own`; the text names them.
    """
    foreign = foreign_removals(changes(simulated(command)), own)
    if foreign:
        raise Failed(f"apt would remove {', '.join(foreign)}")


def simulated(command: "Sequence[str]") -> str:
    """Return the output of apt-get --simulate with these arguments; nothing is changed.

    Raises:
        Failed: the transaction is not possible.
    """
    words = ["apt-get", "--quiet", "--simulate", "--option=Debug::NoLocking=true", *command]
    done = subprocess.run(  # noqa: UP022 - Python 3.6
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        **with_own_tmp(),
    )
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        raise Failed(errors_of(said) or f"apt-get exited with {done.returncode}", done.returncode, said)
    return done.stdout.decode(errors="replace")


def changes(simulated: str) -> "Changes":
    """Return package → version before and after, from the output of apt-get --simulate.

    A new package has None before, a removed one None after. Lines are `Inst libcuda1 [535.1] (535.2
    Debian:12/stable [amd64])`, `Remv libcuda1 [535.1]`; others are ignored.
    """
    found = re.findall(r"(?m)^(Inst|Remv|Purg) (\S+)(?: \[([^\]]+)\])?(?: \((\S+))?", simulated)
    return {name: (was or None, now or None if verb == "Inst" else None) for verb, name, was, now in found}


def purge(names: "Iterable[str]") -> None:
    """Purge packages, also held ones, except those whose scripts would delete more than configuration.

    Without any package left, dpkg is not run.

    Raises:
        Failed: dpkg failed.
    """
    harmless = sorted(name for name in names if not purge_deletes_data(name))
    if harmless:
        # The transaction that follows replaces the packages that depend on a pinning package.
        with debconf.closed():
            call("dpkg", "--purge", "--force-depends", "--force-hold", *harmless)


def is_to_be_purged(name: str) -> bool:
    """Return whether a package is to be removed with its configuration, by `PURGED` and its postrm script."""
    return PURGED.match(name) is not None and not purge_deletes_data(name)


def purge_deletes_data(name: str) -> bool:
    """Return whether a purge of a package deletes more than its configuration, by its postrm script.

    False if it has no such script.
    """
    try:
        with open(f"/var/lib/dpkg/info/{name}.postrm", errors="replace") as script:
            return TAKES_DATA.search(script.read()) is not None
    except FileNotFoundError:
        return False
