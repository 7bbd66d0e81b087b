"""The role imex with a stub of the daemon: all modes and back, and faults that both witnesses see."""

from __future__ import annotations

import pytest

from gpuprov_lab import Lab
from tests.lab.stub_driver_node import VERSION, StubDriverNode, component, drive

pytestmark = pytest.mark.slow
AREA = "imex."
CONFIG, NODES = "/etc/nvidia-imex/config.cfg", "/etc/nvidia-imex/nodes_config.cfg"
READ = "/run/nvidia-imex.read"
"""Nodes and configuration that the daemon has read, which it does only at its start."""
UNIT = f"""\
[Unit]
Description=NVIDIA IMEX service

[Service]
ExecStart=/bin/sh -c "cat {NODES} {CONFIG} >{READ}; exec sleep infinity"

[Install]
WantedBy=multi-user.target
"""
SHIPPED = f"# as shipped\nIMEX_NODE_CONFIG_FILE={NODES}\nIMEX_CMD_ENABLED=0\n"
SOCKET = "/etc/nvidia-imex/imex_ctrl.sock"
STATE = "systemctl is-enabled nvidia-imex; systemctl is-active nvidia-imex; true"


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node with a unit and a shipped configuration of nvidia-imex; not applied."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    drive(node)
    node.run("mkdir -p /etc/nvidia-imex && cat >/usr/lib/systemd/system/nvidia-imex.service", input=UNIT)
    node.run(f"cat >{CONFIG}", input=SHIPPED)
    return StubDriverNode(module_lab, node, tmp_path_factory.mktemp("imex"))


def switch(driven: StubDriverNode, mode: str) -> None:
    """Apply a mode in which something differs; both witnesses agree, and a second run changes nothing."""
    driven.state({"imex": mode}, imex=component({"nvidia-imex": VERSION}))
    assert driven.drift(AREA)
    mend(driven)
    assert driven.apply("imex")[1] == []


def mend(driven: StubDriverNode) -> None:
    """Apply the role; then both witnesses agree, and a daemon that runs has read what the files say."""
    outcome, _ = driven.apply("imex")
    assert outcome.ok, outcome.failed
    assert (driven.drift(AREA), driven.failed(AREA)) == ({}, {})
    if driven.says("systemctl is-active nvidia-imex") == "active":
        assert driven.says(f"cat {NODES} {CONFIG} | diff - {READ}") == ""


def test_the_daemon_runs_with_the_nodes_of_its_domain(driven: StubDriverNode) -> None:
    switch(driven, "service")
    assert driven.says(STATE) == "enabled\nactive"
    assert driven.says(f"cat {NODES}") == driven.node.address


def test_the_socket_comes_and_goes(driven: StubDriverNode) -> None:
    switch(driven, "dra-host")
    assert f"IMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH={SOCKET}" in driven.says(f"cat {CONFIG}")
    driven.state({"imex": "service"})
    mend(driven)
    assert driven.says(f"cat {CONFIG}") == SHIPPED.strip()


def test_the_unit_is_masked_and_back(driven: StubDriverNode) -> None:
    switch(driven, "dra")
    assert driven.says(STATE) == "masked\ninactive"
    switch(driven, "service")
    assert driven.says(STATE) == "enabled\nactive"
    switch(driven, "off")


FAULTS = [
    (
        "service",
        f"systemctl stop nvidia-imex; echo 10.9.9.9 >>{NODES}",
        {"imex.unit", "imex.nodes"},
    ),
    (
        "service",
        "systemctl mask --now nvidia-imex;"
        f" sed -i 's|^IMEX_NODE_CONFIG_FILE=.*|IMEX_NODE_CONFIG_FILE=/etc/x|' {CONFIG}",
        {"imex.unit", "imex.nodes"},
    ),
    ("dra-host", f"sed -i 's/^IMEX_CMD_ENABLED=1/IMEX_CMD_ENABLED=0/' {CONFIG}", {"imex.socket"}),
    ("dra", "systemctl unmask nvidia-imex; systemctl enable --now nvidia-imex", {"imex.unit"}),
]
"""Mode, command that causes faults, and their checks."""


@pytest.mark.parametrize(("mode", "fault", "checks"), FAULTS)
def test_faults_are_seen_by_both_witnesses_and_mended(
    driven: StubDriverNode, mode: str, fault: str, checks: set[str]
) -> None:
    driven.state({"imex": mode}, imex=component({"nvidia-imex": VERSION}))
    if driven.drift(AREA):
        mend(driven)
    driven.node.run(fault)
    assert (set(driven.drift(AREA)), set(driven.failed(AREA))) == (checks, checks)
    mend(driven)


def test_the_unit_of_a_node_without_a_mode_stays_as_it_is(driven: StubDriverNode) -> None:
    before = driven.says(STATE)
    driven.state({"imex": None}, imex=component({"nvidia-imex": VERSION}))
    assert driven.apply("imex")[1] == []
    assert (driven.says(STATE), driven.drift(AREA)) == (before, {})
