"""The commands of gpuprov, as tests of all verbs go through them."""

from __future__ import annotations

from collections.abc import Iterator

import click


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group with its full name, without groups."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, f"{path} {name}".strip())
    else:
        yield path, command
