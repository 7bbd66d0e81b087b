"""Kubernetes on hosts with driver and toolkit: RuntimeClass, values of NVIDIA's charts, labels of nodes.

The keys are those of values.yaml of the charts gpu-operator, nvidia-device-plugin and
dra-driver-nvidia-gpu. A cluster has either the GPU Operator or the device plugin's own chart.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from gpuprov.catalog import Catalog, Version
from gpuprov.catalog.records import EngineNeed
from gpuprov.errors import InvalidInput
from gpuprov.inventory.exports.node import Node
from gpuprov.model.kubernetes import PREFIX
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.roles.docker import RUNTIME
from gpuprov.roles.health import LIBRARY, PLUGIN
from gpuprov.roles.imex import SOCKET

HEADER = "# Written whole by `gpuprov inventory export kubernetes`; the next export overwrites changes.\n"
SHARING = "gpuprov-device-plugin"
"""Name of the ConfigMap with the device plugin's configuration for the GPU Operator."""
ANY = "any"
"""Name of the configuration in it that all nodes have."""
DRA = ("dra", "dra-host")
"""Modes of IMEX with which the DRA driver gives ComputeDomains."""
Strategy = Literal["none", "single", "mixed"]


@dataclass(frozen=True)
class Choices:
    """Choices of a cluster's administrator.

    Attributes:
        dra: GPUs are given to pods by the DRA driver, in place of the device plugin.
        replicas: number of pods that share a GPU by time slicing, at least 2; None without time slicing.
    """

    dra: bool = False
    replicas: int | None = None


def kubernetes_files(
    lock: Lock, names: Iterable[str], catalog: Catalog, choices: Choices = Choices()
) -> Mapping[str, str]:
    """Return file name → YAML of a manifest or of a chart's values, for the nodes of a cluster.

    The GPU Operator's values are always there; others as the choices and groups need them: the device plugin
    on hosts with the toolkit, or the DRA driver, or a mode of IMEX; the problem detector for `health`.

    Args:
        names: nodes of the lock, all in one cluster.

    Raises:
        InvalidInput: a driver is too old for the DRA driver, the choices exclude each other, or groups differ
            in having the toolkit or in the mode of IMEX.
    """
    groups = _groups_of(lock, names)
    _check(groups, catalog, choices)
    strategy = mig_strategy(groups)
    files: dict[str, Any] = {"gpu-operator.values.yaml": operator_values(groups, strategy, choices)}
    if not choices.dra and has_toolkit(groups):
        files["device-plugin.values.yaml"] = plugin_values(strategy, choices)
        # The Operator creates one of this name itself.
        files["device-plugin.runtimeclass.yaml"] = runtime_class()
    mode = imex_mode(groups)
    if choices.dra or mode:
        files["dra-driver.values.yaml"] = dra_values(choices, mode)
    if any(group.setting("health") is not None for group in groups.values()):
        files["node-problem-detector.configmap.yaml"] = problem_detector()
    if choices.replicas:
        files["gpu-operator.configmap.yaml"] = _config_map(strategy, choices.replicas)
    return {name: HEADER + _yaml(document) for name, document in files.items()}


def problem_detector() -> dict[str, Any]:
    """Return a ConfigMap with node-problem-detector's custom plugin for the verdict of a node's health check.

    Its container needs the host's folders /run/gpuprov and `LIBRARY` at the same paths.
    """
    shown = {"isolate": "must not run jobs", "reset": "needs a reset of its GPUs", "watch": "has a fault"}
    rules = [
        {
            "type": "temporary" if word == "watch" else "permanent",
            "reason": f"Gpuprov{word.title()}",
            "path": f"{LIBRARY}/{PLUGIN}",
            "args": [word],
            **({} if word == "watch" else {"condition": f"Gpuprov{word.title()}"}),
        }
        for word in shown
    ]
    config = {
        "plugin": "custom",
        "pluginConfig": {
            "invoke_interval": "30s",
            "timeout": "5s",
            "max_output_length": 200,
            "concurrency": 1,
        },
        "source": "gpuprov-health",
        "metricsReporting": True,
        "conditions": [
            {
                "type": f"Gpuprov{word.title()}",
                "reason": f"GpuprovNo{word.title()}",
                "message": f"no fault with which the node {text}",
            }
            for word, text in shown.items()
            if word != "watch"
        ],
        "rules": rules,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpuprov-health", "namespace": "kube-system"},
        "data": {"gpuprov-health.json": json.dumps(config, indent=1) + "\n"},
    }


def _groups_of(lock: Lock, names: Iterable[str]) -> dict[str, LockedGroup]:
    """Return the name of each group of these nodes → the group."""
    hosts = lock.hosts()
    found = [hosts[name] for name in names]
    return {name: group for name, group in lock.groups.items() if any(group is each for each in found)}


def _check(groups: Mapping[str, LockedGroup], catalog: Catalog, choices: Choices) -> None:
    """Raise InvalidInput for choices that exclude each other, or a driver that is too old for a choice or for
    its group's setting `imex`.
    """
    if choices.dra and choices.replicas:
        raise InvalidInput(
            "--time-slicing with --dra",
            expected="time slicing by the device plugin, which --dra replaces",
            do="leave out one of the two",
        )
    needs: list[EngineNeed] = [*catalog.tables["containers.dra_needs"]] if choices.dra else []
    for name, group in groups.items():
        driver = Version(group.components.driver.version)
        domains = catalog.tables["containers.compute_domain_needs"] if group.setting("imex") in DRA else ()
        for need in (*needs, *domains):
            if driver < need.at_least:
                raise InvalidInput(
                    f"group {name} is locked to driver {driver}",
                    expected=f"driver {need.at_least} or newer, for {need.what}",
                    do=f"state a newer driver in groups.{name}.stack, then run `gpuprov lock`",
                )


def has_toolkit(groups: Mapping[str, LockedGroup]) -> bool:
    """Return whether the hosts have the container toolkit, by their lock.

    Raises:
        InvalidInput: some have it and some do not, and the values are those of a whole cluster.
    """
    without = [name for name, group in groups.items() if group.components.container_toolkit is None]
    if without and len(without) < len(groups):
        raise InvalidInput(
            f"group {', '.join(without)} has no container_toolkit, and other groups have it",
            expected="a toolkit on all hosts of a cluster, or on none",
            do="state stack: {container_toolkit: auto} in these groups, then run `gpuprov lock`",
        )
    return not without


def imex_mode(groups: Mapping[str, LockedGroup]) -> str | None:
    """Return the mode of IMEX with which the DRA driver gives ComputeDomains; None without one.

    Raises:
        InvalidInput: groups have different ones, and the driver has one mode in a cluster.
    """
    found = {mode: name for name, group in groups.items() if (mode := group.setting("imex")) in DRA}
    if len(found) > 1:
        raise InvalidInput(
            "imex is " + " and ".join(f"{mode} in group {name}" for mode, name in sorted(found.items())),
            expected="one of both for all nodes of a cluster",
            do="export the nodes of one cluster, or change settings.imex",
        )
    return next(iter(found), None)


def mig_strategy(groups: Mapping[str, LockedGroup]) -> Strategy:
    """Return how MIG instances are offered: `none` without any; `single`, as nvidia.com/gpu, if all have one
    profile; `mixed`, as a resource with the name of its profile. Groups without instances do not count.
    """
    profiles = {profile for group in groups.values() for profile in group.setting("mig") or ()}
    if not profiles:
        return "none"
    return "single" if len(profiles) == 1 else "mixed"


def runtime_class() -> dict[str, Any]:
    """Return the RuntimeClass of containerd's handler for the NVIDIA runtime."""
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME},
        "handler": RUNTIME,
    }


def operator_values(
    groups: Mapping[str, LockedGroup], strategy: Strategy, choices: Choices
) -> dict[str, Any]:
    """Return values for the GPU Operator, which does not install the driver, installs the toolkit only on
    hosts without it, and does not partition GPUs whose instances the lock states. CDI is set if all stated
    values are the same.

    Raises:
        InvalidInput: as `has_toolkit`.
    """
    values: dict[str, Any] = {
        "driver": {"enabled": False},
        "toolkit": {"enabled": not has_toolkit(groups)},
        "mig": {"strategy": strategy},
    }
    if any(group.setting("mig") is not None for group in groups.values()):
        values["migManager"] = {"enabled": False}
    stated = {(group.setting("containers") or {}).get("cdi") for group in groups.values()} - {None}
    if len(stated) == 1:
        values["cdi"] = {"enabled": stated.pop()}
    if choices.dra:
        values["devicePlugin"] = {"enabled": False}
    elif choices.replicas:
        values["devicePlugin"] = {"config": {"name": SHARING, "default": ANY}}
    return values


def plugin_values(strategy: Strategy, choices: Choices) -> dict[str, Any]:
    """Return values for the device plugin's own chart, with GPU feature discovery."""
    values: dict[str, Any] = {"runtimeClassName": RUNTIME, "migStrategy": strategy, "gfd": {"enabled": True}}
    if choices.replicas:
        values["config"] = {"map": {ANY: _yaml(_sharing(strategy, choices.replicas))}, "default": ANY}
    return values


def dra_values(choices: Choices, mode: str | None) -> dict[str, Any]:
    """Return values for the DRA driver on hosts with their own driver.

    Args:
        mode: of IMEX, which gives ComputeDomains; None for none.
    """
    domains: dict[str, Any] = {"enabled": mode is not None}
    values: dict[str, Any] = {
        "nvidiaDriverRoot": "/",
        "gpuResourcesEnabledOverride": choices.dra,
        "resources": {"gpus": {"enabled": choices.dra}, "computeDomains": domains},
    }
    if mode == "dra-host":
        # The gate alone has no effect, and the mode alone is refused.
        domains["imex"] = {"mode": "hostManaged", "hostSocketPath": SOCKET}
        values["featureGates"] = {"HostManagedIMEXDaemon": True}
    return values


def _sharing(strategy: Strategy, replicas: int) -> dict[str, Any]:
    """Return the device plugin's configuration for time slicing.

    With the strategy `mixed` an instance is a resource with another name, and is not shared.
    """
    shared = [{"name": "nvidia.com/gpu", "replicas": replicas}]
    flags = {"migStrategy": strategy}
    return {"version": "v1", "flags": flags, "sharing": {"timeSlicing": {"resources": shared}}}


def _config_map(strategy: Strategy, replicas: int) -> dict[str, Any]:
    """Return the ConfigMap for the Operator's namespace, which the administrator chooses."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SHARING},
        "data": {ANY: _yaml(_sharing(strategy, replicas))},
    }


def _yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, with its keys in order."""
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def node_labels(nodes: Sequence[Node], *, of_discovery: bool = False) -> str:
    """Return a `kubectl label` line per node with GPUs: driver, GPU model and places, with gpuprov's prefix.

    Args:
        of_discovery: also set labels of NVIDIA's GPU feature discovery, for clusters without it. It owns them
            and overwrites them every minute.
    """
    return "".join(_line(node, of_discovery) for node in nodes if node.gpus)


def _line(node: Node, of_discovery: bool) -> str:
    """Return a node's `kubectl label` line, without labels whose value is not known."""
    labels = {"driver": node.labels.get("driver", ""), "gpu-model": node.model}
    labels |= {kind.replace("_", "-"): place for kind, place in node.places.items()}
    own = {f"{PREFIX}{key}": _label(value) for key, value in labels.items() if value}
    if of_discovery:
        own |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(node.gpus)}
        own["nvidia.com/gpu.product"] = _label(node.model)
        if node.gpu_memory_mib:
            own["nvidia.com/gpu.memory"] = str(node.gpu_memory_mib)
    pairs = " ".join(f"{key}={value}" for key, value in own.items())
    return f"kubectl label --overwrite node {shlex.quote(node.name)} {pairs}\n"


def _label(text: str) -> str:
    """Return a label's value: at most 63 letters, digits, `-`, `_` and `.`, first and last no punctuation."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-_.")
