"""Reading of the containerd of k3s and RKE2: whether it has the runtime nvidia, and nothing else."""

from __future__ import annotations

import pytest

from gpuprov.probe.node import software

K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"


@pytest.mark.parametrize(
    ("table", "has_runtime"),
    [
        ("""[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."nvidia"]""", True),
        ("""[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']""", True),
        ("""[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]""", True),
        ("""[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]""", False),
        ("""[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia-cdi']""", False),
        ("# runtimes nvidia", False),
    ],
)
def test_only_the_presence_of_the_runtime_is_returned(
    monkeypatch: pytest.MonkeyPatch, table: str, *, has_runtime: bool
) -> None:
    text = f"version = 3\n[registry.auth]\npassword = 'secret'\n{table}\n"
    monkeypatch.setattr(software, "read_or_none", lambda path, _size: text if path == K3S else None)
    assert software._embedded_containerd() == {K3S: has_runtime}


def test_without_their_files_nothing_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "read_or_none", lambda _path, _size: None)
    assert software._embedded_containerd() == {}
