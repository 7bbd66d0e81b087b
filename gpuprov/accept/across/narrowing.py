"""Search for nodes with which no large group finishes, although their pairs do."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuprov.accept.across.rounds import BASE, Group, all_together
from gpuprov.accept.across.verdicts import Verdict

ENOUGH = 3
"""Fewest groups that did not finish whose only common node is at fault."""


class Narrowing:
    """Search by groups that finish or do not: parts of all, then suspects with nodes whose group finished.

    Args:
        few: most nodes of a group that counts as a pair.

    Attributes:
        verdicts: node → the fault that was found.
    """

    def __init__(self, few: int) -> None:
        self._few = few
        self._finished: set[str] = set()
        self._tries = 0
        self._failed: list[set[str]] = []
        """Groups that did not finish, and that no fault found so far explains."""
        self._alone: dict[str, list[set[str]]] = defaultdict(list)
        """Suspect → the other nodes of each failed group in which it was the only suspect."""
        self.verdicts: dict[str, Verdict] = {}

    def next(self, nodes: Sequence[str]) -> list[Group]:
        """Return the groups of the next round, in which suspects are spread over nodes that have finished a
        large group. All nodes are split instead while too few have finished one.

        [] before a large group has failed, or if no node is still a suspect.
        """
        suspects = [node for node in nodes if node not in self._finished]
        helpers = [node for node in nodes if node in self._finished]
        if not self._tries or not suspects:
            return []
        if len(helpers) < self._few:
            return self._in_parts(list(nodes))
        parts = min(len(suspects), BASE)
        count = min(parts, len(helpers) // self._few)
        if len(suspects) == 1:
            helpers = self._others(suspects[0], helpers)
        turned = ((at + self._tries) % parts for at in range(count))
        return [Group((*helpers[at::count], *suspects[part::parts])) for at, part in enumerate(turned)]

    def _others(self, suspect: str, helpers: list[str]) -> list[str]:
        """Return the helpers for the next group whose only suspect is this node.

        All, if no such group has failed yet; else those that were missing in one of its failed groups, with
        some of the others if these are fewer than a large group needs.
        """
        if not self._alone[suspect]:
            return helpers
        always = set.intersection(*self._alone[suspect])
        found = [node for node in helpers if node not in always]
        least = self._few if found else max(self._few, len(helpers) // 2)
        return [*found, *(node for node in helpers if node in always)][: max(least, len(found))]

    def _in_parts(self, nodes: list[str]) -> list[Group]:
        """Return groups without a common node, each with more than `few`, other ones at each try; one group
        of `few` + 1 if there are too few nodes for two.
        """
        count = min(BASE**self._tries, len(nodes) // (self._few + 1))
        if count > 1:
            if self._tries > 1:
                random.Random(self._tries).shuffle(nodes)  # noqa: S311 - chance is no secret here
            return all_together(nodes, count)
        turned = nodes[self._tries % len(nodes) :] + nodes[: self._tries % len(nodes)]
        return [Group(tuple(turned[: self._few + 1]))]

    def _is_alone(self, suspect: str) -> bool:
        """Return whether no other node was in every failed group whose only suspect was this node; False if
        no such group failed.
        """
        failed = self._alone.get(suspect, [])
        return bool(failed) and not set.intersection(*failed)

    def ended(self, nodes: Iterable[str]) -> None:
        """Record the nodes of a large group that finished: they are no suspects."""
        self._finished |= set(nodes)

    def failed(self, errors: Mapping[str, str]) -> None:
        """Record a large group that did not finish, and add a `bad` verdict for a node that it shows to be at
        fault.

        A node is at fault if it alone was in every failed group whose only suspect it was, or in all of at
        least `ENOUGH` failed groups: no other node can have ended them all. A group without a suspect makes
        all its nodes suspects again, as one of them does not always fail.

        Args:
            errors: each node of the group → its message.
        """
        self._tries += 1
        self._failed.append(set(errors))
        suspects = [node for node in errors if node not in self._finished]
        if not suspects:
            self._finished -= set(errors)
        if len(suspects) == 1:
            self._alone[suspects[0]].append(set(errors) - {suspects[0]})
        common = set.intersection(*self._failed) if len(self._failed) >= ENOUGH else set()
        if len(common) != 1:
            common = {node for node in suspects if self._is_alone(node)}
        for node in common:
            text = f"{node}: large groups (more than {self._few} nodes) with it do not finish, others do"
            self.verdicts[node] = Verdict("bad", "group", (node,), f"{text}; {node}: {errors[node]}")
            self._failed = [group for group in self._failed if node not in group]
