"""Packages of a node: what is installed, and the files that lead back."""

import hashlib
import json
import os
import re
import tempfile

from gpuprov_apt import changes, removed_beside
from gpuprov_replace import replace

from gpuprov.probe.node.base import ENVIRONMENT, Failed, names_in, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpuprov_apt import Changes

    Installed = dict[str, list[str]]

HOME = "/var/lib/gpuprov/lastgood"
POOL = HOME + "/packages"
"""Files of the packages that were replaced, for the way back."""
ARCHIVES = "/var/cache/apt/archives"
APT = (
    *("apt-get", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades"),
    *("--allow-change-held-packages", "--option=DPkg::Lock::Timeout=300", "--option=Acquire::Retries=2"),
    *("--option=Dpkg::Options::=--force-confold", "--option=Dpkg::Options::=--force-confdef"),
)
APT_S = 1800.0
"""DKMS may build a module for several kernels, on slow machines."""
ENVIRONMENT.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")


def installed() -> "Installed":
    """Package as apt names it → version and architecture, of all that are installed or half so."""
    text = run(
        "dpkg-query", "-W", "-f", "${binary:Package}\t${Version}\t${Architecture}\t${db:Status-Status}\n"
    )
    rows = [line.split("\t") for line in text.splitlines()]
    return {row[0]: row[1:3] for row in rows if row[3] not in ("config-files", "not-installed")}


def file_name(package: str, version: str, architecture: str) -> str:
    """As apt names a package's file."""
    return "{}_{}_{}.deb".format(package.split(":")[0], version.replace(":", "%3a"), architecture)


def apt(*words: str) -> str:
    """Run apt-get; what it says of an error is the error."""
    code, out, err = run_anyway(*APT, *words, seconds=APT_S)
    if code != 0:
        said = [
            line
            for line in (err + "\n" + out).splitlines()
            if re.match(r"E: |Err:|dpkg: error|.* error ", line)
        ]
        raise Failed("apt-get: " + ("; ".join(said)[:600] or f"exited with {code}"))
    return out


def simulated(targets: "list[str]", own: "Iterable[str]") -> "Changes":
    """What a transaction would change: package → version before and after.

    Raises:
        Failed: it cannot be, or would remove a package that is not of `own`.
    """
    found = changes(apt("install", "--simulate", "--option=Debug::NoLocking=true", *targets))
    foreign = removed_beside(found, {name.split(":")[0] for name in own})
    if foreign:
        raise Failed("apt would remove {}".format(", ".join(foreign)))
    return found


def keep(versions: "dict[str, str]") -> "dict[str, str]":
    """Have the files of installed packages in the pool; file → SHA-256."""
    there = installed()
    names = {name: name if name in there else _qualified(name, there) for name in versions}
    files = {name: file_name(name, versions[name], there[names[name]][1]) for name in versions}
    known = _published(sorted(versions))
    kept, missing = {}, []
    for name, file in sorted(files.items()):
        wanted = known.get((name.split(":")[0], versions[name]))
        sum_ = _from_pool(file, wanted)
        if sum_ is None:
            missing.append(f"{name}={versions[name]}")
        else:
            kept[file] = sum_
    if missing:
        _download(missing)
        kept.update({file: digest(os.path.join(POOL, file)) for file in files.values() if file not in kept})
    return kept


def _qualified(name: str, there: "Installed") -> str:
    """The name with the architecture that dpkg gives packages which exist for several."""
    found = [each for each in there if each.split(":")[0] == name.split(":")[0]]
    if not found:
        raise Failed(f"{name} is not installed")
    return found[0]


def _from_pool(file: str, wanted: "str | None") -> "str | None":
    """The sum of a file that is here already, in our pool or apt's, and is what the repository says it is."""
    for folder in (POOL, ARCHIVES):
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            continue
        sum_ = digest(path)
        whole = sum_ == wanted if wanted else run_anyway("dpkg-deb", "--contents", path, seconds=120)[0] == 0
        if whole:
            if folder != POOL:
                with open(path, "rb") as stream:
                    replace(os.path.join(POOL, file), iter(lambda: stream.read(1 << 20), b""), 0o644)
            return sum_
    return None


def _download(targets: "list[str]") -> None:
    """Bring package files into the pool; apt checks their sums."""
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        inside = ("sh", "-c", 'cd "$0" && exec "$@"', folder)
        code, _, err = run_anyway(*inside, "apt-get", "--quiet", "download", *targets, seconds=APT_S)
        if code != 0:
            said = "; ".join(line for line in err.splitlines() if line.startswith("E: "))
            rest = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
            what = ", ".join(targets[:3]) + rest
            raise Failed(f"no way back: {what} cannot be fetched ({said[:300]})")
        for name in names_in(folder):
            os.rename(os.path.join(folder, name), os.path.join(POOL, name))


def _published(names: "list[str]") -> "dict[tuple[str, str], str]":
    """Package and version → SHA-256 as the repositories' indexes say it."""
    if not names:
        return {}
    _, text, _ = run_anyway("apt-cache", "show", *names, seconds=60)
    found = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|SHA256): (\S+)$", stanza))
        if len(fields) == 3:
            found[fields["Package"], fields["Version"]] = fields["SHA256"]
    return found


def digest(path: str) -> str:
    """SHA-256 of a file."""
    sum_ = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            sum_.update(chunk)
    return sum_.hexdigest()


def kept_sums() -> "dict[str, str]":
    """File in the pool → SHA-256, of everything that some run kept."""
    found = {}  # type: dict[str, str]
    for name in names_in(HOME):
        if name.endswith(".kept.json"):
            found.update(read_document(name) or {})
    return found


def read_document(name: str) -> "Any":
    """A JSON document of our folder; None if there is none, or half of one."""
    try:
        with open(os.path.join(HOME, name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write(path: str, document: "Any") -> None:
    """Write JSON, whole and on the disk, or not at all."""
    replace(path, json.dumps(document).encode(), 0o644)
