"""Failures of a package mirror: one clear message, the node unchanged, and success when the mirror works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.model.lock import Lock
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.mirror.specs import PackageSpec
from tests.lab.marks import slow_ones
from tests.lab.mirror_node import MirrorNode, ubuntu

SYSTEM = "ubuntu24.04"
NCCL = ("2.26.2+cuda12.8", "2.27.3+cuda12.9")
LONG_AGO = ("--faked-system-time", "20250101T000000")
STATE = "md5sum /etc/apt/sources.list.d/* /etc/apt/preferences.d/*; apt-mark showhold; dpkg --audit"


@dataclass
class Place:
    """The mirror's folder and key, and a node that uses the mirror."""

    folder: Path
    key: SigningKey
    driven: MirrorNode

    def build(self, key: SigningKey | None = None, without: str = "-") -> None:
        """Build the mirror again: unchanged, with another key, or without a version."""

        def change(_: str, specs: list[PackageSpec]) -> list[PackageSpec]:
            return [spec for spec in specs if not spec.version.startswith(without)]

        nvidia.build(self.folder, load(), [SYSTEM], key=key or self.key, change=change)


@pytest.fixture(scope="module")
def place(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node of Ubuntu with a mirror; the roles of repositories and NCCL are applied."""
    folder = tmp_path_factory.mktemp("mirror")
    with ExitStack() as stack:
        key = stack.enter_context(signing_key())
        mirror = nvidia.build(folder, load(), [SYSTEM], key=key)
        server = stack.enter_context(served(folder))
        driven = ubuntu(module_lab, tmp_path_factory.mktemp("days"), mirror, server)
        driven.state(nccl=NCCL[0])
        outcome, _ = driven.apply("repositories", "nccl")
        assert outcome.ok, outcome.failed
        yield Place(folder, key, driven)


def of_mood(mood: str) -> Callable[[Place], AbstractContextManager[None]]:
    """Return a day on which the mirror's server has this mood."""

    @contextmanager
    def day(place: Place) -> Iterator[None]:
        """Give the mirror this mood until the day ends."""
        place.driven.server.mood = mood
        yield
        place.driven.server.mood = "well"

    return day


@contextmanager
def rotated_key(place: Place) -> Iterator[None]:
    """Rotate the signing key for a node without lists; with lists signed by the old key apt continues."""
    place.driven.node.run("rm -r /var/lib/apt/lists/*_compute_*")
    with signing_key() as other:
        place.build(other)
    yield
    place.build()


@contextmanager
def expired_key(place: Place) -> Iterator[None]:
    """Make a day on which the mirror's key has expired, also in the lock."""
    lock = place.driven.lock
    with signing_key(LONG_AGO, expires="1d") as old:
        place.build(old)
        place.driven.lock = with_key(lock, old.public.decode())
    yield
    place.build()
    place.driven.lock = lock


@contextmanager
def another_version_overnight(place: Place) -> Iterator[None]:
    """Make a day on which the locked packages are gone from the mirror."""
    place.build(without=wanted(place.driven))
    yield
    place.build()


def wanted(driven: MirrorNode) -> str:
    """Return NCCL's package version in the lock."""
    nccl = driven.group.components.nccl
    assert nccl is not None
    return nccl.packages["libnccl2"]


def with_key(lock: Lock, key: str) -> Lock:
    """Return the lock as if made while its repositories were signed with this key."""
    [(name, group)] = lock.groups.items()
    others = {each: spec.model_copy(update={"signed_by": key}) for each, spec in group.repositories.items()}
    return lock.model_copy(update={"groups": {name: group.model_copy(update={"repositories": others})}})


DAYS = {
    "files-gone": (of_mood("gone"), "does not have what the lock names"),
    "half-a-download": (of_mood("broken"), "half synced|does not answer as it should"),
    "slow": (of_mood("slow"), "is too slow"),
    "key-rotated": (rotated_key, "signature of the package repository is not valid"),
    "key-expired": (expired_key, "signature of the package repository is not valid"),
    "another-version-overnight": (another_version_overnight, "does not have what the lock names"),
}


SLOW = {"half-a-download", "slow", "key-expired", "another-version-overnight"}


@pytest.mark.parametrize("name", slow_ones(DAYS, SLOW))
def test_a_bad_day_ends_in_a_sentence_and_the_next_is_well(place: Place, name: str) -> None:
    day, says = DAYS[name]
    driven = place.driven
    [target] = [each for each in NCCL if not driven.installed["libnccl2"].startswith(each.partition("+")[0])]
    driven.state(nccl=target)
    allow = {"packages_allow_downgrade": True}
    driven.node.run("rm -f /var/cache/apt/archives/libnccl*")  # lab nodes share apt's downloads
    before = driven.installed, driven.says(STATE)
    patience = {"packages_fetch_timeout": 10} if name == "slow" else {}
    with day(place):
        outcome, _ = driven.apply("repositories", "nccl", **patience, **allow)
    assert outcome.unreachable is None
    [failed] = outcome.failed
    assert re.search(rf"^(NCCL|the package repositories).* could not be installed: .*({says})", failed["msg"])
    assert len(failed["msg"]) < 800
    assert (driven.installed, driven.says(STATE)) == before
    outcome, _ = driven.apply("repositories", "nccl", **allow)
    assert outcome.ok, outcome.failed
    assert (
        driven.installed["libnccl2"] == driven.group.components.model_dump()["nccl"]["packages"]["libnccl2"]
    )


def test_what_the_repository_lacks_fails_its_own_role_and_none_before(place: Place) -> None:
    driven = place.driven
    [nccl] = [each for each in NCCL if driven.installed["libnccl2"].startswith(each.partition("+")[0])]
    cudnn = driven.state(nccl=nccl).components.model_dump()["cudnn"]["closure"]
    roles = ("repositories", "cuda_toolkit", "cudnn", "nccl")
    place.build(without=next(iter(cudnn.values())))
    outcome, _ = driven.apply(*roles)
    [failed] = outcome.failed
    assert failed["msg"].startswith("cuDNN ")
    assert "does not have what the lock names" in failed["msg"]
    assert driven.says("ls /var/lib/gpuprov/packages").split() == ["cuda_toolkit", "nccl"]
    assert not cudnn.keys() & driven.installed.keys()
    place.build()
    outcome, changed = driven.apply(*roles)
    assert outcome.ok, outcome.failed
    assert changed.count("Install, replace and remove packages, in one transaction") == 1
    assert driven.says("cat /var/lib/gpuprov/packages/cudnn").split() == sorted(cudnn)
    outcome, changed = driven.apply(*roles)
    assert (outcome.ok, changed) == (True, [])


def test_a_mirror_that_moves_and_a_repository_that_is_left_out_are_rewritten(place: Place) -> None:
    """Accept the lock's own file of sources as it is: the role rewrites it without edits by the user."""
    driven = place.driven
    here = driven.server
    [nccl] = [each for each in NCCL if driven.installed["libnccl2"].startswith(each.partition("+")[0])]
    driver = driven.state(nccl=nccl, container_toolkit="auto").components.driver
    outcome, _ = driven.apply("repositories")
    assert outcome.ok, outcome.failed
    part = next(name for name in driver.closure if name.startswith("libnvidia-cfg1"))
    driven.node.run(f"apt-get -qq install -y --no-install-recommends {part}={driver.closure[part]}")
    with served(place.folder) as elsewhere:
        driven.server = elsewhere
        assert "container_toolkit" not in {
            name for name, found in driven.state(nccl=nccl).components.each() if found
        }
        outcome, _ = driven.apply("preflight", "repositories", "nccl")
        assert outcome.ok, outcome.failed
        addresses = driven.says("grep -h ^URIs: /etc/apt/sources.list.d/gpuprov.sources")
        assert elsewhere.url in addresses
        assert here.url not in addresses
        assert "libnvidia-container" not in addresses
        stranger = {"preflight_repositories": [{"id": "x", "url": "http://192.0.2.1/", "signed_by": "other"}]}
        outcome, _ = driven.apply("preflight", **stranger)
        assert "driver packages of another repository are installed" in outcome.failed[0]["msg"]
    driven.server = here
    driven.node.run(f"apt-get -qq remove -y {part}")
