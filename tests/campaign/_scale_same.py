"""Comparison of each verb's document by one controller and by workers, from the same state."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from subprocess import CompletedProcess

import yaml

from tests.campaign._upgrade_site import Site
from tests.lab.controllers import Crew, but_for_times

CLOCKED = "clocked.lock.yml"
UNHOLD = "apt-mark unhold libcuda1"


def compare(found: Site, made: Crew, say: Callable[[str], None] = print) -> int:
    """Run drift, plan, verify, apply, accept, upgrade and rollback both ways, and print the results; return
    the number of differences.
    """
    clocked(found)
    found.fleet.nodes[1].run(UNHOLD)
    bad = sum(
        both(made, verb, code=code, say=say) for verb, code in (("drift", 3), ("plan", 3), ("verify", 1))
    )
    yes = ("--yes", "--no-verify")
    made.gpuprov("apply", *yes)
    undo: tuple[str, ...] = ("apply", *yes)
    bad += both(made, "apply", "--lock", CLOCKED, *yes, undo=undo, say=say)
    bad += both(made, "verify", "--lock", CLOCKED, say=say)
    made.gpuprov(*undo)
    bad += both(made, "accept", code=1, say=say)
    to = found.fleet.lock(found.there, canary="one_per_group", serial=["100%"])
    documents: dict[str, list[str]] = {"upgrade": [], "rollback": []}
    for way in (made.gpuprov, made.by_workers):
        for verb, words in (("upgrade", ("--to", to)), ("rollback", ())):
            documents[verb].append(document(way, verb, *words, "--yes", say=say))
            found.moved()
    bad += sum(differ(verb, each, say) for verb, each in documents.items())
    return bad


def clocked(found: Site) -> None:
    """Write the lock `CLOCKED`, in which only the graphics clock differs from the fleet's."""
    plain = yaml.safe_load((found.fleet.folder / "fleet.lock.yml").read_text())
    for group in plain["groups"].values():
        group["settings"]["clocks"]["value"]["graphics"] -= 210
    (found.fleet.folder / CLOCKED).write_text(yaml.safe_dump(plain, sort_keys=False))


def both(
    made: Crew, verb: str, *words: str, code: int = 0, undo: tuple[str, ...] = (), say: Callable[[str], None]
) -> bool:
    """Run one verb both ways, and print the differences of its documents; return whether there are any.

    Args:
        undo: command that restores the fleet between the two.
    """
    one = document(made.gpuprov, verb, *words, code=code, say=say)
    if undo:
        made.gpuprov(*undo)
    return differ(verb, [one, document(made.by_workers, verb, *words, code=code, say=say)], say)


def document(
    way: Callable[..., CompletedProcess[str]],
    verb: str,
    *words: str,
    code: int = 0,
    say: Callable[[str], None],
) -> str:
    """Run a verb in one way; print its time, and its errors if the exit code is another; return its document
    without times.
    """
    begun = time.monotonic()
    done = way(verb, *words, "-o", "json", code=None)
    say(f"{verb:<9}{way.__name__:<11}{time.monotonic() - begun:6.0f} s, exit {done.returncode}")
    if done.returncode != code:
        say(f"  exit {code} was expected: {(done.stderr or done.stdout)[-1500:]}")
    return but_for_times(done.stdout)


def differ(verb: str, documents: list[str], say: Callable[[str], None]) -> bool:
    """Return whether two documents differ, or the first is empty; print the differences."""
    one, many = (each.splitlines() for each in documents)
    lines = list(difflib.unified_diff(one, many, "one", "workers", n=0, lineterm=""))
    say(f"{verb}: {'the same' if not lines else 'NOT the same'}, {len(one)} lines")
    for line in lines[:20]:
        say(f"  {line[:200]}")
    return bool(lines) or not one
