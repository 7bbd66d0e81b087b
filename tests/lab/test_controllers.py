"""Two controllers on the same real nodes: one at a time, after kills and during long steps too."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.exclusive import converge_exclusively
from gpuprov.apply.lease_manager import LeaseManager, Terms
from gpuprov.apply.proposal import propose
from gpuprov.errors import Exit
from gpuprov.files.runs import new_run
from gpuprov.model.lock import read_lock
from gpuprov_lab import Node
from gpuprov_lab.host import execute
from tests.campaign._upgrade_site import Site, site
from tests.campaign.controllers import rounds
from tests.lab.command_line import gpuprov, start
from tests.lab.conftest import fresh_lab_name
from tests.lab.upgrade_fleet import JOINED

UNHOLD, HELD = "apt-mark unhold libcuda1", "apt-mark showhold | grep -cx libcuda1"
LEASE = "/var/lib/gpuprov/lease.json"
LEASE_S = 5
OTHER = (
    'printf \'{"run":"20260131-142501-apply-9f3a","holder":"anna@ctl1","seconds":600,"since":%s,"until":%s}\''
    f" $(($(date +%s)-100)) $(($(date +%s)+500)) >{LEASE}"
)
SAID = "leased by anna@ctl1, run 20260131-142501-apply-9f3a, since "


@pytest.fixture(scope="module")
def two() -> Iterator[Site]:
    """Provide a site of two nodes for two controllers."""
    with site([(JOINED, 2)], fresh_lab_name()) as found:
        yield found


def holds(node: Node) -> bool:
    """Return whether apt holds libcuda1 on a node."""
    return node.run(HELD, check=False).stdout.strip() == "1"


def lease(node: Node) -> dict[str, Any]:
    """Return the record of a node's lease; empty without one."""
    result = node.run(f"cat {LEASE}", check=False).stdout
    return json.loads(result) if result else {}


def begun(two: Site, *words: str) -> Popen[str]:
    """Start an apply; return when it has its leases and its Ansible runs."""
    process = start(two.fleet.folder, *words)
    runs = two.fleet.folder / "state/gpuprov/runs"
    known = set(runs.glob("*-apply-*/site-events.jsonl"))
    while not set(runs.glob("*-apply-*/site-events.jsonl")) - known:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    return process


def test_a_node_that_somebody_else_has_is_left_alone_and_the_other_is_mended(two: Site) -> None:
    taken, free = two.fleet.nodes
    for node in two.fleet.nodes:
        node.run(UNHOLD)
    taken.run(f"mkdir -p /var/lib/gpuprov; {OTHER}")
    done = two.fleet.gpuprov("apply", "--yes")
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"{taken.name} left alone: {SAID}" in done.stderr
    assert f"{taken.name}  changed=0  REFUSED  {SAID}" in done.stdout
    assert (holds(taken), holds(free)) == (False, True)
    assert (lease(taken)["holder"], lease(free)) == ("anna@ctl1", {})
    for looking in ("plan", "drift"):
        assert two.fleet.gpuprov(looking).returncode == 3
    assert two.fleet.gpuprov("verify").returncode == 1
    assert two.fleet.gpuprov("apply", "--check", "--yes").returncode == 0
    taken.run(f"rm {LEASE}")


@pytest.mark.slow
def test_an_interrupted_apply_gives_its_leases_back(two: Site) -> None:
    process = begun(two, "apply", "--full", "--yes")
    assert all(lease(node)["run"].split("-")[2] == "apply" for node in two.fleet.nodes)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, out + err
    assert [lease(node) for node in two.fleet.nodes] == [{}, {}]


@pytest.mark.slow
def test_what_a_killed_apply_left_waits_for_its_ansible_and_for_no_clock(two: Site, tmp_path: Path) -> None:
    """Let the killed apply's controller continue after its Ansible has ended; refuse another controller."""
    process = begun(two, "apply", "--full", "--yes")
    process.kill()
    process.communicate()
    for node in two.fleet.nodes:
        node.run(UNHOLD)
    lock = (two.fleet.folder / "fleet.lock.yml").read_text()
    (tmp_path / "fleet.lock.yml").write_text(lock)
    codes = []
    while not codes or (codes[-1] == 5 and len(codes) < 60):
        codes.append(two.fleet.gpuprov("apply", "--full", "--yes").returncode)
        if len(codes) == 1:
            elsewhere = gpuprov(tmp_path, "apply", "--full", "--yes", code=5)
            assert "leased by " in elsewhere.stderr
    assert (codes[0], codes[-1]) == (5, 0), codes
    assert all(map(holds, two.fleet.nodes))
    assert [lease(node) for node in two.fleet.nodes] == [{}, {}]


@pytest.mark.slow
def test_leases_outlast_long_steps_and_a_lost_one_stops_its_node_alone(two: Site) -> None:
    """Run longer than a lease lasts, while another controller takes one node's lease after its first role."""
    taken, ours = two.fleet.nodes
    lock = read_lock(two.fleet.folder / "fleet.lock.yml")
    events: list[dict[str, Any]] = []

    def listen(event: dict[str, Any]) -> None:
        """Record the event; at the first of the role repositories on one node, replace its lease."""
        if not lost and event.get("role") == "repositories" and event.get("host") == taken.name:
            taken.run(OTHER)
            lost.append(time.monotonic())
        events.append(event)

    lost: list[float] = []
    proposal = propose(lock, [taken.name, ours.name], Options(), full=True)
    run = RunContext(lock, new_run("apply"), listen=listen)
    begun = time.monotonic()
    with LeaseManager([lock], run.folder, terms=Terms(seconds=LEASE_S)) as leases:
        result = converge_exclusively(replace(run, leases=leases), leases, proposal)
        lasted, last = time.monotonic() - begun, lease(ours)
    assert lost
    assert lasted > 2 * LEASE_S, "no test of long steps"
    assert result.outcomes[ours.name].ok, result.outcomes[ours.name].failed
    assert last["until"] - last["since"] > lasted / 2, "never renewed"
    assert SAID in result.outcomes[taken.name].failed[0]["msg"]
    roles = {
        name: {each.get("role") for each in events if each.get("host") == name} for name in result.outcomes
    }
    assert "package_pins" in roles[ours.name] - roles[taken.name]
    assert (lease(taken)["holder"], lease(ours)) == ("anna@ctl1", {})
    taken.run(f"rm {LEASE}")


@pytest.mark.slow
def test_a_node_that_vanishes_in_the_middle_is_given_up_and_the_others_go_on(two: Site) -> None:
    gone, other = two.fleet.nodes
    process, link = begun(two, "apply", "--full", "--yes", "--no-verify"), gone.link.veth
    newest = max((two.fleet.folder / "state/gpuprov/runs").glob("*-apply-*"))
    while f'"host": "{gone.name}"' not in (newest / "site-events.jsonl").read_text():
        time.sleep(0.1)
    execute(["ip", "link", "set", link, "down"])
    try:
        said, warned = process.communicate(timeout=300)
    finally:
        execute(["ip", "link", "set", link, "up"])
    assert process.returncode == Exit.UNREACHABLE, said + warned
    [line] = [line for line in said.splitlines() if line.startswith(gone.name)]
    assert "FAILED" in line
    assert "Connection" in line
    assert any(line.startswith(other.name) and "FAILED" not in line for line in said.splitlines()), said
    gone.await_ssh()
    assert lease(gone)  # could not be released; it expires
    gone.run(f"rm {LEASE}")


@pytest.mark.slow
def test_apply_against_upgrade_leaves_no_node_between_two_locks(two: Site) -> None:
    """Run two rounds of `scripts/campaign controllers`."""
    result: list[str] = []
    assert rounds(two, 2, random.Random(7), result.append) == 0, "\n".join(result)  # noqa: S311 - dice
