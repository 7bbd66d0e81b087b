"""Runs the suite over nodes: pytest in processes of its own, apart from whatever pytest the operator has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from gpuprov.documents import write_text
from gpuprov.errors import InvalidInput
from gpuprov.lock import Lock, write_lock
from gpuprov.report.junit import junit_xml
from gpuprov.verify.account import read_account
from gpuprov.verify.connection import Limits
from gpuprov.verify.selection import narrowed
from gpuprov.verify.verdict import NodeVerdict, Verdict

NODES_IN_A_PROCESS = 32  # each keeps one ssh open: bounds memory and file descriptors
START_S = 60.0  # pytest's own start and the connections, on a busy controller
NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONWARNINGS", "PYTHONOPTIMIZE")


def run(
    lock: Lock,
    hosts: Iterable[str],
    *,
    junit: Path | None = None,
    json: Path | None = None,
    forks: int = 64,
    local: bool = False,
    limits: Limits | None = None,
) -> Verdict:
    """Verify hosts of a lock.

    Args:
        hosts: names of the lock.
        junit: write the results here as JUnit XML.
        json: write the results here, schema gpuprov.verify/1.
        forks: nodes at a time.
        local: look at this machine instead of connecting to the one host.

    Raises:
        InvalidInput: a report cannot be written, or `local` with several hosts.
    """
    names = list(hosts)
    if local and len(names) != 1:
        raise InvalidInput(
            f"this machine cannot stand for {len(names)} nodes", do="name one node of the lock"
        )
    limits = limits or Limits()
    together = min(max(1, forks), NODES_IN_A_PROCESS)
    chunks = [names[start : start + together] for start in range(0, len(names), together)]
    processes = min(max(1, forks // together), os.cpu_count() or 1)
    checked_at = datetime.now(UTC).isoformat(timespec="seconds")
    with (
        tempfile.TemporaryDirectory(prefix="gpuprov-verify-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        verdicts = pool.map(
            lambda numbered: _verify(
                Path(folder) / str(numbered[0]), narrowed(lock, numbered[1]), local=local, limits=limits
            ),
            enumerate(chunks),
        )
        verdict = Verdict(checked_at, [node for chunk in verdicts for node in chunk])
    _write_reports(verdict, junit, json)
    return verdict


def _verify(folder: Path, lock: Lock, *, local: bool, limits: Limits) -> list[NodeVerdict]:
    """Run pytest over a lock's hosts, in a folder of its own."""
    folder.mkdir()
    account, log, lock_path = folder / "account.jsonl", folder / "pytest.log", folder / "fleet.lock.yml"
    write_lock(lock, lock_path)
    names = list(lock.hosts())
    command = [sys.executable, "-P", "-m", "pytest", *_isolated(folder), "--pyargs", "gpuprov.verify"]
    command += ["--lock", str(lock_path), "--account", str(account), *(["--local"] if local else [])]
    command += ["--command-timeout", str(limits.command_s), "--node-timeout", str(limits.node_s)]
    with log.open("wb") as output:
        ended = _wait(command, output.fileno(), folder, START_S + limits.node_s * len(names))
    lines = log.read_text(errors="replace").strip().splitlines()
    return read_account(account, names, cut_short=f"{ended}: {lines[-1] if lines else 'no word'}")


def _wait(command: list[str], output: int, folder: Path, timeout_s: float) -> str:
    """Run a command to its end or its time-out; returns how it ended, for a person."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pytest was ended after {timeout_s:g} s"
    return f"pytest ended with status {done.returncode}"


def _isolated(folder: Path) -> list[str]:
    """Options that keep out the ini files, caches and plugins of the operator's own pytest."""
    return [
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        "-p",
        "gpuprov.verify.plugin",
    ]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _write_reports(verdict: Verdict, junit: Path | None, json_path: Path | None) -> None:
    document = verdict.document()
    if junit:
        write_text(junit, junit_xml(document))
    if json_path:
        write_text(json_path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
