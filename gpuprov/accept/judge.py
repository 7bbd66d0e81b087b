"""Judgement of nodes' documents: against the vendor's peak, known floors and neighbours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from gpuprov.accept import dcgm, frameworks
from gpuprov.accept.health import findings, right
from gpuprov.accept.neighbours import across, slower, within
from gpuprov.accept.rates import BY_LINK, Rate, part, rates, rows, too_many
from gpuprov.errors import Exit, GpuprovError, NodeFailed, Refused
from gpuprov.finding import Finding, limited
from gpuprov.ssh.contained import contained

SCHEMA = "gpuprov.accept/1"
MEASURED = "gpuprov.accept.measured/1"
Verdict = Literal["accepted", "rejected", "failed", "refused"]
Answer = Mapping[str, Any] | GpuprovError


@dataclass(frozen=True)
class Acceptance:
    """Result of one node.

    Args:
        findings: faults, warnings and notes.
        failure: why nothing was measured at all.
        document: the node's measurements, unchanged.
    """

    node: str
    rates: tuple[Rate, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: GpuprovError | None = None
    document: Mapping[str, Any] | None = None

    @property
    def faults(self) -> list[Finding]:
        """Return the findings for which the node is rejected."""
        return [found for found in self.findings if found.level == "bad"]

    @property
    def verdict(self) -> Verdict:
        """Return `refused` (not loaded) or `failed` (not measured), `rejected` (measured, with a fault) or
        `accepted`.
        """
        if self.failure is not None:
            return "refused" if isinstance(self.failure, Refused) else "failed"
        return "rejected" if self.faults else "accepted"

    @property
    def exit_code(self) -> Exit:
        """Return the exit code; 1 for a rejected node."""
        if self.failure is not None:
            return self.failure.exit_code
        return Exit.FAILED if self.faults else Exit.OK

    @property
    def gpu(self) -> str:
        """Return the model of the first GPU, or an empty string."""
        found = rows(self.document, "gpus")
        return str(part(found[0], "device").get("name", "")) if found else ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: node, verdict, error, GPU model, number of GPUs, level, time, seconds,
        rates, findings, and the whole measurements as `measured`.
        """
        result = self.document or {}
        return {
            "node": self.node,
            "verdict": self.verdict,
            "error": None if self.failure is None else str(self.failure),
            "gpu": self.gpu,
            "gpus": len(rows(result, "gpus")),
            "level": result.get("level"),
            "at": result.get("at"),
            "seconds": result.get("seconds"),
            "rates": [rate.as_dict() for rate in self.rates],
            "findings": [found.as_dict() for found in self.findings],
            "measured": result,
        }


def document(judged: Iterable[Acceptance]) -> dict[str, Any]:
    """Return the document of `-o json`."""
    return {"schema": SCHEMA, "nodes": [each.as_dict() for each in judged]}


def judge(
    answers: Mapping[str, Answer],
    site: Mapping[str, float] | None = None,
    baseline: Mapping[str, Mapping[str, Any]] | None = None,
    of_node: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Acceptance]:
    """Judge each node by itself, then against the others with the same GPUs; return one result for each
    answer, in their order.

    Args:
        answers: node → its measurements, or the error in place of them.
        site: measurement → the site's own floor, which replaces published ones.
        baseline: node → its earlier measurements.
        of_node: node → the floors of its group; `site` overrides them.
    """
    floors = {name: {**(of_node or {}).get(name, {}), **(site or {})} for name in answers}
    judged = {
        name: _one(name, answer, floors[name], (baseline or {}).get(name)) for name, answer in answers.items()
    }
    outliers: dict[str, list[Finding]] = defaultdict(list)
    for gpu in {each.gpu for each in judged.values() if each.failure is None}:
        alike = {
            name: each.rates for name, each in judged.items() if each.gpu == gpu and each.failure is None
        }
        for name, found in across(alike):
            outliers[name].append(found)
    return [_with_more(each, outliers[name]) for name, each in judged.items()]


def _with_more(judged: Acceptance, found: Iterable[Finding]) -> Acceptance:
    """Return a node's result with more findings, whose number and length are limited."""
    return replace(judged, findings=(*judged.findings, *limited(found)))


def _one(
    name: str, answer: Answer, site: Mapping[str, float], before: Mapping[str, Any] | None
) -> Acceptance:
    """Judge one node by itself; an error, a refusal of the load, an answer without measurements, or an
    exception while it is judged becomes the `failure`.
    """
    if isinstance(answer, GpuprovError):
        return Acceptance(name, failure=answer)
    if refused := answer.get("refused"):
        found = contained(name, lambda: _wrong(answer))
        if isinstance(found, tuple) and found:
            return Acceptance(name, findings=found, document=answer)
        return Acceptance(name, failure=refusal(str(refused)), document=answer)
    if answer.get("schema") != MEASURED or not rows(answer, "gpus"):
        return Acceptance(name, failure=NodeFailed("the answer holds no measurements"), document=answer)
    if many := too_many(answer):
        failure = NodeFailed(f"the answer holds too many {many[0]}", expected=f"at most {many[1]}")
        return Acceptance(name, failure=failure, document=answer)
    result = contained(name, lambda: _judged(name, answer, site, before))
    return Acceptance(name, failure=result, document=answer) if isinstance(result, GpuprovError) else result


def _wrong(answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the wrong results of a load that ended as GPUs were in use, () without a load: another program
    makes it slow, and no result wrong.
    """
    loaded = {"gpus": rows(answer, "loaded")}
    return () if too_many(loaded) else tuple(limited(right(loaded)))


def refusal(reason: str) -> GpuprovError:
    """Return the error for a node that refused the load, with what to do about it: `Refused` if the cause is
    programs, a scheduler or MIG, else `NodeFailed`.
    """
    if reason.startswith("GPUs are in use"):
        return Refused(reason, do="wait for those programs, or end them")
    if "may start jobs" in reason:
        return Refused(reason, do="drain the node there, then give --drained")
    if reason.startswith("MIG"):
        return Refused(reason, do="switch MIG off first")
    return NodeFailed(reason, do="run `gpuprov doctor` on it")


def _judged(
    name: str, result: Mapping[str, Any], site: Mapping[str, float], before: Mapping[str, Any] | None
) -> Acceptance:
    """Judge a node's measurements: rates below floors, faults of the run, frameworks, DCGM, differences
    between its GPUs, and, with an earlier document, rates that fell. Number and length of the findings are
    limited.

    Raises:
        NodeFailed: as `_check_rows`.
    """
    measured = tuple(rates(result, site))
    _check_rows(measured, len(result["gpus"]))
    found = chain(
        (_floor(rate) for rate in measured if rate.level != "ok"),
        findings(result),
        frameworks.findings(result),
        dcgm.findings(result),
        within(measured),
        slower(measured, () if before is None or too_many(before) else rates(before, site)),
    )
    return Acceptance(name, measured, tuple(limited(found)), document=result)


def _check_rows(measured: Sequence[Rate], gpus: int) -> None:
    """Check the number of rates of a node with this number of GPUs.

    Raises:
        NodeFailed: a rate is there twice, or there are more pairs of GPUs than the node can have.
    """
    if len({(rate.gpu, rate.measure) for rate in measured}) < len(measured):
        raise NodeFailed("the answer holds a rate twice", expected="each once")
    pairs, most = sum(rate.measure == "peer" for rate in measured), gpus * (gpus - 1)
    if pairs > most:
        raise NodeFailed(f"the answer holds {pairs} pairs of GPUs", expected=f"at most {most}")


def _floor(rate: Rate) -> Finding:
    """Return the finding of a rate below its floor; the rate must have a floor."""
    assert rate.floor is not None  # noqa: S101 - only a floor makes a level
    whose = "its PCIe link's" if rate.measure in BY_LINK else "the vendor's"
    share = "" if rate.share is None else f", {rate.share:.0%} of {whose} {rate.peak:.4g}"
    limit = rate.floor.bad if rate.level == "bad" else rate.floor.warn
    text = f"{rate.text}{share}; at least {limit:g} is expected ({rate.floor.who})"
    return Finding(rate.level, f"{rate.measure}.slow", text)
