"""Files of a repository by URL, `http(s):` and `file:`, with limits of time and size, and a cache.

Proxies are those of the environment (`https_proxy`, `no_proxy`), as urllib reads them.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn
from urllib.parse import urlsplit

from gpuprov.errors import GpuprovError, InvalidInput, Refused, Unreachable
from gpuprov.files.runs import cache_dir
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.locking.repository.login import login_of
from gpuprov.untrusted import on_one_line, shown
from gpuprov.untrusted.stated import open_stated
from gpuprov.untrusted.urls import public_url, public_urls

SCHEMES = ("http", "https", "file")
REASON = 200
"""Maximum length of a server's reason in a message."""
GONE = (404, 410)
LATER = (408, 429, 500, 502, 503, 504)
"""HTTP statuses after which the same request may succeed later."""

UNSTATED = 10_000_000
"""Maximum size in bytes of a file whose size no index states: Release, repomd.xml, a key. apt's limit for
Release files is the same (`Acquire::MaxReleaseFileSize` in its acquire-item.cc); Debian's have some 200 KB.
"""
STATED = 256 << 20
"""Maximum size in bytes of a file whose size an index states."""
GRACE_S = 1.0
"""Seconds after the deadline in which a slow transfer can still end with its own, more precise error."""


def default_cache() -> Path:
    """Return the default folder of the cache, `$XDG_CACHE_HOME/gpuprov/repository`; raises as `cache_dir`."""
    return cache_dir() / "repository"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirects to HTTP and HTTPS only, and never from HTTPS to HTTP.

    A redirect to an invalid URL is reported as an unusable answer.
    """

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request that follows; the redirect's body is not read.

        Raises:
            Refused: the redirect leads to another scheme.
        """
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            fp.close()
            raise Refused(
                f"{place_of(req.full_url)} redirects to {shown(place_of(newurl))}",
                expected=" or ".join(f"{scheme}:" for scheme in allowed),
                do="check the URL and the proxy, or name another mirror under repositories: in the fleet",
            )
        req.headers.pop("Proxy-authorization", None)  # urllib copies it, also for a host without a proxy
        fp.read = bytes  # urllib would read the whole body, which has no limit
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow a redirect.

        Raises:
            URLError: it leads to an invalid URL.
        """
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()
            raise urllib.error.URLError("a redirect to an invalid URL") from None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener of URLs, with the environment's current proxies."""
    return urllib.request.build_opener(_Redirects)


@dataclass(frozen=True)
class Fetcher:
    """Fetcher of repositories' files.

    Attributes:
        cache: folder of earlier answers.
        offline: use no network; a file that is not in the cache is an error.
        timeout: seconds for a connection and for each read.
        patience: seconds for one file with all its attempts, also from a server that sends slowly.
        attempts: number of attempts for one file, with an increasing pause between them.
        pause: seconds of the first pause; the second is twice as long.
    """

    cache: Path = field(default_factory=default_cache)
    offline: bool = False
    timeout: float = 20.0
    patience: float = 300.0
    attempts: int = 3
    pause: float = 0.5

    def get(self, url: str, *, size: int | None = None, sha256: str | None = None) -> bytes | None:
        """Return the content of a file, or None if the server or folder does not have it.

        With `size` and `sha256` the content is checked, and comes from the cache if it is there. At most
        `size` bytes are read, or the limit of this module for a file without a stated size.

        Raises:
            InvalidInput: not a URL, or one of an unsupported scheme.
            Unreachable: no route, no answer in time, or offline and not in the cache.
            Refused: the content differs from the index, is too large, or access is denied.
            GpuprovError: the cache cannot be read or written.
        """
        limit = UNSTATED if size is None else max(0, min(size, STATED))
        scheme = _scheme(url)
        try:
            if scheme == "file":
                content = _read_file(url, limit)
            elif sha256:
                content = self._by_content(url, sha256, limit)
            else:
                content = self._by_url(url, limit)
        except OSError as error:  # others are answers of the server, see `_ask`
            raise GpuprovError(
                f"the cache {self.cache} cannot be used: {error.strerror or error}",
                do="set XDG_CACHE_HOME to a folder that can be written",
            ) from error
        if content is not None and sha256:
            _check(url, content, size, sha256)
        return content

    def _by_content(self, url: str, sha256: str, limit: int) -> bytes | None:
        """Return the file with that checksum from the cache, else the server's answer, unchecked; None if it
        has none.

        An answer with the right checksum is added to the cache.

        Raises:
            Unreachable, Refused: as `_ask`, or offline and not in the cache.
            OSError: the cache cannot be read or written.
        """
        kept = self.cache / "content" / sha256
        if kept.exists() and hashlib.sha256(content := kept.read_bytes()).hexdigest() == sha256:
            return content
        if self.offline:
            self._not_cached(url)
        answer = self._ask(url, limit)
        if answer and hashlib.sha256(answer).hexdigest() == sha256:
            _write(kept, answer)
        return answer

    def _by_url(self, url: str, limit: int) -> bytes | None:
        """Return the server's file, which is kept, or offline the cached copy; None if the server has none.

        The request has no condition (ETag, Last-Modified): an attacker on the way can have sent the copy,
        which a server's "not modified" would confirm later.

        Raises:
            Unreachable, Refused: as `_ask`; offline and not in the cache.
            OSError: the cache cannot be read or written.
        """
        kept = self.cache / "url" / hashlib.sha256(url.encode()).hexdigest()
        if self.offline:
            return kept.read_bytes() if kept.exists() else self._not_cached(url)
        content = self._ask(url, limit)
        if content is not None:
            _write(kept, content)
        return content

    def _not_cached(self, url: str) -> NoReturn:
        """Raise Unreachable: the file is not in the cache."""
        raise Unreachable(
            f"offline, but {place_of(url)} is not in the cache {self.cache}",
            do="run once with the network, or name a mirror (file: too) under repositories: in the fleet",
        )

    def _ask(self, url: str, limit: int) -> bytes | None:
        """Return the content at a URL; None if the server has none.

        After temporary errors the request is repeated with pauses, at most `attempts` times in all.

        Raises:
            Unreachable: no answer, or a temporary error at every attempt.
            Refused: another HTTP error.
        """
        deadline = time.monotonic() + self.patience
        for attempt in range(1, self.attempts + 1):
            try:
                return self._in_time(url, limit, deadline)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in LATER or attempt == self.attempts:
                    raise self._denied(url, error) from error
            except (OSError, http.client.HTTPException) as error:
                if attempt == self.attempts or time.monotonic() > deadline:
                    raise self._no_answer(url, error) from error
            time.sleep(self.pause * attempt)
        raise AssertionError("attempts is at least 1")

    def _in_time(self, url: str, limit: int, deadline: float) -> bytes | None:
        """Run `_once` in a separate thread, which is abandoned at the deadline.

        A socket's time-out limits only each read: a server (a proxy, a resolver) that sends a byte now and
        then never exceeds it.

        Raises:
            TimeoutError: the deadline has passed.
        """
        answer: Future[bytes | None] = Future()

        def once() -> None:
            try:
                answer.set_result(self._once(url, limit, deadline))
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                answer.set_exception(error)

        Thread(target=once, daemon=True).start()
        try:
            return answer.result(max(0.0, deadline - time.monotonic()) + GRACE_S)
        except TimeoutError as error:
            if answer.done():
                raise
            raise TimeoutError(f"not done in {self.patience:.0f} s") from error

    def _once(self, url: str, limit: int, deadline: float) -> bytes | None:
        """Send one GET, as `_ask` without repetition; a login is not sent to the host of a redirect.

        Raises:
            HTTPError: a status other than success, 404 and 410.
            OSError, HTTPException: the server cannot be reached, is too slow, or sends less than it states.
        """
        request = urllib.request.Request(url, headers={"User-Agent": "gpuprov"})  # noqa: S310 - scheme checked
        for name, value in login_of(url).items():
            request.add_unredirected_header(name, value)  # not sent to the host of a redirect
        try:
            with _opener().open(request, timeout=self.timeout) as answer:
                return self._whole(url, answer, limit, deadline)
        except urllib.error.HTTPError as error:
            if error.code not in GONE:
                raise
            error.close()
            return None

    def _whole(self, url: str, answer: http.client.HTTPResponse, limit: int, deadline: float) -> bytes:
        """Read the body in pieces, so that a slow transfer and an incomplete one are detected.

        Raises:
            Refused: it is larger than `limit` bytes.
            TimeoutError: the deadline has passed.
            IncompleteRead: it is shorter than the server announced.
        """
        promised = answer.length
        content = bytearray()
        while len(content) != promised and (part := answer.read1(1 << 16)):
            content += part
            if len(content) > limit:
                raise _too_large(url, limit)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(content)} bytes in {self.patience:.0f} s")
        if promised is not None and len(content) < promised:
            raise http.client.IncompleteRead(bytes(content), promised - len(content))
        return bytes(content)

    def _denied(self, url: str, error: urllib.error.HTTPError) -> Unreachable | Refused:
        """Return the error for an HTTP status: Unreachable for a temporary one, else Refused."""
        answered = f"{public_url(url)} answered {error.code} {_public(error.reason)}"
        if error.code in LATER:
            return Unreachable(f"{answered} {self.attempts} times", do="try again later")
        return Refused(answered, do="check the URL, the proxy, and the login in ~/.netrc")

    def _no_answer(self, url: str, error: Exception) -> Unreachable:
        """Return the error for a server without a complete answer, with a hint if the cache has a copy."""
        reason = getattr(error, "reason", None) or error
        text = _public(reason) if isinstance(reason, (str, OSError)) else ""
        place, age = public_url(url), self._age(url)
        return Unreachable(
            f"{urlsplit(place).netloc} gives no complete answer for {place}: {text or type(reason).__name__}",
            do=f"check the network and the proxy, or name a mirror under repositories: in the fleet{age}",
        )

    def _age(self, url: str) -> str:
        """Return a hint with the date of the cached copy of a URL, possibly empty."""
        kept = self.cache / "url" / hashlib.sha256(url.encode()).hexdigest()
        if not kept.exists():
            return ""
        copied = formatdate(kept.stat().st_mtime, usegmt=True)
        return f"; the cache has the copy of {copied}: work offline with it"


def _public(reason: object) -> str:
    """Return a server's reason on one line without secrets of URLs, cut to `REASON` characters.

    A server chooses it; urllib also writes the address of a redirect into it.
    """
    return on_one_line(public_urls(str(reason)[: 8 * REASON]))[:REASON]


def place_of(url: str) -> str:
    """Return a repository's URL for a message: without user, query, and parts that look like tokens.

    The path of a local file, and a text that is no URL, are kept.
    """
    local = url.startswith("file:") or not re.search("[:@?]", url)
    return url if local else public_url(url)


def _scheme(url: str) -> str:
    """Return the scheme of a URL.

    Raises:
        InvalidInput: not a URL, or an unsupported scheme.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise InvalidInput(f"repository URL {shown(place_of(url))}: {error}") from error
    if scheme not in SCHEMES:
        raise InvalidInput(f"repository URL {shown(place_of(url))}", expected="http:, https: or file:")
    return scheme


def _read_file(url: str, limit: int) -> bytes | None:
    """Return the content at a `file:` URL; None if it does not exist.

    Raises:
        Refused: it is not a file, cannot be read, or is larger than `limit` bytes.
    """
    path = Path(urllib.request.url2pathname(urlsplit(url).path))
    try:
        if path.exists() and not path.is_file():
            raise Refused(f"{path} is not a file")
        with open_stated(path) as file:
            content = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise _too_large(url, limit)
    return content


def _too_large(url: str, limit: int) -> Refused:
    """Return the error for a file that is larger than its limit in bytes."""
    return Refused(
        f"{place_of(url)} is larger than {limit} bytes",
        expected="at most the size in its index, or the limit for files of its kind",
        do="the mirror is broken, or was tampered with: do not install from it",
    )


def _check(url: str, content: bytes, size: int | None, sha256: str) -> None:
    """Check that the content matches the index.

    Raises:
        Refused: size or checksum differ.
    """
    if size is not None and len(content) != size:
        raise Refused(
            f"{place_of(url)} has {len(content)} bytes",
            expected=f"{size}, as its index says",
            do="the mirror is broken or changing: sync it again, or try again in a few minutes",
        )
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Refused(
            f"{place_of(url)} has SHA256 {found[:16]}…",
            expected=f"{sha256[:16]}…, as its index says",
            do="the mirror is broken, changing, or was tampered with: do not install from it",
        )


def _write(path: Path, content: bytes) -> None:
    """Write a file of the cache atomically, and create its folders: other processes may read it at the same
    time. OSError if that is not possible.
    """
    make_folders(path.parent)
    replace_file(path, content)
