"""Package archive of the lab: this machine's apt sources of Debian, and packages downloaded by nodes."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuprov.errors import InvalidInput
from gpuprov_lab.host import CACHE, execute

ARCHIVES = Path("var/cache/apt/archives")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# A line of `apt-get update --print-uris`: the index of one suite's component `main`.
INDEX = re.compile(r"^'(https?://\S+?)/dists/(\S+?)/main/binary-\w+/Packages", re.MULTILINE)
# The nodes reach the archive as this machine's apt does (a proxy, a frozen snapshot).
CARRIED_SETTINGS = (
    "Acquire::http::Proxy ",
    "Acquire::https::Proxy ",
    "Acquire::Check-Valid-Until ",
    "Acquire::Check-Date ",
)


@dataclass(frozen=True)
class Archive:
    """Debian's archive in this machine's apt configuration.

    Attributes:
        main: URI of the main archive.
        security: URI of the security archive, or "" if the machine has none.
        settings: lines of apt.conf that its use needs.
    """

    main: str
    security: str
    settings: str

    def sources(self, codename: str) -> str:
        """Return a deb822 sources file for one release: main, updates and security."""
        stanza = "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: " + KEYRING + "\n"
        parts = [stanza.format(self.main, f"{codename} {codename}-updates")]
        if self.security:
            parts.append(stanza.format(self.security, f"{codename}-security"))
        return "\n".join(parts)

    def ports(self) -> set[int]:
        """Return the TCP ports that apt needs: the archive's, and its proxy's."""
        proxies = [line.split('"')[1] for line in self.settings.splitlines() if "::Proxy " in line]
        default = {"http": 80, "https": 443}
        found = [urlsplit(uri) for uri in [self.main, self.security, *proxies] if uri]
        return {uri.port or default.get(uri.scheme, 80) for uri in found}


def read_archive() -> Archive:
    """Return this machine's archive of Debian, found in apt's own output, which covers every format of
    sources.

    Raises:
        InvalidInput: apt has no archive of Debian over HTTP here.
    """
    uris = execute(["apt-get", "update", "--print-uris", "-o", "Debug::NoLocking=1"])
    settings = execute(["apt-config", "dump"])
    return parse_archive(uris, settings, platform.freedesktop_os_release().get("VERSION_CODENAME", ""))


def parse_archive(uris: str, settings: str, codename: str) -> Archive:
    """Return Debian's own archives from the output of `apt-get update --print-uris` and `apt-config dump`.

    Other archives may have a suite of the same name too; only Debian's also has updates.

    Args:
        codename: the release of this machine, such as `bookworm`.

    Raises:
        InvalidInput: no archive over HTTP has that suite.
    """
    indexes = [match.groups() for match in INDEX.finditer(uris)]
    updated = [uri for uri, suite in indexes if suite == f"{codename}-updates"]
    main = [*updated, *(uri for uri, suite in indexes if suite == codename)]
    security = [uri for uri, suite in indexes if suite == f"{codename}-security"]
    if not main:
        raise InvalidInput(
            f"apt on this machine knows no archive of Debian '{codename}' over HTTP",
            expected="a source with that suite and the component `main`",
            do="add one to /etc/apt/sources.list",
        )
    carried = [line for line in settings.splitlines() if line.startswith(CARRIED_SETTINGS)]
    return Archive(main[0], "".join(security[:1]), "".join(f"{line}\n" for line in carried))


def fetched() -> Path:
    """Return the folder of packages that nodes have downloaded."""
    return CACHE / "archives"


def lend(root: Path) -> None:
    """Link all downloaded packages into the apt cache of a new node; apt accepts those of the right size.

    On another file system they are copied. Folders of the cache are created with mode 0755.

    Args:
        root: a folder on the file system itself: a hard link into an overlay from outside is impossible.
    """
    folder = root
    for part in ARCHIVES.parts:
        folder /= part
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # independent of the umask: inside the node this is /var
    for package in fetched().glob("*.deb"):
        _link(package, folder / package.name)


def harvest(root: Path) -> None:
    """Link or copy a node's downloaded packages into `fetched`, for later nodes."""
    fetched().mkdir(parents=True, exist_ok=True)
    for package in (root / ARCHIVES).glob("*.deb"):
        _link(package, fetched() / package.name)


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it from another file system; keep an existing target."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(source, part)
        part.replace(target)
