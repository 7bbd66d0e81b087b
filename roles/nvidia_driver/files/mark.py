"""Switch for builds by DKMS during the installation of packages.

Runs on the node. Argument: {"compiles": false}. Prints {"changed": false, "failure": null}. A file that an
administrator created stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

UNBUILT = Path("/etc/dkms/no-autoinstall")
"""A file whose presence makes packages install a module's source without a build (dkms's common.postinst)."""
MARK = Path("/run/gpuprov-no-autoinstall")
"""Target of that link. A reboot empties this folder, so that a node builds again after a power loss."""
OURS = "/run/gpuprov-"
"""Start of the targets of gpuprov's links there; an interrupted rollback leaves another one."""


def main() -> None:
    """Keep DKMS from builds by a link and its mark, or remove both if `compiles`; print the failure as JSON.

    An administrator's own file stays; a dangling link of another program is a failure.
    """
    compiles, failure = json.loads(sys.argv[1])["compiles"], None
    if UNBUILT.is_symlink() and str(UNBUILT.readlink()).startswith(OURS):
        UNBUILT.unlink()
    MARK.unlink(missing_ok=True)
    if not compiles and not UNBUILT.exists():
        if UNBUILT.is_symlink():
            says = f"{UNBUILT} is a link to {UNBUILT.readlink()}, which does not exist"
            failure = {"says": says, "do": f"remove it: sudo rm {UNBUILT}"}
        else:
            MARK.touch()
            UNBUILT.parent.mkdir(exist_ok=True)
            UNBUILT.symlink_to(MARK)
    sys.stdout.write("\n" + json.dumps({"changed": False, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
