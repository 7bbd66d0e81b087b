"""A first fleet.yml: the stated keys, and other common keys as comments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuprov.inventory.schemas import json_schema, keys
from gpuprov.model.documents import render_plain, write_text
from gpuprov.model.fleet import parse_fleet

HEADER = """\
# yaml-language-server: $schema={schema}
# The declared state. `gpuprov lock` resolves it to exact versions and settings.
plugin: gpuprov.gpuprov.gpuprov   # lets Ansible read this file as an inventory
"""
STACK = ("driver", "cuda", "cudnn", "nccl", "docker", "container_toolkit", "dcgm")
SETTINGS = ("power_limit", "clocks", "mig", "scratch", "storage_clients")
WAYS = ("port", "identity_file", "jump")
ROLLOUT = ("canary", "serial", "accept")
REBOOT = {"allowed": False, "batch": 1}


def schema_file(fleet: Path) -> Path:
    """Return the path of a fleet file's schema for editors: in the same folder, to be committed with it."""
    return fleet.with_name(f".{fleet.stem}.schema.json")


def write_fleet(
    fleet: Path, document: Mapping[str, Any], *, about: str = "", keys_beside: bool = True
) -> None:
    """Write a fleet file, and the schema that its first line names.

    Args:
        document: the keys of the fleet; `groups` is required, `ssh` defaults to the user root.
        about: a comment line before the groups.
        keys_beside: whether to add common keys that are not stated, as comments.

    Raises:
        InvalidInput: the document is not a fleet, or the folder cannot be written.
    """
    schema = schema_file(fleet)
    text = HEADER.format(schema=schema.name) + (f"# {about}\n" if about else "")
    text += starting_text(document) if keys_beside else render_plain(dict(document))
    parse_fleet(text, str(fleet))
    write_text(schema, json.dumps(json_schema("fleet"), indent=1) + "\n", follow=False)
    write_text(fleet, text)


def starting_text(document: Mapping[str, Any]) -> str:
    """Return the document as YAML, each part followed by further keys as comments, groups only the first one.

    The parts are groups, `ssh`, `reboot` (always that of `REBOOT`) and the document's other keys.
    """
    rest = {key: value for key, value in document.items() if key not in ("groups", "ssh")}
    parts = ["groups:\n"]
    for number, (name, group) in enumerate(document["groups"].items()):
        parts.append(_indented(render_plain({name: group}), 2))
        further = {"stack": ("StackPolicy", STACK), "settings": ("Settings", SETTINGS)}
        for key, (record, names) in further.items():
            if number == 0 and key not in group:
                parts.append(_indented("".join(_offered(key, record, names)), 4))
    stated = document.get("ssh", {"user": "root"})
    if stated:
        parts.append(render_plain({"ssh": stated}))
        parts.append(_indented("".join(_keys("Connection", [key for key in WAYS if key not in stated])), 2))
    else:
        parts.extend(_offered("ssh", "Connection", ("user", *WAYS)))
    parts.append(render_plain({"reboot": REBOOT}).replace("false", "false  # true: apply may reboot nodes"))
    parts.extend(_offered("rollout", "Rollout", ROLLOUT))
    parts.extend(_keys("Fleet", ("repositories",)))
    return "".join(parts) + (render_plain(rest) if rest else "")


def _offered(key: str, record: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a record that is not stated, with some of its keys, as comment lines."""
    yield f"# {key}:\n"
    yield from (line.replace("# ", "#   ", 1) for line in _keys(record, names))


def _keys(record: str, names: Iterable[str]) -> Iterator[str]:
    """Yield one comment line per key, such as `# cuda: ["12.8"]  # toolkits`."""
    properties = _properties(record)
    for name in names:
        stated = {name: keys()[record][name]["example"]}
        example = yaml.safe_dump(stated, default_flow_style=True, sort_keys=False, width=10_000).strip()[1:-1]
        meaning = properties[name]["description"].partition(";")[0]
        yield f"# {example}  # {meaning}\n"


def _properties(record: str) -> dict[str, Any]:
    """Return key → JSON Schema of a record of the fleet's schema; `Fleet` is the document itself."""
    schema = json_schema("fleet")
    found = schema if record == "Fleet" else schema["$defs"][record]
    properties: dict[str, Any] = found["properties"]
    return properties


def _indented(text: str, width: int) -> str:
    """Return text with that many spaces before each line."""
    return "".join(" " * width + line for line in text.splitlines(keepends=True))
