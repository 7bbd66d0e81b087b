"""The manual page gpuprov(1), generated from the table of verbs and the exit codes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.cli.common.verbs import VERBS
from gpuprov.errors import Exit

EXITS = {
    Exit.OK: "done; nothing differs",
    Exit.FAILED: "a node or a check failed",
    Exit.USAGE: "an error on the command line or in a file",
    Exit.DRIFT: "something differs from the lock",
    Exit.UNREACHABLE: "some nodes could not be reached",
    Exit.REFUSED: "refused: no such stack can work, or a gate is closed",
    Exit.INTERRUPTED: "interrupted",
}
"""Exit code → meaning."""
FILES = {
    "fleet.yml": "the declared state: hosts, profiles, versions, settings",
    "fleet.lock.yml": "the exact state, written by gpuprov lock",
    "profiles/": "the site's own profiles, next to fleet.yml",
    "~/.ssh/config": "how hosts are reached, unless fleet.yml states it",
    "$XDG_STATE_HOME/gpuprov/runs": "the results and changes of each run",
    "$XDG_STATE_HOME/gpuprov/logs": "a log of each call",
}
"""Path → meaning."""
ENVIRONMENT = {
    "NO_COLOR": "no colour, if set to anything",
    "XDG_STATE_HOME": "where runs, history and logs are kept; ~/.local/state if not set",
    "GPUPROV_FLEET": "the fleet of gpuprov inventory",
    "GPUPROV_MITOGEN": "with 1, Ansible uses Mitogen if it is installed; SECURITY.md says what it risks",
}
"""Variable → meaning."""


def manual() -> str:
    """Return the text of the manual page in the macros of man(7)."""
    verbs = {f"gpuprov {name}": line for name, (_, line) in VERBS.items()}
    return "".join(
        [
            '.TH GPUPROV 1 "" gpuprov\n',
            _section(
                "NAME", "gpuprov \\- takes a fresh GPU server to a declared, proven state and keeps it there"
            ),
            _section("SYNOPSIS", ".B gpuprov\n.I VERB\n[OPTIONS] [ARGUMENTS]"),
            _section(
                "DESCRIPTION",
                "fleet.yml declares the state. gpuprov lock resolves it to exact versions and settings,\n"
                "each with its reason. plan and drift show what differs on the nodes, apply changes\n"
                "only that, verify checks again by other means, upgrade and rollback move a running\n"
                "fleet. Nodes are reached by SSH and need no agent.\n"
                ".PP\nEvery verb has --help, --verbose and --debug.",
            ),
            _list("VERBS", verbs),
            _list("EXIT STATUS", {str(int(code)): EXITS[code] for code in Exit}),
            _list("FILES", FILES),
            _list("ENVIRONMENT", ENVIRONMENT),
            _section(
                "SEE ALSO", ".BR ssh (1),\n.BR ssh_config (5),\n.BR ansible-playbook (1),\n.BR nvidia-smi (1)"
            ),
        ]
    )


def _section(title: str, text: str) -> str:
    """Return a section with a title and text that is formatted already."""
    return f".SH {title}\n{text}\n"


def _list(title: str, rows: dict[str, str]) -> str:
    """Return a section with a list of names and meanings."""
    return _section(title, "\n".join(_rows(rows)))


def _rows(rows: dict[str, str]) -> Iterable[str]:
    """Yield each name in bold with its meaning, escaped."""
    for name, meaning in rows.items():
        yield f".TP\n.B {_plain(name)}\n{_plain(meaning)}"


def _plain(text: str) -> str:
    """Return a text with backslashes, hyphens and arrows escaped for man(7)."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("→", "\\(->")
