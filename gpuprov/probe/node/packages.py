"""Collectors of packages: installed, held or incomplete ones, their files, sources, and trusted keys."""

import base64
import glob
import hashlib
import os
import re

import gpuprov_package_files
import gpuprov_versionlock

from gpuprov.probe.node.base import (
    Failed,
    collector,
    find_program,
    lines_in,
    names_in,
    read_or_none,
    redact,
    run,
    run_anyway,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

DPKG_FORMAT = "${Package}\t${Architecture}\t${Version}\t${source:Package}\t${Status}\n"
RPM_FORMAT = "%{NAME}\t%{ARCH}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{SOURCERPM}\n"
KEY = re.compile(r"(?s)-----BEGIN PGP.*?END PGP[^\n]*")
ROWS = 200
"""Maximum number of differing files that are sent."""
SETTLED = ("install ok installed", "deinstall ok config-files", "purge ok not-installed")
"""States of dpkg that are neither held nor broken."""


@collector(seconds=20)
def packages(parameters: "Values") -> "Any":
    """Return the packages requested by name or pattern, and with dpkg every held or broken one, as lines with
    tabs.

    `interrupted` is whether dpkg has an unfinished journal, `refused` its message if it cannot read its
    settings, `locks` dnf's lock list.

    Raises:
        Failed: there is neither dpkg nor rpm.
    """
    wanted, names = re.compile(parameters["package_pattern"]), set(parameters["packages"])

    def matters(row: "list[str]") -> bool:
        return row[0] in names or bool(wanted.search(row[0]))

    if find_program("dpkg-query") and os.path.exists("/var/lib/dpkg/status"):
        rows = [line.split("\t") for line in run("dpkg-query", "-W", "-f", DPKG_FORMAT).splitlines()]
        kept = [row for row in rows if matters(row) or row[-1] not in SETTLED]
        journal = any(name.isdecimal() for name in names_in("/var/lib/dpkg/updates"))
        return {"manager": "dpkg", "text": _table(kept), "interrupted": journal, "refused": _refusal()}
    if find_program("rpm"):
        rows = [line.split("\t") for line in run("rpm", "-qa", "--qf", RPM_FORMAT).splitlines()]
        return {"manager": "rpm", "text": _table(filter(matters, rows)), "locks": _version_locks()}
    raise Failed("neither dpkg nor rpm is here")


def _refusal() -> str:
    """Return dpkg's message if it cannot read its settings; else an empty text."""
    code, _, said = run_anyway("dpkg", "--print-architecture") if find_program("dpkg") else (0, "", "")
    return _last_line(said) if code else ""


def _last_line(said: str) -> str:
    """Return the last line of a program's message, without secrets; never an empty text."""
    return redact((said.strip() or "no message").splitlines()[-1][:300])


def _table(rows: "Iterable[list[str]]") -> str:
    """Return sorted rows as lines, with tabs between cells."""
    return "\n".join("\t".join(row) for row in sorted(rows))


def _version_locks() -> str:
    """Return the text of dnf's lock list; "" without one, without the plugin, or if it is disabled."""
    path = gpuprov_versionlock.place()
    return (read_or_none(path) or "") if path else ""


@collector(seconds=20)
def package_files(parameters: "Values") -> "Any":
    """Return name, path and state of the held packages' files that are not as the last apply left them, at
    most `ROWS`.

    Raises:
        Failed: the node has neither dpkg nor rpm.
    """
    if not os.path.exists(gpuprov_package_files.INFO) and not find_program("rpm"):
        raise Failed("neither dpkg nor rpm is here")
    return [list(row) for row in gpuprov_package_files.differing(parameters["held"])[:ROWS]]


@collector(seconds=10)
def sources(parameters: "Values") -> "Any":
    """Return source files without comments and credentials, the parts of gpuprov's own file (`own`),
    fingerprints of keys, pins, upgrade settings.

    `cleared` are the places of `_cleared`; `refused` is apt's message if it cannot read its settings.
    """
    code, config, said = run_anyway("apt-config", "dump") if find_program("apt-config") else (0, "", "")
    folder = _configured(config, "Dir::Etc::sourceparts", "/etc/apt/sources.list.d")
    paths = [_configured(config, "Dir::Etc::sourcelist", "/etc/apt/sources.list")]
    paths += [path for kind in ("list", "sources") for path in glob.glob(f"{folder}/*.{kind}")]
    paths += glob.glob("/etc/yum.repos.d/*.repo")
    texts = {path: _without_comments(read_or_none(path)) for path in sorted(paths) if os.path.isfile(path)}
    pins = ["/etc/apt/preferences"] + sorted(glob.glob("/etc/apt/preferences.d/*"))
    pins = [path for path in pins if os.path.isfile(path) and re.search(r"(/[^./]+|\.pref)\Z", path)]
    upgrades = re.findall(r"^(?:Unattended-Upgrade::|APT::Periodic::|APT::Ignore-Hold ).*$", config, re.M)
    return {
        "files": texts,
        "own": [
            *_parts("/etc/apt/sources.list.d/gpuprov.sources"),
            *_parts("/etc/yum.repos.d/gpuprov.repo"),
            *_keys_of_dnf(),
        ],
        "keyrings": {path: _fingerprints(path) for path in _keyrings(texts)},
        "preferences": {path: _without_comments(read_or_none(path)) for path in pins},
        "config": "\n".join(upgrades),
        "refused": _last_line(said) if code else "",
        "excluded": _excluded(read_or_none("/etc/dnf/automatic.conf") or ""),
        "cleared": list(_cleared()),
    }


def _cleared() -> "Iterator[str]":
    """Yield the places in apt.conf.d that clear the settings of unattended upgrades, or set Ignore-Hold, and
    those that switch off dnf's version locks.
    """
    for name in names_in("/etc/apt/apt.conf.d"):
        for place, line in _numbered_lines("/etc/apt/apt.conf.d/" + name):
            if re.search(r"#clear\s+Unattended-Upgrade\b|\bIgnore-Hold\b", line):
                yield place
    for place, line in _numbered_lines(gpuprov_versionlock.SETTINGS):
        if re.match(r"\s*enabled\s*[=:]", line) and gpuprov_versionlock.place() is None:
            yield place


def _configured(config: str, name: str, usual: str) -> str:
    """Return the path that an item of apt's configuration names; a relative one is inside its parent item.

    Args:
        config: output of `apt-config dump`; if the item is not in it, the path is `usual`.
    """
    found = dict(re.findall(r'(?i)^(dir[:a-z]*) "([^"]*)";$', config, re.M))
    stated = {item.lower(): value for item, value in found.items()}
    path, item = "", name.lower()
    while item:
        path = os.path.join(stated.get(item, ""), path) if path else stated.get(item, "")
        if os.path.isabs(path):
            return path
        item = item.rpartition("::")[0]
    return usual


def _numbered_lines(path: str) -> "Iterator[tuple[str, str]]":
    """Yield `path:line` and text of every line, also of comments: `#clear` is a directive of apt.conf(5).

    Nothing for a file that cannot be read.
    """
    for number, line in enumerate(lines_in(path), 1):
        yield f"{path}:{number}", line


def _parts(path: str) -> "list[list[str]]":
    """Return the beginning of the SHA-256, and the text without keys, of the parts between empty lines."""
    parts = re.split(r"\n\n+", (read_or_none(path) or "").strip("\n"))
    digests = [hashlib.sha256(part.encode()).hexdigest()[:16] for part in parts if part]
    return [[digest, redact(KEY.sub("BEGIN PGP", part))] for digest, part in zip(digests, parts)]


def _keys_of_dnf() -> "list[list[str]]":
    """Return the beginning of the SHA-256, and a title, of the keys in gpuprov's own files for dnf."""
    found = []
    for path in sorted(glob.glob("/etc/pki/rpm-gpg/gpuprov-*.asc")):
        text = (read_or_none(path) or "").strip()
        name = os.path.basename(path)[len("gpuprov-") : -len(".asc")]
        found.append([hashlib.sha256(text.encode()).hexdigest()[:16], "# key of " + name])
    return found


def _excluded(text: str) -> "list[str]":
    """Return the patterns of packages that the settings of dnf-automatic exclude in their section `base`."""
    base = re.search(r"(?ms)^\[base\]\s*?$(.*?)(?=^\[|\Z)", text)
    stated = re.findall(
        r"(?m)^exclude(?:pkgs)?[ \t]*[=:](.*(?:\n[ \t]+\S.*)*)", base.group(1) if base else ""
    )
    return [word for line in stated for word in re.split(r"[\s,]+", line) if word]


def _without_comments(text: "str | None") -> str:
    """Return the text without comments and secrets; a key in a .sources file is replaced by `BEGIN PGP`."""
    lines = [line for line in (text or "").splitlines() if not line.lstrip().startswith("#")]
    text = KEY.sub("BEGIN PGP", "\n".join(lines))
    return redact(re.sub(r"\n{3,}", "\n\n", text).strip())


def _keyrings(texts: "dict[str, str]") -> "list[str]":
    """Return the keyrings that apt trusts for all sources, and those that a source names."""
    found = set(glob.glob("/etc/apt/trusted.gpg") + glob.glob("/etc/apt/trusted.gpg.d/*"))
    found.update(glob.glob("/etc/apt/keyrings/*"))
    for text in texts.values():
        found.update(re.findall(r"(?i)signed-by[=:]\s*(/[^\s\],]+)", text))
    return sorted(path for path in found if os.path.isfile(path))


def _fingerprints(path: str) -> "list[str]":
    """Return fingerprints of the primary keys in a keyring, armoured or not; [] if it is not a keyring."""
    with open(path, "rb") as file:
        data = file.read(1024 * 1024)
    try:
        if b"-----BEGIN PGP" in data:
            body = re.search(
                rb"-----BEGIN PGP[^\n]*\n(?:[^\n]+: [^\n]*\n)*\s*\n(.*?)(?:\n=|-----END)", data, re.S
            )
            data = base64.b64decode(body.group(1)) if body else b""
        return [_fingerprint(body) for tag, body in _openpgp_packets(data) if tag == 6]
    except (IndexError, OverflowError, ValueError):  # cut off, a packet that is too long for a key, no base64
        return []


def _fingerprint(body: bytes) -> str:
    """Return a key's fingerprint (RFC 9580, section 5.5.4): SHA-1 for version 4, SHA-256 for version 6."""
    if body[0] == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    return (
        hashlib.sha1(  # noqa: S324 - the standard names keys so
            b"\x99" + len(body).to_bytes(2, "big") + body
        )
        .hexdigest()
        .upper()
    )


def _openpgp_packets(data: bytes) -> "Iterator[tuple[int, bytes]]":
    """Yield (tag, body) of each packet, with old and new headers (RFC 9580, section 4.2).

    Raises:
        IndexError: the data is truncated.
    """
    place = 0
    while place < len(data):
        header = data[place]
        if header & 0x40:
            tag, first = header & 0x3F, data[place + 1]
            if first < 192:
                size, place = first, place + 2
            elif first < 224:
                size, place = ((first - 192) << 8) + data[place + 2] + 192, place + 3
            else:
                size, place = int.from_bytes(data[place + 2 : place + 6], "big"), place + 6
        else:
            tag, width = (header >> 2) & 0x0F, 1 << (header & 3)
            size, place = int.from_bytes(data[place + 1 : place + 1 + width], "big"), place + 1 + width
        yield tag, data[place : place + size]
        place += size
