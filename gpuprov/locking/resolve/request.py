"""Requests to the resolver: one machine, and the versions that are already decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpuprov.errors import InvalidInput

DERIVED = frozenset({"branch", "nscq", "nvsdm", "nvlsm", "imex", "dcgm"})
"""Parts of a stack that follow from others; ignored in a request, so an answer's stack can be used as one."""

ABSENT = "none"
"""Value of a component that is deliberately absent."""
AUTO = "auto"
"""Value of a component whose version is not stated; of Podman, the version in the system's archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One machine. Every field but `gpus` and `os` may be None: "not stated", so chosen or not judged.

    `"none"` means deliberately absent and is allowed for `cuda`, `cudnn`, `nccl`, `container_toolkit`,
    `fabricmanager`, `compat`, `docker`, `podman`, `gds`, `doca_ofed` and `framework`.
    """

    gpus: tuple[str, ...]
    """PCI ids, nvidia-smi product names, marketing names or aliases, one an entry; `8x NVIDIA H200` counts.
    A single name without a count states the model of the machine's GPUs, not their number.
    """
    os: str
    """`ubuntu22.04`, `Debian 12`, `rocky9.4`, `amzn2023` ..."""
    arch: str | None = None
    """`x86_64`, or `aarch64` (also `arm64`, `sbsa`); None: the GPUs decide."""
    driver: str | None = None
    """A branch (`580`) or a full version (`580.95.05`)."""
    cuda: str | None = None
    """The host's toolkit: `12.4` or `12.4.1`."""
    cudnn: str | None = None
    nccl: str | None = None
    """`2.27.3`, or with its build `2.27.3+cuda12.9`."""
    container_toolkit: str | None = None
    fabricmanager: str | None = None
    module: str | None = None
    """Kernel-module flavour: `open` or `proprietary`."""
    module_build: str | None = None
    """`dkms`: compiled on the machine, or `precompiled`: the distribution's signed modules; None: the
    repository's first choice, which is compiled.
    """
    kernel: str | None = None
    """The kernel of the next boot, as `uname -r` prints it."""
    framework: str | None = None
    """`torch==2.6.0` (the default wheel), `torch==2.6.0+cu126`, `tensorflow==2.15`."""
    docker: str | None = None
    """Version of the Docker engine."""
    podman: str | None = None
    """Version of Podman, or `auto`: the system's own; None: no Podman."""
    gds: str | None = None
    """Version of nvidia-fs, the module of GPUDirect Storage, or `auto`: the newest; None: without it."""
    doca_ofed: str | None = None
    """Release of DOCA-OFED, or `auto`: the repository's; `none`: the kernel's own drivers."""
    compat: str | None = None
    """A forward-compatibility package, by its CUDA version: `13.0` for `cuda-compat-13-0`."""
    repository: str | None = None
    """Repository of the driver: `nvidia` or `distribution`; None: nvidia if it serves that system."""
    prefer: str | None = None
    """Policy for versions that are not stated: a name in the catalog's `policies`; None: the catalog's
    default.
    """

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Request:
        """Parse a request from one JSON object, such as a line of `--batch`.

        Keys are the fields of this class, with `gpu` (or `gpus`) a string or a list of strings; a version may
        be a JSON number (`12.8`), an empty string counts as missing. Keys in `DERIVED` are ignored.

        Raises:
            InvalidInput: an unknown key, a missing `gpu` or `os`, a value that is not text.
        """
        known = {field.name for field in fields(cls)} - {"gpus"}
        if unknown := sorted(set(raw) - known - DERIVED - {"gpu", "gpus"}):
            raise InvalidInput(
                f"unknown key {unknown[0]!r} in a request", expected=", ".join(["gpu", *sorted(known)])
            )
        gpus = raw.get("gpu") or raw.get("gpus")
        names = [gpus] if isinstance(gpus, str) else gpus
        if not isinstance(names, list | tuple) or not names:
            raise InvalidInput(f"gpu is {gpus!r}", expected="a name, or a list of names with at least one")
        values = {name: _text(name, raw[name]) for name in known if raw.get(name) not in (None, "")}
        if "os" not in values:
            raise InvalidInput("a request without os", expected="an operating system such as ubuntu24.04")
        return cls(gpus=tuple(_text("gpu", name) for name in names), **values)


def _text(name: str, value: object) -> str:
    """Return text or a number as text without surrounding spaces; InvalidInput for any other value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"{name} is {value!r}", expected="a string")
    return str(value).strip()
