"""Errors of nodes that verbs keep."""

from __future__ import annotations

import gc
import weakref

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.ssh.contained import contained


class Large:
    """An answer that takes memory."""


def test_an_error_does_not_keep_the_answer_that_it_is_about() -> None:
    """Verbs keep the errors of all nodes until they end."""
    answers = []

    def read() -> None:
        large = Large()
        answers.append(weakref.ref(large))
        raise NodeFailed("its answer is too large") from ValueError(large)

    found = contained("gpu01", read)
    gc.collect()
    assert isinstance(found, GpuprovError)
    assert str(found) == "its answer is too large"
    assert answers[0]() is None
