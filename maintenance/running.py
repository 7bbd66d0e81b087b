"""Run of a maintainers' command line."""

from __future__ import annotations

import os

import click

from gpuprov.cli.common.logs import unexpected
from gpuprov.errors import Exit, GpuprovError


def run(command: click.Command, program: str, arguments: list[str]) -> int:
    """Run a command; return its exit code. Errors are printed to standard error.

    Args:
        program: its name in messages: `scripts/catalog`.
    """
    try:
        code = command.main(arguments, prog_name=program, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except GpuprovError as error:
        click.echo(f"{program}: {error}", err=True)
        return error.exit_code
    except Exception as error:
        if os.environ.get("GPUPROV_DEBUG"):
            raise
        click.echo(f"{program}: {unexpected(error, do='GPUPROV_DEBUG=1 shows its origin')}", err=True)
        return Exit.FAILED
    return code if isinstance(code, int) else Exit.OK
