"""The bundle for a vendor's support: what is in it, and what is not."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.doctor.bundle import LEFT_OUT, clean, write_bundle
from gpuprov.errors import InvalidInput, NodeFailed
from tests.unit.doctor.machines import as_examined, bare_metal

SECRETS = (
    'password="hunter2"',
    "aws_secret_access_key: hunter2",
    "https://me:hunter2@mirror.example/x",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
    "Authorization: Bearer hunter2",
)


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_hidden(text: str) -> None:
    cleaned, counts = clean(f"before {text} after")
    assert "hunter2" not in cleaned
    assert counts["secrets"] >= 1
    assert cleaned.startswith("before ")


def test_addresses_keep_their_identity_and_versions_stay() -> None:
    text = "from 10.1.2.3 to 10.1.2.4, 10.1.2.3 again; libcudnn9 9.15.0.57-1, driver 580.159.04, 127.0.0.1\n"
    cleaned, counts = clean(text)
    assert cleaned == (
        "from (IPv4 address 1) to (IPv4 address 2), (IPv4 address 1) again; libcudnn9 9.15.0.57-1, "
        "driver 580.159.04, 127.0.0.1\n"
    )
    assert counts == {"IPv4 address": 2}


def test_what_is_in_it_and_what_is_not(tmp_path: Path) -> None:
    def answer(line: str) -> tuple[int, str]:
        if line.startswith("dmesg"):
            return 0, "NVRM: Xid (PCI:0000:00:06): 79\ntoken=hunter2\n"
        if line.startswith("lspci"):
            raise NodeFailed("no answer in 70 s")
        return 127, ""

    path = tmp_path / "b.tar.gz"
    told = write_bundle(path, as_examined(bare_metal()), answer)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        names = {name.removeprefix("gpuprov-bundle/") for name in archive.getnames()}
        assert names == {"diagnosis.json", "facts.json", "dmesg.txt", "LEFT-OUT.txt"}
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert all("hunter2" not in text for text in texts.values())
    assert "1650000000000" not in texts["gpuprov-bundle/facts.json"]
    assert texts["gpuprov-bundle/LEFT-OUT.txt"].splitlines() == told
    assert all(f"not looked at: {each}" in told for each in LEFT_OUT)
    assert "not there: lspci.txt: no answer in 70 s" in told
    assert "dmesg.txt: 1 secrets hidden" in told
    with pytest.raises(InvalidInput, match="already exists"):
        write_bundle(path, as_examined(bare_metal()), answer)


def test_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.tar.gz"
    assert run(["doctor", "--local", "--bundle", str(path)]) == 0
    assert path.is_file()
    assert "not there: nvidia-bug-report.txt" in capsys.readouterr().err
    assert run(["doctor", "--bundle", str(tmp_path / "c.tar.gz")]) == 2
