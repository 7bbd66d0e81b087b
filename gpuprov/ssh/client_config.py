"""Options for a host in `~/.ssh/config`, as ssh itself reads them (`ssh -G`); without a user there, root.

One process for each of ten thousand hosts would take minutes. Hosts therefore share one result if the files
cannot distinguish them: no pattern except `*` matches the name, and no option depends on the name.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import stated_path

FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
"""Files that ssh reads (ssh(1), FILES), in its order: the first value found for an option applies."""
ANYBODY = "a-host-that-no-pattern-names.invalid"
TIMEOUT_S = 20
Answer = Mapping[str, Sequence[str]]


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
    patterns = _patterns(FILES)
    if patterns is None or any(fnmatchcase(address.lower(), each) for each in patterns):
        answer = _ask(FILES, address, user, port, otherwise)
        if not _depends_on_login(FILES):
            return answer
        # A `Match` line before the one that names the user is compared with the local user, and is in force
        # in the login, which states both.
        return _ask(FILES, address, answer["user"][0], int(answer["port"][0]), otherwise)
    if not any(stated_path(path).exists() for path in FILES):
        return {}
    return {**_ask(FILES, ANYBODY, None, None, otherwise), "hostname": (address,)}


def usual_keys() -> tuple[str, ...]:
    """Return the private keys that ssh tries if no option names one.

    Raises:
        InvalidInput: as `client_config`.
    """
    return tuple(_ask((), ANYBODY, None, None, None).get("identityfile", ()))


def forget_client_config() -> None:
    """Clear the caches, so that the files are read again."""
    _patterns.cache_clear()
    _depends_on_login.cache_clear()
    _ask.cache_clear()


@lru_cache(maxsize=20_000)
def _ask(
    files: Sequence[str], address: str, user: str | None, port: int | None, otherwise: str | None
) -> Answer:
    """Run `ssh -G` for a host with these configuration files; return the options that it prints: name →
    values.

    It runs commands of `Match exec` in them.

    Raises:
        InvalidInput: as `client_config`.
    """
    options = [("User", user), ("Port", port)]
    stated = [word for name, value in options if value for word in ("-o", f"{name}={value}")]
    with tempfile.NamedTemporaryFile("w", prefix="gpuprov-ssh-config-") as file:
        lines = [f"Include {path}" for path in files]
        lines += ["Match all", f"User {otherwise}"] if otherwise else []  # the first value applies
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        command = ["ssh", "-T", "-G", "-F", file.name, *stated, "--", address]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise InvalidInput(
                "ssh is not installed here, and there are files that configure it: " + ", ".join(files),
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


@lru_cache(maxsize=4)
def _patterns(files: Sequence[str]) -> frozenset[str] | None:
    """Return the patterns in the files' `Host` lines except `*`, in lower case and without `!`; None if only
    ssh can distinguish hosts.
    """
    found: set[str] = set()
    for path in files:
        for words in _lines(stated_path(path), depth=0):
            keyword = words[0].lower()
            if keyword == "host":
                found |= {word.lower().lstrip("!") for word in words[1:]} - {"*"}
            depends = keyword in ("match", "canonicalizehostname", "include") or "%" in "".join(words)
            if depends and [word.lower() for word in words] != ["match", "all"]:
                return None
    return frozenset(found)


@lru_cache(maxsize=4)
def _depends_on_login(files: Sequence[str]) -> bool:
    """Return whether options can depend on the user or the port of the login: by `Match user` or `Match
    exec`, or in files that `_lines` does not read.
    """
    lines = (words for path in files for words in _lines(stated_path(path), depth=0))
    return any(
        keyword == "include" or (keyword == "match" and re.search("user|exec", " ".join(values).lower()))
        for keyword, *values in ([words[0].lower(), *words[1:]] for words in lines)
    )


def _lines(path: Path, depth: int) -> Iterator[list[str]]:
    """Yield the words of each line; an `Include` line is replaced by the lines of its files.

    An `Include` line is yielded unchanged if it is nested too deeply or contains `$` or `%`. A file that
    cannot be read is like an empty one.
    """
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return
    home = stated_path("~/.ssh")
    for line in text.splitlines():
        words = [word.strip('"') for word in re.split(r"[ \t=]+", line.strip()) if word]
        if not words or words[0].startswith("#"):
            continue
        if words[0].lower() != "include" or depth > 8 or "$" in line or "%" in line:
            yield words
            continue
        base = home if path.is_relative_to(home) else Path("/etc/ssh")
        for stated in words[1:]:
            pattern = base / os.path.expanduser(stated)  # noqa: PTH111 - Path has no glob of absolute patterns
            for each in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
                yield from _lines(each, depth + 1)
