"""Rules for NVIDIA's container toolkit: its whole configuration, and every path that a CDI file names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.doctor.concerns.containers import KEEP, has_docker
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, Severity, listed, rule
from gpuprov.probe.facts import Missing
from gpuprov.untrusted import ShellLine, shell

PLACE = "/etc/nvidia-container-runtime/config.toml"
MODES = ("auto", "legacy", "csv", "cdi", "jit-cdi")
"""Modes of nvidia-container-runtime (NVIDIA Container Toolkit, internal/config and api/config/v1)."""
LEVELS = ("trace", "debug", "info", "warning", "warn", "error", "fatal", "panic")
LOWER = ("compute", "utility")
"""Capabilities of the driver that every CUDA container uses."""


@rule("containers.cdi_paths", "D126", source="tk-885 tk-434 tk-trouble", after=("containers.cdi_stale",))
def missing_paths(seen: Examination) -> Iterator[Fault]:
    """Report CDI files that name files or devices of the host that do not exist."""
    found = {
        path: [str(each) for each in row.get("missing", ())]
        for path, row in seen.raw("container_state")["cdi"].items()
    }
    for path, missing in found.items():
        if missing:
            yield Fault(
                "degraded",
                f"{path} names {listed(missing, 3)}, which does not exist",
                tuple(f"{path}: hostPath {each}: absent" for each in missing[:3]),
                "the file was written for another set of devices, driver or tools; a container that asks "
                "for the device does not start",
                (shell("sudo nvidia-ctk cdi generate --output={}", path), shell("nvidia-ctk cdi list")),
                "settings.containers.cdi: true (generated again at every boot and change of the driver)",
            )


def _tables(seen: Examination) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return the configuration, and its tables `nvidia-container-cli` and `nvidia-container-runtime`."""
    config = seen.toolkit.config
    tables = [config.get(name) for name in ("nvidia-container-cli", "nvidia-container-runtime")]
    cli, runtime = (each if isinstance(each, dict) else {} for each in tables)
    return config, cli, runtime


@rule(
    "containers.config",
    "D127",
    source="tk-483 tk-1047 op-473",
    after=("containers.toolkit",),
    health={"broken": "watch"},
)
def configuration(seen: Examination) -> Iterator[Fault]:
    """Report values of the toolkit's configuration with which containers with GPUs do not start, or start
    without a part of the driver; nothing without a file, as the defaults then apply.
    """
    if not seen.raw("container_state")["toolkit"]:
        return
    try:
        _, cli, runtime = _tables(seen)
    except Missing as missing:
        if missing.collector != "toolkit" or "TOML" not in str(missing):
            raise
        yield _fault(
            "broken",
            "cannot be read",
            str(missing)[:200],
            "no container with the runtime nvidia starts",
            _DEFAULT,
        )
        return
    root, driver = str(cli.get("root") or "/"), seen.loaded_driver
    if root not in ("/", "") and driver and seen.library_version and seen.has_gpus:
        yield _fault(
            "degraded",
            f"takes the driver from {root}, and this host has its own",
            f'nvidia-container-cli.root = "{root}"',
            "the driver container of the GPU operator keeps its files there; with a driver on the host the "
            "toolkit finds no libraries, or those of a container that has ended",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-cli.root=/"),),
        )
    mode = runtime.get("mode")
    if mode is not None and mode not in MODES:
        yield _fault(
            "broken",
            f"has the mode {str(mode)[:40]}, which does not exist",
            f'nvidia-container-runtime.mode = "{str(mode)[:40]}"',
            f"nvidia-container-runtime knows {', '.join(MODES)}",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto"),),
        )
    if mode == "cdi" and not seen.raw("container_state")["cdi"]:
        yield _fault(
            "degraded",
            "is in the mode cdi, and there is no CDI file",
            'nvidia-container-runtime.mode = "cdi"; /etc/cdi, /var/run/cdi: no file for nvidia',
            "containers fail: unresolvable CDI devices",
            (shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),),
        )
    yield from _further(seen)


def _further(seen: Examination) -> Iterator[Fault]:
    """Report values with which containers start and lack something, or that the toolkit refuses."""
    config, cli, runtime = _tables(seen)
    level = runtime.get("log-level")
    if level is not None and str(level) not in LEVELS:
        yield _fault(
            "degraded",
            f"has the log level {str(level)[:40]}, which does not exist",
            f'nvidia-container-runtime.log-level = "{str(level)[:40]}"',
            "nvidia-container-runtime refuses it",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.log-level=info"),),
        )
    capabilities = config.get("supported-driver-capabilities")
    allowed = str(capabilities).split(",") if capabilities is not None else ["all"]
    lacking = [each for each in LOWER if each not in allowed and "all" not in allowed]
    if lacking:
        yield _fault(
            "degraded",
            f"does not give containers {' and '.join(lacking)}",
            f'supported-driver-capabilities = "{str(capabilities)[:120]}"',
            "containers get no libcuda (compute), or no NVML and nvidia-smi (utility)",
            (
                shell(
                    "sudo nvidia-ctk config --in-place --set "
                    "supported-driver-capabilities=compat32,compute,display,graphics,ngx,utility,video"
                ),
            ),
        )
    if config.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is False and has_docker(seen):
        yield _fault(
            "hint",
            "ignores NVIDIA_VISIBLE_DEVICES of containers without privileges",
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
            "as a cluster wants it whose device plugin passes devices as volume mounts; with docker --gpus "
            "or compose it has no effect, with --runtime=nvidia alone containers see no GPU",
            (shell("start containers with --gpus all, or with --device nvidia.com/gpu=all"),),
        )
    if cli.get("load-kmods") is False and seen.loaded_driver and "nvidia_uvm" not in seen.loaded_modules:
        yield _fault(
            "degraded",
            "does not load the driver's modules, and nvidia_uvm is not loaded",
            "nvidia-container-cli.load-kmods = false; /proc/modules: no nvidia_uvm",
            "CUDA in containers fails with 999 until a program on the host has loaded it",
            (shell("sudo nvidia-ctk config --in-place --set nvidia-container-cli.load-kmods=true"),),
        )


_DEFAULT = (
    shell("sudo mv /etc/nvidia-container-runtime/config.toml /etc/nvidia-container-runtime/config.toml.old"),
    shell("sudo nvidia-ctk config default --output=/etc/nvidia-container-runtime/config.toml"),
)


def _fault(severity: Severity, text: str, line: str, cause: str, mend: tuple[ShellLine, ...]) -> Fault:
    """Return the fault of a value of the configuration."""
    return Fault(
        severity, f"the container toolkit's configuration {text}", (f"{PLACE}: {line}",), cause, mend, KEEP
    )
