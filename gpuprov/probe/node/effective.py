"""Collectors of effective values of any origin: variables, libraries, package sources, sysctls."""

import glob
import os
import re
import threading
from contextlib import suppress

import gpuprov_package_files
import gpuprov_repos
import gpuprov_sources
from gpuprov_node import has_dpkg

from gpuprov.probe.node.base import (
    ENVIRONMENT,
    Failed,
    blot_value,
    collector,
    dropped_in,
    find_program,
    lines_of,
    names_in,
    run_anyway,
    systemd_lines,
)
from gpuprov.probe.node.logins import (
    JOBS,
    LOGINS,
    assignments,
    closed_to_others,
    of_services,
    of_sshd,
    of_unprivileged,
    service_of,
    variables_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

    Place = tuple[str, str]

NAME = re.compile(r"[A-Za-z_]\w*\Z")
MARK = "gpuprov-end-of-login-files"
# bash does not accept PS4 from root's environment, so the files are read one by one: those of a command over
# ssh, the system's file for terminals, those of a login. For names and order see bash(1), "Invocation".
SHELLS = f"""
PS4='+gpuprov:$BASH_SOURCE:$LINENO: '
gpuprov_end() {{
{{ set +x; }} 2>/dev/null; printf '\\n{MARK}\\n'; env -0; printf '{MARK}\\n'; echo {MARK} >&2
}}
(set -x; for f in /etc/bash.bashrc ~/.bashrc; do [ ! -r "$f" ] || . "$f"; done; gpuprov_end)
(PS1=x BASH_COMPLETION_VERSINFO=1; set -x; [ ! -r /etc/bash.bashrc ] || . /etc/bash.bashrc; gpuprov_end)
set -x; . /etc/profile
for f in ~/.bash_profile ~/.bash_login ~/.profile; do [ -r "$f" ] && {{ . "$f"; break; }}; done
gpuprov_end; command -v nvcc
"""
KINDS = ("commands", "terminals", "logins")
_READ = []  # type: list[Any]
_READING = threading.Lock()
"""Lock of `_READ`: two collectors need the variables of shells, which are read once."""
LIBRARY = re.compile(r"^lib(?:cuda|nvidia-ml|cudnn\w*|nccl|cudart|cublas\w*)\.so")
LIBRARY_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64")
PROGRAM_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
PRELOAD = "/etc/ld.so.preload"
RUNFILE_TRACES = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer", "/usr/local/bin/nvidia-uninstall")


@collector(seconds=15)
def variables(parameters: "Values") -> "Any":
    """Return the requested variables of each kind of process, with the place that sets each.

    {"logins": {"CUDA_HOME": ["/usr/local/cuda", "/etc/profile.d/x.sh:2"]}, "services": …, "users": …,
    "nvcc": [path, place]}; a place is null if no file sets the value. `commands` are those over ssh, `jobs`
    those of cron, and `terminals` have those of bash's file for interactive shells. `unprivileged` has what
    differs from `logins` for a user without privileges; a null value is not set. Secrets are hidden.
    """
    wanted = re.compile(parameters["environment"])
    shells, nvcc = _shells(parameters)
    shown = {"services": _services(), "users": _users(), "jobs": _jobs(), **shells}
    found = {
        whose: {
            name: [blot_value(value, name), place]
            for name, (value, place) in each.items()
            if wanted.match(name)
        }
        for whose, each in shown.items()
    }  # type: Values
    root, other = found["logins"], found["unprivileged"]
    found["unprivileged"] = {
        name: other.get(name) or [None, closed_to_others(root[name][1])]
        for name in sorted({*root, *other})
        if root.get(name, [None])[0] != other.get(name, [None])[0]
    }
    found["nvcc"] = nvcc
    return found


def _pam() -> "dict[str, Place]":
    """Return the variables that PAM sets for a login before any shell."""
    return variables_of(service_of(LOGINS))


def _jobs() -> "dict[str, Place]":
    """Return the variables of jobs at times (cron), which PAM sets; empty without cron."""
    return variables_of(service_of(JOBS))


def _shells(parameters: "Values") -> "tuple[dict[str, Any], list[Any]]":
    """Return the requested variables, LD_* and PATH of root's shells as `_read_shells` does, read once."""
    with _READING:
        if not _READ:
            _READ.append(_read_shells(re.compile(parameters["environment"] + "|LD_|PATH$")))
        return _READ[0]  # type: ignore[no-any-return]


def _read_shells(wanted: "re.Pattern[str]") -> "tuple[dict[str, Any], list[Any]]":
    """Run root's bash with its files; return kind -> variable -> (value, place), and [path of a login's nvcc,
    its place].

    Without bash they are PAM's variables and [None, None].

    Raises:
        Failed: the files end a shell.
    """
    begun = {**_pam(), **of_sshd()}
    if find_program("bash") is None:
        return dict.fromkeys((*KINDS, "unprivileged"), begun), [None, None]
    who = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "TERM": "dumb"}
    stated = {name: value for name, (value, _) in begun.items() if NAME.match(name) and "\0" not in value}
    values = {"PATH": ENVIRONMENT["PATH"], **who, **stated}
    words = ("bash", "--login", "--noprofile", "-c", SHELLS)
    _, out, traces = run_anyway(*words, seconds=10, env=values)
    result, traced = out.split(MARK + "\n"), traces.split(MARK + "\n")
    if len(result) != 7 or len(traced) != 4:
        raise Failed("a shell of root's ends before it has read its files")
    found = {}  # type: dict[str, Any]
    for kind, text, trace in zip(KINDS, result[1::2], traced):
        pairs = (each.partition("=")[::2] for each in text.split("\0") if "=" in each)
        own = [(name, value) for name, value in pairs if wanted.match(name)]
        places = {name: _set_at(trace, name) or begun.get(name, ("", None))[1] for name, _ in own}
        found[kind] = {name: (value, places[name]) for name, value in own}
    given = of_unprivileged(values)
    found["unprivileged"] = found["logins"] if given is None else _placed(given, wanted, found["logins"])
    nvcc = result[6].strip() or None
    folder = os.path.dirname(nvcc or "")
    last = traced[2]
    place = _set_at(last, "PATH", rf"[^\n]*{re.escape(folder)}/?(?:[:'\"]|$)", first=True) if nvcc else None
    return found, [nvcc, place or begun.get("PATH", ("", None))[1]]


def _placed(given: "dict[str, str]", wanted: "re.Pattern[str]", root: "dict[str, Any]") -> "dict[str, Any]":
    """Return the requested variables -> (value, place), which is that of root's login for the same value."""
    named = {name: value for name, value in given.items() if wanted.match(name)}
    return {
        name: root[name] if root.get(name, ("",))[0] == value else (value, None)
        for name, value in named.items()
    }


def _set_at(trace: str, name: str, value: str = "", *, first: bool = False) -> "str | None":
    """Return the last (or first) `path:line` that sets a variable to `value`, by bash's trace, or None.

    A line of the trace is `+gpuprov:/etc/profile.d/x.sh:2: export CUDA_HOME=/opt`.
    """
    pattern = rf"(?m)^\++gpuprov:([^:\n]+):(\d+): (?:[^\n]* )?{re.escape(name)}={value}"
    places = [f"{path}:{number}" for path, number in re.findall(pattern, trace)]
    return (places[0] if first else places[-1]) if places else None


def _services() -> "dict[str, Any]":
    """Return the variables that systemd passes to every service, with the file that sets each.

    They are those of its manager, and of a unit that it loads now: drop-ins for all services can add others.
    """
    given = {}  # type: dict[str, Any]
    if find_program("systemctl") is None:
        return given
    for line in run_anyway("systemctl", "show-environment", seconds=5)[1].splitlines():
        name, equals, value = line.partition("=")
        if equals:
            given[name] = (value.strip("$'\""), "systemctl show-environment")
    for place, line in systemd_lines():
        if re.match(r"(?:Default|Manager)Environment=", line):
            for name in re.findall(r"([A-Za-z_]\w*)=", line.partition("=")[2]):
                if name in given:
                    given[name] = (given[name][0], place)
    given.update(of_services())
    return given


def _users() -> "dict[str, Any]":
    """Return variable -> (value, place) of users' services from environment.d(5).

    The last assignment counts.
    """
    return {
        name: (value, place)
        for path in dropped_in("environment.d")
        for name, value, place in assignments(path)
    }


@collector(seconds=5)
def boot_sysctls(parameters: "Values") -> "Any":
    """Return [place, name, value] of each line that sets a requested sysctl at boot; the last one counts.

    Blanks in a value are single ones; it is "" for a line such as `-kernel.panic`, after which the boot does
    not set the sysctl.
    """
    rows = []  # type: list[list[str]]
    for path in dropped_in("sysctl.d"):
        for place, line in lines_of(path):
            name, equals, value = line.lstrip("-").partition("=")
            name = name.strip()
            if "/" in name.split(".")[0]:  # the first separator determines the meaning of the others
                name = name.translate({ord("."): "/", ord("/"): "."})
            if (equals or line[0] == "-") and name in parameters["sysctls"]:
                rows.append([place, name, " ".join(value.split())])
    return rows


@collector(seconds=20)
def unpackaged(parameters: "Values") -> "Any":
    """Return files of a driver, CUDA or its libraries that were installed without the package manager.

    Of programs nvidia-smi, if PATH leads to another one than that of the system's folders.

    {"driver": ["/usr/bin/nvidia-uninstall"], "toolkits": ["/usr/local/cuda-12.4"],
    "libraries": [["/usr/local/lib/libcuda.so.550.1", "/etc/ld.so.conf.d/000-site.conf:1"]]}; the second of a
    pair is the setting that leads programs there, null for a default folder of the linker.
    """
    everybody = _everybody(parameters)
    driver = [path for path in RUNFILE_TRACES if os.path.exists(path)] + _programs(everybody)
    toolkits = [path for path in sorted(glob.glob("/usr/local/cuda-[0-9]*")) if not os.path.islink(path)]
    libraries = _libraries(everybody)
    owned = _owned([*driver, *toolkits, *libraries], parameters["packages"])
    return {
        "driver": [path for path in driver if path not in owned],
        "toolkits": [path for path in toolkits if path not in owned],
        "libraries": [[path, why] for path, why in sorted(libraries.items()) if path not in owned],
    }


def _programs(everybody: "list[dict[str, Any]]") -> "list[str]":
    """Return the real paths of nvidia-smi, outside `PROGRAM_FOLDERS`, to which PATH of any process leads."""
    found = set()
    for given in everybody:
        folders = given.get("PATH", ("", None))[0].split(":")
        paths = [os.path.join(folder, "nvidia-smi") for folder in folders if folder.startswith("/")]
        path = next((each for each in paths if os.path.isfile(each) and os.access(each, os.X_OK)), "")
        if path and os.path.dirname(path) not in PROGRAM_FOLDERS:
            found.add(os.path.realpath(path))
    return sorted(found)


def _libraries(everybody: "list[dict[str, Any]]") -> "dict[str, str | None]":
    """Return real paths of libraries that programs may load → the setting that leads there, or None.

    They are in the linker's folders, in those of processors' capabilities below (ld.so(8)), and in its cache.
    """
    found = {}  # type: dict[str, str | None]
    cached = run_anyway("ldconfig", "-p", seconds=9)[1] if find_program("ldconfig") else ""
    for path in re.findall(r"(?m)=> (/\S+)$", cached):
        if LIBRARY.match(os.path.basename(path)) and LIBRARY.match(os.path.basename(os.path.realpath(path))):
            found.setdefault(os.path.realpath(path))
    folders = _library_folders(everybody)
    for folder, why in list(folders.items()):
        folders.update((each, why) for each in glob.glob(folder + "/glibc-hwcaps/*"))
    for folder, why in folders.items():
        for name in names_in(folder):
            real = os.path.realpath(folder + "/" + name)
            if LIBRARY.match(name) and LIBRARY.match(os.path.basename(real)) and _has_content(real):
                found[real] = why or found.get(real)
    for place, line in lines_of(PRELOAD):
        found.update({os.path.realpath(path): place for path in re.split(r"[\s:]+", line) if path})
    found.update({os.path.realpath(path): why for path, why in _stated("LD_PRELOAD", everybody)})
    return {path: why for path, why in found.items() if _has_content(path)}


def _library_folders(everybody: "list[dict[str, Any]]") -> "dict[str, str | None]":
    """Return folders of libraries → the setting that adds each; None for a default folder of the linker."""
    folders = {}  # type: dict[str, str | None]
    for pattern in LIBRARY_FOLDERS:
        folders.update(dict.fromkeys(glob.glob(pattern)))
    for path in ["/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))]:
        for place, line in lines_of(path):
            if line.startswith("/"):
                folders.setdefault(line.split("=")[0].rstrip("/"), place)
    for path, why in _stated("LD_LIBRARY_PATH", everybody):
        folders[path.rstrip("/")] = why
    return folders


def _stated(name: str, everybody: "list[dict[str, Any]]") -> "Iterator[Place]":
    """Yield the absolute paths in a variable of any kind of process, each with `NAME in PLACE`."""
    for given in everybody:
        value, place = given.get(name, ("", None))
        for path in re.split(r"[\s:]+", value):
            if path.startswith("/"):
                yield path, f"{name} in {place or 'the environment of logins'}"


def _everybody(parameters: "Values") -> "list[dict[str, Any]]":
    """Return variable -> (value, place) of each kind of process; without shells if these cannot be read."""
    everybody = [_pam(), _services(), _users(), _jobs()]
    with suppress(Failed):  # the collector of variables reports it
        everybody = [*_shells(parameters)[0].values(), *everybody]
    return everybody


def _has_content(path: str) -> bool:
    """Return whether it is a regular file that is not empty; an empty one cannot be loaded."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _owned(paths: "list[str]", packages: "list[str]") -> "set[str]":
    """Return the paths that belong to a package, under either name if /lib is a link to /usr/lib; by dpkg, or
    rpm without it.

    Empty without paths. Of dpkg's lists those of `packages` are read first: they usually have all.
    """
    if not paths:
        return set()
    if not has_dpkg():
        return {path for path in paths if run_anyway("rpm", "-qf", path)[0] == 0}
    names = {each: path for path in paths for each in _names_of(path)}
    owned = {names[path] for path in gpuprov_package_files.in_lists(names, packages)}
    others = [name for name, path in names.items() if path not in owned]
    out = run_anyway("dpkg-query", "-S", *others, seconds=15)[1] if others else ""
    rows = (line.rpartition(": ") for line in out.splitlines() if not line.startswith("diversion by "))
    return owned | {names[path] for _, _, path in rows if path in names}


def _names_of(path: str) -> "list[str]":
    """Return a path under /lib or /usr/lib with and without /usr; any other path alone in a list."""
    bare = path[len("/usr") :] if path.startswith("/usr/lib") else "/usr" + path
    return [path, bare] if re.match(r"(?:/usr)?/lib", path) else [path]


@collector(seconds=30)
def offers(parameters: "Values") -> "Any":
    """Return sources other than the distribution's and the lock's that offer packages of the lock.

    Rows are those of `gpuprov_sources.offers`, or of `gpuprov_repos.offers` without apt; [] without dnf too.
    """
    if find_program("apt-get") is None:
        own = parameters["repositories"]
        return gpuprov_repos.offers(own, parameters["held"]) if find_program("dnf") else []
    return gpuprov_sources.offers(parameters["repositories"], parameters["packages"])
