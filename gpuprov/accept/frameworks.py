"""Measurements by a framework's interpreter, compared with the driver and cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.accept.rates import number, part, rows
from gpuprov.finding import Finding

SHARE = 0.9
"""Least share of cuBLASLt's rate on the same GPU; GPUs of one node differ by less (Hugging Face's rule)."""


def findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that each framework sees all GPUs, computes on tensor cores and has the expected NCCL.

    An interpreter that failed or has no framework is a fault; without measurements by an interpreter there
    are no findings.
    """
    result = part(document, "framework")
    if not result:
        return
    where = str(result.get("interpreter"))
    if "error" in result:
        yield Finding("bad", "framework.error", f"{where}: {result['error']}")
    elif not part(result, "frameworks"):
        yield Finding("bad", "framework.none", f"{where} has neither PyTorch nor JAX nor TensorFlow")
    for name in part(result, "frameworks"):
        yield from _one(document, name, part(result, "frameworks", name))


def _one(document: Mapping[str, Any], name: str, result: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings of one framework: its error, another number of GPUs than the driver lists, GPUs
    below `SHARE` of cuBLASLt's bf16 rate, another NCCL than the node's (a warning), and an `ok` with the
    rates if all are known.
    """
    who = f"{name} {result.get('version', '')}".strip()
    if "error" in result:
        yield Finding("bad", "framework.error", f"{name}: {result['error']}")
        return
    listed, seen = rows(document, "gpus"), rows(result, "gpus")
    if len(seen) != len(listed):
        text = f"{who} sees {len(seen)} GPUs, the driver lists {len(listed)}"
        yield Finding("bad", "framework.gpus", text)
    for ours, theirs in zip(listed, seen, strict=False):
        reached, rate = number(part(ours, "matrix", "bf16").get("value")), number(theirs.get("bf16"))
        if reached is not None and rate is not None and rate < SHARE * reached:
            text = (
                f"GPU {ours.get('index')}: {who} reaches {rate:.1f} TFLOP/s of bf16, cuBLASLt {reached:.1f}"
            )
            yield Finding("bad", "framework.slow", f"{text}; at least {SHARE:.0%} of it is expected")
    own, expected = result.get("nccl"), part(document, "between", "nccl").get("version")
    if own is not None and expected is not None and own != expected:
        text = f"{who} brings NCCL {own}, the node has {expected}: a program uses the one that it loads"
        yield Finding("warn", "framework.nccl", text)
    if seen and not any(found for found in seen if number(found.get("bf16")) is None):
        rates = ", ".join(f"{number(each.get('bf16')) or 0:.1f}" for each in seen)
        yield Finding("ok", "framework.rate", f"{who}: {rates} TFLOP/s of bf16")
