"""Which GPU model the groups of a fleet have."""

from __future__ import annotations

from pathlib import Path

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.model.fleet import Fleet
from gpuprov.model.lock import Lock
from gpuprov.model.profile import load_profile, overlay


def gpu_models(fleet: Fleet, folder: Path, lock: Lock | None = None) -> dict[str, str]:
    """Group → the catalog's name of its GPU; from the lock, or from the profiles of groups not locked yet.

    Args:
        folder: where the fleet's file stands.

    Raises:
        InvalidInput: a profile or a GPU that is not known.
    """
    locked = lock.groups if lock else {}
    models = {name: locked[name].hardware.gpu_model for name in fleet.groups if name in locked}
    if models.keys() == fleet.groups.keys():
        return models
    catalog = load([folder / each for each in fleet.catalog_dirs])
    folders = [folder / each for each in ["profiles", *fleet.profile_dirs]]
    for name, group in fleet.groups.items():
        stated = overlay(load_profile(group.profile, folders).profile.hardware, group.hardware).gpu.model
        if name not in models and stated:
            models[name] = find_gpu(catalog, stated).id
    return models
