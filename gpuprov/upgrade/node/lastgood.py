"""The last good set of a node: recorded before an upgrade, restored by a rollback.

Every run has a record, `RUN.json`, with `RUN.kept.json` (files of replaced packages and of modules, with
their checksums) and `RUN.after.json` (the packages installed after the change). `RUN.json` is written once,
so that a resumed run cannot record a half-changed node as good.
"""

import os
import time

import gpuprov_initramfs as initramfs
from gpuprov_node import has_dpkg

from gpuprov.probe.node.base import Failed, names_in, run
from gpuprov.probe.node.system import lock_holder
from gpuprov.upgrade.node import files, modules, rpms
from gpuprov.upgrade.node.modules import MODULE_S
from gpuprov.upgrade.node.packages import (
    APART,
    HOME,
    POOL,
    apt,
    configuring,
    digest,
    file_name,
    holds,
    installed,
    kept_sums,
    make_folders,
    read_document,
    simulated,
    streams,
    write,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

RUNS_KEPT = 3
"""Number of records that are kept."""
PATIENCE_S = 600.0
"""Seconds to wait for another package manager."""
ENTRY_HOOK = "/etc/kernel/install.d/95-gpuprov.install"
"""gpuprov's choice of the next kernel on a node with boot entries."""
GRUB_CONFIG = "/boot/grub/grub.cfg"


def record(run_id: str, lock: str, managed: "dict[str, Any]") -> "Record":
    """Record the node's state, unless this run already did; return the record.

    It contains packages with their versions, holds, managed files, units, and the modules that DKMS has
    installed. The files of packages and the archives of modules are copied by `packages.keep` and
    `modules.keep`. A new record removes all but the last `RUNS_KEPT`, and the package files that only they
    need.

    Args:
        lock: text of the lock that the node has now.
        managed: patterns of `files`, `excepted`, and names of `units` and of `dnf_modules`.

    Raises:
        Failed: a managed file is too large, or a command fails.
    """
    make_folders()
    known = read_document(run_id + ".json")  # type: Record | None
    if known is not None:
        return known
    fresh = {
        "schema": "gpuprov.lastgood/1",
        "run": run_id,
        "at": time.time(),
        "lock": lock,
        "packages": installed(),
        "holds": holds(),
        "streams": streams(managed["dnf_modules"]),
        "files": files.files(managed["files"], managed["excepted"]),
        "units": files.units(managed["units"]),
        "modules": modules.modules(),
    }
    write(os.path.join(HOME, run_id + ".json"), fresh)
    _forget_old()
    return fresh


def record_after(run_id: str) -> None:
    """Record the packages that are installed after the run's change; they show a rollback what to replace;
    raises as `installed`.

    Each call replaces the run's earlier list.
    """
    write(os.path.join(HOME, run_id + ".after.json"), installed())


def restore(run_id: str, spare: "Record | None", managed: "dict[str, Any]") -> "dict[str, Any]":
    """Restore the state of the node that the run recorded; return the changed packages, files and units.

    These are managed files, packages, holds, units and modules of DKMS, in this order; then the initramfs and
    GRUB's configuration, if their files changed. Packages are touched if `_moved_since` names them, or if
    they are not completely installed. After an error, the things restored before it remain restored.

    Args:
        spare: the controller's copy of the record, for a node that lost its own.
        managed: as for `record`.

    Raises:
        Failed: there is no record, another package manager does not end, or a package, a unit, a module, the
            initramfs or GRUB's configuration cannot be restored.
    """
    known = read_document(run_id + ".json") or spare
    if known is None:
        raise Failed(f"no record of run {run_id} on this node")
    _wait_for_packages()
    with modules.builds_prevented(known["modules"]):
        if has_dpkg():
            # Those that fail are replaced below.
            configuring("dpkg", "--configure", "--pending", seconds=MODULE_S, **APART)
        else:
            rpms.complete()  # before the packages are compared with the record
        changed = files.put_back(known["files"], managed["files"], managed["excepted"])
        if has_dpkg():
            moved = _packages_back(known, _moved_since(known))
        else:
            sums = kept_sums()
            names, with_streams = _moved_since(known), managed["dnf_modules"]
            moved = rpms.back(known, names, with_streams, POOL, lambda path: _is_intact(path, sums))
    switched = files.restore_units(known["units"])
    modules.put_back(known["modules"])
    if any(path.startswith(("/etc/modprobe.d/", "/etc/dracut.conf.d/")) for path in changed):
        _make_images()
    if any(path.startswith("/etc/default/grub.d/") for path in changed) and os.path.exists(GRUB_CONFIG):
        run("update-grub", seconds=MODULE_S, **APART)  # the module may be in another kernel now
    if os.access(ENTRY_HOOK, os.X_OK):
        run(ENTRY_HOOK, "choose", seconds=MODULE_S)
    return {"packages": moved, "files": changed, "units": switched}


def _make_images() -> None:
    """Make the initramfs of each kernel that has one again.

    Raises:
        Failed: one cannot be made.
    """
    for kernel in names_in("/lib/modules"):
        image = initramfs.image_of(kernel)
        if image is not None:
            run(*initramfs.making(kernel, image), seconds=MODULE_S, **APART)


def _moved_since(known: "Record") -> "set[str]":
    """Return the packages that this run or a later one changed; others are not touched; raises as
    `installed`.

    If the records show no change, these are the packages that differ now.
    """
    now, names = installed(), set()
    for name in names_in(HOME):
        if not name.endswith((".kept.json", ".after.json")) and name.endswith(".json"):
            one = read_document(name)
            if one is not None and one["at"] >= known["at"]:
                names |= _differing(one["packages"], read_document(one["run"] + ".after.json") or now)
    return names or _differing(known["packages"], now)


def _differing(before: "dict[str, Any]", after: "dict[str, Any]") -> "set[str]":
    """Return the packages that differ in version or architecture, or are only in one of both."""
    return {name for name in set(before) | set(after) if before.get(name) != after.get(name)}


def _packages_back(known: "Record", names: "set[str]") -> "list[str]":
    """Restore replaced packages and remove new ones in one transaction, then restore holds.

    Packages that are not completely installed are restored, too.

    Args:
        known: the record.
        names: the packages that may be changed.

    Returns:
        The names of all these packages.

    Raises:
        Failed: apt fails, or would remove other packages.
    """
    now, before = installed(), known["packages"]
    half = set(now) - _completely_installed()
    back = sorted(
        name for name in before if name in half or (name in names and now.get(name) != before[name])
    )
    gone = sorted(names & set(now) - set(before))
    sums = kept_sums()
    targets = [_kept_file(file_name(name, *before[name]), sums) for name in back]
    if targets or gone:
        words = [*targets, *(name + "-" for name in gone)]
        simulated(words, [*names, *back])
        # apt's sandbox user cannot read the pool, whose files were checked above.
        apt("install", "--option=APT::Sandbox::User=root", *words)
    _hold(set(known["holds"]), {name.split(":")[0] for name in names})
    return back + gone


def _completely_installed() -> "set[str]":
    """Return the names of packages whose status in dpkg's database is `installed`; Failed if it cannot be
    read.
    """
    rows = run("dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n").splitlines()
    return {row.split()[0] for row in rows if row.endswith(" installed")}


def _hold(wanted: "set[str]", ours: "set[str]") -> None:
    """Restore holds with apt-mark: hold those that are missing, and unhold others if they are in `ours`;
    Failed if that fails.
    """
    held = set(run("apt-mark", "showhold").split())
    for verb, names in (
        ("hold", wanted - held),
        ("unhold", {name for name in held - wanted if name in ours}),
    ):
        if names:
            run("apt-mark", verb, *sorted(names), seconds=60)


def _is_intact(path: str, sums: "dict[str, str]") -> bool:
    """Return whether a file in the pool has its recorded checksum."""
    return os.path.isfile(path) and digest(path) == sums.get(os.path.basename(path))


def _kept_file(file: str, sums: "dict[str, str]") -> str:
    """Return the path of a kept package if its checksum is right; otherwise apt's NAME=VERSION.

    Args:
        file: name of the package's file.
        sums: file → its SHA-256.
    """
    path = os.path.join(POOL, file)
    if _is_intact(path, sums):
        return path
    name, version, _ = file.rsplit("_", 2)
    return "{}={}".format(name, version.replace("%3a", ":"))


def _wait_for_packages() -> None:
    """Wait until no other package manager runs, such as a dead controller's.

    Raises:
        Failed: one still runs after `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        holder = lock_holder()
        if holder is None:
            return
        if time.monotonic() > end:
            raise Failed(f"{holder} holds the package manager's lock")
        time.sleep(1)


def _forget_old() -> None:
    """Remove all records but the last `RUNS_KEPT`, and the package files that no record needs."""
    suffixes = (".kept.json", ".after.json", ".json")
    runs = {
        next(name[: -len(end)] for end in suffixes if name.endswith(end))
        for name in names_in(HOME)
        if name.endswith(".json")
    }
    for old in sorted(runs)[:-RUNS_KEPT]:
        for suffix in suffixes:
            if os.path.exists(os.path.join(HOME, old + suffix)):
                os.unlink(os.path.join(HOME, old + suffix))
    needed = set(kept_sums())
    for name in names_in(POOL):
        if name not in needed:
            os.unlink(os.path.join(POOL, name))
