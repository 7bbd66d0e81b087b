"""Package managers by system, and the parts that depend on them."""

from __future__ import annotations

import jinja2

from gpuprov.catalog import load
from gpuprov.model.lock import LockedGroup, Repository
from gpuprov.roles.manager import OWN_FILES, manager
from gpuprov.roles.package_pins import variables as pins
from gpuprov.roles.repositories import UNSIGNED_PACKAGES, digest, parts, section
from tests import ROOT
from tests.unit.verify.nodes_on_paper import locked_group

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nbGFi\n-----END PGP PUBLIC KEY BLOCK-----\n"


def stated(url: str, key: str | None) -> Repository:
    """Return a repository with this URL and key."""
    return Repository(url=url, suites=[], components=[], signed_by=key, source="fleet.yml")


REPOSITORIES = {
    "nvidia": stated("http://mirror/rhel9/x86_64/", KEY),
    "container-toolkit": stated("http://mirror/rpm/x86_64", KEY),
    "site": stated("http://mirror/site", None),
}


def group_on(system: str) -> LockedGroup:
    """Return a group with this system and these repositories."""
    return locked_group("node").model_copy(update={"os": system, "repositories": REPOSITORIES})


def test_managers_are_the_catalogs() -> None:
    known = {system.id: system.manager for system in load().systems.values() if system.manager != "zypper"}
    assert {system: manager(group_on(system)) for system in known} == known


def test_the_parts_of_dnfs_file_are_what_the_template_writes() -> None:
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    template = environment.from_string(
        (ROOT / "roles/repositories/templates/gpuprov.repo.j2").read_text(encoding="utf-8")
    )
    sources = [{"id": name, **each.model_dump(mode="json")} for name, each in REPOSITORIES.items()]
    written = template.render(
        repositories_sources=sources,
        __repositories_unsigned_packages=UNSIGNED_PACKAGES,
        __repositories_key_file="/etc/pki/rpm-gpg/gpuprov-ID.asc",
    )
    head, *sections = written.rstrip("\n").split("\n\n")
    assert sections == [section(name, each) for name, each in REPOSITORIES.items()]
    expected = parts(group_on("rhel9"))
    assert expected["head"] == digest(head)
    assert [name for name in expected if name.startswith("key of")] == [
        "key of nvidia",
        "key of container-toolkit",
    ]
    assert OWN_FILES["dnf"].endswith(".repo")
    assert ["\ngpgcheck=1" in each for each in sections] == [True, False, False]


def test_patterns_of_names_for_dnf_are_shell_patterns() -> None:
    regular, shell = (pins(group_on(system))["package_pins_patterns"] for system in ("debian12", "rhel9"))
    assert ("nvidia-.*$" in regular, "nvidia-*" in shell) == (True, True)
    assert len(regular) == len(shell)
