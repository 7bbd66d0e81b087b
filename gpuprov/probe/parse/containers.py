"""Effective configuration of container engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.untrusted.parsing import read_toml


@dataclass(frozen=True)
class Containerd:
    """containerd's configuration: its plugins' tables by plugin, and its disabled plugins."""

    plugins: Mapping[str, Mapping[str, Any]]
    disabled: tuple[str, ...]


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
