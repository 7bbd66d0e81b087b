"""Leases of nodes, read without taking them."""

from __future__ import annotations

from collections.abc import Collection

from gpuprov.apply.lease import Lease, read_lease
from gpuprov.apply.lease_manager import MODULES
from gpuprov.apply.remote import ask_nodes, same
from gpuprov.model.lock import Lock
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import targets


def holders(lock: Lock, names: Collection[str], dispatch: Dispatch) -> dict[str, Lease]:
    """Return node → its lease, for those of the nodes that a run holds; without nodes that do not answer."""
    if not names:
        return {}
    questions = {name: {"act": "current", "arguments": list(given)} for name, given in same(names).items()}
    answers = ask_nodes(MODULES, targets(lock, names), questions, dispatch=dispatch, read=read_lease)
    return {name: answer for name, answer in answers.items() if isinstance(answer, Lease)}
