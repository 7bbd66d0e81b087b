"""Runs the steps of the GitHub Action and the GitLab component on clean nodes, as the forges' runners do.

    scripts/campaign forges [--forge github]...

A node of Debian 13 has what the steps use of GitHub's image (git, gh, Python with venv, OpenSSH, gpgv), and
runs each step as the user `runner`, with the runner's files and variables, and with values in place of
expressions. Another one has what GitLab's default image `python` has, and runs the job as root in one shell.
Both have a checkout of a fleet with one GPU node. The forges' APIs are played, over TLS; packages of Python
come from a server of this machine. Prints each step with its exit code and seconds; exit 1 if one is not as
expected.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from gpuprov_lab import Lab
from gpuprov_lab.mirror.serve import MirrorServer, served
from maintenance.release import image
from maintenance.release.wheelhouse import fill
from tests.campaign import _forges_api as api
from tests.campaign._forges_runner import Done, GitHub, GitLab, comments, forge_node
from tests.lab.command_line import gpuprov
from tests.lab.package_index import build_index, index_wheels
from tests.lab.provisioned_node import MACHINE, PROFILE

INSTALL, AGENT, VALIDATE = "Install gpuprov", "Take the key into an agent, not to the disk", "Validate"
LOCK, PLAN = "Compare the lock with the fleet and the repositories", "Plan"
COMMENT, REMOVE = "Comment, or change the comment that is there", "Remove the key from the agent"
CHECKS = (VALIDATE, LOCK)
GITHUB_TOOLS = "git gh gpgv openssh-client python3-venv"
GITLAB_TOOLS = "git curl python3-venv"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Site:
    """A lab with one GPU node, its locked fleet, and an index of packages with gpuprov's wheel."""

    def __init__(self, lab: Lab, folder: Path, index: MirrorServer, wheel: Path) -> None:
        self.lab, self.fleet, self.index, self.wheel = lab, folder, index, wheel
        self.bad = 0
        self.begun = time.monotonic()
        lab.up(1, gpu=MACHINE)
        fleet = yaml.safe_load(lab.fleet(PROFILE))
        fleet["ssh"] = {"user": "root"}  # the runner has an agent and a file of host keys
        self.write("fleet.yml", fleet)
        gpuprov(folder, "lock")

    def write(self, name: str, document: object) -> None:
        """Write a file into the fleet's folder."""
        (self.fleet / name).write_text(yaml.safe_dump(document, sort_keys=False))

    def saw(self, what: str, seen: object, *, fine: bool) -> None:
        """Print an observation with its verdict."""
        self.bad += not fine
        seconds = time.monotonic() - self.begun
        print(f"{'ok ' if fine else 'BAD'}  {seconds:5.0f} s  {what}: {seen}", flush=True)
        self.begun = time.monotonic()

    def job(self, what: str, steps: Iterator[Done], **codes: int | None) -> dict[str, Done]:
        """Run a job, whose steps must be those named, in this order, with these exit codes; return them."""
        print(f"--- {what}", flush=True)
        seen = {}
        for done in steps:
            seen[done.name] = done
            fine = done.code == codes.get(done.name, -1)
            self.saw(done.name, f"exit {done.code}" if fine else f"exit {done.code}\n{done.said}", fine=fine)
        self.saw("steps", len(seen), fine=list(seen) == list(codes))
        return seen


def github(site: Site) -> None:
    """Check a pull request without a key, comment the plan twice, and let a changed fleet fail."""
    (site.fleet / "files").mkdir(exist_ok=True)
    node = forge_node(site.lab, "github", GITHUB_TOOLS, site.fleet / "files")
    runner = GitHub(node, site.index)
    runner.prepare(site.fleet, COMMIT)
    workspace = node.root / "home/runner/work/fleet/fleet"
    secret = {"ssh_key": site.lab.identity_file.read_text(), "known_hosts": site.lab.known_hosts.read_text()}
    site.saw("runner", node.os, fine=True)
    site.job("no key", runner.job(), **dict.fromkeys((INSTALL, *CHECKS), 0))
    every = (INSTALL, AGENT, *CHECKS, PLAN, COMMENT, REMOVE)
    for what in ("plan", "plan again"):
        site.job(what, runner.job(plan="true", **secret), **dict.fromkeys(every, 0))
        judge_comments(site, comments(node))
        line = secret["ssh_key"].splitlines()[2]
        keys = node.run(f"grep -rlF {line} /home/runner /tmp || true").stdout.split()
        site.saw("files with the key", keys, fine=not keys)
    fleet = yaml.safe_load((workspace / "fleet.yml").read_text())
    [group] = fleet["groups"].values()
    group["settings"]["persistence"] = False
    (workspace / "fleet.yml").write_text(yaml.safe_dump(fleet))
    failing = {INSTALL: 0, AGENT: 0, VALIDATE: 3, REMOVE: 0}
    site.job("a fleet.yml that was changed without a lock", runner.job(plan="true", **secret), **failing)
    (workspace / "fleet.yml").write_text("groups: [")
    site.job("a fleet.yml that is no YAML", runner.job(), **{INSTALL: 0, VALIDATE: 2})


def judge_comments(site: Site, found: list[str]) -> None:
    """Check that there is one comment in addition to those of others, with a plan."""
    fine = len(found) == 1 and found[0].startswith(api.MARK) and "gpuprov plan" in found[0]
    site.saw("comment", found[0].splitlines()[1] if fine else found, fine=fine)


def gitlab(site: Site) -> None:
    """Check a merge request without a key, comment the plan twice, and let another wheel fail."""
    files = site.fleet / "files"
    files.mkdir(exist_ok=True)
    (files / site.wheel.name).write_bytes(site.wheel.read_bytes())
    node = forge_node(site.lab, "gitlab", GITLAB_TOOLS, files)
    sha256 = hashlib.sha256(site.wheel.read_bytes()).hexdigest()
    inputs = {"wheel": f"https://{api.FILES}/{site.wheel.name}", "sha256": sha256}
    runner = GitLab(node, site.index, inputs)
    runner.prepare(site.fleet, site.lab.identity_file.read_text(), site.lab.known_hosts.read_text())
    site.saw("runner", node.os, fine=True)
    name = "review"
    site.job("no key", iter([runner.job(plan=False)]), **{name: 0})
    for what in ("plan", "plan again"):
        site.job(what, iter([runner.job(plan=True)]), **{name: 0})
        judge_comments(site, comments(node))
    runner.inputs["sha256"] = "0" * 64
    site.job("a wheel with another hash", iter([runner.job(plan=True)]), **{name: 1})


FORGES: dict[str, Callable[[Site], None]] = {"github": github, "gitlab": gitlab}


def main() -> int:
    """Run the jobs of the forges; return 1 if something is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forge", action="append", choices=list(FORGES))
    stated = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuprov-forges-") as scratch, Lab("forges") as lab:
        served_at, fleet = Path(scratch, "served"), Path(scratch, "fleet")
        for folder in (served_at, fleet):
            folder.mkdir()
        wheel = build_index(served_at)
        wheels = Path(scratch, "wheels")
        wheels.mkdir()
        fill(wheels, wheel, image.PYTHON, "x86_64")
        index_wheels(wheels, served_at)
        with served(served_at) as index:
            site = Site(lab, fleet, index, wheel)
            for forge in stated.forge or FORGES:
                FORGES[forge](site)
    print(f"{site.bad} not as expected")
    return 1 if site.bad else 0


if __name__ == "__main__":
    sys.exit(main())
