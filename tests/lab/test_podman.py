"""Podman and the container toolkit on a real node: Debian 13's Podman, the mirror's toolkit, real containers.

The tests build on each other: one node gets containers with GPUs, is broken, corrected and changed.
"""

from __future__ import annotations

import time

import pytest

from gpuprov.catalog import load
from gpuprov.verify.observers.containers import KILLED, TRIAL_S
from gpuprov.verify.observers.podman import NOTHING, TRIAL, USER, USERS_TRIAL
from gpuprov_lab import Lab
from gpuprov_lab.mirror.nvidia import build
from tests.lab.guide_lines import container_line
from tests.lab.marks import slow_ones
from tests.lab.node_under_test import TRANSACTION
from tests.lab.stub_driver_node import StubDriverNode, component
from tests.lab.test_docker import TOOLKIT, node_with_mirror

ROLES = ("container_toolkit", "podman")
AREAS = ("container_toolkit.", "podman.")
# This machine may forbid root to raise hard limits, so nodes get smaller ones than "unlimited".
DEFAULTS = {"shm_size": "1g", "memlock": 4194304, "stack": 67108864, "cgroup_driver": "cgroupfs"}
PACKAGES = (
    *("podman", "conmon", "crun", "golang-github-containers-common", "golang-github-containers-image"),
    *("uidmap", "slirp4netns", "passt", "netavark", "aardvark-dns", "catatonit"),
)
LAB = '"nofile=1024:4096", "nproc=30000:30000"'
"""Limits in the lab's own file."""
CONFIG = "/etc/containers/containers.conf.d/gpuprov.conf"
SITE = "/etc/containers/containers.conf.d/50-site.conf"
LATER = "/etc/containers/containers.conf.d/zz-site.conf"
# The OCI runtime leaves its own empty folder in /run.
STATE = (
    "ls -A /tmp /run /var/lib/containers /dev/shm | grep -v runc; cat /etc/passwd /etc/subuid; mount;"
    " ps -C catatonit,conmon,slow -o comm=; find /sys/fs/cgroup -name 'gpuprov*' -o -name '*libpod*'"
)
SHARED = f"/dev/shm/libpod_rootless_lock_{USER}"
SLOW = """\
printf '#!/bin/sh\\nexec sleep 300\\n' >/usr/local/bin/slow; chmod 755 /usr/local/bin/slow
printf '[engine]\\nruntime = "slow"\\n[engine.runtimes]\\nslow = ["/usr/local/bin/slow"]\\n' >%s
"""
"""Program that makes a runtime of containers that never answers the default."""
RUN = "podman run --detach --network none --name"


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node of Debian 13 with a mirror, whose lock states Podman and the toolkit."""
    folder = tmp_path_factory.mktemp("podman")
    mirror = build(folder / "mirror", load([]), [])
    driven = node_with_mirror(module_lab, "debian13", mirror.root, folder)
    driven.node.run("apt-get -q -y install --no-install-recommends runc")  # of the lab's containers.conf
    toolkit = component(dict.fromkeys(TOOLKIT, "1.20.0-1"))
    packages = driven.candidate(*PACKAGES)
    driven.state({"containers": DEFAULTS}, podman=component(packages), container_toolkit=toolkit)
    return driven


def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    before = driven.says("dpkg-query -W; find /etc -newer /srv/mirror -type f | sort")
    outcome, changed = driven.apply(*ROLES, check=True)
    assert outcome.ok, outcome.failed
    assert {TRANSACTION, "Write the defaults for containers"} <= set(changed)
    assert driven.says("dpkg-query -W; find /etc -newer /srv/mirror -type f | sort") == before
    assert set(driven.drift("podman.")) == {"podman.packages", "podman.config"}


def test_fresh_node_gets_podman_whose_containers_see_every_gpu(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    before = driven.says(STATE)
    assert driven.drift(*AREAS) == {}
    assert driven.failed(*AREAS) == {}
    assert driven.says(STATE) == before
    assert driven.says("podman images -q 2>&-; podman ps -aq 2>&-") == ""
    assert f'[{LAB}, "memlock=' in driven.says(f"cat {CONFIG}")


def test_user_cannot_make_the_trial_of_a_user_fail(driven: StubDriverNode) -> None:
    driven.node.run(f"setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo x >{SHARED}'")
    assert driven.failed("podman.") == {}
    driven.node.run(f"rm {SHARED}")


@pytest.mark.parametrize("command", [TRIAL % NOTHING, USERS_TRIAL % NOTHING], ids=["root", "user"])
def test_trial_that_does_not_end_is_ended_on_the_node(driven: StubDriverNode, command: str) -> None:
    before = driven.says(STATE)
    driven.node.run(SLOW % LATER)
    limit = f"--foreground {TRIAL_S} "
    assert limit in command
    started = time.monotonic()
    done = driven.node.run(command.replace(limit, "--foreground 4 "), check=False)
    assert (done.returncode, time.monotonic() - started >= 4) == (KILLED, True), done.stderr
    assert driven.says(STATE) == before
    driven.node.run(f"rm {LATER} /usr/local/bin/slow")


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply(*ROLES)[1] == []


def test_fault_is_seen_by_both_witnesses_and_mended(driven: StubDriverNode) -> None:
    driven.node.run(
        f"sed -i s/1073741824/1g/ {CONFIG}; dpkg --remove --force-depends uidmap;"
        " systemctl mask nvidia-cdi-refresh.service"  # nothing is written at the next boot
    )
    checks = {"podman.config", "podman.packages", "container_toolkit.cdi"}
    assert set(driven.drift(*AREAS)) == checks
    assert set(driven.failed(*AREAS)) == checks | {"podman.limits", "podman.rootless_gpus"}
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    assert driven.drift(*AREAS) == {}


def test_what_only_the_site_can_take_back_is_seen(driven: StubDriverNode) -> None:
    site = f'[containers]\ndefault_ulimits = [{LAB}, "stack=8388608:8388608"]\n'
    driven.node.run(f"cat >{LATER}; chmod 600 /run/cdi/nvidia.yaml /etc/hosts", input=site)
    found = {"memlock": None, "stack": 8388608}
    private = ["/var/run/cdi/nvidia.yaml is not readable for users"]
    seen = {"container_toolkit.specifications": private, "podman.readable": ["/etc/hosts"]}
    assert driven.drift(*AREAS) == {"podman.config": found, **seen}
    failed = driven.failed(*AREAS)
    assert {name: failed.pop(name) for name in seen} == seen
    assert set(failed) == {"podman.config", "podman.limits", "podman.rootless_gpus"}
    assert {name: failed["podman.config"][name] for name in found} == found
    driven.node.run(f"rm {LATER}; chmod 644 /run/cdi/nvidia.yaml /etc/hosts")


@pytest.mark.slow
def test_changed_lock_changes_the_defaults_and_keeps_the_sites_own(driven: StubDriverNode) -> None:
    driven.node.run(f"cat >{SITE}", input='[containers]\ntz = "UTC"\nshm_size = "3g"\n')
    driven.state({"containers": {**DEFAULTS, "shm_size": "2g"}})
    assert set(driven.drift(*AREAS)) == {"podman.config"}
    assert driven.apply(*ROLES)[1] == ["Write the defaults for containers"]
    assert driven.failed(*AREAS) == {}
    assert "tz" in driven.says(f"cat {SITE}")
    driven.node.run(f"rm {SITE}")


STATED = {
    "comment": (f"[containers]\ndefault_ulimits = [\n{LAB}, # of [all]\n'core=0:0']\n", f'{LAB}, "core=0:0"'),
    "inline": ('containers = {"default_ulimits" = ["core=0:0"]}\n', '"core=0:0"'),
    "append": ('[containers]\ndefault_ulimits = ["core=0:0", {append = true}]\n', f'{LAB}, "core=0:0"'),
}
"""Name → a site's limits, and all limits as its file and the lab's have them together."""


@pytest.mark.parametrize("name", slow_ones(STATED, {"inline", "append"}))
def test_limits_of_the_site_stay_however_its_file_states_them(driven: StubDriverNode, name: str) -> None:
    site, limits = STATED[name]
    driven.node.run(f"cat >{SITE}", input=site)
    outcome, changed = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    assert changed == ["Write the defaults for containers"]
    assert f'[{limits}, "memlock=' in driven.says(f"cat {CONFIG}")
    assert driven.apply(*ROLES)[1] == []
    driven.node.run(f"rm {SITE}")


def test_limits_that_podman_cannot_read_are_not_replaced(driven: StubDriverNode) -> None:
    before = driven.says(f"cat {CONFIG}")
    driven.node.run(f"cat >{SITE}", input="[containers]\ndefault_ulimits = [\n")
    outcome, changed = driven.apply("podman")
    [failed] = outcome.failed
    assert "Podman does not report: `podman create --help` exited with 1: " in failed["msg"]
    assert "expected value; correct these" in failed["msg"]
    assert changed == []
    assert driven.says(f"cat {CONFIG}") == before
    driven.node.run(f"rm {SITE}")
    assert driven.apply(*ROLES)[0].ok


def test_a_container_that_is_started_as_documented_sees_every_gpu(driven: StubDriverNode) -> None:
    driven.node.run(
        "mkdir -p /srv/asked/proc /srv/asked/sys /srv/asked/dev;"
        " tar -ch /bin/sh $(ldd /bin/sh | grep -o '/[^ ]* ') | tar -x -C /srv/asked"
    )
    image = "--network none --rootfs /srv/asked"
    line = container_line("containers", "podman run --rm", image)
    seen = driven.says(f"{{ {line}; }} 2>/dev/null")  # Podman 5 warns of cgroups-v1
    assert seen == " ".join(f"/dev/nvidia{gpu}" for gpu in range(4))


def test_podman_is_not_removed_under_a_container_of_root(driven: StubDriverNode) -> None:
    driven.node.run(
        f"{RUN} trainer --rootfs /srv/asked /bin/sh -c 'while :; do :; done'; podman pause trainer"
    )
    driven.state(podman=None)
    driven.rule_out("podman")
    outcome, changed = driven.apply("podman")
    [failed] = outcome.failed
    assert "Podman has to be removed, which could end trainer; stop these containers" in failed["msg"]
    assert changed == []
    driven.node.run("podman rm --force --time 0 trainer")


@pytest.mark.slow
def test_podman_that_shall_not_be_there_goes_and_files_of_users_stay(driven: StubDriverNode) -> None:
    driven.node.run("mkdir -p /var/lib/containers/storage/volumes/db && echo precious >$_/db")
    assert set(driven.drift("podman.")) == {"podman.absent"}
    outcome, _ = driven.apply("podman")
    assert outcome.ok, outcome.failed
    assert driven.drift("podman.") == {}
    assert driven.failed("podman.") == {}
    assert driven.says("cat /var/lib/containers/storage/volumes/db/db") == "precious"
    assert driven.says(f"ls {CONFIG}").endswith("No such file or directory")
