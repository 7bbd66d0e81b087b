"""Build and installation of the driver's module by DKMS.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"source": "nvidia/580.95.05", "kernels": [release]}. Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import sys

from gpuprov_own_tmp import run_with_own_tmp


def main() -> None:
    """Build and install the module with `dkms install` for each kernel, until one fails; print the failure as
    JSON.
    """
    asked, failure = json.loads(sys.argv[1]), None
    for kernel in asked["kernels"]:
        command = ["dkms", "install", "--force", asked["source"], "-k", kernel]
        status, errors = run_with_own_tmp(*command)
        if status:
            said = errors.strip().partition("\n")[0]
            failure = {"says": f"{' '.join(command)} exited with {status}: {said}", "do": None}
            break
    sys.stdout.write("\n" + json.dumps({"changed": True, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
