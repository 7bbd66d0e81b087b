"""The table of verbs, the only list of them. This module imports nothing."""

from __future__ import annotations

# verb → (module under gpuprov.cli that defines `command`, one-line description)
VERBS: dict[str, tuple[str, str]] = {
    "init": ("init", "write a fleet.yml to start from"),
    "bootstrap": ("bootstrap", "make first contact: from a cloud's login to the fleet's own, key-only"),
    "validate": ("validate", "check fleet.yml, profiles and lock: every mistake with file and line"),
    "lock": ("lock", "work out the exact meaning of fleet.yml, as fleet.lock.yml"),
    "resolve": ("resolve", "choose one machine's stack, or say why there is none"),
    "explain": ("explain", "say why this version was chosen, and what a newer one would need"),
    "plan": ("plan", "show what would change, where and why"),
    "apply": ("apply", "change nodes to match the lock, then verify"),
    "verify": ("verify", "check every node against the lock, with testinfra"),
    "drift": ("drift", "show what differs from the lock, in seconds"),
    "upgrade": ("upgrade", "move from one lock to the next: gate, canary, batches, and a way back"),
    "rollback": ("rollback", "go back to the last good set"),
    "schedule": (
        "schedule",
        "write what runs drift every night, or an upgrade in its window: systemd, cron, CI",
    ),
    "history": ("history", "show what runs saw, one node's story, what changed between two"),
    "report": ("report", "write a recorded run as a page, JUnit XML or metrics"),
    "facts": ("facts", "show what a node says of itself"),
    "doctor": ("doctor", "find what is wrong with a GPU server, and what mends it; no fleet needed"),
    "accept": ("accept", "prove under load that a node's GPUs deliver, and find the slow one"),
    "status": ("status", "show every GPU of the fleet now: load, memory, power, clocks, users"),
    "topo": ("topo", "show how GPUs, NICs and CPUs of a node are joined"),
    "inventory": (
        "inventory",
        "list hosts and groups for Ansible, from a fleet and back; discover live hosts",
    ),
    "nccl": ("nccl", "judge NCCL's own log, derive its network, measure an all-reduce"),
    "launch": ("launch", "print the exact lines that start a job: torchrun, mpirun, horovodrun, docker"),
    "catalog": ("catalog", "browse GPUs, drivers, CUDA, cuDNN, NCCL, systems; keep them current"),
    "workers": ("workers", "make certificates for sites whose workers reach nodes, and serve a site"),
    "lab": ("lab", "make throwaway real nodes on this machine, with simulated GPUs"),
}


def overview() -> str:
    """Return the text of `gpuprov --help`."""
    width = max(map(len, VERBS)) + 2
    verbs = "".join(f"  {name:<{width}}{line}\n" for name, (_, line) in VERBS.items())
    return (
        "Usage: gpuprov VERB [OPTIONS] [ARGS]\n\n"
        "  Takes a fresh GPU server to a declared, proven state and keeps it there.\n\n"
        f"Verbs:\n{verbs}\n"
        "Options:\n"
        f"  {'--version':<{width + 2}}show the version and exit\n"
        f"  {'-h, --help':<{width + 2}}show this message; `gpuprov VERB --help` tells more\n\n"
        "Exit codes: 0 done, 1 failed, 2 usage, 3 drift, 4 unreachable, 5 refused, 130 interrupted\n"
    )
