"""A BMC with the paths of Redfish (DSP0266), over TLS with its own certificate."""

from __future__ import annotations

import datetime
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "gpuprov", "between us"
ALL = ("On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle")


@dataclass
class Board:
    """A BMC: its kinds of reset, state, and answers that differ from the usual ones.

    Attributes:
        kinds: kinds of reset that it states.
        refuses: kinds that it states and refuses.
        log: resets that it has done, and logins.
        sessions: whether it has a session service.
        info: whether the kinds are behind @Redfish.ActionInfo.
        systems: ids of its systems.
        deaf: whether an orderly shutdown has no effect.
        says: path → an answer in place of the usual one.
        location: address of a session in place of the usual one.
    """

    kinds: tuple[str, ...] = ALL
    refuses: tuple[str, ...] = ()
    power: str = "On"
    log: list[str] = field(default_factory=list)
    sessions: bool = True
    info: bool = False
    systems: tuple[str, ...] = ("1",)
    deaf: bool = False
    says: dict[str, bytes] = field(default_factory=dict)
    port: int = 0
    folder: Path = Path()
    fingerprint: str = ""
    open: int = 0
    location: str = ""

    def get(self, path: str) -> Any:
        """Return a resource, or None."""
        systems = [{"@odata.id": f"/redfish/v1/Systems/{each}"} for each in self.systems]
        if path == "/redfish/v1/Systems":
            return {"Members": systems}
        here = "/redfish/v1/Systems/" + path.split("/")[-1]
        if {"@odata.id": here} in systems and path == here:
            action: dict[str, Any] = {"target": f"{here}/Actions/ComputerSystem.Reset"}
            if self.info:
                action["@Redfish.ActionInfo"] = f"{here}/ResetActionInfo"
            else:
                action["ResetType@Redfish.AllowableValues"] = list(self.kinds)
            return {"PowerState": self.power, "Actions": {"#ComputerSystem.Reset": action}}
        if self.info and path.endswith("/ResetActionInfo"):
            return {"Parameters": [{"Name": "ResetType", "AllowableValues": list(self.kinds)}]}
        return None

    def reset(self, kind: str) -> int:
        """Reset, and return the HTTP status."""
        if kind not in self.kinds or kind in self.refuses:
            return 501
        self.log.append(kind)
        if kind in ("On", "ForceOn", "PowerCycle", "FullPowerCycle"):
            self.power = "On"
        elif kind == "ForceOff" or (kind == "GracefulShutdown" and not self.deaf):
            self.power = "Off"
        return 204


class _Handler(BaseHTTPRequestHandler):
    board: Board

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, document: Any = None, **headers: str) -> None:
        """Send an answer with the document, or what the board says at this path."""
        body = self.board.says.get(self.path)
        if body is None:
            body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _known(self) -> bool:
        """Check token or password, and answer a request without them."""
        good = {"token"} if self.board.sessions else {"Basic Z3B1cHJvdjpiZXR3ZWVuIHVz"}
        given = {self.headers.get("X-Auth-Token"), self.headers.get("Authorization")}
        if good & given:
            return True
        self._answer(401)
        return False

    def do_GET(self) -> None:
        """Answer with a resource to a session that is known."""
        if self._known():
            document = self.board.get(self.path)
            self._answer(200 if document is not None or self.path in self.board.says else 404, document)

    def do_DELETE(self) -> None:
        """End a session."""
        self.board.open -= 1
        self._answer(204)

    def do_POST(self) -> None:
        """Open a session, or carry out a reset."""
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/redfish/v1/SessionService/Sessions":
            if not self.board.sessions:
                self._answer(404)
            elif (said["UserName"], said["Password"]) == (USER, PASSWORD):
                self.board.open += 1
                self._answer(
                    201, **{"X-Auth-Token": "token", "Location": self.board.location or f"{self.path}/7"}
                )
            else:
                self._answer(401)
        elif self._known():
            status = self.board.reset(said["ResetType"])
            self._answer(status, {"error": {"message": "not supported"}} if status >= 400 else None)


@contextmanager
def serving(board: Board, folder: Path) -> Iterator[Board]:
    """Serve a BMC; its `folder` has `ca.pem` and the password."""
    certificate = write_certificate(folder)
    board.folder = folder
    board.fingerprint = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"board": board}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    board.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield board
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_certificate(folder: Path) -> x509.Certificate:
    """Write the certificate of 127.0.0.1, its key and the password into a folder; return the certificate."""
    key, certificate = _certificate()
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "password").chmod(0o600)
    return certificate


def _certificate() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return a new key and a certificate of it for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bmc")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return key, made.sign(key, hashes.SHA256())
