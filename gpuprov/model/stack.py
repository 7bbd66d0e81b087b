"""Model of a server's software, as a profile or a fleet states it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from gpuprov.model.documents import DECIMAL, Strict


def _version_text(stated: object) -> object:
    """Return a whole number as text, and other values unchanged; raise ValueError for a decimal number."""
    if isinstance(stated, float):
        said = f'a version in quotes, "{DECIMAL}": YAML reads it without quotes as the number {stated}'
        raise ValueError(said)  # noqa: TRY004 - pydantic converts it
    return str(stated) if isinstance(stated, int) and not isinstance(stated, bool) else stated


def _several(stated: object) -> object:
    """Return a single value as a list; a list, a tuple and None unchanged."""
    return stated if stated is None or isinstance(stated, list | tuple) else [stated]


VersionText = Annotated[str, BeforeValidator(_version_text), Field(pattern=r"^[0-9a-z][0-9A-Za-z.+-]*$")]
"""A version or the start of one (`12.8`), `auto` for the resolver's choice, `none` for absent."""

BuilderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=253)]
IMAGE = "image"
"""The builder of modules that `gpuprov apply --image` compiles, in place of a host."""
LATER = ("builder", "compiler", "podman", "doca_ofed", "gds")


class StackPolicy(Strict):
    """The stated software; the resolver chooses the rest.

    The driver is always managed, with the components that the hardware needs at its version. Other components
    are managed only if stated: a version, the start of one, `auto` (the resolver chooses) or `none` (must be
    absent).
    """

    prefer: Literal["lts", "production", "newest"] | None = None
    repository: Literal["nvidia", "distribution"] | None = None
    driver: VersionText | None = Field(default=None, description="a branch (535) or a full version")
    module: Literal["open", "proprietary"] | None = None
    module_build: Literal["dkms", "once", "precompiled"] | None = Field(
        default=None,
        description="compiled on each node (`dkms`, the default), by the stated builder for all nodes with"
        " its kernel (`once`, the default with a builder), or by the distribution (`precompiled`, Ubuntu)",
    )
    builder: Annotated[tuple[BuilderName, ...] | None, BeforeValidator(_several)] = Field(
        default=None,
        min_length=1,
        max_length=4,
        description="host that compiles the module for the group, whose kernels run its code: a host of the"
        " fleet, several whose builds must be the same, or `image`",
    )
    compiler: Literal["absent"] | None = Field(
        default=None,
        description="with a builder: `absent` on the other nodes, where a new kernel waits for its module",
    )
    cuda: Annotated[tuple[VersionText, ...] | None, BeforeValidator(_several)] = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="toolkits (12.8); of several the first is the default",
    )
    cudnn: VersionText | None = Field(default=None, description="9.15, or exactly: 9.15.0.57")
    nccl: VersionText | None = Field(default=None, description="2.29, or with its build: 2.29.7+cuda13.2")
    docker: VersionText | None = Field(
        default=None, description="version in the distribution's archive: 20.10"
    )
    containerd: VersionText | None = Field(
        default=None, description="runtime of a Kubernetes node; version in the distribution's archive: 1.6"
    )
    podman: VersionText | None = Field(
        default=None, description="Podman, without a daemon; version in the distribution's archive: 5.4"
    )
    container_toolkit: VersionText | None = Field(default=None, description="1.20")
    doca_ofed: VersionText | None = Field(
        default=None,
        description="NVIDIA's RDMA drivers in place of the kernel's: a release of DOCA, or auto; `none` for"
        " the kernel's own",
    )
    gds: VersionText | None = Field(
        default=None, description="GPUDirect Storage: a release of nvidia-fs, or auto: the repository's"
    )
    dcgm: VersionText | None = Field(default=None, description="4, or exactly: 4.5.2")
    profiling_tools: Literal["auto", "none"] | None = Field(default=None, description="perf, sysstat, atop")
    node_exporter: VersionText | None = Field(
        default=None, description="version of Prometheus' node_exporter"
    )

    @model_serializer(mode="wrap")
    def _without_new_keys(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer keys that are not stated: a lock has a digest of this,
        which they must not change.
        """
        said: dict[str, Any] = write(self)
        return {key: each for key, each in said.items() if each is not None or key not in LATER}
