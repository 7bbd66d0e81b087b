"""Indexes that were made to take long, to fill the memory, or to end `gpuprov lock` with a traceback.

The author of a repository states the URL and the key of an index, in which a person runs `gpuprov lock`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository import apt, limits, markup, rpm
from gpuprov.locking.repository.apt import AptRecords
from gpuprov.locking.repository.closure import closure
from gpuprov.locking.repository.index import Index, Package, PackageList, Relation
from gpuprov.locking.repository.versions import DEB, LONGEST, RPM, Order

DIGITS = "9" * 5000  # more than Python converts to a number
OFFERED = "Package: a\nVersion: {}\nArchitecture: all\n{}\n\nPackage: b\nVersion: 1\nArchitecture: all\n"
METADATA = (
    '<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm">'
)
PACKAGE = (
    '<package><name>a</name><arch>x86_64</arch><version ver="1" rel="1"/><checksum>0</checksum>'
    '<size package="1"/><location href="a"/><format>{}</format></package>'
)
ENTRY = '<rpm:{0}><rpm:entry name="b"/><rpm:entry name="c"/></rpm:{0}>'


def locked(version: str, fields: str = "") -> dict[str, str]:
    """Return the versions to install of a package `a` with these fields, and what it needs."""
    records = AptRecords("http://mirror", [OFFERED.format(version, fields)], "amd64")
    return closure(Index(records), {"a": None}, ["(?:a|b)"])


def entries(primary: str) -> list[Package]:
    """Return the packages in a primary.xml for x86_64."""
    return list(rpm._packages(primary.encode(), "http://mirror", {}, ("x86_64",)))


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (f"{DIGITS}:1", ""),
        ("1" * (LONGEST + 1), ""),
        ("_", ""),
        ("1", f"Depends: b (>= {DIGITS})"),
        ("1", "Depends: b (>= 1:)"),
        ("1", "Depends: b (=> 1)"),
        ("1", "Depends: b [ ]"),
        ("1", f"Size: {DIGITS}"),
    ],
)
def test_a_stanza_that_cannot_be_read_is_named(version: str, fields: str) -> None:
    with pytest.raises(InvalidInput, match=r"mirror: the stanza of 'a'|the version '"):
        locked(version, fields)


@pytest.mark.parametrize("operator", ["<", ">"])
def test_old_operators_include_the_version_itself(operator: str) -> None:
    """Check the spellings that Debian Policy 7.1 calls obsolete."""
    assert locked("1", f"Depends: b ({operator} 1)") == {"a": "1", "b": "1"}


@pytest.mark.parametrize(("version", "wanted"), [("x:1", "1"), ("1", f"{DIGITS}:1"), ("1", "1" * 129)])
def test_a_version_that_rpm_cannot_compare_is_named(version: str, wanted: str) -> None:
    offered = Package("a", version, "noarch", "a", provides=(Relation("a", "=", wanted),))
    with pytest.raises(InvalidInput, match="the version '"):
        Index(PackageList(RPM, "http://mirror", [offered])).providers(Relation("a", ">=", "2"))


def test_a_relation_that_is_none_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Print no text of an index: python-debian writes it to the log, with its control characters."""
    with caplog.at_level(logging.WARNING):
        assert apt.parse_depends("\x1b[2J(") == ((Relation("\x1b[2J("),),)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("most", "said"), [("PACKAGES", "than 1 packages"), ("RELATIONS", "than 1 relations")]
)
def test_packages_and_relations_are_counted(monkeypatch: pytest.MonkeyPatch, most: str, said: str) -> None:
    monkeypatch.setattr(limits, most, 1)
    with pytest.raises(Refused, match=f"http://mirror lists more {said}"):
        locked("1", "Depends: c | d, e")
    for kind in ("requires", "provides"):
        with pytest.raises(Refused, match=f"http://mirror lists more {said}"):
            entries(METADATA + PACKAGE.format(ENTRY.format(kind)) * 2 + "</metadata>")


def test_a_stanza_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "STANZA", 100)
    with pytest.raises(Refused, match="has more than 100 characters: 'Package: a"):
        locked("1", "Depends: " + "b," * 40)


def test_an_element_has_a_limit_and_many_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check 5,000 small packages, whose memory is freed, and small elements without a package."""
    monkeypatch.setattr(rpm, "PACKAGE_B", 1 << 18)
    assert len(entries(METADATA + PACKAGE.format("") * 5000 + "</metadata>")) == 5000
    for many in ("<a/>" * (1 << 17), PACKAGE.format("<a/>" * (1 << 17))):
        with pytest.raises(Refused, match="has more than 262144 bytes"):
            entries(METADATA + many + "</metadata>")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp500"])
def test_entities_are_refused_in_each_encoding(encoding: str) -> None:
    begin = f'<?xml version="1.0" encoding="{encoding}"?>'
    text = '<!DOCTYPE a [<!ENTITY b "cc">]>' + METADATA + PACKAGE.format("&b;") + "</metadata>"
    whole = (
        (begin + text).encode("utf-16") if encoding == "utf-16" else begin.encode() + text.encode(encoding)
    )
    with pytest.raises(InvalidInput, match=r"is not XML|has a document type"):
        list(rpm._packages(whole, "http://mirror", {}, ("x86_64",)))


def test_a_document_of_modules_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    document = "document: modulemd\ndata: {name: a, stream: b, artifacts: {rpms: [c]}}\n"
    monkeypatch.setattr(rpm, "MODULE_B", len(document) + 10)
    assert rpm._streams(f"---\n{document}...\n---\n{document}...\n".encode(), "x") == {"c": {"a:b"}}
    with pytest.raises(Refused, match=f"has more than {len(document) + 10} bytes"):
        rpm._streams(f"---\n{document}x: 1234567\n".encode(), "x")


def _versions() -> list[Package]:
    """Return a name with many versions that take long to compare."""
    return [Package("a", "1.a" * 42 + str(number), "all", "a") for number in range(20_000)]


def _providers() -> list[Package]:
    """Return many packages that provide a name, and one that requires another version of it many times."""
    depends = tuple((Relation("v", ">=", "2"),) for _ in range(20_000))
    offered = [Package(f"b{number}", "1", "all", "b", provides=(Relation("v"),)) for number in range(20_000)]
    return [Package("a", "1", "all", "a", depends), *offered]


def _needs() -> list[Package]:
    """Return packages that need each other."""
    needs = tuple((Relation(f"a{number}"),) for number in range(3000))
    return [
        Package("a", "1", "all", "a", needs),
        *(Package(f"a{n}", "1", "all", "a", needs) for n in range(3000)),
    ]


@pytest.mark.parametrize(
    "packages", [_versions(), _providers(), _needs()], ids=["versions", "providers", "needs"]
)
@pytest.mark.parametrize("order", [DEB, RPM], ids=["deb", "rpm"])
def test_dependencies_that_take_long_are_refused(
    monkeypatch: pytest.MonkeyPatch, packages: list[Package], order: Order
) -> None:
    monkeypatch.setattr(limits, "STEPS", limits.STEPS // 100)
    begin = time.process_time()
    with pytest.raises(Refused, match="the dependencies in the repositories take too long"):
        closure(Index(PackageList(order, "http://mirror", packages)), {"a": None}, ["(?:a.*)"])
    assert time.process_time() - begin < 5


def test_a_long_name_is_of_no_family() -> None:
    """Compare no long name: the time grows with its length to the power of the stars of a pattern."""
    name = "a" * 20_000
    packages = [Package("a", "1", "all", "a", ((Relation(name),),)), Package(name, "1", "all", name)]
    begin = time.process_time()
    found = closure(Index(PackageList(DEB, "http://mirror", packages)), {"a": None}, ["(?:a|.*x.*y)"])
    assert found == {"a": "1"}
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("prefix", ["", ":a"])
def test_a_long_namespace_is_refused(quote: str, prefix: str) -> None:
    """Refuse a text that the parser keeps with each name: 2 MB took any memory."""
    begin = f"<metadata xmlns{prefix} = {quote}{'u' * 200}{quote}>"
    with pytest.raises(InvalidInput, match="has a long namespace"):
        entries(begin + "</metadata>")
    assert entries(begin.replace("u" * 200, "u" * 199) + "</metadata>") == []


@pytest.mark.parametrize("word", ["xmlns:", "xmlns", "xmlns ", "xmlns:a", "xmlns='"])
def test_words_like_a_declaration_are_found_in_time_of_their_length(word: str) -> None:
    begin = time.process_time()
    assert not markup.LONG_NAMESPACE.search(word.encode() * 200_000)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("element", ["<a{}/>", '<a b{}="c"/>'])
def test_names_of_elements_are_counted(element: str) -> None:
    """Refuse many names: the parser keeps each one."""
    many = "".join(element.format(number) for number in range(markup.NAMES + 1))
    with pytest.raises(InvalidInput, match="has more than 1000 names"):
        entries(METADATA + many + "</metadata>")


def test_providers_that_nobody_can_install_take_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spend steps also for packages of another architecture, whose versions are not compared."""
    monkeypatch.setattr(limits, "STEPS", 1_000_000)
    foreign = "".join(f"Package: p{n}\nVersion: 1\nArchitecture: arm64\nProvides: x\n\n" for n in range(2000))
    own = "Package: a\nVersion: 1\nArchitecture: amd64\nDepends: " + ", ".join(["x"] * 1000) + "\n"
    with pytest.raises(Refused, match="take too long"):
        closure(Index(AptRecords("http://mirror", [foreign + own], "amd64")), {"a": None}, ["(?:a)"])


def test_empty_stanzas_are_counted_before_they_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PACKAGES", 100)
    with pytest.raises(Refused, match="lists more than 100 packages"):
        AptRecords("http://mirror", ["ab\n\n" * 101], "amd64")
    with pytest.raises(Refused, match="lists more than 100 packages"):
        rpm._streams(b"\n---" * 101, "http://mirror")


def test_a_module_is_named_once_for_all_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    document = f"document: modulemd\ndata: {{name: {'n' * 1000}, stream: b, artifacts: {{rpms: [c, d]}}}}\n"
    found = rpm._streams(document.encode(), "http://mirror")
    assert found == {"c": {f"{'n' * LONGEST}:b"}, "d": {f"{'n' * LONGEST}:b"}}
    monkeypatch.setattr(limits, "RELATIONS", 1)
    with pytest.raises(Refused, match="lists more than 1 relations"):
        rpm._streams(document.encode(), "http://mirror")


def test_all_indexes_that_derive_from_one_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spend from the same steps with each stream of modules."""
    monkeypatch.setattr(limits, "STEPS", 20_000)
    packages = [Package("a", "1", "x86_64", "a", streams=frozenset([f"m:{n}"])) for n in range(20)]
    whole = Index(PackageList(RPM, "http://mirror", packages))
    with pytest.raises(Refused, match="take too long"):
        [rpm.with_streams(whole, f"m:{number}").versions("a") for number in range(20)]


def test_equal_groups_of_a_fleet_take_the_steps_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow dependencies once for each stack: a fleet of 1,000 groups is no attack."""
    monkeypatch.setattr(limits, "STEPS", 30_000)
    packages = [Package("a", "1", "x86_64", "a", ((Relation("b"),),)), Package("b", "1", "x86_64", "b")]
    streamed = [replace(each, streams=frozenset(["m:1"])) for each in packages]
    for index in (Index(PackageList(RPM, "http://mirror", streamed)), Index(PackageList(DEB, "x", packages))):
        for _ in range(1000):
            chosen = rpm.with_streams(index, "m:1") if index.order is RPM else index
            assert closure(chosen, {"a": None}, ["(?:a|b)"]) == {"a": "1", "b": "1"}


def test_a_long_name_of_a_package_is_refused() -> None:
    """Refuse a name that demands and messages repeat for each relation."""
    name = "a" * (limits.NAME + 1)
    with pytest.raises(InvalidInput, match="a name with 129 characters"):
        AptRecords("x", [f"Package: {name}\nVersion: 1\nArchitecture: all\n"], "amd64").packages(name)
    with pytest.raises(InvalidInput, match="a name with 129 characters"):
        entries(METADATA + PACKAGE.format("").replace(">a<", f">{name}<") + "</metadata>")
