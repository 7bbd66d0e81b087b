"""A made-up release of each family: a row of the catalog's systems, and one of the table of platforms.

The row of the table says only that node tests have shown the roles on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from gpuprov.catalog import platforms

MADE_UP = {
    "ubuntu98.04": "ubuntu26.04",
    "debian97": "debian13",
    "rhel97": "rhel10",
    "amzn2097": "amzn2023",
}
"""Release → the release whose repository NVIDIA's for it would be like."""
OS_RELEASE = {
    "ubuntu98.04": ("ubuntu", "98.04"),
    "debian97": ("debian", "97"),
    "rhel97": ("rocky", "97.2"),
    "amzn2097": ("amzn", "2097"),
}
"""Release → ID and VERSION_ID of a node."""
KEPT = ("family", "arch", "manager", "key_file", "streams", "toolkit_listed", "source")
CACHES = (platforms.platform, platforms.platforms, platforms.rebuilds, platforms.origins, platforms._rows)


def forget() -> None:
    """Let the table be read again."""
    for cached in CACHES:
        cached.cache_clear()


def site_catalog(folder: Path) -> Path:
    """Write a site's catalog with a row for each made-up release, and return its folder."""
    document = json.loads(platforms.TABLE.read_text(encoding="utf-8"))
    rows = {row["id"]: row for row in document["systems"]}
    made = [
        {"id": name, "title": name, "folder": name.replace(".", "")}
        | {field: rows[like][field] for field in KEPT if field in rows[like]}
        for name, like in MADE_UP.items()
    ]
    (folder / "systems.json").write_text(json.dumps({"systems": made}))
    return folder


@contextmanager
def known(folder: Path) -> Iterator[None]:
    """Let the table of platforms have a row for each made-up release; `folder` gets the file."""
    document = json.loads(platforms.TABLE.read_text(encoding="utf-8"))
    document["platforms"] += [
        {"id": name, "of": re.sub(r"[0-9.]+\Z", "", name), "tested": True, "source": ["gdc"]}
        for name in MADE_UP
    ]
    path = folder / "systems.json"
    path.write_text(json.dumps(document))
    with patch.object(platforms, "TABLE", path):
        forget()
        yield
    forget()
