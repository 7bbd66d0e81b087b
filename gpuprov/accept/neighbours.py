"""Comparison of rates with those of neighbours: the GPUs of one node, and all GPUs of a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from gpuprov.accept.rates import Rate
from gpuprov.accept.reference import RULE_OF_NODE, rules
from gpuprov.finding import Finding

MATRICES = {"bf16", "fp16", "tf32", "fp8", "fp64"}
FEWEST = 4
"""Fewest values among which a value can be an outlier."""
OUTLYING = 3.5
"""Limit of the modified z-score, 0.6745 x distance from the median over the MAD (Iglewicz and Hoaglin, 1993).
"""
SPREAD = 0.05
"""Spread of healthy GPUs of one node (stas00/ml-engineering); a value nearer to the median is no outlier."""


def within(rates: Iterable[Rate]) -> Iterator[Finding]:
    """Yield a fault for each matrix rate below the published share of the best GPU of the node; other rates
    are not compared.
    """
    rule = rules(RULE_OF_NODE)[0]
    for measure, alike in _by_measure(rates).items():
        best = max(alike, key=lambda rate: rate.value)
        for rate in alike:
            if measure in MATRICES and rate.value < rule["min"] * best.value:
                text = f"{rate.told}, {rate.value / best.value:.0%} of GPU {best.gpu}'s {best.value:.1f}"
                yield Finding("bad", f"{measure}.node", f"{text}; {rule['who']} expects {rule['min']:.0%}")


def across(nodes: Mapping[str, Iterable[Rate]]) -> Iterator[tuple[str, Finding]]:
    """Yield node and fault for each rate that is a slow outlier among those of all the nodes' GPUs; nothing
    for fewer than `FEWEST` values of a measurement.
    """
    alike: dict[tuple[str, str], list[tuple[str, Rate]]] = defaultdict(list)
    for node, rates in nodes.items():
        for rate in rates:
            alike[rate.measure, rate.unit].append((node, rate))
    for (measure, _), measured in alike.items():
        if len(measured) < FEWEST:
            continue
        values = [rate.value for _, rate in measured]
        middle = median(values)
        mad = median(abs(value - middle) for value in values)
        for node, rate in measured:
            below = middle - rate.value
            if below > SPREAD * middle and 0.6745 * below > OUTLYING * mad:
                text = f"{rate.told}, the median of {len(values)} is {middle:.1f} (MAD {mad:.1f})"
                yield node, Finding("bad", f"{measure}.outlier", text)


def slower(now: Iterable[Rate], before: Iterable[Rate]) -> Iterator[Finding]:
    """Yield a fault for each rate that fell by more than `SPREAD` since an earlier run; new rates are
    skipped.
    """
    old = {(rate.gpu, rate.measure): rate for rate in before}
    for rate in now:
        then = old.get((rate.gpu, rate.measure))
        if then is not None and rate.value < (1 - SPREAD) * then.value:
            lost = f"{1 - rate.value / then.value:.0%} slower than the {then.value:.1f} before"
            text = f"{rate.told}, {lost}"
            yield Finding("bad", f"{rate.measure}.slower", text)


def _by_measure(rates: Iterable[Rate]) -> dict[str, list[Rate]]:
    """Return measurement → its rates."""
    alike: dict[str, list[Rate]] = defaultdict(list)
    for rate in rates:
        alike[rate.measure].append(rate)
    return alike
