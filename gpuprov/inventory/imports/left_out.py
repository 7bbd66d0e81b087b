"""Keys and variables of an imported fleet: some are kept, the others are named for a person and left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.files.resources import share
from gpuprov.inventory.imports.ways import WAY_IN
from gpuprov.model.floors import Floors
from gpuprov.model.marked import DEEPEST
from gpuprov.model.nodeset import fold
from gpuprov.untrusted import UNSAFE, is_template, on_one_line

Keys = dict[str, "Keys | None"]
ANY = "*"
"""Key of `Keys` for each name of a mapping, such as a group's."""


def _all_of(*names: str) -> Keys:
    """Return the names as keys without further keys below them."""
    return dict.fromkeys(names)


SSH = _all_of("user", "port", "jump")
"""Kept keys of `ssh`. `known_hosts` names the host keys that are trusted, and `identity_file` the key that
`bootstrap` lets in.
"""
STACK = _all_of(
    *("prefer", "repository", "driver", "module", "module_build", "cuda", "cudnn", "nccl", "docker"),
    *("containerd", "podman", "container_toolkit", "dcgm", "profiling_tools", "node_exporter"),
)
"""Kept keys of `stack`: versions from the repositories of the lock. A builder's code runs in each kernel."""
SETTINGS: Keys = {
    **_all_of("persistence", "clocks", "power_limit", "compute_mode", "ecc", "mig", "kernel"),
    "containers": _all_of("shm_size", "memlock", "stack", "cgroup_driver", "cdi", "default_runtime"),
    "tuning": _all_of("limits", "transparent_hugepages", "governor", "numa_balancing"),
}
"""Kept keys of `settings`: modes and limits. Others decide who may log in, which devices are formatted, where
files are written, and what programs load (`environment`, `sysctl`, `nccl`).
"""
GROUP: Keys = {
    **_all_of("profile", "os", "arch", "site", "vars"),
    "hosts": {ANY: {"address": None, "ssh": SSH}},
    "hardware": {
        **_all_of("cpu_cores", "memory_gib", "nics"),
        "gpu": _all_of("model", "count", "nvlink", "nvswitches"),
        "nvme": _all_of("count", "total_tb"),
    },
    "floors": _all_of(*Floors.model_fields),
    "ssh": SSH,
    "stack": STACK,
    "settings": SETTINGS,
}
KEPT: Keys = {
    "groups": {ANY: GROUP},
    "also": {ANY: _all_of("hosts", "children", "vars")},
    "host_vars": None,
    "ssh": SSH,
    "reboot": _all_of("batch", "timeout_s"),
    "plugin": None,
}
"""Keys of a fleet that are imported, with the kept keys below each; None keeps the whole value."""
CONNECTION = {*(name for name, key in WAY_IN.items() if key in SSH), "ansible_become"}
"""Variables named `ansible_` that are imported. Others can name a program, its options, or a password.

Variables of roles are left out as well: `ssh_hardening_user_ca` does the same as `settings.ssh.user_ca`.
"""
RUNS = "can decide who may log in and what Ansible or gpuprov runs or installs, or contain passwords"
EXPANDS = "are templates, which Ansible expands"
Left = dict[str, dict[str, list[str]]]


def leave_out(fleet: Mapping[str, Any], source: str, narrate: Callable[[str], None]) -> dict[str, Any]:
    """Return a fleet without the keys and variables that a person must check first.

    Args:
        fleet: keys of a fleet, from an untrusted file.
        source: name of the file.
        narrate: called with the lines for the user, which name what was left out.

    Raises:
        InvalidInput: it is nested too deeply.
    """
    _refuse_depth(fleet, source)
    kept = deepcopy(dict(fleet))
    left: Left = {RUNS: {}, EXPANDS: {}}
    if _mapping(kept.get("reboot")).get("allowed") is False:  # the default; consent is left out and named
        del kept["reboot"]["allowed"]
    _keep(kept, KEPT, (), left)
    for place, variables in _variables(kept):
        for name, value in [*variables.items()]:
            if reason := _reason(name, value):
                left[reason].setdefault(on_one_line(name), []).append(place)
                del variables[name]
    _drop_templates(kept, (), left)
    for reason, names in left.items():
        if names:
            listed = ", ".join(f"{name}{_places(where)}" for name, where in names.items())
            narrate(
                on_one_line(
                    f"left out, because they {reason}: {listed}; check them in {source}, then"
                    " add them to the fleet"
                )
            )
    if isinstance(hosts := kept.get("host_vars"), dict):
        kept["host_vars"] = {host: own for host, own in hosts.items() if own != {}}
    return {key: value for key, value in kept.items() if value != {}}


def _refuse_depth(value: object, source: str, depth: int = 0) -> None:
    """Raise InvalidInput if mappings and lists are nested more than `DEEPEST` deep."""
    if depth > DEEPEST:
        raise InvalidInput(f"{source} is nested too deeply", expected=f"at most {DEEPEST} levels")
    for each in [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _refuse_depth(each, source, depth + 1)


def _keep(stated: object, keys: Keys, path: tuple[str, ...], left: Left) -> None:
    """Remove all but some keys of a mapping, and note the others; values of other types are kept.

    A value of a wrong type is refused when the fleet is parsed.
    """
    if not isinstance(stated, dict):
        return
    for name in [*stated]:
        if name not in keys and ANY not in keys:
            _note(left[RUNS], (*path, name), stated.pop(name))
        elif (below := keys.get(name, keys.get(ANY))) is not None:
            whole = bool(stated[name])
            _keep(stated[name], below, (*path, name), left)
            if whole and stated[name] == {}:
                del stated[name]


def _note(names: dict[str, list[str]], path: tuple[str, ...], value: object) -> None:
    """Note a key that was left out: with the keys in its value, if it is below a group."""
    if len(path) > 2 and isinstance(value, dict) and value:
        for name, each in value.items():
            _note(names, (*path, name), each)
        return
    of_group = path[0] in ("groups", "also") and len(path) > 2
    key = ".".join(path[2:] if of_group else path)
    names.setdefault(on_one_line(key), []).extend([f"group {path[1]}"] if of_group else [])


def _drop_templates(stated: dict[str, Any], path: tuple[str, ...], left: Left) -> None:
    """Remove the entries of a mapping whose key or value is a template, and note them."""
    for name, value in [*stated.items()]:
        if isinstance(value, dict) and set(value) != {UNSAFE} and not is_template(str(name)):
            _drop_templates(value, (*path, name), left)
        elif _has_template({name: value}):
            _note(left[EXPANDS], (*path, name), None)
            del stated[name]


def _variables(fleet: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of variables, and the variables; a part of another type is refused with the fleet."""
    for section in ("groups", "also"):
        for name, group in _mapping(fleet.get(section)).items():
            yield f"group {name}", _mapping(_mapping(group).get("vars"))
    for host, variables in _mapping(fleet.get("host_vars")).items():
        yield host, _mapping(variables)


def _mapping(value: object) -> dict[str, Any]:
    """Return a mapping unchanged, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _reason(name: str, value: object) -> str:
    """Return why a variable is left out: `RUNS` for one of a role, `EXPANDS` for a template; else an empty
    string.
    """
    if name.startswith(_prefixes()) and name not in CONNECTION:
        return RUNS
    return EXPANDS if _has_template({name: value}) else ""


def _prefixes() -> tuple[str, ...]:
    """Return the starts of names of variables that Ansible, Mitogen (the extra `fast`), gpuprov or its roles
    read.

    Names with a leading `_` are internal: `__docker_configured` is a result of a task of the role docker.
    """
    return ("_", "ansible_", "gpuprov_", "mitogen_", *role_prefixes())


@cache
def role_prefixes() -> tuple[str, ...]:
    """Return the starts of names of the roles' public variables."""
    return tuple(f"{role.name}_" for role in share("roles").iterdir())


def _has_template(value: object) -> bool:
    """Return whether Ansible could expand a part of a value; it never expands text that is marked."""
    if isinstance(value, dict):
        if set(value) == {UNSAFE} and isinstance(value[UNSAFE], str):
            return False
        return any(map(_has_template, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(_has_template, value))
    return isinstance(value, str) and is_template(value)


def _places(where: list[str]) -> str:
    """Return groups, then folded hosts, as text in brackets; an empty string without any."""
    groups = [place for place in where if place.startswith("group ")]
    hosts = [place for place in where if not place.startswith("group ")]
    return f" ({', '.join([*groups, *([fold(hosts)] if hosts else [])])})" if where else ""
