"""`host.packages` on a node with rpm and without dpkg: packages, repositories and locks of dnf."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from gpuprov.roles.manager import OWN_FILES
from gpuprov.roles.repositories import GENERATED, IN_ANOTHER_FILE, KEY_OF, RELEASE_PACKAGES
from gpuprov.untrusted import lines_of, shell_words
from gpuprov.untrusted.wildcards import matcher
from gpuprov.verify.observers.base import Observed

PACKAGES = "rpm -qa --qf '%{NAME} %{EPOCHNUM} %{VERSION}-%{RELEASE}\\n'"
ARCHITECTURES = "rpm -qa --qf '%{NAME} %{ARCH}\\n'"
DNF = "umask 077; dnf --cacheonly"
"""Begin of a command of dnf, whose lock files no user can open then (gpuprov_locks.RUN_DNF)."""
LOCKS = f"({DNF} --quiet versionlock list)"
REPOSITORIES = f"({DNF} repoinfo --enabled)"
OFFERS = f"({DNF} --quiet --setopt=*.module_hotfixes=1 repoquery --qf '%%{{repoid}} %%{{name}}' %s)"
SEVERAL = re.compile(r"(?:kernel(?:\d+\.\d+)?(?:-(?!headers|tools|srpm|rpm|doc)[a-z0-9]+)*|gpg-pubkey)\Z")
"""Packages that rpm has in several versions (dnf.conf(5), `installonlypkgs`), and its keys."""
OWNERS = 'for each in /etc/yum.repos.d/*.repo; do echo "$each $(rpm -qf --qf "%{NAME}" $each 2>&1)"; done'
UNSIGNED = (
    "awk -F '[ =]+' '/^[[]/ {id = $0; all[id] = 1} tolower($1) ~ /^(repo_)?gpgcheck$/ && tolower($2) ~"
    " /^(1|yes|true|on)$/ {ok[id] = 1} END {for (id in all) if (!ok[id]) print id}' /etc/yum.repos.d/*.repo"
)
"""Prints the repositories for which neither index nor packages need a signature, as `[ID]`."""
AUTOMATIC = "cat /etc/dnf/automatic.conf"
OWN = "cat /etc/yum.repos.d/gpuprov.repo"
KEYS = 'for each in /etc/pki/rpm-gpg/gpuprov-*.asc; do echo "# $each"; cat $each; done'
UPGRADE = f"({DNF} --assumeno upgrade)"
ABORTED = "Operation aborted."
"""Message of dnf after the answer no; its status is then that of an error, too."""


class Dnf(Observed):
    """Observer of dnf's and rpm's state, with the attributes of `Apt`."""

    @cached_property
    def versions(self) -> dict[str, str]:
        """Name → version of the installed packages, without an epoch of 0; of several kernels the last.

        Raises:
            NodeFailed: rpm fails.
        """
        rows = (line.split() for line in lines_of(self.ask(PACKAGES)))
        known = (row for row in rows if len(row) == 3)
        return {name: rest if epoch == "0" else f"{epoch}:{rest}" for name, epoch, rest in known}

    @cached_property
    def held(self) -> set[str]:
        """Names of packages that dnf locks at the installed version; none if its plugin is not in effect.

        Raises:
            NodeFailed: rpm's database cannot be read, or the version locks would take too long to compare.
        """
        locks = self.run(LOCKS).stdout.split()
        patterns = (lock.removesuffix(".*") for lock in locks if not lock.startswith("!"))
        is_locked = matcher(patterns, len(self.versions))
        return {name for name, version in self.versions.items() if is_locked(_spellings(name, version))}

    @property
    def ignores_holds(self) -> bool:
        """False: `held` is empty if dnf does not read its locks."""
        return False

    @property
    def sources(self) -> set[str]:
        """Each enabled repository as `URL ID`, the URL without a slash at the end.

        If a file other than gpuprov's states the URL too, `URL ID in another file`.

        Raises:
            NodeFailed: dnf fails.
        """
        files = parse_files(self._described)
        others = {
            url for identity, url in self._repositories.items() if files.get(identity) != OWN_FILES["dnf"]
        }
        return {
            f"{url} {identity}{f' {IN_ANOTHER_FILE}' if url in others else ''}"
            for identity, url in self._repositories.items()
        }

    @cached_property
    def _repositories(self) -> dict[str, str]:
        """Id → URL of the enabled repositories; raises as `_described`."""
        return parse_repositories(self._described)

    @cached_property
    def _described(self) -> str:
        """Output of `dnf repoinfo`.

        Raises:
            NodeFailed: it fails, as without room for its lock on a disk that users can fill.
        """
        return self.ask(REPOSITORIES)

    @cached_property
    def _of_distribution(self) -> set[str]:
        """Ids of the repositories of the distribution and of EPEL whose signatures dnf checks; raises as
        `_described`.
        """
        rows = (line.split(" ", 1) for line in lines_of(self.run(OWNERS).stdout))
        files = {row[0] for row in rows if len(row) == 2 and re.fullmatch(RELEASE_PACKAGES, row[1])}
        unsigned = {line.strip("[]") for line in lines_of(self.run(UNSIGNED).stdout)}
        stated = parse_files(self._described)
        return {name for name, path in stated.items() if path in {*files, *GENERATED}} - unsigned

    def foreign(self, packages: list[str], own: list[str]) -> list[str]:
        """Return URLs of other repositories that offer the packages, or whose URL contains `nvidia`; sorted.

        Those of the distribution and of EPEL are left out, unless dnf accepts them unsigned.

        Args:
            packages: names of packages.
            own: URLs that are expected.

        Raises:
            NodeFailed: dnf fails.
        """
        ours = {uri.rstrip("/") for uri in own}
        known = {name: url for name, url in self._repositories.items() if name not in self._of_distribution}
        rows = (line.split() for line in lines_of(self.ask(OFFERS % shell_words(packages))))
        offering = {known[row[0]] for row in rows if len(row) == 2 and row[0] in known}
        named = {url for url in known.values() if "nvidia" in url.lower()}
        return sorted((offering | named) - ours)

    def own_parts(self, expected: dict[str, str]) -> dict[str, str]:
        """Return part → first 16 digits of the SHA-256, of gpuprov's file of repositories and its keys."""
        found: dict[str, str] = {}
        for part in filter(None, self.run(OWN).stdout.strip("\n").split("\n\n")):
            title = part.partition("\n")[0].removeprefix("# ")
            name = "head" if title.startswith("Written by") else title
            found[f"{name} again" if name in found else name] = _digest(part.strip("\n"))
        for part in re.split(r"(?m)^# (?=/)", self.run(KEYS).stdout)[1:]:
            path, _, text = part.partition("\n")
            if text.strip():
                name = path.rpartition("/gpuprov-")[2].removesuffix(".asc")
                found[KEY_OF + name] = _digest(text.strip())
        return found

    def preferred(self, packages: list[str]) -> list[str]:
        """Return []: dnf has no preferences."""
        return []

    @cached_property
    def unattended_blacklist(self) -> set[str]:
        """Patterns of packages that dnf-automatic excludes."""
        return parse_automatic(self.run(AUTOMATIC).stdout)

    @cached_property
    def moved_by_upgrade(self) -> set[str]:
        """Names of packages that an upgrade would install, change or remove now (simulated).

        Raises:
            NodeFailed: dnf cannot simulate it, as without room for its log on a disk that users can fill.
        """
        answer = self.run(UPGRADE)
        return parse_transaction(answer.stdout if ABORTED in answer.stderr else self.ask(UPGRADE))

    def long(self, _packages: list[str]) -> list[str]:
        """Return the commands that take long, as `Apt.long` does."""
        return [UPGRADE]

    @property
    def half_done(self) -> list[str]:
        """Packages in two versions, as a killed dnf leaves them; rpm has no other states between.

        Raises:
            NodeFailed: rpm fails.
        """
        seen = Counter(lines_of(self.ask(ARCHITECTURES)))
        names = {line.split()[0] for line, times in seen.items() if times > 1 and line.split()}
        return [f"{name} in two versions" for name in sorted(names) if not SEVERAL.match(name)]

    def __repr__(self) -> str:
        return "<dnf>"


def _spellings(name: str, version: str) -> tuple[str, ...]:
    """Return the texts that a pattern of `versionlock list` can fit: `NAME-EPOCH:VERSION-RELEASE.ARCH`."""
    full = f"{name}-{version if ':' in version else f'0:{version}'}"
    return name, full, f"{full}.x86_64", f"{full}.aarch64"


def _digest(text: str) -> str:
    """Return the first 16 digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_repositories(text: str) -> dict[str, str]:
    """Parse `dnf repoinfo` to id → first URL (base, mirrors or metalink), without a slash at the end."""
    found: dict[str, str] = {}
    for identity, key, value in _fields(text):
        if key in ("Repo-baseurl", "Repo-mirrors", "Repo-metalink") and value:
            found.setdefault(identity, value.split()[0].rstrip("/"))
    return found


def parse_files(text: str) -> dict[str, str]:
    """Parse `dnf repoinfo` to id → file that states the repository."""
    return {identity: value for identity, key, value in _fields(text) if key == "Repo-filename"}


def _fields(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield id of the repository, key and value of the lines of `dnf repoinfo`."""
    identity = ""
    for line in lines_of(text):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "Repo-id":
            identity = value
        else:
            yield identity, key, value


def parse_automatic(text: str) -> set[str]:
    """Parse the settings of dnf-automatic to the packages that its section `base` excludes."""
    found, section, key = set[str](), "", ""
    for line in lines_of(text):
        if line.startswith("["):
            section, key = line.strip(), ""
        elif line[:1] not in (" ", "\t"):
            key, _, line = (part.strip() for part in line.replace(":", "=", 1).partition("="))
        if section == "[base]" and key in ("excludepkgs", "exclude"):
            found.update(re.split(r"[\s,]+", line.strip()))
    return found - {""}


def parse_transaction(text: str) -> set[str]:
    """Parse the table of a simulated transaction to names of packages, without those that dnf skips."""
    table = text.partition("Transaction Summary")[0].partition("Skipping packages")[0]
    rows = (line.split() for line in lines_of(table) if re.match(r" \S", line))
    return {row[0] for row in rows if len(row) >= 5 and row[0] != "Package"}
