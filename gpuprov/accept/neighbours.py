"""Comparison of rates with those of neighbours: the GPUs of one node, and all GPUs of a group."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import lcm

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
                text = f"{rate.text}, {rate.value / best.value:.0%} of GPU {best.gpu}'s {best.value:.1f}"
                yield Finding("bad", f"{measure}.node", f"{text}; {rule['who']} expects {rule['min']:.0%}")


def across(nodes: Mapping[str, Iterable[Rate]]) -> Iterator[tuple[str, Finding]]:
    """Yield node and fault for each rate that is a slow outlier among those of all the nodes' GPUs.

    That is one below the median by more than `SPREAD` and `OUTLYING` deviations; both are medians of the
    nodes' medians. Nothing for fewer than `FEWEST` values of a measurement.
    """
    alike: dict[tuple[str, str], dict[str, list[Rate]]] = defaultdict(lambda: defaultdict(list))
    for node, rates in nodes.items():
        for rate in rates:
            alike[rate.measure, rate.unit][node].append(rate)
    for (measure, _), measured in alike.items():
        count = sum(map(len, measured.values()))
        if count < FEWEST:
            continue
        values = [[rate.value for rate in rates] for rates in measured.values()]
        middle = middle_of_nodes(values)
        mad = middle_of_nodes([[abs(value - middle) for value in own] for own in values])
        for node, rate in ((node, rate) for node, rates in measured.items() for rate in rates):
            below = middle - rate.value
            if below > SPREAD * middle and 0.6745 * below > OUTLYING * mad:
                text = f"{rate.text}, the median of {count} is {middle:.1f} (MAD {mad:.1f})"
                yield node, Finding("bad", f"{measure}.outlier", text)


def middle_of_nodes(values: Iterable[Sequence[float]]) -> float:
    """Return the weighted median: each node has one vote, which its values share equally, so that a node
    with many values does not outvote the others.

    Args:
        values: of each node, at least one.
    """
    voting = list(values)
    whole = lcm(*map(len, voting))
    votes = sorted((value, whole // len(own)) for own in voting for value in own)
    passed, total = list(accumulate(weight for _, weight in votes)), whole * len(voting)
    low, high = bisect_left(passed, -(-total // 2)), bisect_right(passed, total // 2)
    return votes[low][0] / 2 + votes[high][0] / 2


def slower(now: Iterable[Rate], before: Iterable[Rate]) -> Iterator[Finding]:
    """Yield a fault for each rate that fell by more than `SPREAD` since an earlier run; new rates are
    skipped.
    """
    old = {(rate.gpu, rate.measure): rate for rate in before}
    for rate in now:
        then = old.get((rate.gpu, rate.measure))
        if then is not None and rate.value < (1 - SPREAD) * then.value:
            lost = f"{1 - rate.value / then.value:.0%} slower than the {then.value:.1f} before"
            text = f"{rate.text}, {lost}"
            yield Finding("bad", f"{rate.measure}.slower", text)


def _by_measure(rates: Iterable[Rate]) -> dict[str, list[Rate]]:
    """Return measurement → its rates."""
    alike: dict[str, list[Rate]] = defaultdict(list)
    for rate in rates:
        alike[rate.measure].append(rate)
    return alike
