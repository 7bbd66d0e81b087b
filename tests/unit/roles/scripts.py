"""Roles' scripts as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROLES = Path(__file__).parents[3] / "roles"


def script(role: str, name: str = "look") -> ModuleType:
    path = ROLES / role / f"files/{name}.py"
    specification = importlib.util.spec_from_file_location(f"{name}_{role}", path)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
