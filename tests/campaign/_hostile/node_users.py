"""Another user on a node: links, locks, full disks and special files where root's programs write."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from gpuprov.access.deadman import as_root
from gpuprov.apply import loopback
from gpuprov.apply.lease_manager import MODULES as LEASE
from gpuprov.bootstrap import run as bootstrap
from gpuprov.errors import GpuprovError
from gpuprov.probe.payload import pack
from tests.campaign._hostile.arena import EVE, OPS, Arena, ArenaSession, quoted
from tests.campaign._hostile.field import THEIRS, Field, Reached, way
from tests.campaign._hostile.words import payload

Try = Callable[[random.Random], None]
OTHERS = [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{name} {name}@elsewhere" for name in ("KXl", "Bob", "Eve")]
OURS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ours@controller"
FILL = (
    "dd if=/dev/zero of=/tmp/full bs=4k 2>/dev/null;"
    " i=0; while echo x >/tmp/f$i 2>/dev/null; do i=$((i+1)); done; true"
)
BOUND_S = 45.0
"""Time limit in seconds of a program on a node if only another user delays it."""


class Homes:
    """A home whose authorized_keys contains others' keys, in a state made by another user or its owner."""

    def __init__(self, field: Field) -> None:
        self.field, self.arena = field, Arena(field)
        self.hung = False

    @property
    def session(self) -> ArenaSession:
        """A login as root."""

        def slow() -> None:
            self.hung = True

        return ArenaSession(self.arena, slow, BOUND_S)

    def plant(self, rng: random.Random) -> tuple[str, list[str]]:
        """Draw the state of a home; return its user, and the lines that must remain."""
        self.arena.clean()
        user = rng.choice(("root", "ops", "ops"))
        home, owner = ("/root", 0) if user == "root" else ("/home/ops", OPS)
        lines = [*OTHERS[: rng.randint(1, 3)]]
        if rng.random() < 0.4:
            lines.insert(rng.randint(0, len(lines)), "# " + payload(rng, self.field, "shell", "odd"))
        lines = [line.replace("\n", " ").replace("\0", "").replace("\ud800", "") or "# x" for line in lines]
        text = "\n".join(lines) + rng.choice(("\n", "\n", "", "\n\n"))
        ssh, file = f"{home}/.ssh", f"{home}/.ssh/authorized_keys"
        plain = (
            f"mkdir -p -m 700 {ssh}; printf %s {quoted(text)} >{file}; chmod 600 {file};"
            f" chown -R {owner}:{owner} {ssh}"
        )
        kind = rng.choice(
            (
                "plain",
                "plain",
                "full",
                "full",
                "home full",
                "link",
                "folder link",
                "fifo",
                "hard",
                "temporary",
            )
        )
        self.arena.shell(plain)
        outside = str(self.field.theirs)
        as_owner = {
            "link": f"mv {file} {file}.own; ln -s {outside} {file}",
            "folder link": f"mv {ssh} {ssh}.own; ln -s {self.field.outside} {ssh}",
            "fifo": f"rm {file}; mkfifo {file}",
            "temporary": f"for end in .gpuprov .new .tmp '~'; do ln -s {outside} {file}$end; done",
            "hard": f"ln {file} {home}/second",
        }
        if user == "root" and kind in as_owner:
            kind = "full"  # only the owner can do that to a home
        if kind == "full":
            self.arena.shell(FILL, EVE)
        elif kind == "home full":
            self.arena.shell(FILL.replace("/tmp", home), owner)
        elif kind in as_owner:
            self.arena.shell(as_owner[kind], owner)
            lines = lines if kind in ("temporary", "hard") else []
        self.kind = kind
        return user, lines

    def check(self, user: str, lines: list[str], what: str) -> None:
        """Check that all lines of others remain, and no other file was changed.

        Raises:
            Reached: a line is gone, another file was written, or the program did not end.
        """
        if self.hung:
            self.hung = False
            raise Reached("hang", f"{what} did not end in {BOUND_S:.0f} s ({self.kind})")
        home = "/root" if user == "root" else "/home/ops"
        if lines:
            found = (
                self.arena.shell(f"cat {home}/.ssh/authorized_keys")
                .stdout.decode("utf-8", "replace")
                .split("\n")
            )
            if gone := [line for line in lines if line not in found]:
                raise Reached(
                    "line", f"{what}, {self.kind}: {len(gone)} of {len(lines)} lines of {user} are gone"
                )
        if self.field.theirs.read_bytes() != THEIRS:
            raise Reached("file", f"{what}, {self.kind}: written through a link")


@way("user on a node", "keys for a trial", "file", "line", share=500, seconds=150)
def trial_key(field: Field) -> Try:
    """Try the key with which a node logs in to itself: added, and removed again."""
    homes = Homes(field)

    def once(rng: random.Random) -> None:
        """Make one try: add the key and remove it again."""
        user, lines = homes.plant(rng)
        kind, public = OURS.split()[:2]
        session = homes.session
        with suppress(GpuprovError):
            result = as_root(
                session, loopback._command("add", user, "60", kind, public), None
            ).stdout.decode()
            file = next((line[5:] for line in result.splitlines() if line.startswith("file ")), "")
            made = [line[5:] for line in result.splitlines() if line.startswith("made ")]
            if homes.kind not in ("full", "home full") and rng.random() < 0.3:
                homes.arena.shell(FILL, EVE)
                homes.kind += ", then full"
            as_root(session, loopback._command("remove", public, file or "/nowhere", *reversed(made)), None)
        homes.check(user, lines, "a key for a trial")

    return once


@way("user on a node", "bootstrap", "file", "line", "key", share=500, seconds=150)
def first(field: Field) -> Try:
    """Try bootstrap's script, also with cloud-init's line that refuses the user among the keys."""
    homes = Homes(field)

    def once(rng: random.Random) -> None:
        """Make one try: run the script, and check the user's files."""
        user, lines = homes.plant(rng)
        home = "/root" if user == "root" else "/home/ops"
        if rng.random() < 0.5 and lines and homes.kind != "home full":
            turned = f'no-pty,command="echo \'Please login as the user \\"x\\"\';sleep 10" {OURS}'
            homes.arena.shell(f"printf '\\n%s\\n' {quoted(turned)} >>{home}/.ssh/authorized_keys")
        node: Any = SimpleNamespace(
            name="node2", target=SimpleNamespace(route=SimpleNamespace(user=user)), changed=[], notes=[]
        )
        goal: Any = SimpleNamespace(public_keys={"node2": [OURS]}, wait_s=1, systems={})
        with suppress(GpuprovError):
            bootstrap._prepare(node, homes.session, goal, None)
        homes.check(user, lines, "bootstrap")

    return once


@way("user on a node", "leases", "line", share=60, seconds=150)
def leases(field: Field) -> Try:
    """Try locks that another user holds, and files in the places of a lease."""
    arena = Arena(field)

    def act(name: str, *arguments: Any) -> Any:
        """Run an act of the lease program on the node; return its answer."""
        asked = pack(LEASE, {"act": name, "arguments": list(arguments)}, become=False)
        output = arena.shell(asked.command, stdin=asked.stdin, seconds=BOUND_S)
        return asked.answer(output.stdout, output.stderr)

    def once(rng: random.Random) -> None:
        """Make one try: lease the node while another user holds locks; raise Reached if that fails or a file
        changes.
        """
        arena.clean()
        act("take", "run-1", "me", 600.0)
        act("release", "run-1")
        how = rng.choice(("-s", "-x"))
        grab = (
            "for each in /var/lib/gpuprov/* /var/lib/gpuprov/*/* /run/gpuprov/* /run/gpuprov/*/*; do "
            f'[ -f "$each" ] && flock {how} -n "$each" sleep 100 & done; '
            "for folder in /var/lib/gpuprov /run/gpuprov /tmp; do"
            " for name in lease.json.new lease.lock lease.json; do"
            f" ln -s {field.theirs} $folder/$name; done; done"
            " 2>/dev/null; wait"
        )
        holder = subprocess.Popen(
            arena.argv(grab, EVE), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        try:
            time.sleep(0.3)
            answer = act("take", "run-2", "me", 600.0)
            if answer.get("result", {}).get("run") != "run-2":
                raise Reached("hang", f"another user keeps the lease: {answer}")
        except subprocess.TimeoutExpired:
            raise Reached("hang", f"another user's lock ({how}) keeps all changes away") from None
        finally:
            os.killpg(holder.pid, 9)

    return once
