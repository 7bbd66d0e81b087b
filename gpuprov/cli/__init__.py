"""The command line: one module per verb, with only arguments, calls and exit codes.

The import of click takes longer than `gpuprov --help` may take, so the overview is printed from the table of
verbs before click is imported.
"""

from __future__ import annotations

import gc
import os
import sys

from gpuprov.cli.common.added import summaries
from gpuprov.cli.common.verbs import overview

GARBAGE = 200_000
"""Objects after which cyclic garbage is collected, more than the imports make: at Python's 700 this takes
14 % of the processor time of drift, at 50,000 still 6 %.
"""


def main() -> None:
    """Run `gpuprov` with the process's arguments and exit; show no traceback for a user's mistake."""
    asked_for_overview = sys.argv[1:] in ([], ["--help"], ["-h"], ["help"])
    if asked_for_overview and "_GPUPROV_COMPLETE" not in os.environ:
        sys.stdout.write(overview(summaries()))
        sys.exit(0)
    gc.set_threshold(GARBAGE)
    from gpuprov.cli.common.group import run

    code = run(sys.argv[1:])
    gc.freeze()  # at exit Python collects several times, and looked at all objects: 0.06 s of drift's 0.4
    sys.exit(code)
