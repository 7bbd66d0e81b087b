"""A small client of Redfish (DMTF DSP0266): the power of one computer system, with verified TLS."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event, Timer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from gpuprov.errors import GpuprovError, NodeFailed, Unreachable
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.parsing import read_object
from gpuprov.upgrade.repair.bmc import Bmc

TIMEOUT_S = 30.0
"""Time limit of a request in seconds, from the connection to the end of the answer."""
ANSWER_BYTES = 1 << 20
ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
SYSTEMS = f"{ROOT}/Systems"
RESET = "#ComputerSystem.Reset"
_PATH = re.compile(rf"{ROOT}(?:/[A-Za-z0-9_](?:[A-Za-z0-9._~:@#-]|%(?!2[EeFf])){{0,127}}){{1,12}}/?")
"""Paths that are requested. No part is `.` or `..`, also not in an encoding of the URL."""
_NO_SESSIONS = (401, 404, 405, 501)
"""Answers of a BMC without a session service, or with one that expects a login first."""


class RedfishError(NodeFailed):
    """Refusal or unusable answer of a BMC."""

    def __init__(self, seen: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(seen)


class Redfish(AbstractContextManager["Redfish"]):
    """A session with a BMC, which the context manager ends.

    Without a session service the client logs in with each request (HTTP Basic).

    Raises:
        Unreachable: no connection, or the certificate is not the stated or a trusted one.
        RedfishError: the BMC refuses the account.
        InvalidInput: the password cannot be read.
    """

    def __init__(self, bmc: Bmc) -> None:
        self._bmc = bmc
        self._headers: dict[str, str] = {}
        self._session: str | None = None
        self._system = ""

    def __enter__(self) -> Self:
        """Log in with a session, or for each request if the BMC has no sessions, and find the system; raises
        as `_find`, also if the login is refused.
        """
        said = {"UserName": self._bmc.user, "Password": self._bmc.password()}
        status, headers, _ = self._send("POST", SESSIONS, said)
        if token := headers.get("x-auth-token"):
            self._headers = {"X-Auth-Token": token}
            with suppress(ValueError):  # not a location: the session expires
                self._session = urlsplit(headers.get("location", "")).path
        elif status in _NO_SESSIONS:
            pair = f"{said['UserName']}:{said['Password']}".encode()
            self._headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        else:
            raise self._refusal(status)
        try:
            self._system = self._find()
        except BaseException as error:
            self._leave()
            if isinstance(error, RedfishError) and error.status in (401, 403):
                raise self._refusal(error.status) from None
            raise
        return self

    def _refusal(self, status: int) -> RedfishError:
        """Return the error of a login that the BMC refuses."""
        return RedfishError(f"{self._bmc.address} refuses the login of {self._bmc.user}: HTTP {status}")

    def _leave(self) -> None:
        """End the session, if there is one; ignore errors, because it expires."""
        if self._session and _PATH.fullmatch(self._session):
            with suppress(GpuprovError):  # it expires
                self._send("DELETE", self._session)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def power(self) -> str:
        """Return the state of power: `On`, `Off`, `PoweringOn`, `PoweringOff`.

        Raises:
            RedfishError: the BMC states none, or as `_get`.
            Unreachable: as `_send`.
        """
        state = self._get(self._system).get("PowerState")
        if not isinstance(state, str):
            raise RedfishError(f"{self._bmc.address} states no PowerState of {self._system}")
        return on_one_line(state)[:32]

    def resets(self) -> tuple[str, ...]:
        """Return the kinds of reset that the system states, by the action itself or its ActionInfo; ()
        without any.

        Raises as `_get`.
        """
        action = self._action()
        allowed = action.get("ResetType@Redfish.AllowableValues")
        info = action.get("@Redfish.ActionInfo")
        if allowed is None and isinstance(info, str):
            parameters = self._get(info).get("Parameters")
            for each in parameters if isinstance(parameters, list) else []:
                if isinstance(each, dict) and each.get("Name") == "ResetType":
                    allowed = each.get("AllowableValues")
        return tuple(each for each in allowed if isinstance(each, str)) if isinstance(allowed, list) else ()

    def reset(self, kind: str) -> None:
        """Reset the system by one of its kinds.

        Raises:
            RedfishError: the BMC states no reset of this system, or refuses; then `status` is its HTTP
                status.
            Unreachable: as `_send`.
        """
        target = self._action().get("target")
        if not isinstance(target, str) or not target.startswith(f"{self._system}/"):
            raise RedfishError(f"{self._bmc.address} states no reset of {self._system}")
        status, _, body = self._send("POST", target, {"ResetType": kind})
        if status not in (200, 202, 204):
            raise RedfishError(f"{self._bmc.address} refuses {kind}: {_message(status, body)}", status=status)

    def _action(self) -> Mapping[str, Any]:
        """Return the system's action of resets; {} without one; raises as `_get`."""
        actions = self._get(self._system).get("Actions")
        action = actions.get(RESET) if isinstance(actions, dict) else None
        return action if isinstance(action, dict) else {}

    def _find(self) -> str:
        """Return the path of the node's system: the stated one, or the only one.

        Raises:
            RedfishError: the BMC has no such system, or several without a stated one; or as `_get`.
            Unreachable: as `_send`.
        """
        members = self._get(SYSTEMS).get("Members")
        listed = members if isinstance(members, list) else []
        paths = [each.get("@odata.id") for each in listed if isinstance(each, dict)]
        found = [str(path).rstrip("/") for path in paths if isinstance(path, str) and _PATH.fullmatch(path)]
        if self._bmc.system:
            found = [path for path in found if path.rpartition("/")[2] == self._bmc.system]
        if len(found) != 1:
            seen = f"{self._bmc.address} has {len(found)} systems"
            raise RedfishError(f"{seen}; expected one: state its id as `system` in the file of BMCs")
        return found[0]

    def _get(self, path: str) -> dict[str, Any]:
        """Return a resource.

        Raises:
            RedfishError: the path or the answer is not valid, or the BMC refuses; then `status` is its HTTP
                status.
            Unreachable: as `_send`.
        """
        status, _, body = self._send("GET", path)
        if status != 200:
            raise RedfishError(f"{self._bmc.address}{path}: {_message(status, body)}", status=status)
        try:
            return read_object(body, ANSWER_BYTES)
        except ValueError:
            raise RedfishError(f"{self._bmc.address}{path}: not a JSON object") from None

    def _send(
        self, method: str, path: str, body: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request on a new connection; return status, headers in lower case, and the body, at most
        `ANSWER_BYTES`.

        Redirections are not followed: they could lead the credentials to another host.

        Raises:
            Unreachable: the BMC cannot be reached, shows another certificate, or does not answer in
                `TIMEOUT_S`.
            RedfishError: the path is outside of `ROOT`, or the answer is too large.
        """
        if not _PATH.fullmatch(path):
            raise RedfishError(
                f"{self._bmc.address} names a path outside of {ROOT}: {on_one_line(path)[:80]}"
            )
        deadline = time.monotonic() + TIMEOUT_S
        connection = self._connect(deadline)
        headers = {"Accept": "application/json", "OData-Version": "4.0", **self._headers}
        text = None if body is None else json.dumps(body)
        try:
            if text is not None:
                headers["Content-Type"] = "application/json"
            with _ended_at(deadline, connection.sock):
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                data = answer.read(ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            said = on_one_line(str(error))[:200] or type(error).__name__
            raise Unreachable(f"{self._bmc.address} does not answer: {said}") from None
        finally:
            connection.close()
        if len(data) > ANSWER_BYTES:
            raise RedfishError(f"{self._bmc.address}{path}: more than {ANSWER_BYTES} bytes")
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data

    def _connect(self, deadline: float) -> http.client.HTTPSConnection:
        """Return a connection whose certificate is verified before anything is sent, by the stated authority
        or fingerprint.

        Args:
            deadline: of the handshake, as of `time.monotonic`; the connection itself may take `TIMEOUT_S`.

        Raises:
            Unreachable: no connection in time, or another certificate.
        """
        address = urlsplit(self._bmc.address)
        connection = http.client.HTTPSConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)
        try:
            plain = socket.create_connection((connection.host, connection.port), TIMEOUT_S)
            secure = _context(self._bmc).wrap_socket(
                plain, server_hostname=connection.host, do_handshake_on_connect=False
            )
            connection.sock = secure
            with _ended_at(deadline, secure):
                secure.do_handshake()
            shown = secure.getpeercert(binary_form=True)
        except OSError as error:
            connection.close()
            said = on_one_line(str(error))[:200] or type(error).__name__
            raise Unreachable(f"no connection to {self._bmc.address}: {said}") from None
        if self._bmc.fingerprint and not _is(shown or b"", self._bmc.fingerprint):
            connection.close()
            seen = hashlib.sha256(shown or b"").hexdigest()
            raise Unreachable(
                f"{self._bmc.address} shows a certificate with the fingerprint {seen}",
                expected=self._bmc.fingerprint,
                do="compare it at the machine, then state it in the file of BMCs",
            )
        return connection


@contextmanager
def _ended_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    """Shut a connection down at a time, as its own limit is one of each read only.

    Raises:
        TimeoutError: the time has come before the end of the context.
    """
    late = Event()

    def end() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # a reader of TLS gets the end of the data

    timer = Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"no complete answer within {TIMEOUT_S:g} s")


def _context(bmc: Bmc) -> ssl.SSLContext:
    """Return the rules of TLS: those of `ca_file` or the system; none if a fingerprint is compared later."""
    context = ssl.create_default_context(cafile=str(bmc.ca_file) if bmc.ca_file else None)
    if bmc.fingerprint:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _is(certificate: bytes, fingerprint: str) -> bool:
    """Return whether a certificate has a fingerprint, with or without colons."""
    seen = hashlib.sha256(certificate).hexdigest()
    return hmac.compare_digest(seen, fingerprint.replace(":", "").lower())


def _message(status: int, body: bytes) -> str:
    """Return the HTTP status and the message of an error of Redfish, if it has one, cut to 200 characters."""
    try:
        said = read_object(body, ANSWER_BYTES)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = ""
    return f"HTTP {status}" + (f": {on_one_line(str(said))[:200]}" if said else "")
