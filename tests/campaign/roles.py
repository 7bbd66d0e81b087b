"""Runs every role on every system and fills a table of results.

    scripts/campaign roles [--system ID]... [--results FILE] [--markdown FILE] [-v]

Four nodes get every role in one run, a second run, a changed lock, damage to each role's work, and a lock
without most roles. A cell is `seen`, has a reason why it does not apply, or is BAD. Exit 1 if any is bad.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from gpuprov.model.lock import Lock, read_lock
from gpuprov.roles import BY_NAME
from gpuprov.verify.wanted import wanted
from gpuprov_lab import Node
from tests.campaign._roles_fleet import SETTLED, STACKS, Fleet, Run, bring_up, plain
from tests.campaign._roles_table import Table, lines, markdown
from tests.campaign._roles_trials import TRIALS, Trial, excuse, on
from tests.systems import IMAGES

MISSING_BROUGHT = "Install missing dependencies"
"""Task of preflight."""


class Campaign:
    """The steps of the campaign, in order."""

    def __init__(self, fleet: Fleet, table: Table, verbose: bool) -> None:
        self.fleet, self.table, self.verbose = fleet, table, verbose

    def run(self) -> None:
        """Run all steps."""
        self.fresh()
        self.second()
        self.changed()
        self.broken()
        self.removed()

    def fresh(self) -> None:
        """Compare --check and apply on new nodes."""
        lock = self.fleet.state(0)
        before = self.fleet.snapshot()
        said = self.apply("what --check says of fresh nodes", "--check")
        touched = _differing(before, self.fleet.snapshot())
        did = self.apply("apply to fresh nodes", "--reboot", "--no-verify")
        self.table.say(f"  {did.tasks // len(self.fleet.nodes)} tasks a node")
        failed = self.failed()

        def complaints(trial: Trial, system: str) -> str:
            """Return what is wrong with a role on a fresh node, "" if nothing."""
            node, own = self.node(system), _checks(lock, system, trial.role)
            if trial.role not in did.ran[node.name]:
                return "did not run"
            changed = did.changed[node.name][trial.role] or _came_together(trial, node, did)
            if not changed and trial.role != "preflight":
                return "changed nothing"
            return "; ".join(did.failed[node.name]) or _join("verify fails", own & failed[node.name])

        self.table.judge("fresh", complaints)
        self.table.judge("check", lambda trial, system: self._predicted(trial, system, said, did, touched))

    def second(self) -> None:
        """Run every role again, and --check."""
        did = self.apply("every role a second time", "--full", "--no-verify")
        self.table.judge("second", lambda trial, system: self._idle(trial, system, did))
        before = self.fleet.snapshot()
        said = self.apply("what --check says of provisioned nodes", "--full", "--check")
        touched = _differing(before, self.fleet.snapshot())
        self.table.judge(
            "check",
            lambda trial, system: (
                _join("touched", touched[self.node(system).name]) or self._idle(trial, system, said)
            ),
        )

    def changed(self) -> None:
        """Apply another lock."""
        self.fleet.state(1)
        differs = self.fleet.drift()
        did = self.apply("apply a changed lock", "--reboot", "--no-verify")
        failed = self.failed()

        def complaints(trial: Trial, system: str) -> str:
            """Return what is wrong with the correction of a changed node, "" if nothing."""
            node = self.node(system).name
            return (
                "; ".join(did.failed[node])
                or _join("drift does not name", set(trial.changed) - differs[node])
                or _join("verify fails", set(trial.changed) & failed[node])
            )

        self.table.judge("changed", complaints)

    def broken(self) -> None:
        """Damage the work of every role at once, then correct it."""
        self.complain_of_leftovers("before anything is broken")
        for system, node in self.fleet.nodes.items():
            for trial in (on(each, system) for each in TRIALS):
                harmed = trial.harm and not excuse(trial, system, "broken")
                if harmed and node.run(trial.harm, check=False).returncode:
                    self.table.say(f"  {trial.role}: the harm ends with an error on {node.name}")
        failed = self.failed()
        before = self.fleet.snapshot()
        said = self.apply("what --check says of broken nodes", "--check")
        touched = _differing(before, self.fleet.snapshot())
        did = self.apply("mend broken nodes", "--reboot", "--no-verify")
        left = self.failed()

        def complaints(trial: Trial, system: str) -> str:
            """Return what is wrong with the correction of a broken node, "" if nothing."""
            node = self.node(system).name
            return (
                _join("verify does not fail", set(trial.broken) - failed[node])
                or "; ".join(did.failed[node])
                or _join("after apply verify fails", set(trial.broken) & left[node])
            )

        self.table.judge("broken", complaints)
        self.table.judge("check", lambda trial, system: self._predicted(trial, system, said, did, touched))

    def removed(self) -> None:
        """Apply a lock without most roles."""
        self.complain_of_leftovers("after mending")
        there = self._there()
        self.fleet.state(2)
        did = self.apply("a lock without most of it", "--full", "--reboot", "--no-verify")
        again = self.apply("the same once more", "--full", "--no-verify")
        failed, still = self.failed(), self._there()

        def complaints(trial: Trial, system: str) -> str:
            """Return what is wrong with the removal of a role's parts, "" if nothing."""
            node = self.node(system).name
            return (
                "; ".join(did.failed[node])
                or ("" if there[node, trial.role] else "there was nothing to take away")
                or _join("still there", still[node, trial.role].splitlines())
                or self._idle(trial, system, again)
                or _join("verify fails", _checks(self.lock, system, trial.role) & failed[node])
            )

        self.table.judge("removed", complaints)

    @property
    def lock(self) -> Lock:
        """Read the fleet's lock."""
        return read_lock(self.fleet.folder / "fleet.lock.yml")

    def node(self, system: str) -> Node:
        return self.fleet.nodes[system]

    def apply(self, title: str, *words: str) -> Run:
        """Run and print one apply, with its failures."""
        began = time.monotonic()
        run = self.fleet.apply(*words)
        self.table.say(f"{title}: exit {run.code}, {time.monotonic() - began:.0f} s")
        for node, failures in run.failed.items():
            self.table.say(f"  {node}: {'; '.join(failures)}")
        if self.verbose or (run.code not in (0, 3) and not run.failed):
            self.table.say(run.said)
        return run

    def failed(self) -> dict[str, set[str]]:
        """Return node → failed checks of verify, after its units have settled."""
        for node in self.fleet.nodes.values():
            node.run(SETTLED, check=False)
        seen = self.fleet.verify()
        return {
            node: {check for check, how in checks.items() if how != "passed"} for node, checks in seen.items()
        }

    def complain_of_leftovers(self, when: str) -> None:
        """Print the checks that verify fails although all should pass."""
        for node, checks in self.failed().items():
            if checks:
                self.table.say(f"  {node}, {when}: verify fails {', '.join(sorted(checks))}")

    def _predicted(
        self, trial: Trial, system: str, said: Run, did: Run, touched: dict[str, Collection[str]]
    ) -> str:
        """Return a complaint unless --check named a role exactly when apply changed it, and changed nothing.

        Two changes may precede a role that --check named: its packages, on a node that has none of them, and
        dependencies that dpkg needs to finish.
        """
        node = self.node(system).name
        predicted, done = (bool(run.changed[node][trial.role]) for run in (said, did))
        finished = MISSING_BROUGHT in did.changed[node]["preflight"]
        brought = finished or _came_together(trial, self.node(system), did)
        if said.failed[node]:
            return f"--check fails: {said.failed[node]}"
        if predicted != done and not (predicted and brought):
            word = "names" if predicted else "does not name"
            return f"--check {word} it, apply changes {did.changed[node][trial.role]}"
        return _join("--check touched", touched[node])

    def _idle(self, trial: Trial, system: str, run: Run) -> str:
        """Return why a second run of a role was not idle; empty if it was."""
        node = self.node(system).name
        return "; ".join(run.failed[node]) or _join("changed", run.changed[node][trial.role])

    def _there(self) -> dict[tuple[str, str], str]:
        """Return node and role → remains of its work."""
        return {
            (node.name, trial.role): node.run(on(trial, system).gone or "true", check=False).stdout.strip()
            for system, node in self.fleet.nodes.items()
            for trial in TRIALS
        }


def _came_together(trial: Trial, node: Node, run: Run) -> bool:
    """Return whether a role's packages were installed with those of others before it ran."""
    return bool(BY_NAME[trial.role].first and run.changed[node.name][""])


def _checks(lock: Lock, system: str, role: str) -> set[str]:
    """Return the checks of a role."""
    return {check for check, each in wanted(lock.groups[plain(system)]).items() if each.role == role}


def _differing(before: dict[str, str], after: dict[str, str]) -> dict[str, Collection[str]]:
    """Return node → lines of two texts that are only in one of them."""
    return {node: set(before[node].splitlines()) ^ set(after[node].splitlines()) for node in before}


def _join(what: str, items: Collection[str]) -> str:
    """Return a word with the items in order; empty without items."""
    return f"{what} {', '.join(sorted(items))}" if items else ""


def main() -> int:
    """Run each role on fresh, changed and broken nodes, and write the table; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {name: system for system, name in IMAGES.items()} | {system: system for system in STACKS}
    parser.add_argument(
        "--system", action="append", choices=list(names), help="only this one, or its image; repeatable"
    )
    parser.add_argument("--results", type=Path, help="add to what an earlier run saw on other systems")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each run said")
    wanted = parser.parse_args()
    table = Table([names[each] for each in wanted.system] if wanted.system else list(STACKS))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-roles-")))
        folder.chmod(0o755)
        fleet = bring_up(stack, f"roles-{os.getpid()}", folder, table.systems)
        table.say(f"{len(fleet.nodes)} nodes and the mirror are up")
        Campaign(fleet, table, wanted.verbose).run()
    if wanted.results:
        table.join(wanted.results)
    print("\n".join(lines(table)))
    bad = table.bad()
    table.say(f"{len(table.cells)} cells, {len(bad)} bad")
    if wanted.markdown:
        wanted.markdown.write_text("\n".join(markdown(table)) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
