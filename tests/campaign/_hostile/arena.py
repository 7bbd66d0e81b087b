"""A sandbox for the programs that run on nodes: separate mounts and account, stubs of services.

A mount namespace with empty file systems on /tmp, /root, /home, /run/gpuprov, /var/lib/gpuprov and /etc/ssh,
and an account `ops`. Actions of another user run in it with that user's rights.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import ConnectionLimits, Output, Session, Target
from tests.campaign._hostile.field import Field

OPS, EVE = 4711, 65534
STUBS = {
    "sshd": 'case "$*" in *-T*) printf "authorizedkeysfile .ssh/authorized_keys\\nport 22\\n" ;; esac',
    "sudo": "exit 0",
    "runuser": "exit 0",
    "visudo": "exit 0",
    "systemctl": "exit 0",
    "logger": "exit 0",
}
SETUP = """\
set -e
mount --make-rprivate /
cp -a /etc /run/etc-of-arena-$$ && mount -t tmpfs none /etc
cp -a /run/etc-of-arena-$$/. /etc && rm -r /run/etc-of-arena-$$
mkdir -p /run/hold && mount -t tmpfs none /run/hold
mkdir /run/hold/base && mount --bind {base} /run/hold/base
for each in /tmp /root /home /etc/ssh /var/lib/gpuprov; do
    mkdir -p $each; mount -t tmpfs -o size=2m,mode=0755 none $each
done
chmod 1777 /tmp
mkdir -p {base} && mount --move /run/hold/base {base}
mkdir -p /run/gpuprov /run/sshd && mount -t tmpfs -o mode=0755 none /run/gpuprov
printf '\nops:x:{ops}:{ops}::/home/ops:/bin/sh\n' >>/etc/passwd
printf '\nops:x:{ops}:\n' >>/etc/group
id ops >/dev/null
echo ready
exec sleep infinity
"""


class Arena:
    """The sandbox of this module; `shell` runs a line in it as root or as another user."""

    def __init__(self, field: Field) -> None:
        """Start a process with its own mounts, in which users of the node act.

        Raises:
            RuntimeError: it does not start.
        """
        self.stubs = field.base / "stubs"
        self.stubs.mkdir()
        for name, text in STUBS.items():
            (self.stubs / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.stubs / name).chmod(0o755)
        field.ignore(self.stubs)
        script = SETUP.format(base=field.base, ops=OPS)
        self._process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        field.stack.callback(self._process.kill)
        assert self._process.stdout
        said = self._process.stdout.readline()
        if said != b"ready\n":
            raise RuntimeError(f"no mounts of its own: {said!r} {self._process.stdout.read()!r}")

    def argv(self, line: str, user: int = 0) -> list[str]:
        """Return the command that runs a line in the sandbox."""
        rights = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return ["nsenter", "-t", str(self._process.pid), "-m", *rights, "sh", "-c", line]

    def shell(self, line: str, user: int = 0, seconds: float = 60, stdin: bytes = b"") -> Output:
        """Run a line.

        Raises:
            subprocess.TimeoutExpired: it does not end within `seconds`.
        """
        environment = {"PATH": f"{self.stubs}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
        done = subprocess.run(
            self.argv(line, user),
            input=stdin,
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        return Output(done.returncode, done.stdout, done.stderr)

    def clean(self) -> None:
        """Empty the file systems, and create new homes."""
        self.shell(
            "umount /root /home 2>/dev/null;"
            " for each in /root /home; do mount -t tmpfs -o size=2m,mode=0755 none $each; done;"
            " find /tmp -mindepth 1 -maxdepth 1 ! -path '/tmp/hostile-*' -exec rm -rf {} +;"
            "rm -rf /var/lib/gpuprov/* /run/gpuprov/*;"
            f"mkdir -m 700 /home/ops && chown {OPS}:{OPS} /home/ops; mkdir -m 700 /root/.ssh"
        )


class ArenaSession(Session):
    """A session whose commands run in a sandbox.

    Args:
        slow: function that is called if a command does not end in time.
    """

    def __init__(self, arena: Arena, slow: Callable[[], None], seconds: float) -> None:
        super().__init__(Target("node2", "local", Connection()), ConnectionLimits())
        self._arena, self._slow, self._seconds = arena, slow, seconds

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Run a command line as root."""
        try:
            return self._arena.shell(command, stdin=stdin, seconds=self._seconds)
        except subprocess.TimeoutExpired:
            self._slow()
            return Output(124, b"", b"")


def quoted(text: str) -> str:
    """Return text quoted for a shell."""
    return shlex.quote(text.replace("\0", ""))
