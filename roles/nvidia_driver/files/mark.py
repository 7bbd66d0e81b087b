"""Has packages compile no module with DKMS meanwhile, or do so again.

Runs on the node. Argument: {"compiles": false}. Answers {"changed": false, "failure": null}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

UNBUILT = Path("/etc/dkms/no-autoinstall")
"""While this is a file, packages bring a module's source and build nothing (dkms's common.postinst)."""
MARK = Path("/run/gpuprov-no-autoinstall")
"""What it leads to: a reboot empties this folder, so that a node which loses power builds again."""


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
