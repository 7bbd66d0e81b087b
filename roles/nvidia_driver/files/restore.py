"""Restoration of a node's former packages: new ones are removed, replaced ones return, holds are set again.

Runs on the node, with the modules of plugins/module_utils. Argument: the former packages,
{"packages": {name: version}, "left": [name], "held": [name], "lock_timeout": seconds}; in `left` are those
with only their configuration left. Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import sys

import gpuprov_apt as apt
import gpuprov_node as node

FETCH_S = 3600


def words(now: dict[str, str], before: dict[str, str]) -> list[str]:
    """Return the arguments of apt-get install."""
    gone = [f"{name}-" for name in now if name not in before]
    return gone + [f"{name}={version}" for name, version in before.items() if now.get(name) != version]


def present() -> dict[str, str]:
    """Return the packages that are at least unpacked."""
    return {row.name: row.version for row in node.packages() if row.state not in "nc"}


def restore(before: dict[str, str], left: list[str], held: list[str], lock_timeout: int) -> bool:
    """Restore the packages; return whether anything was changed.

    Raises:
        Failed: they cannot be restored.
    """
    now = present()
    back, new = words(now, before), now.keys() - before.keys()
    if back:
        command = [*apt.common_options(lock_timeout), "--allow-downgrades", "install", *back]
        apt.fetch_packages(command, new, FETCH_S)
        apt.transact(command, [])
        apt.purge(new - set(left))
    if held:
        apt.call("apt-mark", "hold", *held)
    undone = words(present(), before) + [row.name for row in node.packages() if row.state in "HUF"]
    if undone:
        raise apt.Failed(f"apt left undone: {', '.join(undone)}")
    return bool(back + held)


def main() -> None:
    """Print the document."""
    apt.set_environment()
    asked = json.loads(sys.argv[1])
    changed, failure = False, None
    try:
        changed = restore(asked["packages"], asked["left"], asked["held"], int(asked["lock_timeout"]))
    except apt.Failed as error:
        failure = {"says": str(error), "do": None}
    sys.stdout.write("\n" + json.dumps({"changed": changed, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
