"""Texts of a catalog that become names and patterns: no format strings, no regular expressions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from time import process_time
from typing import Any

import gpuprov_node
import pytest

from gpuprov.catalog import load, texts
from gpuprov.catalog.loading import read_data
from gpuprov.catalog.releases import OWN
from gpuprov.catalog.texts import FIELDS, LONGEST, fill, fill_name
from gpuprov.errors import InvalidInput
from gpuprov.locking.components import family_pattern, unattended_patterns
from gpuprov.locking.repository.sources import nvidia, released
from gpuprov.locking.resolve import packages


def changed(folder: Path, file: str, section: str, /, **fields: Any) -> Path:
    """Return a copy of the catalog, with fields of the first record of a section."""
    shutil.copytree(OWN, folder)
    document = json.loads((folder / f"{file}.json").read_text())
    document[section][0] |= fields
    (folder / f"{file}.json").write_text(json.dumps(document))
    return folder


WIDE = "{driver:>20000000}"
REFUSED = {
    "width": ("packages", {"names": [WIDE]}, "names: '{driver:>20000000}'"),
    "attribute": ("packages", {"names": ["{driver.__class__}"]}, "names"),
    "item": ("packages", {"names": ["{driver[0]}"]}, "names"),
    "conversion": ("packages", {"names": ["{driver!r}"]}, "names"),
    "unknown field": ("packages", {"names": ["a-{x}"]}, "names: the field x; expected branch, "),
    "blank": ("packages", {"names": ["a b"]}, "names"),
    "option": ("packages", {"names": ["a\n"]}, "names"),
    "empty": ("packages", {"names": [""]}, "names"),
    "length": ("packages", {"names": ["a" * (LONGEST + 1)]}, "names"),
    "unversioned": ("packages", {"unversioned": [WIDE]}, "unversioned"),
    "pin": ("packages", {"pin": [WIDE]}, "pin"),
    "stars": ("packages", {"pin": ["*a*b*c*"]}, "pin"),
    "module": ("packages", {"module": WIDE}, "module"),
    "stream": ("packages", {"stream": WIDE}, "stream"),
    "version": ("packages", {"version": WIDE}, "version"),
    "group of a pattern": ("holds", {"patterns": ["(x|xx){1,99}y"]}, "patterns"),
    "class of a pattern": ("holds", {"shared": ["[ab]"]}, "shared"),
    "stars of a pattern": ("holds", {"patterns": ["*" * 9]}, "patterns"),
    "client": ("storage_clients", {"package": "a;b"}, "package"),
    "option as a client": ("storage_clients", {"packages": {"debian": "-oA::Pre-Invoke::=x"}}, "packages"),
    "line as a client": ("storage_clients", {"packages": {"rhel": "a\nremove b"}}, "packages"),
    "family of a client": ("storage_clients", {"packages": {"a b": "c"}}, "packages"),
    "option as a name": ("packages", {"names": ["--allow-unauthenticated"]}, "names"),
    "option by a field": ("packages", {"names": ["{nccl}-x"]}, "names"),
    "removal": ("packages", {"unversioned": ["openssh-server-"]}, "unversioned"),
    "removal as a client": ("storage_clients", {"package": "openssh-server-"}, "package"),
    "option as a module": ("packages", {"module": "-x"}, "module"),
    "wildcards of a name": ("packages", {"names": ["*"]}, "names"),
    "option as a pattern": ("holds", {"patterns": ["-x"]}, "patterns"),
    "repository of a rule": ("packages", {"repository": ["a\nb"]}, "repository"),
}


@pytest.mark.parametrize(("section", "fields", "words"), REFUSED.values(), ids=REFUSED)
def test_other_texts_are_refused_when_the_catalog_is_loaded(
    tmp_path: Path, section: str, fields: dict[str, Any], words: str
) -> None:
    folder = changed(tmp_path / "catalog", "packages", section, **fields)
    with pytest.raises(InvalidInput, match=re.escape(words)) as raised:
        read_data(folder)
    assert len(str(raised.value)) < 500


URLS = {
    "width": "https://h/{release}/{arch:>1500000000}/x",
    "unknown field": "https://h/{nothing}/x",
    "position": "https://h/{0}",
    "attribute": "https://h/{arch.__class__}",
    "brace": "https://h/{{",
    "blank": "https://h/a b",
    "length": "https://h/" + "a" * LONGEST,
    "no scheme": "/etc/passwd",
}


@pytest.mark.parametrize("field", ["url", "url_aarch64"])
@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_an_address_has_the_fields_of_a_release_only(tmp_path: Path, url: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: ") as raised:
        read_data(changed(tmp_path / "catalog", "systems", "repositories", **{field: url}))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("url", [URLS[name] for name in ("width", "unknown field", "position", "brace")])
def test_an_address_of_a_fleet_has_no_other_fields(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"without braces, or with the fields \{release\} and \{arch\}"):
        released("docker-ce", url, "rhel9", "x86_64", None)
    with pytest.raises(InvalidInput, match=r"without braces, or with the fields \{folder\} and \{arch\}"):
        nvidia(url, "rhel9", "x86_64", "rpm", None)


def test_a_series_of_an_archive_is_a_plain_text(tmp_path: Path) -> None:
    driver = {"branch": 1, "repository": "x", "flavours": ["open"], "series": "{a}", "source": []}
    with pytest.raises(InvalidInput, match="archive_drivers"):
        read_data(changed(tmp_path / "catalog", "systems", "systems", archive_drivers=[driver]))


IDS = {
    "id of a repository": ("repositories", {"id": "x\nTypes: deb\nTrusted: yes"}, "id"),
    "path": ("repositories", {"id": "../../etc/cron.d/x"}, "id"),
    "component": ("repositories", {"components": ["main\nTrusted: yes"]}, "components"),
    "folder": ("systems", {"folder": "debian12/../../x"}, "folder"),
    "key": ("systems", {"key_file": "../x"}, "key_file"),
    "component of a system": ("systems", {"archive_components": ["a b"]}, "archive_components"),
    "archive": (
        "systems",
        {"archive_cuda": [{"version": "1", "repository": "a\n", "source": []}]},
        "archive_",
    ),
    "suite": ("families", {"codenames": {"a\nTrusted: yes": "12"}}, "codenames"),
}


@pytest.mark.parametrize(("section", "fields", "words"), IDS.values(), ids=IDS)
def test_an_id_is_no_line_and_no_path(
    tmp_path: Path, section: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_data(changed(tmp_path / "catalog", "systems", section, **fields))


def test_an_absent_component_makes_no_other_word_of_a_name() -> None:
    assert fill_name("lib{nccl}", {"nccl": "2"}) == "lib2"
    with pytest.raises(InvalidInput, match="becomes 'openssh-server-'"):
        fill_name("openssh-server-{nccl}", {"nccl": ""})


def test_a_site_adds_no_other_text(tmp_path: Path) -> None:
    rule = {"component": "x", "manager": "apt", "patterns": ["(a|b)"], "source": []}
    (tmp_path / "packages.json").write_text(json.dumps({"holds": [rule]}))
    with pytest.raises(InvalidInput, match="patterns"):
        load([tmp_path])


def test_the_fields_are_those_that_the_resolver_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprov.locking.resolve import Request, resolve

    seen: list[set[str]] = []
    real = packages._words
    monkeypatch.setattr(packages, "_words", lambda *of: seen.append({*real(*of)}) or real(*of))
    resolve(Request(gpus=("8x H100 SXM5 80GB",), os="debian12"), load())
    assert seen[0] == FIELDS


def test_a_value_with_braces_is_not_filled_again() -> None:
    assert fill("a-{driver}-{cuda}", {"driver": "{cuda}", "cuda": "1"}) == "a-{cuda}-1"


def test_a_pattern_is_literal_but_for_its_wildcards() -> None:
    hostile = ("(x|xx){1,99}y",)
    begun = process_time()
    for pattern in unattended_patterns(hostile):
        assert not re.match(pattern, "x" * 40)
        assert re.match(pattern, hostile[0])
    with pytest.raises(InvalidInput, match="the patterns"):
        family_pattern(hostile)
    assert process_time() - begun < 0.2
    assert unattended_patterns(("a.b+c-*d", "!e")) == [r"a\.b\+c-.*d$"]


@pytest.mark.parametrize(
    "row", ["x", {"id": "x"}, {"devices": {"2330": "580"}}, {"devices": ["2330"]}, {"devices": {"2330": "²"}}]
)
def test_a_row_of_a_site_that_is_no_device_is_refused(tmp_path: Path, row: Any) -> None:
    stated = (
        {"id": "x", "name": "x", "segment": "unknown", "source": []}
        if isinstance(row, dict) and "id" not in row
        else {}
    )
    (tmp_path / "devices.json").write_text(json.dumps({"devices": [{**stated, **row} if stated else row]}))
    with pytest.raises(InvalidInput, match=r"devices"):
        read_data(OWN, tmp_path)


def test_the_controller_and_nodes_have_one_form_of_a_package_name() -> None:
    assert texts._PLAIN.pattern == gpuprov_node.NAME
