"""Modules in a file that the operator copies: from an image's tree to the controller, or into such a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gpuprov.apply.kernel_modules.build import build_of
from gpuprov.apply.kernel_modules.packing import PACKED_LIMIT
from gpuprov.apply.kernel_modules.signing import store_of
from gpuprov.apply.kernel_modules.store import ABOUT, ARCHIVE, Kept, Store, build_in, bundled
from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.stack import IMAGE
from gpuprov.untrusted.archives import DAMAGED, member_names, open_zip, read_member
from gpuprov.untrusted.stated import open_stated

ABOUT_LIMIT = 64 << 10
BUILDS_LIMIT = 32
MEMBERS_LIMIT = 1000
EXPECTED = "what --modules-out of `gpuprov apply --image` or of `gpuprov inventory export cloud-init` writes"


def image_store(lock: Lock) -> Store:
    """Return the store of a tree that compiles for others; it does not sign, because the key is not there."""
    return Store(fleet=lock.fleet)


def compiled_here(lock: Lock, group: LockedGroup) -> list[Kept]:
    """Return the modules that this tree compiled for a group, if the lock trusts an image.

    Raises:
        Refused: a build in the store was changed.
    """
    return image_store(lock).of(group) if IMAGE in group.components.driver.builders else []


def export_modules(lock: Lock, group: LockedGroup) -> bytes:
    """Return the content of a file with the modules that this tree compiled for a group.

    Raises:
        InvalidInput: the lock trusts no image, or no module was compiled here.
        Refused: a build in the store was changed.
    """
    builds = compiled_here(lock, group)
    if not builds:
        trusted = IMAGE in group.components.driver.builders
        seen = "this tree compiled no module" if trusted else "the lock trusts no image's modules"
        raise InvalidInput(f"--modules-out, and {seen}", do="state stack: {builder: image} and lock again")
    return bundled(builds, Path())


def import_modules(lock: Lock, file: Path) -> list[Kept]:
    """Add an image's builds to the fleet's store, signed if the lock requires it.

    Raises:
        InvalidInput: it is not such a file, or has no build for which the lock trusts an image.
        GpuprovError: a build cannot be signed.
    """
    if not any(IMAGE in group.components.driver.builders for group in lock.groups.values()):
        raise InvalidInput(
            "--modules, and the lock trusts no image's modules", do="state stack: {builder: image}"
        )
    store = store_of(lock)
    return _brought(lock, file, lambda about, archive: store.keep(build_in(about), {IMAGE: archive}))


def import_into_image(lock: Lock, file: Path) -> list[Kept]:
    """Add builds that the controller exported to this tree's store, with the signature that they have.

    Raises:
        InvalidInput: it is not such a file, or has no build by the builders that the lock trusts.
    """
    return _brought(lock, file, store_of(lock).adopt)


def _brought(lock: Lock, file: Path, take: Callable[[bytes, bytes], Kept]) -> list[Kept]:
    """Add those builds of a file that a group of the lock needs, if their builder is stated; return them as
    stored.

    Args:
        take: function that stores a build: contents of its about.json and of its archive → the stored build.

    Raises:
        InvalidInput: it is not such a file, or has no such build.
    """
    kept = []
    try:
        for about, archive in _builds(file):
            build = build_in(about)
            wanted = (build_of(group, build.kernel, build.compiler) for group in lock.groups.values())
            if build.builders and build in wanted:
                kept.append(take(about, archive))
    except (*DAMAGED, KeyError, TypeError, NodeFailed) as error:
        raise InvalidInput(f"{file} cannot be used: {error}", expected=EXPECTED) from None
    if not kept:
        drivers = [group.components.driver for group in lock.groups.values()]
        wants = {f"{driver.version} by {', '.join(driver.builders) or 'no builder'}" for driver in drivers}
        raise InvalidInput(
            f"{file} has no module for this lock",
            expected=" or ".join(sorted(wants)),
            do="make it with the driver and the builder of this lock",
        )
    return kept


def _builds(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield contents of about.json and of the archive for each build in a zip file, up to `BUILDS_LIMIT`.

    Raises:
        ValueError, KeyError, OSError, BadZipFile: it is no such file, or a member exceeds a limit.
    """
    with open_stated(file) as content, open_zip(content) as archive:
        abouts = [name for name in member_names(archive, MEMBERS_LIMIT) if name.endswith(f"/{ABOUT}")]
        for name in abouts[:BUILDS_LIMIT]:
            packed = read_member(archive, name.removesuffix(ABOUT) + ARCHIVE, PACKED_LIMIT)
            yield read_member(archive, name, ABOUT_LIMIT), packed
