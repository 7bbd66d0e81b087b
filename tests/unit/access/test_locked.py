"""Settings of SSH and firewall as the lock records them, and refusals before any change."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from pydantic import ValidationError

from gpuprov.access.locked import unprotected_port, with_access
from gpuprov.access.ruleset import ruleset
from gpuprov.access.sshd import policies
from gpuprov.errors import Refused
from gpuprov.model.connection import Connection
from gpuprov.model.lock import Setting
from gpuprov.model.locked_settings import completed
from gpuprov.model.settings.access import Firewall, Ssh
from tests.systems import SUPPORTED

HOSTS = {"gpu01": "10.0.0.1", "gpu02": "10.0.0.2", "gpu03": "fd00::3"}
OLD = "rhel8"
"""A system with an OpenSSH that has neither drop-ins nor a post-quantum key exchange."""


def locked(
    ssh: dict[str, Any] | None = None,
    firewall: dict[str, Any] | None = None,
    *,
    system: str = "debian12",
    user: str = "ops",
    port: int = 22,
    hosts: dict[str, str] = HOSTS,
    own: dict[str, Connection] | None = None,
) -> dict[str, Any]:
    """Return the settings `ssh` and `firewall` as the lock records them, those that are stated.

    Check also that reading them from a lock changes nothing: a node's answer is compared with each text.
    """
    stated = {}
    if ssh is not None:
        stated["ssh"] = Ssh.model_validate(ssh).model_dump(exclude_none=True)
    if firewall is not None:
        stated["firewall"] = Firewall.model_validate(firewall).model_dump(exclude_none=True)
    settings = {name: Setting(value=value, reason="", source="fleet.yml") for name, value in stated.items()}
    connection = Connection(user=user, port=port)
    found = with_access(settings, system=system, connection=connection, hosts=hosts, own=own)
    values = {name: setting.value for name, setting in found.items()}
    written = json.loads(json.dumps(values))
    assert completed(written) == written
    return values


@pytest.mark.parametrize("system", SUPPORTED)
@pytest.mark.parametrize("policy", ["modern", "compatible"])
def test_every_policy_has_algorithms_for_every_system(system: str, policy: str) -> None:
    if (system, policy) == (OLD, "modern"):
        with pytest.raises(Refused, match=r"of rhel8 is 8\.0, without a key exchange of `modern`"):
            locked({"policy": policy}, system=system)
        return
    options = locked({"policy": policy}, system=system)["ssh"]["options"]
    users = "PubkeyAcceptedKeyTypes" if system == OLD else "PubkeyAcceptedAlgorithms"
    for keyword in ("KexAlgorithms", "Ciphers", "MACs", "HostKeyAlgorithms", users):
        assert all(options[keyword].split(",")), keyword
    assert options["PasswordAuthentication"] == options["KbdInteractiveAuthentication"] == "no"


def test_algorithms_go_by_the_installed_openssh() -> None:
    of = {system: locked({}, system=system)["ssh"]["options"] for system in ("debian12", "debian13")}
    assert of["debian12"]["KexAlgorithms"] == "sntrup761x25519-sha512@openssh.com"
    assert of["debian13"]["KexAlgorithms"].startswith("mlkem768x25519-sha256,")
    assert "RequiredRSASize" not in locked({}, system="ubuntu22.04")["ssh"]["options"]  # new in 9.1


def test_no_policy_offers_what_is_broken() -> None:
    for policy in policies()["policies"].values():
        names = [*(each["name"] for each in policy["kex"]), *policy["ciphers"], *policy["macs"]]
        assert not [
            name for name in names if "sha1" in name or "cbc" in name or "nistp" in name or "umac-64" in name
        ]


def test_an_openssh_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(Refused, match=r"8\.0 or later"):
        locked({}, system="sles15")


def test_an_old_openssh_gets_only_keywords_and_names_that_it_knows() -> None:
    options = locked({"policy": "compatible"}, system=OLD)["ssh"]["options"]
    later = {"PubkeyAcceptedAlgorithms", "RequiredRSASize", "PerSourcePenaltyExemptList", "Include"}
    assert not later & set(options)
    assert not re.search("sk-|sntrup|mlkem", " ".join(options.values()))


def test_an_old_openssh_has_two_keywords_for_one_method_and_both_are_off() -> None:
    options = locked({"policy": "compatible"}, system=OLD)["ssh"]["options"]
    assert options["KbdInteractiveAuthentication"] == options["ChallengeResponseAuthentication"] == "no"
    assert "ChallengeResponseAuthentication" not in locked({}, system="rhel9")["ssh"]["options"]


def test_root_is_not_shut_out_while_the_fleet_logs_in_as_root() -> None:
    with pytest.raises(Refused, match="logs in as root"):
        locked({"root": "no"}, user="root")
    assert locked({"root": "no"})["ssh"]["options"]["PermitRootLogin"] == "no"


def test_a_new_port_comes_beside_the_old_one() -> None:
    values = locked({"port": 2222}, {})
    assert values["ssh"]["options"]["Port"] == "22 2222"
    assert "tcp dport { 22, 2222 } accept" in values["firewall"]["ruleset"]["input"]
    assert locked({"port": 2222}, port=2222)["ssh"]["options"]["Port"] == "2222"


@pytest.mark.parametrize(
    ("stated", "now", "warned"), [(2222, 22, False), (2222, 2222, True), (222, 2222, False)]
)
def test_an_sshd_whose_ports_any_user_can_take_is_warned_of(stated: int, now: int, warned: bool) -> None:
    value = locked({"port": stated}, port=now)["ssh"]
    setting = Setting(value=value, reason="", source="fleet.yml")
    assert unprotected_port({}) == ""
    assert ("any user of a node can take" in unprotected_port({"ssh": setting})) is warned


def test_networks_become_sets_of_each_family_without_overlaps() -> None:
    stated = {"ssh_from": ["192.0.2.7/24", "192.0.2.128/25", "2001:db8::/32"]}
    rules = locked(firewall=stated)["firewall"]["ruleset"]
    assert rules["networks"] == {
        "ssh4": ["192.0.2.0/24"],
        "ssh6": ["2001:db8::/32"],
        "fleet4": ["10.0.0.1", "10.0.0.2"],
        "fleet6": ["fd00::3"],
    }
    assert rules["input"][0].endswith("policy drop;")
    assert "ip saddr @ssh4 tcp dport 22 accept" in rules["input"]
    assert "tcp dport 22 accept" not in rules["input"]


def test_ports_of_containers_are_the_fleets_unless_stated() -> None:
    stated = {"monitor_from": ["10.9.0.0/16"], "trusted_interfaces": ["ib*"]}
    assert locked(firewall=stated)["firewall"]["ruleset"]["forward"][1:] == [
        "ct state established,related accept",
        'iifname "docker*" accept',
        'iifname "podman*" accept',
        'iifname "cni-podman*" accept',
        'iifname "br-*" accept',
        'iifname "ib*" accept',
        "ip saddr @fleet4 accept",
        "ip6 saddr @fleet6 accept",
        "ip saddr @monitor4 accept",
        "ct status dnat drop",
        'oifname "docker*" drop',
        'oifname "podman*" drop',
        'oifname "cni-podman*" drop',
        'oifname "br-*" drop',
    ]
    assert len(locked(firewall={"published": "any"})["firewall"]["ruleset"]["forward"]) == 1


def test_an_uplink_that_is_named_like_a_network_of_docker_is_none_in_both_directions() -> None:
    rules = locked(firewall={"uplinks": ["br-ex", "br-mgmt"]})["firewall"]["ruleset"]["forward"]
    assert [rule for rule in rules if "br-" in rule] == [
        'iifname != "br-ex" iifname != "br-mgmt" iifname "br-*" accept',
        'oifname != "br-ex" oifname != "br-mgmt" oifname "br-*" drop',
    ]


def test_a_fleet_known_by_name_only_is_refused() -> None:
    with pytest.raises(Refused, match="address of gpu01"):
        locked(firewall={}, hosts={"gpu01": "gpu01"})
    assert locked(firewall={"fleet": ["10.0.0.0/8"]}, hosts={"gpu01": "gpu01"})


@pytest.mark.parametrize(
    ("shape", "stated"),
    [
        (Ssh, {"allow_groups": ["ops\nPermitRootLogin yes"]}),
        (Ssh, {"allow_groups": ["ops; reboot"]}),
        (Ssh, {"user_ca": ["ssh-ed25519 AAAA ca\nssh-ed25519 BBBB other"]}),
        (Ssh, {"user_ca": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}),
        (Ssh, {"port": 70000}),
        (Ssh, {"exempt": ["10.0.0.0/8,0.0.0.0/0"]}),
        (Firewall, {"trusted_interfaces": ['ib0" accept']}),
        (Firewall, {"uplinks": ['br-ex" accept']}),
        (Firewall, {"ssh_from": ["10.0.0.0/8 } accept"]}),
        (Firewall, {"ssh_from": []}),
        (Firewall, {"open": [{"ports": [22], "protocol": "tcp } accept"}]}),
    ],
)
def test_no_setting_smuggles_words_of_its_own(
    shape: type[Ssh] | type[Firewall], stated: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        shape.model_validate(stated)


def test_nodes_whose_own_way_in_would_be_shut_are_refused() -> None:
    own = {"gpu01": Connection(port=40022)}
    with pytest.raises(
        Refused, match=r"gpu01 is reached on port 40022, and settings\.ssh has sshd listen on 22"
    ):
        locked({}, own=own)
    assert locked({"port": 40022}, own=own)["ssh"]["options"]["Port"] == "22 40022"
    with pytest.raises(Refused, match="gpu01 is reached as root: that login would stop working"):
        locked({"root": "no"}, own={"gpu01": Connection(user="root")})
    assert locked({"root": "no"}, own={"gpu01": Connection(user="ops")})
    assert locked({}, own={"gpu01": Connection(user="root")})
    rules = locked(firewall={"ssh_from": ["10.0.0.0/8"]}, own=own)["firewall"]["ruleset"]["input"]
    assert any("{ 22, 40022 }" in rule for rule in rules)


@pytest.mark.parametrize(
    ("anywhere", "networks", "rule"),
    [
        ("0.0.0.0/0", {"ssh4": ["0.0.0.0/0"]}, "ip saddr @ssh4 tcp dport 22 accept"),
        ("::/0", {"ssh6": ["::/0"]}, "ip6 saddr @ssh6 tcp dport 22 accept"),
    ],
)
def test_all_addresses_of_one_ip_version_leave_the_other_one_closed(
    anywhere: str, networks: dict[str, list[str]], rule: str
) -> None:
    rules = locked(firewall={"ssh_from": [anywhere], "fleet": []})["firewall"]["ruleset"]
    assert rules["networks"] == networks
    assert [line for line in rules["input"] if "dport 22 " in line] == [rule]


def test_all_addresses_of_both_ip_versions_need_no_set() -> None:
    rules = locked(firewall={"ssh_from": ["0.0.0.0/0", "::/0"], "fleet": []})["firewall"]["ruleset"]
    assert rules["networks"] == {}
    assert "tcp dport 22 accept" in rules["input"]


def test_a_fleet_that_states_no_user_logs_in_as_root() -> None:
    ssh = {"ssh": Setting(value=Ssh(root="no").model_dump(exclude_none=True), reason="", source="")}
    with pytest.raises(Refused, match="logs in as root"):
        with_access(ssh, system="debian12", connection=Connection(), hosts=HOSTS)


def test_the_addresses_of_a_fleet_are_read_once_for_all_groups() -> None:
    """Check the time of many groups: 1,200, each with a firewall, took 24 s."""
    hosts = {f"n{number}": f"10.0.{number // 250}.{number % 250}" for number in range(2000)}
    begun = time.process_time()
    for _ in range(100):
        rules = ruleset(Firewall(ssh_from=["10.0.0.0/8"]), [22], hosts)
        assert rules["networks"]["fleet4"].pop() == "10.0.7.248/31"
    assert time.process_time() - begun < 2
