"""Runner of the suite: pytest in separate processes, isolated from the operator's own pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.files.runs import now
from gpuprov.model.documents import write_text
from gpuprov.model.lock import Lock, write_lock
from gpuprov.model.selection import for_worker, narrowed
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch, Work
from gpuprov.ssh.route import with_absolute_paths
from gpuprov.ssh.wording import NO_SUCH_NAME
from gpuprov.untrusted import json_text
from gpuprov.verify.connection import TimeLimits
from gpuprov.verify.event_log import read_events
from gpuprov.verify.junit import junit_xml
from gpuprov.verify.restated import restated
from gpuprov.verify.verdict import NodeVerdict, Verdict
from gpuprov.verify.wanted import wanted

NODES_IN_A_PROCESS = 32  # each has one ssh process: bounds memory and file descriptors
START_S = 60.0  # pytest's own start and the connections, on a busy controller
NOT_LOADED = (
    *("doctest", "unittest", "pastebin", "stepwise", "setuponly", "setupplan", "subtests"),
    *("unraisableexception", "threadexception", "faulthandler", "logging", "recwarn", "warnings"),
)
"""Plugins of pytest that the suite does not use: they take a tenth of the processor time."""
NOT_INHERITED = (
    *("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONWARNINGS", "PYTHONOPTIMIZE"),
    *("CI", "BUILD_NUMBER"),
)
"""Variables that would change pytest or Python, and are removed from the environment.

With `CI` or `BUILD_NUMBER` pytest explains a failed comparison by a complete diff, whose time grows with the
cube of a node's list.
"""


def run_verification(
    lock: Lock,
    hosts: Iterable[str],
    *,
    junit: Path | None = None,
    json: Path | None = None,
    dispatch: Dispatch = DIRECT,
    local: bool = False,
    image: bool = False,
    limits: TimeLimits | None = None,
) -> Verdict:
    """Verify hosts of a lock, and write the reports; nodes are returned in the order of the lock.

    Args:
        hosts: names of the lock.
        junit: file for the results as JUnit XML; None: not written.
        json: file for the results, schema gpuprov.verify/1; None: not written.
        dispatch: how the nodes are reached, directly or by workers, and how many at a time.
        local: verify this machine instead of connecting to the one host.
        image: leave out checks that a tree that was never booted cannot show.
        limits: time limits; by default those of `TimeLimits`.

    Raises:
        InvalidInput: a report cannot be written, or `local` with several hosts.
        CrewLost: the workers cannot be reached.
    """
    names = list(hosts)
    if local and len(names) != 1:
        raise InvalidInput(f"this machine is one node, not {len(names)}", do="name one node of the lock")
    how = _How(local, image, dispatch.password, limits or TimeLimits())
    checked_at = now()

    def part(some: Collection[str]) -> Work[None, NodeVerdict]:
        return partial(_verify_all, for_worker(lock, some), how, dispatch.forks)

    found = dict(dispatch.spread(part, dict.fromkeys(names), answer=NodeVerdict))
    if dispatch.crew is not None:
        found = _restated(lock, found, image=image)
    judged = [_judged(name, found[name]) for name in lock.hosts() if name in found]
    verdict = Verdict(checked_at, [_placed(node, lock) for node in judged])
    _write_reports(verdict, junit, json)
    return verdict


def _restated(
    lock: Lock, found: Mapping[str, NodeVerdict | GpuprovError], *, image: bool
) -> dict[str, NodeVerdict | GpuprovError]:
    """Return the verdicts of workers as `restated` does; one that contradicts the lock becomes an error."""
    stated = {name: wanted(group, image=image) for name, group in lock.groups.items()}
    group_of = {host: name for name, group in lock.groups.items() for host in group.hosts}
    return {
        name: answer
        if isinstance(answer, GpuprovError)
        else contained(name, partial(restated, answer, stated[group_of[name]]))
        for name, answer in found.items()
    }


def _judged(name: str, answer: NodeVerdict | GpuprovError) -> NodeVerdict:
    """Return a node's verdict; an error in its place becomes a verdict with status `error`."""
    return NodeVerdict(name, "error", message=str(answer)) if isinstance(answer, GpuprovError) else answer


def _verify_all(lock: Lock, how: _How, forks: int, nodes: Mapping[str, None]) -> dict[str, NodeVerdict]:
    """Verify nodes of a lock in pytest processes, with up to `forks` nodes at a time.

    A process has at most `NODES_IN_A_PROCESS` nodes; there are at most as many processes as processors.
    """
    names = list(nodes)
    together = min(max(1, forks), NODES_IN_A_PROCESS)
    chunks = [narrowed(lock, names[at : at + together]) for at in range(0, len(names), together)]
    processes = min(max(1, forks // together), os.cpu_count() or 1)
    with ThreadPoolExecutor(processes) as pool:
        verdicts = pool.map(lambda chunk: _verify(chunk, how), chunks)
        return {node.name: node for chunk in verdicts for node in chunk}


def _placed(node: NodeVerdict, lock: Lock) -> NodeVerdict:
    """Add file and line of the node's address or connection to the message of an unreachable node.

    Other nodes, and those without a known place, are returned unchanged.
    """
    place = lock.place_of(node.name, address=NO_SUCH_NAME in node.message)
    lost = node.status == "unreachable" and place
    return replace(node, message=f"{node.message}; see {place}") if lost else node


@dataclass(frozen=True)
class _How:
    """Options of all pytest processes of a verification."""

    local: bool
    image: bool
    password: str | None
    limits: TimeLimits

    def options(self) -> list[str]:
        """Return the options for pytest's command line; the password is not among them."""
        limits = self.limits
        result = ["--command-timeout", str(limits.command_s), "--node-timeout", str(limits.node_s)]
        return [*result, *["--local"] * self.local, *["--image"] * self.image]


def _verify(lock: Lock, how: _How) -> list[NodeVerdict]:
    """Run pytest over a lock's hosts, in a temporary folder with a time limit; return the verdict of each."""
    names = list(lock.hosts())
    with tempfile.TemporaryDirectory(prefix="gpuprov-verify-") as name:
        folder = Path(name)
        events, lock_path = folder / "events.jsonl", folder / "fleet.lock.yml"
        write_lock(with_absolute_paths(lock), lock_path)
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            *_isolated(folder),
            "--pyargs",
            "gpuprov.verify.suite",
        ]
        command += ["--lock", str(lock_path), "--account", str(events), *how.options()]
        ended = _wait(command, folder, START_S + how.limits.node_s * len(names), how.password)
        return read_events(events, names, cut_short=ended)


def _wait(command: list[str], folder: Path, timeout_s: float, password: str | None) -> str:
    """Run pytest until it ends or times out; return its status and last line as a message.

    Args:
        password: sudo's password, which pytest reads from a pipe; None: the pipe is empty.
    """
    reader, writer = os.pipe()
    os.write(writer, f"{password}\n".encode() if password is not None else b"")
    os.close(writer)
    try:
        done = subprocess.run(
            [*command, "--sudo-password-fd", str(reader)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(),
            pass_fds=[reader],
            timeout=timeout_s,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pytest was ended after {timeout_s:g} s"
    finally:
        os.close(reader)
    *_, last = ["no output", *done.stdout.strip().splitlines()]
    return f"pytest ended with status {done.returncode}: {last}"


def _isolated(folder: Path) -> list[str]:
    """Return options that exclude the ini files, caches and plugins of the operator's own pytest.

    pytest's own folder of temporary files has a predictable name, which any user can create first.
    """
    ours = [
        "--basetemp",
        str(folder / "tmp"),
        *(word for name in ("cacheprovider", *NOT_LOADED) for word in ("-p", f"no:{name}")),
        "-p",
        "gpuprov.verify.plugin",
        "-q",
        "--tb=no",
        "--no-summary",
    ]
    return ["-c", os.devnull, "--rootdir", str(folder), *ours]


def _environment() -> dict[str, str]:
    """Return the environment for pytest: this process's, without `NOT_INHERITED` and automatic plugins."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _write_reports(verdict: Verdict, junit: Path | None, json_path: Path | None) -> None:
    """Write the verdict to the files that are not None.

    Raises:
        InvalidInput: a file cannot be written.
    """
    document = verdict.document()
    if junit:
        write_text(junit, junit_xml(document))
    if json_path:
        write_text(json_path, json_text(document) + "\n")
