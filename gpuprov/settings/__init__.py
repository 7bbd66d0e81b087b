"""What can be set on a node, and by which role. Profiles and fleets state these; the lock records them."""

from __future__ import annotations

from pydantic import Field

from gpuprov.documents import Strict
from gpuprov.settings.access import Firewall, Ssh
from gpuprov.settings.containers import Containers
from gpuprov.settings.gpus import Clocks

__all__ = ["ROLE_OF_SETTING", "Clocks", "Containers", "Settings"]


class Settings(Strict):
    """Every setting; None means that the node keeps whatever it has."""

    persistence: bool | None = Field(
        default=None, description="keep the driver's state when no program uses the GPU"
    )
    clocks: Clocks | None = Field(
        default=None, description="application clocks in MHz; locked clocks where those are not supported"
    )
    containers: Containers | None = Field(
        default=None, description="what Docker gives a container that does not ask for anything else"
    )
    kernel: str | None = Field(
        default=None,
        description="kernel release the module is built for: 'running', or one by name where images are made",
        pattern=r"^[A-Za-z0-9._+~-]+$",
    )
    ssh: Ssh | None = Field(default=None, description="who may log in over SSH, how, with which algorithms")
    firewall: Firewall | None = Field(default=None, description="who may reach the node; all else is dropped")


ROLE_OF_SETTING = {
    "persistence": "gpu_settings",
    "clocks": "gpu_settings",
    "containers": "docker",
    "kernel": "nvidia_driver",
    "ssh": "ssh_hardening",
    "firewall": "firewall",
}
