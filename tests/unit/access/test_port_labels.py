"""Ports on which SELinux lets sshd listen, for the role and both witnesses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpuprov_sshd
import pytest

from gpuprov.probe.node.sshd import port_labels
from gpuprov.verify.observers.sshd import Sshd

POLICY = """\
SELinux Port Type              Proto    Port Number

http_port_t                    tcp      80, 2223
{moved}ssh_port_t                     tcp      22222, 3000-3002, {site}22
ssh_port_t                     udp      4000
"""
LOCAL = """\
# Do not edit directly.
portcon tcp 2222 system_u:object_r:ssh_port_t:s0
portcon tcp 5000-5001 system_u:object_r:ssh_port_t:s0
portcon udp 2224 system_u:object_r:ssh_port_t:s0
portcon tcp 2225 system_u:object_r:http_port_t:s0
portcon tcp 3001 system_u:object_r:http_port_t:s0
"""
LISTED = POLICY.replace("3000-3002", "3000, 3002").format(
    moved="http_port_t                    tcp      2225, 3001\n", site="2222, 5000-5001, "
)
"""Output of `semanage port --list` with the site's labels, in which a range is divided."""
CASES = [
    ("2222 5001", []),
    ("22222 3002 22", []),
    ("22 2224 2223", ["2223", "2224"]),
    ("2225 4000 1023", ["1023", "2225", "4000"]),
    ("3001", ["3001"]),
]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Give this machine SELinux and a site's labels; return the commands that were run."""
    (tmp_path / "ports.local").write_text(LOCAL)
    commands: list[tuple[str, ...]] = []

    def output(*command: str) -> str:
        """Return the list without the site's labels, which are read before."""
        commands.append(command)
        return POLICY.format(moved="", site="")

    monkeypatch.setattr(gpuprov_sshd, "ENFORCE", str(tmp_path))
    monkeypatch.setattr(gpuprov_sshd, "SITE_LABELS", (f"{tmp_path}/*.local",))
    monkeypatch.setattr(gpuprov_sshd, "output", output)
    return commands


@pytest.mark.parametrize(("ports", "expected"), CASES)
def test_ports_that_selinux_does_not_give_to_sshd(
    asked: list[tuple[str, ...]], ports: str, expected: list[str]
) -> None:
    assert sorted(gpuprov_sshd.unlabelled(ports.split())) == expected
    assert sorted(port_labels({"ssh_ports": ports.split()})) == expected


@pytest.mark.parametrize("ports", ["", "22", "2222 5000", "2225"])
def test_semanage_is_not_asked_about_ports_of_the_site(asked: list[tuple[str, ...]], ports: str) -> None:
    gpuprov_sshd.unlabelled(ports.split())
    assert not asked


def test_the_place_of_another_type_is_named(asked: list[tuple[str, ...]], tmp_path: Path) -> None:
    found = gpuprov_sshd.unlabelled(["22", "2222", "2223", "2225", "3001"])
    places = {port: f"{tmp_path}/ports.local:{line}" for port, line in (("2225", 5), ("3001", 6))}
    assert found == {"2223": None, **places}


def test_without_selinux_no_port_needs_a_label(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_sshd, "ENFORCE", "/nowhere")
    assert gpuprov_sshd.unlabelled(["2225", "4000"]) == {}
    assert not asked


def observed(ports: str, *, selinux: bool = True, labels: str = LISTED) -> list[str]:
    """Return the unlabelled ports that verify sees on a node."""

    def run(command: str, *_: Any) -> SimpleNamespace:
        """Answer about SELinux, and about labels."""
        return SimpleNamespace(succeeded=selinux, stdout="" if command.startswith("test ") else labels)

    found: list[str] = Sshd.get_module(SimpleNamespace(run=run)).unlabelled(ports.split())
    return found


@pytest.mark.parametrize(("ports", "expected"), CASES)
def test_verify_reads_the_list_of_semanage(ports: str, expected: list[str]) -> None:
    assert observed(ports) == expected
    assert observed(ports, selinux=False) == []


def test_verify_reads_the_site_s_labels_without_semanage() -> None:
    assert observed("22 2222 2225 22222", labels="ssh_port_t tcp 22\n" + LOCAL) == ["22222", "2225"]
