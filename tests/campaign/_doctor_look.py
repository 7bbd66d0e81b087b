"""A doctor's examination of a lab node, and errors in its diagnosis."""

from __future__ import annotations

from base64 import b64encode

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.judge import Diagnosis
from gpuprov.doctor.look import conclude, examine
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Connection
from gpuprov.ssh.transport import Target
from gpuprov_lab import Lab, Node
from gpuprov_lab.simulator import stub_module
from gpuprov_lab.simulator.machines import describe
from tests import ROOT
from tests.campaign._doctor_faults import NEWER
from tests.lab.stub_driver_node import MODULES, VERSION, drive

SICK = ("broken", "degraded")
OF_THE_LAB = ("network.gpudirect",)
"""Rules that apply to every lab node: the stub driver has no peer-memory module."""
FABRIC_MANAGER = """\
[Unit]
After=gpuprov-sim.service

[Service]
Type=forking
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg

[Install]
WantedBy=multi-user.target
"""
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SWITCH = f"""\
#!/bin/sh -eu
# switch-driver VERSION: its modules and libraries on disk, as an upgrade leaves them; what runs stays.
for file in /opt/driver/$1/*.ko; do cp "$file" "$(find /lib/modules -name "$(basename "$file")")"; done
for name in cuda nvidia-ml; do
    rm -f {LIBRARIES}/lib$name.so.[0-9][0-9]*
    touch {LIBRARIES}/lib$name.so.$1
    ln -sf lib$name.so.$1 {LIBRARIES}/lib$name.so.1
done
ldconfig
"""
STUB_TOOL = ROOT / "lab/gpuprov_lab/mirror/contents/nvidia-container-toolkit-base/usr/bin/nvidia-ctk"


def look(lab: Lab, node: Node, user: str = "root") -> Diagnosis:
    """Examine a node over SSH."""
    connection = Connection(identity_file=str(lab.identity_file), known_hosts=str(lab.known_hosts), user=user)
    [(name, answer)] = examine([Target(node.name, node.address, connection)])
    assert isinstance(answer, (Examination, GpuprovError))
    return conclude(name, answer)


def alarms(found: Diagnosis) -> str:
    """Return the broken or degraded results on a healthy machine; empty without any."""
    if found.failure:
        return str(found.failure)
    wrong = [each for each in found.faults if each.severity in SICK and each.rule not in OF_THE_LAB]
    return "; ".join(f"{each.rule}: {each.text}" for each in wrong)


def missed(found: Diagnosis, rule: str) -> str:
    """Return why a fault is not found: it is missing, or a result that is not its cause comes first. "" if it
    is found.
    """
    if found.failure:
        return str(found.failure)
    places = [place for place, each in enumerate(found.faults) if each.rule == rule]
    if not places:
        return f"not found; {[each.rule for each in found.faults]}"
    mine = found.faults[places[0]]
    before = {each.rule for each in found.faults[: places[0]] if each.severity in SICK} - {
        *mine.follows,
        rule,
    }
    return f"after {sorted(before)}" if before and mine.severity == "broken" and not mine.follows else ""


def driven(node: Node) -> None:
    """Install a stub driver, and what its packages provide in addition to the module."""
    drive(node)
    node.run("cat >/etc/systemd/system/nvidia-fabricmanager.service", input=FABRIC_MANAGER)
    node.run(
        f"touch /usr/bin/nv-fabricmanager.distrib {LIBRARIES}/libcuda.so.{VERSION}; "
        f"ln -sf libcuda.so.{VERSION} {LIBRARIES}/libcuda.so.1; /usr/lib/gpuprov-sim/arrange; "
        "systemctl daemon-reload; systemctl enable --now nvidia-persistenced; ldconfig",
        check=False,
    )
    if node.gpu and describe(node.gpu)["switches"]:
        node.run("systemctl enable --now nvidia-fabricmanager")


def equip(node: Node) -> None:
    """Install what the faults use: another driver version, and the container toolkit's tool."""
    for version in (VERSION, NEWER):
        node.run(f"mkdir -p /opt/driver/{version}")
        for part in MODULES:
            stub = stub_module(version, kernel=node.kernel, name=f"nvidia{part.replace('-', '_')}")
            path = f"/opt/driver/{version}/nvidia-current{part}.ko"
            node.run(f"base64 -d >{path}", input=b64encode(stub).decode())
    node.run("cat >/usr/local/sbin/switch-driver; chmod +x /usr/local/sbin/switch-driver", input=SWITCH)
    node.run("cat >/opt/nvidia-ctk; chmod +x /opt/nvidia-ctk", input=STUB_TOOL.read_text())
