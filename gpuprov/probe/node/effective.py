"""Collectors of effective values of any origin: variables, libraries, package sources, sysctls."""

import glob
import os
import re
from contextlib import suppress

import gpuprov_sources

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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

    Place = tuple[str, str]

ASSIGNMENT = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)")
MARK = "gpuprov-end-of-login-files"
# bash does not accept PS4 from root's environment, so the login files are read one by one. For their names
# and order see bash(1), "Invocation".
LOGIN = f"""
PS4='+gpuprov:$BASH_SOURCE:$LINENO: '; set -x; . /etc/profile
for f in ~/.bash_profile ~/.bash_login ~/.profile; do [ -r "$f" ] && {{ . "$f"; break; }}; done
{{ set +x; }} 2>/dev/null; printf '\\n{MARK}\\n'; command -v nvcc; printf '{MARK}\\n'; env -0
"""
LIBRARY = re.compile(r"^lib(?:cuda|nvidia-ml|cudnn\w*|nccl|cudart|cublas\w*)\.so")
LIBRARY_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64")
RUNFILE_TRACES = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer", "/usr/local/bin/nvidia-uninstall")


def assignments(path: str) -> "Iterator[tuple[str, str, str]]":
    """Yield name, value without quotes, and `path:line` of the variables that a file sets or exports."""
    for place, line in lines_of(path):
        found = ASSIGNMENT.match(line)
        if found:
            yield found.group(1), found.group(2).strip().strip("\"'"), place


@collector(seconds=15)
def variables(parameters: "Values") -> "Any":
    """Return the requested variables of logins, services and users' services, with the place that sets each.

    {"logins": {"CUDA_HOME": ["/usr/local/cuda", "/etc/profile.d/x.sh:2"]}, "services": …, "users": …, "nvcc":
    [path, place]}; a place is null if no file sets the value. Secrets are hidden.
    """
    wanted = re.compile(parameters["environment"])
    logins, nvcc = _logins(wanted)
    shown = {"logins": logins, "services": _services(), "users": _users()}
    found = {
        whose: {
            name: [blot_value(value, name), place]
            for name, (value, place) in each.items()
            if wanted.match(name)
        }
        for whose, each in shown.items()
    }  # type: Values
    found["nvcc"] = nvcc
    return found


def _pam() -> "dict[str, Place]":
    """Return the variables that PAM sets before any shell: pam_env.conf(5), then /etc/environment."""
    found = {}
    for place, line in lines_of("/etc/security/pam_env.conf"):
        values = dict(re.findall(r"\b(DEFAULT|OVERRIDE)=(\"[^\"]*\"|\S*)", line))
        value = (values.get("OVERRIDE") or values.get("DEFAULT") or "").strip('"')
        if value:
            found[line.split()[0]] = (value, place)
    found.update({name: (value, place) for name, value, place in assignments("/etc/environment")})
    return found


def _logins(wanted: "re.Pattern[str]") -> "tuple[dict[str, Any], list[Any]]":
    """Return variable -> (value, place) of root's login with bash, and [path of its nvcc, place in PATH].

    Without bash they are PAM's variables and [None, None].

    Raises:
        Failed: the login's files end the shell.
    """
    begun = _pam()
    found = {name: (value, place) for name, (value, place) in begun.items()}  # type: dict[str, Any]
    if find_program("bash") is None:
        return found, [None, None]
    who = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "TERM": "dumb"}
    words = [f"{name}={value}" for name, (value, _) in begun.items()]
    path = begun.get("PATH", (ENVIRONMENT["PATH"], ""))[0]
    started = ["env", "-i", "PATH=" + path, *(f"{name}={value}" for name, value in who.items()), *words]
    _, out, trace = run_anyway(*started, "bash", "--login", "--noprofile", "-c", LOGIN, seconds=10)
    told = out.split(MARK + "\n")
    if len(told) != 3:
        raise Failed("a login of root's ends before its shell has read /etc/profile")
    told_variables = dict(each.partition("=")[::2] for each in told[2].split("\0") if "=" in each)
    for name, value in told_variables.items():
        if wanted.match(name):
            found[name] = (value, _set_at(trace, name) or begun.get(name, ("", None))[1])
    nvcc = told[1].strip() or None
    folder = os.path.dirname(nvcc or "")
    place = _set_at(trace, "PATH", rf"[^\n]*{re.escape(folder)}/?(?:[:'\"]|$)", first=True) if nvcc else None
    return found, [nvcc, place or begun.get("PATH", ("", None))[1]]


def _set_at(trace: str, name: str, value: str = "", *, first: bool = False) -> "str | None":
    """Return the last (or first) `path:line` that sets a variable to `value`, by bash's trace, or None.

    A line of the trace is `+gpuprov:/etc/profile.d/x.sh:2: export CUDA_HOME=/opt`.
    """
    pattern = rf"(?m)^\++gpuprov:([^:\n]+):(\d+): (?:[^\n]* )?{name}={value}"
    places = [f"{path}:{number}" for path, number in re.findall(pattern, trace)]
    return (places[0] if first else places[-1]) if places else None


def _services() -> "dict[str, Any]":
    """Return the variables that systemd passes to every service, with the file that sets each."""
    given = {}  # type: dict[str, Any]
    shown = run_anyway("systemctl", "show-environment", seconds=5)[1] if find_program("systemctl") else ""
    for line in shown.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            given[name] = (value.strip("$'\""), "systemctl show-environment")
    for place, line in systemd_lines():
        if re.match(r"(?:Default|Manager)Environment=", line):
            for name in re.findall(r"([A-Za-z_]\w*)=", line.partition("=")[2]):
                if name in given:
                    given[name] = (given[name][0], place)
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
    """Return [place, name, value] of each line that sets a requested sysctl at boot; the last one counts."""
    rows = []
    for path in dropped_in("sysctl.d"):
        for place, line in lines_of(path):
            name, equals, value = line.lstrip("-").partition("=")
            name = name.strip()
            if "/" in name.split(".")[0]:  # the first separator determines the meaning of the others
                name = name.translate({ord("."): "/", ord("/"): "."})
            if equals and name in parameters["sysctls"]:
                rows.append([place, name, " ".join(value.split())])
    return rows


@collector(seconds=20)
def unpackaged(parameters: "Values") -> "Any":
    """Return files of a driver, CUDA or its libraries that were installed without the package manager.

    {"driver": ["/usr/bin/nvidia-uninstall"], "toolkits": ["/usr/local/cuda-12.4"],
    "libraries": [["/usr/local/lib/libcuda.so.550.1", "/etc/ld.so.conf.d/000-site.conf:1"]]}; the second of a
    pair is the setting that leads programs there, null for a default folder of the linker.
    """
    driver = [path for path in RUNFILE_TRACES if os.path.exists(path)]
    toolkits = [path for path in sorted(glob.glob("/usr/local/cuda-[0-9]*")) if not os.path.islink(path)]
    libraries = _libraries()
    owned = _owned([*driver, *toolkits, *libraries])
    return {
        "driver": [path for path in driver if path not in owned],
        "toolkits": [path for path in toolkits if path not in owned],
        "libraries": [[path, why] for path, why in sorted(libraries.items()) if path not in owned],
    }


def _libraries() -> "dict[str, str | None]":
    """Return real paths of libraries that programs may load → the setting that leads there, or None."""
    found = {}  # type: dict[str, str | None]
    for folder, why in _library_folders().items():
        for name in names_in(folder):
            real = os.path.realpath(folder + "/" + name)
            if LIBRARY.match(name) and LIBRARY.match(os.path.basename(real)) and _says_something(real):
                found[real] = why or found.get(real)
    for place, line in lines_of("/etc/ld.so.preload"):
        found.update({os.path.realpath(path): place for path in re.split(r"[\s:]+", line) if path})
    return found


def _library_folders() -> "dict[str, str | None]":
    """Return folders of libraries → the setting that adds each; None for a default folder of the linker."""
    folders = {}  # type: dict[str, str | None]
    for pattern in LIBRARY_FOLDERS:
        folders.update(dict.fromkeys(glob.glob(pattern)))
    for path in ["/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))]:
        for place, line in lines_of(path):
            if line.startswith("/"):
                folders.setdefault(line.split("=")[0].rstrip("/"), place)
    everybody = [_pam(), _services(), _users()]
    with suppress(Failed):  # the collector of variables reports it
        everybody.insert(0, _logins(re.compile(r"LD_LIBRARY_PATH\Z"))[0])
    for given in everybody:
        value, place = given.get("LD_LIBRARY_PATH", ("", None))
        for folder in value.split(":"):
            if folder.startswith("/"):
                folders[folder.rstrip("/")] = f"LD_LIBRARY_PATH in {place or 'the environment of logins'}"
    return folders


def _says_something(path: str) -> bool:
    """Return whether it is a regular file that is not empty; an empty one cannot be loaded."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _owned(paths: "list[str]") -> "set[str]":
    """Return the paths that belong to a package, under either name if /lib is a link to /usr/lib."""
    if not paths:
        return set()
    if find_program("dpkg-query") is None:
        return {path for path in paths if run_anyway("rpm", "-qf", path)[0] == 0}
    names = {each: path for path in paths for each in _names_of(path)}
    out = run_anyway("dpkg-query", "-S", *names, seconds=15)[1]
    rows = (line.rpartition(": ") for line in out.splitlines() if not line.startswith("diversion by "))
    return {names[path] for _, _, path in rows if path in names}


def _names_of(path: str) -> "list[str]":
    """Return a path under /lib or /usr/lib with and without /usr; any other path alone in a list."""
    bare = path[len("/usr") :] if path.startswith("/usr/lib") else "/usr" + path
    return [path, bare] if re.match(r"(?:/usr)?/lib", path) else [path]


@collector(seconds=30)
def offers(parameters: "Values") -> "Any":
    """Return sources other than the distribution's and the lock's that offer packages of the lock.

    [] without apt. Rows are those of `gpuprov_sources.offers`.
    """
    if find_program("apt-get") is None:
        return []
    return gpuprov_sources.offers(parameters["repositories"], parameters["packages"])
