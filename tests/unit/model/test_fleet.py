"""fleet.yml and profiles: users' mistakes and the messages about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model import nodeset, profile
from gpuprov.model.fleet import parse_fleet, read_fleet
from gpuprov.model.profile import DEEPEST, load_profile, shipped_profiles

GOOD = """\
groups:
  train:
    profile: hgx-h200-4
    hosts: gpu[01-03]
    os: debian12
    settings:
      clocks: {graphics: 1500, memory: 3201}
"""


def fleet(tmp_path: Path, text: str) -> Path:
    """Write a fleet.yml and return its path."""
    path = tmp_path / "fleet.yml"
    path.write_text(text)
    return path


def complaint(tmp_path: Path, text: str) -> str:
    """Return the message about an invalid fleet.yml, without the folder."""
    with pytest.raises(InvalidInput) as raised:
        read_fleet(fleet(tmp_path, text))
    return str(raised.value).removeprefix(str(tmp_path) + "/")


def test_node_sets_become_hosts(tmp_path: Path) -> None:
    train = read_fleet(fleet(tmp_path, GOOD)).groups["train"]
    assert train.hosts == {"gpu01": "gpu01", "gpu02": "gpu02", "gpu03": "gpu03"}


def test_a_mapping_gives_addresses(tmp_path: Path) -> None:
    text = GOOD.replace("gpu[01-03]", "{gpu01: 10.0.0.1}")
    assert read_fleet(fleet(tmp_path, text)).groups["train"].hosts == {"gpu01": "10.0.0.1"}


@pytest.mark.parametrize(
    ("wrong", "right", "line", "words"),
    [
        ("profle:", "profile:", 3, ["unknown key 'profle' in groups.train", "did you mean 'profile'?"]),
        ("graphic:", "graphics:", 7, ["unknown key 'graphic'", "did you mean 'graphics'?"]),
        ("groups:\n  train:\n", "", 1, ["unknown key 'profile'"]),
        ("sysctl: {}", "clocks: {graphics: 1500, memory: 3201}", 7, ["did you mean 'tuning.sysctl'?"]),
        ("fast", "1500", 7, ["clocks.graphics is \"fast\"", "a whole number"]),
        ("gpu[01-", "gpu[01-03]", 4, ["hosts is \"gpu[01-\"", "host names such as gpu[01-08]"]),
        ("'gpu; reboot'", "gpu[01-03]", 4, ["host names of at most 253 letters, digits"]),
        ("[localhost]", "gpu[01-03]", 4, ["host names other than 'localhost', which has a meaning"]),
        ("[image]", "gpu[01-03]", 4, ["host names other than 'image', which has a meaning"]),
        ("{all: 10.0.0.1}", "gpu[01-03]", 4, ["host names other than 'all', which has a meaning in Ansible"]),
        ("[gpu01, 7]", "gpu[01-03]", 4, ["a mapping of name to address"]),
        (
            "debian12\n    stack: {repository: distributon}", "debian12", 6,
            ["\"distributon\"; expected 'nvidia' or 'distribution'; did you mean 'distribution'?"],
        ),
        ("[]", "gpu[01-03]", 4, ["at least one host"]),
        ("../../etc/passwd", "hgx-h200-4", 3, ["profile is \"../../etc/passwd\""]),
        ("{a: b", "hgx-h200-4", 4, ["not YAML"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, wrong: str, right: str, line: int, words: list[str]
) -> None:
    text = GOOD.replace(right, wrong) if right else "profile: x\n"
    said = complaint(tmp_path, text)
    assert said.startswith(f"fleet.yml:{line}: "), said
    for word in words:
        assert word in said


def test_a_key_twice_is_named(tmp_path: Path) -> None:
    assert "fleet.yml:8: key 'groups' appears twice" in complaint(tmp_path, GOOD + "groups: {}\n")


def test_a_host_in_two_groups_is_named(tmp_path: Path) -> None:
    second = "  other:\n    profile: base\n    hosts: gpu02\n    os: debian12\n"
    assert "gpu02 is already in group train" in complaint(tmp_path, GOOD + second)


def test_aliases_are_refused(tmp_path: Path) -> None:
    """Check that YAML aliases, which could expand without limit, are refused."""
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    assert "fleet.yml:2: not YAML: aliases" in complaint(tmp_path, bomb)


def test_a_missing_file_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"does not exist; change to the fleet's folder, or begin with `gpuprov up"
    ):
        read_fleet(tmp_path / "fleet.yml")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read_fleet(path)


def test_profiles_extend_one_another_and_the_nearest_wins(tmp_path: Path) -> None:
    (tmp_path / "ours.yml").write_text("extends: hgx-h200-4\nsettings: {persistence: false}\n")
    ours = load_profile("ours", [tmp_path])
    assert ours.profile.hardware.gpu.model == "H200 SXM"
    assert ours.profile.settings.persistence is False
    assert ours.origins["persistence"] == "profile ours"
    assert ours.origins["kernel"] == "profile base"


def test_a_circle_of_profiles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("extends: b\n")
    (tmp_path / "b.yml").write_text("extends: a\n")
    with pytest.raises(InvalidInput, match="extends itself"):
        load_profile("a", [tmp_path])


def test_a_long_chain_of_profiles_is_refused(tmp_path: Path) -> None:
    for number in range(DEEPEST + 2):
        (tmp_path / f"p{number}.yml").write_text(f"extends: p{number - 1}\n" if number else "{}\n")
    assert load_profile(f"p{DEEPEST}", [tmp_path]).name == f"p{DEEPEST}"
    with pytest.raises(InvalidInput, match="extends more than 16 profiles, the last one 'p0'"):
        load_profile(f"p{DEEPEST + 1}", [tmp_path])


def test_a_profile_that_others_extend_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base-of-ours.yml").write_text("{}\n")
    for name in "abc":
        (tmp_path / f"{name}.yml").write_text("extends: base-of-ours\n")
    read: list[str] = []
    really = profile.read_document
    monkeypatch.setattr(
        profile, "read_document", lambda path, shape: read.append(path.stem) or really(path, shape)
    )
    profiles = profile.Profiles([tmp_path])
    assert [profiles.load(name).name for name in "abc"] == ["a", "b", "c"]
    assert sorted(read) == ["a", "b", "base-of-ours", "c"]


@pytest.mark.parametrize("key", ["profile_dirs", "catalog_dirs"])
def test_a_folder_cannot_be_named_any_number_of_times(tmp_path: Path, key: str) -> None:
    said = complaint(tmp_path, f"{GOOD}{key}: [{', '.join(['own'] * 17)}]\n")
    assert "at most 16 items" in said


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("groups:\n", "  g{0}: {{profile: x, hosts: 'g{0}n[1-9]', os: debian12}}\n"),
        (f"{GOOD}racks:\n", "  r{0}: gpu[01-09]\n"),
        (f"{GOOD}nvlink_domains:\n", "  r{0}: gpu[01-09]\n"),
        (f"{GOOD}also:\n", "  r{0}: {{hosts: 'gpu[01-09]'}}\n"),
    ],
)
def test_the_names_of_all_sets_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, line: str
) -> None:
    """Without it, 100 sets of the largest size took minutes and gigabytes."""
    monkeypatch.setattr(nodeset, "ALTOGETHER", 30)
    text = head + "".join(line.format(number) for number in range(4))
    assert "expected at most 30 host names in all sets of a document" in complaint(tmp_path, text)
    assert read_fleet(fleet(tmp_path, GOOD)).groups  # the limit is one of each document


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="expected one of hgx-h200-4, hgx-h200-8, hgx-h100-4;"):
        load_profile("hgx-h20-4", [])


def test_every_shipped_profile_reads() -> None:
    names = [name for name, _ in shipped_profiles()]
    assert "base" in names
    for name in names:
        load_profile(name, [])


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ("file:///srv/cuda", "file:/srv/cuda"),
        ("file:/srv/cuda", "file:/srv/cuda"),
        ("https://mirror//cuda/", "https://mirror//cuda/"),
    ],
)
def test_a_folders_address_is_as_apt_says_it(tmp_path: Path, stated: str, read: str) -> None:
    text = f"{GOOD}repositories: {{nvidia: '{stated}'}}\n"
    assert read_fleet(fleet(tmp_path, text)).repositories["nvidia"].url == read


def test_a_frozen_mirror_has_its_day(tmp_path: Path) -> None:
    text = GOOD + "repositories: {nvidia: {url: 'https://mirror/', frozen: DAY}}\n"
    mirror = read_fleet(fleet(tmp_path, text.replace("DAY", "2026-05-14"))).repositories["nvidia"]
    assert mirror.model_dump(mode="json") == {"url": "https://mirror/", "key": None, "frozen": "2026-05-14"}
    assert "fleet.yml:8: repositories.nvidia.frozen is true; expected a valid date" in complaint(
        tmp_path, text.replace("DAY", "true")
    )


def test_a_mirror_that_states_nothing_new_is_written_as_ever(tmp_path: Path) -> None:
    """Omit an unset new key from a serialized fleet: the lock has a digest of it, which must not change."""
    read = read_fleet(fleet(tmp_path, f"{GOOD}repositories: {{nvidia: 'https://mirror/'}}\n"))
    assert read.repositories["nvidia"].model_dump_json() == '{"url":"https://mirror/","key":null}'


WAYS = """\
ssh: {user: ops, jump: bastion}
groups:
  train:
    profile: hgx-h200-4
    hosts:
      gpu01: {address: 203.0.113.7, ssh: {port: 40022, user: ubuntu}}
      gpu02: 203.0.113.7:40023
      gpu03: "[2001:db8::3]:40024"
      gpu04: ec2-user@gpu04.example.org
      gpu05: {ssh: {jump: none}}
      gpu06:
    os: debian12
    ssh: {port: 2222}
"""


def test_a_connection_is_stated_for_the_fleet_a_group_and_a_host(tmp_path: Path) -> None:
    read = read_fleet(fleet(tmp_path, WAYS))
    assert list(read.groups["train"].hosts.values()) == [
        "203.0.113.7",
        "203.0.113.7",
        "2001:db8::3",
        "gpu04.example.org",
        "gpu05",
        "gpu06",
    ]
    ways = {host: read.connection_of("train", host) for host in read.groups["train"].hosts}
    assert {host: (way.user, way.port, way.jump) for host, way in ways.items()} == {
        "gpu01": ("ubuntu", 40022, "bastion"),
        "gpu02": ("ops", 40023, "bastion"),
        "gpu03": ("ops", 40024, "bastion"),
        "gpu04": ("ec2-user", 2222, "bastion"),
        "gpu05": ("ops", 2222, "none"),
        "gpu06": ("ops", 2222, "bastion"),
    }


@pytest.mark.parametrize(
    ("wrong", "right", "line", "words"),
    [
        ("prt: 40022", "port: 40022", 6, ["unknown key 'prt' in groups.train.hosts.gpu01.ssh", "'port'"]),
        ("port: 99999", "port: 40022", 6, ["gpu01.ssh.port is 99999; expected less than or equal to 65535"]),
        ("7:40023:1", "7:40023", 7, ["'203.0.113.7:40023:1' has more than one port", "[ADDRESS]:PORT"]),
        ("7:4002x", "7:40023", 7, ["the port of '203.0.113.7:4002x' is not a number from 1 to 65535"]),
        ("7:0", "7:40023", 7, ["the port of '203.0.113.7:0' is not a number from 1 to 65535"]),
        ("::3]:", "::3]:40024", 8, ["the port of '[2001:db8::3]:' is not a number"]),
        ("[x y]:40024", "[2001:db8::3]:40024", 8, ["'[x y]:40024' names no host"]),
        (
            "'@gpu04.example.org'",
            "ec2-user@gpu04.example.org",
            9,
            ["'@gpu04.example.org' has no valid user before the @"],
        ),
        ("a b@gpu04", "ec2-user@gpu04", 9, ["has no valid user before the @"]),
        ("gpu05:22x", "none", 10, ["[USER@]HOST[:PORT]: the port of 'gpu05:22x'"]),
        (
            "gpu 06:",
            "gpu06:",
            11,
            ["host names of at most 253 letters, digits, '.', '_' and '-', not 'gpu 06'"],
        ),
        ("user: -oProxyCommand=x", "port: 2222", 13, ["ssh.user is", "a user name such as ubuntu"]),
        ("{address: a:1, ssh: {port: 2}}", "203.0.113.7:40023", 7, ["the address has 1, ssh.port is 2"]),
    ],
)
def test_a_mistake_of_a_connection_is_named_with_its_line(
    tmp_path: Path, wrong: str, right: str, line: int, words: list[str]
) -> None:
    said = complaint(tmp_path, WAYS.replace(right, wrong, 1))
    assert said.startswith(f"fleet.yml:{line}: "), said
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_the_message_about_a_port_in_a_list_of_names_names_its_place(tmp_path: Path) -> None:
    said = complaint(tmp_path, GOOD.replace("gpu[01-03]", "['gpu01:2222']"))
    assert said.startswith("fleet.yml:4: ")
    assert "names without a port; a port needs an address: {NAME: 'gpu01:2222'}" in said


def test_a_fleet_that_states_nothing_new_is_written_as_ever(tmp_path: Path) -> None:
    """Omit unset new keys from a serialized fleet: the lock has a digest of it, which must not change."""
    text = GOOD + "ssh: {user: root, port: 22}\n"
    written = read_fleet(fleet(tmp_path, text)).model_dump(mode="json")
    assert written["ssh"] == {
        "user": "root",
        "port": 22,
        "identity_file": None,
        "known_hosts": None,
        "jump": None,
    }
    assert list(written["groups"]["train"]) == [
        *("profile", "hosts", "os", "arch", "site", "hardware", "stack", "settings", "vars")
    ]
    assert written["groups"]["train"]["hosts"] == {"gpu01": "gpu01", "gpu02": "gpu02", "gpu03": "gpu03"}


def test_what_is_stated_is_written_and_read_again(tmp_path: Path) -> None:
    read = read_fleet(fleet(tmp_path, WAYS))
    again = fleet(tmp_path, json.dumps(read.model_dump(mode="json", exclude_none=True)))
    assert read_fleet(again) == read


def test_a_profile_reads_the_same_in_every_process() -> None:
    """Write sets in the same order in every process: the lock contains a digest of them."""
    program = (
        "from gpuprov.model.profile import load_profile, shipped_profiles\n"
        "print([load_profile(name, []).model_dump_json() for name, _ in shipped_profiles()])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(said) == 1


def test_floors_of_a_group_are_written_where_they_are_stated_alone(tmp_path: Path) -> None:
    text = GOOD.replace("    os: debian12\n", "    os: debian12\n    floors: {bf16: 650, h2d: 50.5}\n")
    [group] = read_fleet(fleet(tmp_path, text)).groups.values()
    assert group.floors is not None
    assert group.floors.stated() == {"bf16": 650.0, "h2d": 50.5}
    assert group.model_dump(mode="json")["floors"] == {"bf16": 650.0, "h2d": 50.5}
    assert "bf17" in complaint(tmp_path, text.replace("bf16", "bf17"))
    assert "floors.bf16" in complaint(tmp_path, text.replace("650", "0"))


def test_a_rollout_that_asks_for_no_load_is_written_as_ever(tmp_path: Path) -> None:
    """Omit unset new keys from a serialized fleet: the lock has a digest of it, which must not change."""
    silent = read_fleet(fleet(tmp_path, GOOD + "rollout: {serial: 2}\n")).rollout
    asking = read_fleet(fleet(tmp_path, GOOD + "rollout: {serial: 2, accept: quick}\n")).rollout
    assert silent is not None
    assert asking is not None
    assert list(silent.model_dump(mode="json")) == [
        *("canary", "serial", "max_fail", "on_failure", "together", "hooks", "window", "settle_s")
    ]
    assert asking.model_dump(mode="json")["accept"] == "quick"


def test_places_are_ranges_of_hosts(tmp_path: Path) -> None:
    stated = read_fleet(fleet(tmp_path, GOOD + "racks: {b7: 'gpu[01-02]', b8: [gpu03]}\n"))
    assert stated.racks == {"b7": ["gpu01", "gpu02"], "b8": ["gpu03"]}
    assert "racks" not in read_fleet(fleet(tmp_path, GOOD)).model_dump(), "old fleets keep their digest"


@pytest.mark.parametrize("key", ["racks", "nvlink_domains"])
@pytest.mark.parametrize(
    ("places", "said"),
    [
        ("{b7: gpu09}", "b7 names gpu09, which is in no group"),
        ("{b7: gpu01, b8: 'gpu[01-02]'}", "gpu01 is already in KEY.b7"),
        ("{b7: []}", "at least one host"),
        ("{'b 7': gpu01}", "b 7"),
    ],
)
def test_places_that_cannot_be(tmp_path: Path, key: str, places: str, said: str) -> None:
    text = complaint(tmp_path, f"{GOOD}{key}: {places}\n")
    assert said.replace("KEY", key) in text
    assert text.startswith("fleet.yml:8")


@pytest.mark.parametrize(
    ("stated", "seen"),
    [
        ("? {a: b}\n: 1\n", "a key in the document is no text; expected text"),
        ("? [a]\n: 1\n", "a key in the document is no text; expected text"),
        ("? !!binary AA==\n: 1\n", "a key in the document is no text: 'AA=='"),
        ("a: !!bool perhaps\n", "not a value of its type 'tag:yaml.org,2002:bool'"),
        ("a: !!timestamp never\n", "not a value of its type 'tag:yaml.org,2002:timestamp'"),
        ("a: !!int ''\n", "not a value of its type 'tag:yaml.org,2002:int'"),
        ("a: 1" + ":10" * 300_000 + "\n", "a number of 900001 characters; expected at most 400"),
        ("a: 1" + ":10" * 300_000 + ".5\n", "a number of 900003 characters; expected at most 400"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_named(tmp_path: Path, stated: str, seen: str) -> None:
    """Check that neither a traceback nor the time of a number in base 60 ends a command."""
    begun = time.process_time()
    assert f"fleet.yml:1: {seen}" in complaint(tmp_path, stated)
    assert time.process_time() - begun < 5


def test_a_fleet_is_read_in_time_of_its_hosts() -> None:
    begun = time.process_time()
    fleet = parse_fleet("groups: {a: {profile: p, os: o, hosts: 'n[1-15000]'}}\n", "fleet.yml")
    assert len(fleet.groups["a"].hosts) == 15000
    assert time.process_time() - begun < 5


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match=r"fleet\.yml cannot be read: is a device"):
        read_fleet(path)


def test_a_document_of_too_many_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"fleet\.yml: more than 2097152 values"):
        parse_fleet("a: [" + "," * (1 << 21) + "]", "fleet.yml")


@pytest.mark.parametrize("sign", ["\\0", "\\ud800"])
@pytest.mark.parametrize("text", ['profile_dirs: ["a{}"]', 'catalog_dirs: {{"{}": 1}}', '"{}": 1'])
def test_no_text_has_characters_that_no_path_has(tmp_path: Path, sign: str, text: str) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text("groups: {}\n" + text.format(sign) + "\n")
    with pytest.raises(InvalidInput, match=r"fleet.yml:2: .*a NUL or half of a surrogate pair"):
        read_fleet(file)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (f"memory_gib: '{'9' * 310}'", "less than or equal to 1048576"),
        ("memory_gib: 1048577", "less than or equal to 1048576"),
        (f"cpu_cores: '{'9' * 310}'", "less than or equal to 65536"),
        ("nvme: {count: 1025}", "less than or equal to 1024"),
        ("nvme: {total_tb: 1.0e+7}", "less than or equal to 1000000"),
        ("nvme: {total_tb: 'inf'}", "a finite number"),
        ("nvme: {total_tb: 'nan'}", "a finite number"),
    ],
)
def test_hardware_is_no_more_than_there_can_be(tmp_path: Path, stated: str, expected: str) -> None:
    """Check that no number is too large to calculate with, also as text, which is read as a number."""
    said = complaint(tmp_path, f"{GOOD}    hardware: {{{stated}}}\n")
    assert said.startswith("fleet.yml:8: groups.train.hardware.")
    assert said.endswith(f"; expected {expected}")


@pytest.mark.parametrize(
    "hosts",
    ["{0}", "[{0}]", "'{0}[1-2]'", "{{{0}: 192.0.2.1}}", "{{gpu01: {0}}}", "{{gpu01: 'eve@{0}:22'}}"],
)
@pytest.mark.parametrize("sign", ["n", "9"])
def test_names_of_hosts_have_a_length(tmp_path: Path, hosts: str, sign: str) -> None:
    def text(length: int) -> str:
        return GOOD.replace("gpu[01-03]", hosts.format("n" + sign * (length - 1)))

    longest = 252 if "[1-2]" in hosts else 253
    if sign == "n":
        assert read_fleet(fleet(tmp_path, text(longest))).groups["train"].hosts
    for length in (longest + 3, 400):
        said = complaint(tmp_path, text(length))
        assert "at most 253 " in said
        assert len(said) < 1000


def test_few_toolkits_are_stated(tmp_path: Path) -> None:
    stack = "    stack: {{cuda: [{}]}}\n"
    versions = [f"'12.{n}'" for n in range(33)]
    assert read_fleet(fleet(tmp_path, GOOD + stack.format(", ".join(versions[:32]))))
    assert "expected at most 32 items" in complaint(tmp_path, GOOD + stack.format(", ".join(versions)))
