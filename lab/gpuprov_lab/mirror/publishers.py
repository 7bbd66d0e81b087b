"""Stub packages of the repositories of other publishers: Docker, AppStream and EPEL.

Units have the names and the start commands of Docker's and the RHEL family's packages; their programs start
Debian's, on a node that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuprov_lab.mirror.specs import PackageSpec

SYSTEM, RELEASE = "rhel9", "9"
"""The played system's id in the catalog, and its release in addresses."""
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


def docker_repository() -> list[PackageSpec]:
    """Return Docker's own packages, in two releases."""
    found = []
    for release, containerd in (("28.5.2", "1.7.28"), ("29.5.3", "2.2.1")):
        units = {f"{UNITS}/docker.service": DOCKER_UNIT, f"{UNITS}/docker.socket": DOCKER_SOCKET}
        needs = f"docker-ce-cli, containerd.io (>= {containerd}), container-selinux, iptables"
        found += [
            with_units(
                stub(
                    "docker-ce",
                    f"3:{release}-1.el9",
                    ("usr/bin/dockerd",),
                    units,
                    needs,
                    "groupadd -f -r docker\n",
                )
            ),
            stub("docker-ce-cli", f"1:{release}-1.el9", ("usr/bin/docker",)),
            with_units(
                stub(
                    "containerd.io",
                    f"{containerd}-1.el9",
                    ("usr/bin/containerd", "usr/bin/ctr"),
                    {f"{UNITS}/containerd.service": CONTAINERD_UNIT},
                    needs="container-selinux",
                )
            ),
        ]
    return found


def appstream() -> list[PackageSpec]:
    """Return packages of the distribution that a lock names with a version."""
    podman = [
        stub("podman", f"6:{release}.el9_6", ("usr/bin/podman",), needs="container-selinux, iptables")
        for release in ("5.4.0-9", "5.4.0-12")
    ]
    perf = [stub("perf", f"5.14.0-570.{patch}.1.el9_6") for patch in ("12", "21")]
    return [*podman, *perf, stub("sysstat", "12.5.4-9.el9")]


def epel() -> list[PackageSpec]:
    """Return packages of EPEL that a lock names with a version."""
    files = {f"{UNITS}/prometheus-node-exporter.service": EXPORTER_UNIT}
    text = WRAPPER.format(hidden=HIDDEN, name="prometheus-node-exporter")
    files |= {"usr/bin/node_exporter": text}
    return [with_units(stub("golang-github-prometheus-node-exporter", "1.9.1-1.el9", (), files))]


REPOSITORIES: dict[str, tuple[str, Callable[[], list[PackageSpec]]]] = {
    "docker-ce": ("linux/centos/{release}/{arch}/stable", docker_repository),
    "appstream": ("{release}/AppStream/{arch}/os", appstream),
    "epel": ("epel/{release}/Everything/{arch}", epel),
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
