"""Command line of `scripts/collection`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.collection.build import build
from tests.collection.check import check
from tests.collection.pages import pages


def main() -> int:
    """Run one command; return 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="scripts/collection")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("pages", help="write README.md and meta/main.yml of each role")
    building = verbs.add_parser("build", help="write the archive that Galaxy takes")
    building.add_argument("folder", type=Path)
    building.add_argument(
        "--repository", help="address of the sources; Galaxy refuses a collection without one"
    )
    checking = verbs.add_parser("check", help="build it, and run the checks of Galaxy and of Ansible")
    checking.add_argument("--ansible", default="2.19", help="the ansible-core to check with  [default: 2.19]")
    checking.add_argument("--python", default=sys.executable, help="the Python to check with")
    stated = parser.parse_args()
    match stated.verb:
        case "pages":
            for path, text in pages().items():
                path.write_text(text, encoding="utf-8")
        case "build":
            print(build(stated.folder, stated.repository))
        case "check":
            return check(stated.ansible, stated.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
