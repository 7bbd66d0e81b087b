"""An inventory as a folder: hosts.yml, group_vars, host_vars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import InvalidInput
from gpuprov.inventory.ansible import AnsibleInventory
from gpuprov.model.documents import write_text
from gpuprov.untrusted import AnsibleText

HEADER = "# Written by `gpuprov inventory generate` from the fleet: edit the fleet, then generate again.\n"


def write_inventory(inventory: AnsibleInventory, folder: Path) -> list[Path]:
    """Write the folder; remove files of an earlier run that are not needed any more.

    Returns:
        Paths of the written files, hosts.yml first.

    Raises:
        InvalidInput: the folder contains files that gpuprov did not write, or cannot be read or written.
    """
    files = dict(_files(inventory))
    try:
        earlier = _earlier(folder)
        for name in ("group_vars", "host_vars"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for path in earlier - {folder / name for name in files}:
            path.unlink()
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder} cannot be used: {error.strerror}") from None
    for name, plain in files.items():
        write_text(folder / name, HEADER + render(plain), follow=False)
    return [folder / name for name in files]


def _files(inventory: AnsibleInventory) -> list[tuple[str, Any]]:
    """Return file names and contents, hosts.yml first.

    Addresses are in hosts.yml, a host's other variables in host_vars, groups' variables in group_vars.
    """
    children: dict[str, Any] = {}
    found: list[tuple[str, Any]] = []
    reached = {
        host: own["ansible_host"] for host, own in inventory.host_vars.items() if "ansible_host" in own
    }
    for name, group in inventory.groups.items():
        if group.vars:
            found.append((f"group_vars/{name}.yml", group.vars))
        if name == "all":
            continue
        children[name] = {}
        if group.hosts:
            children[name]["hosts"] = {host: _address(reached.pop(host, None)) for host in group.hosts}
        if group.children:
            children[name]["children"] = {child: {} for child in group.children}
    for host, own in inventory.host_vars.items():
        if more := {key: value for key, value in own.items() if key != "ansible_host"}:
            found.append((f"host_vars/{host}.yml", more))
    return [("hosts.yml", {"all": {"children": children}}), *found]


def _address(address: str | None) -> dict[str, str]:
    """Return the variables of a host in hosts.yml: its address, or {} if that is its name."""
    return {"ansible_host": address} if address else {}


def _earlier(folder: Path) -> set[Path]:
    """Return the files in the folder and its subfolders, which an earlier run wrote; empty without a folder.

    Raises:
        InvalidInput: a file does not start with `HEADER`, or there is a link, which an inventory never has.
        OSError: the folder or a file cannot be read.
    """
    found = {path for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    for path in found:
        if path.is_symlink() or _first_line(path) != HEADER:
            raise InvalidInput(
                f"{path} was not written by gpuprov", do="name another folder, or move the file away"
            )
    return found


def _first_line(path: Path) -> str:
    """Return the first line of a file, at most as long as `HEADER`; OSError if it cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline(len(HEADER))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A YAML writer without aliases, in C if available: 10,000 hosts are many lines."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that a repeated value is written in full and not as an alias (`&id001`)."""
        return True


_Dumper.add_representer(AnsibleText, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))


def render(plain: Any) -> str:
    """Return plain data as YAML."""
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text
