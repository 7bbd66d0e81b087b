"""`action.yml` and `templates/review.yml`: their steps in order, with programs that record their calls."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gpuprov.apply.plan import NodePlan
from gpuprov.apply.proposal import Proposal
from gpuprov.cli.common.group import gpuprov
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.inventory.firstboot.node.first_boot import RELEASE_LOCK
from gpuprov.inventory.wheel import LARGEST, PIP_LIMITS, Wheel, install_lines
from gpuprov.model.lock import read_lock
from gpuprov.report.markdown import MARK, MOST, plan_markdown
from gpuprov.upgrade import forges
from tests import RECORDED_LOCK, ROOT
from tests.unit.programs import write_program

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
SPEC, COMPONENT = yaml.safe_load_all((ROOT / "templates/review.yml").read_text(encoding="utf-8"))
RECORDS = """\
printf '%s' "${0##*/}" >>"$CALLS"; printf ' %s' "$@" >>"$CALLS"; echo >>"$CALLS"
file=${*##*--markdown }
case "$*" in *--markdown*) echo '<!-- gpuprov plan -->' >"$file";; esac
"""
BODY = '"body": "<!-- gpuprov plan -->"'
SOMEBODY = f'{{"id": 3, {BODY}, "user": {{"login": "eve"}}, "author": {{"id": 2}}}}'
OWN = f'{{"id": 7, {BODY}, "user": {{"login": "github-actions[bot]"}}, "author": {{"id": 1}}}}'
EARLIER = {
    "none": ("[]", ""),
    "one": (f"[{OWN}]", "7"),
    "somebody's before": (f"[{SOMEBODY}, {OWN}]", "7"),
    "somebody's": (f"[{SOMEBODY}]", ""),
}
"""Comments that exist → id of the one to change."""


@dataclass
class Runner:
    """A runner of steps in one folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> list[str]:
        """Return the recorded calls of programs."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def program(self, name: str, more: str = "") -> None:
        """Replace a program by one that records its calls, and then does more."""
        write_program(self.folder / name, RECORDS + more)

    def run(self, step: str, **variables: str) -> int:
        """Run a step of a job in a shell; return its exit code."""
        known = {"CALLS": f"{self.folder}/calls", "HOME": str(self.folder), "RUNNER_TEMP": str(self.folder)}
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            **known,
            **self.environment,
            **variables,
        }
        done = subprocess.run(["sh", "-e", "-c", step], cwd=self.folder, env=environment, check=False)
        return done.returncode


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a runner in which the programs of the steps only record their calls."""
    found = Runner(tmp_path)
    for name in ("gpuprov", "gh", "curl", "ssh-add", "ssh-agent", "apt-get", "pip", "sha256sum"):
        found.program(name)
    return found


def steps(*, plan: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield command and variables of each step of the action, as the runner evaluates its expressions."""
    known = {
        "inputs.fleet": "site/fleet.yml",
        "inputs.plan": plan,
        "inputs.ssh-key": "KEY",
        "inputs.known-hosts": "gpu1 ssh-ed25519 AAAA",
        "inputs.token": "t",
        "inputs.author": ACTION["inputs"]["author"]["default"],
        "github.repository": "o/r",
        "github.event.pull_request.number": "5",
        "github.action_path": str(ROOT),
    }
    for step in ACTION["runs"]["steps"]:
        wanted = step.get("if", "true")
        if "run" not in step or (plan != "true" and "inputs.plan" in wanted):
            continue
        variables = {
            name: re.sub(r"\$\{\{ ([^ }]+) \}\}", lambda found: known[found[1]], str(value))
            for name, value in step.get("env", {}).items()
        }
        yield step["run"], variables


def test_the_action_checks_without_a_key(runner: Runner) -> None:
    for step, variables in list(steps(plan="false"))[1:]:
        assert runner.run(step, **variables) == 0
    assert runner.calls == ["gpuprov validate -F site/fleet.yml", "gpuprov lock -F site/fleet.yml --check"]


@pytest.mark.parametrize("earlier", EARLIER)
def test_the_action_comments_the_plan_once(runner: Runner, earlier: str) -> None:
    """Let jq select the comment, as gh does: only that of the token's user is changed."""
    document, found = EARLIER[earlier]
    select = f"case $* in *--jq*) for last; do :; done; jq -r \"$last\" <<'END'\n{document}\nEND\n;; esac"
    runner.program("gh", select)
    runner.program("gpuprov", "case $1 in plan) exit 3;; esac")
    runner.environment["GITHUB_ENV"] = str(runner.folder / "environment")
    (runner.folder / ".ssh").mkdir()
    for name in ("known_hosts", "known_hosts2"):
        (runner.folder / ".ssh" / name).write_text("gpu1 ssh-ed25519 BBBB\n")
    for step, variables in list(steps(plan="true"))[1:]:
        assert runner.run(step, **variables) == 0, step
    assert f"gpuprov plan --lock site/fleet.lock.yml --markdown {runner.folder}/plan.md" in runner.calls
    way = "PATCH repos/o/r/issues/comments/7" if found else "POST repos/o/r/issues/5/comments"
    assert runner.calls[-2] == f"gh api --silent --method {way} -F body=@{runner.folder}/plan.md"
    assert runner.calls[-1] == "ssh-add -q -D"
    assert (runner.folder / ".ssh/known_hosts2").read_text() == "gpu1 ssh-ed25519 AAAA\n"


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (3, 0), (1, 1), (4, 4)])
def test_a_plan_with_changes_is_no_failure(runner: Runner, code: int, ends: int) -> None:
    runner.program("gpuprov", f"exit {code}")
    [(step, variables)] = [each for each in steps(plan="true") if "gpuprov plan --lock" in each[0]]
    assert runner.run(step, **variables) == ends


def test_text_of_nodes_is_no_command_for_github(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    """Have GitHub's runner take commands again only after a mark that the text cannot have."""
    write_program(runner.folder / "gpuprov", "printf '  ::add-mask::gpu'; exit 3")
    [(step, variables)] = [each for each in steps(plan="true") if "gpuprov plan --lock" in each[0]]
    assert runner.run(step, **variables) == 0
    said = re.fullmatch(
        r"::stop-commands::([0-9a-f]{32})\n  ::add-mask::gpu\n::([0-9a-f]{32})::\n", capfd.readouterr().out
    )
    assert said is not None
    assert said[1] == said[2]


def test_no_input_becomes_a_part_of_a_command() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["name"]
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}"))
    for line in [*COMPONENT["gpuprov-review"]["before_script"], *COMPONENT["gpuprov-review"]["script"]]:
        assert "$[[" not in line


def test_the_action_installs_by_hash(runner: Runner) -> None:
    step, variables = next(steps(plan="false"))
    assert "--require-hashes" in step
    assert "--no-index" in step
    assert variables == {"SOURCES": str(ROOT)}
    for path in re.findall(r'"\$SOURCES/([\w./]+)"', step):
        assert (ROOT / path).exists()


def component(plan: str, part: str) -> tuple[list[str], dict[str, str]]:
    """Return the lines of a part of the job, and its variables."""
    stated = {
        "fleet": "fleet.yml",
        "plan": plan,
        "wheel": "https://m/gpuprov-1-py3-none-any.whl",
        "sha256": "0",
    }
    assert set(stated) < set(SPEC["spec"]["inputs"])
    job: dict[str, Any] = COMPONENT["gpuprov-review"]
    variables = {
        name: re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda found: stated[found[1]], value)
        for name, value in job["variables"].items()
    }
    return job[part], variables


@pytest.mark.parametrize("earlier", EARLIER)
def test_the_component_comments_the_plan_once(runner: Runner, earlier: str) -> None:
    document, found = EARLIER[earlier]
    first = f"*page=1) printf 'X-Next-Page: 2\\r\\n' >notes.headers; echo '[{SOMEBODY}]';;"
    second = f"*page=2) printf 'x-next-page: \\r\\n' >notes.headers; cat <<'END'\n{document}\nEND\n;;"
    answers = f"case $* in {first} {second} */user) echo '{{\"id\": 1}}';; esac"
    runner.program("curl", f"cat >>config; {answers}")
    runner.program("gpuprov", "case $1 in plan) exit 3;; esac")
    (runner.folder / ".ssh").mkdir()
    (runner.folder / ".ssh/known_hosts").write_text("of the runner's user")
    for name in ("key", "known"):
        (runner.folder / name).write_text("x")
    told = {
        "CI_API_V4_URL": "https://g",
        "CI_PROJECT_ID": "1",
        "CI_MERGE_REQUEST_IID": "5",
        "GPUPROV_TOKEN": "glpat-1",
    }
    files = {"GPUPROV_SSH_KEY": f"{runner.folder}/key", "GPUPROV_KNOWN_HOSTS": f"{runner.folder}/known"}
    lines, variables = component("true", "script")
    assert runner.run("\n".join(lines), **variables, **told, **files) == 0
    assert runner.calls[0] == "gpuprov validate -F fleet.yml"
    assert "gpuprov plan --lock fleet.lock.yml --markdown plan.md" in runner.calls
    notes = "https://g/projects/1/merge_requests/5/notes"
    change = f"--request PUT --data-urlencode body@plan.md {notes}/7" if found else f"body@plan.md {notes}"
    assert runner.calls[-2].endswith(change)
    assert runner.calls[-1] == "ssh-agent -k"
    assert not any("glpat-1" in call for call in runner.calls)  # other users see arguments
    assert set((runner.folder / "config").read_text().splitlines()) == {'header = "PRIVATE-TOKEN: glpat-1"'}
    assert (runner.folder / ".ssh/known_hosts").read_text() == "of the runner's user"
    assert (runner.folder / ".ssh/known_hosts2").read_text() == "x"


def test_the_component_checks_without_a_key(runner: Runner) -> None:
    lines, variables = component("false", "script")
    assert runner.run("\n".join(lines), **variables) == 0
    assert runner.calls == ["gpuprov validate -F fleet.yml", "gpuprov lock -F fleet.yml --check"]


def test_installations_have_the_limits_of_a_wheel() -> None:
    """Compare the lines with those of `install_lines`: an index that drips holds no job for hours."""
    texts = [step.get("run", "") for step in ACTION["runs"]["steps"]] + component("false", "before_script")[0]
    lines = [line for text in texts for line in text.splitlines()]
    [fetch] = [line for line in lines if line.startswith("curl ")]
    assert f"--max-filesize {LARGEST} " in fetch
    installs = [line for line in lines if "--require-hashes" in line]
    assert len(installs) == 2
    assert all(line.startswith(f"({PIP_LIMITS} ") and line.endswith(")") for line in installs)


def test_no_python_imports_from_the_checkout() -> None:
    """Look for lines that would run a `json.py` of the repository, also of a pull request."""
    texts = [(ROOT / name).read_text("utf-8") for name in ("action.yml", "templates/review.yml")]
    texts += [forges.GITHUB.template, forges.GITLAB.template, *install_lines(Wheel("x.whl", "0" * 64))]
    calls = [call for text in texts for call in re.findall(r"\bpython3? -.*", text)]
    assert len(calls) == 7
    assert all(re.match(r"python3? -I ", call) for call in calls)


def test_host_keys_of_earlier_jobs_are_not_kept() -> None:
    """Look for lines that are added: a variable may lack a key that was removed since the job before."""
    texts = [(ROOT / name).read_text("utf-8") for name in ("action.yml", "templates/review.yml")]
    texts += [forges.GITHUB.template, forges.GITLAB.template]
    assert all("known_hosts" in text for text in texts)
    assert not [text for text in texts if re.search(r">>.*known_hosts", text)]


def test_an_agent_keeps_no_key_for_later_jobs() -> None:
    """Look for the time limit of each key, and for its removal: on a machine of one's own an agent stays."""
    texts = [(ROOT / name).read_text("utf-8") for name in ("action.yml", "templates/review.yml")]
    texts += [forges.GITHUB.template, forges.GITLAB.template]
    for text in texts:
        assert re.findall(r"ssh-add -q -t (?:\d+|\$key) ", text)
        assert "ssh-add -q -D" in text or "trap 'ssh-agent -k >/dev/null' EXIT" in text


def test_the_component_installs_the_wheel_by_its_hash() -> None:
    lines, _ = component("false", "before_script")
    assert RELEASE_LOCK in lines[1]
    assert "sha256sum --check" in lines[1]
    assert "--require-hashes" in lines[1]


def test_both_call_verbs_and_options_that_exist() -> None:
    texts = [step.get("run", "") for step in ACTION["runs"]["steps"]] + COMPONENT["gpuprov-review"]["script"]
    calls = [each for text in texts for each in re.findall(r"^gpuprov (\w+)(.*?)(?: \|\| .*)?$", text, re.M)]
    assert len(calls) == 6
    for verb, words in calls:
        command = gpuprov.get_command(click.Context(gpuprov), verb)
        assert command is not None
        known = {option for param in command.params for option in param.opts}
        assert set(re.findall(r"(?<=\s)-{1,2}[a-zA-Z-]+", words)) <= known, (verb, words)


def test_text_of_nodes_stays_in_the_fence() -> None:
    lock = read_lock(RECORDED_LOCK)
    [name] = lock.hosts()
    hostile = "```\n</details>\n**@all** ````"
    drift = Difference("gpu.count", 8, hostile, "error", "docker", reboot=False)
    proposal = Proposal(
        [NodeDrift(name, "drifted", (drift,))], [NodePlan(name, ("docker",), False, (drift,), ())]
    )
    text = plan_markdown(lock, proposal)
    assert text.startswith(f"{MARK}\n**gpuprov plan**: 1 of 1 node, no packages, no reboots, about 1 minute")
    head, fence, rest = text.partition("\n```text\n")
    assert fence
    assert "@all" not in head
    assert "@all" in rest.partition("\n```\n")[0]
    assert rest.count("```") == 1


def test_a_plan_is_not_written_through_a_link_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprov.apply.proposal.propose", lambda *_: Proposal([], []))
    link, outside = tmp_path / "plan.md", tmp_path / "home" / ".bashrc"
    outside.parent.mkdir()
    outside.write_text("mine")
    link.symlink_to(outside)
    words = ["plan", "--lock", str(RECORDED_LOCK), "--markdown", str(link)]
    gpuprov.main(words, standalone_mode=False)
    assert outside.read_text() == "mine"
    assert link.read_text().startswith(MARK)


@pytest.mark.parametrize("sign", ["x", "`"])
def test_a_plan_fits_a_comment(sign: str) -> None:
    lock = read_lock(RECORDED_LOCK)
    [name] = lock.hosts()
    drift = Difference("gpu.count", 8, sign * 2 * MOST, "error", "docker", reboot=False)
    proposal = Proposal(
        [NodeDrift(name, "drifted", (drift,))], [NodePlan(name, ("docker",), False, (drift,), ())]
    )
    assert len(plan_markdown(lock, proposal)) < MOST + 500
