"""Templates of roles, rendered with the smallest lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nativetypes
import pytest
import yaml

from gpuprov.model.lock import Setting
from gpuprov.roles.firewall import FIREWALL_COMMAND
from gpuprov.roles.gpu_settings import clocks_command, modes_command, variables
from tests import ROOT
from tests.unit.verify.nodes_on_paper import locked_group

ROLES = ROOT / "roles"
OWN = {"uri": "http://mirror/debian/", "suite": "bookworm", "signed_by": "/usr/share/keyrings/debian.gpg"}


def render(template: str, **variables: Any) -> str:
    """Render a template as Ansible's module does, with the few filters that the templates use."""
    environment = jinja2.Environment(
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701
    )
    environment.filters["difference"] = lambda left, right: set(left) - set(right)
    environment.filters["basename"] = os.path.basename
    environment.filters["to_json"] = json.dumps
    environment.filters["regex_replace"] = lambda text, *_: text
    return environment.from_string((ROLES / template).read_text(encoding="utf-8")).render(**variables)


def sources(archive: list[dict[str, Any]], **repository: Any) -> list[str]:
    """Return the lines of package sources that the template makes for a repository."""
    asked = {"id": "debian", "url": None, "suites": [], "components": [], "signed_by": None, **repository}
    text = render(
        "repositories/templates/sources.j2",
        repositories_sources=[asked],
        __repositories_look={"archive": archive},
    )
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_components_are_added_to_the_nodes_own_archive() -> None:
    lines = sources([{**OWN, "component": "main"}], components=["contrib", "non-free"])
    assert lines == [
        "Types: deb",
        "URIs: http://mirror/debian/",
        "Suites: bookworm",
        "Components: contrib non-free",
        "Signed-By: /usr/share/keyrings/debian.gpg",
    ]


def test_components_that_are_there_are_not_repeated() -> None:
    archive = [{**OWN, "component": name} for name in ("main", "contrib")]
    assert "Components: non-free" in sources(archive, components=["contrib", "non-free"])
    assert sources(archive, components=["contrib"]) == []


def test_only_the_suites_asked_for_are_used() -> None:
    archive = [{**OWN, "component": "main"}, {**OWN, "suite": "bookworm-backports", "component": "main"}]
    lines = sources(archive, suites=["bookworm"], components=["non-free"])
    assert [line for line in lines if line.startswith("Suites")] == ["Suites: bookworm"]


def test_a_source_without_a_key_gets_none() -> None:
    lines = sources([{**OWN, "signed_by": None, "component": "main"}], components=["contrib"])
    assert not any(line.startswith("Signed-By") for line in lines)


def test_a_flat_repository_has_no_components() -> None:
    lines = sources([], url="https://mirror/cuda/", signed_by="/usr/share/keyrings/cuda.gpg")
    assert lines == [
        "Types: deb",
        "URIs: https://mirror/cuda/",
        "Suites: /",
        "Signed-By: /usr/share/keyrings/cuda.gpg",
    ]


def test_a_frozen_mirror_is_read_after_its_valid_until() -> None:
    assert "Check-Valid-Until: no" in sources([], url="https://mirror/debian/", frozen="2026-05-14")
    lines = sources([], url="https://mirror/debian/", frozen=None)
    assert not any(line.startswith("Check-") for line in lines)


def test_both_drivers_that_would_take_the_gpu_are_kept_away() -> None:
    text = render("nvidia_driver/templates/blacklist.conf.j2")
    assert {"blacklist nouveau", "blacklist nova_core"} <= set(text.splitlines())


def test_ubuntus_persistence_daemon_is_started_with_persistence_on() -> None:
    packaged = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose"
    text = render(
        "gpu_settings/templates/persistenced.conf.j2", __gpu_settings_look={"daemon": {"command": packaged}}
    )
    assert (
        "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode"
        in text
    )
    assert "WantedBy=multi-user.target" in text


@pytest.mark.parametrize(("persistence", "tied"), [(True, True), (None, True), (False, False)])
def test_the_clocks_unit_comes_after_persistence_and_says_the_pair(
    persistence: bool | None, tied: bool
) -> None:
    text = render(
        "gpu_settings/templates/gpu-clocks.service.j2",
        __gpu_settings_clocks="1980 3201",
        gpu_settings_persistence=persistence,
    )
    assert "After=nvidia-persistenced.service" in text
    assert f"ExecStart={clocks_command({'graphics': 1980, 'memory': 3201})}\n" in text
    assert ("PartOf=nvidia-persistenced.service" in text) is tied


MODES = {"power_limit": 300, "compute_mode": "default", "ecc": True, "mig": ["1g.10gb", "3g.40gb"]}


@pytest.mark.parametrize("stated", [MODES, {"ecc": False, "mig": []}, {"power_limit": 300}])
def test_the_modes_unit_has_the_command_that_is_expected_of_it(stated: dict[str, Any]) -> None:
    settings = {name: Setting(value=value, reason="", source="") for name, value in stated.items()}
    group = locked_group("node").model_copy(update={"settings": settings})
    said = yaml.safe_load((ROLES / "gpu_settings/vars/main.yml").read_text())["__gpu_settings_modes"]
    words = jinja2.nativetypes.NativeEnvironment().from_string(said).render(**variables(group))
    text = render(
        "gpu_settings/templates/gpu-modes.service.j2",
        __gpu_settings_modes=words,
        gpu_settings_persistence=True,
    )
    assert f"ExecStart={modes_command(group)}\n" in text


def test_the_firewalls_unit_has_the_command_that_is_expected_of_it() -> None:
    stated = yaml.safe_load((ROLES / "firewall/vars/main.yml").read_text())
    text = render("firewall/templates/firewall.service.j2", **stated)
    assert f"ExecStart={FIREWALL_COMMAND}\n" in text


@pytest.mark.parametrize("names", [[], ["libcuda1", "nvidia-smi"]])
def test_the_record_of_holds_is_a_name_a_line(names: list[str]) -> None:
    assert (
        render("package_pins/templates/held.j2", package_pins_packages=dict.fromkeys(names, "1")).split()
        == names
    )


def test_apt_takes_the_patterns_as_they_are(tmp_path: Path) -> None:
    pattern = r"^libnvidia-.*\.1$"
    conf = tmp_path / "pins"
    conf.write_text(render("package_pins/templates/unattended.conf.j2", package_pins_patterns=[pattern]))
    dump = subprocess.run(
        ["apt-config", "--config-file", conf, "dump", "Unattended-Upgrade::Package-Blacklist"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f'"{pattern}"' in dump.stdout


def of_role(name: str, options: dict[str, str], look: dict[str, Any]) -> Any:
    """Return the value of a variable of ssh_hardening for these options and this state."""
    environment = jinja2.nativetypes.NativeEnvironment()
    environment.filters["dict2items"] = lambda each: [{"key": key, "value": each[key]} for key in each]
    environment.filters["intersect"] = lambda left, right: [each for each in left if each in right]
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    said = yaml.safe_load((ROLES / "ssh_hardening/vars/main.yml").read_text())[name]
    return environment.from_string(said).render(ssh_hardening_options=options, __ssh_hardening_look=look)


@pytest.mark.parametrize(
    ("options", "weak", "expected"),
    [
        ({"HostKey": "/k/rsa /k/ed25519", "Port": "22"}, ["/k/rsa"], ["/k/rsa"]),
        ({"HostKey": "/k/rsa"}, [f"/k/{number}" for number in range(1000)], []),
        ({"hostkey": "/k/rsa"}, ["/k/rsa"] * 1000, ["/k/rsa"]),
        ({"Port": "22"}, ["/k/rsa"], []),
    ],
)
def test_only_requested_host_keys_are_generated(
    options: dict[str, str], weak: list[str], expected: list[str]
) -> None:
    assert of_role("__ssh_hardening_weak_keys", options, {"weak_keys": weak}) == expected


@pytest.mark.parametrize(
    ("options", "unlabelled", "expected"),
    [
        ({"HostKey": "/k/rsa", "Port": "22 2222"}, ["2222"], ["2222"]),
        ({"Port": "22"}, [str(number) for number in range(30, 1000)], []),
        ({"HostKey": "2222"}, ["2222"], []),
    ],
)
def test_only_requested_ports_are_labelled(
    options: dict[str, str], unlabelled: list[str], expected: list[str]
) -> None:
    assert of_role("__ssh_hardening_unlabelled", options, {"unlabelled": unlabelled}) == expected
