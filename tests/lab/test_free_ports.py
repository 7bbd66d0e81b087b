"""Ports of sshd above 1023 while gpuprov restarts it, on a real node with a user who tries to take one."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from gpuprov.access.scripts import node_script
from gpuprov_lab import Lab, Node

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "plugins/module_utils"
PORT = 2222
START = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
TAKE = f"""
import socket, time
end = time.monotonic() + 60
while time.monotonic() < end:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("0.0.0.0", {PORT}))
            taken.listen()
        except OSError:
            continue
        open("/tmp/taken", "w").close()
        time.sleep(60)
"""
"""Program of a user who listens on sshd's port as soon as it is free."""
ANSWERS = f"exec 3<>/dev/tcp/127.0.0.1/{PORT} && head -c 4 <&3"


@pytest.fixture
def node(module_lab: Lab) -> Node:
    """Node whose sshd listens on `PORT`, too, with the two programs that restart it."""
    [node] = module_lab.up(1, "debian12", names=["ports"])
    # systemd-nspawn mounts the parameters read-only, which a server does not.
    node.run("mount --bind /proc/sys/net /proc/sys/net; mount -o remount,bind,rw /proc/sys/net")
    (node.root / "root/sshd.sh").write_text(node_script("gpuprov.access", "node/sshd.sh"))
    for path in [ROOT / "roles/ssh_hardening/files/restart.py", *MODULES.glob("gpuprov_*.py")]:
        shutil.copy(path, node.root / "root")
    node.run("cat >/tmp/take.py", input=TAKE)
    node.run(f"printf 'Port 22\\nPort {PORT}\\n' >/etc/ssh/sshd_config.d/port.conf")
    node.run("systemctl restart ssh; useradd -m eve")
    return node


def test_no_user_takes_a_port_of_sshd_while_it_restarts(node: Node) -> None:
    """Check restarts by the switch's function and by the role, and the kernel's value after them."""
    question = shlex.quote(json.dumps({"unit": "ssh.service", "needed": True, "check": False}))
    first = node.run(f"cat {START}").stdout
    node.run("systemd-run --quiet --collect --uid=eve --unit=take python3 /tmp/take.py")
    for restart in (". /root/sshd.sh; restart_sshd ssh.service", f"python3 /root/restart.py {question}"):
        for _ in range(3):
            node.run(f"systemctl reset-failed ssh; {restart}")
            seen = node.run(f"ls /tmp/taken; cat {START}; bash -c '{ANSWERS}'", check=False)
            assert seen.stdout == f"{first}SSH-"
    assert node.run("systemctl is-active take").stdout == "active\n"
