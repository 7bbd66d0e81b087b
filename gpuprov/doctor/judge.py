"""Application of all rules to one machine: faults with causes first, and rules that could not judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import FAULTS, RULES, SEVERITIES, Fault, Rule, class_of, limited
from gpuprov.doctor.units import gpus_of, machine_serial
from gpuprov.errors import Exit, GpuprovError
from gpuprov.finding import shortened
from gpuprov.probe.parse.gpu import Gpu

SCHEMA = "gpuprov.doctor/1"
CHAIN = 12
"""Maximum number of causes one after the other."""
Verdict = Literal["healthy", "unsure", "sick", "failed"]


@dataclass(frozen=True)
class Diagnosis:
    """Result of one machine.

    Args:
        faults: causes first, the worst first.
        unknown: rule → why it could not judge.
        failure: why there is no examination.
        seconds: duration of the examination on the machine.
        scope: general limits of the examination: without root, inside a container.
        machine: serial number of the machine; empty if it has none.
        gpus: GPUs that nvidia-smi lists.
    """

    host: str
    faults: tuple[Fault, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    failure: GpuprovError | None = None
    seconds: float = 0.0
    scope: tuple[str, ...] = ()
    looked_at: str = ""
    machine: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict: `failed` without an examination, `sick` with a broken or degraded fault, else `unsure`
        if a rule could not judge, else `healthy`. Risks and hints do not count.
        """
        if self.failure is not None:
            return "failed"
        if any(fault.severity in ("broken", "degraded") for fault in self.faults):
            return "sick"
        return "unsure" if self.unknown else "healthy"

    @property
    def exit_code(self) -> Exit:
        """The exit code: without an examination that of the failure (4 for an unreachable machine), 1 for the
        verdict `sick`, else 0, also for `unsure`.
        """
        if self.failure is not None:
            return self.failure.exit_code
        return Exit.FAILED if self.verdict == "sick" else Exit.OK

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: host, verdict, error, faults, and rules that could not be judged."""
        return {
            "host": self.host,
            "verdict": self.verdict,
            "error": None if self.failure is None else str(self.failure),
            "seconds": self.seconds,
            "looked_at": self.looked_at,
            "scope": list(self.scope),
            "faults": [fault.as_dict() for fault in self.faults],
            "unknown": [{"rule": rule, "reason": reason} for rule, reason in self.unknown],
        }


def document(found: Iterable[Diagnosis]) -> dict[str, Any]:
    """Return the document of `-o json`."""
    return {"schema": SCHEMA, "hosts": [each.as_dict() for each in found]}


def rules() -> list[Rule]:
    """Return all rules, in the order of the concerns."""
    from gpuprov.doctor import concerns

    order = {module.__name__: place for place, module in enumerate(concerns.ORDER)}
    return sorted(RULES.values(), key=lambda rule: order[rule.predicate.__module__])


def diagnose(seen: Examination, name: str = "") -> Diagnosis:
    """Judge one machine by every rule; a rule that lacks a value, fails or finds `FAULTS` is listed as
    unknown, with the reason.
    """
    from gpuprov.ssh.contained import unexpected

    found, unknown, _ = judged(seen, rules(), lambda error: str(unexpected(name or seen.host, error)))
    return Diagnosis(
        name or seen.host,
        tuple(in_order([replace(fault, source=titles(RULES[fault.rule].source)) for fault in found])),
        tuple(unknown.items()),
        seconds=seen.seconds,
        scope=tuple(scope(seen)),
        looked_at=seen.collected_at,
        machine=machine_serial(seen),
        gpus=gpus_of(seen),
    )


def judged(
    seen: Examination, table: Iterable[Rule], failed: Callable[[Exception], str]
) -> tuple[list[Fault], dict[str, str], set[str]]:
    """Judge one machine by the rules of a table; return the faults, rule → why it could not judge, or
    that it has more than `FAULTS` faults, of which the first are kept, and the rules that have searched a
    kernel log without the beginning of this boot.

    A rule that has searched a kernel log which may lack messages does not know all faults, and is in both.

    Args:
        failed: returns the reason for an exception that no rule should raise.
    """
    found: list[Fault] = []
    unknown: dict[str, str] = {}
    partly: set[str] = set()
    for rule in table:
        searches = seen.searches
        try:
            faults = limited(rule.predicate(seen))
        except GpuprovError as error:
            unknown[rule.name] = shortened(str(error))
        except Exception as error:  # noqa: BLE001 - untrusted input, or an error in a rule
            unknown[rule.name] = shortened(failed(error))
        else:
            found += [replace(fault, rule=rule.name, health=class_of(fault, rule)) for fault in faults]
            if seen.searches > searches and not seen.is_log_whole:
                partly.add(rule.name)
                if seen.unread:
                    unknown[rule.name] = shortened(f"kernel_log: {seen.unread}")
            if len(faults) == FAULTS:
                unknown[rule.name] = f"it reports at most {FAULTS} faults of a machine"
    return found, unknown, partly


def in_order(found: list[Fault]) -> list[Fault]:
    """Set `follows` and sort faults: causes before their consequences, in the order in which mends work,
    then by severity, urgent ones first.
    """
    fired = {fault.rule for fault in found}
    marked = [
        replace(fault, follows=tuple(r for r in RULES[fault.rule].after if r in fired and r != fault.rule))
        for fault in found
    ]
    steps = _steps({fault.rule: fault.follows for fault in marked})
    return sorted(
        marked, key=lambda fault: (steps[fault.rule], SEVERITIES.index(fault.severity), not fault.urgent)
    )


def _steps(follows: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Return rule → number of causes one after the other before its faults, at most `CHAIN`."""
    steps = dict.fromkeys(follows, 0)
    for _ in range(CHAIN):
        steps = {
            name: max((1 + steps[each] for each in causes), default=0) for name, causes in follows.items()
        }
    return steps


def scope(seen: Examination) -> Iterable[str]:
    """Yield general limits of the examination: without root, inside a container, or the error if this is not
    known.
    """
    try:
        if not seen.is_root:
            yield (
                "not root: the kernel's log, others' programs, ACS, limits and some of the driver's state "
                "may be hidden; allow sudo without a password, or give it with -K"
            )
        if seen.in_container:
            yield "inside a container: the host's modules, services, packages and log are not visible"
    except GpuprovError as error:
        yield str(error)


@cache
def catalogue() -> dict[str, Any]:
    """Return `data/faults.json`: known faults, the rules' sources, and faults without a rule, with the
    reason.
    """
    result: dict[str, Any] = json.loads((files(__package__) / "data/faults.json").read_text("utf-8"))
    return result


def titles(sources: tuple[str, ...]) -> str:
    """Return the titles of a rule's sources, joined with `; `."""
    known = catalogue()["sources"]
    return "; ".join(known[each] for each in sources)
