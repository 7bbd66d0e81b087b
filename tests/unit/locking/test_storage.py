"""Kinds of storage as packages in the lock, from the catalog."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load
from gpuprov.errors import Refused
from gpuprov.locking.storage import with_clients
from gpuprov.model.lock import Setting

STATED = {"storage_clients": Setting(value=["nfs", "lustre"], reason="stated", source="profile h100")}


def test_a_kind_is_locked_with_its_package_and_where_that_is_known_from() -> None:
    catalog = load()
    locked = with_clients(STATED, catalog.systems["ubuntu24.04"], catalog)["storage_clients"]
    assert locked.value == {"nfs": "nfs-common", "lustre": "lustre-client-utils"}
    assert locked.source.startswith("profile h100; ")
    assert "lustre/lustre-release" in locked.source


def test_what_no_system_of_that_family_has_is_refused() -> None:
    catalog = load()
    with pytest.raises(Refused, match=r"no package is known that mounts lustre on .*9.*storage_clients"):
        with_clients(STATED, catalog.systems["rhel9"], catalog)


def test_without_clients_nothing_is_added() -> None:
    catalog = load()
    assert with_clients({}, catalog.systems["debian12"], catalog) == {}
