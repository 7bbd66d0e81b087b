"""One log file for each call of a verb that prints messages or asks, and `-v` and `--debug` for every verb.

A log contains the command line, the messages to the user, each node's answer and the exit code; with --debug
also the commands on nodes and the origin of errors. It contains no passwords. Only the owner can read logs;
the newest `KEPT` are kept.
"""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from gpuprov.errors import GpuprovError
from gpuprov.files.runs import new_id, state_dir
from gpuprov.files.writing import make_folders
from gpuprov.untrusted import LogFormatter, on_one_line

KEPT = 200
CAUSE = 200
"""Maximum length of the text of an unexpected exception, in characters."""
LOG = logging.getLogger("gpuprov")
LEVELS = {"verbose": logging.INFO, "debug": logging.DEBUG}


def with_verbosity(command: click.Command) -> click.Command:
    """Add `-v` and `--debug` to a verb and its subcommands, in place; return it.

    An option that the verb has is not added. If it uses `-v` for something else, only `--verbose` is added.
    """
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_verbosity(each)
        return command
    own = {param.name for param in command.params}
    further: list[click.Parameter] = []
    if "verbose" not in own:
        names = ["--verbose"] if _taken(command, "-v") else ["-v", "--verbose"]
        further.append(_flag(names, "verbose", "print more on stderr"))
    if "debug" not in own:
        further.append(_flag(["--debug"], "debug", "log remote commands and the origin of errors"))
    command.params.extend(further)
    return command


def _flag(names: list[str], level: str, words: str) -> click.Option:
    """Return an option that, if given, prints log lines of a level of `LEVELS` on stderr."""

    def begin(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            _to_stderr(LEVELS[level])

    return click.Option(names, is_flag=True, expose_value=False, callback=begin, help=words)


def _taken(command: click.Command, option: str) -> bool:
    """Return whether a command has an option of that name."""
    return any(option in param.opts for param in command.params)


def _to_stderr(level: int) -> None:
    """Print log lines from a level on also on stderr, without messages that the user gets there anyway."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.setFormatter(LogFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.addFilter(lambda record: not getattr(record, "said", False))
    LOG.addHandler(handler)
    LOG.setLevel(min(level, LOG.getEffectiveLevel()))


class Kept(logging.FileHandler):
    """A log file that is created with its first line; its errors never stop a verb."""

    def __init__(self, path: Path, words: list[str]) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self._words = words
        self.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; before the first one create the file and write the command line.

        After an error of the file no more lines are written.
        """
        try:
            if self.stream is None:
                self._make()
            super().emit(record)
        except OSError:
            LOG.removeHandler(self)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore an error: a full disk must neither end a verb nor print a traceback."""

    def _make(self) -> None:
        """Create the file, readable by its owner only; remove the oldest logs; write the command line."""
        folder = Path(self.baseFilename).parent
        make_folders(folder)
        for old in sorted(folder.glob("*.log"))[: -KEPT + 1 or None]:
            old.unlink(missing_ok=True)
        Path(self.baseFilename).touch(mode=0o600)
        typed = shlex.join(["gpuprov", *self._words])
        super().emit(logging.LogRecord("gpuprov", logging.INFO, "", 0, "%s", (typed,), None))


def kept(words: list[str], call: Callable[[], int]) -> int:
    """Run a command line and keep its log; return its exit code.

    Args:
        words: the command line.
        call: function that runs it and returns its exit code.
    """
    verb = next((word for word in words if not word.startswith("-")), "help")
    handler = Kept(state_dir() / "logs" / f"{new_id(verb)}.log", words)
    before, level, propagates = list(LOG.handlers), LOG.level, LOG.propagate
    LOG.propagate = False
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        code = call()
        if handler.stream is not None:
            LOG.info("exit %d", code)
        return code
    finally:
        for each in [each for each in LOG.handlers if each not in before]:
            LOG.removeHandler(each)
            with suppress(OSError):
                each.close()
        LOG.setLevel(level)
        LOG.propagate = propagates


def said(text: str) -> None:
    """Log a message that is also printed on stderr."""
    LOG.info("%s", text, extra={"said": True})


def failed(error: GpuprovError, origin: int = logging.DEBUG) -> None:
    """Log an error that is also printed on stderr, and its traceback at the level `origin`."""
    LOG.error("%s", error, extra={"said": True})
    LOG.log(origin, "origin of the error", exc_info=error)


def unexpected(error: Exception, *, do: str) -> GpuprovError:
    """Return the error of an exception that gpuprov should have handled, with the line that raised it.

    Another person's file or a node may have found the defect.
    """
    frames = traceback.walk_tb(error.__traceback__)
    names = [f"{frame.f_globals.get('__name__')}:{line}" for frame, line in frames]
    own = [each for each in names if each.startswith(("gpuprov.", "maintenance."))]
    text = on_one_line(str(error)[:CAUSE])
    return GpuprovError(f"unexpected {type(error).__name__} at {own[-1]}: {text}", do=do)
