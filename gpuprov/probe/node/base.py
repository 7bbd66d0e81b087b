"""Registry of collectors, and access to files and commands of a node, with limits of size and time."""

import os
import re
import selectors
import signal
import stat
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Values = dict[str, Any]
    Place = tuple[str, str]
    Collector = Callable[[Values], Any]

COLLECTORS = {}  # type: dict[str, tuple[Collector, float]]
"""Name → (function of the parameters, time-out in seconds)."""

READ_LIMIT = 4 * 1024 * 1024
"""Maximum number of bytes of a file that are read."""
READ_AT_ONCE = 64 * 1024  # /proc/sys answers a larger read with "cannot allocate memory"
OUTPUT_LIMIT = 4 * 1024 * 1024
"""Maximum number of bytes of a command's two outputs together."""
LINKS_MAX = 40  # in one path, as in the kernel
CHILDREN = set()  # type: set[subprocess.Popen[bytes]]
"""Running commands, which the probe kills at its end."""
ENVIRONMENT = dict(
    os.environ,
    LC_ALL="C",
    LANGUAGE="C",
    SYSTEMD_COLORS="0",
    PATH=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)
FOLDERS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
"""Folders in order of precedence: a file hides those of the same name in later folders (sysctl.d(5),
systemd-system.conf(5)).
"""
MOUNTS = "/proc/mounts"
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", 7)
"""The kernel's clock of the time since boot, which has no name in Python 3.6."""
FRESH_UNIT = "getty@gpuprov.service"
"""Instance of systemd's own template that is never started: systemd loads it when it is shown."""


class Failed(Exception):
    """Failure of a collector or command; the text is the reason."""


def collector(seconds: float = 10.0) -> "Callable[[Collector], Collector]":
    """Return a decorator that registers a function as collector under its own name, with its time-out."""

    def register(function: "Collector") -> "Collector":
        COLLECTORS[function.__name__] = (function, seconds)
        return function

    return register


def read(path: str, limit: int = READ_LIMIT) -> str:
    """Return the text of a file, up to `limit` bytes; invalid UTF-8 is replaced.

    Raises:
        OSError: it cannot be read.
    """
    chunks = []
    with open(path, "rb", buffering=0) as file:
        while limit > 0:
            chunk = file.read(min(limit, READ_AT_ONCE))
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
    return b"".join(chunks).decode("utf-8", "replace")


def read_or_none(path: str, limit: int = READ_LIMIT) -> "str | None":
    """Return the text of a file, up to `limit` bytes; `None` if it does not exist or is not readable."""
    try:
        return read(path, limit)
    except OSError:
        return None


def lines_in(path: str) -> "list[str]":
    """Return the lines of a file; none if it does not exist or is not readable."""
    return (read_or_none(path) or "").splitlines()


def mounted() -> "list[list[str]]":
    r"""Return the words of each line of /proc/mounts, without mounts by users.

    Their names can have any length, and would push out those of root. Only `\n` ends a line, and a blank a
    word. The kernel states the user of each mount of FUSE.

    Raises:
        OSError: it cannot be read.
    """
    with open(MOUNTS, encoding="utf-8", errors="replace", newline="\n") as file:
        rows = (line[:-1].split(" ") for line in file)
        return [row for row in rows if row[2][:4] != "fuse" or ",user_id=0," in row[3]]


def is_ours(about: os.stat_result) -> bool:
    """Return whether a link belongs to root or to the probe's user; others are not followed.

    They could lead to any device, and opening one can have effects (/dev/watchdog).
    """
    return about.st_uid in (0, os.geteuid())


def read_of_users(path: str, limit: int = 65536) -> "str | None":
    """Return the text of a regular file in a place that users can write, None where `bytes_of_users` returns
    None.
    """
    content = bytes_of_users(path, limit)
    return None if content is None else content.decode("utf-8", "replace")


def bytes_of_users(path: str, limit: int) -> "bytes | None":
    """Return the first `limit` bytes of a regular file in a place that users can write.

    `None` for any other kind of file, for a path with a link of another user, and for a file that does not
    exist or is not readable. A file is opened only after it was found to be regular, and by its entry in
    /proc, so that it cannot be replaced in between.
    """
    try:
        found = _find(path)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                return None
            handle = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(found)
        with os.fdopen(handle, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def _find(path: str) -> int:
    """Return a handle of the file at an absolute path, opened by O_PATH, which has no effect on a device.

    Raises:
        OSError: it does not exist, or the path has too many links or one of another user.
    """
    here = os.open("/", os.O_PATH)
    names, links = path.split("/"), 0
    try:
        while names:
            name = names.pop(0) or "."
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
            about = os.fstat(found)
            if stat.S_ISLNK(about.st_mode):
                target = os.readlink("", dir_fd=found)
                os.close(found)
                links += 1
                if links > LINKS_MAX or not is_ours(about):
                    raise PermissionError(path)  # noqa: TRY301
                names = target.split("/") + names
                found = os.open("/" if target[0] == "/" else ".", os.O_PATH, dir_fd=here)
            os.close(here)
            here = found
    except BaseException:
        os.close(here)
        raise
    return here


def path_of_root(path: str) -> "str | None":
    """Return the real path of a file whose place root alone decides; None if it does not exist, or if another
    user could put another file or link there. A link of another user is not followed: it could lead to a file
    system that does not answer.
    """
    try:
        found = _find(path)
        try:
            real = os.readlink(f"/proc/self/fd/{found}")
        finally:
            os.close(found)
        places = [real, *_folders(path), *_folders(real)]
        alone = all(is_ours(each) and not each.st_mode & 0o022 for each in map(os.stat, places))
    except OSError:
        return None
    return real if alone else None


def _folders(path: str) -> "Iterator[str]":
    """Yield each folder above a path, `/` last."""
    while path.strip("/"):
        path = os.path.dirname(path)
        yield path


def closed(path: str) -> "str | None":
    """Return the first of a file's folders, or the file itself, that other users cannot read; None if they
    can, or there is no such file.
    """
    for each in [*_folders(path)][::-1] + [path] if os.path.exists(path) else ():
        mode = os.stat(each).st_mode
        if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return each
    return None


def text_in(path: str) -> str:
    """Return the stripped text of a short file, such as one of sysfs; "" if it cannot be read."""
    return (read_or_none(path, 4096) or "").strip()


def names_in(folder: str) -> "list[str]":
    """Return the sorted names in a folder, also hidden ones; [] if the folder cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def link_name(path: str) -> "str | None":
    """Return the last part of a link's target; `None` if it is not a link or does not exist."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def find_program(name: str) -> "str | None":
    """Return the full path of a program, or `None`.

    Folders of system programs are searched for every user.
    """
    for folder in ENVIRONMENT["PATH"].split(":"):
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def dropped_in(folder: str, suffix: str = ".conf") -> "list[str]":
    """Return the effective files of a folder like `sysctl.d`, sorted by name, without hidden ones.

    A file hides those of the same name in later `FOLDERS`.
    """
    paths = {}  # type: dict[str, str]
    for root in FOLDERS:
        for name in names_in(root + "/" + folder):
            if name.endswith(suffix):
                paths.setdefault(name, f"{root}/{folder}/{name}")
    return [paths[name] for name in sorted(paths)]


def lines_of(path: str) -> "Iterator[Place]":
    """Yield `path:number` and stripped text of the lines that are neither empty nor comments (`#`, `;`).

    Nothing for a file that cannot be read.
    """
    for number, line in enumerate(lines_in(path), 1):
        if line.strip() and line.lstrip()[0] not in "#;":
            yield f"{path}:{number}", line.strip()


def systemd_lines() -> "Iterator[Place]":
    """Yield `path:number` and text of the lines of systemd's own configuration.

    The last assignment counts.
    """
    main = next(
        (path for path in (root + "/systemd/system.conf" for root in FOLDERS) if os.path.exists(path)), ""
    )
    for path in [main, *dropped_in("systemd/system.conf.d")]:
        yield from lines_of(path)


def run(*argv: str, seconds: float = 10.0, **more: "Any") -> str:
    """Return the standard output of a command that succeeded; after `seconds` it is killed with its children.

    Raises:
        Failed: it is not installed, failed, or did not end in time.
    """
    code, out, err = run_anyway(*argv, seconds=seconds, **more)
    if code != 0:
        said = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise Failed(f"{argv[0]} exited with {code}: {said[:300]}")
    return out


def run_anyway(*argv: str, seconds: float = 10.0, **more: "Any") -> "tuple[int, str, str]":
    """Return exit code, standard output and standard error of a command, also if it failed.

    It runs without input, with messages in English, and is killed with its children after `seconds`.

    Args:
        more: further arguments of `subprocess.Popen`, such as `env` with all its variables. Secrets may be in
            them, and not in `argv`, which all users can read.

    Raises:
        Failed: it is not installed, did not end in time, or printed more than `OUTPUT_LIMIT`.
    """
    program = find_program(argv[0])
    if program is None:
        raise Failed(f"{argv[0]} is not installed")
    child = subprocess.Popen(
        (program, *argv[1:]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
        **{"env": ENVIRONMENT, **more},
    )
    CHILDREN.add(child)
    deadline = time.monotonic() + seconds
    try:
        out, err = _drain(child, deadline)
        code = child.wait(max(0.1, deadline - time.monotonic()))
        return code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    except (Failed, subprocess.TimeoutExpired) as failed:
        stop(child)
        raise Failed(f"{argv[0]} {failed}") from None
    finally:
        CHILDREN.discard(child)


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child with its whole process group.

    Wait for up to 0.2 s, as it may be in uninterruptible sleep.
    """
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        return
    for _ in range(20):
        if child.poll() is not None:
            return
        time.sleep(0.01)


def _drain(child: "subprocess.Popen[bytes]", deadline: float) -> "tuple[bytes, bytes]":
    """Return standard output and standard error, read up to their end.

    Raises:
        Failed: the deadline is over, or they are larger than `OUTPUT_LIMIT` together.
    """
    outputs = ([], [])  # type: tuple[list[bytes], list[bytes]]
    size = 0
    pipes = [pipe for pipe in (child.stdout, child.stderr) if pipe]
    with pipes[0], pipes[1], selectors.DefaultSelector() as selector:
        for pipe, chunks in zip(pipes, outputs):
            selector.register(pipe, selectors.EVENT_READ, chunks)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed("did not answer in time")
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 65536)
                size += len(chunk)
                if size > OUTPUT_LIMIT:
                    raise Failed(f"answered more than {OUTPUT_LIMIT} bytes")
                if chunk:
                    key.data.append(chunk)
                else:
                    selector.unregister(key.fileobj)
    return b"".join(outputs[0]), b"".join(outputs[1])


_WORDS = re.compile("(?i)passw(?:or)?d|secret|token|api_?-?key|credential")
_NAME = r"(?<![\w.-])[\w.-]+"
"""A name from its beginning: users choose texts, and a pattern that also begins inside of names takes the
square of their length.
"""
_ASSIGNED = re.compile(_NAME + r"""["']?\s*[=:]\s*["']?"""), re.compile(r"""[^\s"',;]+""")
_OPTION = re.compile(_NAME + r"\s+"), re.compile(r"[^\s;]+")
_IN_URL = re.compile(r"(\w://)[^/\s\"']+@")
HIDDEN = "(hidden)"


def redact(text: str) -> str:
    """Return the text with values of passwords, tokens and keys as `(hidden)`, also those inside URLs."""
    text = _hide(_hide(text, "", *_ASSIGNED), "--", *_OPTION)
    return _IN_URL.sub(r"\1" + HIDDEN + "@", text)


def _hide(text: str, begin: str, name: "re.Pattern[str]", value: "re.Pattern[str]") -> str:
    """Return the text with `(hidden)` for each value after a name with `begin` and, later, a secret word."""
    parts, end = [], 0  # type: list[str], int
    for found in name.finditer(text):
        place = found.group().find(begin)
        if found.start() < end or place < 0 or not _WORDS.search(found.group(), place):
            continue
        hidden = value.match(text, found.end())
        if hidden:
            parts += [text[end : found.end()], HIDDEN]
            end = hidden.end()
    return "".join(parts) + text[end:]


def blot_value(value: "Any", name: str = "") -> "Any":
    """Return a JSON value with secrets hidden, see `redact`.

    A text under a secret's name is hidden completely.
    """
    if isinstance(value, dict):
        return {key: blot_value(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [blot_value(inner, name) for inner in value]
    if isinstance(value, str):
        return HIDDEN if _WORDS.search(name) else redact(value)
    return value
