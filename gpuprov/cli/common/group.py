"""The click group behind `gpuprov`: loads a verb's module when it is called, turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys

import click

from gpuprov import __version__
from gpuprov.cli.common.logs import failed, kept, with_verbosity
from gpuprov.cli.common.verbs import VERBS, overview
from gpuprov.errors import Exit, GpuprovError, did_you_mean
from gpuprov.report.printable import printable


class VerbGroup(click.Group):
    """A group whose commands are the table of verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, imported now."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gpuprov.cli.{VERBS[cmd_name][0]}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return with_verbosity(named(command, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that is called; one that is mistyped is told with those that are near."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            meant = did_you_mean(args[0], VERBS) or "`gpuprov --help` lists them"
            raise click.UsageError(f"there is no verb {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the same overview that `--help` alone prints."""
        formatter.write(overview())


def named(command: click.Command, name: str) -> click.Command:
    """The command under the name that it is called by, and so those below it."""
    command.name = name
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            named(each, below)
    return command


@click.group(
    cls=VerbGroup,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gpuprov")
def gpuprov() -> None:
    """Takes a fresh GPU server to a declared, proven state and keeps it there."""


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    return kept(arguments, lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    try:
        outcome = gpuprov.main(arguments, prog_name="gpuprov", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo("gpuprov: interrupted", err=True)
        return Exit.INTERRUPTED
    except GpuprovError as error:
        click.echo(f"gpuprov: {printable(str(error))}", err=True)
        failed(error)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return outcome if isinstance(outcome, int) else Exit.OK
