"""Packages of a node: the installed ones, and package files for a rollback."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile

import gpuprov_debconf as debconf
import gpuprov_dnf
import gpuprov_versionlock
from gpuprov_apt import NO_TERMINAL, SIGNED, changes, errors_of
from gpuprov_node import foreign_removals, has_dpkg
from gpuprov_own_tmp import with_own_tmp
from gpuprov_replace import replace

from gpuprov.probe.node.base import ENVIRONMENT, Failed, names_in, run, run_anyway
from gpuprov.upgrade.node import rpms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import IO, Any

    from gpuprov_node import Changes

    Installed = dict[str, list[str]]

HOME = "/var/lib/gpuprov/lastgood"
POOL = HOME + "/packages"
"""Files of replaced packages, for a rollback."""
ARCHIVES = "/var/cache/apt/archives"
APT = (
    *("apt-get", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades"),
    *("--allow-change-held-packages", "--option=DPkg::Lock::Timeout=300", "--option=Acquire::Retries=2"),
    *(NO_TERMINAL, SIGNED),
    *("--option=Dpkg::Options::=--force-confold", "--option=Dpkg::Options::=--force-confdef"),
)
"""apt-get with the options of every call."""
APT_S = 1800.0
"""Time limit in seconds: DKMS may build a module for several kernels on slow machines."""
ENVIRONMENT.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
APART = with_own_tmp(ENVIRONMENT)
"""Arguments of `run` for programs that change packages, modules or an initramfs."""


def installed() -> "Installed":
    """Return package as apt names it → `[version, architecture]`, including half-installed packages; Failed
    if the database cannot be read.

    On a node with dnf they are rpm's.
    """
    if not has_dpkg():
        return rpms.installed()
    text = run(
        "dpkg-query", "-W", "-f", "${binary:Package}\t${Version}\t${Architecture}\t${db:Status-Status}\n"
    )
    rows = [line.split("\t") for line in text.splitlines()]
    return {row[0]: row[1:3] for row in rows if row[3] not in ("config-files", "not-installed")}


def holds() -> "list[str]":
    """Return the held packages; on a node with dnf the patterns of its version locks; Failed if apt-mark
    fails.
    """
    return run("apt-mark", "showhold").split() if has_dpkg() else gpuprov_versionlock.locks()


def streams(modules: "Collection[str]") -> "list[str]":
    """Return the enabled streams of these modules of dnf; empty with apt."""
    found = [] if has_dpkg() else gpuprov_dnf.enabled_streams()
    return [stream for stream in found if stream.partition(":")[0] in modules]


def file_name(package: str, version: str, architecture: str) -> str:
    """Return the name that apt gives a package's file, with `%3a` for the colon of an epoch."""
    return "{}_{}_{}.deb".format(package.split(":")[0], version.replace(":", "%3a"), architecture)


def apt(*words: str) -> str:
    """Run apt-get without questions, for at most `APT_S`; return its output.

    Raises:
        Failed: it failed; with its error messages, cut to 600 characters.
    """
    only_reads = words[0] == "update" or {"--simulate", "--download-only"} & set(words)
    code, out, err = (run_anyway if only_reads else configuring)(*APT, *words, seconds=APT_S, **APART)
    if code != 0:
        said = errors_of(err + "\n" + out)
        raise Failed("apt-get: " + (said[:600] or f"exited with {code}"))
    return out


def configuring(*command: str, seconds: float, **more: "Any") -> "tuple[int, str, str]":
    """Run a program that runs scripts of Debian's packages, as `run_anyway` does, while no user can lock
    debconf's database; without room to close the database it is open.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(debconf.closed())
        settings = {name: os.environ[name] for name in (debconf.VARIABLE,) if name in os.environ}
        return run_anyway(*command, seconds=seconds, **{**more, "env": {**more["env"], **settings}})


def simulated(targets: "list[str]", own: "Iterable[str]") -> "Changes":
    """Return the changes of a transaction: package → version before and after, None for no version.

    Args:
        targets: `NAME=VERSION`, or `NAME-` to remove a package.
        own: packages that may be removed.

    Raises:
        Failed: it is impossible, or would remove a package that is not in `own`.
    """
    found = changes(apt("install", "--simulate", "--option=Debug::NoLocking=true", *targets))
    foreign = foreign_removals(found, {name.split(":")[0] for name in own})
    if foreign:
        raise Failed("apt would remove {}".format(", ".join(foreign)))
    return found


def keep(versions: "dict[str, str]") -> "dict[str, str]":
    """Keep the files of installed packages in the pool, downloaded if necessary; return file → SHA-256.

    Args:
        versions: package → its installed version.

    Raises:
        Failed: a package is not installed, or its file cannot be fetched; or apt does not know its checksum,
            as it cannot read its indexes.
    """
    if not has_dpkg():
        return {file: digest(os.path.join(POOL, file)) for file in rpms.keep(versions, POOL)}
    there = installed()
    names = {name: name if name in there else _qualified(name, there) for name in versions}
    files = {name: file_name(name, versions[name], there[names[name]][1]) for name in versions}
    known = _published(sorted(versions))
    kept, missing = {}, []
    for name, file in sorted(files.items()):
        wanted = known.get((name.split(":")[0], versions[name]))
        sum_ = _from_pool(file, wanted)
        if sum_ is None:
            missing.append(f"{name}={versions[name]}")
        else:
            kept[file] = sum_
    if missing:
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            try:
                download(missing, folder)
            except Failed as failed:
                raise Failed(f"no rollback possible: {failed}") from None
            for name in names_in(folder):
                os.rename(os.path.join(folder, name), os.path.join(POOL, name))
        kept.update({file: digest(os.path.join(POOL, file)) for file in files.values() if file not in kept})
    return kept


def _qualified(name: str, there: "Installed") -> str:
    """Return the name with the architecture that dpkg adds for packages of several architectures.

    Of several installed architectures the first counts.

    Raises:
        Failed: it is not installed.
    """
    found = [each for each in there if each.split(":")[0] == name.split(":")[0]]
    if not found:
        raise Failed(f"{name} is not installed")
    return found[0]


def _from_pool(file: str, wanted: "str | None") -> "str | None":
    """Return the checksum of an intact file in the pool or in apt's cache, or None.

    A file is intact if it has the repository's checksum `wanted`, or is readable if no repository has the
    package. One in the cache is copied to the pool.
    """
    for folder in (POOL, ARCHIVES):
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            continue
        sum_ = digest(path)
        whole = sum_ == wanted if wanted else run_anyway("dpkg-deb", "--contents", path, seconds=120)[0] == 0
        if whole:
            if folder != POOL:
                with open(path, "rb") as stream:
                    replace(os.path.join(POOL, file), iter(lambda: stream.read(1 << 20), b""), 0o644)
            return sum_
    return None


def download(targets: "list[str]", folder: str) -> None:
    """Download package files into a folder; apt checks their checksums.

    Args:
        targets: `NAME=VERSION` of each.

    Raises:
        Failed: one cannot be fetched.
    """
    inside = ("sh", "-c", 'cd "$0" && exec "$@"', folder)
    download = ("apt-get", "--quiet", SIGNED, "download", *targets)
    code, _, err = run_anyway(*inside, *download, seconds=APT_S, **APART)
    if code != 0:
        said = "; ".join(line for line in err.splitlines() if line.startswith("E: "))
        rest = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
        raise Failed(f"{', '.join(targets[:3])}{rest} cannot be fetched ({said[:300]})")


def _published(names: "list[str]") -> "dict[tuple[str, str], str]":
    """Return (package, version) → SHA-256 from the repositories' indexes, for those versions that have it; {}
    without names.

    Unknown packages are left out.

    Raises:
        Failed: apt cannot read the indexes.
    """
    if not names:
        return {}
    code, text, said = run_anyway("apt-cache", "show", *names, seconds=60, **APART)
    if code != 0 and "E: No packages found" not in said:
        raise Failed(f"apt-cache: {errors_of(said) or code}")
    found = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|SHA256): (\S+)$", stanza))
        if len(fields) == 3:
            found[fields["Package"], fields["Version"]] = fields["SHA256"]
    return found


@contextlib.contextmanager
def emptied(folder: str) -> "Iterator[str]":
    """Create an empty folder, in place of one that an interrupted run left, and remove it at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digest(path: str) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return digest_of(file)


def digest_of(file: "IO[bytes]") -> str:
    """Return the SHA-256 of the content of an open file in hexadecimal."""
    sum_ = hashlib.sha256()
    for chunk in iter(lambda: file.read(1 << 20), b""):
        sum_.update(chunk)
    return sum_.hexdigest()


def kept_sums() -> "dict[str, str]":
    """Return file in the pool → SHA-256, of all files that runs kept."""
    found = {}  # type: dict[str, str]
    for name in names_in(HOME):
        if name.endswith(".kept.json"):
            found.update(read_document(name) or {})
    return found


def read_document(name: str) -> "Any":
    """Return a JSON document in `HOME`, by its name; None if it is missing or incomplete."""
    try:
        with open(os.path.join(HOME, name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def make_folders() -> None:
    """Create the folders of records and of package files. Only root may open them: a record contains managed
    files, also those that others may not read.
    """
    for folder in (HOME, POOL):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)


def write(path: str, document: "Any") -> None:
    """Replace a file by a JSON document that only root may read, atomically, and sync it to the disk."""
    replace(path, json.dumps(document).encode(), 0o600)
