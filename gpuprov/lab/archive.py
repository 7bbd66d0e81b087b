"""The package archive: where this machine's own apt finds Debian, and what nodes have fetched."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuprov.errors import InvalidInput
from gpuprov.lab.host import cache_home, execute

ARCHIVES = Path("var/cache/apt/archives")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# How this machine's apt reaches its archive (a proxy, a frozen snapshot) holds for the nodes too.
CARRIED_SETTINGS = (
    "Acquire::http::Proxy ",
    "Acquire::https::Proxy ",
    "Acquire::Check-Valid-Until ",
    "Acquire::Check-Date ",
)


@dataclass(frozen=True)
class Archive:
    """Debian as this machine's apt knows it.

    Attributes:
        main: URI of the archive proper.
        security: URI of the security archive, or "" where the machine has none.
        settings: lines of apt.conf that its use needs.
    """

    main: str
    security: str
    settings: str

    def sources(self, codename: str) -> str:
        """Text of a deb822 sources file for one release: main, updates and security."""
        stanza = "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: " + KEYRING + "\n"
        parts = [stanza.format(self.main, f"{codename} {codename}-updates")]
        if self.security:
            parts.append(stanza.format(self.security, f"{codename}-security"))
        return "\n".join(parts)

    def ports(self) -> set[int]:
        """TCP ports that apt needs: the archive's, and its proxy's."""
        proxies = [line.split('"')[1] for line in self.settings.splitlines() if "::Proxy " in line]
        default = {"http": 80, "https": 443}
        found = [urlsplit(uri) for uri in [self.main, self.security, *proxies] if uri]
        return {uri.port or default.get(uri.scheme, 80) for uri in found}


def read_archive() -> Archive:
    """Ask apt itself, so that every format of sources it reads is read.

    Raises:
        InvalidInput: apt knows no archive of Debian over HTTP here.
    """
    template = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    indexes = execute(["apt-get", "indextargets", "--format", template, "Created-By: Packages"])
    settings = execute(["apt-config", "dump"])
    return parse_archive(indexes, settings)


def parse_archive(indexes: str, settings: str) -> Archive:
    """Pick Debian's own archives out of `apt-get indextargets` lines `URI RELEASE COMPONENT ORIGIN`."""
    main = security = ""
    for line in indexes.splitlines():
        uri, release, component, origin = (*line.split(), "", "")[:4]
        if component != "main" or not uri.startswith("http") or origin not in ("Debian", ""):
            continue
        if release.endswith("-security"):
            security = security or uri
        elif "-" not in release:
            main = main or uri
    if not main:
        raise InvalidInput(
            "apt on this machine knows no archive of Debian over HTTP",
            expected="a source with the component `main`",
            do="add one to /etc/apt/sources.list and run `apt-get update`",
        )
    carried = [line for line in settings.splitlines() if line.startswith(CARRIED_SETTINGS)]
    return Archive(main, security, "".join(f"{line}\n" for line in carried))


def fetched() -> Path:
    """Folder of the packages that nodes have downloaded so far."""
    return cache_home() / "archives"


def lend(root: Path) -> None:
    """Put every package fetched so far where apt of a new node looks first; apt checks the hashes."""
    for package in fetched().glob("*.deb"):
        _link(package, root / ARCHIVES / package.name)


def harvest(root: Path) -> None:
    """Keep what a node downloaded for the next one."""
    fetched().mkdir(parents=True, exist_ok=True)
    for package in (root / ARCHIVES).glob("*.deb"):
        _link(package, fetched() / package.name)


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        os.link(source, part)
    except OSError:  # another file system: a copy serves as well
        shutil.copyfile(source, part)
    part.replace(target)
