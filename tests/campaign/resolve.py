"""Runs the resolver on random requests, and on every GPU and device id with every system.

    scripts/campaign resolve [--requests 100000] [--seed 1]

Random requests must be answered or end in a documented error. Every stack chosen for a GPU on a system is fed
back and must give the same answer. Every device id is resolved on every system: it gets a stack, or a
documented rule as the reason, within 20 ms of processor time. At the end the catalog's cost is measured:
seconds to import and read it, and memory.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpuprov.catalog import Catalog, load
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Request, resolve
from gpuprov.locking.resolve.checks.mends import documented
from tests.unit.locking.resolve.requests import FED_BACK

NOISE = (
    "",
    " ",
    "none",
    "None",
    "latest",
    "580.",
    "0",
    "-1",
    "1e9",
    "9" * 40,
    "\u0663.\u0661",
    "\x00",
    "../..",
    "580.95.05'",
    "🦆",
)


SLOWEST_S = 0.020
"""Limit in seconds of processor time for one answer."""
IMPORT_S = 0.165
"""Limit in seconds to import and read the catalog, measured before it had every GPU."""


def main() -> int:
    """Run the campaign; return 1 if anything broke."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--requests", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    catalog = load()
    dice = random.Random(options.seed)  # noqa: S311 - dice, not secrets
    broken = report("random requests", random_requests(catalog, options.requests, dice))
    broken += report("every GPU on every system, fed back", round_trip(catalog))
    broken += report("every device id on every system", every_id(catalog))
    broken += cost()
    return 1 if broken else 0


def report(title: str, outcomes: Iterator[str]) -> int:
    """Count and print outcomes with their time; return the number of broken ones."""
    start = time.perf_counter()
    counted = Counter(outcomes)
    seconds = time.perf_counter() - start
    total = counted.total()
    result = ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))
    print(f"{title}: {total} in {seconds:.1f} s ({seconds / total * 1000:.2f} ms each): {result}")
    return counted["broken"]


def random_requests(catalog: Catalog, number: int, dice: random.Random) -> Iterator[str]:
    """Yield the outcome of each random request.

    The outcome is a verdict, `not understood`, or `broken` with the request on stderr.
    """
    values = vocabulary(catalog)
    for _ in range(number):
        wordy = dice.choice((0.05, 0.2, 0.5))  # users state few fields or many
        raw: dict[str, Any] = {
            name: dice.choice(NOISE) if dice.random() < 0.01 else dice.choice(choices)
            for name, choices in values.items()
            if name == "os" or dice.random() < wordy
        }
        raw["gpu"] = [dice.choice(catalog.gpus).id for _ in range(dice.choice((1, 1, 1, 2, 3, 8)))]
        if dice.random() < 0.02:
            raw["gpu"].append(dice.choice(NOISE))
        yield outcome(raw, catalog)


def outcome(raw: dict[str, Any], catalog: Catalog) -> str:
    """Return the verdict on one raw request, or `not understood`, or `broken`."""
    try:
        answer = resolve(Request.from_mapping(raw), catalog)
        json.dumps(answer.to_json())
    except InvalidInput:
        return "not understood"
    except Exception as error:  # noqa: BLE001 - any other error is what this campaign looks for
        sys.stderr.write(f"{type(error).__name__}: {error}: {json.dumps(raw)}\n")
        return "broken"
    refused_for_a_reason = (answer.verdict == "refused") == bool(answer.violations)
    result = all(finding.text and finding.source for finding in (*answer.violations, *answer.warnings))
    if not refused_for_a_reason or not result:
        sys.stderr.write(f"an answer without its reasons: {json.dumps(raw)}\n")
        return "broken"
    return answer.verdict


def vocabulary(catalog: Catalog) -> dict[str, list[Any]]:
    """Return for each field all values of the catalog, and some that it does not have."""
    nccl = [str(each.version) for each in catalog.nccl]
    builds = [f"{each.version}-1+cuda{build}" for each in catalog.nccl for build in each.cuda_builds_seen]
    torch = [f"torch=={each.version}" for each in catalog.tables["frameworks.pytorch_wheels"]]
    torch += [f"{each}+cu{cuda}" for each in torch for cuda in ("118", "126", "128", "130")]
    tensorflow = [f"tensorflow=={each.version}" for each in catalog.tables["frameworks.tensorflow_tested"]]
    drivers = sorted(map(str, catalog.known_drivers))
    return {
        "os": [*catalog.systems, "rocky9.4", "Ubuntu 24.04.2", "ubuntu23.10", "al2023", "opensuse"],
        "arch": ["x86_64", "aarch64", "sbsa", "ppc64le"],
        "driver": [*drivers, *map(str, catalog.branches), "580.999.01", "418.226.00", "R570"],
        "cuda": [
            *(str(each.version) for each in catalog.toolkits),
            "12.4",
            "13",
            "12.7",
            "10.1",
            "14.0",
            "none",
        ],
        "cudnn": [*(str(each.version) for each in catalog.cudnn), "9.10.2", "8", "9.99", "none"],
        "nccl": [*nccl, *builds, "2.99.1", "none"],
        "container_toolkit": [
            *(str(each.version) for each in catalog.container_toolkits),
            "1.17.8-1",
            "none",
        ],
        "fabricmanager": [*drivers, "580", "none"],
        "module": ["open", "proprietary"],
        "kernel": ["6.12.94+deb13-amd64", "6.12.117+deb13-amd64", "5.14.0-427.el9", "custom"],
        "framework": [*torch, *tensorflow, "jax==0.10.2", "torch==9.9.9", "none"],
        "docker": ["18.09", "20.10.24", "26.1.5", "29"],
        "compat": [*map(str, catalog.forward_compat), "12.7", "none"],
        "repository": ["nvidia", "distribution"],
        "prefer": list(catalog.policies),
    }


def round_trip(catalog: Catalog) -> Iterator[str]:
    """Yield the verdict on the stack chosen for every GPU on every system.

    The verdict is `broken` if feeding the stack back gives another answer.
    """
    for gpu in catalog.gpus:
        for system in catalog.systems:
            first = resolve(Request(gpus=(gpu.id,), os=system), catalog)
            if first.verdict != "refused":
                stated = {name: getattr(first.stack, name) for name in (*FED_BACK, "arch")}
                second = resolve(Request(gpus=(gpu.id,), os=system, **stated), catalog)
                if (second.verdict, second.stack) != (first.verdict, first.stack):
                    sys.stderr.write(f"{gpu.id} on {system}: fed back gives {second.verdict}\n")
                    yield "broken"
                    continue
            yield first.verdict


def every_id(catalog: Catalog) -> Iterator[str]:
    """Yield the verdict on every device id on every system.

    The verdict is `broken` for a slow one, or for a refusal without a rule.
    """
    slowest = (0.0, "")
    devices = sorted({device for gpu in catalog.gpus for device in gpu.pci_device_ids})
    for device in devices:
        for system in catalog.systems:
            start = time.process_time()
            found = resolve(Request(gpus=(f"10de:{device}",), os=system), catalog)
            seconds = time.process_time() - start
            slowest = max(slowest, (seconds, f"{device} on {system}"))
            unnamed = [each.rule for each in found.violations if not documented(each.rule)]
            if unnamed or (found.verdict == "refused") != bool(found.violations) or seconds > SLOWEST_S:
                sys.stderr.write(
                    f"{device} on {system}: {found.verdict}, {unnamed}, {seconds * 1000:.1f} ms\n"
                )
                yield "broken"
            else:
                yield found.verdict
    print(f"{len(devices)} device ids; slowest {slowest[0] * 1000:.1f} ms of processor time ({slowest[1]})")


RESIDENT = "int(next(line for line in open('/proc/self/status') if 'VmRSS' in line).split()[1])"
TIMED = f"""
import time
bare = {RESIDENT}
start = time.process_time()
from gpuprov.catalog import load
first = load()
read = time.process_time() - start
list(first.gpus)
print(read, time.process_time() - start, {RESIDENT} - bare)
"""


def cost() -> int:
    """Print what the catalog costs a new process; return 1 if it exceeds the limit."""
    runs = [
        subprocess.run([sys.executable, "-c", TIMED], capture_output=True, check=True, text=True).stdout
        for _ in range(5)
    ]
    read, whole, kib = min(tuple(map(float, run.split())) for run in runs)
    print(
        f"the catalog: imported and read in {read * 1000:.0f} ms of processor time (at most "
        f"{IMPORT_S * 1000:.0f}), with every device in {whole * 1000:.0f} ms; {kib / 1024:.1f} MiB"
    )
    return int(read > IMPORT_S)


if __name__ == "__main__":
    sys.exit(main())
