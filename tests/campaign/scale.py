"""Kills or freezes workers, the scheduler or the coordinator while they change a fleet.

    scripts/campaign scale [--rounds 40] [--controllers 2] [--nodes 4] [--seed 1] [--only worker,freeze]
    scripts/campaign scale --same --controllers 3 --nodes 12

In each round `apply --full` or an upgrade runs by workers on separate controllers. At a random moment one of
them is killed (SIGKILL) or frozen (SIGSTOP) and continued later, after its shard has moved. Further commands,
as an operator would run them, finish the work. Meanwhile every node is watched for Ansible programs, by the
address that they came from. Exit 1 if two controllers were on a node at once, a node was between two locks, a
lease was left, or a command ended without a line about unfinished work.

`--same` kills no process: each verb is run by one controller and by workers, and their documents are
compared.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from gpuprov.upgrade.header import ended
from gpuprov_lab import Lab, Node
from gpuprov_lab.engine import processes
from tests import is_defect
from tests.campaign._scale_same import compare
from tests.campaign._upgrade_site import Site, site
from tests.lab.command_line import start
from tests.lab.controllers import Controller, Crew, crew, state_own_keys
from tests.lab.upgrade_fleet import JOINED

VICTIMS = ("worker", "scheduler", "coordinator", "freeze")
VERBS = ("apply", "upgrade")
LASTING_S = {"apply": 35.0, "upgrade": 70.0}
"""Latest moment of a failure in seconds, which is the length of such a run; the earliest is at 2 s."""
FROZEN_S = (40.0, 120.0)
"""Range of seconds that a worker is frozen.

It counts as lost after 30 s, and another one may take over its nodes 60 s later; it continues before or after
that.
"""
CANARIES = ("none", "one_per_group")
SERIAL = ["100%"]
"""All nodes at once, so that each worker has a shard."""
BOUND_S = 60.0
"""Seconds in which a command must end after its scheduler is gone."""
LOOK_S = 0.1
OVER = "it was over by then"
AGAIN, AGAIN_S = 20, 10.0
"""Limit of repetitions of a command, and the pause in seconds.

The command is refused until the dead run's leases expire.
"""
ACCEPTED = ("--accept", "pins.hold", "--because", "the campaign let it go")


@dataclass
class Watch:
    """Controllers that work on nodes: pairs of addresses that were on a node at once."""

    nodes: list[Node]
    crossed: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every node repeatedly during the block."""
        over = threading.Event()

        def look() -> None:
            """Record who works on each node, and nodes with more than one, until the end."""
            while not over.wait(LOOK_S):
                for node in self.nodes:
                    there = at_work(node)
                    self.seen.update(there)
                    if len(there) > 1:
                        self.crossed.append(f"{node.name}: {' and '.join(sorted(there))}")

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def at_work(node: Node) -> set[str]:
    """Return the addresses from which Ansible's programs run on a node."""
    found = set()
    for process in processes(node.machine):
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            if b"AnsiballZ" not in (folder / "cmdline").read_bytes():
                continue
            for word in (folder / "environ").read_bytes().split(b"\0"):
                if word.startswith(b"SSH_CONNECTION="):
                    found.add(word.split(b"=")[1].split()[0].decode())
    return found


@dataclass
class Round:
    """One round: its verb, its victim and moment, then its errors."""

    verb: str
    victim: str
    after_s: float
    frozen_s: float
    canary: str
    wrong: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


def main() -> int:
    """Change a fleet by workers in rounds, kill or freeze one in each, and print them; return 1 if one is
    wrong.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--controllers", type=int, default=2)
    arguments.add_argument("--nodes", type=int, default=4)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", default=",".join(VICTIMS), help="who is struck")
    arguments.add_argument("--same", action="store_true", help="compare with one controller instead")
    chosen = arguments.parse_args()
    with site([(JOINED, chosen.nodes)]) as found, Lab(f"ctl-{os.getpid()}") as lab:
        state_own_keys(found.fleet.folder)
        controllers = lab.up(names=[f"ctl{number}" for number in range(1, chosen.controllers + 1)])
        with crew(found.fleet.folder, found.fleet.nodes, controllers) as made:
            dice = random.Random(chosen.seed)  # noqa: S311
            if chosen.same:
                return 1 if compare(found, made) else 0
            bad = rounds(found, made, chosen.rounds, chosen.only.split(","), dice)
    return 1 if bad else 0


def rounds(
    found: Site,
    made: Crew,
    times: int,
    victims: list[str],
    dice: random.Random,
    say: Callable[[str], None] = print,
) -> int:
    """Run and print rounds; return the number of bad ones."""
    done: list[Round] = []
    begun = time.monotonic()
    for number in range(1, times + 1):
        verb = VERBS[number % 2]
        this = Round(
            verb,
            victims[(number - 1) // 2 % len(victims)],
            dice.uniform(2, LASTING_S[verb]),
            dice.uniform(*FROZEN_S),
            dice.choice(CANARIES),
        )
        clock = time.monotonic()
        attempt(found, made, this, dice)
        done.append(this)
        verdict, lasted = "BAD" if this.wrong else "ok ", time.monotonic() - clock
        say(f"{verdict} round {number}: {this.verb}, {this.victim} after {this.after_s:.0f} s;")
        say(f"      {'; '.join(this.events)}; {lasted:.0f} s in all")
        for each in this.wrong:
            say(f"      {each}")
    bad = sum(bool(each.wrong) for each in done)
    for (verb, victim), count in sorted(Counter((each.verb, each.victim) for each in done).items()):
        alike = [each for each in done if (each.verb, each.victim) == (verb, victim)]
        struck = sum(OVER not in each.events for each in alike)
        say(f"{verb:<8}{victim:<12}{count:>3} rounds, {struck} struck it at work,"
            f" {sum(bool(each.wrong) for each in alike)} bad")  # fmt: skip
    say(f"{times} rounds in {(time.monotonic() - begun) / 60:.0f} minutes, {bad} bad")
    return bad


def attempt(found: Site, made: Crew, this: Round, dice: random.Random) -> None:
    """Run one round; afterwards all controllers run again."""
    watch, there = Watch(found.fleet.nodes), found.there
    for node in found.fleet.nodes:
        if dice.random() < 0.5:
            node.run("apt-mark unhold libcuda1", check=False)
    with watch.watching():
        process = start(made.folder, *words(found, this, made), program=made.program)
        time.sleep(this.after_s)
        late = strike(made, process, this, dice)
        code = finish(process, this)
        for _ in range(AGAIN):
            if not code:
                break
            heal(made)
            again = start(made.folder, *words(found, this, made, again=True), program=made.program)
            code = finish(again, this)
            time.sleep(AGAIN_S if code else 0)
        if late:
            late.join()
    if code:
        this.wrong.append(f"not done: the last command exits with {code}")
    if watch.crossed:
        this.wrong.append(f"two on a node: {Counter(watch.crossed).most_common(4)}")
    if this.verb == "upgrade" and not code:
        found.moved()
        assert found.here == there
    this.wrong += left_behind(found, made)
    heal(made)


def words(found: Site, this: Round, made: Crew, *, again: bool = False) -> tuple[str, ...]:
    """Return the command of a round, or the one that continues after an interruption."""
    by = ("--workers", made.address, "--yes")
    if this.verb == "apply":
        return ("apply", "--full", "--reboot", *by)
    if again and unfinished(found):
        return ("upgrade", "--resume", *by)
    to = found.fleet.lock(found.there, canary=this.canary, serial=SERIAL)
    return ("upgrade", "--to", to, *ACCEPTED, *by)


def unfinished(found: Site) -> bool:
    """Return whether the latest upgrade has not ended."""
    result = found.entries()
    return bool(result) and not ended(result)


def strike(made: Crew, process: Popen[str], this: Round, dice: random.Random) -> threading.Thread | None:
    """Kill or freeze the victim; return the thread that continues a frozen one, None for a killed one."""
    worker = dice.choice(made.workers)
    if process.poll() is not None:
        this.events.append(OVER)
    if this.victim == "coordinator":
        process.kill()
    elif this.victim == "scheduler":
        made.scheduler.end()
    elif this.victim == "worker":
        worker.end()
    else:
        return frozen(worker, this.frozen_s, this)
    return None


def frozen(worker: Controller, seconds: float, this: Round) -> threading.Thread:
    """Freeze a worker, and continue it later; its Ansible runs on meanwhile."""
    assert worker.process
    pid = worker.process.pid
    os.kill(pid, signal.SIGSTOP)
    this.events.append(f"{worker.name} frozen for {seconds:.0f} s")

    def thaw() -> None:
        """Let the process go on after the time, and wait 10 seconds."""
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        time.sleep(10)

    thread = threading.Thread(target=thaw)
    thread.start()
    return thread


def finish(process: Popen[str], this: Round) -> int:
    """Return the exit code; record an error for a traceback, or for a failure without a message."""
    begun = time.monotonic()
    out, err = process.communicate()
    seconds, code = time.monotonic() - begun, process.returncode
    this.events.append(f"exit {code} after {seconds:.0f} s")
    if is_defect(out + err):
        this.wrong.append(f"a traceback: {(out + err)[-2000:]}")
    if code > 0:
        said = (line for line in err.strip().splitlines() if not line.startswith("logs of this run"))
        [*_, last] = ["", *said]
        this.events.append(f"it said: {last[:160]}")
        if not last:
            this.wrong.append("it ended without a word")
    if this.victim == "scheduler" and code == 4 and seconds > BOUND_S:
        this.wrong.append(f"it noticed after {seconds:.0f} s only")
    return code


def heal(made: Crew) -> None:
    """Restart the scheduler and a worker on each controller, as far as they no longer run, and
    wait for all.
    """
    if made.scheduler.process and made.scheduler.process.poll() is None:
        gone = [worker for worker in made.workers if worker.process and worker.process.poll() is not None]
        for worker in gone:
            (worker.home / "log").write_text("")
            worker.serve(made.found)
        while not made.all_there():
            time.sleep(0.5)
        return
    made.end()
    made.begin()


def left_behind(found: Site, made: Crew) -> list[str]:
    """Return errors of drift and verify under the lock that nodes should have, and remaining leases."""
    wrong = []
    lock = f"{found.here}.lock.yml"
    for verb in ("drift", "verify"):
        done = made.gpuprov(verb, "--lock", lock, code=None)
        if done.returncode:
            wrong.append(f"{verb}: {(done.stdout + done.stderr)[-1500:]}")
    for node in found.fleet.nodes:
        if node.run("! test -e /var/lib/gpuprov/lease.json", check=False).returncode:
            wrong.append(f"a lease is left on {node.name}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
