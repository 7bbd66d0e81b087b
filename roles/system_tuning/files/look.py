"""State of a node for the role system_tuning, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input. Argument: {"sysctl": [name…],
"unwanted": [variable…], "limits": {"memlock": 4194304, "nofile": 1048576, "stack": "unlimited"}}.

    {"sysctl": {"vm.swappiness": "60"}, "hugepages": "madvise", "governors": ["powersave"],
     "unwanted": [{"path": "/etc/environment", "name": "CUDA_LAUNCH_BLOCKING"}], "refused": ["nofile"],
     "limits_conf": true, "environment": true}

`refused` are limits that not even root may set here: with one of them in its file, PAM refuses every login.
`limits_conf` and `environment`: whether /etc/security/limits.conf and /etc/environment exist.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from pathlib import Path

LIMITS_CONF = Path("/etc/security/limits.conf")
HUGEPAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GOVERNORS = "sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
LOGIN_FILES = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
LOGIN_PATTERNS = ("etc/profile.d/*.sh", "etc/environment.d/*.conf")


def matching(pattern: str) -> list[str]:
    """Return the paths that match a pattern below the root, sorted."""
    return sorted(str(path) for path in Path("/").glob(pattern))


def sysctl(name: str) -> str | None:
    """Return a kernel parameter, with single spaces; None if this kernel does not have it."""
    path = Path("/proc/sys", name.translate({ord("."): "/", ord("/"): "."}))
    return " ".join(path.read_text().split()) if path.exists() else None


def chosen(text: str) -> str | None:
    """Return the word in brackets: `always [madvise] never` → madvise; None without brackets."""
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found else None


def settings_of(path: str, names: list[str]) -> list[dict]:
    """Return the given variables that a file sets."""
    text = Path(path).read_text(errors="replace")
    pattern = r"(?m)^[ \t]*(?:export[ \t]+)?%s="
    return [{"path": path, "name": name} for name in names if re.search(pattern % re.escape(name), text)]


def service() -> int:
    """Return the ancestor of this process that the init system started, such as sshd."""
    pid = os.getpid()
    while (
        parent := int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    ) > 1:
        pid = parent
    return pid


def settable(name: str, value: int | str) -> bool:
    """Return whether root may have a limit; it is set in a child process, which then exits.

    Every login may have the limits of the service that started this one, even if this process has less.
    """
    number = resource.RLIM_INFINITY if value == "unlimited" else int(value)
    highest = resource.prlimit(service(), getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    if highest == resource.RLIM_INFINITY or 0 <= number <= highest:
        return True
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (number, number))
        except (OSError, ValueError):
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Print the node's present settings as JSON."""
    asked = json.loads(sys.argv[1])
    paths = [*LOGIN_FILES, *(path for pattern in LOGIN_PATTERNS for path in matching(pattern))]
    look = {
        "sysctl": {name: sysctl(name) for name in asked["sysctl"]},
        "hugepages": chosen(HUGEPAGES.read_text()) if HUGEPAGES.exists() else None,
        "governors": sorted({Path(path).read_text().strip() for path in matching(GOVERNORS)}),
        "refused": [name for name, value in asked["limits"].items() if not settable(name, value)],
        "limits_conf": LIMITS_CONF.exists(),
        "environment": Path(LOGIN_FILES[0]).exists(),
        "unwanted": [
            row for path in paths if Path(path).is_file() for row in settings_of(path, asked["unwanted"])
        ],
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()
