# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start, stop and enablement of a systemd unit, run on a node by the action gpuprov_unit.

Runs on nodes: Python 3.6 to 3.13 and its standard library. Argument: the options in
plugins/modules/gpuprov_unit.yml, and `check`. Prints that module's return values, with `failure` if systemd
refuses.
"""

import json
import os
import re
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

RUNNING = ("active", "activating", "reloading", "refreshing")
"""ActiveState of units that run or start."""
AT_BOOT = ("enabled", "static", "alias", "generated", "indirect")
"""Outputs of `systemctl is-enabled` for units that are enabled, or cannot be."""
DONE = {
    "enable": "enabled",
    "disable": "disabled",
    "start": "started",
    "stop": "stopped",
    "restart": "restarted",
    "daemon-reload": "reloaded",
    "unmask": "unmasked",
    "unmask --runtime": "unmasked",
}
"""Verb of systemctl → participle in messages."""
NONE = "systemd on the node has no unit {}"


class Failed(Exception):
    """Refusal of systemd; `do` is the user's next step, or None."""

    def __init__(self, says: str, do: "str | None" = None) -> None:
        super().__init__(says)
        self.do = do


def main() -> None:
    """Settle the unit of the argument, and print the result as one line of JSON."""
    try:
        document = settle(**json.loads(sys.argv[1]))
    except Failed as error:
        document = {"failure": {"says": str(error), "do": error.do}}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def settle(
    name: str,
    enabled: "bool | None",
    state: "str | None",
    daemon_reload: bool,
    check: bool,
    condition: "Sequence[str]" = (),
) -> "dict[str, Any]":
    """Bring the unit to its state; return the task's result: `changed`, and `acts`, the verbs of systemctl.

    Args:
        enabled: whether it starts at boot; None: not changed.
        state: `started`, `stopped` or `restarted`; None: not changed.
        daemon_reload: whether systemd reads its files first; that does not count as a change.
        check: change nothing, and return what would be done.
        condition: a command without which nothing is changed if it fails; not run with `check`.

    Raises:
        Failed: the condition does not hold, systemd has no such unit, or refuses.
    """
    if condition and not check:
        require(condition, name)
    at_boot = boot_verbs(name, enabled)
    # For these verbs `systemctl` reads the unit's file, and makes systemd read it again afterwards.
    reload = ["daemon-reload"] if daemon_reload and not at_boot else []
    for verb in [*at_boot, *reload] if not check else ():
        act(verb, name)
    now = state_verbs(name, state)
    for verb in now if not check else ():
        act(verb, name)
    return {"changed": bool(at_boot + now), "acts": at_boot + now}


def require(condition: "Sequence[str]", name: str) -> None:
    """Run the command on which a change depends.

    Raises:
        Failed: the command failed.
    """
    status, said = run(condition)
    if status:
        raise Failed("{} was not changed: {}".format(name, said.rpartition("\n")[2] or status))


def boot_verbs(name: str, enabled: "bool | None") -> "list[str]":
    """Return the verbs of systemctl that are needed for the next boot: `unmask` and `enable`, `disable`, or
    none.

    Raises:
        Failed: there is no such unit, or systemd reports no state.
    """
    if enabled is None:
        return []
    is_ = ask("is-enabled", name)[1]
    if is_ == "not-found" or "No such file" in is_:  # systemd from 254 on, and before
        raise Failed(NONE.format(name))
    if not re.fullmatch("[a-z-]+", is_):
        raise Failed(f"systemd did not report whether {name} is enabled: {is_}")
    if enabled:
        masked = {"masked": ["unmask"], "masked-runtime": ["unmask --runtime"]}.get(is_, [])
        return [] if is_ in AT_BOOT else [*masked, "enable"]
    return ["disable"] if is_.startswith("enabled") else []


def state_verbs(name: str, state: "str | None") -> "list[str]":
    """Return the verbs that are needed at once: `start`, `stop`, `restart` or none.

    None are needed in a tree that is not booted: there `show` is empty.

    Raises:
        Failed: there is no such unit, or systemd reports no state.
    """
    if state is None:
        return []
    status, said = ask("show", "--property=LoadState,ActiveState", name)
    if status:
        raise Failed(f"systemd did not report the state of {name}: {said}")
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
    """Run a verb of `DONE`; before a start, reset systemd's count of starts of the unit and its socket.

    Raises:
        Failed: systemd refused.
    """
    if verb in ("start", "restart"):
        # systemd counts starts, including failed ones, and refuses further ones above its limit. The pattern
        # matches loaded units, among them the socket that starts a service.
        ask("reset-failed", name.rpartition(".")[0] + ".*")
    status, said = ask(*verb.split(), *([] if verb == "daemon-reload" else [name]))
    if status:
        why = said.partition("\n")[0] or status
        raise Failed(
            f"{name} could not be {DONE[verb]}: {why}", f"see `journalctl --unit={name}` on the node"
        )


def ask(*words: str) -> "tuple[int, str]":
    """Return systemctl's exit status and output, or its error output if it failed and printed nothing.

    Raises:
        Failed: there is no systemctl.
    """
    return run(("systemctl",) + words)


def run(command: "Sequence[str]") -> "tuple[int, str]":
    """Return a command's exit status and output, or its error output if it failed and printed nothing.

    Raises:
        Failed: there is no such program.
    """
    try:
        done = subprocess.run(  # noqa: UP022 - Python 3.6
            command,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # its messages are compared here
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise Failed(f"the node has no {command[0]}") from None
    output, errors = (each.decode(errors="replace").strip() for each in (done.stdout, done.stderr))
    return done.returncode, output or (errors if done.returncode else "")
