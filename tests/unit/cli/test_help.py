"""Style of help texts: the text of an option begins with a small letter and has no full stop."""

from __future__ import annotations

import gc
import sys

import click
import pytest

from gpuprov import cli
from gpuprov.cli.common.group import gpuprov
from tests.unit.cli.commands import leaves

NAMES = ("Ansible", "Slurm", "JSON", "SSH", "GPU", "PCI", "JUnit", "NCCL", "Ctrl")


@pytest.mark.parametrize(("path", "command"), list(leaves(gpuprov)))
def test_options_are_told_in_one_style(path: str, command: click.Command) -> None:
    for option in command.params:
        if not isinstance(option, click.Option) or not option.help or option.name in ("help", "version"):
            continue
        said = option.help.partition("  [")[0]
        assert not said[:1].isupper() or said.startswith(NAMES), f"{path} {option.opts}: {said}"
        assert not said.endswith("."), f"{path} {option.opts}: {said}"


def test_sudos_password_has_one_spelling() -> None:
    found = {
        path: [each.opts for each in command.params if {"-K", "--ask-become-pass"} & {*each.opts}]
        for path, command in leaves(gpuprov)
    }
    spelt = {path: opts for path, opts in found.items() if opts}
    assert {"bootstrap", "apply", "drift", "doctor"} <= spelt.keys()
    assert all(opts == [["-K", "--ask-become-pass"]] for opts in spelt.values())


def test_continuing_a_run_has_one_help() -> None:
    found = {
        path: each.help
        for path, command in leaves(gpuprov)
        for each in command.params
        if isinstance(each, click.Option) and "--resume" in each.opts
    }
    assert {"upgrade", "rollback", "repair"} <= found.keys()
    assert len({*found.values()}) == 1


def test_the_collections_at_exit_look_at_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuprov", "catalog", "--help"])
    threshold = gc.get_threshold()
    try:
        with pytest.raises(SystemExit):
            cli.main()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
