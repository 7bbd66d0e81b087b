"""Plain lists of hosts, and nodes of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.machine import Machine, listed_of
from gpuprov.model.connection import Destination, parse_destination
from gpuprov.model.nodeset import LARGEST, expand
from gpuprov.untrusted import shown

IN_PARTITIONS = 1_000_000
"""Maximum number of nodes of all partitions together; a node of several partitions counts for each."""
IN_ALL_SETS = 2 * LARGEST + IN_PARTITIONS
"""Maximum number of names in all sets of a file: names and addresses of nodes, and those of partitions."""
MOST_DIGITS = 4
"""Maximum number of digits of the number of GPUs of a node."""
_WORD = re.compile(r'(?:[^\s"]++|"[^"]*+")++')
"""A word of slurm.conf, with quoted parts; shlex takes the square of its length."""


def hosts(text: str) -> Iterator[Machine]:
    """Yield the machines of a list: names or ranges, separated by lines, spaces or commas; `#` is a comment.

    If the second of two words on a line is an address, the first is its name (the reverse of /etc/hosts). An
    address may have a user and a port: `ubuntu@203.0.113.7:40022`.

    Raises:
        InvalidInput: not a set of nodes.
    """
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) == 2 and (to := _destination(words[1])):
            yield _at(words[0], to)
            continue
        for word in words:
            to = _destination(word.strip(",")) if "@" in word or ":" in word else None
            if to:
                yield _at(f"{to.host}-{to.port}" if to.port else to.host, to)
            else:
                yield from (Machine(name) for name in _expanded(word.strip(","), f"line {number}"))


def _at(name: str, to: Destination) -> Machine:
    """Return a machine with the address, and user and port if they are stated; `:` in the name
    becomes `-`.
    """
    ssh = {key: value for key, value in (("user", to.user), ("port", to.port)) if value}
    return Machine(name.replace(":", "-").strip("-"), to.host, ssh=ssh)


def slurm(text: str) -> tuple[list[Machine], dict[str, list[str]]]:
    """Return the nodes of a slurm.conf, and partition → nodes.

    For the output of `sinfo -N` or `scontrol show hostnames` there are only names. `Gres=gpu:h100:8` states
    the GPUs; nodes are grouped by it.

    Raises:
        InvalidInput: not a set of nodes, or too many nodes.
    """
    joined = re.sub(r"\\\n", " ", text)
    lines = [_pairs(line) for line in joined.splitlines()]
    if not any("NodeName" in line for line in lines):
        first = (line.split()[0] for line in text.splitlines() if line.strip() and not _is_heading(line))
        return listed_of(hosts("\n".join(dict.fromkeys(first)))), {}
    machines = listed_of(
        machine for line in lines if line.get("NodeName", "DEFAULT") != "DEFAULT" for machine in _nodes(line)
    )
    return machines, _partitions(lines, {machine.name for machine in machines})


def _is_heading(line: str) -> bool:
    """Return whether a line is the heading of sinfo's or scontrol's table."""
    return line.split()[0] in ("NODELIST", "NodeName")


def _pairs(line: str) -> dict[str, str]:
    """Return the words NAME=VALUE of a line without its comment, as name → value.

    Raises:
        InvalidInput: its quotes do not match.
    """
    stated = line.partition("#")[0]
    if stated.count('"') % 2:
        raise InvalidInput(f"{shown(line)}: No closing quotation", expected="NAME=VALUE, as in slurm.conf")
    words = (word.replace('"', "") for word in _WORD.findall(stated))
    return dict(word.split("=", 1) for word in words if "=" in word)


def _nodes(line: dict[str, str]) -> Iterator[Machine]:
    """Yield the machines of a line `NodeName=…`, one for each name, with the GPUs of `Gres`.

    Raises:
        InvalidInput: a name or number is malformed, or there are not as many addresses as names.
    """
    names = _expanded(line["NodeName"], "NodeName")
    addresses = _expanded(line.get("NodeAddr", line["NodeName"]), "NodeAddr")
    if len(addresses) != len(names):
        raise InvalidInput(
            f"NodeName={line['NodeName']} has {len(names)} names and {len(addresses)} addresses"
        )
    gres = re.search(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?", line.get("Gres", ""))
    gpu = gres[1] if gres else None
    if gres and gres[2] and len(gres[2]) > MOST_DIGITS:
        raise InvalidInput(f"Gres={shown(line['Gres'])}", expected="a number of GPUs, such as gpu:h100:8")
    count = int(gres[2]) if gres and gres[2] else (1 if gres else None)
    group = re.sub(r"\W+", "_", gpu) if gpu else "nodes"
    for name, address in zip(names, addresses, strict=True):
        yield Machine(name, address, group, gpu=gpu.replace("_", " ") if gpu else None, gpu_count=count)


def _partitions(lines: Iterable[dict[str, str]], known: set[str]) -> dict[str, list[str]]:
    """Return partition → those of its nodes that are known; of lines with the same name the last counts.

    Raises:
        InvalidInput: not a set of nodes, or more nodes than `IN_PARTITIONS`.
    """
    stated = {
        line["PartitionName"]: line.get("Nodes", "ALL")
        for line in lines
        if line.get("PartitionName", "DEFAULT") != "DEFAULT"
    }
    every, left = sorted(known), IN_PARTITIONS
    partitions: dict[str, list[str]] = {}
    for name, nodes in stated.items():
        names = every if nodes == "ALL" else _expanded(nodes, "Nodes")
        if (left := left - len(names)) < 0:
            raise InvalidInput(f"the partitions have more than {IN_PARTITIONS} nodes together")
        partitions[name] = [each for each in names if each in known]
    return partitions


def _expanded(text: str, place: str) -> list[str]:
    """Return the names in a set of nodes such as `gpu[01-08]`; none for an empty text.

    Raises:
        InvalidInput: it is malformed; the message names `place`.
    """
    try:
        return expand(text) if text else []
    except ValueError as error:
        raise InvalidInput(f"{place}: not a set of nodes: {shown(text)}", expected=str(error)) from None


def _destination(word: str) -> Destination | None:
    """Return a destination with a user, a port or an IP address; None for a plain name."""
    import ipaddress

    try:
        to = parse_destination(word)
        if to.user is None and to.port is None:
            ipaddress.ip_address(to.host)
    except ValueError:
        return None
    return to
