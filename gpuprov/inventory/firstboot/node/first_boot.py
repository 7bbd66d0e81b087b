"""Program that brings this machine to its lock unattended, and reports the result.

It runs as gpuprov-first-boot.service at every boot until it is done. Its order is a JSON object that
`gpuprov inventory export cloud-init` or `gpuprov apply --image` wrote. Every step can be repeated: after an
interruption the next start continues. Exit codes: 0 done, 75 postponed (tried again), otherwise failed.
"""

import errno
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

try:
    from urls import origin, origin_and_file, public_urls  # type: ignore[import-not-found]
except ImportError:  # imported from the package: only on a machine urls.py is in this folder
    from gpuprov.untrusted.urls import origin, origin_and_file, public_urls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Values = dict[str, Any]

ORDER = Path("/etc/gpuprov/first-boot.json")
FOLDER = Path("/var/lib/gpuprov/first-boot")
STATE, DONE, VERDICT = FOLDER / "state.json", FOLDER / "done", FOLDER / "verify.xml"
VOLATILE = Path("/run/gpuprov-first-boot.json")  # a copy of the state, also if the disk is full
BROUGHT = FOLDER / "modules"
STORE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuprov/modules"
PROGRAM = Path("/opt/gpuprov")
COMMAND = Path("/usr/local/bin/gpuprov")
INSTANCE = Path("/var/lib/cloud/data/instance-id")
DEVICES = Path("/sys/bus/pci/devices")
UNIT = "gpuprov-first-boot.service"
STATES = ("running", "rebooting", "postponed", "failed", "done")
RELEASE_LOCK = "gpuprov/share/requirements.lock"  # in gpuprov's wheel: its dependencies with their hashes
POSTPONED = 75  # EX_TEMPFAIL of sysexits.h; the unit starts the program again after 2 minutes
PASSING_CODES = (4, 5, 124)  # gpuprov: a node is unreachable, or another run holds it; timeout: it was ended
REBOOTS_AT_MOST = 3
STARTING = (b"initializing\n", b"starting\n")
SETTLED_S, SETTLE_S = 180, 20  # limit for the start of a boot's units; pause before a second check
LARGEST = 64 << 20  # bytes of a lock or a wheel
LARGEST_MODULES = 512 << 20  # about 40 MB per kernel
LARGEST_TEXT = 4096
STEPS_AT_MOST = 200  # names and links in one path
ENTRIES_AT_MOST = 4096  # of a folder, among which temporary files of killed starts are found
FETCH_S, POST_S, CALL_S = 900, 30, 3600
PIP_LIMITS = "ulimit -v 4194304; ulimit -f 524288; exec timeout 600"  # 4 GiB of memory, 256 MiB for a file
SCHEMES = ("http", "https")
MESSAGE = 4000  # characters of a state's texts
FREE_MB = 600  # gpuprov and its dependencies need 300
OLDEST = (3, 11)
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")  # also those of the table of platforms
NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")  # PCI classes of GPUs with and without a display connector
AGAIN = f"the next boot tries again, and so does `systemctl start --no-block {UNIT}`"

FULL = re.compile(r"No space left|enough free space|too little room|disk is full|Disk quota exceeded")
LASTING = re.compile(r"does not have what the lock names|DO NOT MATCH THE HASHES")
PASSING = re.compile(
    r"Temporary failure|Could not (resolve|connect|get lock)|[Cc]onnection (refused|reset|failed|broken)"
    r"|[Tt]imed out|Network is unreachable|No route to host|Max retries|Failed to (fetch|establish)"
    r"|Hash Sum mismatch|unexpected size|not known\b|IncompleteRead|took longer than"
    r"|still at work|has held the|does not answer as it should|\b50[0234] +[A-Z]"
    r"|Curl error|Status code: (408|429|5\d\d)"  # dnf
)


class Ended(Exception):
    """The end of the work in this boot: state, cause (`seen`), what to `do`, and the exit code."""

    def __init__(self, state: str, seen: str, do: str = "", code: int = 1) -> None:
        super().__init__(seen)
        self.state, self.seen, self.do, self.code = state, seen, do, code


class Transient(Exception):
    """A failure that may pass by itself, so that the step is tried again."""


class Progress:
    """Progress of the order, kept across reboots in `STATE`."""

    def __init__(self, order: "Values") -> None:
        """Read the saved state and count this start; begin again if the order has another lock."""
        self.order = order
        try:
            self.state = json.loads(STATE.read_text("utf-8"))  # type: Values
        except (OSError, ValueError):
            self.state = {}
        if self.state.get("lock") != order["lock"]["sha256"]:
            self.state = {"began": clock(), "attempts": 0, "reboots": 0}
        self.state.update(schema="gpuprov.first-boot/1", host=os.uname().nodename[:253], instance=instance())
        self.state.update(lock=order["lock"]["sha256"], attempts=self.state["attempts"] + 1)

    def report(self, state: str, step: str, seen: str = "", do: str = "", code: "int | None" = None) -> None:
        """Write and print the state, also as a metric, even if a file cannot be written; with an exit code
        post it to the URL of the report.

        URLs in the texts are first reduced to their public form: the texts quote output of servers and pip.
        """
        seen, do = public_urls(seen)[:MESSAGE], public_urls(do)[:MESSAGE]
        self.state.update(state=state, step=step, message=seen, do=do, exit_code=code, at=clock())
        say("; ".join(filter(None, [f"{state} ({step})", seen, do])))
        text = json.dumps(self.state, indent=1, sort_keys=True) + "\n"
        for path, content, mode in (
            (VOLATILE, text, 0o600),
            (STATE, text, 0o600),
            (self._metrics, metrics(self.state), 0o644),
        ):
            try:
                write(path, content, mode)
            except OSError as error:
                say(f"{path} cannot be written: {error}")
        if code is not None and self.order.get("report"):
            post(self.order["report"], text.encode())

    def end(self, end: Ended) -> int:
        """Report that the work in this boot has ended; return the exit code."""
        self.report(end.state, self.state["step"], end.seen, end.do, end.code)
        return end.code

    @property
    def _metrics(self) -> Path:
        """The file for node_exporter."""
        return Path(self.order["metrics"])


def main() -> int:
    """Continue where the last start ended; return the exit code. When all is done, disable the unit.

    The folder is created, its state is updated, and a failure is reported there.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    progress = Progress(json.loads(ORDER.read_text("utf-8")))
    try:
        bring(progress)
    except Ended as end:
        return progress.end(end)
    except OSError as error:  # from local files: usually a full disk
        seen = str(error)
        return progress.end(disk_full(seen) if FULL.search(seen) else Ended("failed", seen, AGAIN))
    progress.report("done", "verify", "matches the lock", code=0)
    DONE.touch()
    subprocess.call(["systemctl", "disable", "--quiet", UNIT])
    return 0


def bring(progress: Progress) -> None:
    """Run every step in order; retry transient failures; reboot if applying or verifying needs it.

    Raises:
        Ended: a step failed, or was postponed.
    """
    order, until = progress.order, time.monotonic() + progress.order["patience_s"]

    def step(name: str, work: "Callable[..., Any]", *words: "Any") -> "Any":
        """Report a step as running, do it with retries in the remaining time, and return its result; raises
        as `patiently`.
        """
        progress.report("running", name)
        return patiently(work, words, until)

    step("look", look, order["gpus"])
    step("lock", bring_lock, order["lock"])
    step("modules", bring_modules, order["modules"])
    program = step("install", install, order["install"])
    words = [program, order["node"], order["lock"]["path"]]
    if step("apply", apply, *words):
        reboot(progress)
    if step("verify", verify, *words):
        reboot(progress)


def patiently(work: "Callable[..., Any]", words: "tuple[Any, ...]", until: float) -> "Any":
    """Return the result of a step; retry it after transient failures, with pauses of 10 to 60 s.

    Raises:
        Ended: it was not done until `until` (time.monotonic()): postponed; or it failed.
    """
    pause = 10.0
    while True:
        try:
            return work(*words)
        except Transient as trouble:
            if time.monotonic() + pause > until:
                raise Ended("postponed", str(trouble), AGAIN, POSTPONED) from None
            say(f"{trouble}; again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 60.0)


def look(count: int) -> None:
    """Wait up to `SETTLED_S` seconds for this boot's units to start; continue in any case.

    Raises:
        Ended: the machine has no NVIDIA GPU at all, but `count` is not 0.
    """
    until = time.monotonic() + SETTLED_S
    asked = ["systemctl", "is-system-running"]  # systemd 239 has no --wait
    while subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout.endswith(STARTING):
        if time.monotonic() > until:
            say(f"units of this boot are still starting after {SETTLED_S} s")
            break
        time.sleep(1)
    found = [path for path in DEVICES.glob("*") if small_text(path / "vendor") == NVIDIA]
    if count and not any(small_text(path / "class").startswith(DISPLAYS) for path in found):
        seen = f"no NVIDIA GPU on the PCI bus, the lock expects {count}"
        raise Ended("failed", seen, "take a machine with GPUs, or attach them and reboot")


def bring_lock(lock: "Values") -> None:
    """Fetch the lock if the order has a URL, and write it; otherwise check the hash of the lock on the disk.

    Raises:
        Transient, Ended: as `fetched`, or the hash is not the order's.
        OSError: the lock cannot be read or written.
    """
    path = Path(lock["path"])
    if lock["url"]:
        write(path, fetched(lock["url"], lock["sha256"], LARGEST).decode(), 0o644)
    elif digest(path.read_bytes()) != lock["sha256"]:
        raise Ended("failed", f"{path} is not the lock of this user-data", "export the user-data again")


def bring_modules(modules: "Values | None") -> None:
    """Extract the order's kernel modules, if any, into gpuprov's store, also those for other kernels.

    Nothing is done if they were extracted before.

    Raises:
        Transient, Ended: as `fetched`.
        OSError: the files cannot be written.
    """
    if not modules or small_text(BROUGHT) == modules["sha256"]:
        return
    archive = fetched(modules["url"], modules["sha256"], LARGEST_MODULES)
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(str(STORE))
    os.sync()  # a crash must not leave the mark without the modules
    write(BROUGHT, modules["sha256"])


def fetched(url: str, sha256: str, largest: int) -> bytes:
    """Return the content of a URL.

    Raises:
        Transient: no answer, HTTP 408, 429 or 5xx.
        Ended: another HTTP error, or the content is larger than `largest` bytes or has another hash.
    """
    place = origin_and_file(url)
    try:
        with within(FETCH_S), opened(urllib.request.Request(url)) as answer:  # noqa: S310 - see `opened`
            content = answer.read(largest + 1)  # type: bytes
    except urllib.error.HTTPError as error:
        seen = f"{place}: HTTP {error.code}"
        if error.code >= 500 or error.code in (408, 429):
            raise Transient(seen) from None
        raise Ended("failed", seen, "upload it, or export the user-data again; " + AGAIN) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Transient(f"{place}: {cause(error)}") from None
    if len(content) > largest:
        seen = f"{place} is larger than {largest} bytes, which no exported file is"
        raise Ended("failed", seen, "upload the exported file; " + AGAIN)
    if digest(content) != sha256:
        seen = f"{place} has the SHA-256 {digest(content)}; expected {sha256}"
        raise Ended("failed", seen, "upload the exported file; " + AGAIN)
    return content


def cause(error: Exception) -> str:
    """Return the text of an error of the system or of this program, and only the type of any other.

    Errors of Python's HTTP client quote parts of a URL, which may be its password.
    """
    return str(error) if isinstance(error, (OSError, Ended)) else type(error).__name__


class Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows at most 5 redirects, and never from HTTPS to another scheme."""

    max_redirections = 5

    def redirect_request(
        self, req: "Any", fp: "Any", code: int, msg: str, headers: "Any", newurl: str
    ) -> "Any":
        """Return the request that follows; the redirect's body is not read.

        Raises:
            Ended: its scheme is not allowed.
        """
        scheme = urlsplit(newurl).scheme
        if scheme not in (("https",) if req.type == "https" else SCHEMES):
            seen = f"{origin_and_file(req.full_url)} redirects from {req.type} to {scheme[:20]}"
            raise Ended("failed", seen, "upload the file to the stated URL; " + AGAIN)
        req.headers.pop("Proxy-authorization", None)  # urllib copies it, also for a host without a proxy
        fp.read = bytes  # urllib would read the whole body, which has no limit
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opened(request: "urllib.request.Request") -> "Any":
    """Return a server's answer to a request, to be read and closed; it may take `POST_S`.

    Raises:
        Ended: the URL, or a redirect, has a scheme that is not allowed.
        OSError: there is no answer, or it is an HTTP error.
    """
    if request.type not in SCHEMES:
        raise Ended("failed", f"{request.type} in a URL of the order; expected http or https", AGAIN)
    return urllib.request.build_opener(Redirects).open(request, timeout=POST_S)


@contextmanager
def within(seconds: int) -> "Iterator[None]":
    """Raise OSError in the context after `seconds`: a server may send one byte per minute.

    It uses SIGALRM, and so only in the main thread.
    """

    def late(_signal: int, _frame: "Any") -> None:
        raise OSError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def install(how: "Values") -> str:
    """Install gpuprov into a virtual environment, unless that is complete; return the path of its program.

    The order has the hash of the wheel, and the wheel the hashes of all dependencies: gpuprov is not
    installed from an index. Only wheels are installed: building from source would run code without a hash. An
    incomplete environment is removed first, and a link to the program is made at `COMMAND` if there is
    nothing. A program that the order names is only returned.

    Raises:
        Transient, Ended: a step failed, or too little space is free.
        OSError: a file cannot be written.
    """
    program, mark = PROGRAM / "bin/gpuprov", PROGRAM / ".installed"
    if how["program"]:  # part of an image
        return str(how["program"])
    if small_text(mark) == how["sha256"] and program.exists():
        return str(program)
    free = shutil.disk_usage("/opt").free >> 20
    if free < FREE_MB:
        raise disk_full(f"{free} MB are free at /opt, {FREE_MB} are needed")
    python = interpreter()
    shutil.rmtree(str(PROGRAM), ignore_errors=True)
    call(python, "-m", "venv", str(PROGRAM))
    wheel = PROGRAM / urlsplit(how["wheel"]).path.rpartition("/")[2]
    content = fetched(how["wheel"], how["sha256"], LARGEST)
    wheel.write_bytes(content)
    needed = PROGRAM / "requirements.lock"
    write(needed, "{}\n{} --hash=sha256:{}\n".format(release_lock(content), wheel, how["sha256"]))
    limited = ["sh", "-c", PIP_LIMITS + ' "$@"', "pip"]
    pip = [str(PROGRAM / "bin/python"), "-m", "pip", "--no-input", "--disable-pip-version-check", "install"]
    pinned = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(needed)]
    call(*limited, *pip, "--no-cache-dir", "--quiet", *pinned, **pip_index_variables(how["index"]))
    write(mark, how["sha256"])
    if not COMMAND.exists():
        COMMAND.symlink_to(program)
    return str(program)


def release_lock(wheel: bytes) -> str:
    """Return the requirements with hashes from gpuprov's wheel.

    Raises:
        Ended: it is not a wheel, or has none.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as files:
            return files.read(RELEASE_LOCK).decode()
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        seen = f"the wheel has no {RELEASE_LOCK}: {error}"
        raise Ended(
            "failed", seen, "make a wheel by `scripts/release wheel`, and export the user-data again"
        ) from None


def pip_index_variables(index: "str | None") -> "dict[str, str]":
    """Return pip's environment variables for an index; arguments would show its password.

    Empty without an index. An index by HTTP is trusted, as the packages' hashes are checked.
    """
    if not index:
        return {}
    place = urlsplit(index)
    trusted = {"PIP_TRUSTED_HOST": place.hostname or ""} if place.scheme == "http" else {}
    return dict(trusted, PIP_INDEX_URL=index)


def interpreter() -> str:
    """Return the name of a Python that gpuprov supports; install one if necessary.

    Raises:
        Transient, Ended: none can be installed.
    """
    for again in (False, True):
        for name in PYTHONS:
            if is_usable_python(name):
                return name
        if not again:
            install_python()
    oldest = ".".join(map(str, OLDEST))
    raise Ended("failed", f"no Python {oldest} or newer can be installed here", "install one; " + AGAIN)


def is_usable_python(python: str) -> bool:
    """Run a Python; return whether it exists, is at least `OLDEST` and can create virtual environments."""
    test = f"import ensurepip, sys, venv; sys.exit(sys.version_info < {OLDEST!r})"
    try:
        return subprocess.call([python, "-c", test], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def install_python() -> None:
    """Install a Python of at least 3.11 with its venv module, by apt-get or dnf: the first package that can
    be installed.

    Where dnf skips a repository that does not answer (skip_if_unavailable), it has no such package. Without
    --quiet it prints why a repository does not answer.

    Raises:
        Transient, Ended: it cannot be installed.
    """
    if shutil.which("apt-get"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        manager = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
        call(*manager, "update")
        names = ["python3-venv"] if sys.version_info >= OLDEST else ["python3.12-venv", "python3.11-venv"]
    else:
        manager, names = ["dnf"], ["python3.12", "python3.11"]
    for name in names:
        try:
            return call(*manager, "-y", "install", name)
        except Ended as error:
            if FULL.search(error.seen):
                raise
            failed = error
    if manager == ["dnf"]:
        call("dnf", "-y", "--setopt=*.skip_if_unavailable=0", "makecache")
    raise failed


def apply(program: str, node: str, lock: str) -> bool:
    """Bring the machine to its lock; return whether a reboot is needed. Differences that no role corrects are
    left to `verify`.

    Raises:
        Transient, Ended: it failed.
    """
    code, answer, said = gpuprov(program, "apply", "--yes", "--no-verify", "--lock", lock, "-o", "json", node)
    nodes = answer.get("nodes", [])
    if any(each.get("reboot_needed") for each in nodes):
        return True
    if code in (0, 3):  # 3: differences that no role repairs; verification reports them
        return False
    result = [
        event.get("msg") for each in nodes for event in each.get("failed") or [{"msg": each.get("reason")}]
    ]
    raise classified_failure(
        ": ".join(["gpuprov apply", *map(str, filter(None, result[:1])), *([] if result else [said])]), code
    )


def verify(program: str, node: str, lock: str) -> bool:
    """Check the machine against its lock, twice if it differs; return whether only a reboot is missing.

    Raises:
        Ended: it does not match.
    """
    words = [program, "verify", "--lock", lock, "-o", "json", "--junit", str(VERDICT), node]
    code, answer, said = gpuprov(*words)
    if code:  # services that have just started may need a moment
        time.sleep(SETTLE_S)
        code, answer, said = gpuprov(*words)
    if not code:
        return False
    nodes = answer.get("nodes", [])
    wrong = [c["check"] for each in nodes for c in each["checks"] if c["status"] == "failed"]
    if wrong == ["reboot.not_required"]:
        return True
    seen = "does not match the lock: {}".format(", ".join(wrong)) if wrong else said
    raise Ended("failed", seen, f"see {VERDICT}, or `gpuprov verify -v --lock {lock}`; {AGAIN}", code)


def gpuprov(*command: str) -> "tuple[int, Values, str]":
    """Run a verb; return its exit code, its JSON document ({} if none) and the last line of its stderr."""
    say(" ".join(command))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        answer, errors = process.communicate()
    said = errors.decode("utf-8", "replace").strip()
    say(said)
    try:
        document = json.loads(answer.decode("utf-8"))
    except ValueError:
        document = {}
    return process.returncode, document, (said.splitlines() or ["no message"])[-1]


def reboot(progress: Progress) -> None:
    """Count and report a reboot, then reboot; the unit starts again at the next boot. This function does not
    return.

    Raises:
        Ended: the order does not allow it, there were `REBOOTS_AT_MOST`, or it did not happen within 600 s.
    """
    if not progress.order["reboot"]:
        raise Ended("postponed", "a reboot is needed, and the order does not allow one", "reboot", POSTPONED)
    if progress.state["reboots"] >= REBOOTS_AT_MOST:
        seen = f"{REBOOTS_AT_MOST} reboots, and one more is needed"
        raise Ended("failed", seen, f"see `journalctl -u {UNIT}`")
    progress.state["reboots"] += 1
    progress.report("rebooting", progress.state["step"])
    subprocess.call(["sync"])
    subprocess.call(["systemctl", "--no-block", "reboot"])
    time.sleep(600)  # the shutdown ends this process
    raise Ended("failed", "the requested reboot did not happen", "reboot")


def call(*command: str, **variables: str) -> None:
    """Run a program without input, with additional environment variables. Print its output if it failed.

    Raises:
        Transient, Ended: it failed or took longer than `CALL_S`; its output decides which.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **variables),
            timeout=CALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Transient(f"{Path(command[0]).name}: took longer than {CALL_S} s") from None
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        say(said)
        telling = [line for line in said.splitlines() if FULL.search(line) or PASSING.search(line)]
        last = (telling or said.splitlines() or [f"exit {done.returncode}"])[-1]
        raise classified_failure(f"{Path(command[0]).name}: {last}", done.returncode)


def classified_failure(seen: str, code: int) -> "Transient | Ended":
    """Return the exception for a failure's text and exit code.

    `Transient` is to be retried, `Ended` is final for this boot: also for a full disk, and for what a retry
    cannot change (`LASTING`).
    """
    if FULL.search(seen):
        return disk_full(seen)
    if not LASTING.search(seen) and (code in PASSING_CODES or PASSING.search(seen)):
        return Transient(seen)
    return Ended("failed", seen, f"see `journalctl -u {UNIT}`; {AGAIN}", code)


def disk_full(seen: str) -> Ended:
    """Return the exception for a full disk."""
    return Ended("failed", "the disk is full: " + seen, "make room or grow the disk; " + AGAIN)


def post(url: str, document: bytes) -> None:
    """Send the state to the URL of the report; failures are only logged.

    There are three attempts, with pauses of 5 and 20 s.
    """
    for pause in (0, 5, 20):
        time.sleep(pause)
        try:
            request = urllib.request.Request(url, document, {"Content-Type": "application/json"})  # noqa: S310
            with within(POST_S):
                opened(request).close()
        except (OSError, ValueError, http.client.HTTPException, Ended) as error:
            say(f"{origin(url)} did not accept the report: {cause(error)}")
        else:
            return


def metrics(state: "Values") -> str:
    """Return the state in the format of node_exporter's textfile collector.

    The exit code is -1 until the end.
    """
    code = -1 if state["exit_code"] is None else state["exit_code"]
    states = {f'state{{state="{each}"}}': int(each == state["state"]) for each in STATES}
    rows = (
        ("state", "State of the first boot.", states),
        ("exit_code", "Exit code; -1 until the first boot has ended.", {"exit_code": code}),
        ("attempts", "Number of starts.", {"attempts": state["attempts"]}),
        ("reboots", "Number of reboots by the first boot.", {"reboots": state["reboots"]}),
        (
            "timestamp_seconds",
            "Time of the last change of the state.",
            {"timestamp_seconds": int(time.time())},
        ),
    )
    lines = []
    for name, what, values in rows:
        lines += [f"# HELP gpuprov_first_boot_{name} {what}", f"# TYPE gpuprov_first_boot_{name} gauge"]
        lines += [f"gpuprov_first_boot_{sample} {value}" for sample, value in values.items()]
    return "\n".join(lines) + "\n"


def instance() -> str:
    """Return the cloud's id of this machine from cloud-init; an empty text if it is not a plain name."""
    name = small_text(INSTANCE)
    return name if re.match(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z", name) else ""


def small_text(path: Path) -> str:
    """Return a file's text, up to `LARGEST_TEXT` bytes, stripped.

    An empty text if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_TEXT).decode("utf-8").strip()
    except (OSError, ValueError):
        return ""


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically, or create it with its folders.

    Other users may write into the metrics' folder. Incomplete files of earlier runs in the folder are
    removed.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    folder = opened_folder(str(path.parent))
    half = f".gpuprov-new-{os.urandom(8).hex()}"
    try:
        remove_left_over(folder)
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            os.rename(half, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(half, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def remove_left_over(folder: int) -> None:
    """Remove temporary files of starts that were killed, among the first `ENTRIES_AT_MOST` entries of an open
    folder: other users can create millions.
    """
    with os.scandir(f"/proc/self/fd/{folder}") as entries:  # Python 3.6 takes no descriptor
        for number, entry in enumerate(entries):
            if number == ENTRIES_AT_MOST:
                break
            if entry.name.startswith(".gpuprov-new-"):
                with suppress(OSError):  # a folder of that name, or already removed
                    os.unlink(entry.name, dir_fd=folder)


def opened_folder(path: str) -> int:
    """Return the descriptor of a folder, opened name by name; create missing ones.

    A link is followed only from a folder that no other user can write: elsewhere it can be replaced.

    Raises:
        OSError: a folder cannot be opened, or a link is in another user's folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    here, names = os.open("/", flags), path.split("/")
    for _ in range(STEPS_AT_MOST):
        if not names:
            return here
        above, name, target = here, names.pop(0) or ".", ""
        try:
            about = os.fstat(above)
            if about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022:
                with suppress(OSError):  # not a link
                    target = os.readlink(name, dir_fd=above)
            if target:
                names, name = target.split("/") + names, "/" if target.startswith("/") else "."
            else:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=above)
            here = os.open(name, flags, dir_fd=above)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(above)
    os.close(here)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def clock() -> str:
    """Return the current time in UTC, `2026-01-31T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def say(text: str) -> None:
    """Print a line for the journal and the console, with URLs in their public form."""
    print("gpuprov: " + public_urls(text), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
