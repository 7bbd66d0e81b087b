"""What a node says of itself: one document, read part by part when a part is asked for.

`Facts` keeps the answer as it came. Each noun is a property that parses its collector's raw values once; a
collector that failed, timed out or does not exist on that system makes its property raise `Missing`, which
says why in words that fit after "unknown because". `nvidia-smi` is the exception: its failures are facts
(`Smi.error`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.parse.apt import Apt, parse_apt
from gpuprov.probe.parse.containers import Containerd, parse_containerd
from gpuprov.probe.parse.effective import (
    InForce,
    Offer,
    Unpackaged,
    Variables,
    parse_unpackaged,
    parse_variables,
)
from gpuprov.probe.parse.hardware import (
    Cpu,
    Disk,
    Hca,
    Memory,
    Mount,
    Nic,
    parse_cpu,
    parse_disks,
    parse_hcas,
    parse_memory,
    parse_mounts,
    parse_nics,
)
from gpuprov.probe.parse.limits import ResourceLimits, parse_pam
from gpuprov.probe.parse.mig import parse_mig
from gpuprov.probe.parse.modules import (
    DiskModule,
    DkmsModule,
    LoadedDriver,
    Modprobe,
    parse_disk_modules,
    parse_driver_version,
    parse_modprobe,
    parse_proc_modules,
)
from gpuprov.probe.parse.nftables import Table, parse_table
from gpuprov.probe.parse.packages import Packages, parse_dpkg, parse_rpm, parse_versionlock
from gpuprov.probe.parse.pci import PciDevice, parse_pci
from gpuprov.probe.parse.smi import Smi, parse_smi
from gpuprov.probe.parse.sockets import parse_listening
from gpuprov.probe.parse.sshd import parse_sshd
from gpuprov.probe.parse.state import (
    FileFact,
    GpuUse,
    Nccl,
    NodeState,
    SecureBoot,
    parse_nccl_conf,
    parse_secure_boot,
)
from gpuprov.probe.parse.system import Kernels, Os, parse_kernels, parse_os_release
from gpuprov.probe.parse.units import Unit, parse_properties, parse_units
from gpuprov.untrusted import architecture, host_name, kernel_release

SCHEMA = "gpuprov.facts/1"
A_YEAR_S = 366 * 86400


class Missing(NodeFailed):
    """A node did not tell this: `collector` failed for `reason`."""

    def __init__(self, collector: str, reason: str) -> None:
        self.collector, self.reason = collector, reason
        super().__init__(f"{collector}: {reason}")


T = TypeVar("T")


class part(cached_property[T]):  # noqa: N801
    """A part of the facts, read when it is asked for; `Missing` where the node sent something else."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> part[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> T | part[T]:
        """The part."""
        try:
            return super().__get__(instance, owner)
        except Missing:
            raise
        except NodeFailed as error:
            raise Missing(str(self.attrname), str(error)) from error
        except GpuprovError:
            raise
        except Exception as error:  # any: it is a stranger's word
            name = str(self.attrname)
            raise Missing(name, f"not as the probe sends it ({type(error).__name__})") from error


@dataclass(frozen=True)
class Facts:
    """One node's answer (`gpuprov.facts/1`).

    Args:
        host: the node's own host name.
        collected_at: UTC, ISO 8601.
        seconds: wall time of the collection on the node.
        collectors: raw values by collector; a failed one is `{"error": reason}`.
    """

    host: str
    collected_at: str
    seconds: float
    collectors: Mapping[str, Any]

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Facts:
        """Facts from the probe's document.

        Raises:
            NodeFailed: it is not a document of this schema.
        """
        if answer.get("schema") != SCHEMA or not isinstance(answer.get("collectors"), Mapping):
            raise NodeFailed(f"facts of schema {answer.get('schema')!r}", expected=SCHEMA)
        seconds = answer.get("seconds") or 0
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < A_YEAR_S:
            raise NodeFailed("facts whose collection took no number of seconds", expected=SCHEMA)
        return cls(
            host_name(answer["host"]) if answer.get("host") else "",
            str(answer.get("collected_at", "")),
            float(seconds),
            answer["collectors"],
        )

    def to_answer(self) -> dict[str, Any]:
        """The document again, as it is recorded and printed."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "collected_at": self.collected_at,
            "seconds": self.seconds,
            "collectors": dict(self.collectors),
        }

    @property
    def missing(self) -> dict[str, str]:
        """Collectors that failed, with the reason."""
        return {name: value["error"] for name, value in self.collectors.items() if _failed(value)}

    def raw(self, collector: str) -> Any:
        """A collector's own values.

        Raises:
            Missing: the collector did not run, failed, or timed out.
        """
        value = self.collectors.get(collector)
        if value is None:
            raise Missing(collector, "not collected")
        if _failed(value):
            raise Missing(collector, str(value["error"]))
        return value

    @part
    def os(self) -> Os:
        """The operating system."""
        return parse_os_release(self.raw("system")["os_release"])

    @part
    def kernels(self) -> Kernels:
        """Kernels: running, on disk, next."""
        return parse_kernels(self.raw("kernels"), self.kernel)

    @part
    def kernel(self) -> str:
        """`uname -r`."""
        return kernel_release(self.raw("system")["kernel"])

    @part
    def arch(self) -> str:
        """`uname -m`: `x86_64`, `aarch64`."""
        return architecture(self.raw("system")["machine"])

    @part
    def boot_id(self) -> str:
        """Changes with every boot."""
        return str(self.raw("system")["boot_id"])

    @part
    def uptime(self) -> float:
        """Seconds since boot."""
        return float(self.raw("system")["uptime"])

    @part
    def cmdline(self) -> str:
        """The running kernel's command line, secrets blotted out on the node."""
        return str(self.raw("system")["cmdline"])

    @part
    def is_root(self) -> bool:
        """Whether the probe ran as root: without, sshd, efivars and some files are unknown."""
        return bool(self.raw("system")["uid"] == 0)

    @part
    def packages(self) -> Packages:
        """Packages that were asked for, and all that are held or broken."""
        raw = self.raw("packages")
        if raw["manager"] == "dpkg":
            return parse_dpkg(raw["text"], bool(raw["interrupted"]))
        return parse_rpm(raw["text"], parse_versionlock(raw["locks"]))

    @part
    def apt(self) -> Apt:
        """Where packages come from, whose keys count, what is pinned and upgraded unattended."""
        return parse_apt(self.raw("sources"))

    @part
    def loaded_modules(self) -> Mapping[str, int | None]:
        """NVIDIA, nouveau, RDMA modules in the running kernel → users."""
        return parse_proc_modules(self.raw("modules")["loaded"])

    @part
    def loaded_driver(self) -> LoadedDriver | None:
        """The NVIDIA module that runs now; `None` when none is loaded."""
        return parse_driver_version(self.raw("modules")["driver"] or "")

    @part
    def driver_parameters(self) -> Mapping[str, str]:
        """/proc/driver/nvidia/params of the loaded module: `RmProfilingAdminOnly` → `1`."""
        pairs = (line.partition(":") for line in (self.raw("modules")["params"] or "").splitlines())
        return {name.strip(): value.strip() for name, colon, value in pairs if colon}

    @part
    def disk_modules(self) -> Mapping[str, Mapping[str, DiskModule]]:
        """Kernel → module → what modinfo says of the file that modprobe would take there."""
        return parse_disk_modules(self.raw("disk_modules"))

    @part
    def dkms(self) -> tuple[DkmsModule, ...]:
        """DKMS's builds; empty when there is no DKMS."""
        return tuple(DkmsModule(*row) for row in self.raw("dkms"))

    @part
    def modprobe(self) -> Modprobe:
        """Blacklists and options in effect."""
        return parse_modprobe(((place, line) for place, line in self.raw("modprobe")), self.cmdline)

    @part
    def smi(self) -> Smi:
        """nvidia-smi's answer; not installed, timed out or failed is an answer with `error`."""
        try:
            raw = self.raw("smi")
        except Missing as missing:
            if missing.collector in self.collectors:
                return Smi(error=_about_smi(missing.reason))
            raise
        return parse_smi(raw["stdout"], raw["stderr"])

    @part
    def mig(self) -> Mapping[int, tuple[str, ...]]:
        """GPU → profiles of its instances, sorted; asked for only where a lock speaks of them."""
        return parse_mig(self.raw("mig")["text"])

    @part
    def pci(self) -> tuple[PciDevice, ...]:
        """PCI devices of the classes and vendors that matter."""
        return parse_pci(self.raw("pci"))

    @part
    def pci_gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA GPUs on the bus, whether a driver sees them or not."""
        return tuple(device for device in self.pci if device.is_nvidia_gpu)

    @part
    def units(self) -> Mapping[str, Unit]:
        """The units that were asked for; one that does not exist has load state `not-found`."""
        raw = self.raw("units")
        return parse_units(raw["text"], raw.get("commands", {}))

    @part
    def sshd(self) -> Mapping[str, tuple[str, ...]]:
        """`sshd -T` for the user who logs in."""
        return parse_sshd(self.raw("sshd")["text"])

    @part
    def sshd_arguments(self) -> Mapping[str, str]:
        """Keyword in lower case → value that sshd was started with (`-o`); `-f` → another file."""
        words = list(self.raw("sshd").get("arguments", ()))
        given = {word[:2]: words[at + 1] for at, word in enumerate(words[:-1]) if word == "-f"}
        pairs = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "-o"]
        pairs += [word[2:] for word in words if word.startswith("-o") and len(word) > 2]
        split = (re.split(r"[\s=]+", pair, maxsplit=1) for pair in pairs)
        return {**given, **{pair[0].lower(): pair[-1] for pair in split}}

    @part
    def sshd_lines(self) -> tuple[tuple[str, str], ...]:
        """`path:line` and text of sshd's files in the order of reading: the first word counts."""
        return tuple((place, line) for place, line in self.raw("sshd").get("lines", ()))

    @part
    def listening(self) -> Mapping[str, tuple[int, ...]]:
        """Program → TCP ports that it listens on."""
        return parse_listening(self.raw("listening")["text"])

    @part
    def firewall(self) -> Table | None:
        """Our nftables table; `None` when there is none."""
        found = self.raw("firewall")
        return parse_table(found["text"], found.get("flushing", ""))

    @part
    def undone(self) -> str | None:
        """Why the node gave back its old SSH and firewall, since the last change of them that was kept."""
        value = self.raw("undone")["text"]
        return None if value is None else str(value)

    @part
    def sysctls(self) -> Mapping[str, str | None]:
        """The sysctls that were asked for; `None` when this kernel has none of that name."""
        values: Mapping[str, str | None] = dict(self.raw("sysctls"))
        return values

    @part
    def boot_sysctls(self) -> Mapping[str, InForce]:
        """The sysctls that were asked for, as the next boot sets them."""
        return {name: InForce(value, place) for place, name, value in self.raw("boot_sysctls")}

    @part
    def hugepages(self) -> str | None:
        """`always`, `madvise` or `never`; `None` for a kernel without them."""
        found = re.search(r"\[(\w+)\]", self.raw("hugepages")["transparent"] or "")
        return found[1] if found else None

    @part
    def limits(self) -> ResourceLimits:
        """PAM's limits and systemd's defaults."""
        raw = self.raw("limits")
        places = {line.partition("=")[0].strip(): place for place, line in raw.get("systemd_lines", ())}
        return ResourceLimits(tuple(parse_pam(raw["pam"])), parse_properties(raw["systemd"]), places)

    @part
    def daemon_json(self) -> Mapping[str, Any] | None:
        """Docker's daemon.json, secrets blotted out on the node; `None` when there is none."""
        value = self.raw("daemon_json")["value"]
        return None if value is None else dict(value)

    @part
    def containerd(self) -> Containerd:
        """What containerd makes of its configuration, registries left out; empty where no one asked it."""
        try:
            return parse_containerd(self.raw("containerd")["dump"] or "")
        except ValueError as error:
            raise Missing("containerd", f"its configuration as it prints it is not TOML: {error}") from None

    @part
    def nccl(self) -> Nccl:
        """NCCL's configuration and libraries."""
        raw = self.raw("nccl")
        own = {path: parse_nccl_conf(text) for path, text in raw.get("own", {}).items()}
        return Nccl(parse_nccl_conf(raw["conf"] or ""), own, raw["libraries"])

    @part
    def nics(self) -> Mapping[str, Nic]:
        """Network interfaces by name."""
        return parse_nics(self.raw("nics"))

    @part
    def hcas(self) -> tuple[Hca, ...]:
        """Ports of RDMA devices."""
        return parse_hcas(self.raw("hcas"))

    @part
    def cpu(self) -> Cpu:
        """Processors and NUMA nodes."""
        return parse_cpu(self.raw("cpu"))

    @part
    def memory(self) -> Memory:
        """Memory, swap and huge pages."""
        return parse_memory(self.raw("memory")["text"])

    @part
    def disks(self) -> tuple[Disk, ...]:
        """Block devices."""
        return tuple(parse_disks(self.raw("disks")))

    @part
    def mounts(self) -> Mapping[str, Mount]:
        """Mounted file systems of real devices and networks, by mount point."""
        return parse_mounts(self.raw("mounts")["text"])

    @part
    def scratch(self) -> Mapping[str, Mapping[str, Any]]:
        """Mount point → `filesystem`, `fstab` (its source there), `read_ahead_kib`; None for what is not."""
        return {mount: dict(values) for mount, values in self.raw("scratch").items()}

    @part
    def variables(self) -> Variables:
        """What logins and services really get, of the names that were asked for only."""
        return parse_variables(self.raw("variables"))

    @part
    def unpackaged(self) -> Unpackaged:
        """What a driver, CUDA or a library of theirs left from outside of the package manager."""
        return parse_unpackaged(self.raw("unpackaged"))

    @part
    def offers(self) -> tuple[Offer, ...]:
        """Sources of others that bring packages which the lock names, or NVIDIA's."""
        rows = self.raw("offers")
        return tuple(Offer(place, uri, unsigned, tuple(names)) for place, uri, unsigned, names in rows)

    @part
    def environment(self) -> Mapping[str, Mapping[str, str]]:
        """File → variable → value, of the names that were asked for only."""
        return {path: dict(values) for path, values in self.raw("environment").items()}

    @part
    def gpu_use(self) -> GpuUse:
        """Who holds the GPUs."""
        raw = self.raw("gpu_use")
        return GpuUse({int(pid): name for pid, name in raw["processes"].items()}, tuple(raw["containers"]))

    @part
    def files(self) -> Mapping[str, FileFact]:
        """The files that were asked for, by path."""
        return {row["path"]: FileFact(**row) for row in self.raw("files")}

    @part
    def secure_boot(self) -> SecureBoot:
        """What firmware, shim and kernel enforce, and whose certificates they hold."""
        return parse_secure_boot(self.state.secure_boot, self.raw("secure_boot"))

    @part
    def state(self) -> NodeState:
        """What the last installation or boot left behind."""
        raw = self.raw("state")
        return NodeState(
            reboot_required=raw["reboot_required"],
            reboot_packages=tuple(raw["reboot_packages"]),
            secure_boot=raw["secure_boot"],
            cloud_init=raw["cloud_init"],
            foreign_drivers=tuple(raw["foreign_drivers"]),
            free_mib=raw["free_mib"],
            device_nodes=tuple(raw["device_nodes"]),
            package_manager_busy=raw["package_manager_busy"],
        )


def _about_smi(reason: str) -> str:
    return reason if reason.startswith("nvidia-smi") else f"nvidia-smi: {reason}"


def _failed(value: Any) -> bool:
    return isinstance(value, Mapping) and "error" in value
