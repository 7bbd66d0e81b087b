"""Conversations with nodes over SSH."""

from __future__ import annotations

from collections.abc import Callable

from gpuprov.accept.across.mesh import Visits
from gpuprov.errors import GpuprovError
from gpuprov.probe.payload import ANSWER_LIMIT, Payload
from gpuprov.ssh.conversation import Conversation
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out

LIMITS = ConnectionLimits(connect_s=15, answer_bytes=ANSWER_LIMIT)


def over_ssh(nodes: list[Target], payload: Payload) -> Visits:
    """Return the `Visits` of nodes over SSH, all at the same time; opening the conversation raises the error
    of a node that was not reached.
    """

    def visits(visit: Callable[[str, Callable[[], Conversation]], None]) -> None:
        def there(session: Session) -> None:
            visit(session.target.name, lambda: session.converse(payload.command, payload.stdin))

        for node, answer in fan_out(nodes, there, dispatch=Dispatch(forks=len(nodes)), limits=LIMITS):
            if isinstance(answer, GpuprovError):
                failure = answer  # the node was not even reached

                def fail(error: GpuprovError = failure) -> Conversation:
                    raise error

                visit(node.name, fail)

    return visits
