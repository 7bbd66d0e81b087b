"""Creation of certificates for a coordinator and for sites, and of the authority that signs them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuprov.errors import InvalidInput
from gpuprov.files.writing import make_folders
from gpuprov.ssh.workers.identity import COORDINATOR, SITE
from gpuprov.untrusted import shown

AUTHORITY = timedelta(days=3650)
PARTY = timedelta(days=730)
_Key = ec.EllipticCurvePrivateKey


def make_certificates(folder: Path, sites: list[str]) -> list[Path]:
    """Create what is missing: the authority, the coordinator's certificate, and a folder for each site.

    Args:
        folder: folder of the coordinator; with its `ca.key` certificates of any party can be signed.
        sites: names of the sites.

    Returns:
        folders of the sites; copy each only to the machine that serves its site.

    Raises:
        InvalidInput: a site's name is invalid, a site has a folder already, the authority's key does not
            load, or the folder cannot be written.
    """
    folders = [folder / f"site-{site}" for site in sites]
    for site, own in zip(sites, folders, strict=True):
        if not SITE.fullmatch(f"gpuprov:site:{site}"):
            raise InvalidInput(f"{shown(site)} as a site", expected="letters, digits and . _ -")
        if own.exists():
            raise InvalidInput(f"{own} exists already", do="remove it to make a new certificate")
    try:
        make_folders(folder)
        authority, key = _authority(folder)
        if not (folder / "coordinator.pem").exists():
            _issue(folder, "coordinator", COORDINATOR, authority, key)
        for site, own in zip(sites, folders, strict=True):
            own.mkdir(mode=0o700)
            _write(own / "ca.pem", _pem(authority), 0o644)
            _issue(own, "site", f"gpuprov:site:{site}", authority, key)
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be written: {error.strerror}") from None
    return folders


def _authority(folder: Path) -> tuple[x509.Certificate, _Key]:
    """Return the authority's certificate and key; create them, with the key for the owner only, if the folder
    has no ca.pem.

    Raises:
        InvalidInput: one of the files cannot be loaded.
    """
    place, key_place = folder / "ca.pem", folder / "ca.key"
    if place.exists():
        try:
            key = serialization.load_pem_private_key(key_place.read_bytes(), None)
            found = x509.load_pem_x509_certificate(place.read_bytes())
        except (OSError, ValueError, TypeError):
            raise InvalidInput(
                f"{key_place} is not the key of {place}", do=f"use the folder in which {place} was made"
            ) from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101
        return found, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("gpuprov workers")
    made = (
        _begun(name, name, key, AUTHORITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=False, certify=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_place, _key_pem(key), 0o600)
    _write(place, _pem(made), 0o644)
    return made, key


def _issue(folder: Path, file: str, party: str, authority: x509.Certificate, by: _Key) -> None:
    """Write a new key and a party's certificate, signed by the authority, into FILE.key and FILE.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    calls = party == COORDINATOR
    use = ExtendedKeyUsageOID.CLIENT_AUTH if calls else ExtendedKeyUsageOID.SERVER_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    made = (
        _begun(_name(party), authority.subject, key, PARTY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=True, certify=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(party)]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(by, hashes.SHA256())
    )
    _write(folder / f"{file}.key", _key_pem(key), 0o600)
    _write(folder / f"{file}.pem", _pem(made), 0o644)


def _begun(subject: x509.Name, issuer: x509.Name, key: _Key, lasts: timedelta) -> x509.CertificateBuilder:
    """Return the common part of a certificate, valid from five minutes ago until `lasts` from now."""
    now = datetime.now(UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign: bool, certify: bool) -> x509.KeyUsage:
    """Return the permitted use of a key: for signatures (`sign`), or for certificates (`certify`)."""
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=certify,
        crl_sign=certify,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    """Return a distinguished name with only a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key) -> bytes:
    """Return a private key in PEM, without a passphrase."""
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, bare)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, with its final mode from the start; FileExistsError if there is one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
