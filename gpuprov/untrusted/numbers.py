"""Numbers in documents of nodes: a gate for each kind.

`float` and `int` also accept text, in which a node can write what the parser of JSON refuses: `nan`, `1e999`.
"""

from __future__ import annotations

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.gates import shown
from gpuprov.untrusted.parsing import LARGEST_NUMBER


def finite(value: object) -> float:
    """Return a number of a node's document as a float.

    Raises:
        NodeFailed: it is text, a truth value or null, not a number, or exceeds `LARGEST_NUMBER`, also below
            zero.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise NodeFailed(f"{shown(value)} in place of a number", expected="a number of at most 64 bits")
    return float(value)


def whole(value: object) -> int:
    """Return a number of a node's document as an int, without its decimals.

    Raises:
        NodeFailed: as `finite`.
    """
    rounded = finite(value)
    return value if isinstance(value, int) else int(rounded)
