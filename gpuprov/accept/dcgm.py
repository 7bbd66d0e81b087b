"""Results of DCGM's own diagnostics.

The document of `dcgmi diag -j` has no published schema. DCGM 3 names GPUs in `gpu_ids`, DCGM 4 in
`entity_group` and `entity_id`, with warnings as objects; both have test_categories, tests and results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.accept.rates import part, rows
from gpuprov.finding import Finding, Level
from gpuprov.untrusted.parsing import count_values, without_surrogates

ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
CONFIGURATION = 5
"""DCGM_ERROR_CONFIG: severity of an error that a setting of the node corrects (DCGM's Diagnostic Errors)."""
UNUSED = re.compile("(?i)^its daemon (?:does not listen|ended)|nvvs binary")
"""Reasons for no result that no user without root's rights can cause: a daemon that does not run, and a
missing program of the diagnosis, which is in a package of its own since DCGM 4.
"""
LEVELS: Mapping[str, Level] = {"pass": "ok", "skip": "ok", "skipped": "ok", "warn": "warn", "fail": "bad"}


@dataclass(frozen=True)
class Result:
    """One result of one test.

    Args:
        who: `GPU 0`, `GPU 0,1`, or empty for the node.
        said: its warnings.
        settings: every warning concerns a setting.
    """

    test: str
    status: str
    who: str = ""
    said: str = ""
    settings: bool = False

    @property
    def ran(self) -> bool:
        """Return whether the test was run, and not skipped."""
        return not self.status.lower().startswith("skip")

    @property
    def level(self) -> Level:
        """Return the status's level: `bad` if it is unknown, but `warn` for a failure of settings."""
        level = LEVELS.get(self.status.lower(), "bad")
        return "warn" if level == "bad" and self.settings else level


def results(text: str) -> list[Result] | None:
    """Parse the output of `dcgmi diag -j`, also with text before it; return every result of every test, or
    None if it contains no diagnosis, or too many values.
    """
    start = text.find("{")
    try:
        count_values(text[max(start, 0) :].encode("utf-8", "replace"))
        document, _ = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else ({}, 0)
    except (ValueError, RecursionError):
        return None
    document = without_surrogates(document)
    root = next((part(document, name) for name in ROOTS if part(document, name)), None)
    if root is None or not rows(root, "test_categories"):
        return None
    return [
        _result(str(test.get("name", "a test")), result)
        for category in rows(root, "test_categories")
        for test in rows(category, "tests")
        for result in rows(test, "results")
    ]


def _result(test: str, result: Mapping[str, Any]) -> Result:
    """Return one result of a test; `said` is its warnings joined with `; `, `who` is empty if it is not about
    GPUs.
    """
    gpus = result.get("gpu_ids", result.get("entity_id"))
    who = f"GPU {gpus}" if gpus is not None and str(result.get("entity_group", "GPU")) == "GPU" else ""
    warnings = result.get("warnings", result.get("warning", []))
    listed = warnings if isinstance(warnings, list) else [warnings]
    texts = [str(each.get("warning", each)) if isinstance(each, Mapping) else str(each) for each in listed]
    severities = [each.get("error_severity") for each in listed if isinstance(each, Mapping)]
    settings = bool(listed) and len(severities) == len(listed) and set(severities) == {CONFIGURATION}
    return Result(test, str(result.get("status", "")), who, "; ".join(texts), settings)


def findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each result of DCGM that did not pass, then an `ok` with the summary.

    Nothing if DCGM is not installed. A user who listens in place of its daemon, or has the folder of an MPS
    server, is a fault, and so is no result of a daemon of root, which any user can ask to stop: else every
    user could keep DCGM from judging the node.
    """
    reported = part(document, "dcgm")
    if not reported:
        return
    if "user" in reported:
        text = f"user {reported['user']} listens on port 5555 in place of DCGM's daemon"
        yield Finding("bad", "dcgm.user", f"{text}: end that program, then start the daemon")
        return
    if "mps_user" in reported:
        text = (
            f"user {reported['mps_user']} has /tmp/nvidia-mps, where DCGM's programs look for an MPS server"
        )
        yield Finding("bad", "dcgm.user", f"{text}: end that server, and delete the folder")
        return
    found = _results_in(reported)
    if not any(result.ran for result in found):
        errors = str(reported.get("errors", "")).strip().splitlines()
        why = reported.get("error") or (errors[-1] if errors else f"exit code {reported.get('code')}")
        yield _unjudged(str(why))
        return
    for result in found:
        if result.level != "ok":
            where = f"{result.who} " if result.who else ""
            said = f": {result.said}" if result.said else ""
            yield Finding(result.level, "dcgm.diag", f"DCGM: {where}{result.test}: {result.status}{said}")
    if reported.get("code") and all(result.level == "ok" for result in found):
        yield _unjudged(f"it ended with code {reported['code']}, and no result states why")
    yield Finding("ok", "dcgm.summary", f"DCGM's own diagnosis: {summary(document)}")


def _results_in(reported: Mapping[str, Any]) -> list[Result]:
    """Return the results that a node reports; none if there is no diagnosis."""
    return [] if "error" in reported else results(str(reported.get("said", ""))) or []


def _unjudged(why: str) -> Finding:
    """Return the finding for a diagnosis without a result; only a warning where DCGM cannot judge."""
    text = f"DCGM is installed and gave no result: {why}"
    if UNUSED.search(why):
        return Finding("warn", "dcgm.unknown", text)
    return Finding(
        "bad", "dcgm.unknown", f"{text}; test again, and if this stays, repair DCGM or stop its daemon"
    )


def summary(document: Mapping[str, Any]) -> str | None:
    """Return `9 of 10 passed`, without skipped results; `no verdict` if there is no diagnosis, None if DCGM
    is not installed.
    """
    reported = part(document, "dcgm")
    if not reported:
        return None
    ran = [result for result in _results_in(reported) if result.ran]
    if not ran:
        return "no verdict"
    return f"{sum(result.level == 'ok' for result in ran)} of {len(ran)} passed"
