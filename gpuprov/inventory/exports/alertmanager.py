"""Routes and inhibition for Alertmanager, for the alerts of `alerts.py`.

Alertmanager has one configuration, which belongs to the site: the file is a start to copy from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

HEADER = """\
# Written whole by `gpuprov inventory export prometheus`, and read by no program: copy it, or its parts, into
# the site's alertmanager.yml, and give the receivers their addresses.
"""
CRITICAL, WARNING = "gpuprov-critical", "gpuprov-warning"
"""Receivers, without addresses."""
INHIBITED = (
    # The same fault with a smaller severity.
    (("GpuXidBroken",), ("GpuXidDegraded",), ("node", "gpu")),
    (("GpuRowRemapFailed",), ("GpuRowRemapped",), ("node", "gpu")),
    # Without its driver a node also fails its verification, differs from its lock, and has no GPUs.
    (("GpuprovDriverMismatch",), ("GpuprovDrift", "GpuprovVerifyFailed", "GpuprovGpusMissing"), ("node",)),
    (("GpuprovVerifyFailed",), ("GpuprovDrift",), ("node",)),
)
"""Alerts, the alerts that they silence, and the labels in which both are equal."""


def alertmanager() -> str:
    """Return the configuration as YAML: critical alerts at once and hourly, others collected and daily."""
    config = {
        "route": {
            "receiver": WARNING,
            "group_by": ["alertname", "rack"],
            "group_wait": "5m",
            "group_interval": "15m",
            "repeat_interval": "24h",
            "routes": [
                {
                    "matchers": ['severity="critical"'],
                    "receiver": CRITICAL,
                    "group_wait": "30s",
                    "repeat_interval": "1h",
                }
            ],
        },
        "inhibit_rules": [_inhibit_rule(*each) for each in INHIBITED],
        "receivers": [{"name": CRITICAL}, {"name": WARNING}],
    }
    text: str = yaml.safe_dump(config, sort_keys=False, width=10_000)
    return HEADER + text


def _inhibit_rule(
    sources: tuple[str, ...], targets: tuple[str, ...], equal: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return a rule by which alerts named in `sources` silence those named in `targets` with the same values
    of the labels `equal`, with the keys of Alertmanager 0.22 or newer.
    """
    return {
        "source_matchers": [f'alertname=~"{"|".join(sources)}"'],
        "target_matchers": [f'alertname=~"{"|".join(targets)}"'],
        "equal": list(equal),
    }
