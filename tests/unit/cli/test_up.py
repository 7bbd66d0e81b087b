"""`gpuprov up`: one line and one question for one server; a host key is pinned only after consent."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gpuprov.apply.plan import NodePlan
from gpuprov.apply.proposal import Proposal
from gpuprov.bootstrap.run import NodeResult
from gpuprov.cli.common.group import run
from gpuprov.drift.judge import NodeDrift
from gpuprov.errors import Exit, InvalidInput, Unreachable
from gpuprov.inventory.discover import Match
from gpuprov.locking.inputs import digest
from gpuprov.model.fleet import read_fleet
from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.profile import load_profile
from tests import RECORDED_LOCK
from tests.unit.inventory.test_discover import simulated

REFUSED = Unreachable("root@127.0.0.1 refused every key offered")


@dataclass
class Site:
    """A server that shows a host key, and a record of what was done with it.

    Attributes:
        read: contents of the known-hosts file at each reading.
        refuses: whether the next reading is refused.
        busy: whether the plan has changes.
    """

    folder: Path
    port: int
    key: paramiko.PKey
    read: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    applied: list[list[str]] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    refuses: bool = False
    busy: bool = True

    @property
    def host(self) -> str:
        return f"root@127.0.0.1:{self.port}"

    @property
    def known(self) -> Path:
        return self.folder / "known"

    @property
    def pinned(self) -> bool:
        """Return whether the server's host key is in the known-hosts file."""
        return self.known.exists() and self.key.get_base64() in self.known.read_text()

    def up(self, *words: str) -> int:
        """Run `gpuprov up` for the server with more words; return the exit code."""
        return run(["up", self.host, "--known-hosts", str(self.known), *words])


class Typed(io.StringIO):
    """Answers on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def server() -> Iterator[tuple[int, paramiko.PKey]]:
    """Port and host key of an SSH server that opens to no login."""
    key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        """Serve SSH with the host key until the listener is closed."""
        while True:
            try:
                opened, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(opened)
            transport.add_server_key(key)
            transport.start_server(event=threading.Event(), server=paramiko.ServerInterface())

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], key
    listener.close()


def locked(fleet: Path, **_: Any) -> Lock:
    """Return the recorded lock as if it had been made from the fleet."""
    stated = read_fleet(fleet)
    [group] = stated.groups.values()
    lock = read_lock(RECORDED_LOCK)
    [recorded] = lock.groups.values()
    own = recorded.model_copy(update={"hosts": group.hosts})
    made_from = digest(stated, [load_profile(group.profile, [])], None, None)
    return lock.model_copy(update={"groups": {"own": own}, "inputs": made_from})


@pytest.fixture
def site(server: tuple[int, paramiko.PKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site with a real SSH server; its reading, plan and changes are fakes that are recorded."""
    port, key = server
    found = Site(tmp_path, port, key)

    def match_hosts(hosts: list[str], way: Any, *_: Any, **__: Any) -> Iterator[Any]:
        """Record the known hosts; yield the server's facts, or a refused login at first."""
        found.read.append(Path(way.known_hosts).read_text())
        refused, found.refuses = found.refuses, False
        yield hosts[0], REFUSED if refused else (simulated("a100x4", name="gpu1"), Match("hgx-a100-4", ()))

    def propose(lock: Lock, names: list[str], *_: Any, **__: Any) -> Proposal:
        """Record the known hosts; return a plan with the role docker if the site is `busy`."""
        [group] = lock.groups.values()
        found.planned.append(Path(str(group.connection_of(names[0]).known_hosts)).read_text())
        plan = NodePlan(names[0], ("docker",) if found.busy else (), reboot=False, because=(), beyond=())
        return Proposal([NodeDrift(names[0], "drifted" if found.busy else "in_sync")], [plan])

    def carry_out(chosen: Any, proposal: Proposal, _: Any, consent: Any, *__: Any) -> Exit:
        """Record the nodes of the plan; the host key must be pinned, and a reboot allowed."""
        assert found.pinned
        assert consent.reboot
        found.applied.append([plan.name for plan in proposal.busy])
        return Exit.OK

    def bootstrap(targets: Any, *_: Any, **__: Any) -> list[NodeResult]:
        """Record the prepared nodes; the host key must be pinned."""
        assert found.pinned
        found.prepared += [each.name for each in targets]
        return [NodeResult("gpu1", targets[0], changed=["the key may log in"])]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuprov.inventory.discover.match_hosts", match_hosts)
    monkeypatch.setattr("gpuprov.locking.build.build_lock", locked)
    monkeypatch.setattr("gpuprov.apply.proposal.propose", propose)
    monkeypatch.setattr("gpuprov.history.verified.not_verified", lambda *_: [])
    monkeypatch.setattr("gpuprov.cli.apply.carry_out", carry_out)
    monkeypatch.setattr("gpuprov.bootstrap.run.bootstrap", bootstrap)
    monkeypatch.setattr("gpuprov.bootstrap.public_keys.public_keys", lambda *_: ("ssh-ed25519 AAAA x",))
    return found


def test_one_line_and_one_question(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("y\n"))
    assert site.up() == 0
    said = capsys.readouterr().err
    assert said.count("[y/N]") == 1
    assert said.index("SHA256:") < said.index("[y/N]")
    assert said.index("gpu1: docker") < said.index("[y/N]")
    assert "chosen: driver 535.309.01; why: gpuprov explain driver" in said
    assert site.key.get_base64() in site.read[0]
    assert site.key.get_base64() in site.planned[0]
    assert (site.pinned, site.applied, site.prepared) == (True, [["gpu1"]], [])
    fleet = read_fleet(site.folder / "fleet.yml")
    [group] = fleet.groups.values()
    assert (group.profile, group.hosts, fleet.ssh.user) == ("hgx-a100-4", {"gpu1": "127.0.0.1"}, "root")
    assert "# jump:" in (site.folder / "fleet.yml").read_text()
    assert (site.folder / "fleet.lock.yml").exists()


def test_no_leaves_the_files_and_pins_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    assert site.up() == Exit.INTERRUPTED
    assert (site.pinned, site.applied) == (False, [])
    assert (site.folder / "fleet.yml").exists()


def test_the_same_line_continues(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    site.up()
    written = (site.folder / "fleet.lock.yml").stat().st_mtime_ns
    monkeypatch.setattr("sys.stdin", Typed("y\n"))
    assert site.up() == 0
    assert len(site.read) == 1
    assert (site.folder / "fleet.lock.yml").stat().st_mtime_ns == written
    assert site.applied == [["gpu1"]]


def test_a_changed_fleet_is_locked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    assert site.up() == Exit.INTERRUPTED
    *_, again, end = capsys.readouterr().err.splitlines()
    assert f" {site.host} was not changed; to continue, also after a change of fleet.yml: " in again
    assert again.endswith(f"gpuprov up {site.host}")
    assert end.startswith(f"gpuprov: you answered no to: trust this host key and change {site.host}, and")
    fleet = site.folder / "fleet.yml"
    before = read_lock(site.folder / "fleet.lock.yml").inputs
    fleet.write_text(fleet.read_text() + "security: ignore\n")
    site.up("--yes", "--accept-new")
    assert read_lock(site.folder / "fleet.lock.yml").inputs != before


def test_without_a_terminal_an_unknown_key_needs_its_own_consent(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.up("--yes") == Exit.USAGE
    said = capsys.readouterr().err
    assert "SHA256:" in said
    assert "--accept-new" in said
    assert (site.read, site.pinned) == ([], False)
    assert site.up("--yes", "--accept-new") == 0
    assert (site.pinned, site.applied) == (True, [["gpu1"]])


def test_another_key_than_the_given_one_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    given = site.folder / "given"
    other = paramiko.ECDSAKey.generate()
    given.write_text(f"[127.0.0.1]:{site.port} {other.get_name()} {other.get_base64()}\n")
    assert site.up("--yes", "--host-key", str(given)) == Exit.UNREACHABLE
    assert "is the right machine" not in capsys.readouterr().out
    assert site.read == []
    given.write_text(f"[127.0.0.1]:{site.port} {site.key.get_name()} {site.key.get_base64()}\n")
    assert site.up("--yes", "--host-key", str(given)) == 0


@pytest.mark.parametrize(("typed", "questions"), [("y\n", 1), ("p\ny\n", 2)])
def test_a_server_that_no_key_opens_is_prepared_after_one_question(
    typed: str,
    questions: int,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.refuses = True
    monkeypatch.setattr("sys.stdin", Typed(typed))
    assert site.up() == 0
    assert (site.prepared, site.applied, site.pinned) == ([site.host], [["gpu1"]], True)
    said = capsys.readouterr().err
    assert said.index("refused every key offered") < said.index("SHA256:") < said.index("Continue?")
    assert said.count("Continue?") + said.count("[y/N]") == questions


def test_a_prepared_server_is_not_changed_against_the_answer_to_its_plan(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.refuses = True
    monkeypatch.setattr("sys.stdin", Typed("p\nn\n"))
    assert site.up() == Exit.INTERRUPTED
    assert (site.prepared, site.applied) == ([site.host], [])


def test_a_server_is_prepared_without_questions(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.refuses = True
    assert site.up("--yes", "--accept-new") == 0
    assert (site.prepared, site.applied) == ([site.host], [["gpu1"]])
    assert "Continue?" not in capsys.readouterr().err


def test_a_server_that_is_down_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ["up", f"root@127.0.0.1:{port}", "--known-hosts", str(tmp_path / "known"), "--yes"]
    assert run([*words, "--fleet", str(tmp_path / "fleet.yml")]) == Exit.UNREACHABLE
    said = f"no SSH on 127.0.0.1 port {port}: connection refused; check the address, and that it is up"
    assert capsys.readouterr().err.splitlines() == [f"gpuprov: {said}"]


def test_a_key_that_does_not_exist_prepares_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.refuses = True
    monkeypatch.setattr("tests.unit.cli.test_up.REFUSED", InvalidInput("the key k does not exist"))
    assert site.up("--yes", "--accept-new") == Exit.USAGE
    assert site.prepared == []
    assert capsys.readouterr().err.splitlines()[-1] == "gpuprov: the key k does not exist"


def test_nothing_is_prepared_without_consent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.refuses = True
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    assert site.up() == Exit.INTERRUPTED
    assert (site.prepared, site.pinned) == ([], False)
    assert not (site.folder / "fleet.yml").exists()


def test_a_password_is_asked_for_only_after_the_host_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    monkeypatch.setattr("click.prompt", lambda *_, **__: pytest.fail("asked"))
    assert site.up("--ask-pass") == Exit.INTERRUPTED
    assert site.read == []
    assert "Trust this host key?" in capsys.readouterr().err


def test_nothing_to_do_still_pins_the_key(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.busy = False
    monkeypatch.setattr("sys.stdin", Typed("y\n"))
    assert site.up() == 0
    assert (site.pinned, site.applied) == (True, [])


@pytest.mark.parametrize(
    "hosts", ["'gpu[1-2]'", "{gpu1: 192.0.2.1}", "{gpu1: 'ops@127.0.0.1'}", "{gpu1: 127.0.0.1}"]
)
def test_another_fleet_is_left_alone(site: Site, hosts: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"groups:\n  train: {{profile: hgx-a100-4, os: debian12, hosts: {hosts}}}\n"
    (site.folder / "fleet.yml").write_text(text)
    assert site.up("--yes", "--accept-new") == Exit.USAGE
    said = capsys.readouterr().err
    assert "fleet.yml already exists, with gpu" in said
    assert "a new folder for this server" in said
    assert (site.folder / "fleet.yml").read_text() == text
    assert (site.read, site.applied) == ([], [])


def test_this_machine_needs_no_login(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "local"]) == Exit.USAGE
    assert "gpuprov apply --local --reboot" in capsys.readouterr().err
