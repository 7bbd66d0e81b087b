"""Signatures of modules: OpenSSL verifies them, and gpuprov reads them back."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.model.secure_boot import KeyCommand, SecureBoot
from gpuprov.signing import der
from gpuprov.signing.certificate import read_certificate, serial_text
from gpuprov.signing.keys import key, signer
from gpuprov.signing.signature import (
    MAGIC,
    PKCS7,
    TAIL_BYTES,
    TRAILER,
    read_signature,
    signature_bytes,
    without_signature,
)

MODULE = b"\x7fELF" + bytes(range(256)) * 200


def make_pair(
    folder: Path, name: str, *, kind: str = "rsa:2048", flags: tuple[str, ...] = ("-nodes",)
) -> None:
    """Write a new key and its certificate into a folder."""
    words = ["openssl", "req", "-new", "-x509", "-newkey", *kind.split(), *flags, "-days", "9"]
    words += ["-subj", f"/O=Site/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    (folder / f"{name}.key").chmod(0o600)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the keys and certificates `site` and `other`."""
    folder = tmp_path_factory.mktemp("pairs")
    make_pair(folder, "site")
    make_pair(folder, "other")
    return folder


def test_openssl_verifies_what_was_signed(pairs: Path, tmp_path: Path) -> None:
    certificate, sign = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    done = sign(MODULE)
    size = signature_bytes(done)
    assert done[:-size] == MODULE
    (tmp_path / "module").write_bytes(MODULE)
    (tmp_path / "cms").write_bytes(done[-size : -TRAILER.size - len(MAGIC)])
    words = ["openssl", "cms", "-verify", "-inform", "DER", "-in", "cms", "-content", "module", "-binary"]
    words += ["-certfile", pairs / "site.pem", "-CAfile", pairs / "site.pem", "-purpose", "any"]
    asked = subprocess.run([*words, "-out", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    (tmp_path / "module").write_bytes(MODULE[:-1] + b"x")
    assert subprocess.run([*words, "-out", "out"], cwd=tmp_path, capture_output=True).returncode
    assert str(read_signature(done[-TAIL_BYTES:])) == f"site {certificate.serial}"


def test_it_is_byte_for_byte_what_openssl_makes(pairs: Path) -> None:
    """Check the versions in the structure too, which OpenSSL writes and does not verify."""
    _, sign = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    words = ["openssl", "cms", "-sign", "-binary", "-nocerts", "-noattr", "-md", "sha256", "-outform", "DER"]
    words += ["-signer", "site.pem", "-inkey", "site.key"]
    made = subprocess.run(words, cwd=pairs, input=MODULE, capture_output=True, check=True).stdout
    done = sign(MODULE)
    assert done[len(MODULE) : -TRAILER.size - len(MAGIC)] == made


def test_the_trailer_is_the_one_that_kernels_accept(pairs: Path) -> None:
    """Set no other field than the type and the size: kernels refuse such a module (mod_check_sig)."""
    _, sign = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    done = sign(MODULE)
    cms_bytes = len(done) - len(MODULE) - TRAILER.size - len(MAGIC)
    assert TRAILER.unpack_from(done, len(MODULE) + cms_bytes) == (0, 0, PKCS7, 0, 0, cms_bytes)


def test_a_file_may_be_a_signature_alone(pairs: Path) -> None:
    _, sign = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    done = sign(b"")
    assert signature_bytes(done) == len(done)
    assert without_signature(done) == b""


def test_an_element_has_a_length_of_at_most_four_bytes() -> None:
    [item] = der.items(b"\x04\x84\x00\x00\x00\x01x")
    assert item.content == b"x"
    [empty] = der.items(b"\x04\x81\x00")
    assert empty.content == b""
    assert der.element(der.OCTETS, bytes(127)) == b"\x04\x7f" + bytes(127)
    assert der.element(der.OCTETS, bytes(128)) == b"\x04\x81\x80" + bytes(128)
    for content in (b"\x04", b"\x04\x80x", b"\x04\x85\x00\x00\x00\x00\x01x", b"\x04\x82\x01"):
        with pytest.raises(ValueError, match="has no length"):
            list(der.items(content))


def test_the_serial_is_the_one_that_openssl_shows(pairs: Path) -> None:
    words = ["openssl", "x509", "-in", "site.pem", "-noout", "-serial", "-fingerprint", "-sha256"]
    said = subprocess.run(words, cwd=pairs, check=True, capture_output=True, text=True).stdout
    certificate = read_certificate(pairs / "site.pem")
    serial, fingerprint = (line.partition("=")[2] for line in said.splitlines())
    assert certificate.serial.replace(":", "") == serial
    assert certificate.fingerprint.upper() == fingerprint.replace(":", "")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "00"), (1, "01"), (0xFF, "FF"), (0x100, "01:00"), (0x1F2E3D, "1F:2E:3D")]
)
def test_a_serial_has_its_bytes_alone(number: int, text: str) -> None:
    assert serial_text(number) == text


def test_a_module_has_one_signature(pairs: Path) -> None:
    _, by_site = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    _, by_other = signer(SecureBoot(certificate="other.pem", key="other.key"), pairs)
    again = by_site(by_other(MODULE))
    assert again == by_site(MODULE)
    assert without_signature(again) == MODULE


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        MODULE,
        MAGIC,
        TRAILER.pack(0, 0, 2, 0, 0, 1 << 30) + MAGIC,
        b"\x30\x80\x00" + TRAILER.pack(0, 0, 2, 0, 0, 3) + MAGIC,
        b"\x30\x03\x30\x09\x00" + TRAILER.pack(0, 0, 2, 0, 0, 5) + MAGIC,
    ],
    ids=["nothing", "unsigned", "magic-alone", "longer-than-the-file", "no-length", "cut-short"],
)
def test_what_is_no_signature_is_none(tail: bytes) -> None:
    """Check that a file without a valid signature at its end gives None."""
    assert read_signature(tail) is None


def test_the_key_has_to_be_the_certificates(pairs: Path) -> None:
    _, sign = signer(SecureBoot(certificate="site.pem", key="other.key"), pairs)
    with pytest.raises(GpuprovError, match="does not verify with the certificate of site"):
        sign(MODULE)


def test_a_command_signs_as_a_key_file_does(pairs: Path) -> None:
    asks = f"openssl pkeyutl -sign -inkey {pairs}/site.key -pkeyopt digest:sha256"
    _, by_command = signer(SecureBoot(certificate="site.pem", key=KeyCommand(command=asks)), pairs)
    _, by_file = signer(SecureBoot(certificate="site.pem", key="site.key"), pairs)
    assert by_command(MODULE) == by_file(MODULE)
    with pytest.raises(GpuprovError, match="exited with 3: card is out"):
        key(KeyCommand(command="echo card is out >&2; exit 3"), pairs)(bytes(32))


def test_a_key_that_others_may_read_is_refused(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "open.key"
    path.write_bytes((pairs / "site.key").read_bytes())
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match=r"readable by others.*chmod 600"):
        key("open.key", tmp_path)


def test_a_pin_is_not_written_into_the_fleet(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="pin-source=FILE"):
        key("pkcs11:token=site;object=modules?pin-value=1234", tmp_path)


def test_a_key_that_cannot_be_used_is_refused_before_anything_is_signed(tmp_path: Path) -> None:
    make_pair(tmp_path, "locked", flags=("-passout", "pass:secret"))
    make_pair(tmp_path, "curved", kind="ec -pkeyopt ec_paramgen_curve:P-256")
    with pytest.raises(InvalidInput, match="has a passphrase"):
        key("locked.key", tmp_path)
    with pytest.raises(InvalidInput, match="is not an RSA key"):
        key("curved.key", tmp_path)
    with pytest.raises(InvalidInput, match="No such file"):
        key("missing.key", tmp_path)
    with pytest.raises(InvalidInput, match=r"of another type or size; expected .*RSA key, 2048 bits"):
        read_certificate(tmp_path / "curved.pem")
    with pytest.raises(InvalidInput, match=r"missing\.pem cannot be read: No such file"):
        read_certificate(tmp_path / "missing.pem")
    with pytest.raises(InvalidInput, match=r"X\.509"):
        read_certificate(tmp_path / "curved.key")


def test_a_signature_longer_than_its_file_is_not_removed() -> None:
    """Keep the content: a size from a damaged file must not cut off more than the file has."""
    content = MODULE + TRAILER.pack(0, 0, 2, 0, 0, len(MODULE) + 1) + MAGIC
    assert signature_bytes(content) == 0
    assert without_signature(content) == content


@pytest.mark.parametrize("kind", ["rsa:1024", "ec -pkeyopt ec_paramgen_curve:P-256"], ids=["weak", "ec"])
def test_a_certificate_that_kernels_do_not_accept_is_refused(tmp_path: Path, kind: str) -> None:
    make_pair(tmp_path, "site", kind=kind)
    with pytest.raises(InvalidInput, match="its key is of another type or size"):
        read_certificate(tmp_path / "site.pem")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a003020102020105", "a00302011e020105"),
        ("2a864886f70d010101", "2a864886f70d015801"),
        ("020105", "020185"),
    ],
    ids=["version", "key", "serial"],
)
def test_a_damaged_certificate_is_one_line(tmp_path: Path, before: str, after: str) -> None:
    """Check errors of cryptography that are no ValueError."""
    make_pair(tmp_path, "site", flags=("-nodes", "-set_serial", "5"))
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "site.pem").read_text()).hex()
    assert before in der
    (tmp_path / "site.der").write_bytes(bytes.fromhex(der.replace(before, after, 1)))
    with pytest.raises(InvalidInput, match=r"site\.der: .*; expected an X\.509 certificate"):
        read_certificate(tmp_path / "site.der")
