"""Rules for GPUs in containers: the toolkit, the runtime, CDI, device rules that a reload removes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor import packaging
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.untrusted import shell

KEEP = "stack.docker with stack.container_toolkit: VERSION"
CONFIGURE = (
    shell("sudo nvidia-ctk runtime configure --runtime=docker"),
    shell("sudo systemctl restart docker"),
)
SMALL_SHM = 64 * 1024 * 1024


def has_docker(seen: Examination) -> bool:
    """Return whether Docker is installed and its service is active."""
    if not seen.raw("container_state")["docker_path"]:
        return False
    unit = seen.units.get("docker.service")
    return bool(unit and unit.active)


def _toolkit(seen: Examination) -> str | None:
    """Return the version of the installed package of the NVIDIA Container Toolkit, or None."""
    return seen.packages.version("nvidia-container-toolkit")


@rule("containers.toolkit", "D50", source="docker-1034 docker-1642")
def no_toolkit(seen: Examination) -> Iterator[Fault]:
    """Report that Docker runs on a machine with GPUs without the NVIDIA Container Toolkit: neither its
    package nor its programs are installed.
    """
    if not seen.has_gpus or not has_docker(seen):
        return
    raw = seen.raw("container_state")
    if not _toolkit(seen) and not raw["hook"] and not raw["runtime"]:
        yield Fault(
            "risk",
            "Docker runs, and the NVIDIA Container Toolkit is not installed: --gpus fails",
            ("package nvidia-container-toolkit: not installed", "nvidia-container-runtime-hook: not in PATH"),
            'docker answers: could not select device driver "" with capabilities: [[gpu]]',
            (
                packaging.install(seen, "nvidia-container-toolkit"),
                shell("it is in NVIDIA's repository libnvidia-container, if no other has it"),
                *CONFIGURE,
            ),
            KEEP,
        )


@rule("containers.snap", "D50", source="docker-1642")
def snap(seen: Examination) -> Iterator[Fault]:
    """Report, on a machine with GPUs, Docker from a snap, which cannot access the host's libraries."""
    raw = seen.raw("container_state")
    if seen.has_gpus and (
        raw["docker_path"].startswith("/snap")
        or raw["docker_path"].endswith("/snap")
        or seen.raw("gpu_tools")["snap_docker"]
    ):
        yield Fault(
            "degraded",
            "Docker comes from a snap, which sees neither the host's driver nor the toolkit",
            (f"docker: {raw['docker_path'] or '/snap/bin/docker'}",),
            "a snap is confined",
            (shell("sudo snap remove docker"), shell("sudo apt install docker.io")),
            KEEP,
        )


@rule("containers.daemon_json", "D51", source="docker-daemon", health={"broken": "watch"})
def unreadable_configuration(seen: Examination) -> Iterator[Fault]:
    """Report a daemon.json that is no JSON object: Docker does not start with it, and a running one has not
    read it.
    """
    wrong = seen.missing.get("daemon_json", "")
    if "is not JSON" not in wrong or not seen.raw("container_state")["docker_path"]:
        return
    runs = has_docker(seen)
    yield Fault(
        "risk" if runs else "broken",
        f"Docker {'will not start again' if runs else 'does not start'}: /etc/docker/daemon.json is not JSON",
        (wrong,),
        "dockerd answers: unable to configure the Docker daemon with file /etc/docker/daemon.json",
        (shell("python3 -I -m json.tool /etc/docker/daemon.json"), shell("sudo systemctl restart docker")),
        KEEP,
    )


@rule("containers.runtime", "D51", source="op-trouble", after=("containers.toolkit",))
def runtime_not_registered(seen: Examination) -> Iterator[Fault]:
    """Report that a running Docker does not know the runtime of an installed toolkit; not if CDI is in use
    instead. Degraded if daemon.json names it, else a risk.
    """
    if not seen.has_gpus or not has_docker(seen) or not _toolkit(seen):
        return
    raw = seen.raw("container_state")
    stated = "nvidia" in ((seen.daemon_json or {}).get("runtimes") or {})
    info = raw["docker_info"]
    known = None if info is None else '"nvidia"' in info
    cdi = ((seen.daemon_json or {}).get("features") or {}).get("cdi") and raw["cdi"]
    if known or (known is None and stated) or (cdi and not stated):
        return
    yield Fault(
        "degraded" if stated else "risk",
        "Docker does not know the runtime nvidia"
        + (": daemon.json names it, and the daemon was not restarted since" if stated else ""),
        (
            f"/etc/docker/daemon.json: runtimes {'with' if stated else 'without'} nvidia",
            *([f"docker info: {info[:160]}"] if info else []),
        ),
        "--runtime=nvidia answers: unknown or invalid runtime name",
        (shell("sudo systemctl restart docker"),) if stated else CONFIGURE,
        KEEP,
    )


@rule("containers.missing_runtime", "D51", source="op-trouble", health={"broken": "watch"})
def runtime_without_program(seen: Examination) -> Iterator[Fault]:
    """Report the runtime nvidia in daemon.json without its program; broken if it is the default, else
    degraded.
    """
    stated = ((seen.daemon_json or {}).get("runtimes") or {}).get("nvidia")
    default = (seen.daemon_json or {}).get("default-runtime")
    if stated is not None and not seen.raw("container_state")["runtime"]:
        yield Fault(
            "broken" if default == "nvidia" else "degraded",
            "daemon.json names the runtime nvidia, and nvidia-container-runtime is not installed"
            + (": no container starts, as it is the default" if default == "nvidia" else ""),
            (f"/etc/docker/daemon.json: {stated}", "nvidia-container-runtime: not in PATH"),
            "the toolkit was removed and its configuration remains",
            (
                packaging.install(seen, "nvidia-container-toolkit"),
                shell("sudo systemctl restart docker"),
            ),
            KEEP,
        )


@rule("containers.embedded", "D51", source="k3s-3890")
def embedded_without_runtime(seen: Examination) -> Iterator[Fault]:
    """Report that k3s or RKE2 has not found an installed toolkit, which both look for only at their start."""
    if not seen.has_gpus or not seen.raw("container_state")["runtime"]:
        return
    for path, has_runtime in seen.raw("gpu_tools").get("embedded_containerd", {}).items():
        if has_runtime:
            continue
        rke2 = "/rke2/" in path
        yield Fault(
            "degraded",
            f"the containerd of {'RKE2' if rke2 else 'k3s'} has no runtime nvidia: pods get no GPUs",
            (f"{path}: no handler nvidia", "nvidia-container-runtime: installed"),
            "it looks for nvidia-container-runtime when it starts, and was started before the toolkit came",
            (
                shell("sudo systemctl restart rke2-agent || sudo systemctl restart rke2-server")
                if rke2
                else shell("sudo systemctl restart k3s-agent || sudo systemctl restart k3s"),
                shell("pods keep running"),
            ),
            "stack.container_toolkit: VERSION, applied before k3s or RKE2 is installed",
        )


@rule("containers.cdi_stale", "D53", "D52", source="tk-trouble flp-116")
def stale_specification(seen: Examination) -> Iterator[Fault]:
    """Report a CDI file of another driver than the loaded one, or of GPUs that do not exist."""
    loaded = seen.loaded_driver
    nodes = {path for path in seen.state.device_nodes if re.fullmatch(r"/dev/nvidia\d+", path)}
    for path, each in seen.raw("container_state")["cdi"].items():
        wrong = [version for version in each["versions"] if loaded and version != loaded.version]
        gone = sorted(set(each["devices"]) - nodes) if nodes else []
        if wrong or gone:
            yield Fault(
                "degraded",
                f"{path} is of "
                + (f"driver {listed(wrong)}, {loaded.version} runs" if wrong and loaded else "other GPUs"),
                (
                    *([f"{path}: libraries of {listed(wrong)}"] if wrong else []),
                    *([f"{path}: {listed(gone)}, which do not exist"] if gone else []),
                ),
                "containers started by CDI fail: no such file or directory",
                (shell("sudo nvidia-ctk cdi generate --output={}", path),),
                "settings.containers.cdi: true (generated again at every boot and change of the driver)",
            )


@rule("containers.cdi_missing", "D52", source="flp-116")
def no_specification(seen: Examination) -> Iterator[Fault]:
    """Report that CDI is enabled in Docker, with GPUs and the toolkit, without a specification."""
    features = (seen.daemon_json or {}).get("features") or {}
    if seen.has_gpus and features.get("cdi") and _toolkit(seen) and not seen.raw("container_state")["cdi"]:
        yield Fault(
            "risk",
            "Docker has CDI switched on, and there is no specification of the GPUs",
            ("/etc/cdi, /var/run/cdi: no file for nvidia", f"daemon.json: features {dict(features)}"),
            "--device nvidia.com/gpu=all answers: unresolvable CDI devices",
            (shell("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"),),
            "settings.containers.cdi: true",
        )


@rule("containers.device_rules", "D54", source="tk-trouble")
def lost_device_rules(seen: Examination) -> Iterator[Fault]:
    """Report that `systemctl daemon-reload` removes GPUs from running containers: Docker uses systemd's
    cgroups, without CDI and without links in /dev/char.
    """
    raw = seen.raw("container_state")
    if not seen.has_gpus or not has_docker(seen) or not _toolkit(seen) or raw["char_links"]:
        return
    options = " ".join((seen.daemon_json or {}).get("exec-opts") or ())
    info = (raw["docker_info"] or "").split(" ")[0]
    systemd = info == "systemd" or (not info and "cgroupfs" not in options)
    if systemd and raw["running"] and not raw["cdi"]:
        yield Fault(
            "risk",
            f"{len(raw['running'])} containers with GPUs lose them at the next systemctl daemon-reload",
            (
                f"docker info: cgroup driver {info or 'systemd by default'}",
                "/dev/char: no link of NVIDIA's (195:*)",
            ),
            "systemd sets the device rules again and cannot resolve devices without such links; in the "
            "container: "
            "Failed to initialize NVML: Unknown Error",
            (
                shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all"),
                shell("recreate the containers"),
            ),
            "settings.containers.cdi: true, or settings.containers.cgroup_driver: cgroupfs",
        )


@rule("containers.ldconfig", "D57", source="lnc-177")
def wrong_ldconfig(seen: Examination) -> Iterator[Fault]:
    """Report an ldconfig in the toolkit's configuration that does not exist."""
    raw = seen.raw("container_state")
    if raw["ldconfig"] and not raw["ldconfig_exists"]:
        right = packaging.platform_of(seen).ldconfig
        yield Fault(
            "degraded",
            f"the toolkit is configured to run {raw['ldconfig']}, which does not exist",
            (f'/etc/nvidia-container-runtime/config.toml: ldconfig = "{raw["ldconfig"]}"',),
            "a file of another distribution; containers with GPUs do not start",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig={}", right),),
            KEEP,
        )


@rule("containers.no_cgroups", "D54", source="tk-154")
def no_cgroups(seen: Examination) -> Iterator[Fault]:
    """Report the setting for rootless Docker with a daemon that runs as root."""
    raw = seen.raw("container_state")
    if raw["no_cgroups"] == "true" and has_docker(seen) and not seen.raw("gpu_tools")["rootless"].strip("[]"):
        yield Fault(
            "risk",
            "the toolkit leaves out control groups (no-cgroups), as rootless engines need, and dockerd "
            "runs as root",
            ("/etc/nvidia-container-runtime/config.toml: no-cgroups = true",),
            "in containers: Failed to initialize NVML: Unknown Error",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=false"),),
            KEEP,
        )


@rule("containers.shm", "D104", "D105", source="torch-doc nccl-doc")
def small_shared_memory(seen: Examination) -> Iterator[Fault]:
    """Report running containers with GPUs that have at most Docker's default of 64 MiB shared memory, and not
    the host's.
    """
    small = [
        name
        for name, size, ipc in seen.raw("container_state")["running"]
        if int(size) <= SMALL_SHM and ipc != "host"
    ]
    if small:
        yield Fault(
            "risk",
            f"containers with GPUs have 64 MiB of /dev/shm: {listed(small)}",
            tuple(f"docker inspect {name}: ShmSize 64 MiB" for name in small[:3]),
            "data loaders end with a bus error, NCCL fails to create its segments",
            (shell("start them with --shm-size=1g (or more), or --ipc=host"),),
            "settings.containers.shm_size: 1g",
        )


@rule("containers.containerd", "D51", source="op-trouble")
def containerd_runtime(seen: Examination) -> Iterator[Fault]:
    """Report a running kubelet on a machine with GPUs and the toolkit whose containerd does not know the
    runtime.
    """
    kubelet = seen.units.get("kubelet.service")
    if not (kubelet and kubelet.active) or not seen.has_gpus or not _toolkit(seen):
        return
    text = str(seen.raw("containerd")["dump"] or "")
    if text and "nvidia-container-runtime" not in text:
        yield Fault(
            "risk",
            "containerd serves a kubelet and does not know the runtime nvidia",
            ("containerd config dump: no nvidia-container-runtime",),
            'pods answer: no runtime for "nvidia" is configured (unless the GPU operator brings its own)',
            (
                shell("sudo nvidia-ctk runtime configure --runtime=containerd"),
                shell("sudo systemctl restart containerd"),
            ),
            "stack.containerd with stack.container_toolkit: VERSION",
        )
