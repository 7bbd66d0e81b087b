"""Variables and expectations of the firewall as the kernel reports it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpuprov.access.ruleset import by_number, ssh_networks
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import COMMAND, DROP_IN, OWN_FILE, fails, mends

FIREWALL_UNIT = "gpuprov-firewall.service"
FIREWALL_RULES = "/etc/gpuprov/firewall.nft"
FIREWALL_DROP_IN = "/etc/systemd/system/nftables.service.d/gpuprov-firewall.conf"
FIREWALL_COMMAND = f"/usr/sbin/nft -f {FIREWALL_RULES}"
"""The command of the unit."""
FLUSHES = ["reload", "start", "stop"]
"""Commands of nftables.service: each flushes every table, and has to load gpuprov's rules again."""
CHAINS = ("input", "forward")
UNITS = {"firewall.unit": FIREWALL_UNIT}
BESIDE = ("firewalld.service",)
"""Firewalls that systems start by default. A packet needs their permission too: the role disables them."""

OVERRULED = (
    *fails("firewall", "firewall.unit", COMMAND),
    *fails("firewall", "firewall.unit", DROP_IN),
    *mends("firewall", "firewall.unit", OWN_FILE),
    *mends("firewall", "firewall.unit", "firewalld, started or enabled by hand"),
    *fails("firewall", "firewall.survives", "a later drop-in of nftables.service"),
    *mends("firewall", "firewall.input", "nft by hand: a flush, another rule in gpuprov's table"),
    *mends("firewall", "firewall.at_boot", "gpuprov's file of rules edited, emptied or removed"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected unit at boot, and the rules of gpuprov's table; [] if the lock states no firewall.

    `firewall.unit` is also wrong while a service of `BESIDE` runs or is enabled, which could refuse what the
    rules accept. `firewall.survives` are the commands of nftables.service after which the rules are loaded
    again. `firewall.at_boot` is what gpuprov's file of rules loads, now or at the next boot. No role corrects
    networks for SSH without the controller's own address.
    """
    firewall = group.setting("firewall")
    if firewall is None:
        return []
    rules, role = firewall["ruleset"], "firewall"
    chains = {name: by_number(rules[name]) for name in CHAINS}
    allowed = ssh_networks(firewall)
    return [
        *([Expectation("firewall.controller", allowed, None)] if allowed else []),
        Expectation("firewall.unit", "enabled", role, subject=FIREWALL_COMMAND),
        Expectation("firewall.survives", FLUSHES, role),
        Expectation("firewall.networks", rules["networks"], role),
        Expectation("firewall.input", chains["input"], role),
        Expectation("firewall.forward", chains["forward"], role),
        Expectation("firewall.at_boot", {"networks": rules["networks"], **chains}, role),
    ]


def firewall_state(own: str, beside: Collection[str]) -> str:
    """Return the state of gpuprov's unit, with a note about other firewalls that run or start at boot.

    Args:
        beside: those of `BESIDE` that run, are about to run, or start at boot.
    """
    return f"{own}, beside {', '.join(beside)}" if beside else own


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the rules of gpuprov's table; empty if the lock states no firewall."""
    firewall = group.setting("firewall")
    if not firewall:
        return {}
    rules = firewall["ruleset"]
    return {
        "firewall_networks": rules["networks"],
        "firewall_input": by_number(rules["input"]),
        "firewall_forward": by_number(rules["forward"]),
    }
