"""Collectors of NVIDIA's container toolkit and of Podman."""

import glob
import os
import re

import gpuprov_cdi

from gpuprov.probe.node.base import closed, collector, find_program, read_or_none, redact, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

CONFIG = "/etc/nvidia-container-runtime/config.toml"
OPTIONS = re.compile(r"(?m)^ +--(?:cgroup-manager|shm-size|ulimit) .*$")
"""Podman's options whose defaults are those of its configuration, in its own help."""
KEYS = re.compile(r"(?m)(?:^|[{,.])[ \t]*[\"']?(cgroup_manager|shm_size|default_ulimits)[\"']?[ \t]*=(?!=)")
"""Keys of containers.conf: also quoted, dotted (`containers.shm_size`), or in an inline table."""

OF_USERS = (
    *("/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid", "/etc/hosts", "/etc/resolv.conf"),
    *("/etc/containers/policy.json", "/etc/containers/registries.conf", "/etc/containers/storage.conf"),
)
"""Files without which Podman starts no container of a user."""


@collector(seconds=10)
def toolkit(parameters: "Values") -> "Any":
    """Return the toolkit's configuration, the one that it has by default, and its CDI specifications.

    The default is empty for a toolkit that cannot print it (before 1.13).
    """
    code, default = 1, ""
    if find_program("nvidia-ctk"):
        code, default, _ = run_anyway("nvidia-ctk", "config", "default", seconds=9)
    return {
        "config": redact(read_or_none(CONFIG) or ""),
        "default": "" if code else default,
        "cdi": gpuprov_cdi.specifications(),
    }


@collector(seconds=20)
def podman(parameters: "Values") -> "Any":
    """Return lines of Podman's help with the defaults of its options, and who sets them: `[file, key]`.

    Files are in the order in which Podman reads them: of several with a key the last one counts. `closed` are
    files that Podman reads as its user, and that other users than root cannot read. All are empty if they are
    not requested or Podman is not installed.
    """
    if not parameters["podman"] or not find_program("podman"):
        return {"options": [], "places": [], "closed": []}
    said = run("podman", "--help", seconds=9) + run("podman", "create", "--help", seconds=9)
    files = ["/etc/containers/containers.conf"] + sorted(
        glob.glob("/etc/containers/containers.conf.d/*.conf")
    )
    return {
        "options": OPTIONS.findall(said),
        "places": [[path, key] for path in files for key in KEYS.findall(read_or_none(path) or "")],
        "closed": [path for path in [*OF_USERS, *files] if closed(os.path.realpath(path))],
    }
