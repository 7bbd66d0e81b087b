"""`gpuprov catalog`: browse GPUs, drivers, CUDA, cuDNN, NCCL, systems; keep the catalog current."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuprov.cli.catalog_check import command as check
from gpuprov.cli.catalog_release import command as release
from gpuprov.cli.catalog_update import command as update
from gpuprov.cli.common import completion
from gpuprov.cli.common.options import output_option, print_json
from gpuprov.cli.common.request_options import catalog_option, read_catalog
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput, did_you_mean

BROWSE = "TABLE"


class TablesToo(click.Group):
    """A group whose first argument may also be a table, or `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Browse the table that the first argument names, unless it is a verb of the group."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [BROWSE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=TablesToo)
def command() -> None:
    """Browse and update the catalog: `gpuprov catalog gpus`, `gpuprov catalog show H100-SXM5-80GB`."""


for name, verb in (("update", update), ("check", check), ("release", release)):
    command.add_command(verb, name)


@command.command(BROWSE)
@click.argument("table", shell_complete=completion.tables)
@click.argument("name", required=False)
@catalog_option
@output_option
def browse(table: str, name: str | None, catalog_dirs: tuple[Path, ...], output: str) -> int:
    """List TABLE (gpus, drivers, cuda, cudnn, nccl, os, frameworks, ...), or `show NAME`: print one record
    with its sources.

    NAME is any name of a GPU, a driver branch or version, a system, a release, a known issue, a
    policy.
    """
    from gpuprov.catalog.browse import COLUMNS, SCHEMA, TABLES, show
    from gpuprov.catalog.browse import table as records_of
    from gpuprov.report.catalog import describe_record, describe_table

    catalog = read_catalog(catalog_dirs)
    document: dict[str, Any] = {"schema": SCHEMA, "as_of": catalog.as_of}
    if table == "show":
        if name is None:
            raise InvalidInput("no record is named", do='gpuprov catalog show "H100 SXM5 80GB"')
        where, record = show(catalog, name)
        document |= {"table": where, "record": record}
        lines = describe_record(record)
    else:
        table = table.replace("_", "-")
        if table not in TABLES:
            meant = did_you_mean(table, ("show", *TABLES))
            expected = f"show NAME, or one of {', '.join(TABLES)}"
            raise InvalidInput(f"no table {table!r}", expected=expected, do=meant)
        if name is not None:
            raise InvalidInput(f"{name!r} after the table {table}", do=f'gpuprov catalog show "{name}"')
        records = records_of(catalog, table)
        document |= {"table": table, "records": records}
        lines = describe_table(records, COLUMNS[table])
    if output == "json":
        print_json(document)
    else:
        for line in lines:
            tell(line)
    return Exit.OK
