"""DCGM's verdict next to gpuprov's: documents in the formats of DCGM 3 and 4, written for these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprov.accept.dcgm import results
from gpuprov.accept.judge import judge
from gpuprov.accept.node import dcgm as node
from gpuprov.probe.node import base
from gpuprov.report.accept import accept_lines
from tests import ROOT
from tests.unit.accept.recorded import recorded
from tests.unit.programs import write_program


def third(status: str = "Pass", **more: Any) -> str:
    """Return a result in the format of DCGM 3; GPU 1 has the status in the test PCIe."""
    tests = [
        {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]},
        None,
        {
            "name": "PCIe",
            "results": [{"gpu_ids": "0", "status": "Pass"}, {"gpu_ids": "1", "status": status, **more}],
        },
    ]
    category = {"category": "Integration", "tests": tests}
    return "WARNING: a line before it\n" + json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": [category], "version": "3.3.9"}}
    )


def fourth(status: str = "Pass", severity: int = 2, said: str = "") -> str:
    """Return a result in the format of DCGM 4; GPU 1 has the status in one test, with a warning if stated."""
    bad = {"entity_group": "GPU", "entity_id": 1, "status": status}
    if said:
        bad["warnings"] = [{"error_id": 29, "error_category": 8, "error_severity": severity, "warning": said}]
    tests = [
        {"name": "software", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}, bad]},
        {"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Skip"}]},
    ]
    root = {"test_categories": [{"category": "Deployment", "tests": tests}]}
    return json.dumps({"DCGM Diagnostic": root, "metadata": {"version": "4.2.3"}})


def judged(result: Any) -> Any:
    """Return the verdict on a node with sound measurements and this result of DCGM."""
    [found] = judge({"gpu01": {**recorded("quick"), "dcgm": result}})
    return found


def said(found: Any) -> list[tuple[str, str]]:
    """Return level and text of each finding about DCGM."""
    return [(each.level, each.text) for each in found.findings if each.rule.startswith("dcgm.")]


@pytest.mark.parametrize(("text", "passed"), [(third(), "3 of 3"), (fourth(), "2 of 2")])
def test_a_sound_node_passes_both(text: str, passed: str) -> None:
    """Check that a node is accepted if DCGM's diagnosis passes, too."""
    found = judged({"run": 1, "code": 0, "said": text, "errors": ""})
    assert found.verdict == "accepted"
    assert said(found) == [("ok", f"DCGM's own diagnosis: {passed} passed")]
    assert next(accept_lines([found])).endswith(f"s; DCGM: {passed} passed)")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (third("Fail", warnings=["Link width is 8 of 16"]), "DCGM: GPU 1 PCIe: Fail: Link width is 8 of 16"),
        (fourth("Fail", said="Row remap failure"), "DCGM: GPU 1 software: Fail: Row remap failure"),
        (fourth("Unheard-of"), "DCGM: GPU 1 software: Unheard-of"),
    ],
)
def test_what_dcgm_fails_is_rejected(text: str, line: str) -> None:
    """Check that a node on which DCGM's diagnosis fails is rejected, with its line."""
    found = judged({"run": 1, "code": 226, "said": text, "errors": ""})
    assert found.verdict == "rejected"
    assert said(found)[0] == ("bad", line)


def test_an_exit_code_without_a_failed_result_is_a_fault() -> None:
    found = judged({"run": 1, "code": 205, "said": third(), "errors": ""})
    assert said(found)[0][0] == "bad"
    assert "it ended with code 205, and no result states why; test again" in said(found)[0][1]


def test_a_setting_that_dcgm_fails_is_reported_and_no_fault() -> None:
    found = judged(
        {"run": 1, "code": 226, "said": fourth("Fail", 5, "Persistence mode is off"), "errors": ""}
    )
    assert found.verdict == "accepted"
    assert said(found)[0] == ("warn", "DCGM: GPU 1 software: Fail: Persistence mode is off")


@pytest.mark.parametrize(
    ("result", "why", "level"),
    [
        (
            {"code": 1, "said": "", "errors": "Error: unable to connect to host engine\n"},
            "unable to connect to host",
            "bad",
        ),
        ({"error": "dcgmi did not end in 60 s"}, "dcgmi did not end in 60 s", "bad"),
        ({"code": 3, "said": "{}", "errors": ""}, "exit code 3", "bad"),
        ({"code": 0, "said": "{" * 5000, "errors": ""}, "exit code 0", "bad"),
        ({"code": 226, "said": fourth().replace("Pass", "Skip"), "errors": ""}, "exit code 226", "bad"),
        ({"error": "its daemon does not listen on 127.0.0.1:5555"}, "its daemon does not listen", "warn"),
        ({"code": 1, "said": "", "errors": "The NVVS binary was not found"}, "NVVS binary", "warn"),
    ],
)
def test_no_verdict_is_a_fault_where_a_user_could_cause_it(result: Any, why: str, level: str) -> None:
    found = judged(result)
    [(seen, line)] = said(found)
    assert (seen, found.verdict) == (level, "rejected" if level == "bad" else "accepted")
    assert line.startswith("DCGM is installed and gave no result: ")
    assert why in line


def test_a_node_without_dcgm_says_nothing_of_it() -> None:
    [found] = judge({"gpu01": recorded("quick")})
    assert said(found) == []
    assert "DCGM" not in next(accept_lines([found]))


def test_nonsense_is_no_diagnosis() -> None:
    for text in ("", "no", "[]", '{"DCGM Diagnostic": 7}', '{"DCGM Diagnostic": {"test_categories": {}}}'):
        assert results(text) is None


def test_a_hostile_diagnosis_stays_within_limits() -> None:
    tests = [{"name": "a\udcff", "results": [{"status": "Fail", "warnings": "caf\udce9"}]}]
    whole = {"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}}
    [found] = results(json.dumps(whole)) or []
    assert (found.test + found.said).encode()
    assert results('{"DCGM Diagnostic": [' + "[]," * 200_000 + "[]]}") is None
    assert results('{"DCGM Diagnostic": ' + "9" * 5000 + "}") is None


ROOT_LISTENS = "LISTEN 0 128 127.0.0.1:5555 0.0.0.0:* ino:7 sk:1 cgroup:/system.slice/nvidia-dcgm.service <->"
USER_LISTENS = "LISTEN 0 5 127.0.0.1:5555 0.0.0.0:* uid:65534 ino:7 sk:1 <->"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder with `dcgmi`, which prints its arguments, before the programs of the system."""
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(node, "MPS", str(tmp_path / "nvidia-mps"))
    assert not node.installed()
    write_program(tmp_path / "dcgmi", 'echo "$@"; echo trouble >&2; exit 226')
    assert node.installed()
    return tmp_path


def listen(programs: Path, line: str) -> None:
    """Have this line as the answer about sockets."""
    write_program(programs / "ss", f"echo '{line}'")


def test_the_node_asks_the_tool_that_is_there(programs: Path) -> None:
    listen(programs, ROOT_LISTENS)
    assert node.diagnose("diag", [2, 10]) == {
        "run": 2,
        "code": 226,
        "said": "diag --host 127.0.0.1 -r 2 -j\n",
        "errors": "trouble\n",
    }


def test_a_user_in_place_of_dcgm_is_not_asked_and_a_fault(programs: Path) -> None:
    listen(programs, USER_LISTENS)
    answer = node.diagnose("diag", [2, 10])
    found = judged(answer)
    assert (answer, found.verdict) == ({"user": "65534"}, "rejected")
    assert said(found)[0][1].startswith("user 65534 listens on port 5555 in place of DCGM's daemon")


def test_no_user_answers_in_place_of_an_mps_server_during_the_diagnosis(programs: Path) -> None:
    """Have a folder of root there until DCGM has answered, also if it fails."""
    listen(programs, ROOT_LISTENS)
    write_program(programs / "dcgmi", f"stat -c '%u %a %F' {programs}/nvidia-mps")
    assert node.diagnose("diag", [2, 10])["said"] == f"{os.geteuid()} 700 directory\n"
    assert not (programs / "nvidia-mps").exists()
    write_program(programs / "dcgmi", "sleep 10")
    with pytest.raises(base.Failed):
        node.diagnose("diag", [2, 1])
    assert not (programs / "nvidia-mps").exists()


@pytest.mark.parametrize("of_user", ["nvidia-mps", "nvidia-mps/control"])
def test_a_user_with_the_folder_of_an_mps_server_is_a_fault(programs: Path, of_user: str) -> None:
    if os.geteuid():
        pytest.skip("only root can have files of another user")
    listen(programs, ROOT_LISTENS)
    (programs / "nvidia-mps").mkdir()
    (programs / "nvidia-mps" / "control").touch()
    os.chown(programs / of_user, 65534, 65534)
    answer = node.diagnose("diag", [2, 10])
    found = judged(answer)
    assert (answer, found.verdict) == ({"mps_user": "65534"}, "rejected")
    assert said(found)[0][1].startswith("user 65534 has /tmp/nvidia-mps, where DCGM's programs look")
    assert (programs / "nvidia-mps" / "control").exists()


def test_an_mps_server_of_root_is_used_and_kept(programs: Path) -> None:
    """Let no user write its folder meanwhile: NVIDIA's server makes it with mode 777, and leaves it."""
    listen(programs, ROOT_LISTENS)
    folder = programs / "nvidia-mps"
    folder.mkdir()
    (folder / "control").touch()
    folder.chmod(0o777)
    write_program(programs / "dcgmi", f"stat -c %a {folder}")
    assert node.diagnose("diag", [2, 10])["said"] == "755\n"
    assert (folder / "control").exists()
    assert folder.stat().st_mode & 0o777 == 0o777
    (folder / "control").unlink()
    folder.rmdir()
    folder.touch()
    with pytest.raises(base.Failed, match="nvidia-mps is not a folder"):
        node.diagnose("diag", [2, 10])


def test_dcgm_is_not_asked_where_its_daemon_does_not_listen(programs: Path) -> None:
    listen(programs, "")
    with pytest.raises(base.Failed, match=r"^its daemon does not listen on 127\.0\.0\.1:5555"):
        node.diagnose("diag", [2, 10])


def test_an_answer_does_not_count_if_the_daemon_has_ended(programs: Path) -> None:
    """Have a user who listens as soon as the daemon has ended, and answers."""
    listen(programs, ROOT_LISTENS)
    write_program(programs / "dcgmi", f"echo \"echo '{USER_LISTENS}'\" >{programs}/ss; echo '{third()}'")
    with pytest.raises(base.Failed, match="its daemon ended meanwhile"):
        node.diagnose("diag", [2, 10])


SOCKETS = """
import os, socket
from gpuprov.accept.node import dcgm
for address, user, dual in {0!r}:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    os.seteuid(user)
    one = socket.socket(family)
    if dual is not None:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
    one.bind((address, dcgm.PORT))
    one.listen(1)
    os.seteuid(0)
    globals().setdefault("kept", []).append(one)
print([user for user, _ in dcgm._listeners()])
"""


@pytest.mark.parametrize(
    ("sockets", "listeners"),
    [
        ([("127.0.0.1", 0, None), ("127.0.0.2", 65534, None)], [""]),
        ([("127.0.0.1", 0, None), ("::", 65534, False)], [""]),
        ([("0.0.0.0", 0, None)], [""]),  # noqa: S104
        ([("::", 0, True)], [""]),
        ([("127.0.0.2", 0, None), ("::1", 65534, None)], []),
        ([("127.0.0.2", 0, None), ("127.0.0.1", 65534, None)], ["65534"]),
        ([("::ffff:127.0.0.1", 65534, True)], ["65534"]),
        ([("::", 65534, True)], ["65534"]),
    ],
)
def test_only_sockets_that_get_the_connections_count(
    sockets: list[tuple[str, int, bool | None]], listeners: list[str]
) -> None:
    """Open them in a network of its own, where only root can."""
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c"]
    done = subprocess.run(
        [*words, SOCKETS.format(sockets)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip("no network of its own without root's rights")
    assert done.stdout == f"{listeners}\n", done.stderr


def test_a_diagnosis_with_too_many_values_is_none() -> None:
    assert results('{"DCGM Diagnostic": {"test_categories": [' + "{}," * 200_000 + "{}]}}") is None
