"""dnf as a package manager of the roles, on recorded output of dnf 4.14."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gpuprov_apt as apt
import gpuprov_dnf as dnf
import gpuprov_dnf_start as dnf_start
import gpuprov_repos
import pytest
from gpuprov_failures import Failed
from gpuprov_locks import RUN_DNF
from gpuprov_node import Package

from tests import ROOT

FRESH, MOVED, SKIPPED = (
    (ROOT / f"tests/recorded/dnf/{name}.txt").read_text() for name in ("fresh", "moved", "skipped")
)
"""Simulations: of a driver on a node without one; of moves that remove others; of an impossible one."""
ABORTED = "Error: Operation aborted.\n"
THERE = [
    Package("i", "i", "libnccl", "2.28.3-1+cuda13.0"),
    Package("h", "i", "tool", "1-1"),
    Package("i", "i", "tool-extra", "1-1"),
]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The options of each run of dnf's shell, then the lines of its script; packages are `THERE`."""
    found: list[list[str]] = []
    monkeypatch.setattr(dnf, "packages", lambda: THERE)
    monkeypatch.setattr(dnf, "RPM", str(tmp_path / "rpm.lock"))
    monkeypatch.setattr(dnf_start, "remove_kept_locks", list)
    return found


def answering(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], said: str, errors: str = ABORTED, status: int = 0
) -> None:
    """Make dnf print this."""

    def run(argv: list[str], **_: Any) -> Any:
        """Record the command with its script's lines, and answer as dnf."""
        script = Path(argv[-1]).read_text().splitlines() if argv[-2] == "shell" else []
        ran.append([*(argv[:-1] if script else argv), *script])
        return subprocess.CompletedProcess(argv, status, said.encode(), errors.encode())

    monkeypatch.setattr(subprocess, "run", run)


DNF = """\
import sys
said, rest, errors, status = {answers!r}
with open({log!r}, "a") as log: print(*sys.argv[1:-1], open(sys.argv[-1]).read(), file=log, flush=True)
print(said, end="", flush=True)
if said.endswith(" [y/N]: "):
    line = sys.stdin.readline()
    print(rest if line == "y\\n" else "", end="")
    with open({log!r}, "a") as log: print("answer", repr(line), file=log)
    status, errors = (status, errors) if line == "y\\n" else (1, "Error: Operation aborted.\\n")
print(errors, end="", file=sys.stderr)
sys.exit(status)
"""


def asking(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    said: str,
    rest: str = "",
    errors: str = "",
    status: int = 0,
) -> Path:
    """Put a program in place of dnf that prints `said`, and after the answer yes `rest`; return its log."""
    log, program = folder / "log", folder / "dnf.py"
    program.write_text(DNF.format(answers=(said, rest, errors, status), log=str(log)))
    monkeypatch.setattr(dnf_start, "RUN_DNF", (sys.executable, str(program)))
    return log


ASKED = "Is this ok [y/N]: "


def test_the_table_in_rows() -> None:
    assert dnf.moves(FRESH) == [
        ("Installing", "kmod-nvidia-open-dkms", "noarch", "3:580.95.05-1.el9"),
        ("Installing", "libnccl", "x86_64", "2.28.3-1+cuda13.0"),
        ("Installing", "nvidia-driver-cuda", "x86_64", "3:580.95.05-1.el9"),
        ("Removing", "nvidia-driver-NVML", "x86_64", "3:550.163.01-1.el9"),
        ("Installing dependencies", "dkms", "noarch", "3.2.2-1.el9"),
    ]
    assert [row[:2] for row in dnf.moves(MOVED)] == [
        ("Upgrading", "cuda-toolkit-12-9-config-common"),
        ("Removing dependent packages", "tool"),
        ("Removing dependent packages", "tool-extra"),
        ("Downgrading", "libnccl"),
    ]
    assert dnf.moves(SKIPPED) == []


def test_a_row_that_is_too_long_for_its_column_continues_below() -> None:
    rows = "Upgrading:\n a-long-name\n             x86_64  2-1  cuda  2.4 k\n tool  noarch  1-1  cuda  18  \n"
    assert [row.version for row in dnf.moves(rows)] == ["2-1", "1-1"]


def test_what_changes() -> None:
    """Check package → version before and after, from recorded output of dnf."""
    there = {row.name: row for row in THERE}
    assert dnf.changes(dnf.moves(MOVED), there) == {
        "cuda-toolkit-12-9-config-common": (None, "12.9.86-1"),
        "libnccl": ("2.28.3-1+cuda13.0", "2.27.7-1+cuda13.0"),
        "tool": ("1-1", None),
        "tool-extra": ("1-1", None),
    }


def test_a_transaction_is_a_script_of_dnfs_shell() -> None:
    words = ["libnccl=2.28.3-1+cuda13.0", "nvidia-open=3:580.1-1.el9", "dkms", "glibc:i686=2.34-1", "old-"]
    command = dnf.installation(words, 300, False, ["nvidia-driver:580-open"])
    assert command.lines == [
        "module enable nvidia-driver:580-open",
        "install libnccl-2.28.3-1+cuda13.0 nvidia-open-3:580.1-1.el9 dkms glibc-2.34-1.i686",
        "remove old",
        "run",
    ]
    assert "--disableplugin=versionlock" in command.options


@pytest.mark.parametrize(
    ("status", "expected"), [(0, ["--setopt=site.gpgkey="]), (1, ["--disablerepo=site"])]
)
def test_no_key_is_taken_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, expected: list[str]
) -> None:
    """With an empty gpgkey, real dnf 4.14 refuses a package whose key is not installed, and fetches no key.

    On a node without any installed key, where it would refuse each command, the repository is left out.
    """
    (tmp_path / "a.repo").write_text(
        "[site]\nbaseurl=https://s/\ngpgcheck=1\ngpgkey=https://s/a\n  HTTP://s/key\n"
        "[off]\nbaseurl=https://s/\nenabled=0\ngpgkey=http://s/key\n"
        "[dist]\nbaseurl=http://d/\ngpgkey=file:///etc/pki/http:key\n"
        "[a=b c]\nbaseurl=http://d/\ngpgkey=ftp://s/key\n"
    )
    monkeypatch.setattr(dnf, "repositories", lambda: gpuprov_repos.repositories(str(tmp_path)))
    monkeypatch.setattr(dnf, "run", lambda *words: (status, ""))
    options = dnf.installation(["a"], 300, False).options
    assert [each for each in options if "gpgkey" in each or "repo" in each] == expected


def test_packages_are_fetched_before_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    """Check the starts of dnf: each takes seconds on a node with large repositories."""
    answering(monkeypatch, ran, FRESH)
    words = ["libnccl=2.28.3-1+cuda13.0", "nvidia-driver-cuda=3:580.95.05-1.el9", "dkms"]
    command = dnf.installation(words, 300, False)
    found = dnf.fetch_packages(command, {"nvidia-driver-NVML"}, 600, 300)
    assert found["dkms"] == (None, "3.2.2-1.el9")
    assert [each[:6] for each in ran] == [["timeout", "900", *RUN_DNF]]
    assert {"--refresh", "--downloadonly"} <= {*ran[0]}
    assert dnf.ERASING not in ran[0], "it would be asked for removals only after the download"
    assert ran[0][-2:] == [*command.lines]


def test_dnfs_question_is_answered_with_yes_if_it_does_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], tmp_path: Path
) -> None:
    words = ["libnccl=2.28.3-1+cuda13.0", "nvidia-driver-cuda=3:580.95.05-1.el9", "dkms"]
    command = dnf.installation(words, 300, False)
    log = asking(monkeypatch, tmp_path, FRESH + ASKED, "Complete!\n")
    dnf.transact(command, [], {"nvidia-driver-NVML"})
    [first, *lines, _empty, answer] = log.read_text().splitlines()
    assert answer == r"answer 'y\n'"
    assert "--cacheonly" in first.split()
    assert "--assume" not in first
    assert [first.split("shell ")[1], *lines] == [*command.lines]
    asking(monkeypatch, tmp_path, FRESH + ASKED, "", "Error: Transaction failed\n", 1)
    with pytest.raises(Failed, match="Transaction failed"):
        dnf.transact(command, [], {"nvidia-driver-NVML"})


@pytest.mark.parametrize(
    ("errors", "status", "failed"),
    [
        ("Error: Unable to find a match: dkms\n", 0, "Unable to find a match: dkms"),
        ("", 3, "dnf exited with 3"),
        ("", 0, "dnf leaves out dkms"),
    ],
)
def test_a_dnf_without_a_question_has_failed_or_has_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
    ran: list[list[str]],
    tmp_path: Path,
    errors: str,
    status: int,
    failed: str,
) -> None:
    asking(monkeypatch, tmp_path, "Nothing to do.\n", "", errors, status)
    with pytest.raises(Failed, match=f"^{failed}$"):
        dnf.transact(dnf.installation(["dkms"], 300, False), [], ())


def test_a_dnf_that_waits_before_its_question_is_ended_and_one_that_works_is_not(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], tmp_path: Path
) -> None:
    program = tmp_path / "dnf.py"
    monkeypatch.setattr(dnf_start, "RUN_DNF", (sys.executable, str(program)))
    program.write_text("import time\nprint('Waiting for process with pid 81', flush=True)\ntime.sleep(60)\n")
    begun = time.monotonic()
    with pytest.raises(Failed, match=r"^another dnf or rpm runs for 1 s$"):
        dnf_start.confirm(lambda _said: None, 1)
    assert time.monotonic() - begun < 30
    program.write_text("import time\ninput('ok [y/N]: ')\ntime.sleep(2)\nprint(input('key [y/N]: '))\n")
    dnf_start.confirm(lambda _said: None, 1)
    assert not [
        each for each in threading.enumerate() if isinstance(each, threading.Timer) and each.is_alive()
    ]


@pytest.mark.parametrize("words", [["libnccl=2.27.7-1+cuda13.0"], ["libnccl=2.27.7-1+cuda13.0", "old-"]])
def test_a_removal_is_refused_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], words: list[str]
) -> None:
    """Play dnf, which cannot install a package next to others unless it may remove these."""

    def start(_seconds: int, *options: str) -> str:
        """Record the options; answer as dnf with and without permission to remove packages."""
        ran.append([*options])
        if dnf.ERASING in options:
            return MOVED
        raise Failed("Problem: package tool-1-1.noarch requires libnccl = 2.28.3, but none can be installed")

    monkeypatch.setattr(dnf, "start", start)
    with pytest.raises(Failed, match="dnf would remove tool, tool-extra"):
        dnf.fetch_packages(dnf.installation(words, 300, True), {"libnccl"}, 600, 300)
    assert "--downloadonly" not in ran[-1]
    assert ["--refresh" in each for each in ran] == [True] * len(ran)


def test_a_repository_that_does_not_answer_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    answering(monkeypatch, ran, "", "Error: Failed to download metadata for repo 'nvidia': x\n", 1)
    with pytest.raises(Failed, match="metadata for repo"):
        dnf.fetch_packages(dnf.installation(["libnccl=2.27.7-1+cuda13.0"], 300, True), {"libnccl"}, 600, 300)
    assert len(ran) == 1


def test_a_transaction_that_has_changed_since_its_simulation_is_refused(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], tmp_path: Path
) -> None:
    """Let the metadata change after the download: other packages would be removed without a word."""
    command = dnf.installation(["libnccl=2.27.7-1+cuda13.0"], 300, True)
    log = asking(monkeypatch, tmp_path, MOVED + ASKED, "Complete!\n")
    with pytest.raises(Failed, match="dnf would remove tool, tool-extra"):
        dnf.transact(command, [], {"libnccl"})
    assert "answer 'y" not in log.read_text()


@pytest.mark.parametrize(
    ("words", "own", "allowed", "failed"),
    [
        (["libnccl=2.27.7-1+cuda13.0"], ["libnccl"], True, "dnf would remove tool, tool-extra"),
        (["libnccl=2.27.7-1+cuda13.0"], ["tool", "tool-extra"], False, "dnf would downgrade libnccl"),
        (["cuda-toolkit-12-9-config-common"], ["tool", "tool-extra"], True, "dnf would downgrade libnccl"),
        (["libnccl=2.27.7-1+cuda13.0"], ["tool", "tool-extra"], True, None),
        (["tool-"], ["libnccl", "tool", "tool-extra"], True, None),
    ],
)
def test_effects_on_other_packages_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
    ran: list[list[str]],
    words: list[str],
    own: list[str],
    allowed: bool,
    failed: str | None,
) -> None:
    answering(monkeypatch, ran, MOVED)
    command = dnf.installation(words, 300, allowed)
    if failed is None:
        dnf.refuse(command, own, 600)
    else:
        with pytest.raises(Failed) as error:
            dnf.refuse(command, own, 600)
        assert str(error.value) == failed


def test_a_locked_package_of_somebody_else_does_not_move(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    row = " tool                 x86_64  2-1                   cuda-rhel9-x86_64  2.0 k\n"
    answering(monkeypatch, ran, "Upgrading:\n" + row)
    command = dnf.installation(["libnccl"], 300, False)
    with pytest.raises(Failed, match=r"^dnf would change tool$"):
        dnf.refuse(command, ["libnccl"], 600)
    dnf.refuse(command, ["libnccl", "tool"], 600)


def test_a_package_that_dnf_skips_fails_with_the_problem(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    answering(monkeypatch, ran, SKIPPED, "")
    with pytest.raises(Failed) as error:
        dnf.refuse(dnf.installation(["libnccl=2.29.1-1+cuda13.0"], 300, False), [], 600)
    said = dnf.failure("NCCL could not be installed", error.value)["says"]
    cause = "the packages conflict with others that are installed or locked"
    problem = "Problem: problem with installed package tool-1-1.noarch package tool"
    assert said
    assert said.startswith(f"NCCL could not be installed: {cause} ({problem}")


UNREAD = """\
Errors during downloading metadata for repository 'x':
  - {}
Error: Failed to download metadata for repo 'x': Cannot download repomd.xml: Cannot download\
 repodata/repomd.xml: All mirrors were tried
"""
"""Standard error of dnf 4.14 about a repository without an answer."""
IGNORED = """\
Errors during downloading metadata for repository 'site':
  - Curl error (6): Couldn't resolve host name for http://s/repodata/repomd.xml [Could not resolve host: s]
Ignoring repositories: site
"""
"""The same about one with skip_if_unavailable, without which dnf goes on."""


@pytest.mark.parametrize(
    ("said", "errors", "cause"),
    [
        *(
            ("", UNREAD.format(why), "the package repository does not answer as it should")
            for why in (
                "Curl error (7): Couldn't connect to server for http://m:9/repodata/repomd.xml [Failed to"
                " connect to m port 9 after 0 ms: Couldn't connect to server]",
                "Curl error (6): Couldn't resolve host name for http://m/repodata/repomd.xml [Could not"
                " resolve host: m]",
                "Status code: 503 for http://m/repodata/repomd.xml (IP: 192.0.2.1)",
            )
        ),
        (
            "",
            UNREAD.format("Status code: 404 for http://m/repodata/repomd.xml (IP: 192.0.2.1)"),
            "the package repository does not have what the lock names",
        ),
        *(
            (
                "No match for argument: nothere-1-1\n",
                f"{before}Error: Unable to find a match: nothere-1-1\n",
                "the package repository does not have what the lock names",
            )
            for before in ("", IGNORED)
        ),
        (
            "All matches were filtered out by modular filtering for argument: nvidia-open-3:595-1.el9\n",
            "Error: Unable to find a match: nvidia-driver-cuda-3:595.71.05-1.el9\n",
            "another stream of a module hides the package",
        ),
        (
            "All matches were filtered out by exclude filtering for argument: libnccl-2.28.3-1+cuda13.0\n",
            "Error: Unable to find a match: libnccl-2.28.3-1+cuda13.0\n",
            "the node's settings of dnf exclude the package",
        ),
        (
            "No match for argument: kernel-devel-5.14.0-1.el9.x86_64\n",
            "Error: Unable to find a match: kernel-devel-5.14.0-1.el9.x86_64\n",
            "the package repositories have no headers for the target kernel",
        ),
        (
            "No match for argument: dkms\n",
            "Error: Unable to find a match: dkms\n",
            "the node's own repositories do not have a package of the distribution",
        ),
    ],
)
def test_causes(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], said: str, errors: str, cause: str
) -> None:
    """Check the cause that is named for each output of dnf that failed."""
    answering(monkeypatch, ran, said, errors)
    with pytest.raises(Failed) as error:
        dnf.refuse(dnf.installation(["a"], 300, False), [], 600)
    says = dnf.failure("NCCL could not be installed", error.value)["says"]
    assert says
    assert says.startswith(f"NCCL could not be installed: {cause} (")


def test_the_time_limit_says_what_dnf_waited_for(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    answering(monkeypatch, ran, "Waiting for process with pid 81 to finish.\n", "", dnf_start.TIMED_OUT)
    with pytest.raises(Failed, match=r"^another dnf or rpm runs for 900 s$"):
        dnf.read_lists(600, 300)
    answering(monkeypatch, ran, "", "", dnf_start.TIMED_OUT)
    with pytest.raises(Failed, match=r"^fetching took longer than 900 s"):
        dnf.read_lists(600, 300, "--repo=nvidia")
    assert ran[-1][-2:] == ["--repo=nvidia", "makecache"]
    answering(monkeypatch, ran, "", IGNORED)
    dnf.read_lists(600, 300)
    assert "--quiet" not in ran[-1], "with it dnf does not print why a repository failed"


def test_apt_and_dnf_judge_removals_alike() -> None:
    """Check the shared judgement: the own packages may go, with or without an architecture in the name."""
    assert apt.foreign_removals is dnf.foreign_removals
    moved = {
        "libcuda1": ("535.1", None),
        "libcuda1:i386": ("535.1", None),
        "libssl3": ("3.0", None),
        "nvidia-smi": ("535.1", "535.2"),
        "new": (None, "1"),
    }
    assert dnf.foreign_removals(moved, {"libcuda1"}) == ["libssl3"]
    assert dnf.foreign_removals(moved, {"libcuda1:i386", "libssl3"}) == ["libcuda1"]
    assert dnf.foreign_removals(moved, ()) == ["libcuda1", "libcuda1:i386", "libssl3"]


TWICE = """\
12\tlibnccl\t2.29.7-1\tx86_64
7\tnvidia-driver-cuda\t580.95.05-1.el9\tx86_64
101\tlibnccl\t2.28.3-1\tx86_64
102\tnvidia-driver-cuda\t590.48.01-1.el9\tx86_64
103\ttool\t1-1\tnoarch
8\ttool\t1-1\ti686
1\tgpg-pubkey\t6275f250-5e26cb2e\t(none)
2\tgpg-pubkey\t8ffd4af3-5e26cb2e\t(none)
3\tkernel-core\t5.14.0-570.12.1.el9_6\tx86_64
90\tkernel-core\t5.14.0-570.21.1.el9_6\tx86_64
"""
"""Packages after dnf was killed between the installation of other versions and the removal of the former."""


def test_of_two_versions_the_one_that_was_installed_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    erased: list[str] = []
    monkeypatch.setattr(dnf, "database", lambda *_: TWICE)
    monkeypatch.setattr(dnf, "run", lambda *argv, **_: (erased.append(argv[-1]) or 0, ""))
    assert dnf.doubled() == {
        "libnccl.x86_64": ["2.29.7-1", "2.28.3-1"],
        "nvidia-driver-cuda.x86_64": ["580.95.05-1.el9", "590.48.01-1.el9"],
    }
    dnf.undouble()
    assert sorted(erased) == ["libnccl-2.29.7-1.x86_64", "nvidia-driver-cuda-580.95.05-1.el9.x86_64"]
    monkeypatch.setattr(dnf, "run", lambda *_, **__: (1, ""))
    with pytest.raises(
        Failed, match=r"rpm --erase --nodeps nvidia-driver-cuda-580.95.05-1.el9.x86_64 exited with 1"
    ):
        dnf.undouble()
