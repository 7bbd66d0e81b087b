"""Check of the role's own sources: the package manager must be able to read them.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"sources": path, "fetch_timeout": seconds}. Prints {"failure": null}.

Only these sources are read: errors in other sources do not count here, and their lists stay as they are.
"""

from __future__ import annotations

import json
import sys

from gpuprov_failures import Failed
from gpuprov_manager import package_manager

LOCK_S = 150  # wait for another package manager that reads lists


def main() -> None:
    """Have the package manager read the role's sources; print the failure, or null, as JSON."""
    manager = package_manager()
    manager.set_environment()
    asked = json.loads(sys.argv[1])
    failure = None
    try:
        manager.read_lists(int(asked["fetch_timeout"]), LOCK_S, *manager.only(asked["sources"]))
    except Failed as error:
        failure = manager.failure("the package repositories could not be installed", error)
    sys.stdout.write("\n" + json.dumps({"failure": failure}) + "\n")


if __name__ == "__main__":
    main()
