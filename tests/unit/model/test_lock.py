"""Values that a lock implies: which modules are compiled on nodes, and how a host is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuprov.errors import InvalidInput
from gpuprov.model import documents
from gpuprov.model.connection import Connection
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.roles import expectations
from tests import RECORDED_LOCK

RULESET = {"networks": {}, "input": [], "forward": []}


@pytest.mark.parametrize(
    ("package", "compiled"),
    [
        ("nvidia-kernel-dkms", True),
        ("nvidia-dkms-580-server-open", True),
        ("kmod-nvidia-latest-dkms", True),
        ("nvidia-headless-no-dkms-580-server-open", False),
        ("linux-modules-nvidia-580-server-open-generic", False),
    ],
)
def test_a_module_is_compiled_by_packages_with_dkms(package: str, *, compiled: bool) -> None:
    [group] = read_lock(RECORDED_LOCK).groups.values()
    driver = group.components.driver.model_copy(update={"module_package": package})
    assert driver.compiled is compiled


def test_a_host_is_reached_by_its_own_settings_and_those_of_its_group() -> None:
    [group] = read_lock(RECORDED_LOCK).groups.values()
    shared, own = Connection(user="ops", port=22), Connection(port=40022)
    group = group.model_copy(update={"connection": shared, "connections": {"gpu01": own}})
    assert group.connection_of("gpu01") == Connection(user="ops", port=40022)
    assert group.connection_of("gpu02") == shared
    assert group.model_copy(update={"connections": None}).connection_of("gpu01") == shared


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "all", "ungrouped", "a b"])
def test_a_lock_has_no_host_whose_name_is_another_to_ansible(tmp_path: Path, name: str) -> None:
    text = RECORDED_LOCK.read_text(encoding="utf-8")
    [group] = read_lock(RECORDED_LOCK).groups.values()
    known = next(iter(group.hosts))
    (tmp_path / "fleet.lock.yml").write_text(text.replace(f"{known}:", f"{name}:"), encoding="utf-8")
    with pytest.raises(InvalidInput, match="host names"):
        read_lock(tmp_path / "fleet.lock.yml")


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("clocks", 5, "clocks as `gpuprov lock` writes it"),
        ("clocks", {"graphics": []}, r"clocks.graphics as `gpuprov lock` writes it"),
        ("mig", "1g.5gb", "mig as"),
        ("scratch", [{"device": 5}], "scratch.0.device as"),
        ("tuning", {"sysctl": []}, "tuning.sysctl as"),
        ("ssh", {"policy": "modern"}, "ssh.options as"),
        ("ssh", {"options": {"Port": "x"}}, "ssh.options.Port as"),
        ("ssh", {"options": {"Port": "22", "Banner": []}}, "ssh.options.Banner as"),
        ("firewall", {"ruleset": {"networks": {"ssh4": ["x"]}, "input": [], "forward": []}}, "ssh4.0 as"),
        ("storage_clients", ["nfs"], "storage_clients as"),
        ("health", "on", "health as"),
        ("nccl", {"NCCL_DEBUG": {}}, "nccl.NCCL_DEBUG"),
    ],
)
def test_a_setting_of_another_form_is_named(tmp_path: Path, setting: str, value: object, said: str) -> None:
    """`plan` reads a lock of another person's repository; the expectations of a role had a traceback."""
    document = yaml.safe_load(RECORDED_LOCK.read_text(encoding="utf-8"))
    [group] = document["groups"].values()
    group["settings"][setting] = {"value": value, "reason": "x", "source": "x"}
    (tmp_path / "fleet.lock.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        read_lock(tmp_path / "fleet.lock.yml")


@pytest.mark.parametrize(
    ("setting", "value", "completed"),
    [
        ("firewall", {"ruleset": RULESET}, ("trusted_interfaces", [])),
        ("firewall", {"ssh_from": ["10.1.2.3/8"], "ruleset": RULESET}, ("ssh_from", ["10.0.0.0/8"])),
        ("health", {}, ("interval", 60)),
        ("ssh", {"options": {"port": "zz", "Port": "22"}}, ("banner", None)),
    ],
)
def test_a_setting_that_states_a_part_has_the_defaults(
    tmp_path: Path, setting: str, value: object, completed: tuple[str, object]
) -> None:
    """Read what the form's model returns: a key that a lock lacked ended `plan` with a traceback."""
    document = yaml.safe_load(RECORDED_LOCK.read_text(encoding="utf-8"))
    [group] = document["groups"].values()
    group["settings"] = {setting: {"value": value, "reason": "x", "source": "x"}}
    (tmp_path / "fleet.lock.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    [read] = read_lock(tmp_path / "fleet.lock.yml").groups.values()
    key, expected = completed
    assert read.setting(setting).get(key) == expected
    assert expectations(read)


def test_a_setting_that_is_not_known_is_not_checked(tmp_path: Path) -> None:
    document = yaml.safe_load(RECORDED_LOCK.read_text(encoding="utf-8"))
    [group] = document["groups"].values()
    group["settings"]["later"] = {"value": 5, "reason": "x", "source": "x"}
    (tmp_path / "fleet.lock.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert read_lock(tmp_path / "fleet.lock.yml").groups


def test_a_lock_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock(RECORDED_LOCK)
    monkeypatch.setattr(documents, "MAX_BYTES", 1000)
    with pytest.raises(InvalidInput, match="would have"):
        write_lock(lock, tmp_path / "fleet.lock.yml")
    assert list(tmp_path.iterdir()) == []


NO_ADDRESSES = ("10.0.0.1\n10.9.9.9", "-oProxyCommand=x", "a b", "me@gpu2", "gpu2:22", "[::1]", "")


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_a_lock_has_no_host_that_is_not_an_address(tmp_path: Path, address: str) -> None:
    """Refuse it: each is an argument of ssh and a variable of Ansible."""
    document = yaml.safe_load(RECORDED_LOCK.read_text())
    [group] = document["groups"].values()
    group["hosts"] = dict.fromkeys(group["hosts"], address)
    path = tmp_path / "fleet.lock.yml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidInput, match="hosts"):
        read_lock(path)


@pytest.mark.parametrize("peer", NO_ADDRESSES)
def test_a_lock_has_no_peer_that_is_not_an_address(tmp_path: Path, peer: str) -> None:
    """Refuse it: each becomes a line of the configuration of IMEX."""
    document = yaml.safe_load(RECORDED_LOCK.read_text())
    [group] = document["groups"].values()
    path = tmp_path / "fleet.lock.yml"
    group["peers"] = ["gpu1", "10.0.0.2", "2001:db8::3"]
    path.write_text(yaml.safe_dump(document))
    [found] = read_lock(path).groups.values()
    assert found.addresses == group["peers"]
    group["peers"].append(peer)
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidInput, match="peers"):
        read_lock(path)
