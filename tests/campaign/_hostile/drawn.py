"""The ways that hypothesis generates (`_hostile_ways`), each with one example for each try."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.campaign._hostile.field import Field, way
from tests.campaign._hostile_ways import Ways

PARTIES = {
    "answers": ("node", "code"),
    "facts": ("node", "code", "node"),
    "acts": ("node", "node"),
    "hooks": ("node", "node"),
    "origins": ("node", "file"),
    "indexes": ("mirror", "code"),
    "known_hosts": ("stranger", "key"),
}


def enter(name: str, actor: str, *aims: str, share: int) -> None:
    """Register a way whose try runs one random example of a property-based test."""

    @way(actor, f"drawn {name}", *aims, share=share, seconds=60)
    def drawn(field: Field) -> Callable[[random.Random], None]:
        """Return the try of this way."""
        from hypothesis import HealthCheck, Phase, given, seed, settings
        from hypothesis import strategies as st

        ways = Ways(field.work)
        bounded = settings(
            max_examples=1,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        def once(rng: random.Random) -> None:
            function = given(data=st.data())(lambda data: getattr(ways, name)(data))
            seed(rng.getrandbits(64))(bounded(function))()

        return once


for name, (actor, *aims) in PARTIES.items():
    enter(name, actor, *aims, share=300)
