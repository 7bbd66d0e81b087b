"""Restart of sshd's unit, also if systemd has lost its main process.

Runs on the node, with the modules of plugins/module_utils. Argument: {"unit": "ssh.service" or its socket,
"needed": whether sshd has to read its files again, "check": false}. Prints {"changed": true}.

A process that the unit has started and lost (`gpuprov_sshd`) is ended first, also if no restart is needed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gpuprov_sshd
import gpuprov_unit
from gpuprov_failures import Failed

SECONDS_TO_END = 5.0
PORT_START = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
"""First port on which any user may listen, ip(7)."""


def main() -> None:
    """Restart the unit if that is needed; print the result, or the failure, as JSON."""
    try:
        document = restart(**json.loads(sys.argv[1]))
    except Failed as error:
        document = {"failure": {"says": str(error)}}
    except gpuprov_unit.Failed as error:
        document = {"failure": {"says": str(error), "do": error.do}}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def restart(unit: str, needed: bool, check: bool) -> dict:
    """End lost processes of sshd and restart the unit; return the task's result.

    Raises:
        Failed: sshd rejects its files, or a process does not end; the unit is not restarted.
        gpuprov_unit.Failed: systemd refused the restart.
    """
    lost = [each for each in gpuprov_sshd.others() if each.in_unit]
    changed = needed or bool(lost)
    if changed and not check:
        if lost:
            _try_files()
        socket = unit.endswith(".socket")
        with kept_ports():
            for each in lost:
                end(each)
            gpuprov_unit.settle(unit, None, "restarted", daemon_reload=socket, check=False)
    return {"changed": changed}


@contextmanager
def kept_ports() -> Iterator[None]:
    """Let no user listen on sshd's ports meanwhile, as they are free between its end and its start.

    On ports of outgoing connections users can always listen; the kernel refuses to reserve these.
    """
    reserved = first = 0
    with suppress(OSError):
        ports = [int(port) for port in re.findall(r"(?m)^port (\d+)$", _sshd("-T").stdout)]
        reserved, first = max(ports, default=0) + 1, int(PORT_START.read_text())
        if first < reserved:
            PORT_START.write_text(str(reserved))
    try:
        yield
    finally:
        if first < reserved:
            with suppress(OSError):
                PORT_START.write_text(str(first))


def end(process: gpuprov_sshd.Listener) -> None:
    """End a listening process; the connections that it has accepted have processes of their own.

    Raises:
        Failed: it still exists after `SECONDS_TO_END`.
    """
    deadline = time.monotonic() + SECONDS_TO_END
    while _is_signalled(process.pid):
        if time.monotonic() > deadline:
            raise Failed(f"process {process.pid} ({process.command}) of sshd does not end")
        time.sleep(0.1)


def _is_signalled(pid: int) -> bool:
    """Ask a process to end; return whether it exists."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True


def _try_files() -> None:
    """Check sshd's files, so that one runs again after the last has ended.

    Raises:
        Failed: sshd rejects them.
    """
    Path("/run/sshd").mkdir(exist_ok=True)
    tried = _sshd("-t")
    if tried.returncode:
        said = tried.stderr.strip()
        raise Failed(f"sshd -t reports an error in sshd's files, and sshd is not restarted: {said}")


def _sshd(option: str) -> subprocess.CompletedProcess[str]:
    """Run sshd with an option that starts no daemon; return its output and its exit code."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return subprocess.run(
        ["sshd", option],
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PATH": path},
    )


if __name__ == "__main__":
    main()
