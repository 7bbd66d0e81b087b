"""gpuprov's own file of package sources: its text by the role's template, and what drift and verify see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gpuprov.drift.judge import judge
from gpuprov.model.lock import LockedGroup, Repository
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import packages
from gpuprov.roles import Expectation
from gpuprov.roles.repositories import parts, variables
from gpuprov.verify.observers import apt
from tests import ROOT
from tests.unit.verify.nodes_on_paper import locked_group

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBGJYmlE\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
REPOSITORIES = {
    "debian": Repository(suites=["bookworm"], components=["non-free", "contrib"], source="test"),
    "cuda": Repository(url="https://mirror/cuda/", suites=[], components=[], signed_by=KEY, source="test"),
    "docker": Repository(
        url="https://mirror/docker",
        suites=["bookworm"],
        components=["stable"],
        frozen="2026-05-14",
        source="t",
    ),
}
ARCHIVE = {"uri": "http://deb/debian/", "suite": "bookworm", "component": "main", "signed_by": "/k.gpg"}
OUR_FILE = "/etc/apt/sources.list.d/gpuprov.sources"


@pytest.fixture(scope="module")
def group() -> LockedGroup:
    """Return a group with these repositories."""
    return locked_group("node").model_copy(update={"repositories": REPOSITORIES})


def written(group: LockedGroup) -> str:
    """Return the file as the role writes it."""
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    environment.filters["difference"] = lambda left, right: [each for each in left if each not in right]
    environment.filters["regex_replace"] = lambda text, old, new: re.sub(old, new, text)
    template = environment.from_string((ROOT / "roles/repositories/templates/sources.j2").read_text())
    return template.render(**variables(group), __repositories_look={"archive": [ARCHIVE]})


def seen(group: LockedGroup, text: str, folder: Path) -> dict[str, Any]:
    """Return the parts that differ; drift and verify must see the same ones."""
    file = folder / "gpuprov.sources"
    file.write_text(text)
    expectation = Expectation("repositories.file", parts(group), "repositories")
    sources = {
        "files": {},
        "keyrings": {},
        "preferences": {},
        "config": "",
        "own": packages._parts(str(file)),
        "refused": "E: Syntax error /etc/apt/apt.conf.d/99site:1",  # a message without the file
    }
    found = judge("node", Facts("node", "", 0.0, {"sources": sources}), [expectation]).drift
    verified = apt.parse_own(text, expectation.expected)
    actual = dict(found[0].actual) if found else {}
    differing = {
        each for each in {**verified, **parts(group)} if verified.get(each) != parts(group).get(each)
    }
    assert differing == set(actual)
    assert {name: verified.get(name) for name in differing} == actual
    assert not found or found[0].by == ((OUR_FILE,) if text else ())
    return actual


def test_the_template_writes_what_is_expected(group: LockedGroup, tmp_path: Path) -> None:
    text = written(group)
    assert "Signed-By: -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQIN" in text
    assert parts(group)["debian"] == "bookworm: contrib non-free"
    assert seen(group, text, tmp_path) == {}


@pytest.mark.parametrize("check", ["pins.hold", "pins.unattended", "repositories.sources"])
def test_settings_that_apt_cannot_read_are_not_known(check: str) -> None:
    refused = "E: Syntax error /etc/apt/apt.conf.d/99site:1"
    sources = {"files": {}, "keyrings": {}, "preferences": {}, "config": "", "own": [], "refused": refused}
    status = {"manager": "dpkg", "text": "", "interrupted": False}
    facts = Facts("node", "", 0.0, {"sources": sources, "packages": status})
    [found] = judge("node", facts, [Expectation(check, ["libcuda1"], None)]).drift
    assert found.actual == f"unknown: {refused}"


def test_nodes_whose_own_sources_are_complete_need_no_part(group: LockedGroup, tmp_path: Path) -> None:
    text = re.sub(r"(?s)\n# debian: .*?(?=\n\n)", "", written(group))
    assert "debian:" not in text
    assert seen(group, text, tmp_path) == {}


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("URIs: https://mirror/cuda/", "URIs: https://mirror/other/", "cuda"),
        ("mQIN", "mQIX", "cuda"),
        ("URIs: https://mirror/docker", "Trusted: yes\nURIs: https://mirror/docker", "docker"),
        ("Check-Valid-Until: no\n", "", "docker"),
        ("Components: contrib non-free", "Components: contrib non-free main", "debian"),
        ("Suites: bookworm\nComponents: contrib", "Suites: trixie\nComponents: contrib", "debian"),
        ("Signed-By: /k.gpg", "Trusted: yes", "debian"),
        ("# Written", "# Not written", "head"),
        ("\n# docker", "\n# site\nTypes: deb\nURIs: http://x/\nSuites: /\n\n# docker", "site"),
        ("\n# docker", "\n# docker\nTypes: deb\n\n# docker", "docker"),
    ],
)  # fmt: skip
def test_a_manual_edit_is_seen_in_its_part(
    group: LockedGroup, tmp_path: Path, old: str, new: str, part: str
) -> None:
    text = written(group)
    assert old in text
    assert part in seen(group, text.replace(old, new, 1), tmp_path)


def test_a_file_that_is_gone_has_no_part(group: LockedGroup, tmp_path: Path) -> None:
    assert seen(group, "", tmp_path) == {"head": None, "cuda": None, "docker": None}


DIRECTORIES = """\
Dir "/";
Dir::Etc "etc/apt";
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "sources.list.d";
"""


@pytest.mark.parametrize(
    ("old", "new", "folder"),
    [
        ("", "", "/etc/apt/sources.list.d"),
        ('"sources.list.d"', '"/srv/none"', "/srv/none"),
        ('"etc/apt"', '"/srv/apt"', "/srv/apt/sources.list.d"),
        (DIRECTORIES, "", "/usual"),
    ],
    ids=["usual", "parts", "parent", "without apt"],
)
def test_the_folder_of_sources_is_the_one_that_apt_reads(old: str, new: str, folder: str) -> None:
    config = DIRECTORIES.replace(old, new) if old else DIRECTORIES
    assert packages._configured(config, "Dir::Etc::sourceparts", "/usual") == folder
