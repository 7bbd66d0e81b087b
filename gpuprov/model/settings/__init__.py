"""Models of a node's settings. Profiles and fleets state them; the lock records them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gpuprov.model.documents import Strict
from gpuprov.model.settings.access import Firewall, Ssh
from gpuprov.model.settings.containers import Containers
from gpuprov.model.settings.gpu_settings import Clocks, ComputeMode, ImexMode, MigProfile
from gpuprov.model.settings.gpudirect import PeerMemoryWay
from gpuprov.model.settings.health import Health
from gpuprov.model.settings.monitoring import Monitoring
from gpuprov.model.settings.nccl import NcclValue, NcclVariable
from gpuprov.model.settings.storage import ClientOptions, Scratch, StorageClient
from gpuprov.model.settings.system_tuning import Tuning

LATER = ("imex", "health", "peer_memory", "client_options", "confidential")
"""Keys that came after the first locks."""

__all__ = ["Clocks", "Containers", "Health", "Monitoring", "Scratch", "Settings", "Tuning"]


class Settings(Strict):
    """Every setting; None keeps the node's current value."""

    persistence: bool | None = Field(
        default=None, description="keep the driver's state when no program uses the GPU"
    )
    clocks: Clocks | None = Field(
        default=None, description="application clocks in MHz; locked clocks where those are not supported"
    )
    power_limit: int | None = Field(
        default=None, gt=0, lt=3000, description="watts that a GPU may draw, where its limit can be set"
    )
    compute_mode: ComputeMode | None = Field(
        default=None, description="how many programs may use a GPU at once"
    )
    ecc: bool | None = Field(default=None, description="check memory by ECC, from the next reboot on")
    mig: tuple[MigProfile, ...] | None = Field(
        default=None,
        description="instances that every GPU is cut into, made anew at every boot; none is whole",
    )
    imex: ImexMode | None = Field(
        default=None,
        description="memory exchange between nodes of an NVLink domain: a daemon of each host (`service`),"
        " also for the DRA driver (`dra-host`), daemons of the DRA driver (`dra`), or none (`off`)",
    )
    confidential: bool | None = Field(
        default=None,
        description="whether the host of the guest has switched confidential computing on; nothing sets it",
    )
    peer_memory: PeerMemoryWay | None = Field(
        default=None,
        description="how network cards read a GPU's memory: by DMA-BUF, or where that is not possible by the"
        " module nvidia-peermem (`auto` chooses)",
    )
    containers: Containers | None = Field(
        default=None, description="what containers and pods get that do not ask for anything else"
    )
    kernel: str | None = Field(
        default=None,
        description="kernel release the module is built for: 'running', or one by name where images are made",
        pattern=r"^[A-Za-z0-9._+~-]+$",
    )
    scratch: tuple[Scratch, ...] | None = Field(
        default=None, description="local devices that jobs may fill and nobody backs up"
    )
    storage_clients: tuple[StorageClient, ...] | None = Field(
        default=None, description="file systems of other machines that this one can mount"
    )
    client_options: ClientOptions | None = Field(
        default=None, description="options of the modules that mount network file systems"
    )
    tuning: Tuning | None = Field(
        default=None, description="limits, kernel parameters, processors and the environment of logins"
    )
    profiling_counters: bool | None = Field(
        default=None,
        description="whether everybody may read a GPU's counters, from the driver's next start on",
    )
    monitoring: Monitoring | None = Field(default=None, description="what a node tells Prometheus of itself")
    health: Health | None = Field(
        default=None, description="rules of the doctor that a node judges itself, by a timer"
    )
    nccl: dict[NcclVariable, NcclValue] | None = Field(
        default=None, description="/etc/nccl.conf; laid over what `gpuprov nccl derive` finds"
    )
    ssh: Ssh | None = Field(default=None, description="who may log in over SSH, how, with which algorithms")
    firewall: Firewall | None = Field(default=None, description="who may reach the node; all else is dropped")

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings to write; keys that the first locks did not have (`LATER`) only if stated."""
        # The lock has a digest of the fleet: one without new values keeps its digest.
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key not in LATER or value is not None}
