"""Restoration of a machine's collectors from a support bundle.

A bundle has values in another form than the probe sends: lines of a table in place of a tool's output,
elements in place of XML. Fields that a bundle leaves out have a neutral value, by which no rule reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gpuprov.doctor.builds import CAUSES
from gpuprov.doctor.collecting import COLLECTORS
from gpuprov.untrusted.names import is_kernel_release

Collectors = dict[str, Any]
TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""Name of an element of nvidia-smi."""


def restored(found: Mapping[str, Any]) -> Collectors:
    """Return collectors in the probe's form, from those in a bundle's; malformed ones are left out."""
    result: Collectors = {}
    for name, value in found.items():
        if name in NEUTRAL or name in RESTORERS:
            try:
                fields = {**deepcopy(NEUTRAL.get(name, {})), **value} if isinstance(value, dict) else value
                result[name] = RESTORERS.get(name, _same)(fields)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError):
                continue
        else:
            result[name] = value
    result.update((name, {"error": "not in a bundle"}) for name in COLLECTORS if name not in result)
    return result


def _same(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def _lines(value: Any, pattern: str, shape: str) -> str:
    """Return lines of text, each from the groups of a pattern; others as they are."""
    found = (re.fullmatch(pattern, str(line)) for line in value)
    return "\n".join(
        shape.format(*each.groups("")) if each else str(line) for each, line in zip(found, value, strict=True)
    )


def _system(value: Any) -> Any:
    """Restore the text of os-release and the kernel's command line from their rows and words."""
    value["os_release"] = _lines(value["os_release"], r"(ID|VERSION_ID) (.*)", '{}="{}"')
    value["cmdline"] = " ".join(value["cmdline"])
    return value


def _hugepages(value: Any) -> Any:
    """Restore the text of the kernel's setting of transparent huge pages."""
    return {"transparent": " ".join(value["transparent"])}


def _smi(value: Any) -> Any:
    """Restore the XML of nvidia-smi, or the message with which it failed."""
    if "error" in value:
        return {"error": str(value["error"])}
    root = Element("nvidia_smi_log")
    for gpu in value["stdout"]:
        bus = str(gpu.get("pci", {}).get("pci_bus_id", "00000000:00:00.0"))
        child = SubElement(root, "gpu")
        child.set("id", bus)
        _fill(child, gpu)
    indent(root)
    text = tostring(root, encoding="unicode")
    said = "\n".join(map(str, value.get("said", ())))
    return {"rc": value.get("rc", 0), "stdout": text if value["stdout"] else said, "stderr": ""}


def _fill(parent: Element, values: Mapping[str, Any]) -> None:
    """Append a child for each value; a list gives several, a mapping nested ones. ValueError for a key
    that is no name of an element: it would be written as it is.
    """
    for tag, value in values.items():
        if not TAG.fullmatch(tag):
            raise ValueError(f"the element {tag[:64]!r}")
        for each in value if isinstance(value, list) else [value]:
            child = SubElement(parent, tag)
            if isinstance(each, dict):
                _fill(child, each)
            else:
                child.text = str(each)


def _modules(value: Any) -> Any:
    """Restore the texts of the loaded driver's version, of /proc/modules and of its parameters."""
    version = value.get("driver")
    flavour = "Open Kernel Module for x86_64" if value.pop("open", False) else "x86_64 Kernel Module"
    value["driver"] = f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build" if version else None
    value["loaded"] = _lines(value["loaded"], r"(\S+) (\d+)", "{} {} 0 - Live 0x0")
    value["params"] = _lines(value.get("params") or (), r"(\S+) (\d+)", "{}: {}")
    return value


def _disk_modules(value: Any) -> Any:
    """Restore modinfo's text for each kernel, with paths in its folder of modules."""
    return {
        kernel: "\n".join(_in_folder(kernel, lines))
        for kernel, lines in value.items()
        if is_kernel_release(kernel)
    }


def _in_folder(kernel: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of modinfo, those of file names with the folder of the kernel's modules."""
    for line in lines:
        name, mark, file = str(line).partition("filename: ")
        yield f"{mark}/lib/modules/{kernel}/{file}" if mark and not name else str(line)


def _dkms_log(value: Any) -> Any:
    """Restore one log of a build, with an example line of each known cause."""
    examples = {cause.name: cause.example for cause in CAUSES}
    return {"/var/lib/dkms/nvidia/0/build/make.log": [examples[name] for name in value["causes"]]}


def _texts(*names: str) -> Callable[[Any], Any]:
    """Return a restorer of tables of memory: `MemTotal 1 kB` → `MemTotal: 1 kB`."""

    def restore(value: Any) -> Any:
        """Restore the texts of the named fields: `NAME: VALUE` lines."""
        for name in names:
            if name in value:
                value[name] = _lines(value[name], r"(\w+) (.*)", "{}: {}")
        return value

    return restore


def _units(value: Any) -> Any:
    """Restore systemctl's text: lines `NAME=VALUE`, with an empty line between units."""
    text = _lines(value["text"], r"(\w+) (.*)", "{}={}")
    return {"text": re.sub(r"\n(?=Id=)", "\n\n", text)}


def _nvlink(value: Any) -> Any:
    """Restore the text of nvidia-smi's status of links and of their errors."""
    links = {"status": (r"(Link \d+) (.*)", "{}: {}"), "errors": (r"(Link \d+) (.*) (\d+)", "{}: {}: {}")}
    return {
        name: re.sub(r"(?m)^(GPU \d+)$", r"\1: GPU", _lines(value.get(name, ()), *shape))
        for name, shape in links.items()
    }


def _libraries(value: Any) -> Any:
    """Restore the paths of the driver's libraries from their versions, and the loader's cache from these."""
    taken = {
        name: f"/usr/lib/x86_64-linux-gnu/{name[:-2]}.{version}" for name, version in value["taken"].items()
    }
    return {
        **value,
        "taken": taken,
        "cache": [f"{name} (libc6,x86-64) => {path}" for name, path in taken.items()],
    }


def _packages(value: Any) -> Any:
    """Restore dpkg's list of installed packages, all for amd64."""
    value["text"] = _lines(value["text"], r"(\S+) (\S+)", "{0}\tamd64\t{1}\t{0}\tinstall ok installed") + "\n"
    return value


def _hcas(value: Any) -> Any:
    """Restore the ports of RDMA devices, with no interfaces and GIDs unless stated."""
    return [{"interfaces": [], "gids": [], **each} for each in value]


def _nics(value: Any) -> Any:
    """Restore the network interfaces, with made-up names and the values of `NIC` unless stated."""
    return [{"name": f"nic{number}", **NIC, **each} for number, each in enumerate(value)]


def _container_state(value: Any) -> Any:
    """Restore paths from whether programs exist, and running containers from their number."""
    for name in ("hook", "runtime"):
        value[name] = (
            f"/usr/bin/nvidia-container-runtime{'-hook' * (name == 'hook')}" if value[name] else None
        )
    count = value["running"] if isinstance(value["running"], int) else 0
    value["running"] = [[f"container{number}", 1 << 30, "private"] for number in range(min(count, 64))]
    return value


def _gpu_tools(value: Any) -> Any:
    """Restore paths from whether programs exist, and the number of IMEX nodes as 1 or None."""
    for name, path in (
        ("nvidia_smi", "/usr/bin/nvidia-smi"),
        ("nvidia_modprobe", "/usr/bin/nvidia-modprobe"),
    ):
        value[name] = path if value.get(name) else None
    value["imex_nodes"] = 1 if value.get("imex_nodes") else None
    return value


def _host_state(value: Any) -> Any:
    """Restore texts of the kernel from their parts, and /proc/meminfo from its rows."""
    value["file_nr"], value["load"] = (
        "\t".join(value.get(name) or ()).replace(" ", "\t") for name in ("file_nr", "load")
    )
    value["virtual"] = " ".join(value["virtual"])
    return _texts("memory")(value)


def _programs(value: Any) -> Any:
    """Restore the programs on GPUs, with the values of `HOLDER` unless stated."""
    value["holders"] = [{**HOLDER, **each} for each in value["holders"]]
    return value


NIC = {
    "addresses": [],
    "default_route": False,
    "lower": [],
    "master": None,
    "type": "1",
    "driver": "",
    "speed": "",
}
NIC |= {"kind": "physical", "mtu": "", "numa": "", "pci": "", "state": ""}
HOLDER = {"name": "program", "uid": "", "cpus": "", "waits": "", "gpus": [], "variables": {}}
NEUTRAL: dict[str, Collectors] = {
    "system": {"uid": 0, "boot_id": "", "os_release": [], "cmdline": [], "machine": "x86_64"},
    "kernels": {"grub_default": None, "grub_environment": None, "modules": [], "boot": [], "headers": []},
    "hugepages": {"transparent": []},
    "state": {
        "foreign_drivers": [],
        "reboot_packages": [],
        "device_nodes": [],
        "secure_boot": None,
        "cloud_init": "",
        "package_manager_busy": None,
        "free_mib": {},
        "reboot_required": False,
    },
    "smi": {"stdout": []},
    "modules": {"driver": None, "loaded": [], "params": []},
    "libraries": {"copies": {}, "configured": {}, "firmware": [], "taken": {}},
    "packages": {"manager": "dpkg", "interrupted": False, "locks": "", "text": []},
    "container_state": {
        "cdi": {},
        "docker_path": "",
        "docker_info": None,
        "ldconfig": None,
        "no_cgroups": None,
        "running": 0,
        "toolkit": False,
        "hook": False,
        "runtime": False,
        "char_links": 0,
        "ldconfig_exists": False,
    },
    "gpu_tools": {"rootless": "[]", "snap_docker": False},
    "host_state": {"virtual": [], "mdstat": [], "space": [], "memory": [], "boots": [], "phys_states": {}},
    "programs": {"stuck": [], "holders": [], "mps": False},
    "nccl": {"conf": None},
    "dkms_log": {"causes": []},
}
"""Collector → fields that a bundle leaves out, with a value by which no rule reports."""
RESTORERS: dict[str, Callable[[Any], Any]] = {
    "system": _system,
    "hugepages": _hugepages,
    "smi": _smi,
    "modules": _modules,
    "disk_modules": _disk_modules,
    "dkms_log": _dkms_log,
    "memory": _texts("text"),
    "units": _units,
    "nvlink": _nvlink,
    "topo": lambda value: {"text": "\n".join(value["text"])},
    "libraries": _libraries,
    "packages": _packages,
    "hcas": _hcas,
    "nics": _nics,
    "container_state": _container_state,
    "gpu_tools": _gpu_tools,
    "host_state": _host_state,
    "programs": _programs,
}
"""Collector → function that restores the probe's form; the others have the same form in a bundle."""
