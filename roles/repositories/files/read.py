"""Reads the lists of packages of our own sources, as proof that they work.

Runs on the node, with plugins/module_utils beside it. Argument:
{"sources": path, "fetch_timeout": seconds}. Answers {"failure": null}.

Only these sources: somebody else's broken ones are not ours to judge, and their lists stay as they are.
"""

from __future__ import annotations

import json
import sys

import gpuprov_apt as apt

LOCK_S = 150  # for another apt that reads its own


def main() -> None:
    """Print the document."""
    apt.quietly()
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
