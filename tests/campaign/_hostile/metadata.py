"""A hostile metadata service: imported machine documents, and the first boot's downloads and files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import stat
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.network import Server
from tests.campaign._hostile.playbooks import Inventories
from tests.campaign._hostile.wire import call
from tests.campaign._hostile.words import payload, spoil

Try = Callable[[random.Random], None]
DOCUMENTS: tuple[dict[str, Any], ...] = (
    {
        "v1": {
            "cloud_name": "aws",
            "local_hostname": "ip-10-0-0-1",
            "instance_id": "i-0abc",
            "distro": "ubuntu",
            "distro_version": "24.04",
            "machine": "x86_64",
            "region": "eu-west-1",
            "availability_zone": "eu-west-1a",
        },
        "ds": {"meta_data": {"instance-type": "p5.48xlarge", "local-ipv4": "10.0.0.1"}},
    },
    {
        "instanceType": "p5.48xlarge",
        "instanceId": "i-0abc",
        "privateIp": "10.0.0.1",
        "architecture": "x86_64",
        "availabilityZone": "eu-west-1a",
    },
    {
        "compute": {"vmSize": "Standard_ND96isr_H100_v5", "name": "gpu01", "location": "westeurope"},
        "network": {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.1"}]}}]},
    },
    {
        "instance": {
            "machineType": "projects/1/machineTypes/a3-highgpu-8g",
            "name": "gpu01",
            "zone": "projects/1/zones/europe-west4-a",
            "networkInterfaces": [{"ip": "10.0.0.1"}],
        }
    },
    {"shape": "BM.GPU.H100.8", "hostname": "gpu01", "canonicalRegionName": "eu-frankfurt-1"},
)


@way("metadata service", "import", "code", "file", share=1200)
def imported(field: Field) -> Try:
    """Try a machine's metadata as input of a fleet.yml, and that as an Ansible inventory."""
    source, fleet = field.work / "machine.json", field.work / "fleet.yml"
    inventories = Inventories(field)

    def once(rng: random.Random) -> None:
        """Make one try: import a spoiled document, and convert the fleet."""
        document = json.loads(json.dumps(rng.choice(DOCUMENTS)))
        for _ in range(rng.choice((0, 1, 1, 2))):
            spoil(rng, field, document)
        text = (
            json.dumps(document)
            .replace("gpu01", f"t{field.number}")
            .replace("ip-10-0-0-1", f"t{field.number}")
        )
        source.write_text(text.replace("i-0abc", f"t{field.number}"))
        fleet.unlink(missing_ok=True)
        call(field, "inventory", "import", str(source), "-F", str(fleet), "--os", "ubuntu24.04")
        if fleet.exists():
            said = call(field, "inventory", "list", "-F", str(fleet))
            if not said.code:
                dynamic = json.loads(said)
                hosts = dynamic["_meta"]["hostvars"]
                path = field.work / f"listed-{field.number}.json"
                own = {f"t{field.number}x{index}": each for index, each in enumerate(hosts.values())}
                path.write_text(
                    json.dumps({"all": {"children": {"g": {"hosts": own or {f"t{field.number}": {}}}}}})
                )
                inventories.add(path)
                path.unlink()

    once.settle = inventories.settle  # type: ignore[attr-defined]
    return once


class Machine:
    """A folder in place of a machine that boots for the first time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.places = {
            "ORDER": folder / "order.json",
            "FOLDER": self.state,
            "STATE": self.state / "state.json",
            "DONE": self.state / "done",
            "VERDICT": self.state / "verify.xml",
            "VOLATILE": folder / "run.json",
            "PROGRAM": folder / "opt",
            "COMMAND": folder / "command",
            "DEVICES": folder / "devices",
            "BROUGHT": self.state / "modules",
            "STORE": folder / "store",
        }
        device = folder / "devices/0000:07:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        for name in ("gpuprov", "systemctl"):
            (folder / name).write_text("#!/bin/sh\necho '{\"nodes\": []}'\n")
            (folder / name).chmod(0o755)


@way("metadata service", "first boot", "file", "key", share=500, seconds=60)
def first_boot(field: Field) -> Try:
    """Try answers of the addresses in the first boot's order: locks, modules, a hook."""
    from gpuprov.inventory.firstboot.node import first_boot as program

    server = Server()

    def once(rng: random.Random) -> None:
        """Make one try: a first boot with a hostile server; raise Reached if a goal is reached."""
        machine = Machine(field.work / f"boot-{field.number}")
        url = f"http://127.0.0.1:{server.port}/x?X-Amz-Signature={field.secret}"
        content = _content(rng, field)  # content with the order's checksum equals the export
        sha256 = "0" * 64
        posted: list[bytes] = []
        server.serve = _serving(rng, content, posted)
        lock = {"path": str(machine.folder / "lock"), "url": url, "sha256": sha256}
        order = {
            "node": "here",
            "lock": lock,
            "modules": {"url": url, "sha256": sha256} if rng.random() < 0.6 else None,
            "install": {
                "requirement": "",
                "sha256": None,
                "index": None,
                "program": str(machine.folder / "gpuprov"),
            },
            "gpus": 1,
            "reboot": True,
            "metrics": str(machine.folder / "metrics/first.prom"),
            "report": f"http://user:{field.secret}@127.0.0.1:{server.port}/hook",
            "patience_s": 0,
        }
        if rng.random() < 0.5:
            order["lock"] = {"path": str(machine.folder / "gpuprov"), "url": None, "sha256": _digest(machine)}
        machine.places["ORDER"].write_text(json.dumps(order))
        shown = io.StringIO()
        environment = {"PATH": f"{machine.folder}:{os.environ['PATH']}"}
        with (
            patch.multiple(program, **machine.places),
            patch.object(program.time, "sleep", lambda _: None),
            patch.dict(os.environ, environment),
            redirect_stdout(shown),
        ):
            program.main()
        if field.secret in shown.getvalue():
            raise Reached("key", f"the journal has an address with its signature: {shown.getvalue()[-300:]}")
        _check_posted(field, machine, posted)

    return once


def _digest(machine: Machine) -> str:
    """Return the SHA-256 of the program that is installed on a machine."""
    return hashlib.sha256((machine.folder / "gpuprov").read_bytes()).hexdigest()


def _check_posted(field: Field, machine: Machine, posted: list[bytes]) -> None:
    """Raise Reached if the secret is in a file that others can read, or in a posted report."""
    for path in machine.folder.rglob("*"):
        readable = path.is_file() and not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o004
        if path != machine.places["ORDER"] and readable and field.secret in path.read_text(errors="replace"):
            raise Reached("key", f"others may read the signature of an address in {path.name}")
    if any(field.secret.encode() in each for each in posted):
        raise Reached("key", "the signature of an address went to the hook")


def _content(rng: random.Random, field: Field) -> bytes:
    """Return the content of a download: a zip archive with hostile names and links, hostile text,
    or nothing.
    """
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("6.1/x/about.json", "{}")
        for _ in range(rng.choice((0, 1, 2))):
            name = payload(rng, field, "path").replace("\0", "") or "x"
            member = zipfile.ZipInfo(name)
            if rng.random() < 0.3:
                member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, str(field.theirs))
        if rng.random() < 0.03:
            archive.writestr("bomb", bytes(1 << 30))
    return rng.choice((whole.getvalue(), payload(rng, field).encode("utf-8", "replace"), b""))


def _serving(rng: random.Random, content: bytes, posted: list[bytes]) -> Callable[[Any], None]:
    """Return the function of a server's answer: valid, an error, a redirect, too long, or noise."""
    kind = rng.randrange(8)

    def serve(client: Any) -> None:
        """Answer one connection; record what it posts."""
        request = client.recv(65536)
        if request.startswith(b"POST"):
            posted.append(request)
            client.settimeout(0.2)
            try:
                while more := client.recv(65536):
                    posted.append(more)
            except OSError:
                pass
        if kind == 0:
            client.sendall(b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\n\r\n")
        elif kind == 1:
            client.sendall(b"HTTP/1.1 500 x\r\n\r\n")
        elif kind == 2:
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + content)
        elif kind == 3:
            client.sendall(b"\x00" * 1000)
        else:
            client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + content)

    return serve
