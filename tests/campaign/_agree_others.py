"""Changes with an unknown effect, which both witnesses must report alike, and benign ones."""

from __future__ import annotations

import shlex
from random import Random

from tests.campaign._agree_change import RELOAD, SSH_AGAIN, Change, Draw, locked_packages, locked_units, put
from tests.campaign._agree_node import Place

AFTER = f"{RELOAD}; {SSH_AGAIN}"
NO_COMMENTS = (
    "gpuprov",
    "json",
    "xml",
    "conf.d/dbus",
    "hostname",
    "machine-id",
    "hostid",
    "passwd",
    "group",
    "gshadow",
    "shadow",
    "subuid",
    "subgid",
    "os-release",
    "issue",
    "motd",
    "shells",
    "timezone",
    "debian_version",
    "adjtime",
    "dbus-1",
    "ld.so.cache",
    "alternatives",
    "ssl/",
    "_key",
    "inputrc",
    "papersize",
    "mailname",
    "magic",
)
"""Parts of paths of files without comments that begin with `#`."""
GARBAGE = ("site = yes", "Include /srv/none", "export SITE=1", "* - - -", "]")


UNITS_IN_GENERAL = (
    *("cron.service", "dbus.service", "systemd-udevd.service", "systemd-sysctl.service", "ssh.service"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service", "nftables.service"),
    *("systemd-modules-load.service", "dkms.service", "nvidia-cdi-refresh.service"),
)


def _unknown(kind: str, name: str, do: str, *touches: str, then: str = AFTER) -> Change:
    """Return a change with an unknown effect, which touches these paths."""
    return Change(kind, name, do, touches, then, effect="unknown")


def line_of_a_file(dice: Random, place: Place) -> Change | None:
    """Draw a file that services open and one of its lines, which is removed, replaced or commented out; None
    without files.
    """
    if not place.opened:
        return None
    path, text = dice.choice(place.opened), dice.choice(GARBAGE)
    number = dice.randrange(len(place.at(path).read_bytes().splitlines()) + 1) + 1
    sed = "sed -i --follow-symlinks"
    other = shlex.quote(f"{number}c{text}")
    way, do = dice.choice(
        (
            (f"line {number} removed from", f"{sed} {number}d {shlex.quote(path)}"),
            (f"line {number} now {text!r} in", f"{sed} {other} {shlex.quote(path)}"),
            (f"line {number} commented out in", f"{sed} '{number}s/^/#/' {shlex.quote(path)}"),
            (f"{text!r} added to", put(path, text)),
        )
    )
    return _unknown("line of a file", f"{way} {path}", do, path)


def whole_file(dice: Random, place: Place) -> Change | None:
    """Draw a file that services open, which is emptied, removed, or gets another mode or owner; None without
    files.
    """
    if not place.opened:
        return None
    path = dice.choice(place.opened)
    ways = {"emptied": ": >", "removed": "rm ", "mode 600": "chmod 600 ", "of nobody": "chown nobody "}
    way = dice.choice(sorted(ways))
    return _unknown("whole file", f"{path} {way}", f"{ways[way]}{shlex.quote(path)}", path)


def unit_in_general(dice: Random, place: Place) -> Change:
    """Draw a unit of the system, which is masked or gets a drop-in."""
    name, way = dice.choice(UNITS_IN_GENERAL), dice.choice(("masked", "with a drop-in"))
    path = f"/etc/systemd/system/{name}"
    if way == "masked":
        do = f"[ -e {path} ] || ln -s /dev/null {path}"
        return _unknown("unit in general", f"{name} {way}", do, path, then=RELOAD)
    do = put(f"{path}.d/site.conf", "[Service]\nNice=5")
    return _unknown("unit in general", f"{name} {way}", do, f"{path}.d", then=RELOAD)


UNKNOWN: tuple[Draw, ...] = (line_of_a_file, whole_file, unit_in_general)


def comment(dice: Random, place: Place) -> Change | None:
    """Draw a file with comments that services open and gpuprov does not write; it gets a comment. None
    without files.
    """
    named = [path for path in place.opened if not any(part in path for part in NO_COMMENTS)]
    if not named:
        return None
    path = dice.choice(named)
    line = "// of the site" if path.startswith("/etc/apt/apt.conf") else "# of the site"
    return Change("comment", f"a comment in {path}", put(path, line), (path,), AFTER, effect="benign")


def touched(dice: Random, place: Place) -> Change | None:
    """Draw a file that services open, or one of a package of the lock; its time is changed. None without
    files. Those of sshd are left out: with a later time they count as changed.
    """
    package = place.files_of(dice.choice(locked_packages(place)))
    opened = [path for path in place.opened if not path.startswith("/etc/ssh/sshd_config")]
    path = dice.choice([dice.choice(files) for files in (opened, package) if files] or [""])
    return Change("touched", path, f"touch {shlex.quote(path)}", (path,), effect="benign") if path else None


def restart(dice: Random, place: Place) -> Change:
    """Draw a service that is restarted; after the persistence daemon, those that depend on it."""
    name = dice.choice((*sorted(set(locked_units(place).values())), *OF_THE_SYSTEM))
    again = "; systemctl restart gpuprov-gpu-modes gpuprov-gpu-clocks" if "persistenced" in name else ""
    return Change("restart", name, f"systemctl restart {name}{again}", effect="benign")


OF_THE_SYSTEM = ("ssh.service", "cron.service", "systemd-journald.service", "systemd-logind.service")


def _small(name: str, do: str, *touches: str, then: str = "", undo: str = "") -> Change:
    """Return a benign change of a file that concerns no check."""
    return Change("unrelated", name, do, touches, then, undo, effect="benign")


def _line(name: str, path: str, text: str, then: str = "") -> Change:
    """Return the benign change that puts a text into a file."""
    return _small(name, put(path, text), path, then=then)


SITE = "/etc/systemd/system/site.service"
ACCOUNTS = tuple(
    f"/etc/{name}{old}"
    for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
    for old in ("", "-")
)
LOG = "/var/log/dpkg.log"
SMALL = (
    _line("an unrelated kernel parameter", "/etc/sysctl.d/50-site.conf", "kernel.printk = 4 4 1 7"),
    _line("an option of an unrelated module", "/etc/modprobe.d/sound.conf", "options snd slots=a"),
    _line("a blacklist of an unrelated module", "/etc/modprobe.d/beep.conf", "blacklist pcspkr"),
    # sshd uses the first value that it reads.
    _line(
        "a later word on passwords",
        "/etc/ssh/sshd_config.d/zz-site.conf",
        "PasswordAuthentication yes",
        SSH_AGAIN,
    ),
    _line(
        "defaults of sshd", "/etc/ssh/sshd_config.d/zz-site.conf", "TCPKeepAlive yes\nUseDNS no", SSH_AGAIN
    ),
    _line("an unrelated variable of logins", "/etc/profile.d/site.sh", "export EDITOR=vi"),
    _line(
        "an unrelated variable of services",
        "/etc/systemd/system.conf.d/site.conf",
        "[Manager]\nDefaultEnvironment=SITE=1",
        "systemctl daemon-reexec",
    ),
    _line("a limit of one user", "/etc/security/limits.d/site.conf", "www-data - nofile 2048"),
    _line("a cron job", "/etc/cron.d/site", "0 0 * * * root true"),
    _line("a message of the day", "/etc/motd", "welcome"),
    _line(
        "an unattended origin of the site",
        "/etc/apt/apt.conf.d/60site",
        'Unattended-Upgrade::Package-Blacklist { "postgresql"; };',
    ),
    _line(
        "a preference for an unrelated package",
        "/etc/apt/preferences.d/site",
        "Package: postgresql*\nPin: release *\nPin-Priority: -1",
    ),
    _line("a setting of one user", "/home/somebody/.nccl.conf", "NCCL_DEBUG=INFO"),
    _small("a unit of the site", f"printf '[Service]\\nExecStart=/bin/true\\n' >{SITE}", SITE, then=RELOAD),
    _small(
        "a proxy of Docker",
        put(
            "/etc/systemd/system/docker.service.d/proxy.conf",
            "[Service]\nEnvironment=HTTP_PROXY=http://[::1]:9",
        ),
        "/etc/systemd/system/docker.service.d",
        then=RELOAD,
    ),
    _small("another time zone", "ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime", "/etc/localtime"),
    _small(
        "a folder of unrelated libraries",
        f"mkdir -p /opt/site; {put('/etc/ld.so.conf.d/site.conf', '/opt/site')}",
        "/etc/ld.so.conf.d/site.conf",
        "/opt/site",
    ),
    _small("another table of nftables", "nft add table inet site", undo="nft delete table inet site"),
    _small("an account", "useradd -M somebody", *ACCOUNTS),
    _small("an unrelated package held", "apt-mark hold less", "/var/lib/dpkg/status"),
    _small("an Xid in the journal", "gpuprov-sim fault xid 0 13"),
    _small("the journal rotated", "journalctl --quiet --rotate"),
    _small("dpkg's log rotated", f"mv {LOG} {LOG}.1; : >{LOG}", LOG, f"{LOG}.1"),
    _small("the linker's cache written again", "ldconfig", "/etc/ld.so.cache"),
    _small("the modules' index written again", "depmod $K"),
    _small("systemd's units read again", RELOAD),
    _small("systemd executed again", "systemctl daemon-reexec"),
)


def small(dice: Random, place: Place) -> Change:
    """Draw one of the changes that concern nothing of the lock."""
    return dice.choice(SMALL)


BENIGN: tuple[Draw, ...] = (comment, touched, restart, small, small)
