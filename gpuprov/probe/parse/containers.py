"""Effective configuration of container engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuprov.untrusted.parsing import read_toml

NAMED_AT_MOST = 3
"""Number of missing paths, and of versions, that the probe sends of a specification."""


@dataclass(frozen=True)
class Containerd:
    """containerd's configuration: its plugins' tables by plugin, and its disabled plugins."""

    plugins: Mapping[str, Mapping[str, Any]]
    disabled: tuple[str, ...]


@dataclass(frozen=True)
class Podman:
    """Podman's defaults for containers by option, and the last file that sets a key of containers.conf."""

    options: Mapping[str, str]
    places: Mapping[str, str]
    closed: tuple[str, ...] = ()
    """Files that Podman of a user reads, and only root can."""


@dataclass(frozen=True)
class Specification:
    """A CDI specification: host paths in it that do not exist, and the versions of its driver's libraries."""

    missing: tuple[str, ...]
    versions: tuple[str, ...]
    gpus: int
    """GPUs of the device nvidia.com/gpu=all."""
    private: bool
    """Whether users cannot read the file."""


@dataclass(frozen=True)
class Toolkit:
    """NVIDIA's container toolkit: its configuration and the default one as documents, CDI files."""

    config: Mapping[str, Any]
    default: Mapping[str, Any]
    specifications: Mapping[str, Specification]


def parse_toolkit(raw: Mapping[str, Any]) -> Toolkit:
    """Parse the probe's values.

    Raises:
        ValueError: a configuration is too large, or not TOML; the message has the place.
    """
    found = {
        str(path): Specification(
            tuple(map(str, islice(each["missing"], NAMED_AT_MOST))),
            tuple(map(str, islice(each["versions"], NAMED_AT_MOST))),
            int(each["gpus"]),
            bool(each["private"]),
        )
        for path, each in raw["cdi"].items()
    }
    return Toolkit(read_toml(raw["config"]), read_toml(raw["default"]), found)


def parse_containerd(text: str) -> Containerd:
    """Parse the output of `containerd config dump`.

    Raises:
        ValueError: it is too large, or not TOML; the message has the place.
    """
    document = read_toml(text)
    plugins, disabled = document.get("plugins"), document.get("disabled_plugins")
    tables = plugins.items() if isinstance(plugins, dict) else ()
    return Containerd(
        {name: table for name, table in tables if isinstance(table, dict)},
        tuple(map(str, disabled)) if isinstance(disabled, list) else (),
    )


def parse_podman(raw: Mapping[str, Any]) -> Podman:
    """Parse the probe's lines of Podman's help, and its files; options without a default are left out."""
    rows = (str(line).rpartition("(default ") for line in raw["options"])
    return Podman(
        {
            said.split()[0].lstrip("-"): value.removesuffix(")").strip('"')
            for said, _, value in rows
            if said.strip()
        },
        {str(key): str(path) for path, key in raw["places"]},
        tuple(map(str, raw.get("closed", ()))),
    )
