"""Composition, preview and packing of a machine's support bundle, from one examination."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprov.doctor.bundle.choosing import OUT, Tally, matching
from gpuprov.doctor.bundle.table import TABLE
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import RULES
from gpuprov.doctor.judge import catalogue, diagnose
from gpuprov.errors import InvalidInput

SCHEMA = "gpuprov.bundle/1"
LEFT_OUT = (
    "names of hosts, addresses, serial numbers, UUIDs",
    "journals, output of units, logs of builds, arguments, names and variables of programs",
    "configuration of Docker, containerd, sources of packages, mounts, PAM and modprobe",
    "nvidia-bug-report.sh, which packs all of these: run it yourself, and read the file before you send it",
)
"""Values that the table does not contain."""
NO_ANSWER = ("nvidia-smi is not installed", "did not answer in time")
_TIME = matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle.

    Attributes:
        files: name → text.
        left_out: values that it does not contain, one per line; the bundle lists them as well.
    """

    files: Mapping[str, str]
    left_out: tuple[str, ...]


def compose(seen: Examination) -> Bundle:
    """Return the bundle of one examination: fields of the table that match their patterns, no free text. A
    collector that failed is listed in `left_out`.
    """
    chosen: dict[str, Any] = {}
    left = [f"not in the table: {each}" for each in LEFT_OUT]
    for name, choose in TABLE.items():
        value = seen.collectors.get(name)
        if name in seen.missing or value is None:
            left.append(f"not read: {name}")
            if name == "smi" and (reason := _reason(seen.missing.get(name))):
                chosen[name] = {"error": reason}
            continue
        tally = Tally()
        kept = choose(value, tally)
        if kept is not OUT:
            chosen[name] = kept
        if tally.out:
            left.append(f"left out: {tally.out} values or lines of {name}")
    facts = {
        "schema": SCHEMA,
        "collected_at": _or_none(_TIME(seen.collected_at, Tally())),
        "seconds": seen.seconds if isinstance(seen.seconds, int | float) else None,
        "collectors": chosen,
    }
    log = chosen.get("kernel_log", {}).pop("kept", []) if isinstance(chosen.get("kernel_log"), dict) else []
    files = {
        "diagnosis.json": _json(_diagnosis(seen)),
        "facts.json": _json(facts),
        "kernel-log.txt": "".join(f"{stamp:.6f} {text}\n" for stamp, text in log),
        "LEFT-OUT.txt": "".join(f"{line}\n" for line in left),
    }
    return Bundle({name: text for name, text in files.items() if text}, tuple(left))


def pack(path: Path, bundle: Bundle) -> None:
    """Write a bundle that only its owner may read.

    Args:
        path: a `.tar.gz` that does not exist yet.

    Raises:
        InvalidInput: it exists, or cannot be written.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in bundle.files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"gpuprov-bundle/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    try:
        with open(path, "xb", opener=_private) as file:
            file.write(buffer.getvalue())
    except FileExistsError:
        raise InvalidInput(f"{path} already exists", do="name another file") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", do="name a file that can be written") from None


def preview(bundle: Bundle) -> list[str]:
    """Return a preview of the bundle: the files, every line of the log, and the values left out."""
    sizes = [f"{name}: {len(text.encode())} bytes" for name, text in bundle.files.items()]
    log = [f"kernel-log.txt: {line}" for line in bundle.files.get("kernel-log.txt", "").splitlines()]
    return [*sizes, *log, *bundle.left_out]


def _private(path: str, flags: int) -> int:
    """Open a file, created so that only its owner can read it; an opener for `open`, which raises OSError as
    os.open does.
    """
    return os.open(path, flags, 0o600)


def _diagnosis(seen: Examination) -> dict[str, Any]:
    """Return the diagnosis as rules with their known faults; a fault's own text quotes the machine."""
    found = diagnose(seen)
    rows = catalogue()["faults"]
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "faults": [
            {
                "rule": fault.rule,
                "severity": fault.severity,
                "urgent": fault.urgent,
                "follows": list(fault.follows),
                "known_as": [rows[each] for each in RULES[fault.rule].rows if each in rows],
                "source": fault.source,
            }
            for fault in found.faults
        ],
        "unknown": [rule for rule, _ in found.unknown],
    }


def _reason(said: object) -> str | None:
    """Return why nvidia-smi has no answer, as one of `NO_ANSWER`; None for another reason."""
    return next((each for each in NO_ANSWER if isinstance(said, str) and each in said), None)


def _or_none(value: Any) -> Any:
    """Return the value, or None for `OUT`."""
    return None if value is OUT else value


def _json(document: object) -> str:
    """Return JSON text with sorted keys and a final newline."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
