"""Settings that override gpuprov's on a node: each way in `gpuprov.roles.OVERRULED`, made by hand.

Ways that apply does not correct are tried several at a time, each for a different check: drift, verify and
apply run once, and apply must name every place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuprov.roles import OVERRULED
from gpuprov.roles.nvidia_driver import GUARD
from gpuprov.roles.overruling import (
    BY_HAND,
    COMMAND,
    CONDITION,
    DROP_IN,
    NOT_APPLIED,
    NOT_BY_SYSTEMD,
    OTHER_FILE,
    OTHER_PROGRAM,
    OWN_FILE,
)
from tests.lab.command_line import gpuprov
from tests.lab.mutations import Outcome, Witnesses

EXTRA = "/srv/extra"
INDEX = "Package: %s\\nVersion: 999\\nArchitecture: amd64\\nFilename: ./x.deb\\nSize: 1\\n"
SOURCE = f"mkdir -p {EXTRA}; printf '{INDEX}'"
FETCH = "apt-get -q update -o Dir::Etc::SourceList={} -o Dir::Etc::SourceParts=- -o APT::Get::List-Cleanup=0"
LATER, UNIT = "/etc/profile.d/zz-site.sh", "/etc/systemd/system/{}.d/site.conf"
PAM, EVERYBODY = "/etc/security/pam_env.conf", "/etc/environment"
FLUSHING = "/etc/systemd/system/nftables.service.d/zz-site.conf"
SECOND, AUTH = "/srv/sshd_config", "/etc/pam.d/common-auth"
ANOTHER_CA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINNcbN6HOm2KuU8Iems/ChAqe+JJQ56+Q2AXgXqV0/wg other"
SYSTEMD, USERS = "/etc/systemd/system.conf.d/zz-site.conf", "/etc/environment.d/zz-site.conf"
RELOAD = "systemctl daemon-reload"
RELOAD_SSH = "systemctl reload ssh; sleep 1"
"""The port is closed for a moment."""
SYSCTL = "systemd-sysctl.service"
FORGET = "rm -f /var/lib/gpuprov/deadman/undone"
"""A guarded role that refuses reverts its change; drift reports this until the next change is kept."""
AFRESH = "systemctl daemon-reexec"


@dataclass(frozen=True)
class Way:
    """One way to override a setting.

    Args:
        check: the check that it contradicts.
        by: the description in `OVERRULED`.
        do: shell commands on the node.
        place: the place that drift and apply must name; empty if apply corrects it.
        undo: shell commands that revert it.
        alone: tried without others, because apply refuses before it reaches any other role.
    """

    check: str
    by: str
    do: str
    place: str = ""
    undo: str = ""
    alone: bool = False

    def __str__(self) -> str:
        """Return check and description."""
        return f"{self.check}: {self.by}"


def _line(path: str, text: str, then: str = "true") -> dict[str, str]:
    """Return the commands that add a line to a file which gpuprov does not write, and revert it."""
    kept = f"mkdir -p $(dirname {path}); [ ! -e {path} ] || cp -p {path} {path}.before"
    do = f"{kept}; echo '{text}' >>{path}; {then}"
    back = f"if [ -e {path}.before ]; then mv {path}.before {path}; else rm {path}; fi; {then}"
    return {"do": do, "place": path, "undo": back}


def _unit(unit: str, text: str = "ExecStart=\\nExecStart=/bin/true") -> dict[str, str]:
    """Return the commands that add a drop-in of the site to a unit and reload systemd."""
    path = UNIT.format(unit)
    do = f"mkdir -p $(dirname {path}); printf '[Service]\\n{text}\\n' >{path}; {RELOAD}"
    return {"do": do, "place": path, "undo": f"rm -r $(dirname {path}); {RELOAD}"}


def _library(folder: str, name: str) -> str:
    """Return the command that puts a file into a folder."""
    return f"mkdir -p {folder}; echo x >{folder}/{name}"


def _source(name: str, text: str) -> dict[str, str]:
    """Return the commands that add an apt source with a package of the lock."""
    path = f"/etc/apt/sources.list.d/{name}"
    do = f"{SOURCE} libcuda1 >{EXTRA}/Packages; printf '{text}' >{path}; {FETCH.format(path)}"
    return {"do": do, "place": path, "undo": f"rm -r {path} {EXTRA}; apt-get -q update"}


def _own(unit: str, old: str, new: str) -> str:
    """Return the commands that change gpuprov's own file of a unit."""
    return f"sed -i 's|{old}|{new}|' /etc/systemd/system/{unit}; {RELOAD}"


def _instead(unit: str) -> dict[str, str]:
    """Return the commands that put a copy of a packaged unit in its place."""
    path = f"/etc/systemd/system/{unit}"
    return {"do": f"cp /lib/systemd/system/{unit} {path}", "place": path, "undo": f"rm {path}; {RELOAD}"}


DAEMON = "ExecStart=\\nExecStart=/usr/bin/nvidia-persistenced --user nvpd --verbose"
PROFILING = "NVreg_RestrictProfilingToAdminUsers=1"
PACKAGED, KEPT = "/usr/bin/nvidia-modprobe", "mv /root/kept /usr/bin/nvidia-modprobe"
WITHOUT_PACKAGE = "a library without a package in the linker's path"

WAYS = (
    Way(
        "repositories.foreign",
        "another source with packages of the lock, signed or not",
        **_source("site.sources", f"Types: deb\\nURIs: file:{EXTRA}\\nSuites: ./\\nTrusted: yes\\n"),
        alone=True,
    ),
    Way(
        "repositories.foreign",
        "a source without a signature (trusted=yes, allow-insecure=yes) with packages of the lock",
        **_source("site.list", f"deb [trusted=yes] file:{EXTRA} ./\\n"),
        alone=True,
    ),
    Way(
        "driver.unpackaged",
        "remains of NVIDIA's runfile",
        "echo x >/usr/bin/nvidia-uninstall",
        "/usr/bin/nvidia-uninstall",
        "rm /usr/bin/nvidia-uninstall",
        alone=True,
    ),
    Way(
        "driver.unpackaged",
        WITHOUT_PACKAGE,
        _library("/usr/local/lib", "libcuda.so.550.1"),
        "/usr/local/lib/libcuda.so.550.1",
        "rm /usr/local/lib/libcuda.so.550.1",
    ),
    Way(
        "driver.unpackaged",
        "a folder of ld.so.conf.d",
        f"{_library('/opt/site', 'libnvidia-ml.so.1')}; echo /opt/site >/etc/ld.so.conf.d/000-site.conf",
        "/etc/ld.so.conf.d/000-site.conf",
        "rm -r /opt/site /etc/ld.so.conf.d/000-site.conf",
    ),
    Way(
        "driver.unpackaged",
        "LD_LIBRARY_PATH of logins or services",
        f"{_library('/opt/site', 'libcuda.so.1')}; echo export LD_LIBRARY_PATH=/opt/site >{LATER}",
        LATER,
        f"rm -r /opt/site {LATER}",
    ),
    Way(
        "driver.unpackaged",
        "/etc/ld.so.preload, or LD_PRELOAD of logins or services",
        "mkdir -p /opt/site; cp /lib/x86_64-linux-gnu/libm.so.6 /opt/site/libsite.so;"
        " echo /opt/site/libsite.so >/etc/ld.so.preload",
        "/etc/ld.so.preload",
        "rm -r /etc/ld.so.preload /opt/site",
    ),
    Way(
        "driver.module_on_disk",
        "another module in place of the DKMS build",
        "cp /root/other.ko /lib/modules/$K/updates/dkms/nvidia-current.ko; depmod $K",
    ),
    *(
        Way("driver.loading", by, **_line(f"/etc/modprobe.d/{name}.conf", line))
        for by, name, line in (
            ("a blacklist of nvidia in modprobe.d", "zz-blacklist", "blacklist nvidia"),
            ("an alias of modprobe.d for the module or the GPUs", "a-alias", "alias nvidia off"),
            ("a softdep that loads nouveau first", "zz-softdep", "softdep nvidia pre: nouveau"),
            (
                "an option that takes GPUs or links away",
                "zz-options",
                "options nvidia NVreg_ExcludedGpus=0000:07:00.0",
            ),
            ("an install line of modprobe.d", "a-install", "install nvidia /bin/false"),
        )
    ),
    Way(
        "driver.loading",
        "the kernel's command line (module_blacklist=nvidia)",
        'echo "$(cat /proc/cmdline) module_blacklist=nvidia" >/run/cmdline;'
        " mount --bind /run/cmdline /proc/cmdline",
        "kernel command line",
        "umount /proc/cmdline",
        alone=True,
    ),
    Way(
        "driver.loading",
        "grub.cfg, for the next boot (module_blacklist=nvidia)",
        "mkdir -p /boot/grub; echo linux /boot/vmlinuz-$K module_blacklist=nvidia >/boot/grub/grub.cfg",
        "/boot/grub/grub.cfg",
        "rm -r /boot/grub",
        alone=True,
    ),
    Way("driver.next_kernel", "gpuprov's part of GRUB's settings removed", f"rm {GUARD}"),
    Way(
        "driver.next_kernel",
        "/etc/dkms/no-autoinstall",
        "touch /etc/dkms/no-autoinstall",
        "/etc/dkms/no-autoinstall",
        "rm /etc/dkms/no-autoinstall",
    ),
    Way(
        "driver.next_kernel",
        "a kernel's hook of DKMS that is missing or not executable",
        "chmod -x /etc/kernel/postinst.d/dkms",
        "/etc/kernel/postinst.d/dkms",
        "chmod +x /etc/kernel/postinst.d/dkms",
    ),
    Way(
        "driver.next_kernel",
        "another folder in DKMS's framework.conf",
        **_line("/etc/dkms/framework.conf", "source_tree=/opt/src"),
    ),
    Way(
        "driver.next_kernel",
        "AUTOINSTALL in dkms.conf or /etc/dkms",
        **_line("/etc/dkms/nvidia-current.conf", "AUTOINSTALL=no"),
    ),
    Way("gpu.persistence_unit", COMMAND, **_unit("nvidia-persistenced.service", DAEMON)),
    Way("gpu.persistence_unit", BY_HAND, "systemctl mask nvidia-persistenced"),
    Way("gpu.persistence_unit", OTHER_FILE, **_instead("nvidia-persistenced.service")),
    Way("gpu.clocks_unit", DROP_IN, **_unit("gpuprov-gpu-clocks.service", "ExecStartPost=/bin/true")),
    Way("gpu.modes_unit", DROP_IN, **_unit("gpuprov-gpu-modes.service", "ExecCondition=/bin/true")),
    Way("gpu.clocks_unit", OWN_FILE, _own("gpuprov-gpu-clocks.service", " set .*", " set 1005")),
    Way("gpu.modes_unit", OWN_FILE, _own("gpuprov-gpu-modes.service", "power=[0-9]*", "power=200")),
    Way("gpu.clocks_unit", COMMAND, **_unit("gpuprov-gpu-clocks.service")),
    Way("gpu.modes_unit", COMMAND, **_unit("gpuprov-gpu-modes.service")),
    *(
        Way(check, "nvidia-smi run by root", f"nvidia-smi {option}")
        for check, option in {
            "gpu.persistence": "-i 2 -pm 0",
            "gpu.clocks": "-i 3 -rac",
            "gpu.power_limit": "-i 1 -pl 250",
            "gpu.compute_mode": "-i 0 -c 3",
            "gpu.ecc_pending": "-i 0 -e 0",
        }.items()
    ),
    Way("nccl.configuration", "a variable in /etc/environment", **_line(EVERYBODY, "NCCL_DEBUG=TRACE")),
    Way("nccl.configuration", "a variable in profile.d", **_line(LATER, "export NCCL_DEBUG=TRACE")),
    Way(
        "nccl.configuration", "a variable in security/pam_env.conf", **_line(PAM, "NCCL_DEBUG DEFAULT=TRACE")
    ),
    *(
        Way("nccl.configuration", f"a variable in {where}", **_line(path, "export NCCL_DEBUG=TRACE"))
        for where, path in {
            "/etc/default/locale": "/etc/default/locale",
            "/etc/bash.bashrc": "/etc/bash.bashrc",
            "root's ~/.bashrc": "/root/.bashrc",
        }.items()
    ),
    Way("nccl.configuration", "/etc/nccl.conf with mode 600", "chmod 600 /etc/nccl.conf"),
    Way("nccl.configuration", "a variable in environment.d", **_line(USERS, "NCCL_DEBUG=TRACE")),
    Way(
        "nccl.configuration",
        "a variable in DefaultEnvironment of systemd",
        **_line(SYSTEMD, "[Manager]\nDefaultEnvironment=NCCL_DEBUG=TRACE", AFRESH),
    ),
    Way(
        "nccl.configuration",
        "~/.nccl.conf of root, of the login or of /etc/skel",
        **_line("/root/.nccl.conf", "NCCL_DEBUG=TRACE"),
    ),
    Way(
        "nccl.configuration",
        "a variable that the lock does not state",
        **_line(LATER, "export NCCL_P2P_DISABLE=1"),
    ),
    Way(
        "nccl.configuration",
        "a line in gpuprov's /etc/nccl.conf",
        "sed -i '1i NCCL_DEBUG=TRACE' /etc/nccl.conf; echo NCCL_SHM_DISABLE=1 >>/etc/nccl.conf",
    ),
    Way("nccl.configuration", "NCCL_CONF_FILE", **_line(LATER, "export NCCL_CONF_FILE=/srv/nccl.conf")),
    Way(
        "tuning.limits",
        "a later file of security/limits.d",
        **_line("/etc/security/limits.d/zz-site.conf", "* - nofile 4096"),
    ),
    Way(
        "tuning.service_limits",
        "a later file of systemd/system.conf.d",
        **_line("/etc/systemd/system.conf.d/zzz-site.conf", "[Manager]\nDefaultLimitNOFILE=4096", AFRESH),
        alone=True,  # sshd, restarted meanwhile, would keep the limit, which root of a lab node may not raise
    ),
    Way(
        "tuning.sysctl_at_boot",
        "a later file of sysctl.d",
        **_line("/etc/sysctl.d/99-zz-site.conf", "net.ipv4.tcp_keepalive_time = 60"),
    ),
    Way("tuning.sysctl_at_boot", NOT_APPLIED, **_unit(SYSCTL, "[Unit]\\nConditionPathExists=/none")),
    Way(
        "tuning.sysctl_at_boot",
        NOT_APPLIED,
        f"ln -s /dev/null /etc/systemd/system/{SYSCTL}; {RELOAD}",
        f"/etc/systemd/system/{SYSCTL}",
        f"rm /etc/systemd/system/{SYSCTL}; {RELOAD}",
    ),
    Way("tuning.sysctl_at_boot", NOT_BY_SYSTEMD, **_unit(SYSCTL)),
    Way("tuning.sysctl_at_boot", NOT_BY_SYSTEMD, **_instead(SYSCTL)),
    Way("tuning.environment", "a variable in profile.d", **_line(LATER, "export OMP_NUM_THREADS=1")),
    Way("tuning.environment", "a variable in environment.d", **_line(USERS, "OMP_NUM_THREADS=1")),
    Way("tuning.debugging", "a variable in a login file", "echo CUDA_LAUNCH_BLOCKING=1 >>/etc/environment"),
    Way(
        "tuning.debugging",
        "a variable in DefaultEnvironment of systemd",
        **_line(
            "/etc/systemd/system.conf.d/zzzz-site.conf",
            "[Manager]\nDefaultEnvironment=CUDA_LAUNCH_BLOCKING=1",
            AFRESH,
        ),
    ),
    Way(
        "profiling.counters",
        "a later file of modprobe.d",
        **_line("/etc/modprobe.d/zz-site.conf", f"options nvidia {PROFILING}"),
    ),
    Way(
        "profiling.counters",
        "the kernel's command line (nvidia.NVreg_RestrictProfilingToAdminUsers)",
        f'echo "$(cat /proc/cmdline) nvidia.{PROFILING}" >/run/cmdline;'
        " mount --bind /run/cmdline /proc/cmdline",
        "kernel command line",
        "umount /proc/cmdline",
    ),
    Way(
        "pins.hold",
        "APT::Ignore-Hold in apt.conf.d",
        **_line("/etc/apt/apt.conf.d/99site", 'APT::Ignore-Hold "true";'),
    ),
    Way(
        "pins.unattended",
        "#clear in a later file of apt.conf.d",
        **_line("/etc/apt/apt.conf.d/98site", "#clear Unattended-Upgrade::Package-Blacklist;"),
    ),
    Way(
        "repositories.file",
        "a manual edit of gpuprov.sources",
        "printf '\\n# of the site\\n' >>/etc/apt/sources.list.d/gpuprov.sources",
    ),
    Way(
        "pins.candidates",
        "a preference for another version, by name, pattern or release",
        **_line(
            "/etc/apt/preferences.d/site",
            "Package: libnvidia-ml*\nPin: version 535.261*\nPin-Priority: 1001",
        ),
    ),
    *(
        Way("pins.files", by, f"cp -p {PACKAGED} /root/kept; {do}", PACKAGED, undo)
        for by, do, undo in (
            ("a file of a package that was removed", f"rm {PACKAGED}", KEPT),
            (
                "a file of a package that was truncated or replaced, also by a link",
                f"printf x | dd conv=notrunc of={PACKAGED}; touch -r /root/kept {PACKAGED}",
                KEPT,
            ),
            (
                "dpkg-divert by hand",
                f"dpkg-divert --local --rename --add {PACKAGED}",
                f"dpkg-divert --local --rename --remove {PACKAGED}; rm /root/kept",
            ),
            ("chmod or chown of a file of a package", f"chmod u-s,o-x {PACKAGED}", KEPT),
        )
    ),
    Way(
        "ssh.options",
        "an earlier file of sshd_config.d",
        **_line(
            "/etc/ssh/sshd_config.d/00-a-site.conf",
            "PasswordAuthentication yes",
            RELOAD_SSH,
        ),
        alone=True,
    ),
    Way(
        "ssh.options",
        "a Match block for root, the login, all users or an address",
        **_line(
            "/etc/ssh/sshd_config.d/00-a-match.conf",
            "Match Address 10.0.0.0/8\nMaxAuthTries 9",
            RELOAD_SSH,
        ),
        alone=True,
    ),
    Way(
        "ssh.logins",
        "an option that the lock does not state: a command for keys, another file of keys, …",
        **_line(
            "/etc/ssh/sshd_config.d/zz-keys.conf",
            "AuthorizedKeysCommand /usr/local/bin/keys\nAuthorizedKeysCommandUser nobody",
            RELOAD_SSH,
        ),
    ),
    Way(
        "ssh.logins",
        "another listening sshd, with options or a file of its own",
        f"printf '%s\\n' 'AuthorizedKeysFile /srv/keys' 'PidFile {SECOND}.pid' >{SECOND};"
        f" /usr/sbin/sshd -f {SECOND} -p 2222",
        f"{SECOND}:1",
        f"kill $(cat {SECOND}.pid); rm {SECOND}; rm -f {SECOND}.pid",
    ),
    Way(
        "ssh.pam",
        "a line of PAM that admits without credentials (pam_permit, pam_exec, …)",
        f"cp -p {AUTH} /root/; sed -i '1i auth sufficient pam_permit.so' {AUTH}",
        f"{AUTH}:1",
        f"mv /root/common-auth {AUTH}",
    ),
    Way(
        "ssh.at_boot",
        "/etc/ssh/sshd_not_to_be_run, or a drop-in with conditions that fail",
        "touch /etc/ssh/sshd_not_to_be_run",
        "/ssh.service:",
        "rm /etc/ssh/sshd_not_to_be_run",
        alone=True,
    ),
    Way("ssh.at_boot", OTHER_PROGRAM, **_unit("ssh.service"), alone=True),
    Way("ssh.loaded", "a file that sshd has not read since it changed", "touch /etc/ssh/sshd_config"),
    Way(
        "ssh.files",
        "another key or principal in the files of trusted authorities",
        f"echo '{ANOTHER_CA}' >>/etc/ssh/gpuprov_user_ca",
    ),
    Way(
        "firewall.unit",
        COMMAND,
        **_unit("gpuprov-firewall.service"),
        alone=True,
    ),
    Way("firewall.unit", DROP_IN, **_unit("gpuprov-firewall.service", "Nice=5"), alone=True),
    Way("firewall.unit", OWN_FILE, _own("gpuprov-firewall.service", "ExecStart=.*", "ExecStart=/bin/true")),
    Way(
        "firewall.at_boot",
        "gpuprov's file of rules edited, emptied or removed",
        "sed -i '/dport 22 /d' /etc/gpuprov/firewall.nft",
    ),
    Way(
        "firewall.survives",
        "a later drop-in of nftables.service",
        f"printf '[Service]\\nExecReload=\\nExecReload=/bin/true\\n' >{FLUSHING}; {RELOAD}",
        FLUSHING,
        f"rm {FLUSHING}; {RELOAD}",
        alone=True,
    ),
)

ALTERNATIVE = (
    "update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-12.6 126;"
    " update-alternatives --set cuda /usr/local/cuda-12.6"
)
WITH_CUDA = (
    Way("cuda.default", "another link at /usr/local/cuda", "ln -sfn /usr/local/cuda-12.6 /usr/local/cuda"),
    Way(
        "cuda.default",
        "update-alternatives by hand",
        ALTERNATIVE,
    ),
    Way(
        "cuda.environment",
        "CUDA_HOME or PATH in a later file of profile.d",
        **_line("/etc/profile.d/zz-cuda.sh", "CUDA_HOME=/opt/cuda; PATH=/usr/local/cuda-12.6/bin:$PATH"),
    ),
    Way(
        "cuda.environment",
        "CUDA_HOME in DefaultEnvironment of systemd",
        **_line(SYSTEMD, "[Manager]\nDefaultEnvironment=CUDA_HOME=/opt/cuda", AFRESH),
    ),
    Way("cuda.environment", "CUDA_HOME in environment.d", **_line(USERS, "CUDA_HOME=/opt/cuda")),
    Way(
        "cuda.environment",
        "a file of logins that only root can read",
        "chmod 600 /etc/profile",
        "/etc/profile",
        "chmod 644 /etc/profile",
    ),
    Way(
        "cuda.unpackaged",
        "a toolkit from a runfile, or its libraries",
        "mkdir -p /usr/local/cuda-11.8/bin",
        "/usr/local/cuda-11.8",
        "rm -r /usr/local/cuda-11.8",
    ),
    Way(
        "cudnn.unpackaged",
        WITHOUT_PACKAGE,
        _library("/usr/local/lib", "libcudnn.so.8.9.7"),
        "/usr/local/lib/libcudnn.so.8.9.7",
        "rm /usr/local/lib/libcudnn.so.8.9.7",
    ),
    Way(
        "nccl.unpackaged",
        WITHOUT_PACKAGE,
        _library("/usr/local/lib", "libnccl.so.2.9.9"),
        "/usr/local/lib/libnccl.so.2.9.9",
        "rm /usr/local/lib/libnccl.so.2.9.9",
    ),
)
"""Ways for a node with NVIDIA's packages."""

ELSEWHERE = {
    ("fabric_manager.unit", BY_HAND): "tests/lab/test_nvidia_driver.py",
    ("fabric_manager.unit", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("fabric_manager.unit", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("fabric_manager.unit", CONDITION): "tests/unit/verify/test_same_words.py",
    ("health.timer", BY_HAND): "tests/lab/test_health.py",
    ("health.files", "a manual edit of a file of the role"): "tests/lab/test_health.py",
    (
        "gpu.confidential",
        "the host of a guest, which sets the mode of its GPU",
    ): "tests/unit/locking/test_guests.py",
    ("gpudirect.at_boot", "a blacklist in modprobe.d"): "tests/lab/test_gpudirect.py",
    ("gpudirect.at_boot", NOT_APPLIED): "tests/unit/verify/test_same_words.py",
    ("gpudirect.at_boot", NOT_BY_SYSTEMD): "tests/unit/verify/test_same_words.py",
    ("storage.client_options", "a later file of modprobe.d"): "tests/lab/test_gpudirect.py",
    ("imex.unit", BY_HAND): "tests/lab/test_imex.py",
    ("imex.unit", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("imex.unit", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("imex.unit", CONDITION): "tests/unit/verify/test_same_words.py",
    ("imex.nodes", "IMEX_NODE_CONFIG_FILE in /etc/nvidia-imex/config.cfg"): "tests/lab/test_imex.py",
    (
        "repositories.sources",
        "another file that names the same repository",
    ): "tests/lab/test_nvidia_driver.py",
    (
        "driver.initramfs",
        "an initramfs with the modules of an older driver",
    ): "tests/unit/verify/test_module_loading.py",
    ("driver.module_on_disk", "GRUB_DEFAULT, which boots another kernel"): "a lab node has no boot loader",
    (
        "driver.next_kernel",
        "gpuprov's program for boot entries removed or not executable",
    ): "tests/unit/verify/test_module_loading.py",
    ("firewall.unit", "firewalld, started or enabled by hand"): "tests/lab/test_rhel_9_chain.py",
    ("gpu.mig_pending", "nvidia-smi run by root"): "tests/lab/test_gpu_settings.py",
    **dict.fromkeys(
        (
            ("tuning.environment", "SetEnv of sshd"),
            ("tuning.environment", "Environment= in a drop-in for all services"),
            ("tuning.environment", "pam_env in PAM's service of sshd or cron"),
            ("driver.unpackaged", "another nvidia-smi in a folder of PATH"),
        ),
        "tests/unit/probe/test_effective.py",
    ),
    ("container_toolkit.cdi", BY_HAND): "tests/lab/test_docker.py",
    (
        "container_toolkit.cdi",
        "the same with nvidia-cdi-refresh.service",
    ): "tests/lab/test_podman.py",
    ("container_toolkit.cdi", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("container_toolkit.cdi", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("container_toolkit.cdi", CONDITION): "tests/unit/verify/test_same_words.py",
    ("container_toolkit.config", "a key of the toolkit's config.toml"): "tests/lab/test_docker.py",
    (
        "container_toolkit.specifications",
        "an outdated /var/run/cdi/nvidia.yaml",
    ): "tests/lab/test_docker.py",
    ("container_toolkit.specifications", "a specification in /etc/cdi"): "tests/lab/test_docker.py",
    (
        "container_toolkit.devices",
        "a specification that was removed or emptied",
    ): "tests/lab/test_docker.py",
    (
        "docker.config",
        "a drop-in of docker.service with another --config-file",
    ): "tests/unit/drift/test_overruled.py",
    ("docker.unit", BY_HAND): "tests/lab/test_docker.py",
    ("docker.unit", OTHER_FILE): "tests/lab/test_docker.py",
    ("docker.unit", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("docker.unit", CONDITION): "tests/unit/verify/test_same_words.py",
    (
        "containerd.config",
        "a drop-in of containerd.service with another --config",
    ): "tests/unit/drift/test_overruled.py",
    ("containerd.config", "a file that config.toml imports"): "tests/unit/roles/test_containerd.py",
    ("containerd.unit", BY_HAND): "tests/lab/test_containerd.py",
    ("podman.readable", "/etc/hosts or another file with mode 600"): "tests/lab/test_podman.py",
    ("podman.config", "a later file of /etc/containers/containers.conf.d"): "tests/lab/test_podman.py",
    ("containerd.unit", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("containerd.unit", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("containerd.unit", CONDITION): "tests/unit/verify/test_same_words.py",
    ("pins.candidates", "APT::Default-Release"): "tests/unit/probe/test_candidates.py",
    ("tuning.sysctl", "sysctl --write by hand"): "tests/lab/test_system_tuning.py",
    (
        "tuning.hugepages",
        "the kernel's command line, tuned, a write to /sys",
    ): "a lab node may not change it",
    ("tuning.governor", "tuned, power-profiles-daemon, a write to /sys"): "a lab node has none",
    ("scratch.mounted", "umount by hand"): "tests/lab/test_storage.py",
    ("scratch.at_boot", "a mount unit in /etc/systemd/system"): "tests/unit/drift/test_overruled.py",
    ("scratch.read_ahead", "blockdev or a later udev rule"): "tests/lab/test_storage.py",
    ("scratch.read_ahead_at_boot", "gpuprov's udev rule removed"): "tests/lab/test_storage.py",
    (
        "scratch.read_ahead_at_boot",
        "a later udev rule for the file system",
    ): "tests/unit/drift/test_overruled.py",
    ("scratch.read_ahead_at_boot", NOT_APPLIED): "tests/unit/verify/test_same_words.py",
    ("scratch.read_ahead_at_boot", NOT_BY_SYSTEMD): "tests/unit/verify/test_same_words.py",
    ("storage.clients", "apt by hand: these packages are not held"): "tests/lab/test_storage.py",
    ("monitoring.textfile", "a manual edit"): "scripts/campaign roles",
    ("monitoring.exporter", BY_HAND): "scripts/campaign roles",
    ("monitoring.exporter", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("monitoring.exporter", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("monitoring.exporter", CONDITION): "tests/unit/verify/test_same_words.py",
    ("monitoring.dcgm", BY_HAND): "scripts/campaign roles",
    ("monitoring.dcgm", OTHER_FILE): "tests/unit/verify/test_same_words.py",
    ("monitoring.dcgm", OTHER_PROGRAM): "tests/unit/verify/test_same_words.py",
    ("monitoring.dcgm", CONDITION): "tests/unit/verify/test_same_words.py",
    ("ssh.options", "an option on sshd's command line"): "tests/unit/drift/test_sshd_logins.py",
    ("ssh.ports", "ssh.socket, which listens instead of sshd"): "tests/lab/test_ssh_hardening.py",
    ("ssh.port_labels", "the label of a port, deleted for SELinux"): "tests/lab/test_selinux.py",
    (
        "ssh.port_labels",
        "another type of SELinux that the site gives to a port",
    ): "tests/lab/test_selinux.py",
    ("ssh.at_boot", "sshd's unit, masked or disabled"): "tests/lab/mutations.py",
    (
        "ssh.main_process",
        "a mask and an unmask after which systemd has lost sshd's process",
    ): "tests/lab/test_ssh_hardening.py",
    (
        "firewall.input",
        "nft by hand: a flush, another rule in gpuprov's table",
    ): "tests/lab/test_ssh_hardening.py",
}
"""Ways that no campaign tries: the reason, or the file that tests them."""


@dataclass
class Tally:
    """Results of the ways that were tried."""

    tried: int = 0
    drift: int = 0
    verify: int = 0
    mended: int = 0
    named: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the counts as a sentence."""
        return (
            f"{self.tried} ways to overrule: {self.drift} seen by drift, {self.verify} by verify,"
            f" {self.mended} mended, {self.named} refused with the place's name"
        )


def rounds(ways: Iterable[Way], stated: set[str]) -> Iterator[list[Way]]:
    """Yield the ways that the lock makes relevant, grouped so that those in a group do not clash."""
    left = [way for way in ways if way.check in stated]
    while left:
        first, *_ = left
        turn = [first]
        for way in left[1:]:
            if not any(_clash(way, each) for each in turn):
                turn.append(way)
        left = [way for way in left if way not in turn]
        yield turn


def _clash(way: Way, other: Way) -> bool:
    """Return whether two ways cannot run together: same check, same place, `alone`, or mixed GPU changes.

    A unit with a replaced command does not restore the GPU settings that it is responsible for.
    """
    units = way.check.startswith("gpu.") and other.check.startswith("gpu.")
    one = way.check == other.check or bool(_places(way) & _places(other)) or way.alone or other.alone
    return one or (units and bool(way.place) != bool(other.place))


def _places(way: Way) -> set[str]:
    """Return the paths that a way's commands contain."""
    return set(re.findall(r"/(?:etc|opt|srv|usr)/[\w./-]+[\w-]", way.do))


def tried(witnesses: Witnesses, ways: list[Way], tally: Tally) -> list[Outcome]:
    """Run one round: make all changes, run drift, verify and apply, and revert the changes."""
    unmade = {way: failed for way in ways if (failed := witnesses.attempt(way.do))}
    drift, verify = witnesses.named_by_drift(), witnesses.verify()
    applied = gpuprov(witnesses.folder, "apply", "-o", "json", "--reboot", "--yes", "--no-verify", code=None)
    said = _failures(applied.stdout)
    after = witnesses.drift()
    outcomes = []
    for way in ways:
        outcome = Outcome(str(way), [f"not made: {unmade[way]}"] if way in unmade else [])
        saw = way.check in drift and way.place in " ".join(drift[way.check])
        kept = way.check not in after and not way.place
        named = bool(way.place) and way.place in said
        tally.tried += 1
        tally.drift, tally.verify = tally.drift + saw, tally.verify + (way.check in verify)
        tally.mended, tally.named = tally.mended + kept, tally.named + named
        if not saw:
            outcome.complaints.append(f"drift says {drift.get(way.check)}, and must name {way.place or 'it'}")
        if way.check not in verify:
            outcome.complaints.append("verify does not see it")
        if not (kept or named):
            outcome.complaints.append(
                f"apply (exit {applied.returncode}) neither mends nor names it: {said[-600:]}"
            )
        outcomes.append(outcome)
    for way in ways:
        if way.undo:
            witnesses.change(f"{way.undo}\n{FORGET}")
    if left := witnesses.drift():
        outcomes.append(Outcome("taken away again", [f"drift names {', '.join(sorted(left))}"]))
    tally.outcomes += outcomes
    return outcomes


def _failures(document: str) -> str:
    """Return apply's messages about the failed node."""
    nodes = json.loads(document)["nodes"] if document.strip() else []
    return " ".join(str(event.get("msg")) for node in nodes for event in node.get("failed", ()))


def unmatched() -> set[tuple[str, str]]:
    """Return the ways of `OVERRULED` that are neither tried nor listed in `ELSEWHERE`."""
    done = {(way.check, way.by) for way in (*WAYS, *WITH_CUDA)} | ELSEWHERE.keys()
    return {(each.check, each.by) for each in OVERRULED} - done
