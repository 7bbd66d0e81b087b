"""Scripts of roles, and plugins, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tests import ROOT

ROLES = ROOT / "roles"


def script(role: str, name: str = "look") -> ModuleType:
    """Return a script of a role as a module."""
    return load(ROLES / role / f"files/{name}.py", f"{name}_{role}")


def load(path: Path, name: str) -> ModuleType:
    """Return a Python file as a module with this name, executed."""
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
