"""`host.containers`: Docker's daemon, containerd, and a test container.

testinfra's own `host.docker` knows one container by name; this module is about the defaults of all
containers.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, NamedTuple

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.parsing import read_object, read_toml, whole_number
from gpuprov.verify.connection import TimeLimits
from gpuprov.verify.observers.base import Observed

IMAGE = "gpuprov-verify"
"""Name of the image that `TRIAL` makes and removes, and of its container."""
# A shell and its libraries make an image: no registry is needed, and nothing remains.
SHELL = 'cd / && tar -ch /bin/sh /bin/df $(ldd /bin/sh /bin/df | grep -o "/[^ ]* " | sort -u) 2>/dev/null'
SAYS = (
    "echo memlock $(ulimit -l); echo stack $(ulimit -s); echo gpus /dev/nvidia[0-9]*;"
    " echo controls /dev/nvidiactl* /dev/nvidia-uvm*;"
    " echo libraries /usr/lib/*/libnvidia-ml.so.[0-9]*.* /usr/lib64/libnvidia-ml.so.[0-9]*.*; df -k /dev/shm"
)
CONTROLS = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device nodes that programs with CUDA need besides those of GPUs."""
LIMITED = "timeout --signal=KILL"
TRIAL_S = int(TimeLimits.command_s) - 5
"""Seconds after which the node itself ends a trial: before the limit of the command, which ends only ssh."""
KILLED = 128 + 9
"""Exit status of a trial that its time limit has ended, and with it `timeout`."""
# The container belongs to the daemon: the end of `docker run` does not end it.
TRIAL = (
    f"{LIMITED} {TRIAL_S} sh -c '{SHELL} | docker import - {IMAGE} >/dev/null"
    f" && docker run --rm --name {IMAGE} --network none %s {IMAGE} /bin/sh -c \"$1\"' sh '{SAYS}'; code=$?;"
    f" {{ [ $code = 0 ] || {LIMITED} 2 docker rm --force {IMAGE};"
    f" {LIMITED} 2 docker image rm --force {IMAGE}; }} >/dev/null 2>&1; exit $code"
)
TOOLKIT = "cat /etc/nvidia-container-runtime/config.toml"
DEFAULTS = "nvidia-ctk config default"
DEVICES = "nvidia-ctk cdi list"
# Lines `FILE missing PATH`, `FILE version VERSION` and `FILE private -`.
SPECIFICATIONS = (
    "for f in $(find -L /etc/cdi /var/run/cdi -maxdepth 1 -type f"
    " '(' -name '*.yaml' -o -name '*.yml' -o -name '*.json' ')' -exec grep -ls nvidia.com/ '{}' + 2>/dev/null"
    " | sort); do"
    " tr -d '\"'\"'\" <$f | grep -oE '(hostPath|(^|[^A-Za-z])path) *: */[^ ,}]*' | grep -o '/.*' | sort -u"
    ' | while read -r p; do [ -e "$p" ] || echo "$f missing $p"; done | head -n 3;'
    " grep -oE '/lib(cuda|nvidia-ml)[.]so([.][0-9]+){2,3}' $f | sed 's/.*[.]so[.]//' | sort -u | head -n 3"
    ' | sed "s#^#$f version #"; find -L $f -maxdepth 0 ! -perm -004 -printf "$f private -\\n"; done'
)
JSON_BYTES = 1 << 20
"""Maximum size of Docker's JSON; `docker info` prints a few kB."""
NOTHING, HOOK, CDI = "", "--gpus all", "--device nvidia.com/gpu=all"
"""Options of a container: none, GPUs by the toolkit's hook, GPUs by the Container Device Interface."""


class Inside(NamedTuple):
    """Limits inside a container in bytes or "unlimited", and the paths of the GPUs' device nodes."""

    shm: int
    memlock: int | str
    stack: int | str
    gpus: list[str]
    driver: str
    """Versions of the driver's library libnvidia-ml, with a note about each missing one of `CONTROLS`."""


class Containers(Observed):
    """Observer of Docker and containerd.

    >>> host.containers.info["CgroupDriver"]
    'systemd'
    >>> host.containers.inside(HOOK).gpus
    ['/dev/nvidia0', '/dev/nvidia1']
    """

    @cached_property
    def daemon_config(self) -> dict[str, Any]:
        """The content of /etc/docker/daemon.json; empty if it does not exist or cannot be read.

        Raises:
            ValueError: it is not a JSON object, or larger than `JSON_BYTES`.
        """
        text = self.run("cat /etc/docker/daemon.json").stdout
        return read_object(text, JSON_BYTES) if text.strip() else {}

    @cached_property
    def info(self) -> dict[str, Any]:
        """The running Docker daemon's information, as `docker info` prints it in JSON.

        Raises:
            NodeFailed: it does not answer.
            ValueError: its answer is not a JSON object, or larger than `JSON_BYTES`.
        """
        info = read_object(self.ask("docker info --format '{{json .}}'"), JSON_BYTES)
        if errors := info.get("ServerErrors"):  # the command succeeds, and all values are empty
            raise NodeFailed(f"`docker info` has no answer of the daemon: {errors}")
        return info

    @cached_property
    def containerd_config(self) -> dict[str, Any]:
        """containerd's complete configuration, as it parses its files.

        Raises:
            NodeFailed: it cannot read them.
            ValueError: its output is too large, or not TOML.
        """
        return read_toml(self.ask("containerd config dump"))

    @cached_property
    def containerd_plugins(self) -> dict[str, str]:
        """Plugins of the running containerd: name, such as `cri`, → state: `ok`, `error`, `skip`.

        Of plugins with the same name and different types the last one counts.

        Raises:
            NodeFailed: it does not answer.
        """
        rows = [line.split() for line in self.ask("ctr --connect-timeout 2s plugins list").splitlines()[1:]]
        return {row[1]: row[-1] for row in rows if len(row) > 1}

    @cached_property
    def toolkit(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The container toolkit's configuration, and the one that it has by default, as documents.

        A missing file, or a failure of nvidia-ctk, is an empty document.

        Raises:
            ValueError: one is too large, or not TOML.
        """
        default = self.run(DEFAULTS)
        texts = self.run(TOOLKIT).stdout, default.stdout if default.succeeded else ""
        config, shipped = map(read_toml, texts)
        return config, shipped

    def unfit_specifications(self, driver: str) -> list[str]:
        """Return a sentence for each missing path in CDI specifications, and for each other driver version.

        Also for each file that users cannot read. At most three paths and three versions of a file are
        returned. Empty without specifications of NVIDIA.

        Args:
            driver: version of the driver.
        """
        words = {
            "missing": "{} names {}, which does not exist",
            "version": "{} is for driver {}",
            "private": "{} is not readable for users",
        }
        found = re.findall(r"(?m)^(\S+) (missing|version|private) (\S+)$", self.run(SPECIFICATIONS).stdout)
        return [words[what].format(path, value) for path, what, value in found if value != driver]

    @property
    def devices(self) -> int:
        """Number of GPUs with a CDI device that the toolkit knows; 0 without the device for all of them.

        The devices of a GPU in MIG mode are named after it: `nvidia.com/gpu=0:1`.

        Raises:
            NodeFailed: the toolkit does not list them.
        """
        names = re.findall(r"(?m)^nvidia\.com/gpu=(all|\d+)(?::\d+)?$", self.ask(DEVICES))
        return len({*names} - {"all"}) if "all" in names else 0

    def inside(self, asks: str = NOTHING) -> Inside:
        """Return limits and GPUs inside a container that is started, and removed with its image.

        Args:
            asks: how the container gets GPUs: `NOTHING`, `HOOK` or `CDI`.

        Raises:
            NodeFailed: it does not start, with the message of Docker or its runtime; it has not ended within
                `TRIAL_S`; or it prints no limits.
        """
        answer = self.run(TRIAL % asks)
        if answer.rc == KILLED:
            raise not_ended("docker run")
        if answer.failed:
            raise NodeFailed(docker_error(answer.stderr) or f"the container ended with status {answer.rc}")
        return parse_inside(answer.stdout)

    def __repr__(self) -> str:
        return "<containers>"


def not_ended(command: str) -> NodeFailed:
    """Return the error of a trial that the node has ended, with a command that shows the cause."""
    return NodeFailed(
        f"the container has not ended within {TRIAL_S} s; see `{command}` with an image on the node"
    )


def docker_error(said: str) -> str:
    """Return Docker's error output as one line, without advice such as `See 'docker run --help'.`"""
    lines = (line.strip() for line in said.splitlines())
    return " ".join(line for line in lines if line and not _ADVICE.match(line))


_ADVICE = re.compile(r"(?:See|Run) 'docker .*--help'")


def parse_inside(text: str) -> Inside:
    """Parse the output of the container's shell and df, whose sizes are in KiB.

    Without /dev/shm its size is 0.

    Raises:
        NodeFailed: a value is missing.
    """
    said = dict(re.findall(r"^(memlock|stack|gpus|controls|libraries) (.*)$", text, re.MULTILINE))
    size = re.search(r"^\S+ +(\d{1,18}) .*/dev/shm$", text, re.MULTILINE)
    if unsaid := {"memlock", "stack", "gpus", "controls", "libraries"} - set(said):
        raise NodeFailed(f"the container did not report {', '.join(sorted(unsaid))}: {text[:200]!r}")
    gpus, controls, libraries = (
        [path for path in said[name].split() if not path.endswith("*")]
        for name in ("gpus", "controls", "libraries")
    )
    missing = [f"no {path}" for path in CONTROLS if path not in controls]
    versions = sorted({path.rpartition(".so.")[2] for path in libraries}) or ["no library"]
    shm, driver = int(size[1]) * 1024 if size else 0, ", ".join([*versions, *missing])
    return Inside(shm, _bytes(said["memlock"]), _bytes(said["stack"]), gpus, driver)


def _bytes(limit: str) -> int | str:
    """Return a limit in KiB as bytes; other text, such as `unlimited`, unchanged."""
    number = whole_number(limit)
    return limit if number is None else number * 1024
