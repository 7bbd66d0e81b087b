"""A plan as Markdown, for a comment in a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuprov.model.nodeset import fold
from gpuprov.report.text import proposal_lines
from gpuprov.untrusted import printable

if TYPE_CHECKING:
    from gpuprov.apply.proposal import Proposal
    from gpuprov.model.lock import Lock

MARK = "<!-- gpuprov plan -->"
"""First line, by which a job finds its earlier comment."""
TOTAL = "in total: "
MOST = 60_000
"""Maximum length of the plan in characters; GitHub's comments have at most 65,536."""


def plan_markdown(lock: Lock, proposal: Proposal) -> str:
    """Return the plan of an apply: a sentence, and the plan folded below it, cut after `MOST` characters.

    The plan contains text of nodes, which stays text: in a run of backticks, which could end its fence, the
    third and later ones are replaced.
    """
    lines = [printable(line) for line in proposal_lines(lock, proposal)]
    said = re.sub("(?<=``)`+", lambda run: "'" * len(run[0]), "\n".join(lines))
    if len(said) > MOST:
        said = said[:MOST] + "\n… and more: gpuprov plan"
    details = f"<details><summary>The plan</summary>\n\n```text\n{said}\n```\n\n</details>\n"
    return f"{MARK}\n**gpuprov plan**: {'; '.join(_sentences(proposal, lines))}\n\n{details}"


def _sentences(proposal: Proposal, lines: Sequence[str]) -> Iterator[str]:
    """Yield the sum of the plan, and how many nodes did not answer; node names are from the lock."""
    busy = [plan.name for plan in proposal.busy]
    total = lines[-1].removeprefix(TOTAL) if lines and lines[-1].startswith(TOTAL) else ""
    yield total or (f"{fold(busy)} would change" if busy else "nothing to do")
    if silent := len(proposal.unanswered):
        yield f"{silent} node{'s' * (silent != 1)} did not answer"
