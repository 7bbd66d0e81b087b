"""Settings of the machine's own apt."""

from __future__ import annotations

import pytest

from gpuprov.errors import InvalidInput
from gpuprov_lab.archive import Archive, parse_archive

URIS = """\
'http://vendor.test/linux/dists/bookworm/InRelease' vendor.test_linux_dists_bookworm_InRelease 0
'http://vendor.test/linux/dists/bookworm/main/binary-amd64/Packages.xz' vendor.test_a 0
'http://mirror.test:8080/debian/dists/bookworm/main/binary-amd64/Packages.xz' mirror.test_b 0
'http://mirror.test:8080/debian/dists/bookworm-updates/main/binary-amd64/Packages.xz' mirror.test_c 0
'https://secure.test/debian-security/dists/bookworm-security/main/binary-all/Packages.xz' secure.test_d 0
'https://vendor.test/node/dists/nodistro/main/binary-amd64/Packages' vendor.test_e 0
"""
SETTINGS = """\
Acquire::Languages "";
Acquire::http::Proxy "http://proxy.test:3128";
Acquire::Check-Date "false";
"""


def test_debian_is_reported_from_a_vendor_with_the_same_suite() -> None:
    archive = parse_archive(URIS, SETTINGS, "bookworm")
    assert archive.main == "http://mirror.test:8080/debian"
    assert archive.security == "https://secure.test/debian-security"


def test_proxy_and_dates_are_carried_and_nothing_else() -> None:
    assert parse_archive(URIS, SETTINGS, "bookworm").settings.splitlines() == SETTINGS.splitlines()[1:]


def test_every_port_that_apt_needs_is_open() -> None:
    assert parse_archive(URIS, SETTINGS, "bookworm").ports() == {8080, 443, 3128}


def test_a_machine_without_an_archive_is_reported_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"no archive of Debian 'trixie'.*sources\.list"):
        parse_archive(URIS, SETTINGS, "trixie")


def test_a_release_has_main_updates_and_security() -> None:
    text = Archive("http://a.test/debian", "http://a.test/security", "").sources("trixie")
    assert "URIs: http://a.test/debian\nSuites: trixie trixie-updates\n" in text
    assert "URIs: http://a.test/security\nSuites: trixie-security\n" in text
    assert "security" not in Archive("http://a.test/debian", "", "").sources("trixie")
