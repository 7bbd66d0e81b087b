"""`gpuprov nccl derive`: derive NCCL's network environment from live nodes or saved facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, GpuprovError, InvalidInput, worst

if TYPE_CHECKING:
    from gpuprov.finding import Finding
    from gpuprov.nccl.derive import Derived
    from gpuprov.probe.facts import Facts
    from gpuprov.topology import Topology

SCHEMA = "gpuprov.nccl_environment/1"


@click.command()
@click.argument("sources", nargs=-1, metavar="[NODES|FACTS]...")
@options.fleet_option("the fleet of NODES")
@click.option(
    "--write", is_flag=True, help="save the result next to the fleet, where `gpuprov lock` reads it"
)
@click.option(
    "--topology",
    type=click.Path(dir_okay=False, path_type=Path),
    help="with FACTS: a saved `nvidia-smi topo -m` of one of the nodes",
)
@click.option(
    "-e",
    "--site",
    multiple=True,
    metavar="NAME=VALUE",
    help="value of the site, which has precedence; repeatable",
)
@options.forks_option
@options.password_option
@options.output_option
def derive(
    sources: tuple[str, ...],
    fleet: Path,
    write: bool,
    topology: Path | None,
    site: tuple[str, ...],
    forks: int,
    ask_become_pass: bool,
    output: str,
) -> int:
    """Derive the NCCL network environment of nodes from their hardware, each value with a reason.

    NODES are hosts or groups of the fleet, by default all. FACTS are files of `gpuprov facts -o json` (`-` is
    stdin). The site's values in settings.nccl have precedence, and must name existing devices.

    Exit 1 if a node has no usable network, a value of the site matches nothing, or nodes disagree.
    """
    from gpuprov.nccl.live import derive_fleet
    from gpuprov.ssh.dispatch import Dispatch

    stated = dict(_pair(text) for text in site)
    saved = [source for source in sources if source == "-" or Path(source).is_file()]
    if saved and (len(saved) < len(sources) or write):
        raise InvalidInput("saved facts with --write or with nodes", do="name nodes of the fleet")
    failed: dict[str, GpuprovError] = {}
    if saved:
        groups = {"": _saved(saved, topology, stated)}
    else:
        dispatch = Dispatch(forks, options.ask_password(ask_become_pass))
        groups, failed = derive_fleet(fleet, sources, stated, dispatch=dispatch)
    odd = _odd(groups)
    nodes = {host: derived for group in groups.values() for host, derived in group.items()}
    _show(nodes, odd, failed, output)
    every = [*odd, *(finding for derived in nodes.values() for finding in derived.findings)]
    bad = any(finding.level == "bad" for finding in every)
    if write and not bad and not failed:
        from gpuprov.nccl.record import write_record

        options.note(f"{write_record(fleet, groups)} written; next: gpuprov lock")
    elif write:
        options.note("nothing was written: all nodes of a group must answer and agree")
    return worst(Exit.FAILED if bad else Exit.OK, *(error.exit_code for error in failed.values()))


def _odd(groups: dict[str, dict[str, Derived]]) -> list[Finding]:
    """Return a finding for each node that differs from most nodes of its group."""
    from gpuprov.nccl.derive import agree

    return [finding for nodes in groups.values() if nodes for finding in agree(nodes)]


def _saved(names: list[str], topology: Path | None, site: dict[str, str]) -> dict[str, Derived]:
    """Return node → environment derived from files of facts; raise the error of the first one that fails.

    Args:
        topology: a saved `nvidia-smi topo -m` that is used for every node, if given.
        site: variable → value of the site, which has precedence.
    """
    from gpuprov.nccl.derive import derive as derived_from
    from gpuprov.nccl.inputs import from_facts
    from gpuprov.ssh.contained import contained

    matrix = _topology(topology) if topology else None
    facts = [_facts(name) for name in names]
    found: dict[str, Derived] = {}
    for node in facts:
        derived = contained(node.host, lambda node=node: derived_from(*from_facts(node, matrix), site))  # type: ignore[misc]
        if isinstance(derived, GpuprovError):
            raise derived
        found[node.host] = derived
    return found


def _facts(name: str) -> Facts:
    """Return the facts in a file, or on stdin for `-`; raise InvalidInput for another file."""
    from gpuprov.probe.facts import Facts
    from gpuprov.untrusted.stated import read_argument, stated_file, stated_json

    with stated_file(name, expected="output of `gpuprov facts -o json`"):
        answer = stated_json(read_argument(name))
        return Facts.from_answer(answer if isinstance(answer, dict) else {})


def _topology(path: Path) -> Topology:
    """Return the topology in a saved `nvidia-smi topo -m`; InvalidInput if the file cannot be used."""
    from gpuprov.topology import parse_topology
    from gpuprov.untrusted.stated import read_bounded, stated_file

    with stated_file(path, expected="the output of `nvidia-smi topo -m`"):
        return parse_topology(read_bounded(path).decode("utf-8", "replace"))


def _pair(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`; raise InvalidInput for another text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInput(f"--site {text!r}", expected="NAME=VALUE")
    return name, value


def _show(
    nodes: dict[str, Derived], odd: list[Finding], failed: dict[str, GpuprovError], output: str
) -> None:
    """Print each node's variables with their reasons, the findings and the errors, as JSON or as lines."""
    if output == "json":
        rows = {host: derived.as_dict() for host, derived in nodes.items()}
        errors = {host: str(error) for host, error in failed.items()}
        group = [finding.as_dict() for finding in odd]
        options.print_json({"schema": SCHEMA, "nodes": rows, "group": group, "failed": errors})
        return
    for host, derived in nodes.items():
        tell(f"{host}:")
        for name, decision in derived.variables.items():
            tell(f"  {name}={decision.value}  # {decision.reason}")
        for device, why in derived.excluded.items():
            tell(f"  not {device}: {why}")
        for finding in derived.findings:
            tell(f"  {finding.level:<4}  {finding.text}")
    for finding in odd:
        tell(f"{finding.level:<4}  {finding.text}")
    for host, error in failed.items():
        options.note(f"{host}: {error}")
