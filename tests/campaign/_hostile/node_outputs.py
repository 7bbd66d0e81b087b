"""Another user on a node: files that root writes into that user's folders, and command lines."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from gpuprov.apply.lease_manager import MODULES as LEASE
from gpuprov.bootstrap import run as bootstrap
from gpuprov.errors import GpuprovError
from gpuprov.probe.payload import pack
from gpuprov.ssh.transport import Output
from tests.campaign._hostile.arena import EVE
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.metadata import Machine, _digest
from tests.campaign._hostile.node_users import OURS
from tests.campaign._hostile.words import payload

Try = Callable[[random.Random], None]


@way("user on a node", "first boot's metrics", "file", "line", share=300)
def metrics(field: Field) -> Try:
    """Try links in the folder of textfile metrics, which a monitoring user owns."""
    from gpuprov.inventory.firstboot.node import first_boot as program

    def once(rng: random.Random) -> None:
        """Make one try: write metrics into a folder with a planted link; raise Reached if a file outside
        changes.
        """
        machine = Machine(field.work / f"boot-{field.number}")
        folder = machine.folder / "metrics"
        folder.mkdir()
        os.chown(folder, EVE, EVE)
        name = "first.prom"
        target = rng.choice((field.theirs, field.written))
        planted = rng.choice((f".{name}.half", name, f"{name}.new", f"{name}.tmp", f".{name}.new"))
        (folder / planted).symlink_to(target)
        if rng.random() < 0.3:
            (folder / f".{name}.half").unlink(missing_ok=True)
            (folder / f".{name}.half").mkdir()
        order: dict[str, Any] = {
            "node": "here",
            "lock": {"path": str(machine.folder / "gpuprov"), "url": None, "sha256": _digest(machine)},
            "modules": None,
            "install": {
                "requirement": "",
                "sha256": None,
                "index": None,
                "program": str(machine.folder / "gpuprov"),
            },
            "gpus": 1,
            "reboot": True,
            "metrics": str(folder / name),
            "report": None,
            "patience_s": 0,
        }
        machine.places["ORDER"].write_text(json.dumps(order))
        mode = field.theirs.stat().st_mode
        field.theirs.chmod(0o600)
        with (
            patch.multiple(program, **machine.places),
            patch.object(program.time, "sleep", lambda _: None),
            patch.dict(os.environ, {"PATH": f"{machine.folder}:{os.environ['PATH']}"}),
            redirect_stdout(io.StringIO()),
        ):
            program.main()
        if field.theirs.stat().st_mode & 0o777 != 0o600:
            field.theirs.chmod(mode & 0o777)
            raise Reached("file", "the mode of a file outside was changed through a link")

    return once


class Overheard:
    """A session whose commands other users see in the process list, and root's in sudo's log."""

    def __init__(self, user: str) -> None:
        self.commands: list[str] = []
        self.target: Any = SimpleNamespace(name="node2", route=SimpleNamespace(user=user, login=user))

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Record the command."""
        self.commands.append(command)
        return Output(0, b"requested\ndone\n", b"")


@way("user on a node", "arguments", "key", share=200)
def arguments(field: Field) -> Try:
    """Try passwords of sudo and MOK manager, which must not be in any command line."""
    from gpuprov.bootstrap import secure_boot
    from gpuprov.probe.collect import collect
    from gpuprov.probe.payload import Parameters

    certificate: Any = SimpleNamespace(der=b"the certificate", fingerprint="ab" * 32, signer="Site")

    def once(rng: random.Random) -> None:
        """Make one try: run a command with a password, and raise Reached if a command line contains it."""
        session: Any = Overheard(rng.choice(("root", "ops")))
        secret = field.secret + payload(rng, field, "shell", "odd").replace("\n", "").replace("\ud800", "")
        what = rng.choice(("mok", "probe", "prepare", "lease"))
        with suppress(GpuprovError):
            if what == "mok":
                done = secure_boot.Enrolment()
                secure_boot._request("node2", session, certificate, done)
                words = " ".join(done.notes).partition("password ")[2]
                secret = words.partition(",")[0]
            elif what == "probe":
                collect(session, Parameters(), password=secret)
            elif what == "prepare":
                goal: Any = SimpleNamespace(public_keys={"node2": [OURS]}, wait_s=1, systems={})
                node: Any = SimpleNamespace(name="node2", target=session.target, changed=[], notes=[])
                bootstrap._prepare(node, session, goal, secret)
            else:
                asked = pack(LEASE, {"act": "take", "arguments": []}, password=secret)
                session.run(asked.command, asked.stdin)
        if not secret or any(secret in command for command in session.commands):
            raise Reached("key", f"a password is in a command line ({what})")

    return once
