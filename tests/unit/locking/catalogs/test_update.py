"""Catalog updates: accepted and refused releases, and the effect on a locked fleet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuprov.catalog import load
from gpuprov.catalog.releases import current, own, pinned, store
from gpuprov.cli import lock as lock_verb
from gpuprov.cli.catalog import command
from gpuprov.errors import Exit, GpuprovError, InvalidInput, Refused, Unreachable
from gpuprov.locking.catalogs import sources
from gpuprov.locking.catalogs.sealing import seal
from gpuprov.locking.catalogs.update import update
from gpuprov.model.lock import read_lock
from gpuprov_lab.mirror.key import SigningKey
from tests.unit.locking.catalogs.signed import sealed, signer, with_data
from tests.unit.locking.fleets import Write

NEWEST = {580: {"latest_known": "580.159.04"}}


@pytest.fixture
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SigningKey, Path]]:
    """Provide a signing key and the file of its public part."""
    with signer(tmp_path_factory.mktemp("key")) as made:
        yield made


@pytest.fixture
def release(tmp_path: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the release 2027.1.15, which has another latest driver in branch 580."""
    return sealed(tmp_path / "made", key[0], monkeypatch, drivers=NEWEST)


def run(*arguments: str) -> Result:
    """Run `gpuprov catalog` with these words; return the result."""
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_a_newer_catalog_counts_at_once(release: Path, key: tuple[SigningKey, Path]) -> None:
    assert str(load().branches[580].latest_known) == "580.178.04"
    done = run("update", str(release), "--key", str(key[1]))
    assert (done.return_value, key[0].fingerprint in done.stderr) == (Exit.OK, True)
    assert done.stdout.startswith(f"catalog {own().version} → 2027.1.15 (sha256 ")
    assert str(load().branches[580].latest_known) == "580.159.04"
    assert "is already installed" in run("update", str(release)).stdout  # the key is already known


@pytest.mark.thorough
def test_a_wheel_is_the_same_release_and_pip_finds_it(
    release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = release.parent / "gpuprov_catalog-2027.1.15-py3-none-any.whl"
    by_path = update(str(wheel), key=key[1]).release
    assert by_path == update(str(release)).release == update(wheel.as_uri()).release
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(release.parent))
    assert update().release == update(stated="2027.1.15").release == by_path
    with pytest.raises(Unreachable, match=r"pip download gpuprov-catalog==2028\.1\.1: ERROR: No matching"):
        update(stated="2028.1.1")


def test_another_key_is_refused(
    tmp_path: Path, release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="no key is known that signs catalogs"):
        update(str(release))
    update(str(release), key=key[1])
    with signer(tmp_path) as (other, public):
        forged = sealed(tmp_path / "forged", other, monkeypatch, stated="2027.2.1")
        with pytest.raises(Refused, match=f"signed by key {other.fingerprint[-16:]}, which is not in"):
            update(str(forged))
        assert current().version.text == "2027.1.15"
        assert update(str(forged), key=public).release.version.text == "2027.2.1"  # --key accepts another key


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nccl.json", "nccl.json of .* is changed: it does not match the manifest"),
        ("catalog.json", "is not the file that key"),
    ],
)
def test_a_changed_file_is_refused(release: Path, key: tuple[SigningKey, Path], name: str, said: str) -> None:
    path = release / name
    path.write_text(path.read_text().replace("2026", "2025", 1).replace("2027", "2028", 1))
    with pytest.raises(Refused, match=said):
        update(str(release), key=key[1])
    assert current() == own()


def test_what_is_missing_or_for_a_newer_gpuprov_is_said(
    release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (release / "catalog.json.asc").unlink()
    with pytest.raises(Refused, match="is not signed"):
        update(str(release), key=key[1])
    monkeypatch.setenv("GNUPGHOME", str(key[0].home))
    monkeypatch.setattr("gpuprov.catalog.releases.FORMAT", 2)
    seal(tmp_path / "new", key[0].fingerprint, stated="2027.3.1")
    monkeypatch.setattr("gpuprov.catalog.releases.FORMAT", 1)
    with pytest.raises(InvalidInput, match=r"format 2; expected .* format 1 at most; upgrade gpuprov first"):
        update(str(tmp_path / "new"), key=key[1])
    data = tmp_path / "bad"
    shutil.copytree(release, data)
    (data / "nccl.json").write_text(json.dumps({"as_of": "2027-01-15", "releases": [{"version": 3}]}))
    seal(tmp_path / "unread", key[0].fingerprint, stated="2027.3.2", data=data)
    with pytest.raises(InvalidInput, match=r"nccl\.json: releases\[3\]\.version: 3"):
        update(str(tmp_path / "unread"), key=key[1])
    assert current() == own()


def test_two_contents_of_one_version_are_refused(
    tmp_path: Path, release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(str(release), key=key[1])
    other = sealed(tmp_path / "other", key[0], monkeypatch)
    with pytest.raises(Refused, match=r"catalog 2027\.1\.15 is installed with other contents"):
        update(str(other))


def test_an_older_release_is_there_for_locks_and_counts_for_nothing_else(
    tmp_path: Path, release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sealed(tmp_path / "old", key[0], monkeypatch, stated="2025.1.1")
    update(str(old), key=key[1])
    assert current() == own()
    update(str(release))
    assert "is installed for locks that pin it; 2027.1.15" in run("update", str(old)).stdout
    assert current().version.text == "2027.1.15"


def test_a_key_file_of_several_keys_is_refused(
    tmp_path: Path, release: Path, key: tuple[SigningKey, Path]
) -> None:
    both = tmp_path / "both.asc"
    with signer(tmp_path) as (other, public):
        both.write_bytes(key[1].read_bytes() + public.read_bytes())
        with pytest.raises(
            Refused,
            match=rf"both.asc holds {key[0].fingerprint}, {other.fingerprint}; expected exactly one key",
        ):
            update(str(release), key=both)
    assert current() == own()
    update(str(release), key=key[1])
    remembered = store() / "key.asc"
    remembered.write_bytes(both.read_bytes())
    with pytest.raises(Refused, match=r"key.asc holds .* gpuprov catalog update --key FILE"):
        load()
    assert update(str(release), key=key[1]).before == own()
    assert current().version.text == "2027.1.15"


def test_what_a_key_has_signed_that_is_trusted_no_more_is_not_the_newest(
    tmp_path: Path, release: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(str(release), key=key[1])
    with signer(tmp_path) as (other, public):
        older = sealed(tmp_path / "older", other, monkeypatch, stated="2027.1.2")
        done = update(str(older), key=public)
        assert (done.before.version.text, current().version.text) == ("2027.1.15", "2027.1.2")
        assert str(load().branches[580].latest_known) == "580.178.04"
        assert pinned("2027.1.15", done.before.sha256).version.text == "2027.1.15"  # for locks that pin it
        again = sealed(tmp_path / "again", other, monkeypatch, drivers=NEWEST)
        assert update(str(again)).release.sha256 == done.before.sha256
        assert current().version.text == "2027.1.15"
    (store() / "key.asc").unlink()
    assert current() == own()


def test_a_revoked_key_has_signed_nothing(release: Path, key: tuple[SigningKey, Path]) -> None:
    update(str(release), key=key[1])
    revocation = key[0].home / f"openpgp-revocs.d/{key[0].fingerprint}.rev"
    text = revocation.read_text().replace(":-----BEGIN", "-----BEGIN")
    home = {**os.environ, "GNUPGHOME": str(key[0].home)}
    subprocess.run(
        ["gpg", "--batch", "--import"], input=text, text=True, env=home, check=True, capture_output=True
    )
    exported = ["gpg", "--batch", "--armor", "--export", key[0].fingerprint]
    revoked = subprocess.run(exported, env=home, check=True, capture_output=True).stdout
    (store() / "key.asc").write_bytes(revoked)
    assert current() == own()
    with pytest.raises(Refused, match="which was revoked"):
        update(str(release))


@pytest.mark.parametrize("name", ["catalog.json", "catalog.json.asc"])
def test_a_release_whose_signature_does_not_hold_any_more_counts_for_nothing(
    release: Path, key: tuple[SigningKey, Path], name: str
) -> None:
    kept = update(str(release), key=key[1]).release
    path = kept.folder / name
    path.write_text(path.read_text().replace("2027.1.15", "2029.1.15").replace("A", "B"))
    assert current() == own()


def test_a_release_that_was_changed_here_is_refused(release: Path, key: tuple[SigningKey, Path]) -> None:
    kept = update(str(release), key=key[1]).release
    path = kept.folder / "drivers.json"
    path.write_text(path.read_text().replace("580.159.04", "580.126.16"))
    with pytest.raises(Refused, match="was changed: its files have sha256"):
        load()


def test_a_locked_fleet_keeps_its_catalog_until_upgrade(
    one_group: Write, release: Path, key: tuple[SigningKey, Path]
) -> None:
    fleet = one_group(driver="580")
    path = fleet.with_name("fleet.lock.yml")
    assert lock_of(fleet).return_value == Exit.OK
    before = path.read_bytes()
    update(str(release), key=key[1])
    assert lock_of(fleet).return_value == Exit.OK
    assert path.read_bytes() == before
    assert lock_of(fleet, "--check").return_value == Exit.OK
    moved = lock_of(fleet, "--upgrade")
    pin = read_lock(path).catalog
    assert pin is not None
    assert (pin.version, pin.sha256) == ("2027.1.15", current().sha256)
    assert "580.178.04 → 580.159.04" in moved.stdout
    assert f"{own().version} (sha256 {own().sha256[:12]}…) → 2027.1.15" in moved.stdout


def test_a_lock_from_before_catalogs_were_pinned_keeps_its_bytes(
    one_group: Write, release: Path, key: tuple[SigningKey, Path]
) -> None:
    fleet = one_group(driver="580")
    path = fleet.with_name("fleet.lock.yml")
    lock_of(fleet)
    lines = path.read_text().splitlines(keepends=True)
    at = lines.index("catalog:\n")
    path.write_text("".join(lines[:at] + lines[at + 3 :]))
    before = path.read_bytes()
    update(str(release), key=key[1])
    said = lock_of(fleet)
    assert path.read_bytes() == before
    assert "the lock pins no catalog, so gpuprov's own is used; --upgrade uses 2027.1.15" in said.stderr


def test_a_lock_whose_catalog_is_not_here_says_what_to_bring(
    one_group: Write, release: Path, key: tuple[SigningKey, Path], own_state: Path
) -> None:
    update(str(release), key=key[1])
    fleet = one_group(driver="580")
    assert lock_of(fleet).return_value == Exit.OK
    shutil.rmtree(own_state / "gpuprov")  # as on another controller
    error = lock_of(fleet).exception
    assert isinstance(error, Refused)
    assert "was made with catalog 2027.1.15" in str(error)
    assert "gpuprov catalog update --release 2027.1.15" in str(error)
    update(str(release), key=key[1])
    assert lock_of(fleet, "--check").return_value == Exit.OK


def test_gpg_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", waits)
    with pytest.raises(GpuprovError, match=r"gpg signed nothing for 0123 within 120 s"):
        seal(tmp_path / "release", "0123")
    assert not (tmp_path / "release").exists()


def lock_of(fleet: Path, *arguments: str) -> Result:
    """Run `gpuprov lock` for a fleet; return the result."""
    return CliRunner().invoke(lock_verb.command, ["--fleet", str(fleet), *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("gpus", "idle_words"), ("systems", "signing_keys"), ("systems", "unserved")),
        *(("drivers", "as_of"), ("devices", "id_runs"), ("devices", "tables_read")),
    ],
)
def test_a_catalog_without_a_part_is_not_installed(
    file: str, name: str, tmp_path: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check parts without a type, which each later command would fail without."""
    data = shutil.copytree(own().folder, tmp_path / "data")
    document = json.loads((data / f"{file}.json").read_text())
    del document[name]
    (data / f"{file}.json").write_text(json.dumps(document))
    release = with_data(tmp_path, key[0], monkeypatch)
    with pytest.raises(InvalidInput, match="the new catalog: KeyError"):
        update(str(release), key=key[1])
    assert current().folder == own().folder


def test_a_catalog_without_its_doubts_is_not_installed(
    tmp_path: Path, key: tuple[SigningKey, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check records that name others, which only a stack with these records would miss."""
    data = shutil.copytree(own().folder, tmp_path / "data")
    document = json.loads((data / "doubts.json").read_text())
    (data / "doubts.json").write_text(json.dumps({**document, "doubts": []}))
    release = with_data(tmp_path, key[0], monkeypatch)
    with pytest.raises(InvalidInput, match="is in no doubts section"):
        update(str(release), key=key[1])
    assert current().folder == own().folder


def test_a_token_in_a_url_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed URLs are pasted into commands, and messages into logs and tickets."""
    monkeypatch.setattr(sources.Fetcher, "get", lambda *_: None)
    with pytest.raises(InvalidInput) as raised:
        sources.read_source("https://index.example/SECRETTOKENabcdefghij0123/a.whl?sig=SECRETSIG", None)
    assert "nothing at https://index.example/(hidden)/a.whl" in str(raised.value)
    assert "SECRET" not in str(raised.value)
