"""Bootstrap of servers as clouds provide them: image users, passwords, minimal images, busy systems.

One node for each. The fleet's user is root on most nodes, and `ops`, which no image has, on one.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpuprov.access.scripts import node_script
from gpuprov.bootstrap.run import KEY_ONLY
from gpuprov_lab import Lab, Node
from tests.lab.command_line import PROGRAM, gpuprov
from tests.lab.terminal import typed

TURNED_AWAY = (
    "no-port-forwarding,no-agent-forwarding,no-X11-forwarding,"
    'command="echo \'Please login as the user \\"{}\\" rather than the user \\"root\\".\';'
    'echo;sleep 10;exit 142" '
)
"""cloud-init's disable_root_opts, which it writes before root's key."""
SLOW_PACKAGE = """\
set -e
cd /root && mkdir -p slow/DEBIAN
printf '%s\\n' 'Package: slow' 'Version: 1' 'Architecture: all' 'Maintainer: t' \\
 'Description: t' >slow/DEBIAN/control
printf '#!/bin/sh\\nsleep 25\\n' >slow/DEBIAN/postinst
chmod 755 slow/DEBIAN/postinst
dpkg-deb -b slow >/dev/null
systemd-run --quiet dpkg -i /root/slow.deb
"""
LISTS = """\
use Fcntl;
open F, ">>/var/lib/apt/lists/lock";
fcntl(F, F_SETLK, pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0)) or die;
sleep 20;
"""
AT_WORK = """\
#!/bin/sh
[ "$*" = "status --wait" ] || exit 9
sleep 12
date >/root/cloud-init-ended
"""
PASSWORDS = "PermitRootLogin yes\nPasswordAuthentication yes\n"
BARE = "SUDO_FORCE_REMOVE=yes apt-get -q -y purge --auto-remove 'python3*' 'libpython3*' sudo"
NODES = ("debian", "admin", "password", "bare", "cloudinit", "busy", "expired", "matched")
PASSWORD = "as-the-provider-mailed-it"  # noqa: S105


@dataclass(frozen=True)
class Site:
    """A folder with a fleet; the operator's key is not on any node."""

    folder: Path
    nodes: dict[str, Node]
    provider: Path

    def bootstrap(self, *words: str, code: int = 0) -> str:
        """Run bootstrap with the provider's key; return its output."""
        words = ("bootstrap", *words, "--identity", str(self.provider), "--accept-new")
        done = gpuprov(self.folder, *words, code=code)
        return done.stdout + done.stderr

    def ready(self, *names: str) -> None:
        """Check that bootstrap with the fleet's own login changes nothing."""
        done = gpuprov(self.folder, "bootstrap", *names)
        assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()] == [
            "nothing to change"
        ] * len(names)


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return servers as clouds provide them, with an operator's folder: keys, and a fleet."""
    folder = tmp_path_factory.mktemp("site")
    nodes = dict(zip(NODES, module_lab.up(len(NODES), names=list(NODES)), strict=True))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "operator"], check=True)
    shutil.copy(module_lab.identity_file, folder / "provider")
    (folder / "provider").chmod(0o600)
    shutil.copy(f"{module_lab.identity_file}.pub", folder / "provider.pub")
    hosts: dict[str, object] = {name: node.address for name, node in nodes.items()}
    hosts["bare"] = {"address": nodes["bare"].address, "ssh": {"user": "ops"}}
    same = {"identity_file": str(folder / "provider")}
    hosts["debian"] = {"address": nodes["debian"].address, "ssh": same}
    group = {"profile": "hgx-a100-4", "os": "debian12", "hosts": hosts}
    ssh = {"identity_file": str(folder / "operator"), "known_hosts": str(folder / "known_hosts")}
    (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": {"gpu": group}, "ssh": ssh}))
    return Site(folder, nodes, folder / "provider")


def image_user(node: Node, user: str) -> None:
    """Add an image's default user with sudo, and refuse root logins as cloud-init does."""
    node.run(
        f"useradd -m -s /bin/bash {user} && cp -r /root/.ssh /home/{user}/ && chown -R {user}: /home/{user}"
        f" && echo '{user} ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-cloud-init-users"
    )
    options = TURNED_AWAY.format(user)
    path = node.root / "root/.ssh/authorized_keys"
    path.write_text("".join(options + line for line in path.read_text().splitlines(True)))


@pytest.mark.parametrize("name", ["debian", "admin"])
def test_an_image_s_own_user_is_found_and_root_let_in(site: Site, name: str) -> None:
    """Find the image's user in cloud-init's reply to root, without `--user`."""
    image_user(site.nodes[name], name)
    said = site.bootstrap(name)
    if name == "debian":  # cloud-init has added the fleet's key for root with a refusal
        assert "cloud-init's line that rejected logins as root removed" in said
    assert "may log in as root" in said
    site.ready(name)


def test_where_root_has_no_key_at_all_the_users_of_images_are_tried(site: Site) -> None:
    node = site.nodes["cloudinit"]
    node.run("useradd -m -s /bin/bash debian && echo 'debian ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-x")
    put(node, "/usr/bin/cloud-init", AT_WORK)
    node.run("mv /root/.ssh /home/debian/.ssh && chown -R debian: /home/debian/.ssh")
    said = site.bootstrap("cloudinit")
    assert "may log in as root" in said
    assert (node.root / "root/cloud-init-ended").exists()
    site.ready("cloudinit")


def test_a_password_alone_is_asked_for_once_and_switched_off(site: Site) -> None:
    node = site.nodes["password"]
    password_only(node)
    code, said = typed(site.folder, [*PROGRAM, "bootstrap", "password", "--accept-new"], "password", PASSWORD)
    assert code == 0, said
    assert said.count("password:") == 1
    assert "password logins switched off" in said
    assert PASSWORD not in said
    site.ready("password")
    # The lab's own key is gone with root's authorized_keys.
    assert "PermitRootLogin prohibit-password" in (node.root / KEY_ONLY.lstrip("/")).read_text()
    attempt = ["ssh", "-o", "BatchMode=no", "-o", "PreferredAuthentications=password", "-o"]
    refused = subprocess.run(
        [*attempt, f"UserKnownHostsFile={site.folder}/known_hosts", f"root@{node.address}", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Permission denied (publickey" in refused.stderr


def test_passwords_that_a_block_of_match_allows_are_not_called_off(site: Site) -> None:
    """Check that the change is undone: the next bootstrap, after the block was removed, makes it."""
    node = site.nodes["matched"]
    node.run("printf 'Match User root\\nPasswordAuthentication yes\\n' >>/etc/ssh/sshd_config")
    assert "a block of Match in the configuration of sshd allows them" in site.bootstrap("matched", code=1)
    assert not (node.root / KEY_ONLY.lstrip("/")).exists()
    node.run("sed -i '/^Match User root/d' /etc/ssh/sshd_config")
    assert "password logins switched off" in site.bootstrap("matched")
    site.ready("matched")


def test_without_a_terminal_nobody_is_asked(site: Site) -> None:
    node = site.nodes["expired"]
    password_only(node)
    said = gpuprov(site.folder, "bootstrap", "expired", "--accept-new", code=4).stdout
    assert "--ask-pass" in said
    code, said = typed(site.folder, [*PROGRAM, "bootstrap", "expired", "--accept-new"], "password", PASSWORD)
    assert code == 1, said
    assert "must change its expired password" in said


def test_an_image_without_python_and_sudo_and_a_user_that_nobody_made(site: Site) -> None:
    node = site.nodes["bare"]
    node.run(BARE)
    assert node.run("command -v python3; command -v sudo", check=False).stdout == ""
    said = site.bootstrap("bare", "--user", "root")
    for changed in ("python3 installed", "sudo installed", "account ops made", "sudo for ops"):
        assert changed in said
    site.ready("bare")


def test_the_rule_of_sudo_is_for_one_user_of_any_name(site: Site) -> None:
    """Run the script for a user `ALL`, whom a fleet cannot state but ~/.ssh/config can."""
    node = site.nodes["bare"]
    key = (site.folder / "operator.pub").read_text().strip()
    settings = f"admin=ALL\nkeys={shlex.quote(key)}\nwait=60\npython=python3\n"
    put(node, "/root/first.sh", settings + node_script("gpuprov.bootstrap", "first.sh"))
    assert "changed sudo for ALL" in node.run("sh /root/first.sh").stdout
    node.run("runuser -u ALL -- sudo -n true")
    assert "password is required" in node.run("runuser -u nobody -- sudo -n true", check=False).stderr


@pytest.mark.slow
def test_other_package_managers_are_waited_for(site: Site) -> None:
    """Wait for dpkg, which is busy for 25 s as after a boot, and for apt's lists, locked for 20 s."""
    node = site.nodes["busy"]
    node.run(BARE)
    put(node, "/root/slow-package", SLOW_PACKAGE)
    put(node, "/root/lists", LISTS)
    node.run("systemd-run --quiet perl /root/lists; sh /root/slow-package")
    begun = time.monotonic()
    said = site.bootstrap("busy")
    assert "python3 installed" in said
    assert time.monotonic() - begun > 20
    site.ready("busy")


def put(node: Node, path: str, text: str) -> None:
    """Write a program to a node over its existing login."""
    node.run(f"cat >{path} && chmod 755 {path}", input=text)


def password_only(node: Node) -> None:
    """Allow only root with a password, as some providers do."""
    put(node, "/etc/ssh/sshd_config.d/50-cloud-init.conf", PASSWORDS)
    expire = " && chage -d 0 root" if node.name == "expired" else ""
    node.run(
        f"echo 'root:{PASSWORD}' | chpasswd{expire} && systemctl restart ssh && rm /root/.ssh/authorized_keys"
    )
