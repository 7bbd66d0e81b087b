"""A BMC of a lab node: sushy-emulator with its fake driver; its changes of power stop and start the node."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ssl import create_default_context

import bcrypt
import yaml

from gpuprov_lab import Node
from tests.unit.upgrade.repair.bmc import PASSWORD, USER, write_certificate

SYSTEM = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
POWER = "var/lib/gpuprov-sim/power.json"
EMULATOR = Path(sys.executable).with_name("sushy-emulator")


class Power:
    """Power of a node as its BMC switches it; a node without power loses the faults that a reboot keeps."""

    def __init__(self, node: Node) -> None:
        self.node, self.state, self.log = node, "On", list[str]()

    def set(self, state: str) -> None:
        """Stop or start the node, if the state has changed."""
        if state == self.state:
            return
        self.state = state
        self.log.append(state)
        if state == "Off":
            self.node.stop()
            (self.node.root / POWER).unlink(missing_ok=True)
        else:
            self.node.start(wait=False)


@contextmanager
def serving_bmc(node: Node, folder: Path, port: int) -> Iterator[Power]:
    """Serve the BMC of a node; write the file of BMCs, `bmc.yml`, and what that names, into a folder."""
    power = Power(node)
    write_certificate(folder)
    (folder / "htpasswd").write_text(
        f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n"
    )
    entry = {
        "address": f"https://127.0.0.1:{port}",
        "user": USER,
        "password_file": "password",
        "ca_file": "ca.pem",
    }
    (folder / "bmc.yml").write_text(yaml.safe_dump({"bmcs": {node.name: entry}}))
    with _notified(power) as url:
        system = {
            "uuid": SYSTEM,
            "name": node.name,
            "power_state": "On",
            "external_notifier": True,
            "nics": [],
        }
        settings = {
            "SUSHY_EMULATOR_FAKE_SYSTEMS": [system],
            "EXTERNAL_NOTIFICATION_URL": url,
            "SUSHY_EMULATOR_AUTH_FILE": str(folder / "htpasswd"),
            "SUSHY_EMULATOR_STATE_DIR": str(folder),
        }
        (folder / "emulator.py").write_text(
            "".join(f"{name} = {value!r}\n" for name, value in settings.items())
        )
        tls = ["--ssl-certificate", folder / "ca.pem", "--ssl-key", folder / "key.pem"]
        words = [
            EMULATOR,
            "--config",
            folder / "emulator.py",
            "--fake",
            "-i",
            "127.0.0.1",
            "-p",
            str(port),
            *tls,
        ]
        with (
            (folder / "emulator.log").open("wb") as log,
            subprocess.Popen(words, stdout=log, stderr=log) as process,
        ):
            try:
                _await(port, folder)
                yield power
            finally:
                process.kill()


@contextmanager
def _notified(power: Power) -> Iterator[str]:
    """Serve the emulator's notifications; yield their URL."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_PUT(self) -> None:
            """Set the power to the state in the request."""
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            power.set(said["power_state"])
            self.send_response(204)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _await(port: int, folder: Path) -> None:
    """Wait until the emulator answers."""
    context, deadline = create_default_context(cafile=str(folder / "ca.pem")), time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"https://127.0.0.1:{port}/redfish/v1/", context=context).close()
        except OSError:
            assert time.monotonic() < deadline, (folder / "emulator.log").read_text()
            time.sleep(0.2)
        else:
            return
