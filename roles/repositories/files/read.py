"""Check of the role's own sources: apt must be able to read their package lists.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"sources": path, "fetch_timeout": seconds}. Prints {"failure": null}.

Only these sources are read: errors in other sources do not count here, and their lists stay as they are.
"""

from __future__ import annotations

import json
import sys

import gpuprov_apt as apt

LOCK_S = 150  # wait for another apt that reads lists


def main() -> None:
    """Print the document."""
    apt.set_environment()
    asked = json.loads(sys.argv[1])
    alone = (
        "--error-on=any",
        f"--option=Dir::Etc::SourceList={asked['sources']}",
        "--option=Dir::Etc::SourceParts=-",
        "--option=APT::Get::List-Cleanup=false",
    )
    failure = None
    try:
        apt.read_lists(int(asked["fetch_timeout"]), LOCK_S, *alone)
    except apt.Failed as error:
        failure = apt.failure("the package repositories could not be installed", error)
    sys.stdout.write("\n" + json.dumps({"failure": failure}) + "\n")


if __name__ == "__main__":
    main()
