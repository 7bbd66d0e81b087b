"""Scripts for Slurm and node-problem-detector: they run with a shell, against an imitated scontrol."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov.health.output import line
from tests import ROOT

FILES = ROOT / "gpuprov/health/node"
BOOT = "6f1d3a52-7c1e-4f0e-9a55-0123456789ab"
NOW = 5000
# Prints the node as scontrol does, and writes updates to a file.
SCONTROL = """\
#!/bin/sh
[ ! -e FOLDER/down ] || { echo "slurm_load_node error: Unable to contact slurm controller" >&2; exit 1; }
case $1 in
show)
    printf 'NodeName=%s Arch=x86_64\\n' "$3"
    printf '   State=%s ThreadsPerCore=1\\n' "$(cat FOLDER/state)"
    [ ! -s FOLDER/comment ] || printf '   Comment=%s\\n' "$(cat FOLDER/comment)"
    [ ! -s FOLDER/reason ] || printf '   Reason=%s [root@2026-11-26T10:00:00]\\n' "$(cat FOLDER/reason)" ;;
update) shift; printf '%s\\n' "$@" >>FOLDER/updates ;;
esac
"""


@dataclass
class Slurm:
    """A node of an imitated Slurm, with a verdict file."""

    folder: Path

    def verdict(
        self, word: str, rule: str = "-", text: str = "", *, age: int = 10, lift: int = NOW - 1
    ) -> None:
        """Write a verdict as the program writes it."""
        document = {"verdict": word, "boot_id": BOOT, "uptime_s": NOW - age, "valid_s": 150, "lift_s": lift}
        (self.folder / "health").write_text(
            line({**document, "rule": "" if rule == "-" else rule, "text": text})
        )

    def node(self, state: str, reason: str = "", comment: str = "State=IDLE") -> None:
        """Set the node's state, reason and comment; the comment is not gpuprov's unless stated."""
        for name, text in {"state": state, "reason": reason, "comment": comment}.items():
            (self.folder / name).write_text(text)

    def run(self, name: str, *words: str) -> tuple[int, str]:
        """Run a script under a name; return its exit code and output."""
        source = FILES / ("slurm" if name.startswith("slurm") else name)
        text = source.read_text().replace("/run/gpuprov", str(self.folder))
        text = text.replace("/proc/uptime", str(self.folder / "uptime"))
        text = text.replace("/proc/sys/kernel/random/boot_id", str(self.folder / "boot_id"))
        text = text.replace("PATH=/usr/sbin", f"PATH={self.folder}/bin:/usr/sbin")
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        done = subprocess.run(
            [str(path), *words],
            env={"SLURMD_NODENAME": "gpu1"},
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def updates(self) -> list[str]:
        """Words of the updates, without the node's name; they are forgotten."""
        path = self.folder / "updates"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [each for each in lines if not each.startswith("NodeName=gpu1")]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    """Return a fake node of Slurm in the state IDLE; scontrol and systemctl are shell scripts."""
    (tmp_path / "uptime").write_text(f"{NOW}.25 1.0\n")
    (tmp_path / "boot_id").write_text(f"{BOOT}\n")
    (tmp_path / "bin").mkdir()
    for name, text in {"scontrol": SCONTROL, "systemctl": '#!/bin/sh\necho "$@"\n'}.items():
        (tmp_path / "bin" / name).write_text(text.replace("FOLDER", str(tmp_path)))
        (tmp_path / "bin" / name).chmod(0o755)
    found = Slurm(tmp_path)
    found.node("IDLE")
    return found


OURS = "gpuprov:health: isolate driver.smi: nvidia-smi does not answer in time"


@pytest.mark.parametrize("word", ["isolate", "reset"])
def test_a_fault_drains_with_its_class_rule_and_text(slurm: Slurm, word: str) -> None:
    slurm.verdict(word, "driver.smi", "nvidia-smi does not answer in time")
    assert slurm.run("slurm-health")[0] == 0
    assert slurm.updates == [
        "State=DRAIN",
        f"Reason=gpuprov:health: {word} driver.smi: nvidia-smi does not answer in time",
    ]


def test_a_drain_of_ours_is_not_repeated(slurm: Slurm) -> None:
    slurm.verdict("isolate", "driver.smi", "another text")
    slurm.node("IDLE+DRAIN", OURS)
    assert slurm.run("slurm-health") == (0, "")
    assert slurm.updates == []


def test_a_drain_of_ours_gets_the_reason_of_another_rule(slurm: Slurm) -> None:
    slurm.verdict("reset", "errors.xid", "Xid 119")
    slurm.node("MIXED+DRAIN", OURS)
    slurm.run("slurm-health")
    assert slurm.updates == ["State=DRAIN", "Reason=gpuprov:health: reset errors.xid: Xid 119"]


@pytest.mark.parametrize("reason", ["broken fan", "x gpuprov:health: isolate", "gpuprov:upgrade-17", ""])
@pytest.mark.parametrize("word", ["isolate", "healthy", "watch", "unknown"])
def test_another_drain_is_never_changed(slurm: Slurm, reason: str, word: str) -> None:
    slurm.verdict(word, "driver.smi", "text")
    slurm.node("IDLE+DRAIN", reason)
    slurm.run("slurm-health")
    assert slurm.updates == []


def test_a_drain_of_ours_is_lifted_when_the_fault_has_been_gone_long_enough(slurm: Slurm) -> None:
    slurm.node("IDLE+DRAIN", OURS)
    slurm.verdict("healthy", lift=NOW + 60)
    code, said = slurm.run("slurm-health")
    assert (code, slurm.updates) == (0, [])
    assert "lifted in 60 s" in said
    slurm.verdict("healthy", lift=NOW)
    slurm.run("slurm-health")
    assert slurm.updates == ["State=UNDRAIN"]


def test_a_fault_to_watch_is_the_nodes_comment_until_it_is_gone(slurm: Slurm) -> None:
    slurm.node("IDLE", comment="")
    slurm.verdict("healthy")
    slurm.run("slurm-health")
    assert slurm.updates == []
    slurm.verdict("watch", "speed.power_limit", "GPU 3 has a limit of 350 W")
    slurm.run("slurm-health")
    ours = "gpuprov:health: watch speed.power_limit: GPU 3 has a limit of 350 W"
    assert slurm.updates == [f"Comment={ours}"]
    slurm.node("IDLE", comment=ours)
    slurm.verdict("watch", "speed.power_limit", "GPU 3 has a limit of 351 W")
    slurm.run("slurm-health")
    assert slurm.updates == []
    slurm.verdict("watch", "errors.ecc_off", "GPU 2 has ECC off")
    slurm.run("slurm-health")
    assert slurm.updates == ["Comment=gpuprov:health: watch errors.ecc_off: GPU 2 has ECC off"]
    slurm.verdict("unknown", text="text")
    slurm.run("slurm-health")
    assert slurm.updates == []
    slurm.verdict("isolate", "driver.smi", "no answer")
    slurm.run("slurm-health")
    assert slurm.updates == [
        "Comment=",
        "State=DRAIN",
        "Reason=gpuprov:health: isolate driver.smi: no answer",
    ]
    slurm.verdict("healthy")
    slurm.run("slurm-health")
    assert slurm.updates == ["Comment="]


@pytest.mark.parametrize("word", ["watch", "healthy"])
def test_a_comment_of_an_administrator_stays(slurm: Slurm, word: str) -> None:
    slurm.node("IDLE", comment="fan ordered; gpuprov:health: watch")
    slurm.verdict(word, "errors.ecc_off", "text")
    assert slurm.run("slurm-health") == (0, "")
    assert slurm.updates == []


def test_an_old_reason_of_a_node_in_use_is_no_drain(slurm: Slurm) -> None:
    slurm.node("IDLE", OURS)
    slurm.verdict("healthy")
    assert slurm.run("slurm-health") == (0, "")
    assert slurm.updates == []


@pytest.mark.parametrize("state", ["IDLE", "IDLE+DRAIN"])
def test_an_unknown_or_old_verdict_changes_nothing(slurm: Slurm, state: str) -> None:
    slurm.node(state, OURS if "DRAIN" in state else "")
    slurm.verdict("unknown", text="kernel_log: no log")
    assert "unknown" in slurm.run("slurm-health")[1]
    for word in ("isolate", "healthy"):
        slurm.verdict(word, "driver.smi", age=151)
        assert "151 s old" in slurm.run("slurm-health")[1]
    slurm.verdict("isolate", "driver.smi")
    (slurm.folder / "boot_id").write_text("another\n")
    slurm.run("slurm-health")
    for text in ("", "isolate\n", f"isolate {BOOT} x 150 1 driver.smi\n", f"isolate {BOOT} 1 150\n"):
        (slurm.folder / "health").write_text(text)
        assert slurm.run("slurm-health")[0] == 0
    (slurm.folder / "health").unlink()
    slurm.run("slurm-health")
    assert slurm.updates == []


def test_without_the_controller_nothing_is_decided(slurm: Slurm) -> None:
    slurm.verdict("isolate", "driver.smi")
    (slurm.folder / "down").touch()
    code, said = slurm.run("slurm-health")
    assert (code, slurm.updates) == (1, [])
    assert "the drain stays as it is" in said
    (slurm.folder / "down").unlink()
    slurm.run("slurm-health")
    assert slurm.updates[0] == "State=DRAIN"


@pytest.mark.parametrize(
    ("word", "code"), [("isolate", 1), ("reset", 1), ("watch", 0), ("healthy", 0), ("unknown", 0)]
)
def test_the_prolog_refuses_jobs_by_the_verdict_alone(slurm: Slurm, word: str, code: int) -> None:
    slurm.verdict(word, "driver.smi", "text")
    assert slurm.run("slurm-prolog")[0] == code
    assert slurm.updates == []


def test_a_refusal_names_its_reason_also_where_the_mark_cannot_be_written(slurm: Slurm) -> None:
    (slurm.folder / "slurm-refused").mkdir()
    slurm.verdict("isolate", "driver.smi", "broken")
    code, said = slurm.run("slurm-prolog")
    assert code == 1
    assert "gpuprov-health: no job starts here: isolate driver.smi: broken\n" in said


def test_a_refusal_of_the_prolog_gets_our_reason(slurm: Slurm) -> None:
    slurm.verdict("isolate", "driver.smi", "text")
    slurm.run("slurm-prolog")
    slurm.node("IDLE+DRAIN", "Prolog error")
    slurm.run("slurm-health")
    assert slurm.updates == ["State=DRAIN", "Reason=gpuprov:health: isolate driver.smi: text"]
    slurm.run("slurm-health")
    assert slurm.updates == []  # the mark is gone: the next `Prolog error` is another program's


def test_a_refusal_of_a_node_that_was_resumed_by_hand_is_forgotten(slurm: Slurm) -> None:
    slurm.verdict("isolate", "driver.smi", "text")
    slurm.run("slurm-prolog")
    slurm.verdict("healthy")
    slurm.node("IDLE")
    slurm.run("slurm-health")
    slurm.verdict("isolate", "driver.smi", "text")
    slurm.node("IDLE+DRAIN", "Prolog error")
    slurm.run("slurm-health")
    assert slurm.updates == [], "a drain after the site's own prolog"


def test_the_epilog_starts_a_run(slurm: Slurm) -> None:
    assert slurm.run("slurm-epilog") == (0, "start --no-block gpuprov-health.service\n")


def test_a_text_of_a_machine_is_one_argument(slurm: Slurm) -> None:
    slurm.verdict("isolate", "driver.smi", "a'; touch /tmp/x; $(touch y) `z` \\ State=RESUME " + "x" * 300)
    slurm.run("slurm-health")
    [state, reason] = slurm.updates
    assert state == "State=DRAIN"
    assert reason.startswith(
        "Reason=gpuprov:health: isolate driver.smi: a'; touch /tmp/x; $(touch y) `z` \\ State"
    )
    assert len(reason) <= 207


@pytest.mark.parametrize("words", [("npd-health", "isolate"), ("slurm-health",)])
def test_the_name_of_a_program_is_printed_as_it_is(slurm: Slurm, words: tuple[str, ...]) -> None:
    """Print backslashes: sh's own echo makes control characters of them, and ends at the last one."""
    name = r"trainer\033[2J\nhealthy\c"
    slurm.verdict("unknown", text=name)
    assert slurm.run(*words)[1].endswith(f"{name}\n")


def test_another_name_is_refused(slurm: Slurm) -> None:
    assert slurm.run("slurm-other")[0] == 2


@pytest.mark.parametrize(
    ("asked", "word", "code"),
    [
        ("isolate", "isolate", 1),
        ("reset", "reset", 1),
        ("watch", "watch", 1),
        ("isolate", "reset", 0),
        ("isolate", "healthy", 0),
        ("watch", "healthy", 0),
        ("isolate", "unknown", 2),
        ("reset", "odd", 2),
    ],
)
def test_the_plugin_says_whether_its_class_holds(slurm: Slurm, asked: str, word: str, code: int) -> None:
    slurm.verdict(word, "driver.smi", "nvidia-smi does not answer in time")
    found, said = slurm.run("npd-health", asked)
    assert found == code
    assert said.count("\n") == 1
    if code == 1:
        assert said == "driver.smi: nvidia-smi does not answer in time\n"


def test_the_plugin_does_not_know_without_a_fresh_verdict(slurm: Slurm) -> None:
    assert slurm.run("npd-health", "isolate")[0] == 2
    slurm.verdict("healthy", age=151)
    assert slurm.run("npd-health", "isolate") == (2, "unknown: the verdict is 151 s old\n")
    assert slurm.run("npd-health")[0] == 2


def test_the_scripts_are_of_the_shell_that_all_nodes_have() -> None:
    for name in ("slurm", "npd-health"):
        assert os.access(FILES / name, os.R_OK)
        assert subprocess.run(["dash", "-n", str(FILES / name)], check=False).returncode == 0
