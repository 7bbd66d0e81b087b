"""`gpuprov explain`: show why a version was chosen, which rules limit it, and what a newer one would need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuprov.cli.common.options import output_option, print_json
from gpuprov.cli.common.request_options import catalog_option, read_catalog, read_request, request_options
from gpuprov.cli.common.terminal import show
from gpuprov.errors import Exit


@click.command()
@click.argument("component")
@request_options
@catalog_option
@output_option
def command(component: str, catalog_dirs: tuple[Path, ...], output: str, **stated: Any) -> int:
    """Explain the version of COMPONENT (driver, module, cuda, cudnn, nccl, ...) in one machine's stack."""
    from gpuprov.locking.resolve.explain import explain

    explanation = explain(component, read_request(stated), read_catalog(catalog_dirs))
    if output == "json":
        print_json(explanation.to_json())
    else:
        from gpuprov.report.resolution import describe_explanation

        show("\n".join(describe_explanation(explanation)))
    return Exit.REFUSED if explanation.answer.verdict == "refused" else Exit.OK
