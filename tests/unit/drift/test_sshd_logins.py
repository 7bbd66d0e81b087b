"""Drift of what sshd's listeners accept: every listener, user and address, and the line that sets it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.access.shipped import as_shipped
from gpuprov.drift.judge import Difference, judge
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

MAIN = "/usr/sbin/sshd -D"
SHIPPED = as_shipped("debian12")
TEXT = "".join(f"{keyword} {value}\n" for keyword, value in SHIPPED.items()).replace(
    "prohibit-password", "without-password"
)
FIRST = [MAIN, "root", "192.0.2.1", None, None]
SITE = "/etc/ssh/sshd_config.d/site.conf:2"


def asked(*more: list[Any], text: str = TEXT, lines: Any = (), **other: Any) -> dict[str, Any]:
    """Return the collector's answer about sshd, with more answers for users and addresses."""
    empty: dict[str, Any] = {"unread": [], "unclear": [], "astray": []}
    return {"text": text, "lines": list(lines), "answers": [FIRST, *more], **empty, **other}


def seen(check: str, expected: Any, **collectors: Any) -> Difference | None:
    """Return the difference of a check by these answers of collectors, or None."""
    found = judge("node", Facts("node", "", 0.0, collectors), [Expectation(check, expected, None)]).drift
    return found[0] if found else None


def logins(sshd: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the actual value of `ssh.logins` and its places; None and () without a difference."""
    found = seen("ssh.logins", SHIPPED, sshd=sshd)
    return (found.actual, found.by) if found else (None, ())


def test_a_node_as_shipped_is_in_sync() -> None:
    assert logins(asked()) == (None, ())
    assert (
        logins(asked(text=TEXT.replace("permitrootlogin without-password", "permitrootlogin no")))[0] is None
    )
    assert logins(asked(text=TEXT + "passwordauthentication yes\n"))[0] is None


def test_an_unstated_option_that_admits_others_is_named_with_its_line() -> None:
    text = TEXT.replace("authorizedkeyscommand none", "authorizedkeyscommand /usr/local/bin/keys")
    lines = [["/x:1", "PermitTTY yes"], [SITE, "AuthorizedKeysCommand=/usr/local/bin/keys"]]
    assert logins(asked(text=text, lines=lines)) == (
        {"authorizedkeyscommand": "/usr/local/bin/keys"},
        (SITE,),
    )


def test_a_match_block_is_named_with_a_user_and_an_address() -> None:
    text = TEXT.replace("permitemptypasswords no", "permitemptypasswords yes")
    other = [MAIN, "gpuprov-unknown", "10.0.0.1", text, [[SITE, "PermitEmptyPasswords yes"]]]
    actual, by = logins(asked(other))
    assert actual == {"permitemptypasswords": "yes for gpuprov-unknown from 10.0.0.1"}
    assert by == (SITE,)


def test_another_listener_is_named_by_its_command_line() -> None:
    text = TEXT.replace("usepam yes", "usepam no")
    other = ["/usr/sbin/sshd -f /opt/c", "root", "192.0.2.1", text, []]
    assert logins(asked(other))[0] == {"usepam": "no by /usr/sbin/sshd -f /opt/c"}


def test_stated_options_are_judged_for_every_answer() -> None:
    other = [MAIN, "root", "198.51.100.1", "maxauthtries 9\n", [[SITE, "MaxAuthTries 9"]]]
    found = seen("ssh.options", {"maxauthtries": "4"}, sshd=asked(other, text="maxauthtries 4\n"))
    assert found
    assert (found.actual, found.by) == ({"maxauthtries": "9 for root from 198.51.100.1"}, (SITE,))


def test_an_option_on_the_command_line_is_named_as_such() -> None:
    line = ["sshd's command line (systemctl cat ssh; /etc/default/ssh)", "PasswordAuthentication yes"]
    sshd = asked(text="passwordauthentication yes\n", lines=[line])
    found = seen("ssh.options", {"passwordauthentication": "no"}, sshd=sshd)
    assert found
    assert found.by == (line[0],)


def test_an_older_name_of_an_option_is_found_too() -> None:
    sshd = asked(
        text="kbdinteractiveauthentication yes\n", lines=[[SITE, "ChallengeResponseAuthentication yes"]]
    )
    found = seen("ssh.options", {"kbdinteractiveauthentication": "no"}, sshd=sshd)
    assert found
    assert found.by == (SITE,)


@pytest.mark.parametrize("check", ["ssh.logins", "ssh.loaded", "ssh.main_process"])
def test_a_listener_that_cannot_be_asked_is_a_difference(check: str) -> None:
    sshd = asked(unclear=["/opt/sshd -p 23: /opt/sshd is not /usr/sbin/sshd"])
    found = seen(check, SHIPPED if check == "ssh.logins" else [], sshd=sshd)
    assert found
    assert found.actual == "unknown: /opt/sshd -p 23: /opt/sshd is not /usr/sbin/sshd"


def test_without_sshd_nobody_logs_in() -> None:
    nothing: dict[str, Any] = {"text": "", "lines": [], "answers": [], "unread": [], "unclear": []}
    assert logins(nothing) == (None, ())
    assert seen("ssh.loaded", [], sshd=nothing) is None
    found = seen("ssh.options", {"port": "22"}, sshd=nothing)
    assert found
    assert found.actual == {"port": None}


def test_a_file_that_sshd_has_not_read_is_a_difference() -> None:
    assert seen("ssh.loaded", [], sshd=asked()) is None
    found = seen("ssh.loaded", [], sshd=asked(unread=["/etc/ssh/sshd_config"]))
    assert found
    assert found.actual == ["/etc/ssh/sshd_config"]


def test_a_listener_that_systemd_has_lost_is_a_difference() -> None:
    assert seen("ssh.main_process", [], sshd=asked()) is None
    found = seen("ssh.main_process", [], sshd=asked(astray=["process 9 (/usr/sbin/sshd -D)"]))
    assert found
    assert found.actual == ["process 9 (/usr/sbin/sshd -D)"]


def test_answers_like_the_first_share_its_lines() -> None:
    lines = [["/x", f"k{number}"] for number in range(100)]
    answers = Facts("node", "", 0.0, {"sshd": asked(FIRST, lines=lines)}).sshd_answers
    assert len(answers[0].places) == 100
    assert answers[0].places is answers[1].places


def test_more_answers_than_the_probe_requests_are_unknown() -> None:
    assert logins(asked(*[FIRST] * 191)) == (None, ())
    assert logins(asked(*[FIRST] * 192))[0] == "unknown: 193 answers of sshd; expected at most 192"


def test_a_stack_of_pam_that_is_too_long_is_unknown() -> None:
    found = seen("ssh.pam", [], pam={"sshd": [["/etc/pam.d/sshd:1", "auth required pam_unix.so"]] * 2001})
    assert found
    assert found.actual == "unknown: PAM's stack of sshd is too long; expected at most 2000 lines"


def test_a_line_of_pam_that_admits_is_named() -> None:
    rows = [["/etc/pam.d/sshd:1", "auth\tsufficient\tpam_permit.so"]]
    found = seen("ssh.pam", [], pam={"sshd": rows})
    assert found
    assert (found.actual, found.by) == (["auth sufficient pam_permit.so"], ("/etc/pam.d/sshd:1",))
    assert seen("ssh.pam", [], pam={"sshd": [["/etc/pam.d/sshd:1", "auth required pam_unix.so"]]}) is None


def test_another_authority_in_a_trusted_file_is_a_difference() -> None:
    row = {
        "path": "/etc/ssh/gpuprov_user_ca",
        "kind": "file",
        "mode": "0644",
        "owner": "root",
        "group": "root",
    }
    file = {**row, "size": 1, "sha256": "b" * 64, "target": None, "leads_to": row["path"]}
    found = seen("ssh.files", {row["path"]: "a" * 64}, files=[file])
    assert found
    assert found.actual == {row["path"]: "b" * 64}
    assert seen("ssh.files", {row["path"]: "b" * 64}, files=[file]) is None


@pytest.mark.parametrize(
    ("own", "actual"), [(["root", "admins"], None), (["root"], ["root"]), (["Admins"], ["Admins"]), ([], [])]
)
def test_a_login_in_no_group_that_may_log_in_is_named(own: list[str], actual: list[str] | None) -> None:
    found = seen("ssh.login_groups", ["admins", "wheel"], login_groups=own)
    assert (found and found.actual) == actual
