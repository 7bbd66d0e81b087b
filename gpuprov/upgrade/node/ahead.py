"""Preparation of an upgrade: download of packages, a trial build, and copies of what a rollback needs."""

import os
import re

from gpuprov_node import has_dpkg
from gpuprov_replace import replace

from gpuprov.apply.node import built
from gpuprov.probe.node.base import Failed, names_in, read_or_none, run, run_anyway
from gpuprov.upgrade.node import modules, packages, rpms
from gpuprov.upgrade.node.packages import APART, APT_S, ARCHIVES, HOME, apt, file_name, installed, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov_node import Changes

SOURCE = re.compile(r"(?<!no)-dkms|kernel-source")
"""Packages that may contain a module's source for DKMS; Ubuntu has it in separate kernel-source packages."""
TOOLS = ["build-essential", "dkms"]
"""Packages that DKMS needs to build."""
EXTRA_SOURCES = "/etc/apt/sources.list.d/gpuprov-upgrade.sources"
"""File of the given sources during the download."""


def fetch(
    run_id: str,
    wanted: "dict[str, str]",
    known: "list[str]",
    sources: "str | dict[str, str] | None",
    kernels: "list[str]",
    shares: bool,
    streams: "tuple[str, ...] | list[str]" = (),
) -> "dict[str, Any]":
    """Download what an upgrade and its rollback need. Installed packages are not changed.

    The kept files are listed in `RUN.kept.json`.

    Args:
        wanted: package → exact version.
        known: packages of the old lock; the upgrade removes those that are not wanted, and no others.
        sources: repositories that the node does not have yet, in apt's format, or path → content of dnf's
            files; they are removed at the end.
        kernels: kernels to try the new module's build for; `running` is the running one.
        shares: whether the build is for other nodes; then a compiler is installed if it is missing.
        streams: dnf's module streams of the new packages.

    Returns:
        `moves`, the number of packages that the upgrade changes, `kept`, the number of kept files, and
        `built`, the archives for other nodes.

    Raises:
        Failed: something cannot be downloaded, apt would remove other packages, or the module does not build.
    """
    packages.make_folders()
    if not has_dpkg():
        changes = rpms.prepare(wanted, known, sources if isinstance(sources, dict) else {}, streams)
        return _kept_and_built(run_id, changes, kernels, shares)
    try:
        if isinstance(sources, str):
            replace(EXTRA_SOURCES, sources.encode(), 0o644)
        apt("update", "--option=APT::Update::Error-Mode=any")
        there = {name.split(":")[0] for name in installed()}
        targets = ["{}={}".format(*each) for each in sorted(wanted.items())]
        # apt removes a held package only if the command names it.
        targets += [name + "-" for name in known if name in there and name not in wanted]
        changes = packages.simulated(targets, known)
        apt("install", "--download-only", *targets)
        return _kept_and_built(run_id, changes, kernels, shares)
    finally:
        if sources and os.path.lexists(EXTRA_SOURCES):
            os.unlink(EXTRA_SOURCES)


def _kept_and_built(run_id: str, changes: "Changes", kernels: "list[str]", shares: bool) -> "dict[str, Any]":
    """Keep what a rollback of the changes needs, write the list of it for the run, and build the module;
    return the result of `fetch`.

    Raises:
        Failed: the build, or a command of the package manager, fails.
    """
    kept = packages.keep({name: change[0] for name, change in changes.items() if change[0]})
    kept.update(modules.keep())
    coming = {name: now for name, (_, now) in changes.items() if now and SOURCE.search(name)}
    shared = _build_ahead(coming, kernels, shares)
    write(os.path.join(HOME, run_id + ".kept.json"), kept)
    return {"moves": len(changes), "kept": len(kept), "built": shared}


def _build_ahead(versions: "dict[str, str]", kernels: "list[str]", shares: bool) -> "list[dict[str, Any]]":
    """Build the module with DKMS in a temporary folder, so that a failure is known before the upgrade.

    The folder has the same path on every node: two builders must produce the same bytes, and a compiler may
    write paths into them. Nothing is built without kernels, or if no package with a module's source changes.

    Args:
        versions: package with a module's source → its new version.

    Returns:
        The archives for other nodes, one for each kernel, with it as `kernel`; empty unless `shares`.

    Raises:
        Failed: the module does not build, its package cannot be fetched, or a compiler cannot be installed.
    """
    shared = []  # type: list[dict[str, Any]]
    if not versions or not kernels:
        return shared
    if shares:
        _have_compiler(kernels)
    with packages.emptied(os.path.join(HOME, "ahead")) as folder:
        for name, version in versions.items():
            _unpack(name, version, folder)
        for source in names_in(os.path.join(folder, "usr/src")):
            if not os.path.isfile(os.path.join(folder, "usr/src", source, "dkms.conf")):
                continue
            for kernel in kernels:
                modules_folder = _build(folder, source, os.uname().release if kernel == "running" else kernel)
                if shares:
                    archive = built.packed(modules_folder, f"{source}-{kernel}")
                    shared.append(dict(archive, kernel=kernel))
    return shared


def _unpack(name: str, version: str, folder: str) -> None:
    """Unpack the files of a package into a folder.

    Raises:
        Failed: its file cannot be fetched, or has an error.
    """
    if not has_dpkg():
        rpms.unpack(name, version, folder)
        return
    architecture = run("dpkg", "--print-architecture").strip()
    names = [file_name(name, version, each) for each in (architecture, "all")]
    run("dpkg-deb", "--extract", _fetched(f"{name}={version}", names, folder), folder, seconds=120)


def _fetched(target: str, names: "list[str]", folder: str) -> str:
    """Return the path of a package's file: in apt's cache, otherwise downloaded to the folder.

    apt does not copy packages of `file:` repositories to its cache, and a node may have the cache elsewhere.

    Args:
        target: `NAME=VERSION`.
        names: possible names of the file.

    Raises:
        Failed: it cannot be fetched.
    """
    paths = [os.path.join(ARCHIVES, each) for each in names]
    if not any(map(os.path.isfile, paths)):
        packages.download([target], folder)
        paths = [os.path.join(folder, each) for each in names]
    found = next(filter(os.path.isfile, paths), None)
    if found is None:
        raise Failed("apt-get has downloaded {}, but not as {}".format(target, " or ".join(names)))
    return found


def _have_compiler(kernels: "list[str]") -> None:
    """Install what DKMS needs to build for these kernels, with their headers, if it is missing.

    Raises:
        Failed: it cannot be installed, or other packages would be removed.
    """
    if not has_dpkg():
        rpms.have_compiler(kernels)
        return
    there = {name.split(":")[0] for name in installed()}
    missing = [
        name for name in TOOLS + ["linux-headers-" + kernel for kernel in kernels] if name not in there
    ]
    if missing:
        packages.simulated(missing, [])
        apt("install", *missing)


def _build(folder: str, source: str, kernel: str) -> str:
    """Build a module with DKMS in the folder; return the folder with the result.

    Args:
        source: name of its folder in usr/src, `NAME-VERSION`.

    Raises:
        Failed: it does not build; with an error from its log.
    """
    module, _, version = source.rpartition("-")
    trees = ("--sourcetree", os.path.join(folder, "usr/src"), "--dkmstree", os.path.join(folder, "dkms"))
    os.makedirs(trees[-1], exist_ok=True)
    words = ("-m", module, "-v", version, "-k", kernel, *trees)
    code, out, err = run_anyway("nice", "dkms", "build", *words, seconds=APT_S, **APART)
    if code != 0:
        log = read_or_none(os.path.join(trees[-1], module, version, "build/make.log")) or err or out
        lines = [line for line in log.splitlines() if re.search(r"(?i)error|cannot|no such", line)]
        said = (lines or log.strip().splitlines() or ["no reason given"])[0].strip()[:300]
        raise Failed(f"{module} {version} does not build for kernel {kernel}: {said}")
    return os.path.join(trees[-1], module, version, kernel, os.uname().machine, "module")
