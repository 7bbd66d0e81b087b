"""HTTP client and its cache, with a server in this process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, Refused, Unreachable
from gpuprov.locking.repository.fetch import UNSTATED, Fetcher, _Redirects

CONTENT = b"Origin: test\n"


@dataclass
class Site:
    """Answers of the server, and the requests that it received."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    short: int = 0
    drip: float = 0.0
    flood: bool = False
    sent: int = 0
    header: float = 0.0
    redirect: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    """Provide a server whose answers the test sets and which records the headers of requests."""
    about = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Record the headers, and answer as the site is set: status, redirect, slow or endless."""
            about.asked.append(dict(self.headers.items()))
            status = about.statuses.pop(0) if about.statuses else 200
            if about.redirect:
                self.send_response(302)
                self.send_header("Location", about.redirect)
                self.end_headers()
                about.redirect = about.redirect.replace(about.url, "")
                with suppress(OSError):
                    while about.flood and about.sent < 2 * UNSTATED:
                        about.sent += self.wfile.write(bytes(1 << 16))
                about.flood = False
                return
            self.send_response(status)
            with suppress(OSError):
                while about.header:  # an endless header, byte by byte
                    time.sleep(about.header)
                    self.wfile.write(b"X")
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Tue, 01 Dec 2026 00:00:00 GMT")
            body = CONTENT if status == 200 else b""
            if not about.flood:
                self.send_header("Content-Length", str(len(body) + about.short))
            self.end_headers()
            with suppress(OSError):
                while about.flood:
                    about.sent += self.wfile.write(bytes(1 << 16))
            with suppress(BrokenPipeError):  # the client has closed the connection
                for byte in body:
                    time.sleep(about.drip)
                    self.wfile.write(bytes([byte]))

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    about.url = f"http://127.0.0.1:{server.server_port}/InRelease"
    yield about
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_later_request_has_no_condition(site: Site, fetcher: Fetcher) -> None:
    """Check that no server confirms a cached answer, which another machine can have sent."""
    assert fetcher.get(site.url) == fetcher.get(site.url) == CONTENT
    assert len(site.asked) == 2
    assert [name for asked in site.asked for name in asked if name.startswith("If-")] == []


def test_known_content_is_not_asked_for_again(site: Site, fetcher: Fetcher) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    for _ in range(2):
        assert fetcher.get(site.url, size=len(CONTENT), sha256=digest) == CONTENT
    assert len(site.asked) == 1


def test_a_spoilt_cache_is_fetched_anew(site: Site, fetcher: Fetcher) -> None:
    """Check that a cached file with another digest is fetched again."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    fetcher.get(site.url, sha256=digest)
    (fetcher.cache / "content" / digest).write_bytes(b"spoilt")
    assert fetcher.get(site.url, sha256=digest) == CONTENT


@pytest.mark.parametrize("promised", [{}, {"sha256": hashlib.sha256(CONTENT).hexdigest()}])
def test_a_cache_that_cannot_be_written_is_named(
    site: Site, fetcher: Fetcher, promised: dict[str, Any]
) -> None:
    fetcher.cache.write_text("not a folder")
    with pytest.raises(GpuprovError, match=r"the cache /.*/cache cannot be used: .+; set XDG_CACHE_HOME"):
        fetcher.get(site.url, **promised)


def test_a_copy_that_cannot_be_read_is_named(site: Site, fetcher: Fetcher) -> None:
    fetcher.get(site.url)
    [kept] = (fetcher.cache / "url").iterdir()
    kept.unlink()
    kept.mkdir()
    with pytest.raises(GpuprovError, match=r"the cache /.*/cache cannot be used: Is a directory;"):
        replace(fetcher, offline=True).get(site.url)


def test_wrong_content_is_not_kept(site: Site, fetcher: Fetcher) -> None:
    with pytest.raises(Refused, match="as its index says"):
        fetcher.get(site.url, sha256="0" * 64)
    assert not (fetcher.cache / "content").exists()


def test_passing_trouble_is_tried_again(site: Site, fetcher: Fetcher) -> None:
    site.statuses = [503]
    assert fetcher.get(site.url) == CONTENT


def test_lasting_trouble_is_said(site: Site, fetcher: Fetcher) -> None:
    """Check the message for a server that answers 503 each time."""
    site.statuses = [503, 503, 503]
    with pytest.raises(Unreachable, match="answered 503 Service Unavailable 2 times; try again later"):
        fetcher.get(site.url)
    assert len(site.asked) == fetcher.attempts


def test_denied(site: Site, fetcher: Fetcher) -> None:
    """Check the message for a status that denies access, such as 407."""
    site.statuses = [407]
    with pytest.raises(Refused, match="407 Proxy Authentication Required; check the URL, the proxy"):
        fetcher.get(site.url)


def test_a_servers_reason_is_short_and_has_no_secret(site: Site, fetcher: Fetcher) -> None:
    """Redirect to an address with a signature, which urllib quotes in its reason."""
    site.redirect = f"s3://bucket/{'a' * 5000}/x?X-Amz-Signature=SECRET"
    with pytest.raises(Refused, match="answered 302 ") as denied:
        fetcher.get(site.url)
    assert "SECRET" not in str(denied.value)
    assert len(str(denied.value)) < 500


def test_an_unasked_304_is_refused(site: Site, fetcher: Fetcher) -> None:
    site.statuses = [304]
    with pytest.raises(Refused, match="answered 304"):
        fetcher.get(site.url)


def test_no_error_has_the_secrets_of_a_url(fetcher: Fetcher) -> None:
    for url in ("http://user:SECRET@127.0.0.1:9/x", "http://127.0.0.1:9/x?sig=SECRET"):
        with pytest.raises(Unreachable) as error:
            fetcher.get(url)
        assert "SECRET" not in str(error.value)
        assert "127.0.0.1:9" in str(error.value)


TOKEN = "8f14e45fceea167a5a36dedd4bea2543"  # noqa: S105 - of a path of this test
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "large": ({"size": 1}, "is larger than 1 bytes"),
    "short": ({"size": 100, "sha256": "0" * 64}, "has 13 bytes"),
    "other": ({"sha256": "0" * 64}, "has SHA256"),
    "redirect": ({}, "redirects to"),
    "offline": ({}, "offline, but"),
    "status": ({}, "answered 403"),
}


@pytest.mark.parametrize("case", SAID)
def test_no_error_has_a_token_of_the_path(site: Site, fetcher: Fetcher, case: str) -> None:
    promised, said = SAID[case]
    site.redirect = f"ftp://127.0.0.1/{TOKEN}/x" if case == "redirect" else ""
    site.statuses = [403] if case == "status" else []
    url = site.url.replace("/InRelease", f"/{TOKEN}/InRelease")
    with pytest.raises((Refused, Unreachable), match=said) as raised:
        replace(fetcher, offline=case == "offline").get(url, **promised)
    assert TOKEN not in str(raised.value)
    assert f"http://{url.split('/')[2]}/(hidden)/InRelease" in str(raised.value)


@pytest.mark.parametrize(
    "url", [f"http://[1/{TOKEN}", f"ftp://mirror.example/{TOKEN}", f"me:{TOKEN}@mirror.example"]
)
def test_no_error_about_what_is_no_url_has_a_token(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(InvalidInput, match="repository URL") as raised:
        fetcher.get(url)
    assert TOKEN not in str(raised.value)


def test_a_local_file_keeps_its_name_in_an_error(tmp_path: Path, fetcher: Fetcher) -> None:
    (tmp_path / TOKEN).write_bytes(CONTENT)
    with pytest.raises(Refused, match=f"{TOKEN} is larger than 1 bytes"):
        fetcher.get((tmp_path / TOKEN).as_uri(), size=1)


def test_gone_is_none(site: Site, fetcher: Fetcher) -> None:
    """Check that a missing file (404) gives None."""
    site.statuses = [404]
    assert fetcher.get(site.url) is None


def test_answer_that_breaks_off(site: Site, fetcher: Fetcher) -> None:
    site.short = 10
    with pytest.raises(Unreachable, match="gives no complete answer"):
        fetcher.get(site.url)


def test_answer_that_drips(site: Site, fetcher: Fetcher) -> None:
    """Check that an answer that comes too slowly is Unreachable after the patience."""
    site.drip = 0.05
    with pytest.raises(Unreachable, match=r"gives no complete answer .*: \d+ bytes in 0 s"):
        replace(fetcher, patience=0.1, attempts=1).get(site.url)


def test_a_header_that_drips(site: Site, fetcher: Fetcher) -> None:
    """Limit the total time: each byte arrives within the read timeout, but the header never ends."""
    site.header = 0.05
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"gives no complete answer .*: not done in 0 s"):
        replace(fetcher, patience=0.2, attempts=3).get(site.url)
    assert time.monotonic() - begun < 5
    site.header = 0.0


def test_patience_is_for_all_attempts_together(site: Site, fetcher: Fetcher) -> None:
    site.drip = 0.1
    with pytest.raises(Unreachable):
        replace(fetcher, patience=0.2, attempts=5).get(site.url)
    assert len(site.asked) == 1


@pytest.mark.parametrize("promised", [{}, {"size": 1000, "sha256": "0" * 64}], ids=["first", "indexed"])
def test_a_flood_is_cut_off(site: Site, fetcher: Fetcher, promised: dict[str, Any]) -> None:
    site.flood = True
    limit = promised.get("size", UNSTATED)
    said = f"is larger than {limit} bytes; expected at most the size in its index"
    with pytest.raises(Refused, match=said):
        fetcher.get(site.url, **promised)
    assert site.sent < UNSTATED * 2
    assert not (fetcher.cache / "content").exists()
    assert not (fetcher.cache / "url").exists()


@pytest.mark.parametrize("name", ["/dev/zero", "fifo", "folder", "large"])
def test_what_is_no_file_or_too_large_a_one(tmp_path: Path, fetcher: Fetcher, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(UNSTATED + 1)
    said = "is larger than 10000000 bytes" if name == "large" else "is not a file"
    with pytest.raises(Refused, match=said):
        fetcher.get((tmp_path / name).as_uri())


@pytest.mark.parametrize("url", ["http://[1", "debian", "/srv/mirror"])
def test_what_is_no_url(fetcher: Fetcher, url: str) -> None:
    """Check that a text that is no URL is refused."""
    with pytest.raises(InvalidInput, match="repository URL"):
        fetcher.get(url)


def test_offline_takes_the_copy(site: Site, fetcher: Fetcher) -> None:
    fetcher.get(site.url)
    assert replace(fetcher, offline=True).get(site.url) == CONTENT
    assert len(site.asked) == 1


def test_offline_without_a_copy(site: Site, fetcher: Fetcher) -> None:
    with pytest.raises(Unreachable, match=r"offline, but .* is not in the cache"):
        replace(fetcher, offline=True).get(site.url)


def test_broken_network_names_the_age_of_the_copy(site: Site, fetcher: Fetcher) -> None:
    fetcher.get(site.url)
    site.short = 10
    site.statuses = [500, 500]
    with pytest.raises(Unreachable):
        fetcher.get(site.url)
    with pytest.raises(Unreachable, match=r"the cache has the copy of .* GMT: work offline with it"):
        fetcher.get(site.url)


@pytest.mark.parametrize("where", ["http://[", "//[x", "file:///etc/passwd"])
def test_a_redirect_to_what_is_no_url_is_no_answer(site: Site, fetcher: Fetcher, where: str) -> None:
    site.redirect = where
    with pytest.raises((Unreachable, Refused)):
        fetcher.get(site.url)


def test_a_redirect_leads_to_no_other_scheme(site: Site, fetcher: Fetcher) -> None:
    site.redirect = "ftp://127.0.0.1/x"
    with pytest.raises(Refused, match=r"redirects to 'ftp://127.0.0.1/x'; expected http: or https:; check"):
        fetcher.get(site.url)


def test_a_redirect_never_leaves_tls() -> None:
    asked = Request("https://mirror.example/x")
    with pytest.raises(Refused, match=r"redirects to 'http://mirror.example/x'; expected https:; check"):
        _Redirects().redirect_request(asked, BytesIO(), 302, "", {}, "http://mirror.example/x")


def test_the_body_of_a_redirect_is_not_read(site: Site, fetcher: Fetcher) -> None:
    site.flood, site.redirect = True, site.url
    assert fetcher.get(site.url) == CONTENT
    assert site.sent < UNSTATED


def test_a_redirect_gets_no_login_of_the_proxy(
    site: Site, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the request to a host that `no_proxy` has."""
    place = site.url.removesuffix("InRelease").removeprefix("http://")
    monkeypatch.setenv("http_proxy", f"http://operator:SECRET@{place}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site.redirect = site.url
    assert fetcher.get("http://mirror.example/InRelease") == CONTENT
    assert ["Proxy-Authorization" in {name.title() for name in asked} for asked in site.asked] == [
        True,
        False,
    ]
