"""`gpuprov status --watch` on many targets from one controller: interval kept, CPU, bytes.

    scripts/bench status [TARGETS] [SECONDS] [INTERVAL]

All targets are one node of the lab, so every reading is made on the processors of the controller: what the
controller alone needs is counted apart, by its own processor time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from gpuprov.doctor import status
from gpuprov.doctor.status import Watch
from gpuprov.lab import Lab
from gpuprov.model.lock import Connection
from gpuprov.ssh.transport import Target
from tests.bench.targets import RANGE, many_addresses
from tests.lab.stub_driver_node import drive


def main() -> int:
    """Print the figures; exit 1 when the interval was not kept."""
    count, seconds, interval = (
        (*map(float, sys.argv[1:]), 200, 40, 5)[:3] if len(sys.argv) > 1 else (200, 40, 5)
    )
    sizes: list[int] = []
    plain = status.ask

    def counted(session: object, payload: object) -> object:
        facts = plain(session, payload)  # type: ignore[arg-type]
        sizes.append(len(payload.stdin) + len(payload.command))  # type: ignore[attr-defined]
        return facts

    status.ask = counted  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder, Lab(f"bench-status-{os.getpid()}") as lab:
        [node] = lab.up(1, os="debian12", gpu="h200x8")
        drive(node)
        with many_addresses(node):
            targets = _targets(lab, Path(folder), int(count))
            with Watch(targets, interval) as watch:
                while len(watch.now) < len(targets):
                    time.sleep(0.1)
                before, begun, cpu = dict(watch.readings), time.monotonic(), sum(os.times()[:2])
                time.sleep(seconds)
                made = [watch.readings[t.name] - before.get(t.name, 0) for t in targets]
                share = (sum(os.times()[:2]) - cpu) / (time.monotonic() - begun)
                failed = [each.failure for each in watch.nodes() if each.failure]
    wanted = seconds / interval
    print(
        f"{len(targets)} targets every {interval:g} s for {seconds:g} s: {min(made)} to {max(made)} "
        f"readings each "
        f"(wanted {wanted:g}), controller {share:.0%} of a core, {sizes[0]} bytes sent a reading, "
        f"{len(failed)} failed {failed[:1]}"
    )
    return 0 if min(made) >= wanted - 1 and not failed else 1


def _targets(lab: Lab, folder: Path, count: int) -> list[Target]:
    known = lab.known_hosts.read_text().split(maxsplit=1)[1].splitlines()[0]
    addresses = [str(RANGE[number]) for number in range(1, count + 1)]
    (folder / "known_hosts").write_text("".join(f"{address} {known}\n" for address in addresses))
    connection = Connection(identity_file=str(lab.identity_file), known_hosts=str(folder / "known_hosts"))
    return [Target(f"gpu{n:03}", address, connection) for n, address in enumerate(addresses, 1)]


if __name__ == "__main__":
    sys.exit(main())
