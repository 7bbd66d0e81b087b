"""Trials of each role: a changed lock, damage by hand, a lock without the role.

`gone` is a shell command that prints something until the role's work is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuprov.catalog.platforms import platform
from tests.systems import OF_DNF

COLUMNS = {
    "fresh": "the role runs on a fresh node, and verify passes",
    "second": "a second run of every role changes nothing",
    "check": "--check names the same roles before apply and none after it, and changes nothing",
    "changed": "drift reports a changed lock, apply changes the node, and verify passes",
    "broken": "after manual damage verify fails with the check's name, and apply corrects it",
    "removed": "parts that the lock no longer states are removed",
}


@dataclass(frozen=True)
class Trial:
    """One role.

    Args:
        changed: checks that drift must report under the second lock.
        harm: shell commands that damage the role's work.
        broken: checks that verify must fail after that.
        gone: shell command that prints nothing once the role's work is removed.
        moot: column → reason why it does not apply.
    """

    role: str
    changed: tuple[str, ...] = ()
    harm: str = ""
    broken: tuple[str, ...] = ()
    gone: str = ""
    moot: dict[str, str] = field(default_factory=dict)


LISTED = "dpkg-query -W -f '${{db:Status-Abbrev}}${{Package}}\\n' {} 2>/dev/null | grep '^[hi]i'"
PURGE = "dpkg --purge --force-depends --force-hold $(dpkg-query -W -f '${{Package}} ' {})"


def _listed(*patterns: str) -> str:
    """Return the command that lists files by these patterns."""
    return LISTED.format(" ".join(f"'{pattern}'" for pattern in patterns))


def _purge(pattern: str) -> str:
    """Return the command that purges packages by a pattern."""
    return PURGE.format(f"'{pattern}'")


NOTHING_OF_ITS_OWN = "it only reads the node, and completes an interrupted dpkg run"
STAYS = "the lock always states it"

TRIALS = (
    Trial(
        "preflight",
        harm="cd /tmp && apt-get -q download hello && dpkg --unpack hello_*.deb",
        broken=("dpkg.consistent",),
        moot={"changed": NOTHING_OF_ITS_OWN, "removed": NOTHING_OF_ITS_OWN},
    ),
    Trial(
        "repositories",
        changed=("repositories.sources",),
        harm="rm /etc/apt/sources.list.d/gpuprov.sources",
        broken=("repositories.sources",),
        gone="grep libnvidia-container /etc/apt/sources.list.d/gpuprov.sources",
    ),
    Trial(
        "nvidia_driver",
        changed=("driver.packages", "driver.module_on_disk"),
        harm="rm /etc/modprobe.d/gpuprov-nouveau.conf",
        broken=("nouveau.blacklist",),
        moot={"removed": STAYS},
    ),
    Trial(
        "fabric_manager",
        changed=("fabric_manager.packages",),
        harm="systemctl disable --now --quiet nvidia-fabricmanager",
        broken=("fabric_manager.unit", "fabric_manager.fabric"),
        moot={"removed": "it depends on the hardware, not on a setting of the fleet"},
    ),
    Trial(
        "gpu_settings",
        changed=("gpu.clocks", "gpu.power_limit"),
        harm="nvidia-smi -i 2 -pl 500; systemctl disable --quiet gpuprov-gpu-clocks",
        broken=("gpu.power_limit", "gpu.clocks_unit"),
        gone="ls /etc/systemd/system/gpuprov-gpu-* /usr/local/sbin/gpuprov-gpu-*",
    ),
    Trial(
        "cuda_toolkit",
        changed=("cuda.default",),
        harm=f"{_purge('cuda-toolkit-*-config-common')}; rm /etc/profile.d/gpuprov-cuda.sh",
        broken=("cuda.packages", "cuda.environment"),
        gone=f"{_listed('cuda-toolkit-*')}; ls /etc/profile.d/gpuprov-cuda.sh /etc/alternatives/cuda",
    ),
    Trial(
        "cudnn",
        changed=("cudnn.packages",),
        harm=_purge("libcudnn9-headers-*"),
        broken=("cudnn.packages", "cudnn.header"),
        gone=_listed("libcudnn*"),
    ),
    Trial(
        "nccl",
        changed=("nccl.packages", "nccl.configuration"),
        harm=f"{_purge('libnccl-dev')}; rm /etc/nccl.conf",
        broken=("nccl.packages", "nccl.configuration"),
        gone=f"{_listed('libnccl*')}; ls /etc/nccl.conf",
    ),
    Trial(
        "container_toolkit",
        changed=("container_toolkit.packages",),
        harm=_purge("nvidia-container-toolkit"),
        broken=("container_toolkit.packages", "docker.gpus"),
        gone=_listed("*nvidia-container*"),
    ),
    Trial(
        "containerd",
        changed=("containerd.config",),
        harm="sed -i 's/^ *default_runtime_name.*/default_runtime_name = \"runc\"/'"
        " /etc/containerd/config.toml; systemctl disable --quiet containerd.service",
        broken=("containerd.config", "containerd.unit"),
        gone=_listed("containerd"),
    ),
    Trial(
        "docker",
        changed=("docker.config",),
        harm="sed -i s/2g/64m/ /etc/docker/daemon.json; systemctl disable --quiet docker.service",
        broken=("docker.config", "docker.unit"),
        gone=_listed("docker.io"),
    ),
    Trial(
        "podman",
        changed=("podman.config",),
        harm="sed -i s/shm_size/no_size/ /etc/containers/containers.conf.d/gpuprov.conf",
        broken=("podman.config", "podman.limits"),
        gone=f"{_listed('podman')}; ls /etc/containers/containers.conf.d/gpuprov.conf",
    ),
    Trial(
        "system_tuning",
        changed=("tuning.environment",),
        harm="sed -i s/OMP_NUM_THREADS=4/OMP_NUM_THREADS=1/ /etc/environment",
        broken=("tuning.environment",),
        gone="ls /etc/security/limits.d/90-gpuprov.conf /etc/sysctl.d/90-gpuprov.conf;"
        " grep OMP_ /etc/environment",
    ),
    Trial(
        "storage",
        changed=("scratch.read_ahead",),
        harm="umount /scratch/fast",
        broken=("scratch.mounted",),
        gone="findmnt /scratch/fast; grep scratch /etc/fstab; ls /etc/udev/rules.d/90-gpuprov-scratch.rules",
    ),
    Trial(
        "profiling_tools",
        changed=("profiling.counters",),
        harm="rm /etc/modprobe.d/gpuprov-profiling.conf; dpkg --purge --force-hold atop",
        broken=("profiling.counters", "profiling.packages"),
        gone=f"{_listed('atop', 'sysstat')}; ls /etc/modprobe.d/gpuprov-profiling.conf",
    ),
    Trial(
        "monitoring",
        changed=("monitoring.textfile", "monitoring.dcgm_packages"),
        harm="echo >>/var/lib/prometheus/node-exporter/gpuprov.prom;"
        " systemctl disable --now --quiet nvidia-dcgm",
        broken=("monitoring.textfile", "monitoring.dcgm"),
        gone=f"{_listed('datacenter-gpu-manager*', 'prometheus-node-exporter')};"
        " ls /var/lib/prometheus/node-exporter/gpuprov.prom",
    ),
    Trial(
        "package_pins",
        changed=("pins.hold",),
        harm="apt-mark unhold docker.io libnccl2; rm /etc/apt/apt.conf.d/52gpuprov-pins",
        broken=("pins.hold", "pins.unattended"),
        gone="apt-mark showhold | grep -E 'nccl|cudnn|docker|cuda-toolkit'",
    ),
    Trial(
        "ssh_hardening",
        changed=("ssh.options",),
        harm="rm /etc/ssh/sshd_config.d/00-gpuprov.conf; systemctl reload ssh; sleep 2",
        broken=("ssh.options",),
        moot={"removed": "without SSH settings in the lock, SSH stays unchanged"},
    ),
    Trial(
        "firewall",
        changed=("firewall.input",),
        harm="systemctl disable --quiet gpuprov-firewall",
        broken=("firewall.unit",),
        moot={"removed": "without firewall settings in the lock, the firewall stays unchanged"},
    ),
)


OWN_TESTS = {
    "imex": "tests/lab/test_imex.py",
    "gpudirect": "tests/lab/test_gpudirect.py",
    "health": "tests/lab/test_health.py",
}
"""Role without a trial → its own lab test."""


ERASE = "rpm --erase --nodeps $(rpm -qa '{}')"
OWN_FILE, LOCKS = "/etc/yum.repos.d/gpuprov.repo", "/etc/dnf/plugins/versionlock.list"
SSHD_HARM = (
    "rm -f /etc/ssh/sshd_config.d/00-gpuprov.conf; sed -i '/^# BEGIN gpuprov/,/^# END gpuprov/d'"
    " /etc/ssh/sshd_config; systemctl reload sshd; sleep 2"
)
"""The role's drop-in or its block goes."""
FETCH = "dnf -q download --disableplugin=versionlock"
FORCED = "--nodeps $(rpm --help | grep -o -- --force-debian)"
"""rpm of Debian 12 installs only with this option, later ones do not know it."""
TWICE = (
    f"cd /root && {FETCH} libnccl && {FETCH} --destdir locked libnccl-$(rpm -q --qf '%{{EVR}}' libnccl)"
    f" && rpm --upgrade {FORCED} libnccl-*.rpm"
    f" && rpm --install --oldpackage --force {FORCED} locked/*.rpm"
)
"""Leaves a package in two versions, as a killed dnf does; the locked one is the last."""
WITH_DNF: dict[str, dict[str, str]] = {
    "preflight": {"harm": TWICE},
    "repositories": {"harm": f"rm {OWN_FILE}", "gone": f"grep libnvidia-container {OWN_FILE}"},
    "cuda_toolkit": {
        "harm": f"{ERASE.format('cuda-toolkit-*-config-common')}; rm /etc/profile.d/gpuprov-cuda.sh",
        "gone": "rpm -qa 'cuda-toolkit-*'; ls /etc/profile.d/gpuprov-cuda.sh /etc/alternatives/cuda",
    },
    "cudnn": {"harm": ERASE.format("libcudnn9-devel-*"), "gone": "rpm -qa 'libcudnn*'"},
    "nccl": {
        "harm": f"{ERASE.format('libnccl-devel')}; rm /etc/nccl.conf",
        "gone": "rpm -qa 'libnccl*'; ls /etc/nccl.conf",
    },
    "container_toolkit": {
        "harm": ERASE.format("nvidia-container-toolkit"),
        "gone": "rpm -qa '*nvidia-container*'",
    },
    "containerd": {"gone": "rpm -qa containerd"},
    "docker": {"gone": "rpm -qa 'docker-ce*' docker"},
    "podman": {"gone": "rpm -qa podman; ls /etc/containers/containers.conf.d/gpuprov.conf"},
    "profiling_tools": {
        "harm": f"rm /etc/modprobe.d/gpuprov-profiling.conf; {ERASE.format('sysstat')}",
        "gone": "rpm -qa perf sysstat; ls /etc/modprobe.d/gpuprov-profiling.conf",
    },
    "monitoring": {
        "gone": "rpm -qa 'datacenter-gpu-manager*' 'golang-github-prometheus-node-exporter';"
        " ls /var/lib/prometheus/node-exporter/gpuprov.prom",
    },
    "package_pins": {
        "harm": f"sed -i -e /^docker/d -e /^libnccl/d {LOCKS}; sed -i /^exclude/d /etc/dnf/automatic.conf",
        "gone": f"grep -E 'nccl|cudnn|docker|cuda-toolkit' {LOCKS}",
    },
    "ssh_hardening": {"harm": SSHD_HARM},
}
"""Role → its commands on a node with dnf, where they differ."""
WITHOUT: dict[str, dict[str, str]] = {
    "containerd": dict.fromkeys(
        (system for system in OF_DNF if platform(system).docker == "docker-ce"),
        "its package is Docker's, whose configuration disables the plugin for Kubernetes",
    ),
    "podman": dict.fromkeys(
        (system for system in OF_DNF if platform(system).podman is None), "its repositories have no Podman"
    ),
}
"""Role → system → reason why it has no test there."""


def on(trial: Trial, system: str) -> Trial:
    """Return a trial with the commands of a system."""
    return replace(trial, **WITH_DNF.get(trial.role, {})) if system in OF_DNF else trial


def excuse(trial: Trial, system: str, column: str) -> str | None:
    """Return the reason why a trial has no test in a column on a system, or None."""
    return trial.moot.get(column) or WITHOUT.get(trial.role, {}).get(system)
