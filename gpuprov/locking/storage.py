"""Packages of network storage clients."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.catalog import Catalog
from gpuprov.catalog.records import StorageClient, System
from gpuprov.errors import Refused
from gpuprov.model.lock import Setting


def with_clients(settings: Mapping[str, Setting], system: System, catalog: Catalog) -> dict[str, Setting]:
    """Replace the kinds in `storage_clients` by the system's package of each: `{"nfs": "nfs-common"}`.

    The settings are returned unchanged if they state no storage clients.

    Raises:
        Refused: no package of a kind is known on that system.
    """
    stated = settings.get("storage_clients")
    if stated is None:
        return dict(settings)
    rows = [_client(kind, system, catalog) for kind in stated.value]
    source = "; ".join(
        [stated.source, catalog.cite(*dict.fromkeys(key for row in rows for key in row.source))]
    )
    packages = {row.client: row.packages.get(system.family, row.package) for row in rows}
    return {**settings, "storage_clients": stated.model_copy(update={"value": packages, "source": source})}


def _client(kind: str, system: System, catalog: Catalog) -> StorageClient:
    """Return the catalog's package for a kind of storage client.

    Raises:
        Refused: no package of the kind is known on that system.
    """
    found = catalog.storage_client(kind, system.family)
    if found is None:
        raise Refused(
            f"no package is known that mounts {kind} on {system.title}",
            do="remove it from storage_clients, or add a record to a catalog of your own (catalog_dirs)",
        )
    return found
