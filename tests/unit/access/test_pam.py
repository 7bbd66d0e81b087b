"""Stacks of PAM that refuse users without credentials, and stacks that admit them."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from gpuprov.access.pam import admitting
from gpuprov.errors import NodeFailed

DEBIAN = ("[success=1 default=ignore] pam_unix.so nullok", "requisite pam_deny.so", "required pam_permit.so")
SSSD = (
    "[success=2 default=ignore] pam_unix.so nullok",
    "[success=1 default=ignore] pam_sss.so use_first_pass",
    *DEBIAN[1:],
    "optional pam_cap.so",
)
RHEL = (
    "required pam_env.so",
    "required pam_faildelay.so delay=2000000",
    "[default=1 ignore=ignore success=ok] pam_usertype.so isregular",
    "[default=1 ignore=ignore success=ok] pam_localuser.so",
    "sufficient pam_unix.so nullok",
    "sufficient pam_sss.so forward_pass",
    "required pam_deny.so",
)
FAILLOCK = (
    "required pam_faillock.so preauth silent",
    DEBIAN[0],
    "[default=die] pam_faillock.so authfail",
    "sufficient pam_faillock.so authsucc",
    *DEBIAN[1:],
)
OS_LOGIN = ("[success=done perm_denied=die default=ignore] pam_oslogin_login.so", *DEBIAN)


def files(*lines: str, kind: str = "auth") -> dict[str, list[tuple[str, str]]]:
    """Return the files of sshd's service, which includes these lines of one type."""
    rows = [(f"/etc/pam.d/common:{at}", f"{kind}\t{line}") for at, line in enumerate(lines, 1)]
    return {"sshd": [("/etc/pam.d/sshd:4", "@include common")], "common": rows}


@pytest.mark.parametrize("lines", [DEBIAN, SSSD, RHEL, FAILLOCK, OS_LOGIN, ["optional pam_unix.so"], []])
def test_a_stack_as_shipped_refuses(lines: list[str]) -> None:
    assert admitting(files(*lines), "auth") is None


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["sufficient pam_permit.so", *DEBIAN], 1),
        (["sufficient pam_rootok.so", *DEBIAN], 1),
        (["sufficient pam_exec.so /usr/local/bin/ask", *DEBIAN], 1),
        (["sufficient pam_succeed_if.so user = guest", *DEBIAN], 1),
        (["sufficient /opt/lib/pam_unix.so", *DEBIAN], 1),
        (["[success=2 default=ignore] pam_localuser.so", *DEBIAN], 4),
        ([DEBIAN[0], DEBIAN[2]], 2),
        (["[default=ok] pam_unix.so", "required pam_permit.so"], 2),
        (["[auth_err=1 default=ignore] pam_unix.so", *DEBIAN[1:]], 3),
        (["\\", "sufficient pam_permit.so"], 1),
    ],
)
def test_a_looser_stack_names_the_line_that_admits(lines: list[str], place: int) -> None:
    rows = files(*lines)
    if lines[0] == "\\":
        rows["common"] = [("/etc/pam.d/common:1", "auth \\"), ("/etc/pam.d/common:2", lines[1])]
    found = admitting(rows, "auth")
    assert found
    assert found.place == f"/etc/pam.d/common:{place}"


def test_a_failure_before_a_reset_does_not_count_and_ends_nothing() -> None:
    lines = ["required pam_deny.so", "sufficient pam_permit.so", "[default=reset] pam_env.so", DEBIAN[2]]
    found = admitting(files(*lines), "auth")
    assert found
    assert found.place == "/etc/pam.d/common:4"


def test_accounts_that_are_locked_stay_out() -> None:
    shipped = (
        "[success=1 new_authtok_reqd=done default=ignore] pam_unix.so",
        *DEBIAN[1:],
        "required pam_access.so",
    )
    assert admitting(files(*shipped, kind="account"), "account") is None
    found = admitting(files("sufficient pam_permit.so", *shipped, kind="account"), "account")
    assert found
    assert found.place == "/etc/pam.d/common:1"


def test_a_substack_ends_alone_and_a_missing_file_refuses() -> None:
    inner = [("/etc/pam.d/inner:1", "auth sufficient pam_permit.so")]
    within = {"sshd": [("s:1", "auth substack inner"), ("s:2", "auth requisite pam_deny.so")], "inner": inner}
    assert admitting(within, "auth") is None
    assert admitting({"sshd": within["sshd"][:1], "inner": inner}, "auth")
    assert admitting({"sshd": within["sshd"][:1]}, "auth") is None
    assert admitting({"other": [("o:1", "auth required pam_permit.so")]}, "auth")
    assert admitting({}, "auth") is None


def test_a_loop_of_includes_ends() -> None:
    assert admitting({"sshd": [("s:1", "@include sshd"), ("s:2", "auth include sshd")]}, "auth") is None


@pytest.mark.parametrize("line", ["auth include sshd", "auth substack sshd", "@include sshd"])
def test_files_that_include_themselves_take_no_time(line: str) -> None:
    begun = time.process_time()
    assert admitting({"sshd": [("s", line)] * 3}, "auth") is None
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("line", ["auth include", "auth substack", "@include"])
def test_the_whole_stack_has_a_maximum_of_lines(line: str) -> None:
    names = ["sshd", *map(str, range(8))]
    stack = {name: [("s", f"{line} {within}")] * 10 for name, within in pairwise(names)}
    with pytest.raises(NodeFailed, match="at most 2000 lines"):
        admitting({**stack, names[-1]: []}, "auth")


@pytest.mark.parametrize(("text", "number"), [("a" * 18 + "\\", 40_000), (f"auth [{'a' * 40_000}] x", 1)])
def test_long_lines_take_no_time(text: str, number: int) -> None:
    begun = time.process_time()
    with pytest.raises(NodeFailed, match="at most 4096 characters"):
        admitting({"sshd": [("s", text)] * number}, "auth")
    assert time.process_time() - begun < 1


def test_lines_that_go_on_are_one() -> None:
    rows = [("s:1", "auth \\"), ("s:2", "required \\"), ("s:3", "pam_permit.so \\")]
    found = admitting({"sshd": rows}, "auth")
    assert found
    assert (found.place, " ".join(found.text.split())) == ("s:1", "auth required pam_permit.so")


def test_a_long_line_of_a_file_that_is_included_often_is_parsed_once() -> None:
    stack = {"sshd": [("s", "auth include b")] * 50, "b": [("b", f"auth [{'a=1 ' * 1000}] pam_x.so")] * 38}
    begun = time.process_time()
    assert admitting(stack, "auth") is None
    assert time.process_time() - begun < 0.5
