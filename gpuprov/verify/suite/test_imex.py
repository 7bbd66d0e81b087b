"""Checks of IMEX: its unit, the nodes of the domain, and its command socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.imex import CONFIG, IMEX_UNIT, NODES_FILE, NODES_KEY, SOCKET_KEYS
from gpuprov.untrusted import lines_of
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

IMEX = f"journalctl -u {IMEX_UNIT} -n 10 --no-pager"
"""Command whose output is shown when a check fails."""


@pytest.mark.check("imex.unit", IMEX)
def test_imex_runs_or_is_masked(host: Node, node: NodeUnderTest, expected: str) -> None:
    """Check that IMEX's unit is masked and not active, or enabled and active.

    With another driver version loaded, as before a reboot, the daemon cannot run, and need only be enabled.
    """
    state, loaded = unit_state(host, IMEX_UNIT), host.nvidia_driver.loaded
    if expected == "masked":
        active = host.service(IMEX_UNIT).systemd_properties.get("ActiveState") == "active"
        assert (f"{state}, but active" if active else state) == expected
        return
    own = loaded is not None and loaded.version == node.wanted["imex.unit"].subject
    assert (state if own else state.partition(", but")[0]) == expected


@pytest.mark.check("imex.nodes", f"cat {NODES_FILE}", IMEX)
def test_imex_knows_the_nodes_of_its_domain(host: Node, expected: list[str]) -> None:
    """Check that the daemon reads its own list of nodes, with exactly the addresses of the domain."""
    elsewhere = [line for line in _config(host, NODES_KEY) if line != f"{NODES_KEY}={NODES_FILE}"]
    listed = lines_of(host.run(f"grep -v '^ *\\(#\\|$\\)' {NODES_FILE}").stdout)
    assert elsewhere == []
    assert sorted(line.strip() for line in listed if line) == expected


@pytest.mark.check("imex.socket", f"grep ^IMEX_CMD_ {CONFIG}", IMEX)
def test_imex_has_the_socket_of_the_dra_driver(host: Node, expected: str) -> None:
    """Check that the command socket is on, at the path that the DRA driver uses."""
    switch, path = SOCKET_KEYS
    keys = dict(line.split("=", 1) for line in _config(host, "IMEX_CMD_") if "=" in line)
    assert (keys.get(switch), keys.get(path)) == ("1", expected)


def _config(host: Node, start: str) -> list[str]:
    """Return the lines of the daemon's configuration that begin with a text."""
    return [line for line in lines_of(host.run(f"grep ^{start} {CONFIG}").stdout) if line]
