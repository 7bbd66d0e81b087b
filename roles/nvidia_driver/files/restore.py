"""Restoration of a node's former packages: new ones are removed, replaced ones return, holds are set again.

Runs on the node, with the modules of plugins/module_utils. Argument: the former packages,
{"packages": {name: version}, "left": [name], "held": [name], "streams": [module:stream], "lock_timeout":
seconds}; in `left` are those with only their configuration left. Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import sys

import gpuprov_node as node
from gpuprov_failures import Failed
from gpuprov_manager import package_manager

FETCH_S = 3600


def words(now: dict[str, str], before: dict[str, str]) -> list[str]:
    """Return the words of a transaction that restores the packages: `name-` for each new one, `name=version`
    for each former one.
    """
    gone = [f"{name}-" for name in now if name not in before]
    return gone + [f"{name}={version}" for name, version in before.items() if now.get(name) != version]


def present() -> dict[str, str]:
    """Return the packages that are at least unpacked."""
    return {row.name: row.version for row in node.packages() if row.state not in "nc"}


def restore(asked: dict) -> bool:
    """Restore the packages: install former versions, remove and purge new packages, set holds again; return
    whether anything was changed.

    Raises:
        Failed: they cannot be restored, or some are still not as recorded; or the record is empty.
    """
    manager = package_manager()
    before, held, now = asked["packages"], asked["held"], present()
    if not before:
        raise Failed("the record of the former packages is empty: all packages would be removed")
    back, new = words(now, before), now.keys() - before.keys()
    if back:
        streams = former_streams(manager.enabled_streams(), asked["streams"])
        command = manager.installation(back, int(asked["lock_timeout"]), True, streams)
        manager.fetch_packages(command, new, FETCH_S)
        manager.transact(command, [], new)
        manager.purge(new - set(asked["left"]))
    if held:
        manager.hold(held)
    undone = words(present(), before) + [row.name for row in node.packages() if row.state in "HUF"]
    if undone:
        raise Failed(f"{manager.NAME} left undone: {', '.join(undone)}")
    return bool(back + held)


def former_streams(now: list[str], before: list[str]) -> list[str]:
    """Return the streams to enable; `module:` for a module that had none."""
    names = {stream.partition(":")[0] for stream in before}
    return [*before, *(f"{name}:" for name in (each.partition(":")[0] for each in now) if name not in names)]


def main() -> None:
    """Restore the node's former packages; print whether anything changed, and the failure, as JSON."""
    package_manager().set_environment()
    changed, failure = False, None
    try:
        changed = restore(json.loads(sys.argv[1]))
    except Failed as error:
        failure = {"says": str(error), "do": None}
    sys.stdout.write("\n" + json.dumps({"changed": changed, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
