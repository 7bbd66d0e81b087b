"""Route to a node: first from the fleet, then from ssh's own configuration, then root and port 22."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import Connection
from gpuprov.model.lock import read_lock
from gpuprov.ssh import client_config
from gpuprov.ssh.openssh import ssh_argv
from gpuprov.ssh.route import KERBEROS, Route, route, with_absolute_paths
from tests import RECORDED_LOCK
from tests.unit.programs import write_program
from tests.unit.ssh.conftest import Configure

CONFIG = """\
Host rented
  HostName 203.0.113.7
  Port 40022
  User ubuntu
  IdentityFile ~/.ssh/rented-%h
  CertificateFile /keys/rented-cert.pub
  IdentityAgent /run/agent.sock
  IdentitiesOnly yes
  ProxyJump ops@gate:2222
  HostKeyAlias rented-machine
  UserKnownHostsFile /keys/known /keys/more
Host gate
  HostName 192.0.2.9
  IdentityFile /keys/gate
Host odd
  ProxyCommand nc %h %p
"""


def test_root_and_22_where_nobody_says_anything(configure: Configure) -> None:
    for text in ("", "Host other\n  User ops\n"):
        configure(text)
        way = route("gpu01", Connection())
        assert (way.hostname, way.user, way.port, way.jump) == ("gpu01", "root", 22, None)
        assert way.identity_files[0] == "~/.ssh/id_rsa"


def test_what_the_fleet_leaves_open_is_as_ssh_is_configured(configure: Configure) -> None:
    configure(CONFIG)
    way = route("rented", Connection())
    assert (way.address, way.hostname, way.user, way.port) == ("rented", "203.0.113.7", "ubuntu", 40022)
    assert way.identity_files == ("~/.ssh/rented-203.0.113.7",)
    assert (way.certificate_files, way.agent) == (("/keys/rented-cert.pub",), "/run/agent.sock")
    assert way.identities_only
    assert (way.host_key_names, way.known_hosts) == (("rented-machine",), ("/keys/known", "/keys/more"))
    assert way.pinned_as == ("rented-machine", 22)
    assert route("odd", Connection(port=2200)).proxy_command == "nc odd 2200"


def test_the_fleets_word_counts_before_that_of_the_configuration(configure: Configure) -> None:
    configure(CONFIG)
    stated = Connection(
        user="admin", port=2200, identity_file="/keys/fleet", known_hosts="/keys/fleet_known", jump="none"
    )
    way = route("rented", stated)
    assert (way.user, way.port, way.jump, way.known_hosts) == ("admin", 2200, None, ("/keys/fleet_known",))
    assert (way.identity_files, way.certificate_files) == (("/keys/fleet",), ())


def test_a_host_on_the_way_has_a_route_of_its_own(configure: Configure) -> None:
    configure(CONFIG)
    gate = route("rented", Connection()).jump
    assert gate is not None
    assert (gate.address, gate.hostname, gate.user, gate.port) == ("gate", "192.0.2.9", "ops", 2222)
    assert gate.identity_files == ("/keys/gate",)
    hop = route("gpu01", Connection(jump="gate,inner:23", identity_file="/keys/fleet", known_hosts="/k")).jump
    assert hop is not None
    assert hop.jump is not None
    assert (hop.address, hop.port, hop.jump.address) == ("inner", 23, "gate")
    assert hop.user == getpass.getuser(), "ssh enters a host on the way as the local user"
    assert hop.identity_files[:2] == ("/keys/fleet", "~/.ssh/id_rsa")
    assert hop.known_hosts[0] == "/k"


@pytest.mark.usefixtures("configure")
def test_without_configuration_a_jump_host_has_the_local_user_as_with_ssh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use ssh_config(5)'s default of User for jump hosts; only nodes default to root."""
    assert not any(Path(path).exists() for path in client_config.FILES)
    monkeypatch.setattr("gpuprov.ssh.route.whoami", lambda: "alice")
    way = route("gpu01", Connection(jump="gate,ops@inner"))
    assert way.jump is not None
    assert way.jump.jump is not None
    assert [each.user for each in (way, way.jump, way.jump.jump)] == ["root", "ops", "alice"]


def test_a_host_that_leads_to_itself_is_entered_straight_and_a_circle_is_refused(
    configure: Configure,
) -> None:
    configure("Host *\n  ProxyJump gate\n")
    way = route("gpu01", Connection())
    assert way.jump is not None
    assert way.jump.jump is None
    configure("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(
        InvalidInput,
        match=r"^more than 8 jump hosts, the last one .; check ProxyJump in ~/.ssh/config for a loop",
    ):
        route("a", Connection())


@pytest.mark.parametrize("match", ["user ops", 'exec "test %r = ops"', "!user {local}"])
def test_options_are_those_of_the_user_that_the_login_states(configure: Configure, match: str) -> None:
    """Compare `Match` lines with the user of the login, also if they precede the line that names it."""
    lines = ["RevokedHostKeys /etc/revoked", "GSSAPIDelegateCredentials yes", "ProxyCommand relay %h"]
    lines = [f"Match {match.format(local=getpass.getuser())}", *lines, "Host *", "User ops"]
    configure("".join(f"{line}\n" for line in lines))
    way = route("gpu01", Connection())
    assert (way.user, way.revoked_keys, way.kerberos) == ("ops", ("/etc/revoked",), KERBEROS[:1])
    assert way.proxy_command == "relay gpu01"
    local = route("gpu01", Connection(user=getpass.getuser()))
    assert (local.revoked_keys, local.kerberos, local.proxy_command) == ((), (), None)


def test_a_port_that_counts_for_the_user_of_the_login_is_used(configure: Configure) -> None:
    configure("Match user ops\n  Port 2200\nHost *\n  User ops\n")
    assert route("gpu01", Connection()).port == 2200
    assert route("gpu01", Connection(port=23)).port == 23


def test_a_jump_hosts_options_are_those_of_its_user(configure: Configure) -> None:
    configure("Match user ops\n  RevokedHostKeys /etc/revoked\nHost gate\n  User ops\n")
    gate = route("gpu01", Connection(jump="gate")).jump
    assert gate is not None
    assert (gate.user, gate.revoked_keys) == ("ops", ("/etc/revoked",))


@pytest.mark.parametrize(
    ("text", "user"), [("", "ops"), ("User {local}\n", "{local}"), ("User bob\n", "bob")]
)
def test_the_local_user_counts_only_if_a_file_names_it(configure: Configure, text: str, user: str) -> None:
    """Take another default in place of the local user, which `ssh -G` prints also if no file names one."""
    local = getpass.getuser()
    configure("Host *\n  Port 22\n" + text.format(local=local))
    for address in ("gpu01", "gpu02"):
        found = client_config.client_config(address, None, None, otherwise="ops")
        assert (found["user"], found["hostname"]) == ((user.format(local=local),), (address,))


OTHER_SITE = "ProxyCommand nc proxy x\n"
OWN = "RevokedHostKeys /etc/revoked\n"


@pytest.mark.parametrize(
    ("text", "revoked", "proxy"),
    [
        (f"Host h*\n{OTHER_SITE}", False, False),
        (f"Host *.*\n{OTHER_SITE}", False, False),
        (f"Host ????????????\n{OTHER_SITE}", False, False),
        (f"Host * !*.*\n{OWN}", True, False),
        (f"Host !*.* *\n{OWN}", True, False),
        (f"Host 'gpu01'\n{OWN}", True, False),
        (f'"Host" gpu01\n{OWN}', True, False),
        (f"Host\rgpu01\n{OWN}", True, False),
        (f"Host other #\x0cgpu01\nUser a\x0c\nHost=gpu01 # ours\n{OWN}", True, False),
        ('Include "{folder}/my config"\n', True, False),
        ("Include {folder}/my\\ config\n", True, False),
        ("Include {folder}/outer\n", True, False),
        ("Include {folder}/[[:alpha:]]nner\n", True, False),
    ],
)
def test_a_hosts_options_are_those_that_ssh_prints_for_it(
    configure: Configure, tmp_path: Path, text: str, *, revoked: bool, proxy: bool
) -> None:
    """Apply no section for other hosts, and each that is for the host, as ssh reads them."""
    (tmp_path / "my config").write_text(f"Host gpu01\n{OWN}")
    (tmp_path / "outer").write_text(f"Include {tmp_path}/inner\n")
    (tmp_path / "inner").write_text(f"Host gpu01\n{OWN}")
    path = configure(text.format(folder=tmp_path))
    printed = subprocess.run(["ssh", "-G", "-F", path, "gpu01"], capture_output=True, text=True, check=True)
    assert ("revokedhostkeys /etc/revoked\n" in printed.stdout) == revoked
    way = route("gpu01", Connection())
    assert (way.revoked_keys, way.proxy_command is not None) == (("/etc/revoked",) * revoked, proxy)


@pytest.mark.parametrize(
    ("stated", "files"),
    [
        ('"~/a b/known" /etc/known', ("~/a b/known", "/etc/known")),
        ('"/x/a  b" "%d/known"', ("/x/a  b", "~/known")),
        ("known", ("/dev/null",)),
        ("none", ("/dev/null",)),
    ],
)
def test_known_hosts_files_are_those_that_ssh_reads(
    configure: Configure, stated: str, files: tuple[str, ...]
) -> None:
    """Read no file of the current folder, and none of the user's that the configuration excludes."""
    configure(f'Host *\n  UserKnownHostsFile {stated}\n  RevokedHostKeys "~/our keys/revoked"\n')
    way = route("gpu01", Connection())
    shown = tuple(path.replace(str(Path.home()), "~") for path in (*way.known_hosts, *way.revoked_keys))
    assert (shown[: len(files)], shown[-1]) == (files, "~/our keys/revoked")


def test_a_mistake_in_the_configuration_names_its_file_and_line(configure: Configure) -> None:
    path = configure("Host gpu01\n  Prot 22\n")
    with pytest.raises(InvalidInput) as raised:
        route("gpu01", Connection())
    assert str(raised.value) == f"ssh cannot read its configuration: {path}:2: Bad configuration option: prot"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Host far-*\n  User ops\n", 2),  # one call for all hosts that no pattern names, one for far-1
        ("Match host far-1\n  User ops\n", 4),
        ("Match host far-1\n  User ops\nMatch user alice\n  Port 23\n", 8),  # the user is known by then
        ("Host *\n  HostName %h.example.org\n", 4),
        ("Include {more}\n", 2),
    ],
)
def test_ten_thousand_hosts_do_not_cost_ten_thousand_processes(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, asked: int
) -> None:
    (tmp_path / "more").write_text("Host far-1\n  User ops\n")
    configure(text.format(more=tmp_path / "more"))
    commands = []
    run = subprocess.run

    def count(command: list[str], **options: object) -> object:
        commands.append(command[-1])
        return run(command, **options)  # type: ignore[call-overload]

    client_config.usual_keys()
    monkeypatch.setattr(client_config.subprocess, "run", count)
    ways = [route(name, Connection()) for name in ("gpu01", "gpu02", "gpu03", "far-1")]
    assert len(commands) == asked
    example = text.startswith("Host *")
    assert [way.hostname for way in ways][:2] == (
        ["gpu01.example.org", "gpu02.example.org"] if example else ["gpu01", "gpu02"]
    )
    assert [way.user for way in ways] == ["root", "root", "root", "root" if example else "ops"]


def test_without_ssh_there_is_no_need_of_it_as_long_as_nothing_is_configured(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert route("gpu01", Connection()).place == "root@gpu01"
    configure("Host *\n  User ops\n")
    with pytest.raises(InvalidInput, match="ssh is not installed here"):
        route("gpu01", Connection())
    write_program(tmp_path / "ssh", "exit 255")
    with pytest.raises(InvalidInput, match="ssh cannot read its configuration: no message"):
        route("gpu01", Connection())


@pytest.mark.parametrize(("address", "place"), [("2001:db8::2", "root@[2001:db8::2]:23"), ("a", "root@a:23")])
def test_places_as_people_write_them(configure: Configure, address: str, place: str) -> None:
    way: Route = route(address, Connection(port=23))
    assert way.place == place


def test_files_are_found_from_every_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    for identity, known, expected in (
        ("keys/id", "~/known", (str(tmp_path / "keys/id"), "/home/me/known")),
        ("~gpuprov-unknown/id", None, (str(tmp_path / "~gpuprov-unknown/id"), None)),
    ):
        stated = Connection(identity_file=identity, known_hosts=known)
        changed = {name: group.model_copy(update={"connection": stated})}
        found = with_absolute_paths(lock.model_copy(update={"groups": changed})).groups[name].connection
        assert (found.identity_file, found.known_hosts) == expected


@pytest.mark.parametrize("option", KERBEROS)
def test_kerberos_gives_no_host_a_ticket_or_replaces_its_key(configure: Configure, option: str) -> None:
    """Delegate no ticket, and check host keys, of nodes and jump hosts, also if `Host *` states otherwise."""
    path = configure(f"Host *\n{option} yes\n")
    argv = ssh_argv(route("gpu01", Connection(jump="gate")), 5)
    words = [argv[0], "-G", "-F", str(path), *argv[1 : argv.index("--")], "gpu01"]
    seen = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert f"{option.lower()} no\n" in seen
    [jump] = [line for line in seen.splitlines() if line.startswith("proxycommand ")]
    assert f"{option}=no" in jump
    configure("")
    assert not any("GSSAPI" in word for word in ssh_argv(route("gpu01", Connection(jump="gate")), 5))
