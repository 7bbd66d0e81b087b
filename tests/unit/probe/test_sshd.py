"""The probe's collectors of sshd: arguments, traces, addresses of Match blocks, files that were not read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gpuprov_sshd
import pytest

from gpuprov.probe.node import sshd
from gpuprov.probe.node.base import Failed

KEYS = "AuthorizedKeysCommand /opt/keys %u"
BLOCK = "Match Address 10.0.0.0/8,192.0.2.? User root"
TEXT = "port 22\nloglevel DEBUG3\npidfile {}\npermitemptypasswords {}\n"
TRACE = f"""\
debug2: load_server_config: filename /etc/ssh/sshd_config\r
debug2: /etc/ssh/sshd_config line 12: new include /etc/ssh/sshd_config.d/*.conf\r
debug3: checking syntax for '{BLOCK}'\r
debug3: /etc/ssh/sshd_config:62 setting LogLevel VERBOSE\r
debug3: /etc/ssh/sshd_config:63 setting PermitEmptyPasswords no\r
debug2: parse_server_config_depth: config reprocess config len 3224\r
"""
WITHIN = "debug3: /etc/ssh/sshd_config:99 setting PermitEmptyPasswords yes\r\n"


@pytest.mark.parametrize(
    ("words", "of_title", "kept"),
    [
        ([], True, []),
        (["-D"], False, []),
        (
            ["-D", "-o", "PermitRootLogin", "yes", "-p", "2222"],
            True,
            ["-o", "PermitRootLogin yes", "-p", "2222"],
        ),
        (["-D", "-o", "PermitRootLogin yes"], False, ["-o", "PermitRootLogin yes"]),
        (["-Dep", "2222", "-oUsePAM=no"], False, ["-p", "2222", "-o", "UsePAM=no"]),
        (["-f", "/srv/sshd", "-E", "/var/log/x", "-u0"], False, ["-f", "/srv/sshd"]),
    ],
)
def test_arguments_that_change_answers_are_kept(words: list[str], of_title: bool, kept: list[str]) -> None:
    assert sshd.sshd_options(words, of_title) == kept


@pytest.mark.parametrize("words", [["-Z"], ["-"], ["word"], ["-f", "relative"], ["-D", "--", "x"]])
def test_arguments_that_are_not_known_are_no_answer(words: list[str]) -> None:
    with pytest.raises(Failed, match="not known"):
        sshd.sshd_options(words, of_title=False)


def test_a_title_is_reported_from_a_session() -> None:
    found = sshd.TITLE.match("sshd: /usr/sbin/sshd -D -o X y [listener] 0 of 10-100 startups")
    assert found
    assert found.group(1) == "/usr/sbin/sshd -D -o X y"
    assert not sshd.TITLE.match("sshd: root@pts/0")
    assert not sshd.TITLE.match("sshd: /usr/sbin/sshd -o " + "x" * 1000)


def test_each_pattern_of_an_address_has_one_address() -> None:
    criteria = "address 10.0.0.0/8,192.0.2.*,!2001:db8::/32 user x localaddress=198.18.0.7 address bad"
    assert sshd._samples(r"\baddress", criteria) == ["10.0.0.1", "192.0.2.1"]
    assert sshd._samples("localaddress", criteria) == ["198.18.0.7"]
    assert sshd._samples("localaddress", "user root") == []


def asked(monkeypatch: pytest.MonkeyPatch, pidfile: str = "none", block: bool = True) -> list[str]:
    """Answer in place of sshd; the Match block holds for root from 10.0.0.1. Return who was asked."""
    who: list[str] = []

    def run(*argv: str, seconds: float = 10.0) -> tuple[int, str, str]:
        """Answer as `sshd -T -C`, and record for whom it is asked."""
        who.append(argv[-1])
        inside = block and "user=root,host=10.0.0.1," in argv[-1]
        trace = (TRACE if block else TRACE.replace("checking", "no")) + WITHIN * inside
        return 0, TEXT.format(pidfile, "yes" if inside else "no"), trace

    monkeypatch.setattr(sshd, "run_anyway", run)
    monkeypatch.setattr(sshd, "_connection", lambda: ("192.0.2.9", "192.0.2.10"))
    return who


def collected(monkeypatch: pytest.MonkeyPatch, *listeners: tuple[str, str, list[str]]) -> Any:
    """Return the collector's answer for these listening processes."""
    monkeypatch.setattr(sshd, "_listeners", lambda unclear: iter(listeners))
    monkeypatch.setattr(gpuprov_sshd, "others", list)
    return sshd.sshd({"login": "ops", "strangers": ["gpuprov-unknown", "198.51.100.1"]})


def test_users_and_addresses_are_varied_as_match_blocks_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    who = asked(monkeypatch)
    found = collected(monkeypatch, ("1", "/usr/sbin/sshd -D", []), ("2", "again", []))
    assert len(who) == 12  # three users, four addresses
    [odd] = [row for row in found["answers"] if row[3]]
    assert odd[:3] == ["/usr/sbin/sshd -D", "root", "10.0.0.1"]
    assert odd[4][0] == ["/etc/ssh/sshd_config:99", "PermitEmptyPasswords yes"]
    assert "loglevel VERBOSE\n" in found["text"]
    assert found["lines"] == [
        ["/etc/ssh/sshd_config:62", "LogLevel VERBOSE"],
        ["/etc/ssh/sshd_config:63", "PermitEmptyPasswords no"],
    ]


def test_without_a_match_block_a_listener_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    who = asked(monkeypatch, block=False)
    found = collected(monkeypatch, ("1", "/usr/sbin/sshd -o UsePAM=no", ["-o", "UsePAM=no"]))
    assert who == ["user=ops,host=192.0.2.9,addr=192.0.2.9,laddr=192.0.2.10,lport=22"]
    assert found["lines"][0] == [sshd.COMMAND_LINE, "UsePAM=no"]
    assert found["answers"] == [["/usr/sbin/sshd -o UsePAM=no", "ops", "192.0.2.9", None, None]]


def test_a_listener_that_cannot_be_asked_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch)

    def refuse(*argv: str, seconds: float = 10.0) -> tuple[int, str, str]:
        return (255, "", "debug1: x\n/etc/ssh/a.conf: bad\n") if "-f" in argv else (0, TEXT, TRACE)

    monkeypatch.setattr(sshd, "run_anyway", refuse)
    found = collected(monkeypatch, ("1", "sshd", []), ("2", "sshd -f /a", ["-f", "/a"]))
    assert found["unclear"] == ["sshd -f /a: sshd exited with 255: /etc/ssh/a.conf: bad"]
    with pytest.raises(Failed, match=r"a\.conf: bad"):
        collected(monkeypatch, ("2", "sshd -f /a", ["-f", "/a"]))


def test_without_sshd_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshd, "find_program", lambda name: None)
    found = collected(monkeypatch)
    assert found == {"text": "", "lines": [], "answers": [], "unread": [], "unclear": [], "astray": []}


def test_a_listener_that_is_not_the_main_process_is_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, block=False)
    monkeypatch.setattr(sshd, "_listeners", lambda unclear: iter([("9", "/usr/sbin/sshd -D", [])]))
    monkeypatch.setattr(sshd, "_is_contained", lambda pid: pid == "10")
    others = [gpuprov_sshd.Listener(pid, 1, "/usr/sbin/sshd -D", ("22",), pid == 9) for pid in (9, 10)]
    monkeypatch.setattr(gpuprov_sshd, "others", lambda: others)
    found: Any = sshd.sshd({"login": "ops", "strangers": ["gpuprov-unknown", "198.51.100.1"]})
    assert found["astray"] == ["process 9 (/usr/sbin/sshd -D)"]


def test_files_are_not_read_if_they_are_newer_than_the_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, pidfile = tmp_path / "sshd_config", tmp_path / "sshd.pid"
    config.write_text("")
    pidfile.write_text(f"{os.getpid()}\n")
    trace = (
        f"debug2: load_server_config: filename {config}\ndebug2: x line 1: new include {tmp_path}/d/*.conf\n"
    )
    first: Any = (TEXT.format(pidfile, "no"), [], trace)
    monkeypatch.setattr(sshd, "_started", lambda pid: 0.0 if pid == "8" else 100.0)
    os.utime(config, (200, 200))
    os.utime(pidfile, (300, 300))
    assert sshd._unread(str(os.getpid()), first) == []
    os.utime(pidfile, (150, 150))
    assert sshd._unread(str(os.getpid()), first) == [str(config)]
    assert sshd._unread("1", first) == [str(config)]  # the file has the number of another process
    assert sshd._unread("8", first) == []  # that of a connection, which has ended
    os.utime(config, (101, 101))
    assert sshd._unread("1", first) == []


@pytest.mark.parametrize(
    ("text", "options", "unread"),
    [
        ("# of the site\nSSHD_OPTS=\n", "", False),
        ("", "", False),
        ('SSHD_OPTS="-o UseDNS=no  -4"\n', " -o UseDNS=no -4", False),
        ('SSHD_OPTS="-o PermitRootLogin=yes"\n', "", True),
        ('#SSHD_OPTS="-4"\n', " -4", True),
    ],
)
def test_a_file_read_at_the_start_counts_by_its_options(
    text: str, options: str, unread: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ssh"
    path.write_text(text)
    monkeypatch.setattr(sshd, "_started", lambda pid: 100.0)
    monkeypatch.setattr(sshd, "ENVIRONMENT_FILES", (str(path),))
    title = f"sshd: /usr/sbin/sshd -D{options} [listener] 0 of 10-100 startups\0"
    monkeypatch.setattr(sshd, "read_or_none", lambda path, size=0: title)
    first: Any = (TEXT.format("none", "no"), [], "")
    assert sshd._unread("9", first) == ([str(path)] if unread else [])


def test_a_process_has_a_start() -> None:
    assert sshd._started(str(os.getpid())) > 0
    assert sshd._started("0") == 0.0


def test_services_of_pam_are_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sshd, "SERVICES", (str(tmp_path),))
    (tmp_path / "sshd").write_text(f"# x\n@include common\nauth include {tmp_path}/own\nauth substack gone\n")
    (tmp_path / "common").write_text("auth required pam_unix.so\n@include sshd\n")
    (tmp_path / "own").write_text("auth required pam_deny.so\n")
    found = sshd.pam({})
    assert sorted(found) == [str(tmp_path / "own"), "common", "sshd"]
    assert found["common"][0] == [f"{tmp_path}/common:1", "auth required pam_unix.so"]


@pytest.mark.parametrize(
    ("users", "contained"), [("0\t0\t0\t0", False), ("65534\t0\t0\t0", True), ("0\t65534\t0\t0", True)]
)
def test_a_program_that_a_user_runs_as_root_is_no_listener(
    users: str, contained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sshd, "text_in", lambda path: f"Name:\tsshd\nUid:\t{users}\nGid:\t0\t0\t0\t0\n")
    monkeypatch.setattr(sshd, "_link", lambda path: "pid:[1]")
    assert sshd._is_contained("7") == contained


def test_where_no_sshd_could_run_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch)
    monkeypatch.setattr(sshd, "find_program", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(sshd, "run_anyway", lambda *words, **_: (255, "", f"{sshd.NO_FOLDER}: /run/sshd\n"))
    assert collected(monkeypatch)["answers"] == collected(monkeypatch)["unclear"] == []
    with pytest.raises(Failed, match="Missing privilege"):
        collected(monkeypatch, ("1", "sshd", []))


def test_a_reload_that_has_removed_its_number_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, pidfile, waited = tmp_path / "sshd_config", tmp_path / "sshd.pid", list[float]()
    config.write_text("")
    os.utime(config, (200, 200))
    monkeypatch.setattr(sshd, "_started", lambda pid: 100.0)
    monkeypatch.setattr(sshd, "ENVIRONMENT_FILES", ())

    def write(seconds: float) -> None:
        """Record the pause, and write the file with the process number."""
        waited.append(seconds)
        pidfile.write_text(f"{os.getpid()}\n")
        os.utime(pidfile, (300, 300))

    monkeypatch.setattr(sshd.time, "sleep", write)
    first: Any = (TEXT.format(pidfile, "no"), [], f"debug2: load_server_config: filename {config}\n")
    assert sshd._unread(str(os.getpid()), first) == []
    assert waited == [sshd.RELOAD_S]
    first = (TEXT.format("none", "no"), [], f"debug2: load_server_config: filename {config}\n")
    assert sshd._unread(str(os.getpid()), first) == [str(config)]
    assert len(waited) == 1
