"""Secure Boot at first contact: certificates that a node trusts, and enrolment of the fleet's certificate.

Only the firmware or shim can enroll a certificate, after confirmation by a user at the console. This module
makes the request, with a password that is used once, and reports later whether the certificate is enrolled.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuprov.access.deadman import as_root, last_line
from gpuprov.errors import NodeFailed
from gpuprov.probe.collect import collect
from gpuprov.probe.payload import Parameters

if TYPE_CHECKING:
    from gpuprov.probe.parse.state import SecureBoot
    from gpuprov.signing.certificate import Certificate
    from gpuprov.ssh.transport import Session

LETTERS = "bcdefghijklnoprstuvx"
"""Letters in the same place on most keyboards: MOK manager uses the American layout."""
PASSWORD_LENGTH = 10
# The password is read from standard input: arguments of mokutil, sh and sudo are in the process list and in
# sudo's log. printf is built into sh, and does not run as a process.
REQUEST = """\
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
IFS= read -r password
exec </dev/null
if ! command -v mokutil >/dev/null; then
    if command -v apt-get >/dev/null; then
        {{ apt-get -q update && apt-get -q -y install --no-install-recommends mokutil; }} >&2
    else
        dnf -q -y install mokutil >&2
    fi
    echo installed
fi
file=$(mktemp)
trap 'rm -f "$file"' EXIT
echo {certificate} | base64 -d >"$file"
waits() {{
    mokutil --test-key "$file" 2>&1 | grep -q "enrollment request"
}}
if waits; then
    echo waiting
else
    printf '%s\\n%s\\n' "$password" "$password" | mokutil --import "$file" >&2
    waits
    echo requested
fi
"""
CLOUDS = {
    "Google": "a custom image with it in --signature-database-file of `gcloud compute images create`",
    "Amazon EC2": "an image registered with it in --uefi-data of `aws ec2 register-image`",
    "Microsoft Corporation": "a gallery image version with it in uefiSettings.additionalSignatures (Azure)",
}
"""The firmware's vendor → where to enroll certificates; docs/guides/secure-boot.md has the sources."""
AT_THE_CONSOLE = (
    "at the console, at the next boot, press a key within ten seconds, then: Enroll MOK, Continue, Yes,"
    " password {password}, Reboot"
)


@dataclass
class Enrolment:
    """Changes of a node, and notes for the user."""

    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def enrolment(name: str, session: Session, certificate: Certificate) -> Enrolment:
    """Check what a node trusts, and request the certificate's enrolment if it is not enrolled.

    Without EFI and in known clouds nothing is requested; a note states the reason or the way to enroll it.
    A request installs mokutil if the node lacks it; a note has its password.

    Raises:
        NodeFailed: the node cannot be probed, or does not accept the request.
    """
    facts = collect(session, Parameters(collectors=("system", "state", "secure_boot")))
    seen = facts.secure_boot
    if seen.on is None:
        return Enrolment(notes=["no EFI: Secure Boot cannot be on"])
    known = certificate.fingerprint in seen.enrolled
    state = (
        "on"
        if seen.on
        else "off: switch it on in the firmware's setup, or with the property of the cloud's machine"
    )
    done = Enrolment(notes=[f"Secure Boot is {state}", f"the kernel trusts {_listed(seen)}"])
    if known:
        done.notes.append(f"the certificate of {certificate.signer} is enrolled")
    elif cloud := next((how for vendor, how in CLOUDS.items() if seen.vendor.startswith(vendor)), None):
        done.notes.append(f"the certificate of {certificate.signer} is not enrolled; it needs {cloud}")
    else:
        _request(name, session, certificate, done)
    return done


def _listed(seen: SecureBoot) -> str:
    """Return the names of the trusted certificates as text."""
    return ", ".join(seen.trusted) or "no certificate that it lists"


def _request(name: str, session: Session, certificate: Certificate, done: Enrolment) -> None:
    """Request the enrolment with a new password, and add changes and notes to `done`.

    mokutil is installed from the node's repositories if it is missing. A note has the password. If a request
    is waiting already, only a note is added.

    Raises:
        NodeFailed: the node does not accept the request.
    """
    password = "".join(secrets.choice(LETTERS) for _ in range(PASSWORD_LENGTH))
    content = base64.b64encode(certificate.der).decode()
    script = REQUEST.format(certificate=content)
    output = as_root(session, script, None, stdin=password.encode() + b"\n")
    result = output.stdout.decode("utf-8", "replace").split()
    if output.code or not result:
        raise NodeFailed(
            f"mokutil does not accept the certificate of {certificate.signer}: {last_line(output)}",
            do=f"run `mokutil --import` on {name} yourself",
        )
    if "installed" in result:
        done.changed.append("mokutil installed")
    if "waiting" in result:
        done.notes.append(
            f"the certificate of {certificate.signer} is requested and waits for the console; if its"
            " password is lost, run `mokutil --revoke-import` on the node and bootstrap again"
        )
        return
    done.changed.append(f"enrolment of the certificate of {certificate.signer} requested")
    done.notes.append(AT_THE_CONSOLE.format(password=password))
    done.notes.append(f"afterwards `gpuprov bootstrap {name}` reports whether it is enrolled")
