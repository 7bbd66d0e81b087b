"""Removal of the older version of packages that a killed dnf left in two versions.

Runs on the node, with the modules of plugins/module_utils. Argument: {"check": whether nothing is changed}.
Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import sys

import gpuprov_dnf
from gpuprov_failures import Failed


def main() -> None:
    """Remove the older version of doubled packages, unless in check mode; print whether there were any, and
    the failure, as JSON.
    """
    asked, failure = json.loads(sys.argv[1]), None
    changed = gpuprov_dnf.doubled()
    try:
        if str(asked["check"]) != "True":
            gpuprov_dnf.undouble()
    except Failed as error:
        do = "see `dnf check` on the node, remove one version of each package, and try again"
        failure = {"says": str(error), "do": do}
    sys.stdout.write("\n" + json.dumps({"changed": bool(changed), "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
