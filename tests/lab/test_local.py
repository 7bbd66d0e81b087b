"""This machine as the node, without SSH: from pip install to verified by one command, and back.

The tests build on each other: the node is its own controller, and no user is logged in while it works.
"""

from __future__ import annotations

import json
import time

import pytest
import yaml

from gpuprov_lab import Lab
from tests.lab.local_node import FOLDER, UNIT, LocalNode, installed
from tests.lab.upgrade_fleet import NEWER, OLDER

LOADED = "grep -oE '[0-9]{3}[.][.0-9]+' /proc/driver/nvidia/version | head -1"
KEYS = "/root/.ssh/authorized_keys"
TRAP = """\
#!/bin/sh
[ -e /root/trapped ] || echo 'DenyUsers root' >/etc/ssh/sshd_config.d/01-later.conf
touch /root/trapped
"""


@pytest.fixture(scope="module")
def here(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> LocalNode:
    return installed(module_lab, tmp_path_factory.mktemp("wheels"))


def fleet(here: LocalNode, **settings: object) -> None:
    """Add settings to fleet.yml, and lock."""
    path = here.node.root / FOLDER[1:] / "fleet.yml"
    plain = yaml.safe_load(path.read_text())
    [group] = plain["groups"].values()
    group["settings"] = {**group.get("settings", {}), **settings}
    path.write_text(yaml.safe_dump(plain))
    here.gpuprov("lock")


def test_one_command_from_an_install_to_verified_with_a_reboot_and_nobody_there(here: LocalNode) -> None:
    before = here.node.boot_id()
    begun = time.monotonic()
    here.alone("apply", "--local", "--reboot", "--yes")
    end = here.await_end("apply")
    print(f"one command, from an install to verified, reboot included: {time.monotonic() - begun:.0f} s")  # noqa: T201
    assert (end["status"], end["reason"], json.loads(end["drift"])) == ("in_sync", None, [])
    assert not (here.node.root / UNIT).exists()
    # This login is the first since the boot.
    logins = here.node.run("journalctl -b -u ssh --no-pager | grep -c 'Accepted publickey'")
    assert logins.stdout.strip() == "1"
    assert here.node.boot_id() != before
    said = here.node.run("journalctl -b -u gpuprov-resume --no-pager -o cat").stdout
    assert "rebooted  verified (" in said
    assert here.node.run(LOADED).stdout.strip() == NEWER
    listed = here.node.run("systemctl list-unit-files 'gpuprov-resume*'", check=False).stdout
    assert "0 unit files" in listed
    assert len(here.runs("apply")) == 1


def test_what_init_wrote_fits_the_machine(here: LocalNode) -> None:
    """Check profile, system and host in the fleet.yml that `init` wrote for this machine."""
    plain = yaml.safe_load((here.node.root / FOLDER[1:] / "fleet.yml").read_text())
    [group] = plain["groups"].values()
    assert (group["profile"], group["os"], group["hosts"]) == (
        "site-a100",
        "debian12",
        {here.node.name: "local"},
    )


def test_a_second_run_changes_nothing(here: LocalNode) -> None:
    done = here.gpuprov("apply", "--yes")
    assert done.stderr.strip().endswith(f"{here.node.name}: nothing to do")
    for verb in (["plan"], ["drift"], ["drift", "--local"], ["verify"], ["verify", "--local"]):
        here.gpuprov(*verb)
    assert here.states("verify")["status"] == "passed"
    found = json.loads(here.gpuprov("inventory", "discover", "local", "-o", "json").stdout)
    assert [each["host"] for each in found["hosts"]] == [here.node.name]


def test_nothing_of_ssh_was_used(here: LocalNode) -> None:
    """Apply without sshd; only guarded roles need it."""
    here.node.run("apt-mark unhold libcuda1")
    here.node.run(
        "systemd-run --quiet --wait --setenv=HOME=/root sh -c"
        f" 'systemctl stop ssh; cd {FOLDER}; /opt/gpuprov/bin/gpuprov apply --yes >/root/said 2>&1;"
        " echo $? >>/root/said; systemctl start ssh'"
    )
    said = here.node.run("cat /root/said").stdout
    assert said.strip().endswith("\n0"), said
    assert here.node.run("apt-mark showhold | grep -cx libcuda1").stdout.strip() == "1"


@pytest.mark.slow
def test_guarded_roles_prove_a_login_through_the_machine_s_own_sshd(here: LocalNode) -> None:
    keys = here.node.run(f"cat {KEYS}; stat -c '%a %u' {KEYS}").stdout
    fleet(here, ssh={"policy": "modern"}, firewall={"ssh_from": ["10.0.0.0/8"]})
    done = here.gpuprov("apply", "--yes", code=1)
    assert "the firewall would reject 198.18." in done.stdout, "this test's own login comes from there"
    assert here.node.run(f"cat {KEYS}; stat -c '%a %u' {KEYS}").stdout == keys
    fleet(here, ssh={"policy": "modern"}, firewall={"ssh_from": ["10.0.0.0/8", "198.18.0.0/15"]})
    done = here.gpuprov("apply", "--yes")
    assert "the old SSH and firewall return in" in done.stderr
    accepted = here.node.run(
        "journalctl -b -u ssh --no-pager | grep -c 'Accepted publickey .* from 127.0.0.1'"
    )
    assert int(accepted.stdout) >= 2  # before and after the change
    assert here.node.run(f"cat {KEYS}; stat -c '%a %u' {KEYS}").stdout == keys
    here.gpuprov("drift")


def test_a_change_that_nobody_can_log_in_after_is_taken_back(here: LocalNode) -> None:
    """Revert a change after which sshd refuses root; a trap makes it refuse at the restart."""
    before = here.node.run("sshd -T | sort").stdout
    here.node.run("cat >/root/trap && chmod 755 /root/trap", input=TRAP)
    here.node.run(
        "mkdir -p /etc/systemd/system/ssh.service.d && cat >/etc/systemd/system/ssh.service.d/trap.conf"
        " && systemctl daemon-reload",
        input="[Service]\nExecStartPre=/root/trap\n",
    )
    fleet(here, ssh={"policy": "modern", "max_auth_tries": 3})
    done = here.gpuprov("apply", "--yes", "--guard", "30", code=1)
    assert (here.node.root / "root/trapped").exists()
    assert "a new login did not work: port 22: root@127.0.0.1" in done.stdout + done.stderr
    assert "SSH and firewall are as before" in done.stdout + done.stderr
    assert here.node.run("sshd -T | sort").stdout == before
    here.node.run("rm /etc/systemd/system/ssh.service.d/trap.conf && systemctl daemon-reload")
    here.gpuprov("apply", "--yes")
    here.gpuprov("drift")


@pytest.mark.slow
def test_where_nobody_gets_in_before_the_change_it_is_refused(here: LocalNode) -> None:
    here.node.run("useradd -m -s /bin/bash ops && passwd -l ops", check=False)
    path = here.node.root / FOLDER[1:] / "fleet.yml"
    kept = path.read_text()
    plain = yaml.safe_load(kept)
    plain["ssh"] = {"user": "ops"}
    path.write_text(yaml.safe_dump(plain))
    fleet(here, ssh={"policy": "modern", "max_auth_tries": 5})
    done = here.gpuprov("apply", "--yes", code=1)
    assert "ops can log in over sshd, but cannot become root" in done.stdout + done.stderr
    assert not here.node.run("ls -A /home/ops/.ssh", check=False).stdout
    path.write_text(kept)
    fleet(here)
    here.gpuprov("drift")


@pytest.mark.slow
def test_somebody_who_is_not_root_works_by_sudo(here: LocalNode) -> None:
    here.node.run("echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops && apt-mark unhold libcuda1")
    here.node.run(f"cp {FOLDER}/fleet.lock.yml /home/ops && chown ops: /home/ops/fleet.lock.yml")
    as_ops = "cd /home/ops && runuser -u ops -- env HOME=/home/ops /opt/gpuprov/bin/gpuprov"
    assert here.node.run(f"{as_ops} drift", check=False).returncode == 3
    done = here.node.run(f"{as_ops} apply --yes", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified (" in done.stdout
    here.gpuprov("drift")


@pytest.mark.slow
def test_an_upgrade_of_this_machine_and_the_way_back(here: LocalNode) -> None:
    """Prefer --local to the address in the lock, and keep that address in the file."""
    folder = here.node.root / FOLDER[1:]
    plain = yaml.safe_load((folder / "fleet.yml").read_text())
    [group] = plain["groups"].values()
    group["stack"] = {"driver": OLDER}
    plain["rollout"] = {"settle_s": 20}
    (folder / "next.yml").write_text(yaml.safe_dump(plain))
    here.gpuprov("lock", "-F", "next.yml")
    elsewhere = f"{here.node.name}: 192.0.2.1"
    here.node.run(f"sed -i 's/{here.node.name}: local/{elsewhere}/' {FOLDER}/*.lock.yml")
    here.node.run(
        "mknod /dev/nvidia9 c 1 7; systemd-run --quiet --unit=job sh -c 'exec sleep 600 </dev/nvidia9'"
    )
    shut = here.gpuprov("upgrade", "--local", "--to", "next.lock.yml", "--yes", code=5)
    assert "the GPUs are in use by sleep (" in shut.stderr
    here.node.run("systemctl stop job; rm /dev/nvidia9")
    here.alone("upgrade", "--local", "--to", "next.lock.yml", "--yes")
    end = here.await_end("upgrade")
    assert end["status"] == "in_sync", end
    assert here.node.run(LOADED).stdout.strip() == OLDER
    here.gpuprov("verify", "--local")
    here.alone("rollback", "--local", "--yes")
    end = here.await_end("rollback")
    assert end["status"] == "in_sync", end
    assert here.node.run(LOADED).stdout.strip() == NEWER
    here.gpuprov("verify", "--local")
    assert elsewhere in (folder / "fleet.lock.yml").read_text()
