"""Options for a host in `~/.ssh/config`, as ssh itself reads them (`ssh -G`); without a user there, root.

One process for each of ten thousand hosts would take minutes. Hosts therefore share one result if the files
cannot distinguish them: no pattern except `*` matches their names, and no option depends on the name. This
module reads the files only to find that out; what it may read otherwise than ssh counts as a difference.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import stated_path

FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
"""Files that ssh reads (ssh(1), FILES), in its order: the first value found for an option applies."""
SSH = ("ssh",)
"""Begin of a command of ssh, which reads these files."""
ANY_HOST = "host.invalid"
TIMEOUT_S = 20
PLAIN = re.compile(r"[!#-&(-\[\]-~]+")
"""Words without quotes, backslashes and other characters that ssh may read in a way of its own."""
DEEPEST = 8
"""Maximum number of files that include the next one; ssh permits 16."""
Answer = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Files:
    """Dependencies of the options of hosts.

    Attributes:
        patterns: those of `Host` lines except `*`, in lower case and without `!`.
        by_name: whether only ssh can distinguish hosts.
        by_login: whether options can depend on the user or the port of the login, by a `Match` line.
        name_local_user: whether a line may name the local user.
    """

    patterns: frozenset[str]
    by_name: bool
    by_login: bool
    name_local_user: bool

    def distinguish(self, address: str) -> bool:
        """Return whether a host's options may differ from those of others that no pattern matches."""
        return self.by_name or any(fnmatchcase(address.lower(), each) for each in self.patterns)


_OTHERS: dict[tuple[Files, str | None], tuple[str, Answer]] = {}
"""Files and default user → a host that no pattern matches, and the options of all such hosts."""


def client_config(
    address: str, user: str | None, port: int | None, *, otherwise: str | None = "root"
) -> Answer:
    """Return the options that ssh would use for a host: name in lower case → values.

    The result is empty if ssh is not configured at all.

    Args:
        address: the name that ssh is called with.
        user, port: values stated elsewhere; `Match user` and tokens such as `%p` in the files depend on them.
        otherwise: the user if the files name none; None leaves the choice to ssh, which takes the local user.

    Raises:
        InvalidInput: ssh is not installed, does not end in time, or cannot read its files; then the message
            names the line.
    """
    files = _files(FILES)
    if files.distinguish(address):
        return _options(files, address, user, port, otherwise)
    if not any(_located(path).exists() for path in FILES):
        return {}
    other = address if files.distinguish(ANY_HOST) else ANY_HOST
    if (files, otherwise) not in _OTHERS:
        _OTHERS[files, otherwise] = other, _options(files, other, None, None, otherwise)
    first, found = _OTHERS[files, otherwise]
    return {**found, "hostname": (address,)} if found["hostname"] == (first,) else found


def _options(files: Files, address: str, user: str | None, port: int | None, otherwise: str | None) -> Answer:
    """Return the options of a host, with the user and the port that a login states.

    Raises:
        InvalidInput: as `client_config`.
    """
    found = _ask(SSH, address, user, port)
    if user is None and otherwise not in (None, local := _local_user()) and found["user"] == (local,):
        named = _user(address, port, otherwise) if files.name_local_user else otherwise
        found = {**found, "user": (named,)}
    # A `Match` line before the one that names the user was compared with the local user. The login states the
    # user, so that the line is in force there.
    return _ask(SSH, address, found["user"][0], port) if files.by_login else found


def _user(address: str, port: int | None, otherwise: str) -> str:
    """Return the user that the files name for a host, or `otherwise`: `ssh -G` prints the local user also if
    they name none.

    Raises:
        InvalidInput: as `client_config`.
    """
    with tempfile.NamedTemporaryFile("w", prefix="gpuprov-ssh-config-") as file:
        lines = [*(f'Include "{_located(path)}"' for path in FILES), "Match all", f"User {otherwise}"]
        file.write("".join(f"{line}\n" for line in lines))  # the first value applies
        file.flush()
        return _ask(("ssh", "-F", file.name), address, None, port)["user"][0]


def usual_keys() -> tuple[str, ...]:
    """Return the private keys that ssh tries if no option names one.

    Raises:
        InvalidInput: as `client_config`.
    """
    return tuple(_ask(("ssh", "-F", "none"), ANY_HOST, None, None).get("identityfile", ()))


def forget_client_config() -> None:
    """Clear the caches, so that the files are read again."""
    _files.cache_clear()
    _ask.cache_clear()
    _OTHERS.clear()


@lru_cache(maxsize=20_000)
def _ask(ssh: Sequence[str], address: str, user: str | None, port: int | None) -> Answer:
    """Run `ssh -G` for a host; return the options that it prints: name → values.

    It runs commands of `Match exec` in its files.

    Raises:
        InvalidInput: as `client_config`.
    """
    options = [("User", user), ("Port", port)]
    stated = [word for name, value in options if value for word in ("-o", f"{name}={value}")]
    command = [*ssh, "-T", "-G", *stated, "--", address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise InvalidInput(
            "ssh is not installed here, and there are files that configure it: " + ", ".join(FILES),
            do="install it (package openssh-client, or openssh-clients)",
        ) from None
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"ssh -G {address} does not end within {TIMEOUT_S} s", do="see `Match exec` in ~/.ssh/config"
        ) from None
    if done.returncode:
        raise InvalidInput(f"ssh cannot read its configuration: {_complaint(done.stderr)}")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), []).append(value)
    return {keyword: tuple(values) for keyword, values in found.items()}


def _complaint(text: str) -> str:
    """Return ssh's first message that names a line of a file, or its last message.

    The place is written as `FILE:3: Bad configuration option: prot`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = (re.sub(r"^(.+?):? line (\d+): ", r"\1:\2: ", line) for line in lines if " line " in line)
    return next(named, lines[-1] if lines else "no message")


def _local_user() -> str:
    """Return the name of the local user, as ssh finds it; empty if the user database has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _located(path: str) -> Path:
    """Return where ssh looks for one of `FILES`: its `~` is the user database's, also if $HOME is another."""
    user = _local_user()
    return stated_path(path.replace("~", f"~{user}", 1) if user and path.startswith("~") else path)


@lru_cache(maxsize=4)
def _files(paths: Sequence[str]) -> Files:
    """Return what options can depend on, by the lines of the files."""
    patterns: set[str] = set()
    local = _local_user()
    by_name = by_login = name_local_user = False
    bases = [stated_path("~/.ssh"), *[Path("/etc/ssh")] * (len(paths) - 1)]
    for path, base in zip(paths, bases, strict=True):
        for keyword, *words in _lines(_located(path), base, depth=0):
            plain = keyword not in ("host", "match") or _are_plain(words)
            unread = keyword == "include" or not (plain and re.fullmatch("[a-z0-9]+", keyword))
            matched = keyword == "match" and [word.lower() for word in words] != ["all"]
            if keyword == "host":
                patterns |= {word.lower().lstrip("!") for word in words} - {"*"}
            by_name |= unread or matched or keyword == "canonicalizehostname" or "%" in "".join(words)
            by_login |= unread or (matched and re.search("user|exec", " ".join(words).lower()) is not None)
            name_local_user |= unread or (keyword == "user" and words != [] and local in words[0])
    return Files(frozenset(patterns), by_name=by_name, by_login=by_login, name_local_user=name_local_user)


def _are_plain(words: Sequence[str]) -> bool:
    """Return whether ssh can read no word of a line in a way of its own."""
    return all(map(PLAIN.fullmatch, words))


def _lines(path: Path, base: Path, depth: int) -> Iterator[list[str]]:
    """Yield the keyword, in lower case, and the words of each line; files replace an `Include` line.

    An `Include` line is yielded unchanged if it is nested too deeply, has `$`, `%` or `[`, or is not plain. A
    file that cannot be read is like an empty one.

    Args:
        base: folder of relative paths, which is the same for all files that `path` includes (ssh_config(5)).
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return
    for line in text.split("\n"):
        keyword, *words = [word for word in re.split(r"[ \t\r\f=]+", line) if word] or ["#"]
        if keyword.startswith("#"):
            continue
        expanded = any(sign in line for sign in "$%[")
        if keyword.lower() != "include" or depth > DEEPEST or expanded or not _are_plain(words):
            yield [keyword.lower(), *words]
            continue
        for stated in words:
            pattern = base / os.path.expanduser(stated)  # noqa: PTH111 - Path has no glob of absolute patterns
            for each in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
                yield from _lines(each, base, depth + 1)
