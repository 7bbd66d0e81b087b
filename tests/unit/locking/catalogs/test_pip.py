"""pip and package indexes that send without an end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from gpuprov.errors import Unreachable
from gpuprov.locking.catalogs import pip
from gpuprov.locking.catalogs.sources import read_source

WHEEL = "gpuprov_catalog-2030.1.1-py3-none-any.whl"
PIECE = bytes(1 << 20)


class Endless(BaseHTTPRequestHandler):
    """An index whose page, or whose wheel, has no end; its end is at 2 GiB."""

    page = False

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if not (self.page or self.path.endswith(".whl")):
            self.wfile.write(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode())
            return
        try:
            for _ in range(2048):
                self.wfile.write(PIECE)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Endless]]:
    """Make pip use an endless index, with its temporary files below `tmp_path`."""

    class Own(Endless):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    Thread(target=server.serve_forever, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield Own
    server.shutdown()
    server.server_close()


def test_a_page_without_an_end_takes_limited_memory(
    index: type[Endless], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index.page = True
    monkeypatch.setattr(pip, "MEMORY", 256 << 20)
    with pytest.raises(Unreachable, match=r"pip download gpuprov-catalog: .*MemoryError"):
        read_source(None)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_an_end_takes_limited_room(index: type[Endless], tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"pip download gpuprov-catalog: .*File too large"):
        read_source(None)
    assert not index.page
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_pip_that_is_killed(
    index: type[Endless], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pip, "PATIENCE_S", 2.0)
    index.page = True
    with pytest.raises(Unreachable, match=r"more than 2 s|MemoryError"):
        read_source(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("ERROR: No matching distribution\nnote: see the log\n", "ERROR: No matching distribution"),
        ("ERROR: Exception:\nTraceback\nMemoryError\n", "MemoryError"),
        ("", "no message"),
        (
            "ERROR: 404 for url: https://me:pw@index.example/simple/?sig=SECRET",
            "ERROR: 404 for url: https://index.example/simple/?(hidden)",
        ),
    ],
)
def test_the_last_error_of_pip_is_shown(said: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(code=1, stdout=b"", stderr=said.encode())
    monkeypatch.setattr(pip, "run_limited", lambda *_, **__: failed)
    with pytest.raises(Unreachable) as refused:
        pip.run_pip("download", "gpuprov-catalog")
    assert str(refused.value).startswith(f"pip download gpuprov-catalog: {shown}")
