"""Repositories for tests: built and signed locally, read as `file:`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuprov.catalog import Catalog, load
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov_lab.mirror import apt as mirror_apt
from gpuprov_lab.mirror import rpm as mirror_rpm
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.specs import PackageSpec
from tests.unit.locking.repository.built_repositories import RpmRepository, Suite


@pytest.fixture(scope="session")
def key() -> Iterator[SigningKey]:
    with signing_key() as made:
        yield made


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load()


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    """Return a client with an own cache, two attempts and no pause."""
    return Fetcher(cache=tmp_path / "cache", attempts=2, pause=0.0, timeout=5.0)


@pytest.fixture
def suite(tmp_path: Path, key: SigningKey, fetcher: Fetcher) -> Suite:
    """A valid suite with two versions of a package, a virtual package and one of another architecture."""
    specs = [
        PackageSpec("tool", "1:9.10-1", "amd64", relations={"Depends": "library (>= 2)"}),
        PackageSpec("tool", "1:9.9-1", "amd64"),
        PackageSpec("library", "2.0-1", "all", relations={"Provides": "virtual (= 2.0)"}),
        PackageSpec("foreign", "1-1", "arm64"),
    ]
    mirror_apt.build_suite(tmp_path / "suite", "stable", {"main": specs}, "amd64", key)
    return Suite(tmp_path / "suite", key.binary(), fetcher)


@pytest.fixture
def rebuild(suite: Suite, key: SigningKey) -> Callable[..., Suite]:
    """Function that builds the suite again: with another key, other fields in Release, or a changed text."""

    def build(
        signer: SigningKey | None = key, *, change: Callable[[bytes], bytes] = lambda text: text, **about: str
    ) -> Suite:
        """Build and sign the suite again; return it."""
        fields = {name.replace("_", "-"): value for name, value in about.items()}
        specs = [PackageSpec("tool", "2-1", "amd64")]
        mirror_apt.build_suite(suite.root, "stable", {"main": specs}, "amd64", signer, fields)
        text = change((suite.folder / "Release").read_bytes())
        for name in ("InRelease", "Release.gpg"):
            (suite.folder / name).unlink(missing_ok=True)
        mirror_apt.sign_release(suite.folder, text, signer)
        return suite

    return build


@pytest.fixture
def rpms(tmp_path: Path, key: SigningKey, fetcher: Fetcher) -> RpmRepository:
    """A valid rpm repository: two streams of a driver, packages outside them, one of another architecture."""
    specs = [
        PackageSpec("driver", "3:580.9-1.el9", "x86_64", streams=("580-open",)),
        PackageSpec("driver", "3:610.1-1.el9", "x86_64", streams=("610-open",)),
        PackageSpec("driver", "3:620.1-1.el9", "x86_64"),
        PackageSpec("tool", "1.0-1", "noarch", relations={"Depends": "driver (>= 3:580)"}),
        PackageSpec("foreign", "1-1", "aarch64"),
    ]
    mirror_rpm.build(tmp_path / "rpms", specs, key)
    return RpmRepository(tmp_path / "rpms", key.binary(), fetcher)
