"""One look at this machine: the doctor's collectors and rules, with the program's own limits."""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuprov.doctor.collecting import PARAMETERS
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import CLASSES, OF_GPUS, RULES, Class, Fault, Rule, is_of_gpus
from gpuprov.doctor.judge import in_order, judged
from gpuprov.health.memory import Sight
from gpuprov.probe.node.main import collect

COLLECTORS = (
    *("containers", "gpu", "hardware", "host", "kernel_log", "links", "packages", "secure_boot"),
    *("services", "software", "system"),
)
"""Modules of the probe whose import registers collectors."""
CONCERNS = (
    *OF_GPUS,
    *("use", "speed", "containers", "toolkit", "packages", "peers", "network", "nccl", "host", "storage"),
    "stack",
)
"""The doctor's concerns in their order. Each is imported when it is needed: `stack` takes longer than all
others together.
"""
OF_SOFTWARE = ("stack.installed", "stack.frameworks", "packages.repositories")
"""Rules that ask the catalog on every machine. They depend only on `INSTALLED` and the loaded driver, and are
judged again when these change.
"""
INSTALLED = ("kernels", "packages", "sources", "pci", "frameworks")
SMI = ("smi", "nvlink", "topo")
"""Collectors that start nvidia-smi."""
RARELY = {"topo": 600.0}
"""Collector → seconds for which its value is used again: the links between GPUs do not change by themselves,
and each start of nvidia-smi takes time of the driver.
"""
ESSENTIAL = ("smi", "modules", "pci", "pci_links", "kernel_log")
"""Collectors without which a node is not called healthy."""


@dataclass(frozen=True)
class Look:
    """Result of one look.

    Attributes:
        sights: faults, one for each rule and class.
        reasons: why the verdict is unknown: essential values that are missing, and rules of GPUs that could
            not judge.
        unjudged: rule → why it could not judge.
        partly: rules that have searched a kernel log without the beginning of this boot.
        seconds: duration of the collection.
    """

    sights: tuple[Sight, ...]
    reasons: tuple[str, ...]
    unjudged: Mapping[str, str]
    partly: Collection[str] = ()
    seconds: float = 0.0


def read_facts(
    kept: dict[str, Any], now: float, smi: Sequence[int] = (), runs: Sequence[int] = ()
) -> Mapping[str, Any]:
    """Return the probe's document of this machine.

    What cannot be killed is not started again: one process a minute would be left behind.

    Args:
        kept: values of `RARELY` of earlier runs, and `late`: collectors without an answer; it is updated.
        now: seconds since boot.
        smi: nvidia-smi's processes of earlier runs that do not end.
        runs: earlier runs of this program that do not end, because a collector does not.
    """
    for name in COLLECTORS:
        importlib.import_module(f"gpuprov.probe.node.{name}")
    given = {
        name: kept[name]["value"]
        for name, seconds in RARELY.items()
        if name in kept and 0 <= now - kept[name]["at"] < seconds
    }
    if smi:
        error = f"nvidia-smi of an earlier run did not answer in time, and has not ended: process {smi[0]}"
        given.update({name: {"error": error} for name in SMI})
    late = set(kept.get("late", ())) if runs else set()
    given.update({name: {"error": f"process {runs[0]}, an earlier run, still waits for it"} for name in late})
    wanted = [name for name in PARAMETERS.collectors if name not in given]
    document = collect({**asdict(PARAMETERS), "collectors": wanted})
    found = document["collectors"]
    kept["late"] = sorted(
        late.union(thread.name for thread in threading.enumerate()).intersection(PARAMETERS.collectors)
    )
    kept.update(
        {
            name: {"at": now, "value": found[name]}
            for name in RARELY
            if name in found and _is_good(found[name])
        }
    )
    found.update(given)
    return document


def _is_good(value: object) -> bool:
    """Return whether a collector's value is anything but `{"error": …}`."""
    return not (isinstance(value, dict) and set(value) == {"error"})


def examine(document: Mapping[str, Any]) -> Examination:
    """Return the examination of a probe's document.

    Raises:
        NodeFailed: it is not a document of this schema.
    """
    facts = Examination.from_answer(document)
    return Examination(facts.host, facts.collected_at, facts.seconds, facts.collectors)


def judge(seen: Examination, kept: dict[str, Any], classes: Mapping[str, str]) -> Look:
    """Judge one examination by all rules.

    Args:
        kept: faults by `OF_SOFTWARE` from earlier runs; it is updated.
        classes: rule → class that the site states for it, or `off`.
    """
    software = kept.get("software") or {}
    digest = _digest(seen)
    is_known = software.get("digest") == digest
    found, unjudged, partly = _by_concerns(seen, lambda rule: rule not in OF_SOFTWARE, {"stack"})
    if not is_known:
        faults, missing, _ = _by_concerns(seen, lambda rule: rule in OF_SOFTWARE)
        software = {"digest": digest, "faults": [each.as_dict() for each in faults], "unjudged": missing}
        kept["software"] = software
    found = [*in_order(found), *map(_fault, software["faults"])]
    unjudged.update(software["unjudged"])
    reasons = [f"{name}: {seen.missing[name]}" for name in _essential(seen) if name in seen.missing]
    reasons += [f"{rule} could not judge: {why}" for rule, why in unjudged.items() if is_of_gpus(rule)]
    return Look(tuple(sights(found, classes)), tuple(reasons), unjudged, partly, seen.seconds)


def _by_concerns(
    seen: Examination, is_wanted: Callable[[str], bool], without: Collection[str] = ()
) -> tuple[list[Fault], dict[str, str], set[str]]:
    """Return the faults by the wanted rules, rule or concern → why it could not judge, and the rules that
    have searched a kernel log without the beginning of this boot.

    Args:
        without: concerns that are not imported.
    """
    table: list[Rule] = []
    unjudged: dict[str, str] = {}
    for name in CONCERNS:
        if name in without:
            continue
        module = f"gpuprov.doctor.concerns.{name}"
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - a concern that an older Python cannot run
            unjudged[name] = f"not judged by this Python: {type(error).__name__}"
            continue
        own = (rule for rule in RULES.values() if rule.predicate.__module__ == module)
        table += [rule for rule in own if is_wanted(rule.name)]
    found, missing, partly = judged(seen, table, _failure)
    return found, {**missing, **unjudged}, partly


def _essential(seen: Examination) -> tuple[str, ...]:
    """Return the collectors without which a machine is not called healthy; nvidia-smi only if it has GPUs."""
    if "pci" not in seen.missing and not seen.has_gpus:
        return tuple(name for name in ESSENTIAL if name != "smi")
    return ESSENTIAL


def _failure(error: Exception) -> str:
    """Return the reason for an exception that no rule should raise."""
    return f"what it read is not as expected ({type(error).__name__})"


def _digest(seen: Examination) -> str:
    """Return a digest of what is installed, and of the loaded driver; without uptime and other counters."""
    raw = [seen.collectors.get(name) for name in INSTALLED]
    of_system, of_modules = (seen.collectors.get(name) or {} for name in ("system", "modules"))
    text = json.dumps(
        [raw, of_system.get("os_release"), of_modules.get("driver")], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _fault(row: Mapping[str, Any]) -> Fault:
    """Return a fault that was kept as JSON."""
    lists = ("seen", "mend", "follows")
    values: dict[str, Any] = {name: tuple(row[name]) if name in lists else row[name] for name in row}
    return Fault(**values)


def sights(found: Iterable[Fault], classes: Mapping[str, str]) -> list[Sight]:
    """Return the faults by rule and class, in their order; the text is that of the first of each.

    Args:
        classes: rule → class that the site states for it, or `off`.
    """
    groups: dict[tuple[str, Class], list[Fault]] = {}
    for fault in found:
        stated = classes.get(fault.rule, fault.health or "none")
        if stated in CLASSES:
            groups.setdefault((fault.rule, stated), []).append(fault)
    return [
        Sight(
            rule,
            health,
            text=faults[0].text,
            mend=(faults[0].mend or ("",))[0],
            count=len(faults),
            place=place,
        )
        for place, ((rule, health), faults) in enumerate(groups.items())
    ]


def known_rules() -> frozenset[str]:
    """Return the names of all rules; a concern that this Python cannot run adds none."""
    for name in CONCERNS:
        try:
            importlib.import_module(f"gpuprov.doctor.concerns.{name}")
        except Exception:  # noqa: BLE001, S112 - its rules cannot be stated either
            continue
    return frozenset(RULES)


def own_catalog() -> None:
    """Make the rules use the catalog's data in this program, not one of a controller's state folder."""
    from gpuprov.doctor import reference

    folder = Path(reference.__file__).parents[1] / "catalog" / "data"
    reference.catalog = lambda release=folder: _load(release)  # type: ignore[assignment]


def _load(release: Path) -> Any:
    """Return the catalog of a folder; raises as `gpuprov.catalog.load`."""
    from gpuprov.catalog import load

    return load(release=release)
