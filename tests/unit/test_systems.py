"""Systems that the roles support: one table, which agrees with the catalog and all that depends on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpuprov.access.sshd import policies
from gpuprov.catalog import load
from gpuprov.catalog.identity import find_system
from gpuprov.catalog.platforms import platforms, rebuilds
from gpuprov.roles.preflight import is_system
from gpuprov_lab import images
from tests import ROOT
from tests.campaign._roles_fleet import STACKS
from tests.campaign.lockout import KERNELS
from tests.systems import CODENAMES, DEBIAN, IMAGES, OF_DNF, SUPPORTED, UBUNTU
from tests.unit.locking.fleets import GROUPS
from tests.unit.locking.test_any_controller import SIGNED_BY
from tests.unit.roles.scripts import script

LIST = ast.List | ast.Tuple | ast.Set
FOLDERS = (
    "gpuprov",
    "plugins",
    "roles",
    *(f"tests/{name}" for name in ("bench", "campaign", "collection", "lab")),
)
"""Folders without lists of systems; unit tests have lists of cases."""


def test_the_catalog_has_every_system_that_the_roles_support() -> None:
    catalog = load()
    assert set(SUPPORTED) <= set(catalog.systems)
    assert {system: catalog.systems[system].manager for system in SUPPORTED} == {
        **dict.fromkeys(CODENAMES, "apt"),
        **dict.fromkeys(OF_DNF, "dnf"),
    }
    assert set(CODENAMES) == {*DEBIAN, *UBUNTU}
    assert set(OF_DNF) <= set(IMAGES)


@pytest.mark.parametrize(
    "table",
    [
        policies()["openssh"],
        {**SIGNED_BY, **dict.fromkeys(OF_DNF)},
        STACKS,
        [system for system, *_ in GROUPS.values()],
    ],
    ids=["OpenSSH", "keys of archives", "stacks of the campaign roles", "locks"],
)
def test_a_table_with_a_value_for_each_system_has_all_of_them(table: object) -> None:
    assert set(SUPPORTED) - set(table) == set()  # type: ignore[call-overload]


OS_RELEASES = [
    ("debian", "12", "debian12"),
    ("ubuntu", "26.04", "ubuntu26.04"),
    ("rhel", "9.6", "rhel9"),
    ("rocky", "9.6", "rhel9"),
    ("almalinux", "10.1", "rhel10"),
    ("ol", "8.10", "rhel8"),
    ("centos", "9", "rhel9"),
    ("amzn", "2023", "amzn2023"),
]
"""ID and VERSION_ID of os-release, and the system in the catalog."""


@pytest.mark.parametrize(("identity", "version", "system"), OS_RELEASES)
def test_a_node_is_the_locked_system_if_it_has_its_packages(
    identity: str, version: str, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_system(load(), identity + version) == load().systems[system]
    expected = [each for each in load().systems if is_system(each, identity, version)]
    assert expected == [system]
    look = script("preflight")
    (tmp_path / "os-release").write_text(f'ID="{identity}"\nVERSION_ID="{version}"\n')
    monkeypatch.setattr(look, "OS_RELEASE", tmp_path / "os-release")
    found, shown = look.operating_system()
    assert f"{found}.".startswith(f"{system}.")
    assert shown == identity + version
    assert rebuilds() == look.REBUILDS


def test_the_lab_has_an_image_of_every_debian() -> None:
    assert {system: CODENAMES[system] for system in DEBIAN} == images.CODENAMES
    assert set(KERNELS) == set(DEBIAN)


def test_there_is_no_second_list() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno}: {ast.unparse(each)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(each, LIST) and is_second(each)
    ]
    assert not found, found


def is_second(node: LIST) -> bool:
    """Return whether a list contains all supported releases of a distribution."""
    constants = {each.value for each in node.elts if isinstance(each, ast.Constant)}
    return set(DEBIAN) <= constants or set(UBUNTU) <= constants


def test_a_second_list_is_found() -> None:
    for text, second in ((str(DEBIAN), True), (str([*SUPPORTED, "rhel9"]), True), (str(DEBIAN[:1]), False)):
        [each] = ast.parse(text).body
        assert isinstance(each, ast.Expr)
        assert is_second(each.value) is second  # type: ignore[arg-type]


NAMES = {name for row in platforms() for name in (*row.identities, row.id, row.origin)} - {
    *("apt", "dnf", "zypper"),  # package managers, which adapters are called by
    None,
}
"""Names of distributions and of their releases, as code could compare them."""
BY_NAME = {
    "gpuprov/inventory/exports/sbom.py": "names of vendors in the package-url specification",
    "gpuprov/locking/catalogs/refresh/packages.py": "the archive whose versions of drivers the catalog lists",
    "gpuprov/locking/archives.py": "repositories and keyrings of distributions, by the catalog's ids",
    "gpuprov/locking/repository/sources.py": "suites of repositories, by the catalog's ids",
    "gpuprov/upgrade/start.py": "the package managers that an upgrade knows",
    "plugins/module_utils/gpuprov_sources.py": "Origins, compared with the table by tests/unit/catalog",
    "roles/preflight/files/look.py": "IDs and Origins, compared with the table by tests/unit/catalog",
    "roles/repositories/files/look.py": "Origins, compared with the table by tests/unit/catalog",
}
"""File that names a distribution → the reason why the table of platforms does not serve there."""


def decides(node: ast.AST) -> bool:
    """Return whether code compares with the name of a distribution, or looks a value up by one."""
    if isinstance(node, ast.Compare):
        parts: list[ast.expr | None] = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        parts = [*node.keys]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        parts = [*node.args] if node.func.attr in ("startswith", "endswith", "get") else []
    elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, LIST):
        parts = [node.value]
    else:
        return False
    words = [each for part in parts for each in (part.elts if isinstance(part, LIST) else [part])]
    return any(isinstance(each, ast.Constant) and each.value in NAMES for each in words)


def test_only_the_table_decides_by_the_name_of_a_distribution() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS[:3]
        for path in (ROOT / folder).rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if decides(each)
    }
    assert found <= set(BY_NAME)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x == 'ubuntu'", True),
        ("x in ('debian', 'ubuntu')", True),
        ("x.startswith('rhel')", True),
        ("T = {'rocky': 1}", True),
        ("T = ('debian', 'ubuntu')", True),
        ("x == 'apt'", False),
        ("print('ubuntu')", False),
    ],
)
def test_a_decision_by_name_is_found(text: str, found: bool) -> None:
    assert any(map(decides, ast.walk(ast.parse(text)))) is found


def test_roles_take_variables_of_a_distribution_only_from_their_folders() -> None:
    """Check that no task reads which distribution a node has: a file of variables has its name."""
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yml", ".j2")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"ansible_facts\['(?:distribution|os_family)|ansible_(?:distribution|os_family)", line)
    ]
    assert lines == []
