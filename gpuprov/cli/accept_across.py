"""`gpuprov accept --across`: find the node or the link that slows down the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput, worst

if TYPE_CHECKING:
    from gpuprov.nccl.verdict import Inter
    from gpuprov.ssh.dispatch import Dispatch
    from gpuprov.ssh.transport import Target


def measure_across(
    nodes: list[Target],
    *,
    dispatch: Dispatch,
    folders: tuple[str, ...],
    drained: bool,
    fabric: Inter | None,
    output: str,
    fleet: str,
    floors: Mapping[str, float],
    of_node: Mapping[str, Mapping[str, float]],
) -> Exit:
    """Measure between nodes, keep the result, and print it; return the exit code of the worst node.

    Args:
        nodes: nodes to measure between.
        folders: folders of libraries on the nodes.
        drained: whether to measure although a scheduler is installed.
        fabric: required transport; None requires RDMA if most nodes have an active port.
        output: `json`, or `table` for lines.
        fleet: path of the lock, for the history; empty without a lock.
        floors: measurement → minimum from the command line, for all nodes.
        of_node: node → measurement → minimum; `floors` override it.

    Raises:
        InvalidInput: fewer than two nodes, or workers are stated.
    """
    from gpuprov.accept import program
    from gpuprov.accept.across.meeting import known_addresses
    from gpuprov.accept.across.mesh import Mesh
    from gpuprov.accept.across.nodes import over_ssh
    from gpuprov.accept.across.run import LONGEST_S, search_across
    from gpuprov.files.runs import new_run
    from gpuprov.history import keep
    from gpuprov.history.record import of_acceptance
    from gpuprov.model.documents import write_text
    from gpuprov.report.across import KEPT, across_document, across_lines
    from gpuprov.untrusted import json_text

    names = [node.name for node in nodes]
    if dispatch.crew is not None:
        raise InvalidInput(
            "--across with --workers",
            expected="a controller that reaches all nodes itself",
            do="--workers none",
        )
    if len(names) < 2:
        raise InvalidInput(f"--across with {len(names)} node", expected="two or more nodes")
    payload = program.fabric(seconds=LONGEST_S, password=dispatch.password, folders=folders, drained=drained)
    with Mesh(names, over_ssh(nodes, payload)) as mesh:
        outcome = search_across(
            mesh,
            names,
            fabric,
            options.note,
            {name: {**of_node.get(name, {}), **floors} for name in names},
            known_addresses(nodes),
        )
    result, judged = across_document(outcome), outcome.judged()
    folder = new_run("accept")
    write_text(folder / KEPT, json_text(result, indent=1) + "\n")
    keep(of_acceptance(folder.name, judged, fleet), options.note)
    options.note(f"saved as {folder / KEPT}")
    if output == "json":
        options.print_json(result)
    else:
        for line in across_lines(outcome):
            tell(line)
    return worst(*(each.exit_code for each in judged))
