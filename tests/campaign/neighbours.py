"""Brings a node from a full fleet to every neighbouring one and back: each way must end in sync.

    scripts/campaign neighbours [--only TEXT]... [--without TEXT]... [--together N] [--seed S] [--part K/N]

A neighbour differs in one key of fleet.yml: added, removed or changed; the keys are those of the schema. Only
`gpuprov lock` and `gpuprov apply` are used. A result is `in sync`, a refusal by `lock` or `plan` that names a
way out, or a dead end: anything else, such as an apply that fails. After a dead end the node is made again
from an image. With `--together`, N neighbours that are not refused are one fleet, which takes less time;
if it is not in sync after one apply there and one back, each half of them is tried, down to each alone.
`--seed` is the order of the pairs; `--part 2/3` is the second of three parts, which can run at the same time,
each on its own node. An interrupt ends the campaign. Exit 1 if there is a dead end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gpuprov.apply.context import Options
from gpuprov.apply.proposal import Proposal, propose
from gpuprov.errors import GpuprovError
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.report.text import plan_lines
from gpuprov_lab.images import drop_image, saved_images
from gpuprov_lab.mirror.serve import MirrorServer, served
from tests.campaign._neighbours_keys import ADMIN, Site
from tests.campaign._neighbours_pairs import Document, Pair, merged, pairs
from tests.campaign._roles_fleet import SETTINGS, SETTLED, SWITCHED, Fleet, bring_up, new_node
from tests.lab.command_line import gpuprov

SYSTEM = "debian12"
FLEET, CANNOT = "fleet.yml", "cannot fix"
"""The file that a way out names, and words of a plan about differences that no role corrects."""
IN_SYNC, DEAD_END, UNTRIED = "in sync", "DEAD END", "-"
TOGETHER = "in sync, with others"
APPLY = ("apply", "--yes", "--reboot", "--allow-downgrade", "--no-verify", "-o", "json")
MESSAGE_MAX = 700
WITH_ADMIN = (
    f"useradd --create-home --shell /bin/bash {ADMIN}; cp -r /root/.ssh /home/{ADMIN}/;"
    f" chown -R {ADMIN}: /home/{ADMIN}; echo '{ADMIN} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{ADMIN}"
)


@dataclass(frozen=True)
class Result:
    """The end of one way: a word for the table, and the message that explains it."""

    word: str
    message: str = ""

    @property
    def moved(self) -> bool:
        """Whether the node is at the fleet of the way's end."""
        return self.word.startswith(IN_SYNC)


@dataclass
class Road:
    """A node that is provisioned for the full fleet.

    Attributes:
        again: a second server of the mirror, at another port.
        image: name of the image to make the node again.
    """

    fleet: Fleet
    again: MirrorServer
    image: str

    def begin(self) -> None:
        """Bring the node to the full fleet, and save it.

        Raises:
            SystemExit: the node does not come there.
        """
        there = self.go(self.full())
        if not there.moved:
            raise SystemExit(f"the full fleet: {there.word}: {there.message}")
        node = self.fleet.nodes[SYSTEM]
        node.run(WITH_ADMIN)
        self.fleet.lab.save(node, self.image)
        node.start()

    @property
    def folder(self) -> Path:
        return self.fleet.folder

    def full(self) -> Document:
        """Return the full fleet, in long forms."""
        document = self.fleet.document(0)
        for group in document["groups"].values():
            group["settings"] |= {name: SETTINGS[1][name] for name in ("ssh", "firewall")}
            group["hosts"] = {name: {"address": address} for name, address in group["hosts"].items()}
        return document

    def site(self) -> Site:
        """Return what the pairs' values depend on; the second server has another port."""
        node, lab, mirror = self.fleet.nodes[SYSTEM], self.fleet.lab, self.fleet.mirror
        moved = {
            "nvidia": mirror.cuda(self.again.url),
            "container-toolkit": mirror.container_toolkit(self.again.url),
        }
        copies = [self.folder / name for name in ("other-key.asc", "other_id", "other_hosts")]
        for original, copy in zip((mirror.key, lab.identity_file, lab.known_hosts), copies, strict=True):
            shutil.copy(original, copy)
        return Site(node.name, node.address, moved.__getitem__, *map(str, copies))

    def place(self, document: Document) -> Lock | GpuprovError:
        """Write a fleet, lock it and return the lock, or the refusal."""
        path, lock_path = self.folder / FLEET, self.folder / "fleet.lock.yml"
        path.write_text(json.dumps(document))
        try:
            lock = build_lock(path, previous=read_lock(lock_path) if lock_path.exists() else None)
        except GpuprovError as error:
            return error
        write_lock(lock, lock_path)
        return lock

    def go(self, document: Document) -> Result:
        """Bring the node to a fleet by `lock`, `plan` and `apply`."""
        lock = self.planned(document)
        return lock if isinstance(lock, Result) else self._applied(lock)

    def planned(self, document: Document) -> Lock | Result:
        """Return the lock of a fleet, or the refusal by `lock` or `plan`."""
        lock = self.place(document)
        if isinstance(lock, GpuprovError):
            return _refused("lock", str(lock), way=bool(lock.do or lock.expected))
        try:
            planned = self._proposed(lock)
        except GpuprovError as error:
            return _refused("plan", str(error), way=bool(error.do or error.expected))
        if lost := [str(node.reason) for node in planned.unanswered]:
            return _refused("plan", lost[0], way=";" in lost[0])
        if any(plan.beyond for plan in planned.plans):
            cannot = [line for line in plan_lines(planned.plans) if CANNOT in line]
            return _refused("plan", "; ".join(cannot), way=any(FLEET in line for line in cannot))
        return lock

    def _applied(self, lock: Lock, applies: int = 2) -> Result:
        """Apply a lock, twice if once does not bring the node in sync and `applies` allows it."""
        said, left = "", ""
        for attempt in ("", ", second apply")[:applies]:
            try:
                done = gpuprov(self.folder, *APPLY, code=None)
            except AssertionError as error:  # a traceback
                return Result(DEAD_END, str(error)[-MESSAGE_MAX:])
            self.fleet.nodes[SYSTEM].run(SETTLED, check=False)
            said = said or _said(done.stdout, done.stderr)
            left = "; ".join(
                node.reason or ", ".join(each.check for each in node.drift)
                for node in self._proposed(lock).found
                if node.status != "in_sync"
            )
            if not left:
                return Result(f"{IN_SYNC}{attempt}", said if attempt else "")
        return Result(DEAD_END, f"apply: {said}; then in drift: {left}")

    def _proposed(self, lock: Lock) -> Proposal:
        """Return what an apply of the lock would do."""
        return propose(lock, list(lock.hosts()), Options())

    def both_ways(self, document: Document, applies: int) -> tuple[Result, Result]:
        """Go to a fleet by at most so many applies, and back; if that fails, make the node again."""
        full, lock = self.full(), self.planned(document)
        if isinstance(lock, Result):  # the node is where it was
            self.place(full)
            return lock, Result(UNTRIED)
        there = self._applied(lock, applies)
        back = self.go(full) if there.moved else Result(UNTRIED)
        if not (back.moved or (not there.moved and self.go(full).moved)):
            self._make_again()
        return there, back

    def together(self, some: Sequence[int]) -> list[tuple[Result, Result]]:
        """Go to the neighbours with these numbers at once and back; to each half of them if that does not
        succeed at once.
        """
        document, every = self.full(), self.pairs()
        for at in some:
            document = merged(self.full(), document, every[at].document) or document
        there, back = self.both_ways(document, applies=2 if len(some) == 1 else 1)
        if len(some) == 1:
            return [(there, back)]
        if there.word == back.word == IN_SYNC:
            return [(Result(TOGETHER), Result(TOGETHER))] * len(some)
        print(
            f"{len(some)} at once: {there.word}, back {back.word}: {there.message}{back.message}", flush=True
        )
        half = len(some) // 2
        return [*self.together(some[:half]), *self.together(some[half:])]

    def pairs(self) -> list[Pair]:
        """Return all pairs as of now: a node that replaced another may have another address."""
        return list(pairs(self.full(), self.site()))

    def _make_again(self) -> None:
        """Replace the node by a new one from the image."""
        node = self.fleet.nodes[SYSTEM]
        self.fleet.lab.down([node.name])
        loop = self.fleet.loops[SYSTEM]
        self.fleet.nodes[SYSTEM] = new_node(self.fleet.lab, SYSTEM, node.name, loop, SWITCHED, self.image)
        self.place(self.full())


def _refused(by: str, message: str, *, way: bool) -> Result:
    """Return the result of a refusal: a dead end if its message names no way."""
    return Result(f"refused by {by}", message) if way else Result(DEAD_END, f"{by} names no way: {message}")


def _said(stdout: str, stderr: str) -> str:
    """Return the messages of failed tasks, or else the last lines of an apply."""
    nodes = json.loads(stdout)["nodes"] if stdout.strip().startswith("{") else []
    failed = [f"{each.get('role')}: {each.get('msg')}" for node in nodes for each in node.get("failed", ())]
    return " ".join(failed or stderr.strip().splitlines()[-2:])[:MESSAGE_MAX]


def table(results: Iterable[tuple[Pair, Result, Result]]) -> Iterator[str]:
    """Yield a line for each pair: there, back, key and change."""
    yield f"{'there':<28}  {'back':<28}  key"
    for pair, there, back in results:
        yield f"{there.word:<28}  {back.word:<28}  {pair}"


def _tried(road: Road, chosen: list[int], at_once: int, results: list[tuple[Pair, Result, Result]]) -> None:
    """Try the pairs with these numbers; print and add the result of each."""
    waiting = list(chosen)
    while waiting:
        every = road.pairs()
        some, document = list[int](), road.full()
        for at in list(waiting):
            both = merged(road.full(), document, every[at].document)
            if len(some) == at_once or both is None:
                continue
            waiting.remove(at)
            lock = road.planned(every[at].document) if at_once > 1 else None
            if isinstance(lock, Result):
                _noted(results, every[at], lock, Result(UNTRIED))
            else:
                some.append(at)
                document = both
        road.place(road.full())
        if not some:
            continue
        for at, (there, back) in zip(some, road.together(some), strict=True):
            _noted(results, every[at], there, back)
        print(f"{len(results)} of {len(chosen)}", flush=True)


def _chosen(road: Road, stated: argparse.Namespace) -> list[int]:
    """Return the numbers of the pairs that `only` and `without` name, in the order of `seed`."""
    every = list(map(str, road.pairs()))
    chosen = [
        at
        for at, name in enumerate(every)
        if not (stated.only and not any(text in name for text in stated.only))
        and not any(text in name for text in stated.without)
    ]
    if stated.seed is not None:
        Random(stated.seed).shuffle(chosen)  # noqa: S311 - dice, not secrets
    return chosen


def _part(text: str) -> tuple[int, int]:
    """Return K and N of `K/N`; raise ValueError for another text."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _noted(results: list[tuple[Pair, Result, Result]], pair: Pair, there: Result, back: Result) -> None:
    """Print and add the result of a pair."""
    results.append((pair, there, back))
    print(f"{pair}: {there.word}, back {back.word}", flush=True)
    for each in (there, back):
        if each.message:
            print(f"      {each.message}", flush=True)


def main() -> int:
    """Bring a node to each fleet that differs in one key and back, and print the results; return 1 at a dead
    end.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="pairs with this text; repeatable")
    parser.add_argument("--without", action="append", default=[], help="no pairs with this text; repeatable")
    parser.add_argument("--together", type=int, default=1, help="neighbours in one fleet")
    parser.add_argument("--seed", type=int, help="of a random order; without it, as in the schema")
    parser.add_argument("--part", type=_part, default=(1, 1), help="K/N: every Nth pair from the Kth on")
    stated = parser.parse_args()
    part, parts = stated.part
    began, results = time.monotonic(), list[tuple[Pair, Result, Result]]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-neighbours-")))
        folder.chmod(0o755)
        name = f"near-{os.getpid()}"
        stack.callback(lambda: drop_image(name) if name in saved_images() else None)
        fleet = bring_up(stack, name, folder, [SYSTEM], part - 1)
        road = Road(fleet, stack.enter_context(served(fleet.mirror.root)), name)
        road.begin()
        print(f"{time.monotonic() - began:.0f} s: the node is provisioned", flush=True)
        with suppress(KeyboardInterrupt):
            chosen = _chosen(road, stated)[part - 1 :: parts]
            _tried(road, chosen, stated.together, results)
    print("\n".join(table(results)))
    counts = Counter(each.word for _, *ways in results for each in ways)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    print(f"{time.monotonic() - began:.0f} s, {counts[DEAD_END]} dead ends")
    return 1 if counts[DEAD_END] else 0


if __name__ == "__main__":
    sys.exit(main())
