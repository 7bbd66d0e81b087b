"""The click group of `gpuprov`: imports a verb's module when it is called, and maps errors to exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys

import click

from gpuprov import __version__
from gpuprov.cli.common.added import summaries
from gpuprov.cli.common.logs import failed, kept, unexpected, with_verbosity
from gpuprov.cli.common.terminal import Declined, fitted, show
from gpuprov.cli.common.verbs import ADDED, VERBS, overview
from gpuprov.errors import Exit, GpuprovError, InvalidInput, did_you_mean
from gpuprov.files.runs import state_dir

LOG = logging.getLogger("gpuprov")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
GROUP = "gpuprov.verbs"
"""Group of entry points that other distributions add verbs by."""
INSTALL = (
    "in a checkout: scripts/release wheel dist {verb} && pip install {name} --no-index --find-links dist"
)
FULL = "make room, or name writable folders: XDG_STATE_HOME, XDG_CACHE_HOME, TMPDIR"


class VerbGroup(click.Group):
    """A group with the commands of the tables of verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return gpuprov's verbs and the installed ones of other distributions, in the tables' order."""
        return [*VERBS, *summaries()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb's command; None if there is no such verb.

        Raises:
            InvalidInput: the distribution that adds the verb is not installed, or is of another version.
        """
        if cmd_name in VERBS:
            command = importlib.import_module(f"gpuprov.cli.{VERBS[cmd_name][0]}").command
        elif cmd_name in ADDED:
            command = _added(cmd_name)
        else:
            return None
        assert isinstance(command, click.Command)  # noqa: S101
        return with_verbosity(named(command, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called verb with its command and its arguments.

        Raises:
            click.UsageError: there is no such verb; the message names similar verbs.
        """
        if args and args[0] not in VERBS and args[0] not in ADDED and not args[0].startswith("-"):
            meant = did_you_mean(args[0], self.list_commands(ctx)) or "`gpuprov --help` lists them"
            raise click.UsageError(f"there is no verb {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview that `gpuprov --help` prints."""
        formatter.write(fitted(overview(summaries()), sys.stdout))


def _added(verb: str) -> object:
    """Import and return the object of a verb's entry point, only from the verb's distribution in `ADDED`.

    Raises:
        InvalidInput: the distribution is not installed, or not in gpuprov's version.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    name = ADDED[verb]
    do = INSTALL.format(verb=verb, name=name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise InvalidInput(f"the verb {verb} is in {name}, which is not installed", do=do) from None
    if found.version != __version__:
        seen = f"{name} {found.version} is installed"
        raise InvalidInput(seen, expected=f"the version of gpuprov, {__version__}", do=do)
    [entry] = found.entry_points.select(group=GROUP, name=verb)
    return entry.load()


def named(command: click.Command, name: str) -> click.Command:
    """Set the name of a command, and the names of its subcommands; return the command."""
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
    """Run one command line, and keep its log; return its exit code.

    Group and others get no write permission for new files, independent of the umask. `help VERB` is
    `VERB --help`.
    """
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    os.umask(os.umask(0o077) | 0o022)
    try:
        code = kept(arguments, lambda: _run(arguments))
    except GpuprovError as error:  # from the folder of the log
        code = _printed(error)
    return _flushed(code)


def _flushed(code: int) -> int:
    """Flush standard output, which may be a file on a full disk; return the exit code.

    A failure is printed and returns its own code; a closed pipe is no failure.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        return _printed(GpuprovError(f"standard output cannot be written: {error.strerror}"))
    return code


def _drop_output() -> None:
    """Redirect standard output to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    """Run one command line; print errors, log them, and return the exit code.

    A closed pipe of standard output is no error.
    """
    try:
        outcome = gpuprov.main(arguments, prog_name="gpuprov", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        show(text.getvalue().removesuffix("\n"), err=True)
        return Exit.USAGE
    except Declined as no:
        show(f"gpuprov: you answered no to: {no}", err=True)
        return Exit.INTERRUPTED
    except (KeyboardInterrupt, click.Abort):
        show("gpuprov: interrupted", err=True)
        return Exit.INTERRUPTED
    except GpuprovError as error:
        failed(error)
        return _printed(error)
    except BrokenPipeError:
        _drop_output()
        return Exit.OK
    except _faults() as error:
        failure = _of_this_machine(error)
        failure.__cause__ = error
        failed(failure)
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            _drop_output()  # the rest of it, so that the end of the run does not report the same again
        return _printed(failure)
    except Exception as error:  # noqa: BLE001 - a defect, which another person's file or a node may have found
        failure = unexpected(error, do=f"please report it; {state_dir() / 'logs'} has its origin")
        failure.__cause__ = error
        failed(failure, logging.INFO)
        return _printed(failure)
    return outcome if isinstance(outcome, int) else Exit.OK


def _faults() -> tuple[type[Exception], ...]:
    """Return the exceptions of this machine's files; that of sqlite only if it is imported."""
    database = sys.modules.get("sqlite3")
    return (OSError, database.OperationalError) if database else (OSError,)


def _of_this_machine(error: Exception) -> GpuprovError:
    """Return the error of an exception that no verb handles: a full disk, a file that cannot be written."""
    if not isinstance(error, OSError):
        return GpuprovError(f"the history cannot be read or written: {error}", do=FULL)
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno in NO_ROOM:
        return GpuprovError(f"{place or 'standard output or a file: '}{error.strerror}", do=FULL)
    return GpuprovError(
        f"{place}{error.strerror or error}", do="repeat with --debug: the log then has the origin"
    )


def _printed(error: GpuprovError) -> Exit:
    """Print an error on stderr; return its exit code."""
    show(f"gpuprov: {error}", err=True)
    return error.exit_code
