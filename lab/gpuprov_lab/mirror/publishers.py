"""Stub packages of the repositories of other publishers: Docker, AppStream, EPEL and Amazon.

Units have the names and the start commands of Docker's and the RHEL family's packages; their programs start
Debian's, on a node that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuprov_lab.mirror.specs import PackageSpec
from gpuprov_lab.releases import Release

HIDDEN = "usr/lib/gpuprov-lab/debian"
"""Folder of Debian's package manager, and of programs that only stub packages bring into PATH."""
UNITS = "usr/lib/systemd/system"
WRAPPER = '#!/bin/sh\nexec /{hidden}/bin/{name} "$@"\n'

DOCKER_UNIT = """\
[Unit]
Description=Docker Application Container Engine
After=network-online.target docker.socket firewalld.service containerd.service
Wants=network-online.target containerd.service
Requires=docker.socket

[Service]
Type=notify
ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock
ExecReload=/bin/kill -s HUP $MAINPID
TimeoutStartSec=0
RestartSec=2
Restart=always
Delegate=yes
KillMode=process

[Install]
WantedBy=multi-user.target
"""
DOCKER_SOCKET = """\
[Unit]
Description=Docker Socket for the API

[Socket]
ListenStream=/run/docker.sock
SocketMode=0660
SocketUser=root
SocketGroup=docker

[Install]
WantedBy=sockets.target
"""
CONTAINERD_UNIT = """\
[Unit]
Description=containerd container runtime
After=network.target

[Service]
ExecStart=/usr/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
"""
EXPORTER = "golang-github-prometheus-node-exporter"
OPTIONS = """\
# Additional startup options for the Docker daemon.
OPTIONS="--default-ulimit nofile=1024:4096"
"""
"""/etc/sysconfig/docker of Amazon Linux, with lower numbers: programs of a lab node cannot raise limits."""
EXPORTER_UNIT = """\
[Unit]
Description=Prometheus exporter for machine metrics

[Service]
User=nobody
ExecStart=/usr/bin/node_exporter
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""

STOPPED = """\
if [ $1 -eq 0 ]; then systemctl --no-reload disable --now {units} || :; fi
"""
"""Script before a package with units is removed, as RPM's macro %systemd_preun."""
RESTARTED = """\
systemctl daemon-reload || :
if [ $1 -ge 1 ]; then systemctl try-restart {units} || :; fi
"""
"""Script after its former release is removed, as %systemd_postun_with_restart."""


def docker_repository(release: Release) -> list[PackageSpec]:
    """Return Docker's own packages, in two versions; none for a release with a Docker of its own."""
    if "docker" in release.versions:
        return []
    found = []
    for docker, containerd in (("28.5.2", "1.7.28"), ("29.5.3", "2.2.1")):
        needs = f"docker-ce-cli, containerd.io (>= {containerd}), container-selinux, iptables"
        found += [
            _docker("docker-ce", f"3:{docker}-1.{release.dist}", ("usr/bin/dockerd",), needs),
            stub("docker-ce-cli", f"1:{docker}-1.{release.dist}", ("usr/bin/docker",)),
            _containerd("containerd.io", f"{containerd}-1.{release.dist}", needs="container-selinux"),
        ]
    return found


def _docker(
    name: str, version: str, programs: tuple[str, ...], needs: str, unit: str = DOCKER_UNIT, **files: str
) -> PackageSpec:
    """Return a package of Docker with its units; `files` are below /etc/sysconfig."""
    texts = {f"{UNITS}/docker.service": unit, f"{UNITS}/docker.socket": DOCKER_SOCKET}
    texts |= {f"etc/sysconfig/{each}": text for each, text in files.items()}
    return with_units(stub(name, version, programs, texts, needs, "groupadd -f -r docker\n"))


def _containerd(name: str, version: str, needs: str) -> PackageSpec:
    """Return a package of containerd with its unit."""
    unit = {f"{UNITS}/containerd.service": CONTAINERD_UNIT}
    return with_units(stub(name, version, ("usr/bin/containerd", "usr/bin/ctr"), unit, needs))


def amazonlinux(release: Release) -> list[PackageSpec]:
    """Return packages of Amazon Linux that a lock names with a version; none for other releases."""
    if "docker" not in release.versions:
        return []
    unit = DOCKER_UNIT.replace(".sock\n", ".sock $OPTIONS\n", 1)
    unit = unit.replace("Type=notify\n", "Type=notify\nEnvironmentFile=-/etc/sysconfig/docker\n", 1)
    programs = ("usr/bin/dockerd", "usr/bin/docker")
    needs = "containerd, iptables, runc"
    found = [
        _docker("docker", each, programs, needs, unit, docker=OPTIONS) for each in release.versions["docker"]
    ]
    found += [_containerd("containerd", each, needs="runc") for each in release.versions["containerd"]]
    return [
        *found,
        *(stub(name, each) for name in ("runc", "sysstat") for each in release.versions[name]),
    ]


def appstream(release: Release) -> list[PackageSpec]:
    """Return packages of the RHEL family that a lock names with a version; none for other releases."""
    if "podman" not in release.versions:
        return []
    needs = "container-selinux, iptables"
    podman = [stub("podman", each, ("usr/bin/podman",), needs=needs) for each in release.versions["podman"]]
    return [*podman, *(stub(name, each) for name in ("perf", "sysstat") for each in release.versions[name])]


def epel(release: Release) -> list[PackageSpec]:
    """Return packages of EPEL that a lock names with a version; none for a release that it does not serve."""
    if EXPORTER not in release.versions:
        return []
    files = {f"{UNITS}/prometheus-node-exporter.service": EXPORTER_UNIT}
    text = WRAPPER.format(hidden=HIDDEN, name="prometheus-node-exporter")
    files |= {"usr/bin/node_exporter": text}
    return [with_units(stub(EXPORTER, release.oldest(EXPORTER), (), files))]


REPOSITORIES: dict[str, tuple[str, Callable[[Release], list[PackageSpec]]]] = {
    "docker-ce": ("linux/centos/{release}/{arch}/stable", docker_repository),
    "appstream": ("{release}/AppStream/{arch}/os", appstream),
    "epel": ("epel/{release}/Everything/{arch}", epel),
    "amazonlinux": ("amazonlinux/{release}/{arch}/os", amazonlinux),
}
"""Id in the catalog → place below a mirror's root, and its packages."""


def stub(
    name: str,
    version: str,
    programs: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
    needs: str = "",
    before: str = "",
) -> PackageSpec:
    """Return a stub package for x86_64.

    Args:
        programs: paths of wrappers around Debian's programs of these names.
        files: path → content of further files.
        needs: packages that it requires, in Debian's form.
        before: script that runs before the installation.
    """
    texts = {path: WRAPPER.format(hidden=HIDDEN, name=path.rpartition("/")[2]) for path in programs}
    texts.update(files or {})
    return PackageSpec(
        name,
        version,
        "x86_64",
        relations={"Depends": needs} if needs else {},
        files={path: text.encode() for path, text in texts.items()},
        scripts={"prein": before} if before else {},
    )


def with_units(spec: PackageSpec) -> PackageSpec:
    """Return a package whose scripts stop and restart the units among its files."""
    paths = [path for path in spec.files if path.startswith(f"{UNITS}/")]
    units = " ".join(path.rpartition("/")[2] for path in paths)
    scripts = {"preun": STOPPED.format(units=units), "postun": RESTARTED.format(units=units)}
    return replace(spec, scripts={**spec.scripts, **scripts})
