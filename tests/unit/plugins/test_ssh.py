"""The function of the connection plugin gpuprov_ssh that replaces a method of Ansible."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

PLUGIN = str(ROOT / "plugins/connection/gpuprov_ssh.py")
PARSER = f"""
import importlib.util, sys, tempfile
from pathlib import Path
from gpuprov.files.resources import link_collection
scratch = tempfile.TemporaryDirectory()
sys.path.insert(0, str(link_collection(Path(scratch.name))))
spec = importlib.util.spec_from_file_location("gpuprov_ssh", {PLUGIN!r})
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)
parse = plugin.limited(lambda action, result, profile=None: (result["stdout"], profile))
"""


@pytest.mark.parametrize("arguments", ["'legacy'", "profile='legacy'"])
def test_the_parser_of_results_gets_a_profile_by_place_or_by_name(arguments: str) -> None:
    """ansible-core states it by its place, Mitogen by its name, and older releases do not have it."""
    asked = (
        f"{PARSER}\nprint(parse(None, {{'stdout': '{{}}'}}), parse(None, {{'stdout': '{{}}'}}, {arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", asked], check=False, capture_output=True, text=True)
    assert done.stdout == "('{}', None) ('{}', 'legacy')\n", done.stderr


@pytest.mark.parametrize("many", ["[", r"\n", r"\f", r"\r", r"\u000b", r"\u2028", "\x85", "\u2029"])
def test_a_result_of_too_many_values_or_lines_is_not_parsed(many: str) -> None:
    asked = f"{PARSER}\nparse(None, {{'stdout': {many!r} * 140_000}}, profile='legacy')"
    done = subprocess.run([sys.executable, "-c", asked], check=False, capture_output=True, text=True)
    assert "the node answered with more than 131072 values or lines" in done.stderr


def test_the_limits_are_those_of_all_items_of_a_loop() -> None:
    asked = f"{PARSER}\nfor _ in range(3):\n    parse(None, {{'stdout': '[' * 50_000}}, profile='legacy')"
    done = subprocess.run([sys.executable, "-c", asked], check=False, capture_output=True, text=True)
    assert "the node answered with more than 131072 values or lines" in done.stderr
