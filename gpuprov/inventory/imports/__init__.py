"""Import of a fleet from Ansible inventories, host lists, Terraform's state, cloud metadata or Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from gpuprov.catalog import load
from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports import lists, metadata, outputs, terraform
from gpuprov.inventory.imports.ansible import fleet_of, read_inventory
from gpuprov.inventory.imports.left_out import leave_out
from gpuprov.inventory.imports.machine import ImportHints, groups_of, listed_of, of_groups
from gpuprov.inventory.imports.this_machine import refuse_this_machine
from gpuprov.model.documents import read_text
from gpuprov.model.nodeset import of_one_document
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.stated import stated_file, stated_json

__all__ = ["Format", "ImportHints", "import_fleet"]

Format = Literal["ansible", "hosts", "terraform", "metadata", "slurm"]


def import_fleet(
    paths: Sequence[Path],
    said: ImportHints,
    form: Format | None = None,
    wanted: Iterable[str] = (),
    narrate: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the keys of a fleet for the machines in the files.

    Args:
        paths: one file or folder; several only of metadata, one per machine.
        form: format of the files; detected if None.
        wanted: groups of an Ansible inventory, or outputs and resources of Terraform, that are kinds of
            servers.
        narrate: called with lines for the user, which name what was left out.

    Raises:
        InvalidInput: a file has another format, or lacks a value that a fleet must state.
    """
    names = ", ".join(str(path) for path in paths)
    with stated_file(
        names, expected="one of the formats of `gpuprov inventory import`", do="give its format: --from"
    ):
        fleet = leave_out(_read(paths, said, form, wanted, narrate), str(paths[0]), narrate)
        refuse_this_machine(fleet, str(paths[0]), narrate)
        return fleet


def _read(
    paths: Sequence[Path],
    said: ImportHints,
    form: Format | None,
    wanted: Iterable[str],
    narrate: Callable[[str], None],
) -> dict[str, Any]:
    """Return the document of a fleet from files of one format; only `metadata` may be several files.

    Raises:
        InvalidInput: a file has another format, or lacks a value that a fleet must state.
    """
    form = form or recognise(paths[0])
    if len(paths) > 1 and form != "metadata":
        raise InvalidInput(f"{len(paths)} files of the format {form}", do="import one at a time")
    if form == "ansible":
        return fleet_of(read_inventory(paths[0], narrate), said, wanted, narrate)
    catalog = load()
    text = read_text(paths[0])
    if form == "hosts":
        with of_one_document(lists.IN_ALL_SETS):
            listed = listed_of(lists.hosts(text))
        return groups_of(listed, said, catalog, narrate)
    if form == "slurm":
        with of_one_document(lists.IN_ALL_SETS):
            machines, partitions = lists.slurm(text)
        fleet = groups_of(machines, said, catalog)
        also: dict[str, Any] = {}
        for partition, nodes in partitions.items():
            name = partition
            while name in fleet["groups"] or name in also or (name != partition and name in partitions):
                name = f"partition_{name}"
            if nodes:
                also[name] = {"hosts": ",".join(nodes)}
        return {**fleet, **({"also": also} if also else {})}
    if form == "terraform":
        document = _json(paths[0])
        read = outputs.machines if outputs.is_outputs(document) else terraform.machines
        return groups_of(of_groups(read(document), wanted), said, catalog, narrate)
    return groups_of((metadata.machine(_json(path)) for path in paths), said, catalog, narrate)


def recognise(path: Path) -> Format:
    """Return the format of a file, detected from its content; a folder is an Ansible inventory.

    Raises:
        InvalidInput: the file cannot be read, or could be an Ansible inventory, which the user must state.
    """
    if path.is_dir():
        return "ansible"
    text = read_text(path)
    try:
        document = stated_json(text)
    except ValueError as error:
        return _recognise_text(path, text, str(error))
    state = isinstance(document, dict) and "terraform_version" in document
    return "terraform" if state or outputs.is_outputs(document) else "metadata"


def _recognise_text(path: Path, text: str, error: str) -> Format:
    """Return the format of a file that is not JSON.

    Args:
        error: why it is not.

    Raises:
        InvalidInput: it looks like JSON, or could be an Ansible inventory.
    """
    if text.lstrip().startswith(("{", "[{", "[[")):
        raise InvalidInput(
            f"{path}: {on_one_line(error)}",
            expected="JSON, a list of hosts, or slurm.conf",
            do="give --from ansible if it is an Ansible inventory",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if any(line.startswith(("NodeName=", "PartitionName=", "NODELIST")) for line in lines):
        return "slurm"
    marked = any(line.startswith("[") or "=" in line or line.endswith(":") for line in lines)
    if marked or path.suffix in (".yml", ".yaml", ".ini"):
        raise InvalidInput(
            f"{path} is INI or YAML",
            expected="JSON, a list of hosts, or slurm.conf",
            do="give --from ansible if it is an Ansible inventory",
        )
    return "hosts"


def _json(path: Path) -> Any:
    """Return the JSON document in a file; raise InvalidInput if it is not one."""
    with stated_file(path, expected="a document of Terraform or a cloud"):
        return stated_json(read_text(path))
