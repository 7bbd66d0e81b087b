"""Identity of a connection's peer: the party that its certificate names, signed by the fleet's authority.

A certificate names one party, `gpuprov:coordinator` or `gpuprov:site:NAME`, as a URI among its subject
alternative names. A coordinator's certificate is only valid for a client, a site's only for a server.
Addresses prove nothing and are not compared.
"""

from __future__ import annotations

import re
import shlex
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from gpuprov.errors import InvalidInput, Refused
from gpuprov.files.ways import require_own_above
from gpuprov.untrusted import shown

PREFIX, COORDINATOR = "gpuprov:", "gpuprov:coordinator"
SITE = re.compile(r"gpuprov:site:(?P<site>[A-Za-z0-9][A-Za-z0-9._-]{0,62})")
MAKE = "gpuprov workers certificates --site NAME"


def default_folder() -> Path:
    """Return the folder of a coordinator's certificates: `$XDG_CONFIG_HOME/gpuprov/workers`."""
    return Path(platformdirs.user_config_dir("gpuprov")) / "workers"


def coordinator_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS context with which a coordinator connects.

    Raises:
        InvalidInput: there are no certificates, or they are damaged.
        Refused: other users can read the key, or replace a file.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder, "coordinator")


def site_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS context with which the service of a site listens; raises as `coordinator_context`."""
    return _context(ssl.PROTOCOL_TLS_SERVER, folder, "site")


def _context(protocol: int, folder: Path, who: str) -> ssl.SSLContext:
    """Return a TLS context that requires a peer's certificate, signed by the fleet's authority.

    Raises:
        InvalidInput, Refused: as `coordinator_context`.
    """
    files = [folder / name for name in ("ca.pem", f"{who}.pem", f"{who}.key")]
    for file in files:
        if not file.is_file():
            raise InvalidInput(f"there is no certificate {file}", expected=f"a certificate of {who}", do=MAKE)
        try:
            require_own_above(file)
        except OSError as error:
            seen = f"the certificate {file} is not safe: {error.strerror}"
            raise Refused(seen, expected="files and folders that only you can write") from None
    if stat.S_IMODE(files[2].stat().st_mode) & 0o077:
        do = f"chmod 600 {shlex.quote(str(files[2]))}"
        raise Refused(f"others can read {files[2]}", expected="mode 0600", do=do)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files[0])
        context.load_cert_chain(files[1], files[2])
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(f"the certificates in {folder} cannot be used: {error}", do=MAKE) from None
    return context


def proven_site(certificate: Mapping[str, Any] | None, where: str) -> str:
    """Return the site that a verified certificate names.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert` returns it.
        where: the address, for the message.

    Raises:
        Refused: the certificate names no site, several, or a site and another party.
    """
    named = _parties(certificate)
    found = SITE.fullmatch(named[0]) if len(named) == 1 else None
    if not found:
        raise Refused(
            f"the certificate of {where} names {shown(', '.join(named) or 'nothing')}",
            expected="one site, gpuprov:site:NAME",
            do=MAKE,
        )
    return found["site"]


def is_coordinator(certificate: Mapping[str, Any] | None) -> bool:
    """Return whether a verified certificate is a coordinator's."""
    return _parties(certificate) == [COORDINATOR]


def _parties(certificate: Mapping[str, Any] | None) -> list[str]:
    """Return the parties that a certificate names; [] without a certificate."""
    names = (certificate or {}).get("subjectAltName", ())
    return [name for kind, name in names if kind == "URI" and name.startswith(PREFIX)]
