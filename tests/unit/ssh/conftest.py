"""Configuration of ssh for tests, in a file that only they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuprov.ssh import client_config
from gpuprov.ssh.route import forget_routes

Configure = Callable[[str], Path]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Function that writes the file read instead of ~/.ssh/config; there is no system-wide file."""
    path = tmp_path / "ssh_config"
    monkeypatch.setattr(client_config, "FILES", (str(path), str(tmp_path / "nothing")))
    monkeypatch.setattr(client_config, "SSH", ("ssh", "-F", str(path)))
    forget_routes()

    def write(text: str) -> Path:
        """Write the text as ~/.ssh/config, and forget what was read of it before."""
        path.write_text(text)
        forget_routes()
        return path

    yield write
    forget_routes()
