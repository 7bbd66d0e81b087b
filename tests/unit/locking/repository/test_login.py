"""Passwords of repositories: only from a file of the operator, never in a URL of fleet.yml."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.login import login_of
from gpuprov.model.fleet import parse_fleet

GROUPS = "groups: {g: {profile: hgx-h200-8, hosts: gpu01, os: debian12}}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a netrc file with the password of one host and a default, which the variable NETRC names."""
    path = tmp_path / "netrc"
    path.write_text("machine mirror.example login anna password geheim\ndefault login x password y\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    return path


@pytest.mark.parametrize(
    "url", ["https://anna:geheim@mirror.example/apt", "http://geheim@mirror.example/apt"]
)
def test_a_login_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    for stated in (url, f"{{url: '{url}', key: k.asc}}"):
        with pytest.raises(
            InvalidInput, match=r"mirror.example/apt.*a URL without a login.*netrc.*auth\.conf\.d"
        ) as refused:
            parse_fleet(GROUPS + f"repositories: {{debian: {stated}}}\n", "fleet.yml")
        assert "geheim" not in str(refused.value)


def test_a_login_comes_from_a_file_of_the_operators_alone(file: Path) -> None:
    result = login_of("https://mirror.example/apt/Release")["Authorization"]
    assert base64.b64decode(result.removeprefix("Basic ")) == b"anna:geheim"
    assert login_of("http://mirror.example/apt/Release") == {}
    assert login_of("https://other.example/") == {}
    file.chmod(0o644)
    with pytest.raises(Refused, match="other users may read it; chmod 600"):
        login_of("https://mirror.example/")
    file.chmod(0o600)
    file.write_text("machine mirror.example word\n")
    with pytest.raises(InvalidInput, match=r"netrc:\d"):
        login_of("https://mirror.example/")


@pytest.mark.usefixtures("file")
def test_a_redirect_does_not_pass_the_login_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def opened(_: object, request: object, timeout: float) -> object:
        asked.append(request)
        raise OSError("enough")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", opened)
    with pytest.raises(Exception, match="enough"):
        Fetcher(attempts=1).get("https://mirror.example/Release")
    [request] = asked
    assert "Authorization" in request.unredirected_hdrs
    assert "Authorization" not in request.headers
