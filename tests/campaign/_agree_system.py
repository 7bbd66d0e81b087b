"""Changes of a node's system that contradict a promise: logins, packages, environment, limits, firewall."""

from __future__ import annotations

import shlex
from random import Random

from gpuprov.roles.components import PACKAGE_CHECKS
from tests.campaign._agree_change import (
    REEXEC,
    RELOAD,
    SSH_AGAIN,
    Change,
    Draw,
    Effect,
    added,
    locked_packages,
    put,
    replaced,
)
from tests.campaign._agree_node import Place

SSHD_LINES = (
    *("PasswordAuthentication yes", "KbdInteractiveAuthentication yes", "PermitRootLogin yes"),
    *("PermitEmptyPasswords yes", "HostbasedAuthentication yes", "PermitUserEnvironment yes"),
    *("StrictModes no", "MaxAuthTries 20", "GatewayPorts yes", "PermitTunnel yes", "X11Forwarding yes"),
    *("AllowTcpForwarding yes", "ForceCommand /bin/true", "Ciphers +aes128-cbc", "MACs +hmac-sha1"),
    "KexAlgorithms +diffie-hellman-group14-sha1",
    "AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/site_keys",
    "AuthorizedKeysCommandUser nobody\nAuthorizedKeysCommand /usr/bin/true",
    "TrustedUserCAKeys /etc/ssh/ssh_host_ed25519_key.pub",
    "Match User root\n  PasswordAuthentication yes",
    "Match Address 10.0.0.0/8\n  PasswordAuthentication yes",
    "Match User nobody\n  KbdInteractiveAuthentication yes",
)
NOT_TO_BE_RUN = "/etc/ssh/sshd_not_to_be_run"


def sshd_option(dice: Random, place: Place) -> Change:
    """Draw an option of sshd, before those of gpuprov."""
    path = dice.choice(("/etc/ssh/sshd_config.d/00-a-site.conf", "/etc/ssh/sshd_config"))
    return added("sshd option", path, dice.choice(SSHD_LINES), "ssh.", then=SSH_AGAIN, first=True)


def sshd_command(dice: Random, place: Place) -> Change:
    """Draw an option on the command line of sshd, or of a second one."""
    option = dice.choice(("PasswordAuthentication=yes", "PermitRootLogin=yes", "MaxAuthTries=20"))
    again, kind = f"{RELOAD}; systemctl restart ssh", "sshd command line"
    way = dice.choice(("SSHD_OPTS", "drop-in", "second", "none"))
    if way == "none":
        return added(kind, NOT_TO_BE_RUN, "by hand", "ssh.")
    if way == "SSHD_OPTS":
        return added(kind, "/etc/default/ssh", f'SSHD_OPTS="-o {option}"', "ssh.", then=again)
    if way == "drop-in":
        text = f"[Service]\nExecStart=\nExecStart=/usr/sbin/sshd -D -o {option}"
        return added(kind, "/etc/systemd/system/ssh.service.d/site.conf", text, "ssh.", then=again)
    start = f"systemd-run -q --collect --unit=agree-sshd /usr/sbin/sshd -D -p 2222 -o {option}; sleep 0.3"
    name = f"a second sshd on port 2222 with {option}"
    undo = f"systemctl stop agree-sshd; {SSH_AGAIN}"  # it has removed the first one's file with its number
    return Change(kind, name, start, undo=undo, checks=("ssh.",))


OF_PACKAGES = tuple(sorted({f"{check.partition('.')[0]}." for check in PACKAGE_CHECKS}))
DIVERSIONS = ("/var/lib/dpkg/diversions", "/var/lib/dpkg/diversions-old")


def package_file(dice: Random, place: Place) -> Change | None:
    """Draw a file of a package of the lock, and how it is changed; None if the package has no files."""
    package = dice.choice(locked_packages(place))
    files = place.files_of(package)
    if not files:
        return None
    path, way = dice.choice(files), dice.choice(("emptied", "replaced", "removed", "diverted"))
    other, where = f"{path}.site", shlex.quote(path)
    do = {
        "emptied": replaced(path, "head -c0"),
        "replaced": replaced(path, "sed 1s/^./_/"),
        "removed": f"rm {where}",
        "diverted": f"dpkg-divert --quiet --rename --divert {shlex.quote(other)} --add {where}",
    }[way]
    touches = (path, other, *DIVERSIONS) if way == "diverted" else (path,)
    return Change("file of a package", f"{path} of {package} {way}", do, touches, checks=OF_PACKAGES)


def package(dice: Random, place: Place) -> Change:
    """Draw a package of the lock that is not held any more, or not configured according to dpkg."""
    name, status = dice.choice(locked_packages(place)), "/var/lib/dpkg/status"
    if dice.random() < 0.5:
        return Change(
            "package", f"{name} unheld", f"apt-mark unhold {name}", (status,), checks=("pins.hold",)
        )
    edit = f"/^Package: {name}$/,/^$/s/^Status: .*/Status: install ok unpacked/"
    checks = ("dpkg.consistent", "pins.", *OF_PACKAGES)
    return Change("package", f"{name} unpacked only", f"sed -i '{edit}' {status}", (status,), checks=checks)


SOURCES = "/etc/apt/sources.list.d/gpuprov.sources"
PREFERENCES = "/etc/apt/preferences.d/site"
APT = (
    ("/etc/apt/apt.conf.d/99site", 'APT::Ignore-Hold "true";', "pins.hold"),
    ("/etc/apt/apt.conf.d/98site", "#clear Unattended-Upgrade::Package-Blacklist;", "pins."),
    ("/etc/apt/apt.conf.d/98site", 'Dir::Etc::SourceParts "/srv/none";', "repositories."),
    (PREFERENCES, "Package: *nvidia*\nPin: version *\nPin-Priority: -1", "repositories."),
    (PREFERENCES, "Package: /cuda|nvidia/\nPin: release o=*\nPin-Priority: -10", "repositories."),
    ("/etc/apt/preferences", "Package: libcuda1 libnccl2\nPin: version *\nPin-Priority: -1", "repositories."),
    (SOURCES, "# by hand", "repositories."),
    (SOURCES, "Enabled: no", "repositories."),
    (SOURCES, "Trusted: yes", "repositories."),
)


def apt(dice: Random, place: Place) -> Change:
    """Draw a setting under which apt takes other versions, or from elsewhere, or checks less."""
    path, text, check = dice.choice(APT)
    if path == SOURCES and not text.startswith("#"):
        do = f"sed -i 's/^Types: deb/&\\n{text}/' {path}"
        return Change("apt", f"{text} in {path}", do, (path,), checks=(check, "pins."))
    return added("apt", path, text, check, "pins.")


SHELL_FILES = (
    *("/etc/profile.d/zz-site.sh", "/etc/profile", "/etc/bash.bashrc"),
    *("/root/.profile", "/root/.bash_profile", "/root/.bashrc"),
)
OTHER_FILES = {
    "/etc/environment": ("{}={}", ""),
    "/etc/default/locale": ("{}={}", ""),
    "/etc/security/pam_env.conf": ("{} OVERRIDE={}", ""),
    "/etc/environment.d/zz-site.conf": ("{}={}", ""),
    "/etc/systemd/system.conf.d/zz-site.conf": ("[Manager]\nDefaultEnvironment={}={}", REEXEC),
    "/etc/ssh/sshd_config.d/zz-site.conf": ("SetEnv {}={}", SSH_AGAIN),
    "/etc/systemd/system/service.d/zz-site.conf": ("[Service]\nEnvironment={}={}", RELOAD),
}
"""File → form of a variable in it, and the commands that put it into effect."""
CRON = "/etc/pam.d/cron"
VARIABLES = (
    ("OMP_NUM_THREADS", "1"),
    ("CUDA_LAUNCH_BLOCKING", "1"),
    ("CUDA_HOME", "/opt/cuda"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_CONF_FILE", "/srv/nccl.conf"),
)
OF_VARIABLES = ("tuning.", "nccl.", "cuda.")


def environment(dice: Random, place: Place) -> Change:
    """Draw a variable of logins or services, from a file of a shell, of PAM, of systemd or of sshd."""
    name, value = dice.choice(VARIABLES)
    path = dice.choice((*SHELL_FILES, *OTHER_FILES, CRON))
    if path == CRON:
        line = "session required pam_env.so envfile=/opt/cron.env"
        do = f"{put(path, line)}; mkdir -p /opt; echo {name}={value} >/opt/cron.env"
        touched = (path, "/opt/cron.env")
        return Change("environment", f"{name}={value} of cron", do, touched, checks=OF_VARIABLES)
    if path in OTHER_FILES:
        form, then = OTHER_FILES[path]
        return added("environment", path, form.format(name, value), *OF_VARIABLES, then=then)
    first = path.endswith("bashrc")  # which ends early for shells that no person types in
    return added("environment", path, f"export {name}={value}", *OF_VARIABLES, first=first)


def program(dice: Random, place: Place) -> Change:
    """Draw a folder of PATH with another nvidia-smi, before the driver's or after it."""
    folder = dice.choice(("/usr/local/sbin", "/usr/local/bin", "/opt/site/bin"))
    path, line = f"{folder}/nvidia-smi", "export PATH=/opt/site/bin:$PATH"
    text = '#!/bin/sh\\nexec /usr/bin/nvidia-smi "$@"\\n'
    do = f"mkdir -p {folder}; printf '{text}' >{path}; chmod 755 {path}"
    touches: tuple[str, ...] = (path,)
    if folder.startswith("/opt"):
        do, touches = f"{do}; {put('/etc/profile.d/zz-site.sh', line)}", (folder, "/etc/profile.d/zz-site.sh")
    return Change("program", path, do, touches, checks=("driver.unpackaged",))


LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libcudnn.so.9")
LINKERS = (
    ("/etc/ld.so.conf.d/000-site.conf", "/opt/site", ""),
    ("/etc/ld.so.preload", "/opt/site/{}", ""),
    ("/etc/profile.d/zz-site.sh", "export LD_LIBRARY_PATH=/opt/site", ""),
    ("/etc/environment", "LD_LIBRARY_PATH=/opt/site", ""),
    ("/etc/bash.bashrc", "export LD_LIBRARY_PATH=/opt/site", ""),
    ("/etc/systemd/system.conf.d/z.conf", "[Manager]\nDefaultEnvironment=LD_LIBRARY_PATH=/opt/site", REEXEC),
)


def linker(dice: Random, place: Place) -> Change:
    """Draw a library without a package, and how programs come to load it."""
    name, (path, form, then) = dice.choice(LIBRARIES), dice.choice(LINKERS)
    line = put(path, form.format(name), first=path.endswith("bashrc"))
    do = f"mkdir -p /opt/site; echo x >/opt/site/{name}; {line}"
    checks = ("driver.", "nccl.", "cudnn.")
    return Change("linker", f"{name} by {path}", do, ("/opt/site", path), then, checks=checks)


TUNING = (
    ("/etc/security/limits.d/zz-site.conf", "* - nofile 2048\nroot - nofile 2048", "", "tuning.limits"),
    ("/etc/systemd/system.conf.d/zz-site.conf", "[Manager]\nDefaultLimitNOFILE=2048", REEXEC, "tuning."),
    ("/etc/systemd/system/service.d/zz.conf", "[Service]\nLimitMEMLOCK=64K", RELOAD, "tuning."),
    ("/etc/sysctl.d/99-zz-site.conf", "net.ipv4.tcp_keepalive_time = 60", "", "tuning.sysctl_at_boot"),
    ("/etc/sysctl.conf", "net.ipv4.tcp_keepalive_time = 60", "", "tuning.sysctl_at_boot"),
    ("/etc/sysctl.d/99-zz-site.conf", "-net.ipv4.tcp_keepalive_time", "", "tuning.sysctl_at_boot"),
)


def tuning(dice: Random, place: Place) -> Change:
    """Draw a limit of logins or services, or a kernel parameter of the next boot."""
    if dice.random() < 0.25:
        path = dice.choice(("/etc/pam.d/sshd", "/etc/pam.d/su", "/etc/pam.d/cron"))
        module = dice.choice(("pam_limits", "pam_env"))
        # Without pam_limits a session has the limits of its service.
        breaks = path.endswith("sshd") and module == "pam_env"
        do, checks = f"[ ! -e {path} ] || sed -i /{module}/d {path}", ("tuning.",)
        effect: Effect = "breaks" if breaks else "unknown"
        return Change("tuning", f"no {module} in {path}", do, (path,), checks=checks, effect=effect)
    path, text, then, check = dice.choice(TUNING)
    return added("tuning", path, text, check, then=then)


NFT = (
    "insert rule inet gpuprov input tcp dport 4444 accept",
    "flush chain inet gpuprov input",
    "delete table inet gpuprov",
)


def firewall(dice: Random, place: Place) -> Change:
    """Draw a change of gpuprov's table, or of the unit that flushes all tables."""
    if dice.random() < 0.25:
        text = "[Service]\nExecReload=\nExecReload=/bin/true"
        path = "/etc/systemd/system/nftables.service.d/zz-site.conf"
        return added("firewall", path, text, "firewall.", then=RELOAD)
    way, again = dice.choice(NFT), "systemctl restart gpuprov-firewall"
    return Change("firewall", f"nft {way}", f"nft {way}", undo=again, checks=("firewall.",))


OF_THE_SYSTEM: tuple[Draw, ...] = (
    *(sshd_option, sshd_command, package_file, package, apt),
    *(environment, linker, program, tuning, firewall),
)
