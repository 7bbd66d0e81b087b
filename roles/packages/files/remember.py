"""Writes which packages belong to which sets, for the role packages.

Standard library only; runs on the node from stdin. Arguments: the folder of the records, and a JSON object
from a set's name to its packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, packages in json.loads(sys.argv[2]).items():
        half = folder.parent / f".{name}"
        half.write_text("".join(f"{package}\n" for package in sorted(packages)))
        half.chmod(0o644)
        half.replace(folder / name)


if __name__ == "__main__":
    main()
