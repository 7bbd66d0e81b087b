"""Build and installation of the driver's module by DKMS.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"source": "nvidia/580.95.05", "kernels": [release]}. Prints {"changed": true, "failure": null}.
"""

from __future__ import annotations

import json
import subprocess
import sys

from gpuprov_own_tmp import with_own_tmp


def main() -> None:
    """Build and install the module with `dkms install` for each kernel, until one fails; print the failure as
    JSON.
    """
    asked, failure = json.loads(sys.argv[1]), None
    for kernel in asked["kernels"]:
        command = ["dkms", "install", "--force", asked["source"], "-k", kernel]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            **with_own_tmp(),
        )
        sys.stderr.write(done.stderr)
        if done.returncode:
            said = done.stderr.strip().partition("\n")[0]
            failure = {"says": f"{' '.join(command)} exited with {done.returncode}: {said}", "do": None}
            break
    sys.stdout.write("\n" + json.dumps({"changed": True, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
