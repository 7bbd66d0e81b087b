"""Installation of the dependencies that half-installed packages lack.

Runs on the node, with the modules of plugins/module_utils. Argument: the lock's packages, gpuprov's packages
that are no longer installed, and dpkg's messages of an earlier attempt,
{"packages": {name: version}, "lost": [name], "unconfigured": "…"}. Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpuprov_apt as apt
import gpuprov_debconf as debconf

RECORDS = Path("/var/lib/gpuprov/packages")  # written by the role packages
LOCK_S = 300


def main() -> None:
    """Install the lost dependencies in the lock's versions with apt, if this removes no package of gpuprov's;
    print the result and the failure as JSON.
    """
    apt.set_environment()
    asked = json.loads(sys.argv[1])
    # apt itself would choose the newest version of a missing package, which conflicts with held packages.
    words = sorted(f"{name}={asked['packages'][name]}" for name in asked["lost"] if name in asked["packages"])
    ours = {name for path in RECORDS.glob("*") for name in path.read_text().split()}
    command = [*apt.common_options(LOCK_S), "--fix-broken", "install", *words]
    failure = None
    try:
        apt.refuse_removals(command, ours.union(asked["packages"]))
        with debconf.closed():
            apt.call("apt-get", "--quiet", *command)
    except (apt.Failed, OSError) as error:
        said = getattr(error, "stderr", "")
        says = apt.errors_of(f"{asked['unconfigured']}\n{said}")
        failure = {"says": says or str(error), "do": None}
    sys.stdout.write("\n" + json.dumps({"changed": True, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
