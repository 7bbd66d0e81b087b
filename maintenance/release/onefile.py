"""Program of `gpuprov.pyz`: makes gpuprov's environment once, and starts gpuprov in it.

The file contains gpuprov, its dependencies that are pure Python, and pip, as wheels. Compiled dependencies
are fetched by pip, with the hashes that the file contains. Ansible and pytest are started as programs and
read real files, so everything is installed into a virtual environment in the cache; the name of its folder
contains the hash of the whole file.

Standard library only, and Python 3.6, so that an older Python gets a message and no SyntaxError.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from gpuprov.files import mutex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ABOUT = "about.json"
"""File with the version, the Pythons and the names of the compiled dependencies."""
INSTALL = "install.lock"
"""Requirements file for pip: all wheels, by path or by version, with their hashes."""
WHEELS = "wheels"
"""Folder of the wheels."""
READY = "ready"
"""File in an environment that is complete; it is written last."""
WAIT_S = 900.0
"""Seconds to wait for another process that makes the same environment."""
PIP_S = 600.0
"""Longest time of pip in seconds, less than `WAIT_S`. Its own limit is for each read."""
PIP_LIMITS = "ulimit -v 4194304 2>/dev/null; ulimit -f 524288 2>/dev/null"
"""Limits of pip: 4 GiB of memory, where the system has such a limit, and 256 MiB for a file.

The compiled wheels have up to 5 MB.
"""
SAID = 65536
"""Size in bytes of the end of pip's standard error that is read."""
TRIES = {"PIP_RETRIES": "1", "PIP_TIMEOUT": "30"}
"""Settings of pip unless the operator states others: without an index pip would try for minutes."""
STARTED = "GPUPROV_PYZ_STARTED"
"""Variable of a process that was started with another Python, so that this is tried once."""
FAILED, REFUSED, INTERRUPTED = 1, 5, 130
"""Exit codes, as gpuprov's."""
SYSTEM = str(sysconfig.get_config_var("SOABI"))
"""Python's version, processor and system: `cpython-311-x86_64-linux-gnu`."""


class Stop(Exception):
    """Error that ends the program, with its exit code; the text is the message."""

    def __init__(self, code: int, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{seen}; expected {expected}; {do}")
        self.code = code


def main() -> int:
    """Replace this process by gpuprov, whose environment is made first if it is missing; return an exit code
    only if that is not possible, after a message.
    """
    archive = Path(__file__).absolute().parent
    try:
        with zipfile.ZipFile(str(archive)) as whole:
            about = json.loads(whole.read(ABOUT).decode())
        check_python(about["python"])
        program = str(environment(archive, about) / "bin/gpuprov")
        os.execv(program, [program, *sys.argv[1:]])  # noqa: S606
    except Stop as stop:
        code, message = stop.code, str(stop)
    except mutex.NotOurs as error:
        code, message = REFUSED, f"{error.filename}: {error.strerror}"
    except OSError as error:
        code = FAILED
        message = f"{error}; name a folder that you can write and that has room: XDG_CACHE_HOME=FOLDER"
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted"
    sys.stderr.write(f"gpuprov.pyz: {message}\n")
    return code


def check_python(known: "list[list[int]]") -> None:
    """Check that this Python can run gpuprov; otherwise start this file again with one in PATH that can.

    RHEL 9's `python3` is 3.9.

    Args:
        known: major and minor number of each that can, the oldest first.

    Raises:
        Stop: this Python is too old or too new, and there is no other.
        OSError: the other one cannot be started.
    """
    if list(sys.version_info[:2]) in known:
        os.environ.pop(STARTED, None)
        return
    oldest, newest = (".".join(map(str, each)) for each in (known[0], known[-1]))
    if STARTED not in os.environ:
        os.environ[STARTED] = "1"
        for major, minor in reversed(known):
            other = shutil.which(f"python{major}.{minor}")
            if other:
                os.execv(other, [other, *sys.argv])  # noqa: S606
    raise Stop(
        REFUSED,
        f"this is Python {sys.version_info[0]}.{sys.version_info[1]} ({sys.executable})",
        f"Python {oldest} to {newest}",
        "install one; RHEL 9: dnf install python3.12",
    )


def environment(archive: Path, about: "dict[str, Any]") -> Path:
    """Return the folder of the environment of an archive and this Python; make it first if it is missing,
    under a lock.

    The operator's umask decides who can read it; group and others cannot write it.

    Raises:
        Stop: pip cannot install it.
        NotOurs: a folder is another user's, or others may write it or one above it.
        OSError: a folder cannot be created, or another process makes it for longer than `WAIT_S`.
    """
    os.umask(os.umask(0o077) | 0o022)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuprov"
    mutex.own_folder(str(cache), 0o700)
    from gpuprov.files import ways  # which Python 3.6 cannot read

    ways.require_own_above(cache)
    name = f"{sha256(archive)[:32]}-{SYSTEM}"
    folder = cache / "pyz" / name
    if not is_ready(folder):
        with mutex.held(str(cache / "locks" / name), WAIT_S):
            if not is_ready(folder):
                make(archive, folder, about)
    return folder


def is_ready(folder: Path) -> bool:
    """Return whether an environment is complete, and its Python still installed.

    Raises:
        NotOurs: the folder, or the one above it, is another user's, or others may write it.
    """
    for each in (folder.parent, folder):
        if os.path.lexists(str(each)):
            mutex.own_folder(str(each), 0o755)
    return all((folder / each).exists() for each in (READY, "bin/python", "bin/gpuprov"))


def make(archive: Path, folder: Path, about: "dict[str, Any]") -> None:
    """Make an environment: by venv, and by the pip of the archive, which may fetch compiled packages; remove
    an incomplete one first.

    Raises:
        Stop: pip cannot install it.
        OSError: it cannot be written.
    """
    import venv

    compiled, version = ", ".join(about["compiled"]), about["version"]
    sys.stderr.write(
        f"gpuprov.pyz: first start of gpuprov {version}, installing into {folder}; "
        f"pip fetches by hash what is compiled: {compiled}\n"
    )
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    venv.EnvBuilder(symlinks=True).create(str(folder))
    with zipfile.ZipFile(str(archive)) as whole:
        inside = [each for each in whole.namelist() if each == INSTALL or each.startswith(f"{WHEELS}/")]
        whole.extractall(str(folder), inside)
    [pip] = (folder / WHEELS).glob("pip-*.whl")
    error = install(folder, pip)
    if error:
        start = sys.argv[0]
        raise Stop(
            FAILED,
            f"{compiled} cannot be installed: {error}",
            f"an index or a folder that has them for {SYSTEM}",
            f"type PIP_INDEX_URL=https://MIRROR/simple {start}, "
            f"or PIP_NO_INDEX=1 PIP_FIND_LINKS=WHEELHOUSE {start}",
        )
    shutil.rmtree(str(folder / WHEELS))
    (folder / READY).write_text(f"{version}\n")


def install(folder: Path, pip: Path) -> str:
    """Install the requirements file into an environment; return why that failed, empty if it did not.

    pip and its processes are killed after `PIP_S`, and by an interrupt.
    """
    limited = ["/bin/sh", "-c", PIP_LIMITS + '; exec "$@"', "sh", *install_command(folder, pip)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            limited,
            cwd=str(folder),
            env={**TRIES, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = process.wait(PIP_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"pip did not end within {PIP_S:.0f} s"
        said.seek(max(0, said.seek(0, os.SEEK_END) - SAID))
        return last_error(said.read()) if code else ""


def install_command(folder: Path, pip: Path) -> "list[str]":
    """Return the command that installs the requirements file into an environment.

    Args:
        pip: pip's wheel, from which pip can be started.
    """
    words = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    words += ["--require-hashes", "--only-binary", ":all:", "--requirement", INSTALL]
    return [str(folder / "bin/python"), "-I", str(pip / "pip"), *words]


def last_error(said: bytes) -> str:
    """Return the last error in pip's standard error, or its last line; printable characters only."""
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")] or lines[-1:] or ["no message"]
    return "".join(each if each.isprintable() else "?" for each in errors[-1].replace("ERROR: ", "", 1))[:300]


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
