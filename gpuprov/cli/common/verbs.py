"""The tables of verbs, the only lists of them. This module imports nothing."""

from __future__ import annotations

# verb → (module under gpuprov.cli that defines `command`, one-line description)
VERBS: dict[str, tuple[str, str]] = {
    "up": ("up", "set up one server by one line: read it, lock, plan, ask, apply, reboot, verify"),
    "init": ("init", "write a first fleet.yml"),
    "bootstrap": ("bootstrap", "install keys and sudo on new hosts, pin host keys, disable passwords"),
    "validate": ("validate", "check fleet.yml, profiles and lock; show every error with file and line"),
    "lock": ("lock", "resolve fleet.yml to exact versions and settings: fleet.lock.yml"),
    "resolve": ("resolve", "choose one machine's stack, or explain why there is none"),
    "explain": ("explain", "explain why a version was chosen, and what a newer one would need"),
    "plan": ("plan", "show what would change, where and why"),
    "apply": ("apply", "change nodes to match the lock, then verify"),
    "verify": ("verify", "check every node against the lock, with testinfra"),
    "drift": ("drift", "show what differs from the lock, in seconds"),
    "upgrade": ("upgrade", "move from one lock to the next: gate, canary, batches, rollback"),
    "rollback": ("rollback", "go back to the last good set"),
    "repair": ("repair", "mend faulty nodes: drain, reset, reboot, power cycle, test, or keep them out"),
    "schedule": (
        "schedule",
        "write systemd, cron or CI jobs that run drift every night, or an upgrade in its window",
    ),
    "history": ("history", "show earlier runs, one node's history, changes between two runs"),
    "report": ("report", "write a recorded run as HTML, JUnit XML or metrics"),
    "facts": ("facts", "show the facts of a node: hardware, driver, packages"),
    "doctor": ("doctor", "find the faults of a GPU server and how to fix them; no fleet needed"),
    "accept": ("accept", "test a node's GPUs under load, and find the slow one"),
    "status": ("status", "show every GPU of the fleet now: load, memory, power, clocks, users"),
    "topo": ("topo", "show how GPUs, NICs and CPUs of a node are connected"),
    "inventory": (
        "inventory",
        "list hosts and groups for Ansible, import an inventory, discover live hosts",
    ),
    "nccl": ("nccl", "judge NCCL's log, derive its network settings, measure an all-reduce"),
    "launch": ("launch", "print the exact lines that start a job: torchrun, mpirun, horovodrun, docker"),
    "catalog": ("catalog", "browse GPUs, drivers, CUDA, cuDNN, NCCL, systems; update the catalog"),
    "mcp": ("mcp", "serve the verbs that only read to an assistant (Model Context Protocol)"),
    "workers": ("workers", "make certificates for sites whose workers reach nodes, and serve a site"),
}
# verb → distribution of this project that adds it, by an entry point of the group `gpuprov.verbs`
ADDED: dict[str, str] = {"lab": "gpuprov-lab"}


def overview(added: dict[str, str]) -> str:
    """Return the text of `gpuprov --help`.

    Args:
        added: verbs of other distributions that are installed, and a line about each.
    """
    lines = {name: line for name, (_, line) in VERBS.items()} | added
    width = max(map(len, lines)) + 2
    verbs = "".join(f"  {name:<{width}}{line}\n" for name, line in lines.items())
    return (
        "Usage: gpuprov VERB [OPTIONS] [ARGS]\n\n"
        "  Takes a fresh GPU server to a declared, proven state and keeps it there.\n\n"
        f"Verbs:\n{verbs}\n"
        "Options:\n"
        f"  {'--version':<{width + 2}}show the version and exit\n"
        f"  {'-h, --help':<{width + 2}}show this message; for a verb: `gpuprov VERB --help`\n\n"
        "Exit codes: 0 done, 1 failed, 2 usage, 3 drift, 4 unreachable, 5 refused, 130 interrupted\n"
    )
