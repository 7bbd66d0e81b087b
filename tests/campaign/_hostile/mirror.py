"""A hostile mirror without its origin's key: indexes, signatures, keyrings, answers, catalogs."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Index
from gpuprov.untrusted import printable
from gpuprov.untrusted.openpgp import fingerprints
from gpuprov_lab.mirror import apt as mirror_apt
from gpuprov_lab.mirror import rpm as mirror_rpm
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.specs import PackageSpec
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.network import Server
from tests.campaign._hostile.words import around, payload
from tests.unit.locking.catalogs.signed import newer
from tests.unit.locking.repository.built_repositories import RpmRepository, Suite
from tests.unit.untrusted.forged_signatures import BLANKS, LINE_ENDS, forged_signature, stating_good

Try = Callable[[random.Random], None]
SPECS = [
    PackageSpec("tool", "1:9.10-1", "amd64", relations={"Depends": "library (>= 2)"}),
    PackageSpec("library", "2.0-1", "all", relations={"Provides": "virtual (= 2.0)"}),
]
EVIL = [PackageSpec("tool", "1:99-1", "amd64"), PackageSpec("library", "2.0-1", "all")]


def days(number: float) -> str:
    """Return a date this many days from now in the format of a Release file."""
    return format_datetime((datetime.now(UTC) + timedelta(days=number)).replace(microsecond=0), usegmt=True)


def said(index: Index) -> list[tuple[str, str]]:
    """Return the packages that an index offers."""
    return sorted((name, str(each.version)) for name in index.names() for each in index.versions(name))


class Suites:
    """A valid suite, and suites with signatures of another key, for another suite or of another date."""

    def __init__(self, field: Field) -> None:
        self.key: SigningKey = field.stack.enter_context(signing_key())
        self.other: SigningKey = field.stack.enter_context(signing_key())
        self.field, self.kinds = field, dict[str, Path]()
        for name, specs, key, about in (
            ("good", SPECS, self.key, {}),
            ("stranger", EVIL, self.other, {}),
            ("unsigned", EVIL, None, {}),
            ("suite", EVIL, self.key, {"Suite": "oldoldstable", "Codename": "buster"}),
            ("old", EVIL, self.key, {"Date": days(-400)}),
            ("expired", EVIL, self.key, {"Date": days(-40), "Valid-Until": days(-30)}),
            ("future", EVIL, self.key, {"Date": days(400)}),
        ):
            self.kinds[name] = field.work / "suites" / name
            mirror_apt.build_suite(self.kinds[name], "stable", {"main": specs}, "amd64", key, about)
        self.cache = field.work / "cache-of-suites"
        self.good = said(self.open(self.kinds["good"], self.key.binary()))

    def open(self, root: Path, keyring: bytes) -> Index:
        """Read a suite."""
        fetcher = Fetcher(cache=self.cache, attempts=1, pause=0.0, timeout=5.0)
        return Suite(root, keyring, fetcher).open()


@way("mirror", "apt indexes", "code", "file", share=1500)
def apt(field: Field) -> Try:
    """Try a suite with changed, exchanged, truncated or missing files."""
    suites, root = Suites(field), field.work / "served"

    def once(rng: random.Random) -> None:
        """Make one try: open a changed suite, and raise Reached if its packages are not the mirror's."""
        shutil.rmtree(root, ignore_errors=True)
        kind = rng.choice(("good", "good", "good", *suites.kinds))
        shutil.copytree(suites.kinds[kind], root)
        for _ in range(rng.randint(0, 2)):
            _change(rng, field, suites, root)
        shutil.rmtree(suites.cache, ignore_errors=True)
        try:
            found = said(suites.open(root, suites.key.binary()))
        except GpuprovError as error:
            field.show(printable(str(error)), "the error of a mirror")
            return
        if found != suites.good:
            raise Reached("code", f"a mirror's own packages count ({kind}): {found}")

    return once


def _change(rng: random.Random, field: Field, suites: Suites, root: Path) -> None:
    """Change a random file of a repository: its text or bytes, another repository's file, cut, longer or
    removed.
    """
    path = rng.choice(sorted(each for each in (root / "dists").rglob("*") if each.is_file()))
    content, dice = path.read_bytes(), rng.random()
    if dice < 0.25:
        path.write_bytes(around(rng, field, content.decode("latin-1")).encode("utf-8", "replace"))
    elif dice < 0.45:
        at = rng.randrange(len(content) or 1)
        path.write_bytes(content[:at] + rng.randbytes(1) + content[at + 1 :])
    elif dice < 0.6:
        other = suites.kinds[rng.choice(sorted(suites.kinds))] / path.relative_to(root)
        path.write_bytes(other.read_bytes() if other.exists() else b"")
    elif dice < 0.7:
        path.unlink()
    elif dice < 0.8:
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif dice < 0.9:
        path.write_bytes(content + payload(rng, field).encode("utf-8", "replace"))
    else:  # a signature that covers only a part
        path.write_bytes(b"Package: tool\nVersion: 1:99-1\n\n" + content)


@way("mirror", "rpm indexes", "code", "file", share=500)
def rpm(field: Field) -> Try:
    """Try an rpm repository with changed or truncated files."""
    key: SigningKey = field.stack.enter_context(signing_key())
    good, root = field.work / "rpms", field.work / "served"
    mirror_rpm.build(
        good, [PackageSpec("tool", "1.0-1", "noarch"), PackageSpec("driver", "3:6-1", "x86_64")], key
    )
    cache = field.work / "cache-of-rpms"

    def opened(place: Path) -> list[tuple[str, str]]:
        """Return the packages of the repository in a folder, as (name, version)."""
        fetcher = Fetcher(cache=cache, attempts=1, pause=0.0, timeout=5.0)
        return said(RpmRepository(place, key.binary(), fetcher).open())

    right = opened(good)

    def once(rng: random.Random) -> None:
        """Make one try: open a changed repository, and raise Reached if its packages are not the mirror's."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(good, root)
        for _ in range(rng.randint(1, 2)):
            path = rng.choice(sorted((root / "repodata").iterdir()))
            content = path.read_bytes()
            at = rng.randrange(len(content) or 1)
            changed = (
                content[:at],
                content[:at] + rng.randbytes(2) + content[at + 2 :],
                around(rng, field, content.decode("latin-1")).encode("utf-8", "replace"),
                b"",
            )
            path.write_bytes(rng.choice(changed))
        shutil.rmtree(cache, ignore_errors=True)
        try:
            found = opened(root)
        except GpuprovError as error:
            field.show(printable(str(error)), "the error of a mirror")
            return
        if found != right:
            raise Reached("code", f"a mirror's own packages count: {found}")

    return once


@way("mirror", "keyrings", "code", "key", share=900)
def keyrings(field: Field) -> Try:
    """Try key files: noise, two keys, a foreign key in place of the right one."""
    from gpuprov.untrusted.openpgp import armored, binary, fingerprints

    keys = [field.stack.enter_context(signing_key()) for _ in range(2)]
    plain = [key.binary() for key in keys]

    def once(rng: random.Random) -> None:
        """Make one try: read a changed file of keys."""
        whole = bytearray(
            rng.choice((plain[0], plain[0] + plain[1], keys[0].public, keys[0].public + keys[1].public))
        )
        for _ in range(rng.choice((0, 1, 3))):
            at = rng.randrange(len(whole))
            whole[at : at + rng.choice((0, 1, 4))] = rng.randbytes(rng.choice((0, 1, 4)))
        content = bytes(whole) if rng.random() < 0.9 else payload(rng, field).encode("utf-8", "replace")
        with suppress(GpuprovError):
            found = fingerprints(content)
            if binary(armored(content).encode()) != binary(content):
                raise Reached("key", f"another keyring after it was armored: {found}")

    return once


@way("mirror", "server", "file", "code", share=200, seconds=40)
def served(field: Field) -> Try:
    """Try a server's answers: redirects to files, floods, slow bodies, broken headers."""
    server = Server()
    folder = field.work / "cache-of-server"
    field.theirs.chmod(0o644)

    def once(rng: random.Random) -> None:
        """Make one try: fetch a file from a hostile server."""
        size = rng.choice((None, None, 100))
        answer = _answer(rng, field)

        def serve(client: Any) -> None:
            """Send the hostile answer in pieces, with pauses."""
            client.recv(65536)
            for piece, pause in answer:
                client.sendall(piece)
                time.sleep(pause)

        server.serve = serve
        fetcher = Fetcher(cache=folder / str(field.number), attempts=1, pause=0.0, timeout=1.0, patience=3.0)
        begun = time.monotonic()
        try:
            content = fetcher.get(f"http://127.0.0.1:{server.port}/x", size=size)
        except GpuprovError as error:
            field.show(printable(str(error)), "the error of a mirror")
            content = None
        if content and field.theirs.read_bytes() in content:
            raise Reached("file", "a redirect read a file of this machine")
        if time.monotonic() - begun > 15:
            raise Reached("hang", f"{time.monotonic() - begun:.0f} s for a patience of 3 s")

    return once


def _answer(rng: random.Random, field: Field) -> list[tuple[bytes, float]]:
    """Return a hostile HTTP answer: pieces, each with the pause after it in seconds."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
    flood = [(bytes(1 << 20), 0.0)] * 300
    text = payload(rng, field).encode("utf-8", "replace")
    where = rng.choice(
        (f"file://{field.theirs}", f"ftp://127.0.0.1/{field.theirs}", "/x", "http://[", "//", "\x01")
    )
    kinds = (
        [(f"HTTP/1.1 302 Found\r\nLocation: {where}\r\n\r\n".encode(), 0.0)],
        [(head + b"\r\n", 0.0), *flood],
        [(head + b"Content-Length: 10\r\n\r\n", 0.0), *[(b"x", 0.4)] * 20],
        [(head + b"Content-Length: -1\r\n\r\n" + text, 0.0)],
        [(head + b"X-Y: " + text.replace(b"\n", b"")[:60000] + b"\r\n\r\nok", 0.0)],
        [(text, 0.0)],
        [(b"HTTP/1.1 200 " + text[:100] + b"\r\n\r\n", 0.0)],
        [(head + b"ETag: " + text[:1000] + b"\r\n\r\nok", 0.0)],
        [(head + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + text, 0.0)],
        [(head, 5.0)],
    )
    return list(rng.choices(kinds, (4, 1, 1, 3, 3, 3, 3, 3, 3, 1))[0])


@way("mirror", "catalogs", "code", "key", share=150, seconds=60)
def catalogs(field: Field) -> Try:
    """Try catalog releases: signed by another key, with a keyring of several keys, with changed files.

    A changed signature whose text is still the same one is no success; a changed text with a bad signature,
    which states that it is good, would be.
    """
    import os
    from unittest.mock import patch

    from gpuprov.catalog.releases import current
    from gpuprov.locking.catalogs.sealing import seal
    from gpuprov.locking.catalogs.update import update

    keys = [field.stack.enter_context(signing_key()) for _ in range(2)]
    public = field.work / "one.asc"
    public.write_bytes(keys[0].public)
    made = []
    for number, key in enumerate(keys):
        data = newer(field.work / f"data{number}", drivers={580: {"latest_known": f"580.{199 + number}.01"}})
        with patch.dict(os.environ, {"GNUPGHOME": str(key.home)}):
            seal(field.work / f"release{number}", key.fingerprint, stated=f"2027.{number + 1}.15", data=data)
        made.append(field.work / f"release{number}")
    served = field.work / "served-release"
    both = field.work / "both.asc"

    def once(rng: random.Random) -> None:
        state = field.work / f"state-{field.number}"
        with patch.dict(os.environ, {"XDG_STATE_HOME": str(state), "XDG_DATA_HOME": str(state)}):
            own = current().version.text
            shutil.rmtree(served, ignore_errors=True)
            kind = rng.randrange(4)
            shutil.copytree(made[0 if kind in (0, 3) else 1], served)
            if kind == 0:  # the right release, changed in transit
                path = rng.choice(sorted(each for each in served.rglob("*") if each.is_file()))
                content = path.read_bytes()
                path.write_bytes(around(rng, field, content.decode("latin-1")).encode("utf-8", "replace"))
                if path.read_bytes() == content:
                    return
            if kind == 3:
                _forge(rng, served, keys[0].binary())
            both.write_bytes(keys[0].public + keys[1].public)
            with suppress(GpuprovError):
                update(str(served), key=both if kind == 2 else public)
            now = current().version.text
            if now != own and kind:
                what = {1: "of another key", 2: "by a keyring of two keys", 3: "with a bad signature"}[kind]
                raise Reached("code", f"a catalog {what} counts: {now}")
            if now != own and kind == 0 and path.suffix not in (".whl", ".asc"):
                raise Reached("code", f"a changed catalog counts ({path.name})")

    return once


def _forge(rng: random.Random, release: Path, public: bytes) -> None:
    """Change a release's catalog.json, and sign it in the name of a key by its public part only."""
    catalog = release / "catalog.json"
    catalog.write_bytes(catalog.read_bytes().replace(b"580.199.01", b"580.999.01") + b"\n")
    [fingerprint] = fingerprints(public)
    stated = stating_good(fingerprint, rng.choice(BLANKS), rng.choice(LINE_ENDS))
    (release / "catalog.json.asc").write_bytes(forged_signature(public, stated))
