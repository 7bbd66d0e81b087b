"""GPU models of a fleet's groups."""

from __future__ import annotations

from pathlib import Path

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.model.fleet import Fleet
from gpuprov.model.lock import Lock
from gpuprov.model.profile import overlay


def gpu_models(fleet: Fleet, folder: Path, lock: Lock | None = None) -> dict[str, str]:
    """Return group → GPU model as the catalog names it, from the lock, or from the profile if not locked yet.

    Groups whose profile and fleet state no GPU model are left out.

    Args:
        folder: the folder of the fleet's file.

    Raises:
        InvalidInput: a profile or GPU is unknown.
    """
    locked = lock.groups if lock else {}
    models = {name: locked[name].hardware.gpu_model for name in fleet.groups if name in locked}
    if models.keys() == fleet.groups.keys():
        return models
    catalog = load([folder / each for each in fleet.catalog_dirs])
    profiles = fleet.profiles(folder)
    for name, group in fleet.groups.items():
        stated = overlay(profiles[group.profile].profile.hardware, group.hardware).gpu.model
        if name not in models and stated:
            models[name] = find_gpu(catalog, stated).id
    return models
