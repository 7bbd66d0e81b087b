# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has a unit of systemd run, and start at boot, or not: what the action gpuprov_unit does on a node.

Runs there: Python 3.6 to 3.13 and its standard library. Argument: what plugins/modules/gpuprov_unit.yml has,
and `check`. Answers what that returns, with `failure` where systemd refuses.
"""

import json
import os
import re
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNNING = ("active", "activating", "reloading", "refreshing")
AT_BOOT = ("enabled", "static", "alias", "generated", "indirect")
"""What `systemctl is-enabled` says of units that need not be enabled, or cannot be otherwise."""
DONE = {
    "enable": "enabled",
    "disable": "disabled",
    "start": "started",
    "stop": "stopped",
    "restart": "restarted",
    "daemon-reload": "read again",
}
NONE = "systemd on the node has no unit {}"


class Failed(Exception):
    """systemd refused; `do` is where people look."""

    def __init__(self, says: str, do: "str | None" = None) -> None:
        super().__init__(says)
        self.do = do


def main() -> None:
    """Print the document."""
    try:
        document = settle(**json.loads(sys.argv[1]))
    except Failed as error:
        document = {"failure": {"says": str(error), "do": error.do}}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def settle(
    name: str, enabled: "bool | None", state: "str | None", daemon_reload: bool, check: bool
) -> "dict[str, Any]":
    """Make it so; what the task answers.

    Raises:
        Failed: systemd does not know the unit, or refuses.
    """
    if daemon_reload and not check:
        act("daemon-reload", name)
    acts = [*boot(name, enabled), *now(name, state)]
    for verb in acts if not check else ():
        act(verb, name)
    return {"changed": bool(acts), "acts": acts}


def boot(name: str, enabled: "bool | None") -> "list[str]":
    """What has to be done about the next boot."""
    if enabled is None:
        return []
    is_ = ask("is-enabled", name)[1]
    if is_ == "not-found" or "No such file" in is_:  # systemd from 254 on, and before
        raise Failed(NONE.format(name))
    if not re.fullmatch("[a-z-]+", is_):
        raise Failed(f"systemd does not say whether {name} is enabled: {is_}")
    if enabled:
        return [] if is_ in AT_BOOT else ["enable"]
    return ["disable"] if is_.startswith("enabled") else []


def now(name: str, state: "str | None") -> "list[str]":
    """What has to be done at once. Nothing in a tree that is not booted: there systemctl shows nothing."""
    if state is None:
        return []
    status, said = ask("show", "--property=LoadState,ActiveState", name)
    if status:
        raise Failed(f"systemd does not say what {name} does: {said}")
    is_ = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if not is_:
        return []
    if is_["LoadState"] == "not-found":
        raise Failed(NONE.format(name))
    running = is_["ActiveState"] in RUNNING
    if state == "restarted":
        return ["restart"]
    if state == "started":
        return [] if running else ["start"]
    return ["stop"] if running or is_["ActiveState"] == "deactivating" else []


def act(verb: str, name: str) -> None:
    """Do one of `DONE`.

    Raises:
        Failed: systemd refused.
    """
    if verb in ("start", "restart"):
        # systemd counts starts, failed ones too, and refuses one too many within a minute. A pattern means
        # those that are loaded, and with them the socket that starts a service.
        ask("reset-failed", name.rpartition(".")[0] + ".*")
    status, said = ask(verb, *([] if verb == "daemon-reload" else [name]))
    if status:
        why = said.partition("\n")[0] or status
        raise Failed(
            f"{name} could not be {DONE[verb]}: {why}", f"see `journalctl --unit={name}` on the node"
        )


def ask(*words: str) -> "tuple[int, str]":
    """What systemctl says, and its exit status; only where it prints nothing, what it complains of."""
    try:
        done = subprocess.run(  # noqa: UP022 - Python 3.6
            ("systemctl",) + words,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # we know its words
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise Failed("the node has no systemctl") from None
    output, errors = (each.decode(errors="replace").strip() for each in (done.stdout, done.stderr))
    return done.returncode, output or (errors if done.returncode else "")
