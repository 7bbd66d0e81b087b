"""Repositories and the real package managers: Debian's archive with apt, the mirror with apt and dnf.

Needs Debian's packages dnf and zstd. apt fetches Debian's indexes from this machine's own sources.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest

from gpuprov.catalog import Catalog, load
from gpuprov.errors import Refused
from gpuprov.locking.repository import sources
from gpuprov.locking.repository.apt import open_apt
from gpuprov.locking.repository.closure import closure, closure_packages
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Index
from gpuprov.locking.repository.rpm import with_streams
from gpuprov.locking.repository.unpack import unpack
from gpuprov.model.lock import Repository
from gpuprov.upgrade import fetching
from gpuprov_lab.archive import KEYRING, read_archive
from gpuprov_lab.mirror import apt as mirror_apt
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.specs import PackageSpec

COMPONENTS = ["main", "contrib", "non-free", "non-free-firmware"]
FAMILY = ["(?:nvidia-.*|firmware-nvidia-.*|libnvidia-.*|glx-alternatives)"]
"""Names of binary or source packages that change together with Debian's driver."""
HEADLESS = (
    "nvidia-kernel-dkms",
    "nvidia-smi",
    "libcuda1",
    "libnvidia-ml1",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-cfg1",
    "libnvcuvid1",
    "libnvidia-encode1",
    "nvidia-opencl-icd",
    "nvidia-modprobe",
    "nvidia-persistenced",
)


APT_CONF = """\
Dir::State "{folder}"; Dir::State::status "{folder}/status"; Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache"; Dir::Etc::SourceList "{folder}/list.sources"; Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Parts "/dev/null"; Dir::Etc::Preferences "/dev/null"; Dir::Etc::PreferencesParts "/dev/null";
Acquire::Languages "none"; Acquire::GzipIndexes "false"; APT::Sandbox::User "root";
"""
ROOT_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Apt:
    """apt-get with separate state: other sources, no installed packages."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """Run apt-get with the private configuration; return its output."""
        done = subprocess.run(
            ["apt-get", "-q", *arguments],
            env={"PATH": ROOT_PATH, "LC_ALL": "C", "APT_CONFIG": str(self.folder / "apt.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def picks(self, *wanted: str) -> dict[str, str]:
        """Return the packages that apt would install without recommended ones: name → version."""
        said = self.run("-s", "--no-install-recommends", "install", *wanted)
        return dict(re.findall(r"^Inst (\S+) \((\S+) ", said, re.MULTILINE))

    def as_mirror(self) -> Path:
        """Return the fetched indexes in the archive's layout; apt writes a URL's slashes as underscores."""
        root = self.folder / "mirror"
        for fetched in (self.folder / "lists").glob("*_dists_*"):
            place, _, path = fetched.name.partition("_dists_")
            target = root / place.rpartition("_")[2] / "dists" / path.replace("_", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(fetched.read_bytes())
        return root


@pytest.fixture(scope="module")
def private_apt(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Apt]:
    """Return a function that makes an apt with its own folders and sources."""

    def make(entries: str, settings: str | None = None) -> Apt:
        """Return an apt with its own lists, cache, sources and settings."""
        folder = tmp_path_factory.mktemp("apt")
        folder.chmod(0o755)
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "list.sources").write_text(entries)
        (folder / "apt.conf").write_text(
            APT_CONF.format(folder=folder) + (settings or read_archive().settings)
        )
        apt = Apt(folder)
        apt.run("update")
        return apt

    return make


def archive_sources(codename: str) -> str:
    """Return the sources of a Debian release with all components."""
    return read_archive().sources(codename).replace("Components: main", f"Components: {' '.join(COMPONENTS)}")


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def debian(request: pytest.FixtureRequest, private_apt: Callable[..., Apt]) -> tuple[str, Apt, Index]:
    """Release of Debian read by apt and by gpuprov's index, with checked signatures."""
    codename: str = request.param
    apt = private_apt(archive_sources(codename))
    mirror = apt.as_mirror()
    suites = (("debian", codename), ("debian-security", f"{codename}-security"))
    first, second = (
        open_apt((mirror / place).as_uri(), suite, COMPONENTS, "amd64", Path(KEYRING), fetcher=Fetcher())
        for place, suite in suites
    )
    return codename, apt, first.union(second)


@pytest.mark.parametrize("roots", [("nvidia-driver",), HEADLESS, ("nvidia-driver", "nvidia-settings")])
def test_closure_is_what_apt_picks(debian: tuple[str, Apt, Index], roots: tuple[str, ...]) -> None:
    """Check that the closure of packages is the set that apt would install, of the driver's family."""
    _, apt, index = debian
    ours = closure(index, dict.fromkeys(roots), FAMILY)
    pattern = re.compile("|".join(FAMILY))
    theirs = {
        name: version
        for name, version in apt.picks(*roots).items()
        if pattern.fullmatch(name) or pattern.fullmatch(index.exact(name, version).source)
    }
    assert ours == theirs


def test_bookworm_has_one_535_driver(debian: tuple[str, Apt, Index]) -> None:
    codename, _, index = debian
    versions = {"bookworm": "535.309.01", "trixie": "550.163.01"}
    found = closure_packages(index, dict.fromkeys(("nvidia-driver", *HEADLESS)), FAMILY)
    drivers = {package.version for package in found.values() if package.source == "nvidia-graphics-drivers"}
    assert {index.order.upstream(version) for version in drivers} == {versions[codename]}
    assert len(drivers) == 1
    assert len(found) > 30


def test_older_driver_by_name_is_whole(debian: tuple[str, Apt, Index]) -> None:
    """Name every package in a downgrade, so that apt downgrades all of them."""
    _, apt, index = debian
    oldest = index.order.upstream(index.versions("nvidia-driver")[-1].version)
    found = closure(index, {"nvidia-driver": oldest}, FAMILY)
    picked = apt.picks(*(f"{name}={version}" for name, version in found.items()))
    assert {name: picked[name] for name in found} == found
    assert index.order.upstream(found["nvidia-kernel-dkms"]) == oldest


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> nvidia.Mirror:
    """NVIDIA's repositories, with the one package that they need from EPEL."""

    def with_dkms(folder: str, specs: list[PackageSpec]) -> list[PackageSpec]:
        return [*specs, PackageSpec("dkms", "3.2.2-1", "noarch")] if folder.startswith("rhel") else specs

    root = tmp_path_factory.mktemp("mirror")
    root.chmod(0o755)
    return nvidia.build(root, catalog, ["ubuntu24.04", "debian12", "rhel9"], change=with_dkms)


@pytest.mark.parametrize(
    ("folder", "root", "driver"),
    [
        ("ubuntu2404", "nvidia-open-570", "570.195.03"),
        ("ubuntu2404", "nvidia-open", "595.71.05"),
        ("debian12", "nvidia-open", "580.95.05"),
    ],
)
def test_apt_installs_the_mirrors_closure_whole(
    private_apt: Callable[..., Apt], mirror: nvidia.Mirror, folder: str, root: str, driver: str
) -> None:
    spec = sources.nvidia(mirror.cuda(), folder, "x86_64", "apt", mirror.key)
    keyring = mirror.key.with_suffix(".gpg")
    entry = f"\nTypes: deb\nURIs: {spec.url}\nSuites: /\nSigned-By: {keyring}\n"
    apt = private_apt(archive_sources("bookworm") + entry)
    index = spec.open("x86_64")
    found = closure(index, {root: driver}, ["(?:.*nvidia.*|libcuda.*|libnvcuvid1|libxnvctrl0)"])
    picked = apt.picks(*(f"{name}={version}" for name, version in found.items()))
    from_mirror = {name: version for name, version in picked.items() if index.versions(name)}
    assert from_mirror == found
    assert {index.order.upstream(version) for version in found.values()} == {driver}


def test_apt_takes_the_newest_where_only_the_metapackage_is_named(
    private_apt: Callable[..., Apt], mirror: nvidia.Mirror
) -> None:
    """Demonstrate why the lock names the whole closure: nvidia-open requires nvidia-driver-open with `>=`."""
    spec = sources.nvidia(mirror.cuda(), "ubuntu2404", "x86_64", "apt", mirror.key)
    entry = f"\nTypes: deb\nURIs: {spec.url}\nSuites: /\nSigned-By: {mirror.key.with_suffix('.gpg')}\n"
    apt = private_apt(read_archive().sources("bookworm") + entry)
    newest = spec.open("x86_64").candidate("nvidia-driver-open").version
    assert apt.picks("nvidia-open=595.71.05-1ubuntu1")["nvidia-driver-open"] == newest


@pytest.mark.parametrize("day", [None, date(2026, 5, 14)], ids=["unsaid", "frozen"])
def test_apt_reads_a_mirror_that_has_expired_only_where_the_lock_says_that_it_is_frozen(
    private_apt: Callable[..., Apt], tmp_path: Path, day: date | None
) -> None:
    """Use the same source option as upgrade and the role: `Check-Valid-Until: no`."""
    about = {"Date": "Thu, 14 May 2026 09:00:00 GMT", "Valid-Until": "Thu, 21 May 2026 09:00:00 GMT"}
    tmp_path.parent.chmod(0o755)
    tmp_path.chmod(0o755)
    with signing_key() as key:
        specs = [PackageSpec("tool", "2-1", "amd64")]
        mirror_apt.build_suite(tmp_path, "stable", {"main": specs}, "amd64", key, about)
        locked = Repository(
            url=tmp_path.as_uri().replace("file://", "file:"),
            suites=["stable"],
            components=["main"],
            signed_by=key.public.decode(),
            frozen=day,
            source="fleet.yml",
        )
        spec = sources.mirrored("debian", str(locked.url), "stable", ["main"], key.binary())
        entry = "\n".join(fetching.stanza(locked)) + "\n"
        strict = 'Acquire::Check-Valid-Until "true";'
        if day is None:
            with pytest.raises(AssertionError, match=r"Release file for .* is expired"):
                private_apt(entry, strict)
            with pytest.raises(Refused, match=r"expired at .* frozen: 2026-05-14"):
                spec.open("x86_64")
        else:
            assert private_apt(entry, strict).picks("tool") == {"tool": "2-1"}
            assert replace(spec, frozen=day).open("x86_64").versions("tool")


class Dnf:
    """The real dnf and rpm with a separate root, repository and version lock."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root, self.locks = folder / "root", folder / "versionlock.list"
        self.locks.touch()
        (folder / "cuda.repo").write_text(f"[cuda]\nname=cuda\nbaseurl={url}\nenabled=1\ngpgcheck=0\n")
        (folder / "versionlock.conf").write_text(f"[main]\nenabled=1\nlocklist={self.locks}\n")
        places = {"reposdir": folder, "cachedir": folder / "cache", "pluginconfpath": folder}
        # The root has no shell for scriptlets.
        settings = {**places, "module_platform_id": "platform:el9", "tsflags": "noscripts"}
        self._command = ["dnf", "-q", "-y", f"--installroot={self.root}", "--releasever=9"]
        self._command += [f"--setopt={name}={value}" for name, value in settings.items()]

    def run(self, *words: str) -> None:
        """Run dnf with the private configuration."""
        output_of(*self._command, *words)

    def installed(self) -> dict[str, str]:
        """Return package → epoch, version and release."""
        listed = output_of("rpm", "--root", str(self.root), "-qa", "--qf", "%{NAME} %{EVR}\\n")
        return dict(line.split(" ") for line in listed.splitlines())


@dataclass(frozen=True)
class Provisioned:
    """A root with a driver that is not the newest of its stream, and the driver's closure."""

    dnf: Dnf
    closure: dict[str, str]


@pytest.fixture
def rhel9(mirror: nvidia.Mirror, tmp_path: Path) -> Provisioned:
    """Install the driver's set of packages by dnf from a mirror of RHEL 9; return dnf and the set."""
    spec = sources.nvidia(mirror.cuda(), "rhel9", "x86_64", "rpm", mirror.key)
    index = with_streams(spec.open("x86_64"), "nvidia-driver:580-open")
    roots = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-fabricmanager")
    found = closure(index, dict.fromkeys(roots, "580.126.16"), ["(?:.*nvidia.*)"])
    dnf = Dnf(tmp_path, spec.url)
    dnf.run("module", "enable", "nvidia-driver:580-open")
    dnf.run("install", "libnccl-2.28.3-1+cuda13.0", *(f"{name}-{version}" for name, version in found.items()))
    return Provisioned(dnf, found)


def test_dnf_installs_the_mirrors_closure_whole(rhel9: Provisioned) -> None:
    """Install stub packages written by Python at exact versions, with a module stream enabled."""
    beside = {"dkms": "3.2.2-1", "libnccl": "2.28.3-1+cuda13.0"}
    assert rhel9.dnf.installed() == {**rhel9.closure, **beside}


def test_dnfs_version_lock_keeps_the_closure_where_it_is_and_nothing_else(rhel9: Provisioned) -> None:
    dnf = rhel9.dnf
    dnf.locks.write_text("".join(f"{name}-{version}.*\n" for name, version in rhel9.closure.items()))
    dnf.run("upgrade")
    locked = dnf.installed()
    assert locked.items() >= rhel9.closure.items()
    assert locked["libnccl"] > "2.29"
    dnf.locks.write_text("")
    dnf.run("upgrade")
    assert not dnf.installed().items() & rhel9.closure.items()


def output_of(*command: str) -> str:
    """Run a command, which must succeed; return its output."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_zstandard() -> None:
    """Check that a file compressed with zstd is unpacked."""
    packed = subprocess.run(["zstd", "-cq"], input=b"plain", capture_output=True, check=True).stdout
    assert unpack(packed, ".zst", "primary.xml.zst") == b"plain"
