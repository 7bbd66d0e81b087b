"""Notes, checksums and signature of a release."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from gpuprov import __version__
from gpuprov.errors import GpuprovError, InvalidInput, Unreachable
from gpuprov.inventory.firstboot.node.first_boot import RELEASE_LOCK
from gpuprov_lab.mirror.key import SigningKey, signing_key
from maintenance.release import locked
from maintenance.release.__main__ import main
from maintenance.release.image import archive, build_image, debian
from maintenance.release.locked import ROOT, NoWheel, Pinned, read_pins
from maintenance.release.materials import materials
from maintenance.release.notes import CHANGELOG, notes
from maintenance.release.pyz import digest
from maintenance.release.sums import KEYRING, SIGNATURE, SUMS, VERIFY, sign

TEXT = "# Changelog\n\n## Unreleased\n\n- two\n\n## 0.2.0 (2026-01-31)\n\n- one\n\n## 0.1.0\n"


@pytest.fixture(scope="module")
def key() -> Iterator[SigningKey]:
    with signing_key() as key:
        yield key


@pytest.fixture
def release(tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files, their checksums and the signature."""
    for name in ("gpuprov.pyz", "other"):
        (tmp_path / name).write_bytes(b"content of " + name.encode())
    monkeypatch.setenv("GNUPGHOME", str(key.home))
    assert sign(tmp_path, key.fingerprint) == key.fingerprint
    return tmp_path


def verified(folder: Path) -> int:
    """Return the exit code of the line that a user types."""
    return subprocess.run(["sh", "-c", VERIFY], cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("said", "error"),
    [("ERROR: No matching distribution found for x==1", NoWheel), ("exceeded its memory", GpuprovError)],
)
def test_pip_of_a_release_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type[GpuprovError]
) -> None:
    """Let the pip with limits fail; an index can send pages and files without an end."""

    def run_pip(*words: str, do: str) -> bytes:
        assert {"download", "--require-hashes", "--no-deps"} <= set(words)
        raise Unreachable(said, do=do)

    monkeypatch.setattr(locked, "run_pip", run_pip)
    with pytest.raises(error, match=said) as raised:
        locked.download([Pinned("x", "1", None, ("sha256:0",))], tmp_path)
    assert type(raised.value) is error
    assert list(tmp_path.iterdir()) == []


def test_the_line_verifies_what_was_downloaded(release: Path) -> None:
    assert verified(release) == 0
    (release / "other").unlink()
    assert verified(release) == 0
    (release / "gpuprov.pyz").unlink()
    assert verified(release) != 0  # nothing is left to verify


@pytest.mark.parametrize("name", ["gpuprov.pyz", SUMS, SIGNATURE, KEYRING])
def test_a_changed_byte_is_refused(release: Path, name: str) -> None:
    path = release / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert verified(release) != 0


def test_a_second_signature_covers_the_same_files(release: Path, key: SigningKey) -> None:
    before = (release / SUMS).read_text()
    sign(release, key.fingerprint)
    assert (release / SUMS).read_text() == before


def test_an_unknown_key_signs_nothing(release: Path) -> None:
    with pytest.raises(GpuprovError, match="gpg"):
        sign(release, "0" * 40)


def test_the_notes_are_the_section_of_the_version() -> None:
    said = notes("0.2.0", TEXT)
    assert "# gpuprov 0.2.0\n\n- one\n\n## Verify" in said
    assert "two" not in said
    assert VERIFY in said
    assert notes(__version__, CHANGELOG.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0", "0.2"])
def test_a_version_without_entries_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput, match=f"no entries for {version}"):
        notes(version, TEXT)


def test_a_bill_of_materials_has_every_pinned_package_with_its_hashes() -> None:
    pins = read_pins((ROOT / "requirements.lock").read_text())
    text = materials(pins, __version__)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    listed = {(each["name"], each["version"]): each["hashes"] for each in document["components"]}
    assert {name: {f"sha256:{each['content']}" for each in hashes} for name, hashes in listed.items()} == {
        (pin.name, pin.version): set(pin.hashes) for pin in pins
    }
    [own] = [each for each in document["dependencies"] if each["ref"] == "gpuprov"]
    assert len(own["dependsOn"]) == len(pins)
    assert materials(pins, __version__) == text


def test_a_formula_names_the_file_by_hash(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyz, address = release / "gpuprov.pyz", "https://forge.example/gpuprov"
    assert main(["formula", str(pyz), "--url", f"{address}/gpuprov.pyz", "--homepage", address]) == 0
    said = capsys.readouterr().out
    assert f'sha256 "{digest(pyz)}"' in said
    assert f'version "{__version__}"' in said
    assert said.count("python@3.13") == 2
    bad = main(["formula", str(pyz), "--url", 'https://x" + `id` + "', "--homepage", address])
    assert (bad, capsys.readouterr().out) == (2, "")


def test_an_image_without_its_tools_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuprovError, match="buildah, debootstrap not installed; apt install"):
        build_image(tmp_path / "x.whl", tmp_path / "x.tar", "1", archive(), tmp_path, 0)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap"
)
def test_without_debians_keys_no_package_is_taken_from_a_mirror(tmp_path: Path) -> None:
    """Show debootstrap an empty folder of keys, and an archive without a signature."""
    archive, keys = tmp_path / "archive/dists/trixie", tmp_path / "keys"
    archive.mkdir(parents=True)
    keys.mkdir()
    lines = ("Suite: trixie", "Codename: trixie", "Components: main", "Architectures: amd64")
    (archive / "Release").write_text("".join(f"{line}\n" for line in lines))
    without = f'mount --bind {keys} /usr/share/keyrings && exec "$@"'
    command = debian(tmp_path / "root", f"file://{tmp_path}/archive")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", without, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Keyring-based check was requested" in done.stdout + done.stderr


def test_a_folder_with_files_is_refused(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheelhouse", str(release)]) == 2
    assert f"{release} is not empty; name a new folder" in capsys.readouterr().err


def test_a_signer_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", str(tmp_path / "new")]) == 2
    assert "--signer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "machine", "ansible", "zstd"),
    [("3.11", "x86_64", 1, 1), ("3.14", "aarch64", 1, 0)],
)
def test_a_wheelhouse_has_what_one_python_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    machine: str,
    ansible: int,
    zstd: int,
) -> None:
    calls: list[tuple[list[str], tuple[str, ...]]] = []

    def downloaded(pins: list[Pinned], folder: Path, *options: str) -> None:
        calls.append(([pin.name for pin in pins], options))

    def built(folder: Path) -> Path:
        """Return a wheel that contains only the list of requirements."""
        wheel = folder / f"gpuprov-{__version__}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as inside:
            inside.write(ROOT / "requirements.lock", RELEASE_LOCK)
        return wheel

    monkeypatch.setattr("maintenance.release.wheelhouse.download", downloaded)
    monkeypatch.setattr("maintenance.release.__main__.make_wheel", built)
    folder = tmp_path / "house"
    assert main(["wheelhouse", str(folder), "--python", version, "--machine", machine]) == 0
    [(names, options)] = calls
    assert [names.count(name) for name in ("ansible-core", "backports-zstd", "colorama")] == [
        ansible,
        zstd,
        0,
    ]
    assert options[:2] == ("--python-version", version)
    assert all(each.endswith(machine) for each in options[3::2])
    assert (folder / "requirements.lock").read_bytes() == (ROOT / "requirements.lock").read_bytes()
    assert f"--no-deps {folder}/gpuprov-{__version__}-py3-none-any.whl" in capsys.readouterr().out
