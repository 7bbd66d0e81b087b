"""Pods with GPUs by Debian's containerd: by the nvidia runtime with 1.6 and 1.7, by CDI with 1.7."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuprov_lab import Lab
from tests.lab.pod import gpus_of_a_pod, prepare
from tests.lab.stub_driver_node import StubDriverNode
from tests.lab.test_containerd import AREA, CONFIG, CRI, PROGRAMS, containerd_node
from tests.systems import DEBIAN

pytestmark = pytest.mark.slow
# A node's root is an overlay, on which no other overlay can be; and this machine may forbid root to lower the
# score by which the kernel chooses what it ends without memory.
SITES_OWN = f"""\
version = 2

[plugins."{CRI}"]
  restrict_oom_score_adj = true
  sandbox_image = "site/pause:3.9"
  [plugins."{CRI}".containerd]
    snapshotter = "native"
"""
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": str(gpu), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{gpu}"}]}}
        for gpu in range(4)
    ],
}


@pytest.fixture(scope="module", params=DEBIAN)
def driven(
    module_lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[StubDriverNode]:
    """A node with containerd, the site's own configuration, a CDI file and the programs of the tests; the
    role is applied.
    """
    settings = {"cgroup_driver": "cgroupfs", "cdi": request.param != "debian12"}
    driven = containerd_node(module_lab, tmp_path_factory.mktemp("pods"), request.param, settings)
    node = driven.node
    node.run(f"mkdir -p /etc/containerd /etc/cdi && cat >{CONFIG}", input=SITES_OWN)
    node.run("cat >/etc/cdi/nvidia.json", input=json.dumps(CDI))
    for program in PROGRAMS:
        node.run(
            f"cat >/usr/bin/{program.name} && chmod 755 /usr/bin/{program.name}", input=program.read_text()
        )
    outcome, _ = driven.apply("containerd")
    assert outcome.ok, outcome.failed
    prepare(driven)
    yield driven
    module_lab.down([node.name])


def test_both_witnesses_agree_and_a_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert (driven.drift(AREA), driven.failed(AREA)) == ({}, {})
    assert driven.apply("containerd")[1] == []


def test_a_pod_of_the_runtime_class_has_the_gpus_it_asks_for(driven: StubDriverNode) -> None:
    assert gpus_of_a_pod(driven, handler="nvidia", environment="NVIDIA_VISIBLE_DEVICES=0,2") == (
        "/dev/nvidia0 /dev/nvidia2"
    )


def test_a_pod_of_the_default_runtime_has_none(driven: StubDriverNode) -> None:
    assert gpus_of_a_pod(driven, environment="NVIDIA_VISIBLE_DEVICES=0,2") == "/dev/nvidia[0-9]*"


def test_a_pod_has_the_device_of_its_cdi_name(driven: StubDriverNode) -> None:
    seen = gpus_of_a_pod(driven, device="nvidia.com/gpu=3")
    if driven.node.os == "debian12":  # containerd 1.6 does not know the field
        assert seen == "/dev/nvidia[0-9]*"
    else:
        assert seen == "/dev/nvidia3"
        assert "unresolvable CDI devices" in gpus_of_a_pod(driven, device="nvidia.com/gpu=9")


def test_a_runtime_class_without_a_handler_is_refused(driven: StubDriverNode) -> None:
    assert 'no runtime for "nvidia-cdi" is configured' in gpus_of_a_pod(driven, handler="nvidia-cdi")
