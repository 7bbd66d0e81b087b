"""The table of verbs: the only list of them. Nothing is imported here."""

from __future__ import annotations

# verb → (module under gpuprov.cli that defines `command`, one line)
VERBS: dict[str, tuple[str, str]] = {
    "init": ("init", "write a fleet.yml from a profile and a host range"),
    "bootstrap": ("bootstrap", "first contact: from a cloud's login to the fleet's own, key-only"),
    "validate": ("validate", "fleet.yml, profiles and lock: every mistake with file and line"),
    "lock": ("lock", "fleet.yml → fleet.lock.yml, the exact meaning of a fleet"),
    "resolve": ("resolve", "one machine's stack, or why there is none"),
    "explain": ("explain", "why this version, and what a newer one would need"),
    "plan": ("plan", "what would change, where and why"),
    "apply": ("apply", "make it so, then verify"),
    "verify": ("verify", "testinfra looks with its own eyes, node by node"),
    "drift": ("drift", "what differs from the lock, in seconds"),
    "upgrade": ("upgrade", "from one lock to the next: gate, canary, batches, and a way back"),
    "rollback": ("rollback", "back to the last good set"),
    "schedule": ("schedule", "nightly drift, or an upgrade in its window: systemd, cron, CI"),
    "history": ("history", "what runs saw, one node's story, what changed between two"),
    "report": ("report", "a recorded run as a page, JUnit XML or metrics"),
    "facts": ("facts", "what a node says of itself"),
    "doctor": ("doctor", "what is wrong with a GPU server, and what mends it; no fleet needed"),
    "accept": ("accept", "prove under load that a node's GPUs deliver, and find the slow one"),
    "status": ("status", "every GPU of the fleet now: load, memory, power, clocks, who; live with --watch"),
    "topo": ("topo", "how GPUs, NICs and CPUs of a node are joined"),
    "inventory": ("inventory", "hosts and groups for Ansible, from a fleet and back; what live hosts are"),
    "nccl": ("nccl", "read NCCL's own log and judge it; measure an all-reduce"),
    "launch": ("launch", "the exact lines that start a job: torchrun, mpirun, horovodrun, docker"),
    "catalog": ("catalog", "browse GPUs, drivers, CUDA, cuDNN, NCCL, systems; keep them true"),
    "lab": ("lab", "throwaway real nodes on this machine, with simulated GPUs"),
}


def overview() -> str:
    """Text of `gpuprov --help`."""
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
