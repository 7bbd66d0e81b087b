"""What the role packages reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin. Argument: the record of the set's packages.

    {"installed": {"libnccl2": "2.28.9-1+cuda13.0"}, "left": {"nvidia-driver-pinning-570": "570.195.03-1"},
     "ours": ["libnccl2", "libnccl-dev"], "others": ["containerd"], "sets": ["nccl", "docker"]}

`left` are packages of which only the configuration is there: that of a pinning package still pins. `others`
belong to other sets, and may to this one as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    record = Path(sys.argv[1])
    records = sorted(record.parent.glob("*"))
    form = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    look = {
        "installed": {name: version for state, name, version in rows if state[1] not in "nc"},
        "left": {name: version for state, name, version in rows if state[1] == "c"},
        "ours": record.read_text().split() if record.exists() else [],
        "others": sorted({name for path in records if path != record for name in path.read_text().split()}),
        "sets": [path.name for path in records],
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()
