"""Sets of node names as people write them: `gpu[001-064]`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator


def fold(names: Iterable[str]) -> str:
    """`gpu[001-064]`."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(names)))


def fold_alike(told: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What is said of single nodes, in order, each once: the names folded, and the text.

    Args:
        told: a node's name, and what is said of it.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in told:
        alike[text].append(name)
    for text, names in alike.items():
        yield fold(names), text


def expand(stated: object) -> list[str]:
    """`gpu[01-08]`, or a list of such, as single names in order.

    Raises:
        ValueError: not a node set.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    listed = stated if isinstance(stated, list) else [stated]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) < len(listed):
        raise ValueError("host names such as gpu[01-08], a list of them, or a mapping of name to address")
    try:
        return list(NodeSet(",".join(texts)))
    except NodeSetException as error:
        raise ValueError(f"host names such as gpu[01-08] ({error})") from None
