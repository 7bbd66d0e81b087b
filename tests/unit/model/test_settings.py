"""Descriptions of settings, which locks contain."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpuprov.model.settings import Settings

REASONS = {
    "persistence": "keep the driver's state when no program uses the GPU",
    "clocks": "application clocks in MHz; locked clocks where those are not supported",
    "power_limit": "watts that a GPU may draw, where its limit can be set",
    "compute_mode": "how many programs may use a GPU at once",
    "ecc": "check memory by ECC, from the next reboot on",
    "mig": "instances that every GPU is cut into, made anew at every boot; none is whole",
    "containers": "what containers and pods get that do not ask for anything else",
    "kernel": "kernel release the module is built for: 'running', or one by name where images are made",
    "scratch": "local devices that jobs may fill and nobody backs up",
    "storage_clients": "file systems of other machines that this one can mount",
    "tuning": "limits, kernel parameters, processors and the environment of logins",
    "profiling_counters": "whether everybody may read a GPU's counters, from the driver's next start on",
    "monitoring": "what a node tells Prometheus of itself",
    "nccl": "/etc/nccl.conf; laid over what `gpuprov nccl derive` finds",
    "ssh": "who may log in over SSH, how, with which algorithms",
    "firewall": "who may reach the node; all else is dropped",
}
"""Texts of 0.1.0; `gpuprov lock --check` reports existing locks as out of date if one of them changes."""


def test_a_lock_that_is_committed_somewhere_keeps_its_reasons() -> None:
    described = {name: field.description for name, field in Settings.model_fields.items()}
    assert {name: described[name] for name in REASONS} == REASONS


def test_ports_of_a_rule_are_never_none() -> None:
    """Refuse here what nft would refuse on the node: `tcp dport { }`."""
    with pytest.raises(ValidationError, match="at least 1 item"):
        Settings.model_validate({"firewall": {"monitor_from": ["10.0.0.1/32"], "monitor_ports": []}})
