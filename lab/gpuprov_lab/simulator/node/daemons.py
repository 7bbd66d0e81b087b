"""Simulation of nvidia-persistenced and nv-fabricmanager: start, write a pid file,
run, clean up at SIGTERM.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import syslog
from collections.abc import Callable
from pathlib import Path

from .driver import library_version
from .files import Files
from .kernel import Kernel
from .settings import Settings

_NO_DEVICES = (
    "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, "
    "and that user {} has read and write permissions for those files."
)


def persistenced(files: Files, arguments: list[str]) -> int:
    """Run nvidia-persistenced(1) in the background: the driver keeps its settings while it lives.

    Return 0 once it runs, or 1 without its user, the driver or the library. It ends on SIGTERM or SIGINT. It
    writes its pid file, listens on its socket, and drops root's rights for `--user`.
    """
    syslog.openlog("nvidia-persistenced", syslog.LOG_PID, syslog.LOG_DAEMON)
    user = _option(arguments, "--user") or _option(arguments, "-u")
    try:
        owner = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError:
        sys.stderr.write(f"Failed to find user ID of user '{user}': Success\n")
        return 1
    kernel = Kernel(files)
    if "nvidia" not in kernel.modules() or library_version(files) is None:
        sys.stderr.write("nvidia-persistenced failed to initialize. Check syslog for more details.\n")
        return _fail(_NO_DEVICES.format(owner.pw_uid))
    folder = files.at("/run/nvidia-persistenced")
    folder.mkdir(exist_ok=True)
    pid_file = folder / "nvidia-persistenced.pid"
    settings = Settings(kernel)
    persistence = "--no-persistence-mode" not in arguments

    def started() -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(folder / "socket"))
        listener.listen()
        settings.set_daemon(os.getpid(), persistence)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(owner.pw_gid)
            os.setuid(owner.pw_uid)
        syslog.syslog(syslog.LOG_NOTICE, f"Started ({os.getpid()})")
        return listener

    def stopped() -> None:
        settings.set_daemon(None, persistence=False)
        (folder / "socket").unlink()
        syslog.syslog(syslog.LOG_NOTICE, f"Shutdown ({os.getpid()})")

    (folder / "socket").unlink(missing_ok=True)
    return _daemonise(pid_file, started, stopped)


def fabric_manager(files: Files, arguments: list[str]) -> int:
    """Run nv-fabricmanager in the background, by which the GPUs of an NVSwitch machine count as joined.

    Return 0 once it runs, or 1 without NVSwitches or the driver, or if its version is not the driver's.
    """
    syslog.openlog("nv-fabricmanager", syslog.LOG_PID, syslog.LOG_DAEMON)
    kernel = Kernel(files)
    nvidia = kernel.modules().get("nvidia")
    if nvidia is None or not kernel.machine.switches:
        return _fail(
            "request to query NVSwitch device information from NVSwitch driver failed "
            "with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
    own = _package_version(files, "fabricmanager")
    if own is not None and not own.startswith(nvidia["version"]):
        return _fail(
            f"fabric manager NVIDIA GPU driver interface version {own} don't match with driver version "
            f"{nvidia['version']}. Please update with matching NVIDIA driver package."
        )
    folder = files.at("/run/nvidia-fabricmanager")
    folder.mkdir(exist_ok=True)
    message = (
        f"Connected to {len(kernel.machine.switches)} NVSwitches, {len(kernel.machine.gpus)} GPUs configured"
    )
    return _daemonise(
        folder / "nv-fabricmanager.pid", lambda: syslog.syslog(syslog.LOG_INFO, message), lambda: None
    )


def _daemonise(pid_file: Path, started: Callable[[], object], stopped: Callable[[], None]) -> int:
    """Fork; the parent returns 0 once the child is ready, as systemd's Type=forking requires, or 1 if it
    fails.

    The child writes its pid file, calls `started`, waits for SIGTERM or SIGINT, and calls `stopped`;
    `started` may change its user.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    pid_file.write_text(f"{os.getpid()}\n")
    keep = started()
    os.write(writer, b"1")
    os.close(writer)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    stopped()
    pid_file.unlink(missing_ok=True)
    del keep
    return 0


def _package_version(files: Files, word: str) -> str | None:
    """Return the upstream version of the installed package whose name contains a word, or None."""
    status = files.at("/var/lib/dpkg/status")
    if not status.exists():
        return _rpm_version(word)
    for paragraph in status.read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[:40])
        if word in fields.get("Package", "") and fields.get("Status", "").endswith(" installed"):
            return fields["Version"].split(":")[-1].rsplit("-", 1)[0]
    return None


def _rpm_version(word: str) -> str | None:
    """Return the version of the first installed rpm whose name contains a word, or None."""
    listed = subprocess.run(
        ["rpm", "-qa", "--qf", "%{VERSION}\\n", f"*{word}*"], capture_output=True, text=True, check=False
    )
    return next(iter(listed.stdout.split()), None)


def _option(arguments: list[str], name: str) -> str | None:
    """Return the value of an option, written `--name VALUE` or `--name=VALUE`; None if it is not given."""
    for position, word in enumerate(arguments):
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
        if word == name and position + 1 < len(arguments):
            return arguments[position + 1]
    return None


def _fail(text: str) -> int:
    """Write an error to the system's log, and return exit status 1."""
    syslog.syslog(syslog.LOG_ERR, text)
    return 1
