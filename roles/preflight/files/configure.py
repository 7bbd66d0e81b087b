"""Configuration of packages that an interrupted dpkg left half-installed.

Runs on the node, with the modules of plugins/module_utils. Prints {"changed": true, "failure": null,
"unconfigured": dpkg's messages about those that cannot be configured, or ""}: apt may resolve them later.
"""

from __future__ import annotations

import json
import sys

import gpuprov_apt as apt
import gpuprov_debconf as debconf


def main() -> None:
    """Run `dpkg --configure --pending`; print its messages as JSON if it fails."""
    apt.set_environment()
    unconfigured = ""
    try:
        with debconf.closed():
            apt.call("dpkg", "--configure", "--pending", "--force-confdef", "--force-confold")
    except apt.Failed as error:
        unconfigured = error.stderr or str(error)
    except OSError as error:
        unconfigured = f"dpkg: {error}"
    answer = {"changed": True, "failure": None, "unconfigured": unconfigured}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
