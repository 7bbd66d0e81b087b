"""`host.tuning`: limits and variables of a fresh login and of a service, and kernel parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from gpuprov.untrusted import lines_of, regex
from gpuprov.untrusted.parsing import whole_number
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.programs import python

OPTIONS = {"memlock": "l", "stack": "s", "nofile": "n"}
"""Limit → option of the shell's ulimit."""
LIMITS = "; ".join(
    f"echo {kind} {name} $(ulimit -{kind}{option})" for name, option in OPTIONS.items() for kind in "SH"
)
# A session of PAM for the first of these services that the node has, in the environment that PAM gives it. A
# module that fails does not end it, as sshd's sessions continue. Without a service nothing is printed, and
# nothing of cron where PAM does not start it, which runs no job then.
SESSION = """
import ctypes, os, pwd, shutil, subprocess, sys
names, user, *command = sys.argv[1:]
folders = ("/etc/pam.d/", "/usr/lib/pam.d/")
service = next((n for n in names.split() if any(os.path.isfile(f + n) for f in folders)), None)
if service is None:
    sys.exit(0)
account = pwd.getpwnam(user)
pam, handle, nobody = ctypes.CDLL("libpam.so.0"), ctypes.c_void_p(), (ctypes.c_void_p * 2)()
pam.pam_getenvlist.restype = ctypes.POINTER(ctypes.c_char_p)
if pam.pam_start(service.encode(), user.encode(), nobody, ctypes.byref(handle)):
    print("PAM does not start " + service, file=sys.stderr)
    sys.exit(0 if service.startswith("cron") else 1)
pam.pam_set_item(handle, 3, b"ssh")
pam.pam_setcred(handle, 2)
pam.pam_open_session(handle, 0x8000)
found = {"PATH": os.environ["PATH"], "HOME": account.pw_dir, "USER": user, "LOGNAME": user}
found.update({"SSH_CLIENT": os.environ["SSH_CLIENT"]} if "SSH_CLIENT" in os.environ else {})
for entry in pam.pam_getenvlist(handle):
    if entry is None:
        break
    name, _, value = os.fsdecode(entry).partition("=")
    found[name] = value
who = f"user={user},host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
if service == "sshd" and shutil.which("sshd"):
    asked = ["sshd", "-T", "-C", who]
    said = os.fsdecode(subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    found.update(line[7:].partition("=")[::2] for line in said.splitlines() if line.startswith("setenv "))
def become():
    os.initgroups(user, account.pw_gid); os.setgid(account.pw_gid); os.setuid(account.pw_uid)
code = subprocess.run(command, env=found, preexec_fn=become, cwd="/").returncode
pam.pam_close_session(handle, 0x8000)
sys.exit(code)
"""
SERVICES, JOBS = "sshd login", "cron crond"
"""PAM's services of logins, the second for a node without sshd; and of jobs at times."""
PYTHON = python(SESSION)
BASH = '"$(command -v bash || echo /bin/sh)"'
LOGIN = f"{PYTHON} '{SERVICES}' %s {BASH} --login -c '{LIMITS}; env'"
# bash reads other files for a command that sshd starts, which it recognizes by this variable (bash(1)).
COMMAND = f"SSH_CLIENT='127.0.0.1 9 22' {PYTHON} '{SERVICES}' root {BASH} -c env"
JOB = f"{PYTHON} '{JOBS}' root env"
TERMINAL = "bash -c 'PS1=x BASH_COMPLETION_VERSINFO=1; [ ! -r /etc/bash.bashrc ] || . /etc/bash.bashrc; env'"
TERMINAL = f'! command -v bash >/dev/null || env -i PATH="$PATH" HOME=/nonexistent {TERMINAL}'
SERVICE = f"systemd-run --quiet --wait --pipe --collect /bin/sh -c '{LIMITS}; env'"
UNPRIVILEGED = "nobody"
IN_KIBIBYTES = ("memlock", "stack")  # POSIX and dash(1), ulimit
HUGEPAGES = "cat /sys/kernel/mm/transparent_hugepage/enabled"
USERS = (
    "for each in /usr/lib/systemd/user-environment-generators/*-environment-d-generator;"
    " do HOME=/root $each; done"
)
BOOT_SYSCTLS = "$(ls /usr/lib/systemd/systemd-sysctl /lib/systemd/systemd-sysctl | head -1) --cat-config"
GOVERNORS = "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"

Limit = int | str


class LoginSession(NamedTuple):
    """Limits and variables of a session, by name.

    A limit is a number in bytes (`nofile`: of files) or text such as `unlimited`; a text with both if soft
    and hard differ.
    """

    limits: dict[str, Limit]
    environment: dict[str, str]


class Tuning(Observed):
    """Observer of limits, environment and kernel parameters.

    >>> host.tuning.login("root").limits["memlock"]
    'unlimited'
    """

    def login(self, user: str) -> LoginSession:
        """Return limits and variables of a user's fresh login, as PAM and sshd set them.

        Raises:
            NodeFailed: there is no user of that name, or PAM cannot be asked.
        """
        return parse_session(self.ask(LOGIN, user))

    @cached_property
    def service(self) -> LoginSession:
        """Limits and variables of a transient service started now.

        Raises:
            NodeFailed: systemd does not start it.
        """
        return parse_session(self.ask(SERVICE))

    @cached_property
    def user_service_environment(self) -> dict[str, str]:
        """Variables of services of a user's own systemd, from its environment generators.

        Empty without these.
        """
        return dict(re.findall(r"^([A-Z_][A-Z0-9_]*)=(.*)$", self.run(USERS).stdout, re.MULTILINE))

    @cached_property
    def others(self) -> list[dict[str, str]]:
        """Variables of services, of users' services, of a command over ssh, of cron, and of bash's terminals.

        Raises:
            NodeFailed: a service or a command cannot be started.
        """
        said = [self.ask(COMMAND), self.ask(JOB), self.ask(TERMINAL)]
        asked = (parse_session(text).environment for text in said)
        return [self.service.environment, self.user_service_environment, *asked]

    @property
    def everywhere(self) -> list[dict[str, str]]:
        """Variables of every kind of process: logins of root and of `UNPRIVILEGED`, and `others`.

        Raises:
            NodeFailed: as `login` and `others`.
        """
        return [*(self.login(user).environment for user in ("root", UNPRIVILEGED)), *self.others]

    def variable(self, name: str, wanted: str | None) -> str | None:
        """Return a variable of root's fresh login; None if it is not set anywhere.

        If it is as `wanted` or not set there, but services, commands over ssh or terminals have another
        value, or it differs in a login of `UNPRIVILEGED`, that is returned.

        Args:
            wanted: the expected value; None: not set.
        """
        login, other = (self.login(user).environment.get(name) for user in ("root", UNPRIVILEGED))
        odd = [value for each in self.others if (value := each.get(name, wanted)) != wanted]
        odd += [other] if other not in (login, wanted) else []
        return odd[0] if odd and login in (None, wanted) else login

    @cached_property
    def boot_sysctls(self) -> dict[str, str]:
        """Kernel parameters that the next boot sets by files of sysctl.d(5), by name with dots.

        Empty without systemd-sysctl.
        """
        return parse_sysctls(self.run(BOOT_SYSCTLS).stdout)

    def sysctls(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return the kernel's current parameters, with single spaces; None for an unknown one."""
        said = {name: self.run("sysctl --values %s", name) for name in names}
        return {
            name: " ".join(each.stdout.split()) if each.succeeded else None for name, each in said.items()
        }

    @cached_property
    def hugepages(self) -> str | None:
        """The kernel's mode of transparent huge pages, such as `madvise`; None if it has none."""
        found = re.search(r"\[(\w+)\]", self.run(HUGEPAGES).stdout)
        return found[1] if found else None

    @cached_property
    def governors(self) -> set[str]:
        """Governors of all processors, each once; empty without frequency scaling."""
        return set(self.run(GOVERNORS).stdout.split())

    def __repr__(self) -> str:
        return "<tuning>"


def parse_sysctls(text: str) -> dict[str, str]:
    """Parse files of sysctl.d(5): parameter with dots → value with single spaces; the last line counts.

    A leading `-` is removed; with it, a name alone takes an earlier value away. Comments and other lines
    without `=` are ignored.
    """
    found: dict[str, str] = {}
    for line in map(str.strip, lines_of(text)):
        name, equals, value = line.removeprefix("-").partition("=")
        if equals and name.strip() and name[0] not in "#;":
            found[parameter(name.strip())] = " ".join(value.split())
        elif line.startswith("-") and not equals:
            found.pop(parameter(name.strip()), None)
    return found


def parameter(name: str) -> str:
    """Return a kernel parameter's name with dots, from either spelling (sysctl.d(5)).

    `net/ipv4/conf/eth0.1/rp_filter` is `net.ipv4.conf.eth0/1.rp_filter`; a name with dots is returned
    unchanged.
    """
    slashes = "/" in name and "." not in name.partition("/")[0]
    return name.translate({ord("/"): ".", ord("."): "/"}) if slashes else name


def parse_session(text: str) -> LoginSession:
    """Parse `S memlock 8192` lines of ulimit (S is soft, H is hard), and env's `NAME=VALUE`.

    A limit that is missing is `not set`. Variables with lower-case names are ignored.
    """
    limits: dict[str, Limit] = {}
    for name in OPTIONS:
        soft, hard = (
            _limit(name, re.search(rf"^{regex(kind)} {regex(name)} (\S+)$", text, re.MULTILINE))
            for kind in "SH"
        )
        limits[name] = soft if soft == hard else f"{soft}, at most {hard}"
    return LoginSession(limits, dict(re.findall(r"^([A-Z_][A-Z0-9_]*)=(.*)$", text, re.MULTILINE)))


def _limit(name: str, found: re.Match[str] | None) -> Limit:
    """Return a limit in bytes (`nofile`: as it is), another text unchanged, or `not set` without a match."""
    text = found[1] if found else "not set"
    number = whole_number(text)
    return text if number is None else number * (1024 if name in IN_KIBIBYTES else 1)
