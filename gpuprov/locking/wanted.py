"""The resolver's input for a group: stated versions, and locked versions that are still valid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from gpuprov.catalog import Catalog
from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.resolve import ABSENT, AUTO, Answer, Request, resolve
from gpuprov.locking.resolve.checks.mends import mends
from gpuprov.model.components import COMPONENT
from gpuprov.model.lock import Components, Cuda
from gpuprov.model.stack import StackPolicy


@dataclass(frozen=True)
class Wanted:
    """The software of one group as far as it is decided: stated, or kept from a lock.

    Attributes:
        policy: statements of the fleet and its profiles.
        kept: versions of the previous lock that still match the statements, by component.
        toolkits: the same for CUDA toolkits, by the text that states each.
    """

    policy: StackPolicy
    kept: dict[str, str]
    toolkits: dict[str, str]

    def text(self, component: str) -> str | None:
        """Return the resolver's input for a component: the kept version, else the stated one.

        None, if not stated or `auto`, lets it choose. Of several toolkits, return the first.
        """
        stated = next(iter(stated_texts(self.policy, component)), None)
        return self.kept.get(component) or (None if stated == AUTO else stated)

    def managed(self, component: str) -> bool:
        """Return whether the component is to be locked: the driver always, others if stated but not as
        `none`.
        """
        stated = stated_texts(self.policy, component)
        return component == "driver" or (bool(stated) and ABSENT not in stated)

    def without(self, components: Collection[str]) -> Wanted:
        """Return a copy without the locked versions of some components in `kept`; `toolkits` stay."""
        kept = {name: text for name, text in self.kept.items() if name not in components}
        return replace(self, kept=kept)

    def only(self, **versions: str) -> Wanted:
        """Return a copy with these versions of `driver` and `cuda`, and `none` for cuDNN and NCCL.

        Keep nothing of the lock, and the policy's other statements.
        """
        policy = self.policy.model_copy(update={"cudnn": ABSENT, "nccl": ABSENT, "cuda": (versions["cuda"],)})
        return Wanted(policy.model_copy(update={"driver": versions["driver"]}), kept={}, toolkits={})


def stated_texts(policy: StackPolicy, component: str) -> tuple[str, ...]:
    """Return a policy's texts for a component: empty, one text, or several toolkits."""
    stated: str | tuple[str, ...] | None = getattr(policy, component)
    return () if stated is None else (stated,) if isinstance(stated, str) else stated


def wanted(policy: StackPolicy, locked: Components | None, upgrade: Collection[str]) -> Wanted:
    """Return the wanted software of a group; keep locked versions that still match.

    Args:
        locked: its components in the previous lock, or None.
        upgrade: components whose locked versions are not kept.

    Raises:
        InvalidInput: `none` or `auto` among several toolkits.
    """
    if len(stated_texts(policy, "cuda")) > 1 and {ABSENT, AUTO} & set(stated_texts(policy, "cuda")):
        raise InvalidInput(
            f"cuda: {', '.join(stated_texts(policy, 'cuda'))}",
            expected=f"versions, or only {ABSENT} or {AUTO}",
        )
    kept: dict[str, str] = {}
    toolkits: dict[str, str] = {}
    for name, component in locked.each() if locked else ():
        kind = COMPONENT[name]
        if name in upgrade or kind.unrelated or not kind.stated:
            continue
        texts = stated_texts(policy, name) or ((AUTO,) if name == "driver" else ())
        versions = component.toolkits.values() if isinstance(component, Cuda) else [component.version]
        meant = dict(_still_meant(texts, versions))
        if texts and texts[0] in meant:
            kept[name] = meant[texts[0]]
        if name == "cuda":
            toolkits = meant
    return Wanted(policy, kept, toolkits)


def _still_meant(texts: Collection[str], versions: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each text with the locked version that matches it: `12.8` with `12.8.1`, not with `12.80.1`.

    `auto` matches every version; a build (`+cuda12.9`) counts only if the text states one.
    """
    for text in texts:
        for version in versions:
            plain = version if "+" in text else version.partition("+")[0]
            if text == AUTO or f"{plain}.".startswith(f"{text}."):
                yield text, version


def resolve_group(
    name: str,
    request: Callable[[Wanted], Request],
    want: Wanted,
    catalog: Catalog,
    narrate: Callable[[str], None],
) -> tuple[Answer, Wanted]:
    """Resolve a group; drop only those locked versions that prevent a working stack.

    Args:
        name: the group, for messages.
        request: makes the resolver's request from the wanted software.
        narrate: called with each locked version that is dropped.

    Returns:
        The answer, and the wanted software without the dropped versions.

    Raises:
        Refused: no such stack can work; the message names the rules.
        InvalidInput: as `resolve`.
    """
    while True:
        answer = resolve(request(want), catalog)
        if answer.verdict != "refused":
            return answer, want
        fields = set().union(*(mends(finding.rule) for finding in answer.violations))
        in_the_way = sorted(fields & set(want.kept))
        if not in_the_way:
            raise _refusal(name, answer)
        for component in in_the_way:
            narrate(f"{name}: {component} {want.kept[component]} cannot stay: {answer.violations[0].text}")
        want = want.without(in_the_way)


def _refusal(name: str, answer: Answer) -> Refused:
    """Return the error for a refused group, with the violated rules and the nearest stacks that would
    work.
    """
    rules = "; ".join(f"{each.text} [{each.rule}]" for each in answer.violations)
    would = "; ".join(each.text for each in answer.nearest)
    less = "no single change works: state less under `stack`; gpuprov chooses what is not stated"
    return Refused(
        f"{name}: no such stack can work: {rules}", do=f"what would work: {would}" if would else less
    )
