"""Rounds of random changes on one node: both witnesses report them, and they are reverted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from subprocess import TimeoutExpired
from typing import Literal

from gpuprov.errors import GpuprovError
from tests.campaign._agree_change import Change, Draw
from tests.campaign._agree_node import Place, Snapshot, settled
from tests.campaign._agree_others import BENIGN, UNKNOWN
from tests.campaign._agree_stack import OF_THE_STACK
from tests.campaign._agree_system import OF_THE_SYSTEM
from tests.campaign._agree_witnesses import NO_ANSWER, Bench, Heard

TOGETHER = 3
"""Maximum number of changes of a round."""
DRAWS_MAX = 60
UNKNOWN_SHARE = 0.35
"""Share of the changes, among those that are not benign, that are drawn without a known effect."""

Result = Literal["both", "drift only", "verify only", "missed", "silent", "false alarm"]
RESULTS: tuple[Result, ...] = ("both", "drift only", "verify only", "missed", "silent", "false alarm")
BAD: tuple[Result, ...] = ("drift only", "verify only", "false alarm")


@dataclass(frozen=True)
class Outcome:
    """The result of one change, or of several that are seen only together."""

    seed: int
    kind: str
    name: str
    result: Result
    heard: Heard

    def __str__(self) -> str:
        """Return the change with what each witness says."""
        said = f"drift: {_listed(self.heard.drift)}; verify: {_listed(self.heard.verify | self.heard.proven)}"
        return f"seed {self.seed}  {self.result:<11}  {self.kind}: {self.name}; {said}"


def _listed(checks: Iterable[str]) -> str:
    """Return the checks in order, or `nothing`."""
    return ", ".join(sorted(checks)) or "nothing"


def drawn(seed: int, place: Place, *, benign: bool) -> list[Change]:
    """Return one to three changes that do not clash, always the same for a seed, node and kind of round."""
    dice = Random(f"{seed} {benign}")  # noqa: S311 - dice, not secrets
    wanted, found = dice.randint(1, TOGETHER), list[Change]()
    for _ in range(DRAWS_MAX):
        draw = _kind(dice, benign=benign)
        change = draw(dice, place)
        if change is not None and not any(change.clashes(each) for each in found):
            found.append(change)
        if len(found) == wanted:
            break
    return found


def _kind(dice: Random, *, benign: bool) -> Draw:
    """Draw a kind of change: a benign one, or one with a known or (in `UNKNOWN_SHARE`) an unknown effect."""
    if benign:
        return dice.choice(BENIGN)
    return dice.choice(UNKNOWN if dice.random() < UNKNOWN_SHARE else (*OF_THE_SYSTEM, *OF_THE_STACK))


@dataclass
class Rounds:
    """The rounds of one node, and their outcomes.

    Attributes:
        thorough: after each round look whether everything is as before.
        before: reports of both witnesses about the unchanged node.
        left: what reversed rounds left behind, and changes without an effect on their paths.
        unsteady: rounds about which the witnesses agreed only when they were heard again.
        tried: number of rounds.
    """

    place: Place
    bench: Bench
    thorough: bool = True
    before: Heard = field(default_factory=Heard)
    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    tried: int = 0

    def run(self, seed: int, *, benign: bool) -> Iterator[Outcome]:
        """Make the changes of a seed, judge and revert them; yield an outcome for each change."""
        changes = drawn(seed, self.place, benign=benign)
        heard = self.made(changes)
        if len(changes) == 1 or _plain(changes, heard):
            outcomes = _judged(seed, changes, heard)
        else:
            outcomes = [each for change in changes for each in _judged(seed, [change], self.made([change]))]
            alone = {check for each in outcomes for check in each.heard.only_drift | each.heard.only_verify}
            if (heard.only_drift | heard.only_verify) - alone:
                names = " + ".join(change.name for change in changes)
                outcomes.append(Outcome(seed, "together", names, _result([], heard), heard))
        self.outcomes += outcomes
        self.tried += 1
        yield from outcomes

    def made(self, changes: Sequence[Change]) -> Heard:
        """Make changes, hear both witnesses, and revert the changes."""
        snapshot = Snapshot(self.place.node.root)
        try:
            for change in changes:
                snapshot.take(change.touches)
            self._enter("\n".join(f"{{ {change.do}\n}}\n{change.then or ':'}" for change in changes))
            heard = self._heard(changes)
            if not heard.every and any(each.touches for each in changes) and not snapshot.differs():
                self.left.append(
                    f"{' + '.join(each.name for each in changes)}: none of its paths was changed"
                )
        finally:
            snapshot.put_back()
            back = [f"{change.undo or ':'}\n{change.then or ':'}" for change in reversed(changes)]
            self._enter("\n".join(back))
            settled(self.place)
        if self.thorough:
            self._complain(changes, heard)
        return heard

    def _heard(self, changes: Sequence[Change]) -> Heard:
        """Hear both witnesses; if they disagree, once more."""
        heard = self.bench.hear().without(self.before)
        if not (heard.only_drift or heard.only_verify):
            return heard
        again = self.bench.hear().without(self.before)
        if not (again.only_drift or again.only_verify):
            said = f"drift: {_listed(heard.drift)}; verify: {_listed(heard.verify | heard.proven)}"
            self.unsteady.append(f"{' + '.join(each.name for each in changes)}; {said}")
        return again

    def _enter(self, script: str) -> None:
        """Run a script on the node; a time-out is no error."""
        with suppress(TimeoutExpired):  # a change may stop what a command waits for
            self.place.enter(script)

    def _complain(self, changes: Sequence[Change], heard: Heard) -> None:
        """Record what a reversed round left behind, and expect it from now on."""
        if not (self.bench.drift() - self.before.drift or heard.only_verify):
            return
        now = self.bench.hear()
        if extra := now.without(self.before).every:
            names = " + ".join(change.name for change in changes)
            self.left.append(f"{names}: left behind {_listed(extra)}")
            if NO_ANSWER not in now.every:  # it would hide all that a witness cannot say from now on
                self.before = now


def _plain(changes: Sequence[Change], heard: Heard) -> bool:
    """Return whether both witnesses agree about a round, and report what its changes explain.

    What both report and no change explains belongs to the only one whose effect is unknown.
    """
    agreed = not (heard.only_drift or heard.only_verify)
    expected = all(
        any(change.explains(check) for check in heard.drift)
        for change in changes
        if change.effect == "breaks"
    )
    rest = _unexplained(changes, heard.every)
    alone = sum(change.effect == "unknown" for change in changes) == 1 and rest <= heard.drift
    return agreed and expected and (alone or not rest)


def _unexplained(changes: Sequence[Change], checks: Iterable[str]) -> frozenset[str]:
    return frozenset(check for check in checks if not any(change.explains(check) for change in changes))


def _judged(seed: int, changes: Sequence[Change], heard: Heard) -> list[Outcome]:
    """Return the outcomes of changes, each by the checks that it explains; of a single change, by all."""
    if len(changes) == 1:
        [change] = changes
        return [Outcome(seed, change.kind, change.name, _result(changes, heard), heard)]
    rest, outcomes = _unexplained(changes, heard.every), []
    for change in changes:
        own = {check for check in heard.every if change.explains(check)}
        own |= rest if change.effect == "unknown" else set()
        part = Heard(heard.drift & own, heard.verify & own, heard.proven & own)
        outcomes.append(Outcome(seed, change.kind, change.name, _result([change], part), part))
    return outcomes


def _result(changes: Sequence[Change], heard: Heard) -> Result:
    """Return the result of a round, by the changes' effects and the reports of both witnesses."""
    effects = {change.effect for change in changes}
    if effects == {"benign"}:
        return "false alarm" if heard.every else "silent"
    if heard.only_verify:
        return "verify only"
    if heard.only_drift:
        return "drift only"
    if heard.drift:
        return "both"
    return "missed" if effects == {"breaks"} else "silent"


def table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the number of outcomes by kind and result."""
    counts = Counter((each.kind, each.result) for each in outcomes)
    kinds = sorted({kind for kind, _ in counts})
    width = max(map(len, [*kinds, "all"]), default=3)
    yield "  ".join([f"{'':<{width}}", *(f"{result:>11}" for result in RESULTS)])
    for kind in kinds:
        yield "  ".join([f"{kind:<{width}}", *(f"{counts[kind, result]:>11}" for result in RESULTS)])
    totals = [sum(counts[kind, result] for kind in kinds) for result in RESULTS]
    yield "  ".join([f"{'all':<{width}}", *(f"{total:>11}" for total in totals)])


def settled_before(rounds: Rounds) -> Heard:
    """Return the reports about the unchanged node, once its units have settled."""
    with suppress(GpuprovError):
        rounds.place.node.run("systemctl is-system-running --wait", check=False)
    rounds.before = rounds.bench.hear()
    return rounds.before
