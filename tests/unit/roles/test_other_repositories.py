"""Packages that a driver needs from repositories that its system does not enable: named before any change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpuprov_locks import RUN_DNF
from jinja2.nativetypes import NativeEnvironment

from gpuprov.catalog.platforms import beside
from gpuprov.roles.preflight import variables
from gpuprov_lab.mirror.rpmfile import build_rpm, rpm_name
from gpuprov_lab.mirror.specs import PackageSpec
from tests import ROOT
from tests.unit.roles.scripts import script
from tests.unit.verify.nodes_on_paper import locked_group


def stated(system: str) -> list[dict[str, str]]:
    """Return the packages that preflight's variables name."""
    found: list[dict[str, str]] = variables(locked_group("n").model_copy(update={"os": system})).get(
        "preflight_beside", []
    )
    return found


def test_dkms_is_of_epel_on_the_rhel_family() -> None:
    for system in ("rhel8", "rhel9", "rhel10"):
        [dkms] = stated(system)
        assert (dkms["package"], dkms["repository"]) == ("dkms", "EPEL")
        assert f"codeready-builder-for-rhel-{system[4:]}-x86_64-rpms of a subscription" in dkms["needs"]
        assert dkms["enable"].endswith("dnf install epel-release")
    assert "aarch64" in beside("rhel9", "aarch64")[0]["needs"]
    assert "powertools" in stated("rhel8")[0]["enable"]
    assert stated("debian12") == stated("amzn2023") == []


def test_a_precompiled_module_needs_none() -> None:
    group = locked_group("n").model_copy(update={"os": "rhel9"})
    driver = group.components.driver.model_copy(update={"module_package": "kmod-nvidia-580"})
    components = group.components.model_copy(update={"driver": driver})
    assert "preflight_beside" not in variables(group.model_copy(update={"components": components}))


ANSWERS: dict[str, tuple[str, tuple[int, str], list[str]]] = {
    "installed": ("dkms\n", (1, ""), []),
    "offered": ("", (0, "dkms\ndkms\n"), []),
    "not offered": ("", (0, ""), ["dkms"]),
    "a repository does not answer": ("", (1, ""), []),
}
"""Answers of rpm and of dnf, and what the node lacks."""


@pytest.mark.parametrize("name", ANSWERS)
def test_the_node_says_whether_its_repositories_have_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rpm, dnf, expected = ANSWERS[name]
    look = script("preflight")
    asked: list[str] = []

    def run(*words: str, seconds: float = 60) -> tuple[int, str]:
        asked.append(" ".join(words))
        return dnf

    def database(*words: str) -> str:
        asked.append(" ".join(words))
        return rpm

    monkeypatch.setattr(look, "run", run)
    monkeypatch.setattr(look, "database", database)
    assert look.unavailable(["dkms"]) == expected
    assert look.unavailable([]) == []
    assert asked[0].startswith("rpm -qa --qf %{NAME}\\n ")
    dnfs = [line for line in asked if not line.startswith("rpm")]
    assert all(line.startswith(" ".join(RUN_DNF)) for line in dnfs)
    assert all("--setopt=*.skip_if_unavailable=0 repoquery" in line for line in dnfs)


def objection(look: dict[str, Any], roles: list[str]) -> str | None:
    """Return preflight's objection to a node without the package; None if it accepts the node."""
    document = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text(encoding="utf-8"))
    [found] = [each for each in document["__preflight_objections"] if "lacking" in each["holds"]]
    environment = NativeEnvironment()
    known: dict[str, Any] = {
        "__preflight_look": look,
        "preflight_beside": stated("rhel9"),
        "preflight_roles": roles,
    }
    for name in ("__preflight_installs", "__preflight_lacking"):
        value = environment.from_string(document[name]).render(known)
        known[name] = value if isinstance(value, bool) else list(value)
    if not environment.from_string(found["holds"]).render(known):
        return None
    return re.sub(r"\s+", " ", str(environment.from_string(found["says"]).render(known)))


def test_preflight_names_the_repository_and_what_to_type() -> None:
    assert objection({"unavailable": []}, ["nvidia_driver"]) is None
    assert objection({}, ["nvidia_driver"]) is None
    assert objection({"unavailable": ["dkms"]}, ["docker"]) is None
    assert objection({"unavailable": ["dkms"]}, ["nvidia_driver"]) == (
        "no enabled repository has dkms, which the driver needs from EPEL, and that needs CRB (RHEL:"
        " codeready-builder-for-rhel-9-x86_64-rpms of a subscription); enable both on the node"
        " (`dnf config-manager --set-enabled crb && dnf install epel-release`), or a mirror that has"
        " the package, and try again"
    )


def test_dnf_itself_answers_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask real dnf about a repository with the package, one without it, and one that does not answer."""
    look = script("preflight")
    run = look.run
    for place, name in (("has", "dkms"), ("lacks", "other")):
        (tmp_path / place).mkdir()
        spec = PackageSpec(name, "3.2-1.el9", "noarch")
        (tmp_path / place / rpm_name(spec)).write_bytes(build_rpm(spec))
        subprocess.run(["createrepo_c", "--quiet", str(tmp_path / place)], check=True)

    def on_node(*words: str, seconds: float = 60) -> tuple[int, str]:
        """Run the real dnf with the test's repositories; return status and output."""
        folder = tmp_path / "repos"
        options = [f"--setopt=reposdir={folder}", f"--setopt=cachedir={tmp_path}/cache-{place}"]
        begin, asked = words[: len(RUN_DNF)], words[len(RUN_DNF) :]
        found: tuple[int, str] = run(
            *begin, *options, "--setopt=plugins=0", "--releasever=9", *asked, seconds=seconds
        )
        return found

    monkeypatch.setattr(look, "run", on_node)
    monkeypatch.setattr(look, "database", lambda *_: "")
    (tmp_path / "repos").mkdir()
    for place, expected in (("has", []), ("lacks", ["dkms"]), ("nowhere", [])):
        text = (
            f"[{place}]\nname={place}\nbaseurl=file://{tmp_path / place}\ngpgcheck=0\nskip_if_unavailable=1\n"
        )
        (tmp_path / "repos/a.repo").write_text(text)
        assert look.unavailable(["dkms"]) == expected, place
