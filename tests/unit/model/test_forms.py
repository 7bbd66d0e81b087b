"""Forms of the texts of a lock, which become arguments of root's programs on nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gpuprov.catalog import load
from gpuprov.catalog.releases import OWN
from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.build import in_form
from gpuprov.locking.components import family_pattern, unattended_patterns
from gpuprov.model import forms
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.lock import Hardware, Lock, read_lock
from tests import RECORDED_LOCK

FLEET = "groups: {g: {profile: hgx-a100-4, hosts: a1, os: debian12}}\n"
FREE = {
    *("reason", "source", "builder_reason", "gpu_model", "inputs"),
    *("signer", "groups", "settings", "canary", "together", "run", "use", "site"),
}
"""Fields of text that is only shown or compared, names of groups and settings, and hooks, which an upgrade
alone runs.
"""


def unformed(kind: Any, name: str = "") -> Iterator[str]:
    """Yield the fields of a type, at any depth, that accept any text."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        validators = kind.__pydantic_decorators__.field_validators.values()
        checked = {field for each in validators for field in each.info.fields}
        for key, field in kind.model_fields.items():
            formed = any(hasattr(each, "func") or hasattr(each, "pattern") for each in field.metadata)
            if not formed and key not in checked:
                yield from unformed(field.annotation, f"{kind.__name__}.{key}")
    elif kind is str:
        yield name
    elif not any(hasattr(each, "func") or getattr(each, "metadata", ()) for each in get_args(kind)[1:]):
        for each in get_args(kind):
            yield from unformed(each, name)


def test_each_text_of_a_lock_has_a_form_or_is_only_shown() -> None:
    found = sorted({each for each in unformed(Lock) if each.partition(".")[2] not in FREE})
    assert found == []


@pytest.mark.parametrize("name", ["libcuda1", "g++-12", "libcuda1:i386", "nvidia-kernel-dkms", "a"])
def test_names_of_packages_are_accepted(name: str) -> None:
    assert forms.package(name) == name


@pytest.mark.parametrize(
    "name",
    ["-oDir::Bin::dpkg=/bin/sh", "--installroot=/", "x;id", "a b", "a\nb", "$(id)", "../a", "docker.io-", ""],
)
def test_no_other_text_is_the_name_of_a_package(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not '"):
        forms.package(name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("libcuda1: 535", "-oDir::Bin::dpkg=/bin/sh: 535"),
        ("libcuda1: 535", "x;id: 535"),
        ("libcuda1: 535.309.01-0+deb12u1", "libcuda1: 535;id"),
        ("- nvidia-.*$", "- (n+)+$"),
        ("module_package: nvidia-kernel-dkms", "module_package: --root=/"),
        ("- bookworm\n", "- bookworm [trusted=yes]\n"),
        ("os: debian12", "os: ../debian12"),
        ("branch: 535", "branch: " + "9" * 400),
        ("gpu_count: 4", "gpu_count: '" + "9" * 400 + "'"),
    ],
)
def test_a_lock_with_another_text_is_refused(tmp_path: Path, before: str, after: str) -> None:
    text = RECORDED_LOCK.read_text("utf-8")
    assert before in text
    (tmp_path / "fleet.lock.yml").write_text(text.replace(before, after), "utf-8")
    with pytest.raises(InvalidInput, match="expected"):
        read_lock(tmp_path / "fleet.lock.yml")


@pytest.mark.parametrize("text", ["(?:docker.*|runc)", r"(?!(?:a|libb\+\+)$)(?:c.*|d-)", "(?:docker\\.io)"])
def test_expressions_that_lock_writes_are_accepted(text: str) -> None:
    assert forms.family(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "([a-z0-9-]+)*!",
        "(?:(a|b)*c)",
        "(?:a.*.*.*.*)",
        "(?:a.b)",
        "docker.*",
        "(?:a{9})",
        "(?:)",
        f"(?:{'a|' * 40}a)",
    ],
)
def test_no_other_expression_is_accepted(text: str) -> None:
    for read in (forms.family, forms.of_family):
        with pytest.raises(ValueError, match="an expression such as"):
            read(text)


@pytest.mark.parametrize(
    "expression",
    [
        "(?:docker.*|runc)",
        r"(?!(?:a|lib.*\+)$)(?:l.*|a.*)",
        "(?:egl-.*nvidia.*)",
        r"(?:docker\.io)",
        "(?:.*-dkms)",
    ],
)
def test_a_family_is_matched_as_by_re(expression: str) -> None:
    """Compare with `re`, also where the texts of a pattern would overlap, as in `egl-nvidi`."""
    names = (
        "docker docker.io dockerXio runc runcx a ab l lib lib+ libx+ egl-nvidia egl-nvidi egl-x-nvidia1 -dkms"
    )
    is_one = forms.of_family(forms.family(expression))
    assert [is_one(name) for name in names.split()] == [
        re.fullmatch(expression, name) is not None for name in names.split()
    ]


def test_the_slowest_family_is_fast() -> None:
    """Match names of the greatest length with as many alternatives as a family may have."""
    slowest = forms.family("(?:" + "|".join([f".*{'a' * 60}.*{'a' * 60}Z"] * forms.ALTERNATIVES) + ")")
    began = time.process_time()
    assert not any(map(forms.of_family(slowest), ["a" * 128] * 500))
    assert time.process_time() - began < 1


def test_a_text_of_the_catalog_without_a_form_is_refused_when_a_lock_is_made() -> None:
    def make(*_: Any) -> Hardware:
        return Hardware(gpu_model="H100", gpu_pci_ids=["10de:2330 "], gpu_count=8)

    anything: Any = None
    with pytest.raises(Refused, match=r"train: Hardware\.gpu_pci_ids\.0 has no form of a lock"):
        in_form(make)(anything, "train", anything)


def test_the_catalogs_patterns_have_the_forms_of_a_lock() -> None:
    rules = load(release=OWN).tables["packages.holds"]
    assert rules
    for rule in rules:
        own = (*rule.patterns, *rule.shared)
        assert forms.family(family_pattern(own)) == family_pattern(own)
        assert all(forms.hold_pattern(each) == each for each in unattended_patterns(own))


def test_the_message_about_an_address_does_not_show_it(tmp_path: Path) -> None:
    """Check a mirror's address, which may have a password."""
    text = f"{FLEET}repositories: {{nvidia: {{url: 'https://me:secret@mirror.example.org/ x'}}}}\n"
    with pytest.raises(InvalidInput, match="a text such as https://mirror") as caught:
        parse_fleet(text, "fleet.yml")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["local", "local:4", "none", "tls://gw.fra1:8790,tls://[2001:db8::1]:8790", "gw:8790"]
)
def test_workers_are_accepted(text: str) -> None:
    assert parse_fleet(f"{FLEET}controllers: '{text}'\n", "fleet.yml").controllers == text


@pytest.mark.parametrize("text", ["local:0", "local:1000", "x", "tls://gw", ",".join(["gw:1"] * 65), ""])
def test_other_workers_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="controllers"):
        parse_fleet(f"{FLEET}controllers: '{text}'\n", "fleet.yml")
