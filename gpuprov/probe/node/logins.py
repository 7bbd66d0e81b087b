"""Variables that PAM, sshd and systemd set for every process that they start."""

import glob
import os
import pwd
import re
import shlex

from gpuprov.probe.node.base import FRESH_UNIT, closed, dropped_in, find_program, lines_of, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Place = tuple[str, str]
    Line = tuple[str, list[str]]

SERVICES = ("/etc/pam.d", "/usr/lib/pam.d")
LOGINS = ("sshd", "login")
"""Services of logins; the second one counts on a node without sshd."""
JOBS = ("cron", "crond")
"""Services of jobs at times, by Debian's and by RHEL's name."""
PAM_ENV, ENVIRONMENT_FILE = "/etc/security/pam_env.conf", "/etc/environment"
"""Files of pam_env(8) if its line names no other."""
LINE = re.compile(r"-?(auth|session)\s+(\[[^\]]*\]|\S+)\s+(\S+)(.*)", re.IGNORECASE)
ASSIGNMENT = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)")
UNPRIVILEGED = "nobody"
MARK = "gpuprov-login"
"""Text that ends what files of a login print."""
ROOT_FROM_HERE = "user=root,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
"""Connection for which sshd's options are asked."""
SSHD_FILES = ("/etc/ssh/sshd_config.d/*.conf", "/etc/ssh/sshd_config")
LINES_MAX, NESTING = 2000, 16
"""Maximum numbers of lines of a stack, and of files that include one another."""


def assignments(path: str) -> "Iterator[tuple[str, str, str]]":
    """Yield name, value without quotes, and `path:line` of the variables that a file sets or exports."""
    for place, line in lines_of(path):
        found = ASSIGNMENT.match(line)
        if found:
            yield found.group(1), found.group(2).strip().strip("\"'"), place


def service_of(names: "tuple[str, ...]") -> "str | None":
    """Return the first of these services that PAM has a file for, or None."""
    return next((name for name in names if _file(name)), None)


def _file(service: str) -> "str | None":
    """Return the path of a PAM service's file, which may also be given itself; None without one."""
    paths = [service] if service.startswith("/") else [f"{root}/{service}" for root in SERVICES]
    return next(filter(os.path.isfile, paths), None)


def variables_of(service: "str | None") -> "dict[str, Place]":
    """Return the variables of a service's sessions -> (value, place), from its lines of pam_env(8).

    Lines of the type `auth` are among them: programs establish credentials before they open a session.
    """
    found = {}  # type: dict[str, Place]
    left = [LINES_MAX]
    for kind in ("auth", "session"):
        for module, words in _stack(service, kind, left) if service else ():
            if os.path.basename(module) == "pam_env.so":
                found.update(_of_pam_env(dict(word.partition("=")[::2] for word in words)))
    return found


def _stack(service: str, kind: str, left: "list[int]", depth: int = 0) -> "Iterator[Line]":
    """Yield module and arguments of a service's lines of a type, with those of included files, at most
    `NESTING` deep.

    Args:
        left: number of lines that the whole stack may still have.
    """
    begun = ""
    for _, text in lines_of(_file(service) or "") if depth <= NESTING else ():
        left[0] -= 1
        if left[0] < 0:
            return
        if text.endswith("\\"):
            begun += text[:-1] + " "
            continue
        text, begun = begun + text, ""
        found, included = LINE.match(text), re.match(r"@include\s+(\S+)", text)
        if included:
            yield from _stack(included.group(1), kind, left, depth + 1)
        elif found and found.group(1).lower() == kind:
            control, module, rest = found.groups()[1:]
            if control.lower() in ("include", "substack"):
                yield from _stack(module, kind, left, depth + 1)
            else:
                yield module, rest.partition("#")[0].split()


def _of_pam_env(stated: "dict[str, str]") -> "dict[str, Place]":
    """Return the variables that one line of pam_env sets; {} if its first file is missing.

    Args:
        stated: the line's arguments.
    """
    first = stated.get("conffile", PAM_ENV)
    if not os.path.isfile(first):
        return {}
    found = {}
    for place, line in lines_of(first):
        values = dict(re.findall(r"\b(DEFAULT|OVERRIDE)=(\"[^\"]*\"|\S*)", line))
        value = (values.get("OVERRIDE") or values.get("DEFAULT") or "").strip('"')
        if value:
            found[line.split()[0]] = (value, place)
    if stated.get("readenv") != "0":
        path = stated.get("envfile", ENVIRONMENT_FILE)
        found.update({name: (value, place) for name, value, place in assignments(path)})
    return found


def of_sshd() -> "dict[str, Place]":
    """Return the variables that sshd sets in root's sessions after PAM (SetEnv); empty without sshd."""
    if find_program("sshd") is None:
        return {}
    text = run_anyway("sshd", "-T", "-C", ROOT_FROM_HERE, seconds=5)[1]
    given = (
        line.partition(" ")[2].partition("=") for line in text.splitlines() if line.startswith("setenv ")
    )
    lines = [row for path in SSHD_FILES for each in sorted(glob.glob(path)) for row in lines_of(each)]
    stated = [(place, line) for place, line in lines if re.match(r"setenv[\s=]", line, re.IGNORECASE)]

    def place(name: str) -> str:
        return next((at for at, line in stated if re.search(rf"\b{re.escape(name)}=", line)), "sshd -T")

    return {name: (value, place(name)) for name, _, value in given}


def of_unprivileged(given: "dict[str, str]") -> "dict[str, str] | None":
    """Return the variables of a login of a user without privileges; None if the node cannot be asked.

    Args:
        given: variables of root's login before its shell.
    """
    try:
        account = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        return None
    if find_program("setpriv") is None:
        return None
    become = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    who = {"HOME": account.pw_dir, "USER": UNPRIVILEGED, "LOGNAME": UNPRIVILEGED}
    shell = ("bash", "--login", "-c", f"printf '{MARK}\\0'; env -0")
    out = run_anyway(*become, *shell, seconds=5, env={**given, **who})[1]
    pairs = (each.partition("=") for each in out.partition(MARK + "\0")[2].split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def closed_to_others(place: "str | None") -> "str | None":
    """Return what is `closed` of the files of a login, up to the one of `path:line`; the place itself if
    nothing is.
    """
    return closed("/etc/profile") or closed((place or "").rpartition(":")[0]) or place


def of_services() -> "dict[str, Place]":
    """Return the variables of a service that systemd loads now, without those of its manager.

    Files of EnvironmentFile= are read after Environment= (systemd.exec(5)).
    """
    wanted = "--property=Environment,EnvironmentFiles"
    shown = run_anyway("systemctl", "show", wanted, FRESH_UNIT, seconds=5)[1]
    places = {}  # type: dict[str, str]
    for path in dropped_in("systemd/system/service.d"):
        for place, line in lines_of(path):
            if re.match(r"Environment\s*=", line):
                places.update(dict.fromkeys(re.findall(r"([A-Za-z_]\w*)=", line.partition("=")[2]), place))
    found = {}  # type: dict[str, Place]
    for line in shown.splitlines():
        key, _, value = line.partition("=")
        if key == "Environment":
            for word in _words(value):
                name, equals, text = word.partition("=")
                if equals:
                    found[name] = (text, places.get(name, f"systemctl show {FRESH_UNIT}"))
        elif key == "EnvironmentFiles":
            path = value.partition(" (ignore_errors=")[0]
            found.update({name: (text, place) for name, text, place in assignments(path)})
    return found


def _words(text: str) -> "list[str]":
    """Return the words of a line as a shell reads it; without quotes if they are not balanced."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
