"""`gpuprov resolve`: choose one machine's stack, or show why no stack works."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gpuprov.cli.common.options import output_option, print_json
from gpuprov.cli.common.request_options import catalog_option, read_catalog, read_request, request_options
from gpuprov.cli.common.terminal import say, tell_lines
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from gpuprov.untrusted import json_text
from gpuprov.untrusted.parsing import read_json
from gpuprov.untrusted.stated import open_stated, stated_file

if TYPE_CHECKING:
    from gpuprov.catalog import Catalog

LINE_BYTES = 1 << 20
"""Maximum size of a request of a batch."""


@click.command()
@request_options
@click.option(
    "--batch",
    metavar="FILE",
    help="file of JSON lines, one request each; `-` is stdin; prints one answer per line, in order",
)
@click.option("--sources", "show_sources", is_flag=True, help="list the sources of each statement")
@catalog_option
@output_option
def command(
    batch: str | None, show_sources: bool, catalog_dirs: tuple[Path, ...], output: str, **stated: Any
) -> int:
    """Resolve one machine's stack: check the stated versions, and choose the others.

    Exit 0 if the stack works (also with warnings), 5 if it is refused, 2 if a name is unknown.
    """
    catalog = read_catalog(catalog_dirs)
    if batch is not None:
        if any(stated.values()):
            raise InvalidInput(
                "--batch with a request", do="put the request into the file, or leave --batch out"
            )
        return _batch(batch, catalog)
    from gpuprov.locking.resolve import resolve

    answer = resolve(read_request(stated), catalog)
    if output == "json":
        print_json(answer.to_json())
    else:
        from gpuprov.report.resolution import describe, sources

        tell_lines("\n".join(describe(answer)))
        if show_sources:
            tell_lines("\nsources\n" + "\n".join(f"  - {line}" for line in sources(answer)))
    return Exit.REFUSED if answer.verdict == "refused" else Exit.OK


def _batch(name: str, catalog: Catalog) -> int:
    """Answer requests line by line; return 2 if a line is not valid. A refusal is an ordinary answer.

    Args:
        name: path of the file, `-` for stdin.

    Raises:
        InvalidInput: the file cannot be read.
    """
    return _answer_all(_lines(name), catalog)


def _lines(name: str) -> Iterator[str]:
    """Yield the lines of a file, `-` for stdin; raise InvalidInput if it cannot be read."""
    with stated_file(f"--batch {name}", expected="a file of JSON lines, or -"):
        if name == "-":
            yield from _bounded(sys.stdin)
            return
        with io.TextIOWrapper(open_stated(Path(name)), encoding="utf-8") as lines:
            yield from _bounded(lines)


def _bounded(lines: TextIO) -> Iterator[str]:
    """Yield the lines of a file; of one that is longer than `LINE_BYTES` the beginning, which is refused."""
    while line := lines.readline(LINE_BYTES + 1):
        yield line
        while len(line) > LINE_BYTES and not line.endswith("\n"):
            line = lines.readline(LINE_BYTES + 1)


def _answer_all(lines: Iterable[str], catalog: Catalog) -> int:
    """Print an answer for each line that is not blank; return 2 if one is an error, else 0."""
    outcome = Exit.OK
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        answer = _answer(line, catalog)
        if "error" in answer:
            outcome = Exit.USAGE
            answer["error"]["line"] = number
        say(json_text(answer, indent=None))
    return outcome


def _answer(line: str, catalog: Catalog) -> dict[str, Any]:
    """Return the answer to one request as JSON values, with its `id` if stated; with `error`, and none
    raised, if it is invalid.
    """
    from gpuprov.locking.resolve import Request, failed, resolve

    try:
        raw = read_json(line, LINE_BYTES)
        if not isinstance(raw, dict):
            raise InvalidInput(f"not an object: {line.strip()[:60]}", expected="one JSON object per line")
        named = {"id": raw.pop("id")} if "id" in raw else {}
        return {**resolve(Request.from_mapping(raw), catalog).to_json(), **named}
    except ValueError as error:
        return failed(InvalidInput(f"not JSON: {error}"))
    except GpuprovError as error:
        return failed(error)
