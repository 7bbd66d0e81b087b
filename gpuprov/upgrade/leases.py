"""The leases of a run on its nodes: taken before anything moves, renewed while it goes on, given back."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError, Refused
from gpuprov.nodeset import fold
from gpuprov.runs import state_dir
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.header import ended
from gpuprov.upgrade.journal import NAME, read
from gpuprov.upgrade.remote import Answer, act, same

LEASE_S = 3600.0
"""How long a node stays taken after its controller died; a resumed run need not wait for that."""


class Leases:
    """Leases on nodes for one run."""

    def __init__(self, context: UpgradeContext, nodes: Sequence[str]) -> None:
        self._context, self._nodes = context, list(nodes)
        self._taken = 0.0

    def take(self) -> None:
        """Take all of them, or none.

        Raises:
            Refused: another run holds a node, and has not ended as far as is known here. A node that does not
                answer fails at its first step.
        """
        self._ask(self._nodes)

    def hold(self, nodes: Sequence[str]) -> None:
        """Prove, before something is done to nodes, that they are still ours.

        All of the run's are taken for longer when a good part of their time has gone.

        Raises:
            Refused: another run took one: this controller slept until its lease was over.
        """
        self._ask(self._nodes if time.monotonic() - self._taken > LEASE_S / 4 else nodes)

    def release(self) -> None:
        """Give them back. On a node that does not answer the lease ends by itself."""
        self._act("release", same(self._nodes, self._context.id))

    def _ask(self, nodes: Sequence[str]) -> None:
        if len(nodes) == len(self._nodes):
            self._taken = time.monotonic()
        holder = f"{os.environ.get('USER', 'root')}@{platform.node()}"
        others = self._taken_by_others(nodes, holder)
        left = {name: lease["run"] for name, lease in others.items() if is_over(lease["run"])}
        if left:
            self._act("release", {name: [run] for name, run in left.items()})
            others = self._taken_by_others(nodes, holder)
        if others:
            self.release()
            lease = next(iter(others.values()))
            minutes = max(0, lease["until"] - time.time()) / 60
            raise Refused(
                f"run {lease['run']} of {lease['holder']} is at work on {fold(others)}",
                do=f"wait for it or resume it there; its lease ends in {minutes:.0f} minutes at the latest",
            )

    def _taken_by_others(self, nodes: Sequence[str], holder: str) -> dict[str, dict[str, Any]]:
        """Ask for nodes; node → lease, of those that another run holds."""
        asked = same(nodes, self._context.id, holder, LEASE_S)
        answers = act(self._context.old, "take", asked, self._context.options, read=_lease)
        return {
            name: answer
            for name, answer in answers.items()
            if not isinstance(answer, GpuprovError) and answer["run"] != self._context.id
        }

    def _act(self, name: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        return act(self._context.old, name, arguments, self._context.options)


def _lease(told: Any) -> dict[str, Any]:
    """A lease as a node tells it."""
    return {"run": str(told["run"]), "holder": str(told["holder"]), "until": float(told["until"])}


def is_over(run_id: str) -> bool:
    """Whether a run from here has come to its end.

    A lease that it left is on a node that was out of reach then, and in nobody's way.
    """
    folder = state_dir() / "runs" / Path(run_id).name
    return (folder / NAME).is_file() and ended(read(folder))
