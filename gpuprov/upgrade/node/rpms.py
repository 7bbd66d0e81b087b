"""Packages of a node with dnf: what `packages`, `ahead` and `lastgood` do with apt and dpkg on others."""

import glob
import os
import re
import tempfile

import gpuprov_dnf as dnf
import gpuprov_versionlock as versionlock
from gpuprov_failures import Failed as DnfFailed
from gpuprov_locks import RUN_DNF
from gpuprov_node import RPM_FORM, RPM_KEY, SEVERAL
from gpuprov_replace import make_folders, replace
from gpuprov_repos import repositories

from gpuprov.probe.node.base import Failed, names_in, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any

    from gpuprov_dnf import Command
    from gpuprov_node import Changes

    Installed = dict[str, list[str]]

CACHES = "/var/cache/dnf/*/packages"
CACHE = re.compile(r".*/([^/]+)-[0-9a-f]{16}/packages/[^/]+")
"""Paths in dnf's cache, with the id of the repository."""
IDENTITY = "%{SHA256HEADER} %{SHA1HEADER} %{SIGMD5}\n"
"""Digests that rpm keeps of an installed package: of its header, which has those of its files, and of all."""
DNF_S, LOCK_S = 1800, 300
"""Time limits in seconds, of a call of dnf and of a wait for another one."""
TOOLS = ["dkms", "gcc", "gcc-c++", "make", "elfutils-libelf-devel"]
"""Packages that DKMS needs to build, with the one that has a kernel's headers."""


def installed() -> "Installed":
    """Return package → `[version, architecture]`, with names as in `gpuprov_node.packages`; Failed if rpm
    fails.
    """
    native, found = (os.uname().machine, "noarch"), {}
    for line in run("rpm", "-qa", "--qf", RPM_FORM).splitlines():
        name, version, arch = line.split("\t")
        if name == RPM_KEY:
            continue
        version = version[2:] if version.startswith("0:") else version
        if SEVERAL.match(name):
            name = f"{name}-{version.rpartition(':')[2]}.{arch}"
        elif arch not in native:
            name = f"{name}:{arch}"
        found[name] = [version, arch]
    return found


def file_name(name: str, version: str, arch: str) -> str:
    """Return the name of a package's file, which has no epoch."""
    if name.endswith("." + arch):  # a kernel's name has its release
        return name + ".rpm"
    return "{}-{}.{}.rpm".format(name.partition(":")[0], version.rpartition(":")[2], arch)


def cached() -> "dict[str, str]":
    """Return the names of the package files in dnf's cache → path."""
    return {name: os.path.join(folder, name) for folder in glob.glob(CACHES) for name in names_in(folder)}


def keep(versions: "Mapping[str, str]", pool: str) -> "list[str]":
    """Copy the files of installed packages into the pool, downloaded if necessary; return the names of the
    files.

    Args:
        versions: package → its installed version.

    Raises:
        Failed: a package is not installed in that version, or its file cannot be fetched.
    """
    there, files = installed(), {}
    for name, version in versions.items():
        if there.get(name, [""])[0] != version:
            raise Failed(f"{name} {version} is not installed")
        files[name] = file_name(name, version, there[name][1])
    wanted, known = _identities(files.values()), cached()

    def is_kept(file: str) -> bool:
        return is_whole(os.path.join(pool, file), wanted[file])

    for file in files.values():
        if not is_kept(file) and is_whole(known.get(file, ""), wanted[file]):
            _copy(known[file], os.path.join(pool, file))
    missing = [name for name, file in files.items() if not is_kept(file)]
    if missing:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(pool)) as folder:
            try:
                _download([_full(name, *there[name]) for name in missing], folder)
            except Failed as failed:
                raise Failed(f"no rollback possible: {failed}") from None
            for name in names_in(folder):
                os.rename(os.path.join(folder, name), os.path.join(pool, name))
    lost = [file for file in files.values() if not is_kept(file)]
    if lost:
        named = ", ".join(lost[:3])
        raise Failed(
            f"no rollback possible: dnf has downloaded no {named} with the digests of the installed one"
        )
    return list(files.values())


def _identities(files: "Iterable[str]") -> "dict[str, str]":
    """Return file of an installed package → its digests, as rpm's database has them.

    Raises:
        Failed: rpm does not have one of the packages.
    """
    listed = list(files)
    if not listed:
        return {}
    names = [file[: -len(".rpm")] for file in listed]
    found = run("rpm", "-q", "--qf", IDENTITY, *names, seconds=120).splitlines()
    if len(found) != len(listed):
        raise Failed(f"rpm has {len(found)} packages of {len(listed)}")
    return dict(zip(listed, found))


def is_whole(path: str, identity: str) -> bool:
    """Return whether a file is the package with these digests, and has the content for them (rpmkeys(8)).

    A signature is not enough, and not required: dnf downloads any package of that name and version from any
    repository, and installs a file without a check of its signature.
    """
    if not os.path.isfile(path) or run_anyway("rpm", "--checksig", path, seconds=120)[0] != 0:
        return False
    return run_anyway("rpm", "-qp", "--nosignature", "--qf", IDENTITY, path)[1].strip() == identity


def _copy(path: str, target: str) -> None:
    """Copy a file to another path, in one step."""
    with open(path, "rb") as stream:
        replace(target, iter(lambda: stream.read(1 << 20), b""), 0o644)


def _full(name: str, version: str, arch: str) -> str:
    """Return a package's name, version and architecture as dnf spells them."""
    return (
        file_name(name, "", arch)[:-4]
        if SEVERAL.match(name)
        else f"{name.partition(':')[0]}-{version}.{arch}"
    )


def _download(packages: "Sequence[str]", folder: str, *more: str) -> None:
    """Download package files into a folder, from any module stream; dnf checks their checksums only.

    Args:
        more: further options of dnf.

    Raises:
        Failed: one cannot be fetched.
    """
    options = ("--disableplugin=versionlock", "--setopt=*.module_hotfixes=1", "--destdir", folder)
    code, out, err = run_anyway(
        *RUN_DNF, "--quiet", "--assumeyes", "download", *options, *more, *packages, seconds=DNF_S
    )
    if code != 0:
        said = " ".join((err.strip() or out.strip()).split())[:300]
        rest = f" and {len(packages) - 3} more" if len(packages) > 3 else ""
        raise Failed(f"{', '.join(packages[:3])}{rest} cannot be fetched ({said})")


def prepare(
    wanted: "Mapping[str, str]",
    known: "Sequence[str]",
    sources: "Mapping[str, str]",
    streams: "Sequence[str]",
) -> "Changes":
    """Simulate an upgrade and download its packages; return package → version before and after, of those that
    change.

    Args:
        wanted: package → exact version.
        known: packages of the old lock; those that are not wanted are removed.
        sources: path → content of files with repositories that the node does not have yet; they are removed.
        streams: module streams of the new packages.

    Raises:
        Failed: something cannot be downloaded, or dnf would remove other packages.
    """
    there = installed()
    words = ["{}={}".format(*each) for each in sorted(wanted.items())]
    words += [name + "-" for name in known if name in there and name not in wanted]
    dnf.set_environment()
    try:
        for path, text in sources.items():
            make_folders(os.path.dirname(path))
            replace(path, text.encode(), 0o644)
        command = dnf.installation(words, LOCK_S, True, streams)
        changes = dnf.fetch_packages(command, set(known), DNF_S, LOCK_S)
        _drop_unchecked({name: now for name, (_, now) in changes.items() if now})
    except DnfFailed as failed:
        raise Failed(f"dnf: {failed}") from None
    finally:
        for path in sources:
            if os.path.lexists(path):
                os.unlink(path)
    return {name: each for name, each in changes.items() if each[0] != each[1]}


def unpack(name: str, version: str, folder: str) -> None:
    """Unpack the files of a package, which `prepare` has downloaded, into a folder.

    Raises:
        Failed: it is not there, or has an error.
    """
    known = cached()
    path = next((known[file] for file in _files(name, version) if file in known), None)
    if path is None:  # a repository on this node, whose packages dnf does not copy
        local = [each.id for each in repositories() if each.enabled and _is_local(each.urls)]
        if not local:
            raise Failed(f"dnf has downloaded no {name} {version} with a valid signature")
        _download([f"{name}-{version}"], folder, *map("--repo={}".format, local))
        path = next(os.path.join(folder, each) for each in names_in(folder) if each.endswith(".rpm"))
    run("sh", "-c", 'rpm2cpio "$1" | cpio --quiet -idm -D "$2"', "sh", path, folder, seconds=120)


def _files(name: str, version: str) -> "list[str]":
    """Return the possible names of a package's file: for this machine's architecture, and for all."""
    return [file_name(name, version, arch) for arch in (os.uname().machine, "noarch")]


def _drop_unchecked(versions: "Mapping[str, str]") -> None:
    """Remove files of packages from dnf's cache that have no valid signature though their repository requires
    one: dnf keeps those that it has refused, and of equal names it is not known which one it has taken.
    """
    unsigned = {each.id for each in repositories() if not each.checked}
    level = ("--define", "_pkgverify_level signature", "--define", "_pkgverify_flags 0x0")
    files = [file for name, version in versions.items() for file in _files(name, version)]
    for path in [path for file in files for path in glob.glob(os.path.join(CACHES, glob.escape(file)))]:
        found = CACHE.fullmatch(path)
        if found and found[1] in unsigned:
            continue
        if run_anyway("rpmkeys", *level, "--checksig", path, seconds=120)[0] != 0:
            os.unlink(path)


def _is_local(urls: "Sequence[str]") -> bool:
    """Return whether all URLs of a repository are folders of this node; False without any."""
    return bool(urls) and all(url.startswith("file:") for url in urls)


def have_compiler(kernels: "Iterable[str]") -> None:
    """Install what DKMS needs to build for these kernels, if it is missing.

    Raises:
        Failed: it cannot be installed, or other packages would be removed.
    """
    there = installed()
    missing = [name for name in [*TOOLS, *map(dnf.headers_package, kernels)] if name not in there]
    if missing:
        change(dnf.installation(missing, LOCK_S, True), [])


def complete() -> None:
    """Remove the older version of packages that a killed transaction left in two versions.

    Raises:
        Failed: rpm's database cannot be read, or rpm cannot remove one.
    """
    try:
        dnf.undouble()
    except DnfFailed as failed:
        raise Failed(str(failed)) from None


def back(
    known: "Mapping[str, Any]",
    names: "Collection[str]",
    modules: "Collection[str]",
    pool: str,
    is_intact: "Callable[[str], bool]",
) -> "list[str]":
    """Restore replaced packages and remove new ones in one transaction, then restore version locks.

    A package whose file in the pool is intact comes from there; if all do, no repository is needed.

    Args:
        known: the record.
        names: the packages that may be changed.
        modules: the modules whose streams are restored.
        pool: folder of the kept files.
        is_intact: whether a path in the pool has a file with the recorded checksum.

    Returns:
        The names of these packages.

    Raises:
        Failed: dnf fails, or would remove other packages.
    """
    before, now = known["packages"], installed()
    dnf.set_environment()
    changed = sorted(name for name in before if name in names and now.get(name) != before[name])
    gone = sorted(set(names) & set(now) - set(before))
    if changed or gone:
        kept = {name: os.path.join(pool, file_name(name, *before[name])) for name in changed}
        files = [path for path in kept.values() if is_intact(path)]
        words = [f"{name}={before[name][0]}" for name in changed if kept[name] not in files]
        words = [*words, *(name + "-" for name in gone)]
        offline = len(words) == len(gone)
        command = dnf.installation(words, LOCK_S, True, _streams(known.get("streams", []), modules))
        change(_with_files(command, files, offline), [*names, *changed])
    _lock(known["holds"], names)
    return changed + gone


def _streams(before: "Sequence[str]", modules: "Collection[str]") -> "list[str]":
    """Return the streams to enable, and `module:` for one of the modules that had none and has one now."""
    had = {stream.partition(":")[0] for stream in before}
    now = {stream.partition(":")[0] for stream in dnf.enabled_streams()}
    return [*before, *(f"{module}:" for module in sorted(now.intersection(modules) - had))]


def _with_files(command: "Command", files: "Sequence[str]", offline: bool) -> "Command":
    """Return a transaction that also installs package files; without repositories if it is `offline`; Failed
    if a file is not a package.
    """
    if not files:
        return command
    names = run("rpm", "-qp", "--nosignature", "--qf", "%{NAME}=%{EVR}\n", *files).split()
    *lines, last = command.lines
    options = [*command.options, *(["--cacheonly"] if offline else [])]
    lines += ["install " + " ".join(files), last]
    return command._replace(options=options, lines=lines, words=[*command.words, *names])


def change(command: "Command", own: "Collection[str]") -> None:
    """Run a transaction after its simulation and downloads.

    Raises:
        Failed: dnf fails, or would remove packages that are not in `own`.
    """
    try:
        dnf.fetch_packages(command, set(own), DNF_S)
        dnf.transact(command, [], set(own))
    except DnfFailed as failed:
        raise Failed(f"dnf: {failed}") from None


def _lock(wanted: "Sequence[str]", names: "Collection[str]") -> None:
    """Restore dnf's version locks in the plugin's file; a new lock of a package that is not in `names` stays;
    raises as `installed`.

    Comments stay. Nothing is written without the plugin.
    """
    path = versionlock.place()
    if path is None:
        return
    lines = (versionlock.text_of(path) or "").splitlines()
    now = installed()

    def is_new(line: str) -> bool:
        """Return whether a line locks one of the packages and was not recorded."""
        return line not in wanted and any(
            versionlock.is_locked(name, now[name][0], now[name][1], [line])
            or line.startswith(tuple(f"{name}-{digit}" for digit in "0123456789"))
            for name in names
            if name in now
        )

    kept = [line for line in lines if line.startswith("#") or not is_new(line.strip())]
    kept += [line for line in wanted if line not in kept]
    if kept != lines:
        replace(path, "".join(f"{line}\n" for line in kept).encode())


def offered(names: "Sequence[str]") -> "set[tuple[str, str]]":
    """Return name and version of packages in all repositories and streams, from dnf's cache; of a kernel with
    its release. Empty if dnf fails.
    """
    options = ("--quiet", "--cacheonly", "--setopt=*.module_hotfixes=1", "--disableplugin=versionlock")
    form = "%{name}|%{evr}|%{arch}"
    code, out, _ = run_anyway(*RUN_DNF, *options, "repoquery", "--qf", form, *names, seconds=25)
    found = set()
    for line in out.splitlines() if code == 0 else ():
        name, version, arch = line.split("|")
        version = version[2:] if version.startswith("0:") else version
        found.add((f"{name}-{version}.{arch}" if SEVERAL.match(name) else name, version))
    return found
