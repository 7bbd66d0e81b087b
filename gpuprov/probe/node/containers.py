"""Collector of NVIDIA's container toolkit."""

import gpuprov_cdi

from gpuprov.probe.node.base import collector, find_program, read_or_none, redact, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

CONFIG = "/etc/nvidia-container-runtime/config.toml"


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
