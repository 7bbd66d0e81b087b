# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt-get as scripts on a node use it, and what people read when it fails.

Runs there: Python 3.6 to 3.13 and its standard library.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import gpuprov_initramfs as initramfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    Changes = Mapping[str, "tuple[str | None, str | None]"]

TIMED_OUT = 124  # timeout(1), "EXIT STATUS"
PAUSE = 5  # seconds between two tries to read the lists
LONGEST = 300  # letters of apt's own words in a sentence


class Cause(NamedTuple):
    """Why apt failed: what its words look like, what that means, and what to do."""

    match: str
    says: str
    do: str


PINNING = re.compile("nvidia-driver-pinning-|cuda-repository-pin")
"""Packages whose configuration decides, after they are removed, which version of others comes."""
PURGED = re.compile(PINNING.pattern + "|containerd$")
"""Packages whose configuration goes when they go: pinning ones, and containerd, whose file has to come anew
with the package. No other package is ever purged: a purge may take data along, as that of docker.io does."""
TAKES_DATA = re.compile(r"\brm\b.* -\w*[rR]|-delete\b|nuke|\b(?:del|)user(?:del|)\b")
"""How the script of a purged package looks that takes more along than its configuration."""

CAUSES = (
    Cause(
        "apt would remove",
        "that would remove packages that are not its own",
        "remove them yourself if nothing needs them, or change the lock so that they can stay",
    ),
    Cause(
        "Packages were downgraded|allow-downgrades",
        "that would downgrade packages",
        "lock a newer version, or apply with --allow-downgrade",
    ),
    Cause(
        "Unable to locate package linux-|for 'linux-|No package matching 'linux-",
        "the package repository has no headers of the target kernel",
        "install and boot a kernel whose headers are there, or name one as nvidia_driver_target_kernel",
    ),
    Cause(
        "Signed-By|Conflicting values",
        "another file on the node names the same repository with another key or option",
        "remove that entry below /etc/apt/sources.list.d and try again",
    ),
    Cause(
        "NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|REVKEYSIG|BADSIG|is not signed|Missing key|not signed by",
        "the signature of the package repository does not hold",
        "ask its owner whether the key was rotated, name the new key file in fleet.yml and lock again",
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
        "name a mirror that has it below /etc/apt on the node, and try again",
    ),
    Cause(
        "Version .* was not found|Unable to locate package|no installation candidate|404 +Not Found"
        "|does not have a Release file",
        "the package repository does not have what the lock names",
        "lock again against the repository as it is today, or use a mirror that keeps old versions",
    ),
    Cause(
        "fetching took longer than",
        "the package repository is too slow",
        "try again when it is not, or use a mirror nearer by",
    ),
    Cause(
        "Could not connect|Could not resolve|Temporary failure|[Cc]onnection (failed|timed out|refused)"
        "|Unable to connect|Unable to fetch|Failed to fetch",
        "the package repository does not answer as it should",
        "see that the node reaches it (proxy, firewall, the mirror itself) and try again",
    ),
    Cause(
        "pkgProblemResolver|held broken packages|unmet dependencies|Unable to correct problems",
        "the packages do not fit together with others that are installed or held",
        "try `apt-get --simulate install` of them on the node, which names the others",
    ),
    Cause(
        "[Cc]ould not get lock|Unable to lock|Unable to acquire",
        "another apt or dpkg did not finish in time",
        "wait for it and try again",
    ),
)


class Failed(Exception):
    """A program failed; the text is what it said of it."""

    def __init__(self, said: str, status: int = 1, stderr: str = "") -> None:
        super().__init__(said)
        self.status, self.stderr = status, stderr


def failure(what: str, error: Failed) -> "dict[str, str | None]":
    """The sentence for people: `what` could not be, why, and what to do."""
    said = str(error)
    for cause in CAUSES:
        if re.search(cause.match, said):
            return {"says": f"{what}: {cause.says} ({_shortened(said)})", "do": cause.do}
    return {"says": f"{what}: {said}", "do": None}


def _shortened(said: str) -> str:
    """The first words of a text."""
    return said if len(said) <= LONGEST else said[: LONGEST - 3].rpartition(" ")[0] + "..."


def quietly() -> None:
    """Have apt and dpkg ask no one, restart no services that run jobs, and speak words that we know."""
    os.environ.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1", LC_ALL="C.UTF-8")


def call(*command: str) -> None:
    """Run a command without anybody to ask.

    Raises:
        Failed: it ended with an error.
    """
    with tempfile.TemporaryFile() as errors:
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stderr=errors)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    sys.stderr.write(said)
    if status:
        raise Failed(_errors(said) or f"{command[0]} exited with {status}", status, said)


def _errors(said: str) -> str:
    """What apt and dpkg say of errors, each once."""
    lines = [line for line in said.splitlines() if re.match("(E|W|Err|dpkg): ?", line)]
    return " ".join(dict.fromkeys(re.sub("^(E|W|Err): ?", "", line) for line in lines))


def fetch(seconds: int, *words: str) -> None:
    """An apt-get that only fetches, which may be ended at any time.

    apt itself gives up on a mirror that is silent, not on one that drips.

    Raises:
        Failed: something could not be had in time.
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
    """Read the lists of packages; apt does not wait for their lock by itself.

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


def fetch_packages(command: "Sequence[str]", own: "Collection[str]", seconds: int) -> None:
    """Have everything there that a transaction needs; nothing is installed.

    Args:
        command: what apt-get is told: options, `install`, and `name`, `name=version` or `name-`.
        own: names of packages that may go.

    Raises:
        Failed: packages cannot be had or do not fit together, or apt would remove what is not of `own`.
    """
    if not any(word.endswith("-") for word in command):
        # apt refuses by itself, and need not resolve everything twice.
        try:
            fetch(seconds, "--download-only", "--no-remove", *command)
        except Failed as error:
            if "remove is disabled" not in str(error):
                raise
        else:
            return
    refuse_removals(command, own)
    fetch(seconds, "--download-only", *command)


def transact(command: "Sequence[str]", residue: "Iterable[str]") -> None:
    """Install, replace and remove packages in one transaction, and make one new initramfs where they want it.

    Args:
        command: as for `fetch_packages`.
        residue: packages with only their configuration left, and must not stay.

    Raises:
        Failed: apt or dpkg did.
    """
    going = [word[:-1] for word in command if word.endswith("-")]
    # Before the transaction: dpkg would take a new pinning package's file along with the old one's.
    purge([*residue, *(name for name in going if PINNING.match(name))])
    try:
        with initramfs.put_off() as option:
            call("apt-get", "--quiet", option, *command)
    except Failed:
        with contextlib.suppress(Failed):
            settle()
        raise
    settle()


def settle() -> None:
    """Make the initramfs that scripts of packages have asked for.

    Raises:
        Failed: it cannot be made.
    """
    if initramfs.owed():
        call(initramfs.PROGRAM, "-u")
        initramfs.made()


def alike(lock_seconds: int) -> "list[str]":
    """What is alike of everything that installs: no one is asked, and files that people changed stay."""
    return [
        "--yes",
        "--no-install-recommends",
        "--allow-change-held-packages",
        f"--option=DPkg::Lock::Timeout={lock_seconds}",
        "--option=Dpkg::Options::=--force-confdef",
        "--option=Dpkg::Options::=--force-confold",
    ]


def refuse_removals(command: "Sequence[str]", own: "Collection[str]") -> None:
    """Try a transaction without doing it.

    Raises:
        Failed: it cannot be, or apt would remove what is not of `own`; has the names.
    """
    foreign = removed_beside(changes(simulated(command)), own)
    if foreign:
        raise Failed(f"apt would remove {', '.join(foreign)}")


def simulated(command: "Sequence[str]") -> str:
    """What apt-get says that it would do.

    Raises:
        Failed: it cannot be done.
    """
    words = ["apt-get", "--quiet", "--simulate", "--option=Debug::NoLocking=true", *command]
    done = subprocess.run(  # noqa: UP022 - Python 3.6
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        raise Failed(_errors(said) or f"apt-get exited with {done.returncode}", done.returncode, said)
    return done.stdout.decode(errors="replace")


def changes(simulated: str) -> "Changes":
    """Package → version before and after, of what apt-get --simulate prints.

    Lines as `Inst libcuda1 [535.1] (535.2 Debian:12/stable [amd64])`, `Remv libcuda1 [535.1]`.
    """
    found = re.findall(r"(?m)^(Inst|Remv|Purg) (\S+)(?: \[([^\]]+)\])?(?: \((\S+))?", simulated)
    return {name: (was or None, now or None if verb == "Inst" else None) for verb, name, was, now in found}


def removed_beside(moved: "Changes", own: "Collection[str]") -> "list[str]":
    """Packages that go and are not of `own`."""
    gone = (name for name, (_before, now) in moved.items() if now is None)
    return sorted(name for name in gone if name.partition(":")[0] not in own and name not in own)


def purge(names: "Iterable[str]") -> None:
    """Take packages with their configuration away, as far as that takes nothing else along.

    Raises:
        Failed: dpkg did.
    """
    harmless = sorted(name for name in names if not takes_data(name))
    if harmless:
        # What depends on a pinning package is replaced in a moment.
        call("dpkg", "--purge", "--force-depends", "--force-hold", *harmless)


def purged(name: str) -> bool:
    """Whether a package's configuration goes when the package goes."""
    return PURGED.match(name) is not None and not takes_data(name)


def takes_data(name: str) -> bool:
    """Whether a package's own script takes more along than configuration when it is purged."""
    try:
        with open(f"/var/lib/dpkg/info/{name}.postrm", errors="replace") as script:
            return TAKES_DATA.search(script.read()) is not None
    except FileNotFoundError:
        return False
