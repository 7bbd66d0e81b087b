"""Switch for builds by DKMS during the installation of packages.

Runs on the node. Argument: {"compiles": false}. Prints {"changed": false, "failure": null}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

UNBUILT = Path("/etc/dkms/no-autoinstall")
"""A file whose presence makes packages install a module's source without a build (dkms's common.postinst)."""
MARK = Path("/run/gpuprov-no-autoinstall")
"""Target of that link. A reboot empties this folder, so that a node builds again after a power loss."""


def main() -> None:
    """Print the document."""
    compiles = json.loads(sys.argv[1])["compiles"]
    if UNBUILT.is_symlink() and UNBUILT.readlink() == MARK:
        UNBUILT.unlink()
    MARK.unlink(missing_ok=True)
    if not compiles and not UNBUILT.exists():
        MARK.touch()
        UNBUILT.parent.mkdir(exist_ok=True)
        UNBUILT.symlink_to(MARK)
    sys.stdout.write("\n" + json.dumps({"changed": False, "failure": None}) + "\n")


if __name__ == "__main__":
    main()
