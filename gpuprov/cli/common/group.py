"""The click group behind `gpuprov`: loads a verb's module when it is called, turns errors into exit codes."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys

import click

from gpuprov import __version__
from gpuprov.cli.common.logs import failed, kept, with_verbosity
from gpuprov.cli.common.terminal import show
from gpuprov.cli.common.verbs import VERBS, overview
from gpuprov.errors import Exit, GpuprovError, did_you_mean

LOG = logging.getLogger("gpuprov")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
FULL = "make room, or name folders that can be written: XDG_STATE_HOME, XDG_CACHE_HOME, TMPDIR"


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
    """Run one command line; returns its exit code.

    What is written is for no one else to write, whatever the umask.
    """
    os.umask(os.umask(0o077) | 0o022)
    try:
        code = kept(arguments, lambda: _run(arguments))
    except GpuprovError as error:  # where the log should be kept
        code = _told(error)
    return _flushed(code)


def _flushed(code: int) -> int:
    """Write what is left for standard output, which may be a file on a full disk."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        return _told(GpuprovError(f"standard output cannot be written: {error.strerror}"))
    return code


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        outcome = gpuprov.main(arguments, prog_name="gpuprov", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, click.Abort):
        show("gpuprov: interrupted", err=True)
        return Exit.INTERRUPTED
    except GpuprovError as error:
        failed(error)
        return _told(error)
    except BrokenPipeError:
        _drop_output()
        return Exit.OK
    except _faults() as error:
        failure = _of_this_machine(error)
        failure.__cause__ = error
        failed(failure)
        return _told(failure)
    return outcome if isinstance(outcome, int) else Exit.OK


def _faults() -> tuple[type[Exception], ...]:
    """What this machine raises; sqlite does only where it is imported."""
    database = sys.modules.get("sqlite3")
    return (OSError, database.OperationalError) if database else (OSError,)


def _of_this_machine(error: Exception) -> GpuprovError:
    """What stood in the way here that no verb has words for: a full disk, a file that may not be written."""
    if not isinstance(error, OSError):
        return GpuprovError(f"the history cannot be read or written: {error}", do=FULL)
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno in NO_ROOM:
        return GpuprovError(f"{place or 'standard output or a file: '}{error.strerror}", do=FULL)
    return GpuprovError(f"{place}{error.strerror or error}", do="--debug keeps where that came from")


def _told(error: GpuprovError) -> Exit:
    show(f"gpuprov: {error}", err=True)
    return error.exit_code
