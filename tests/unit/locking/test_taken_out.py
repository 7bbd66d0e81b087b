"""`gpuprov lock` names components that a new lock has no more."""

from __future__ import annotations

from gpuprov.locking.changes import taken_out
from gpuprov.model.lock import Lock, read_lock
from tests import RECORDED_LOCK


def changed(lock: Lock, **components: object) -> Lock:
    """Return a lock whose only group has other components."""
    [(name, group)] = lock.groups.items()
    stack = group.components.model_copy(update=components)
    return lock.model_copy(update={"groups": {name: group.model_copy(update={"components": stack})}})


def test_a_component_that_is_left_out_is_named_unless_it_must_be_absent() -> None:
    lock = read_lock(RECORDED_LOCK)
    before = changed(lock, nccl=lock.groups["debian12"].components.driver)
    [line] = taken_out(before, lock)
    assert line.startswith("debian12: nccl is not stated any more: nodes keep it")
    assert "`stack: {nccl: none}`" in line
    assert taken_out(before, changed(lock, absent={"nccl": "libnccl.*"})) == []
    assert taken_out(lock, before) == taken_out(before, before) == taken_out(None, lock) == []
