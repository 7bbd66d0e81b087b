"""Files of a pull request to SchemaStore, which editors ask for the schema of a file by its name.

Its rules: https://github.com/SchemaStore/schemastore/blob/master/CONTRIBUTING.md
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import InvalidInput
from gpuprov.files.writing import make_folders
from gpuprov.inventory.schemas import json_schema

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = {"fleet": "gpuprov-fleet", "profile": "gpuprov-profile"}
"""Kind of file → name of its schema there. A lock is generated, and needs no completion."""
TITLES = {"fleet": "gpuprov fleet", "profile": "gpuprov profile"}
MATCHES = {
    "fleet": ["**/gpuprov/fleet.yml", "gpuprov-fleet.yml"],
    "profile": ["**/gpuprov/profiles/*.yml"],
}
"""Names of files. `fleet.yml` alone is also the name of files of other programs."""
ABOUT = {
    "fleet": "Declared state of GPU servers",
    "profile": "Kind of GPU server: hardware, versions, settings",
}
WRONG = {"fleet": {"groups": {"gpu": {"profil": "hgx-h100-8"}}}, "profile": {"hardwear": {}}}
"""Kind of file → content that its schema must refuse."""


def entries() -> list[dict[str, Any]]:
    """Return the entries for `src/api/json/catalog.json`, whose list is sorted by name."""
    return [
        {
            "name": TITLES[kind],
            "description": ABOUT[kind],
            "fileMatch": MATCHES[kind],
            "url": f"https://json.schemastore.org/{name}.json",
        }
        for kind, name in NAMES.items()
    ]


def write_pull_request(folder: Path) -> list[Path]:
    """Write schemas, positive and negative tests, and the entries of the catalog; return their paths.

    Raises:
        InvalidInput: the folder has files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty", do="name a new folder")
    texts = {"catalog-entries.json": _rendered(entries())}
    for kind, name in NAMES.items():
        schema = {**json_schema(kind), "$id": f"https://json.schemastore.org/{name}.json"}
        texts[f"src/schemas/json/{name}.json"] = _rendered(schema)
        texts[f"src/negative_test/{name}/unknown-key.yml"] = yaml.safe_dump(WRONG[kind], sort_keys=False)
    for path in sorted(EXAMPLES.glob("*/fleet.yml")):
        texts[f"src/test/{NAMES['fleet']}/{path.parent.name}.yml"] = path.read_text(encoding="utf-8")
    for path in sorted(EXAMPLES.glob("*/profiles/*.yml")):
        texts[f"src/test/{NAMES['profile']}/{path.name}"] = path.read_text(encoding="utf-8")
    for name, text in texts.items():
        make_folders((folder / name).parent)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _rendered(document: Any) -> str:
    """Return JSON in SchemaStore's format."""
    return json.dumps(document, indent=2) + "\n"
