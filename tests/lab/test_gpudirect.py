"""GPUDirect on a real node, from a mirror: RDMA drivers, nvidia-fs, modules at boot, clients' options.

The packages are stubs with the real names, without modules to compile: docs/guides/gpudirect.md has
what only hardware can show. The tests build on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuprov.catalog import load
from gpuprov.errors import Refused
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.mirror_node import MirrorNode, ubuntu

pytestmark = pytest.mark.slow
SYSTEM = "ubuntu24.04"
ROLES = ("repositories", "gpudirect", "storage")
AREAS = ("gpudirect.at_boot", "gds.", "doca_ofed.", "storage.")
STACK = {"driver": "580.95.05", "cuda": "none", "cudnn": "none", "nccl": "none"}
RDMA = {**STACK, "doca_ofed": "auto", "gds": "2.26.6"}
OPTIONS = {"nfs": {"slots": 128}, "lustre": {"networks": "o2ib0(ib0)"}}
LIST = "/etc/modules-load.d/gpuprov-gpudirect.conf"


class RdmaNode(MirrorNode):
    """A node with the roles of GPUDirect, and no driver: what they write does not depend on it."""

    roles, areas = ROLES, AREAS

    @property
    def others(self) -> dict[str, str]:
        """URL of the DOCA-Host repository."""
        return {"doca": self.mirror.doca(self.server.url)}

    def content(self) -> None:
        """Apply the roles, and check that a second run changes nothing and neither drift nor verify finds a
        difference.
        """
        outcome, _ = self.apply()
        assert outcome.ok, outcome.failed
        assert self.apply()[1] == []
        assert self.differing() == (set(), set())

    def differing(self) -> tuple[set[str], set[str]]:
        """Return the checks of these roles that differ by drift and by verify."""
        return set(self.drift(*AREAS)), set(self.failed(*AREAS))


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaNode]:
    """A node of Ubuntu whose lock states peer memory, clients and DOCA-OFED from a mirror; not applied."""
    mirror = nvidia.build(tmp_path_factory.mktemp("mirror"), load(), [SYSTEM])
    with ExitStack() as stack:
        server = stack.enter_context(served(mirror.root))
        node = ubuntu(module_lab, tmp_path_factory.mktemp("gpudirect"), mirror, server)
        driven = RdmaNode(node.node, node.folder, node.system, node.ssh, mirror, server)
        driven.settings = {"peer_memory": "nvidia-peermem", "client_options": OPTIONS}
        driven.state(**RDMA)
        yield driven


def test_a_node_gets_both_with_their_modules_in_order(driven: RdmaNode) -> None:
    assert {"doca_ofed.packages", "gds.packages", "gpudirect.at_boot"} <= driven.differing()[0]
    driven.content()
    installed = driven.installed
    assert installed["doca-ofed"] == "3.1.0-091000"
    assert installed["nvidia-fs-dkms"] == "2.26.6-1"
    log = driven.says("zgrep -h ' install ' /var/log/dpkg.log")
    assert log.index("doca-ofed") < log.index("nvidia-fs"), "RDMA drivers come first"
    assert driven.says(f"grep -v '^#' {LIST}") == "nvidia_peermem\nnvidia_fs"
    shown = driven.says("modprobe --showconfig | grep -E '^options (sunrpc|lnet)'")
    assert "options sunrpc tcp_slot_table_entries=128" in shown
    assert "options lnet networks=o2ib0(ib0)" in shown


FAULTS = [
    (f"rm {LIST}", {"gpudirect.at_boot"}),
    ("apt-get --yes --quiet --allow-change-held-packages remove nvidia-fs", {"gds.packages"}),
    (
        "apt-get --yes --quiet --allow-change-held-packages remove doca-ofed-userspace",
        {"doca_ofed.packages"},
    ),
    ("rm /etc/modprobe.d/gpuprov-storage.conf", {"storage.client_options"}),
]
"""Command that causes a fault, and its checks."""


@pytest.mark.parametrize(("fault", "checks"), FAULTS)
def test_faults_are_seen_by_both_witnesses_and_mended(driven: RdmaNode, fault: str, checks: set[str]) -> None:
    driven.node.run(fault)
    assert driven.differing() == (checks, checks)
    driven.content()


OVERRULING = [
    ("blacklist nvidia_fs", "gpudirect.at_boot"),
    ("options sunrpc tcp_slot_table_entries=2", "storage.client_options"),
]
"""Line of a later file of modprobe.d, and the check that names it."""


@pytest.mark.parametrize(("line", "check"), OVERRULING)
def test_a_later_file_is_seen_by_both_witnesses_and_stays(driven: RdmaNode, line: str, check: str) -> None:
    driven.node.run(f"echo '{line}' >/etc/modprobe.d/zz-site.conf")
    assert driven.differing() == ({check}, {check})
    assert driven.apply()[1] == []
    driven.node.run("rm /etc/modprobe.d/zz-site.conf")
    assert driven.differing() == (set(), set())


def test_another_release_replaces_the_one_before(driven: RdmaNode) -> None:
    driven.state(**{**RDMA, "gds": "2.28.4"})
    assert driven.differing()[0] == {"gds.packages"}
    driven.content()
    assert driven.installed["nvidia-fs-dkms"] == "2.28.4-1"


def test_dma_buf_needs_no_module_and_none_removes_the_packages(driven: RdmaNode) -> None:
    driven.settings = {"peer_memory": "auto"}
    driven.state(**{**STACK, "doca_ofed": "none", "gds": "none"})
    assert driven.group.settings["peer_memory"].value == "dma-buf"
    driven.content()
    assert not {"doca-ofed", "nvidia-fs", "nvidia-fs-dkms"} & driven.installed.keys()
    assert driven.says(f"ls {LIST} /etc/modprobe.d/gpuprov-*.conf 2>&1").count("cannot access") >= 1
    assert driven.says("modprobe --showconfig | grep -cE '^options (sunrpc|lnet)'") == "0"


def test_what_cannot_work_is_refused_before_the_node_is_asked(driven: RdmaNode) -> None:
    driven.settings = {"peer_memory": "nvidia-peermem"}
    with pytest.raises(Refused, match="peer-memory-ofed"):
        driven.state(**STACK)
    driven.settings = {}
    with pytest.raises(Refused, match="gds-flavour"):
        driven.state(**{**STACK, "gds": "auto", "module": "proprietary"})
