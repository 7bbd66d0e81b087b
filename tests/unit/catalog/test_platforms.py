"""The table of platforms: the catalog's systems have rows, and what depends on systems agrees with it."""

from __future__ import annotations

import json
from pathlib import Path

import gpuprov_apt
import gpuprov_dnf
import gpuprov_initramfs as initramfs
import gpuprov_node
import gpuprov_sources as sources
import pytest

from gpuprov.bootstrap.enter import cloud_logins
from gpuprov.catalog import load, platforms
from gpuprov.catalog.platforms import platform
from gpuprov.catalog.releases import OWN
from gpuprov.errors import InvalidInput
from gpuprov.inventory.firstboot.node import first_boot
from gpuprov.probe.parse.packages import SEVERAL
from tests.systems import SUPPORTED
from tests.unit.roles.scripts import script

CATALOG = load()


@pytest.mark.parametrize("name", CATALOG.systems)
def test_every_system_of_the_catalog_has_a_platform_with_its_package_manager(name: str) -> None:
    assert platform(name).manager == CATALOG.systems[name].manager


def test_rows_are_valid_cite_known_sources_and_are_in_use() -> None:
    rows = platforms.platforms()
    assert {source for row in rows for source in row.source} <= set(CATALOG.sources)
    used = {id(platform(name)) for name in CATALOG.systems}
    lines = {platform(name).of for name in CATALOG.systems} | {row.of for row in rows}
    assert used
    for row in rows:
        assert row.id in CATALOG.systems or row.id in lines or platform(f"{row.id}1").id == row.id


def test_a_release_states_only_what_differs_from_its_system() -> None:
    document = json.loads(platforms.TABLE.read_text(encoding="utf-8"))
    rows = {row["id"]: row for row in document["platforms"]}
    for row in rows.values():
        if "of" in row:
            parent = platform(row["of"])
            same = [
                name
                for name, value in row.items()
                if name not in ("id", "of", "beside", *platforms.OWN_FIELDS)
                and (tuple(value) if isinstance(value, list) else value) == getattr(parent, name)
            ]
            assert not same, (row["id"], same)


def test_a_release_without_a_row_works_as_its_system() -> None:
    assert platform("rhel97") == platform("rhel")
    assert platform("ubuntu98.04").logins == ("ubuntu",)
    assert not platform("debian99").tested
    assert platform("rocky8.10") == platform("rhel8")
    with pytest.raises(InvalidInput, match="no platform is known for the system 'templeos5'"):
        platform("templeos5")


def test_a_row_that_is_not_valid_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_rows", lambda: {"x": {"id": "x", "manager": "pacman", "source": []}})
    with pytest.raises(InvalidInput, match=r"platforms\[x\]\.manager: 'pacman'; expected one of apt, dnf"):
        platforms._whole(platforms._rows()["x"])


def test_a_catalog_of_others_does_not_change_the_table(tmp_path: Path) -> None:
    """Give a site's catalog a platform with another Python and login: the table stays gpuprov's own."""
    row = {"id": "debian12", "of": "debian", "python": "/tmp/python", "logins": ["mallory"], "source": []}
    (tmp_path / "systems.json").write_text(json.dumps({"platforms": [row]}))
    load([tmp_path])
    assert platform("debian12").python == "/usr/bin/python3"
    assert "mallory" not in cloud_logins("debian12")
    assert platforms.TABLE.parent == OWN


def test_a_section_has_few_records(tmp_path: Path) -> None:
    """Refuse many records: each branch is compared with each bulletin."""
    rows = [{"id": f"x{number}", "of": "debian", "source": []} for number in range(500)]
    (tmp_path / "systems.json").write_text(json.dumps({"systems": rows}))
    with pytest.raises(InvalidInput, match=r"systems\.json: 5\d\d systems; expected at most 500"):
        load([tmp_path])


def test_a_site_states_a_known_doubt(tmp_path: Path) -> None:
    row = {"id": "ubuntu24.04", "doubts": ["no-such"], "source": []}
    (tmp_path / "systems.json").write_text(json.dumps({"systems": [row]}))
    with pytest.raises(InvalidInput, match=r"systems\[ubuntu24\.04\]\.doubts: 'no-such' is in no doubts"):
        load([tmp_path])


def test_preflight_accepts_the_tested_ones_and_no_others() -> None:
    assert platforms.tested() == list(SUPPORTED)


def test_first_logins() -> None:
    """Check the users that cloud images of a system have, for releases of a family, too; none for an unknown
    one.
    """
    assert cloud_logins("ubuntu24.04") == ("ubuntu",)
    assert {"opc", "rocky", "almalinux", "cloud-user", "ec2-user"} <= set(cloud_logins("rhel9"))
    assert cloud_logins("amzn2023") == ("ec2-user",)
    assert cloud_logins("rocky9.6")[0] == "rocky"
    assert cloud_logins("") == cloud_logins("templeos5") == ()


HEADERS = [
    ("rhel9", "5.14.0-570.12.1.el9_6.x86_64", "kernel-devel-5.14.0-570.12.1.el9_6.x86_64"),
    ("rhel9", "5.14.0-570.12.1.el9_6.aarch64+64k", "kernel-64k-devel-5.14.0-570.12.1.el9_6.aarch64"),
    ("rhel9", "5.15.0-313.189.5.2.el9uek.x86_64", "kernel-uek-devel-5.15.0-313.189.5.2.el9uek.x86_64"),
    ("amzn2023", "6.1.155-176.282.amzn2023.x86_64", "kernel-devel-6.1.155-176.282.amzn2023.x86_64"),
    ("amzn2023", "6.12.53-69.119.amzn2023.x86_64", "kernel6.12-devel-6.12.53-69.119.amzn2023.x86_64"),
    ("amzn2023", "6.18.44-99.149.amzn2023.aarch64", "kernel6.18-devel-6.18.44-99.149.amzn2023.aarch64"),
    ("debian12", "6.1.0-56-amd64", "linux-headers-6.1.0-56-amd64"),
]
"""System, release of a kernel, package with its headers."""


@pytest.mark.parametrize(("system", "kernel", "package"), HEADERS)
def test_headers_have_the_same_name_on_the_node(system: str, kernel: str, package: str) -> None:
    row = platform(system)
    of_node = {"apt": gpuprov_apt, "dnf": gpuprov_dnf}[row.manager]
    assert platforms.headers_package(row, kernel) == of_node.headers_package(kernel) == package
    assert platforms.HEADERS == gpuprov_dnf.HEADERS
    if row.manager == "dnf":
        name = package.removesuffix(f"-{kernel.partition('+')[0]}")
        assert gpuprov_node.SEVERAL.match(name)
        assert SEVERAL.match(name)


def test_scripts_of_nodes_agree_with_the_table() -> None:
    rows = [platform(name) for name in SUPPORTED]
    assert set(script("preflight").DISTRIBUTIONS) == set(sources.ARCHIVES) == platforms.origins()
    assert set(script("repositories").ARCHIVES) - {""} == platforms.origins()
    known = {row.module_folder for row in platforms.platforms() if row.module_folder}
    assert known == set(script("nvidia_driver").DKMS_PLACES)
    programs = {"initramfs-tools": initramfs.PROGRAM, "dracut": initramfs.DRACUT}
    assert {row.initramfs for row in rows} <= set(programs)


def test_first_boot_tries_every_python_of_the_table() -> None:
    names = {row.program_python for row in platforms.platforms() if row.program_python}
    assert names <= set(first_boot.PYTHONS)
