"""Commands that may run on all nodes of a group, because no node's text is part of them.

The first node's commands are run on the others in advance. Observers also put text of a node into a command,
quoted, and that node may lie: such a command runs on this node only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from gpuprov.model.lock import Lock

OWN = ("gpuprov.", "testinfra.modules.")
"""Prefixes of the modules whose texts are known."""
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+~:@=-]{0,127}")
"""An argument that is harmless from any node, such as a kernel's or a package's name: no path, no option."""
COMMANDS = 256
"""Maximum number of a node's commands that run on the others of its group too, and take time there.

The recorded node has 64. A further command runs on each node when its check needs it.
"""
COMMANDS_WITH_WORDS = 32
"""Maximum number of those with words of the node: the recorded one, whose kernel the lock states, has 3."""

Rule = Callable[[str, Sequence[str]], bool]
"""Function of a command and its arguments: whether they may run on all nodes of a group."""


def rules(lock: Lock) -> dict[str, Rule]:
    """Return node → function that returns whether a command with its arguments may run on all nodes of its
    group.

    Each function counts the commands that it has allowed, see `_NodeRule`.
    """
    found: dict[str, Rule] = {}
    for group in lock.groups.values():
        stated = frozenset(_leaves(group.model_dump(mode="json")))
        found |= {name: _NodeRule(stated).is_shared for name in group.hosts}
    return found


@dataclass
class _NodeRule:
    """One node's commands that may run on all nodes of its group.

    Attributes:
        stated: texts of the lock.
        left: how many more commands may be shared.
        with_words: how many of these may have words that neither the lock nor the code has.
    """

    stated: frozenset[str]
    left: int = COMMANDS
    with_words: int = COMMANDS_WITH_WORDS

    def is_shared(self, command: str, arguments: Sequence[str]) -> bool:
        """Return whether a command is a text of the code, with arguments of the code, the lock or words. It
        is False once `left` or `with_words` is used up.

        Args:
            command: with `%s` for each argument.
        """
        if not self.left:
            return False
        known = constants()
        base = command
        while base.endswith(" %s"):
            base = base.removesuffix(" %s")
        if command.startswith("%") or not {command, base} & known:
            return False
        words = [each for each in arguments if each not in self.stated and each not in known]
        if words and not (self.with_words and all(map(WORD.fullmatch, words))):
            return False
        self.with_words -= bool(words)
        self.left -= 1
        return True


def constants() -> frozenset[str]:
    """Return all texts in the code of the modules of `OWN` that are loaded now."""
    return _constants(tuple(name for name in sys.modules if name.startswith(OWN)))


@cache
def _constants(names: tuple[str, ...]) -> frozenset[str]:
    """Return all texts in the code of these modules, and the values of their constants."""
    return frozenset().union(*map(_module_texts, names))


@cache
def _module_texts(name: str) -> frozenset[str]:
    """Return the literals of a module's code, and the values of its constants, which may be composed.

    pytest's own loader has the code with its changes only.
    """
    module = sys.modules[name]
    code = SourceFileLoader(name, module.__file__).get_code(name) if module.__file__ else None
    return frozenset(_texts((code, *vars(module).values())))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a code object, and in unchangeable containers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, CodeType):
        yield from _texts(value.co_consts)
    elif isinstance(value, tuple | frozenset):
        for each in value:
            yield from _texts(each)


def _leaves(value: Any) -> Iterator[str]:
    """Yield keys and values of a document as texts, without None."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif value is not None:
        yield str(value)
