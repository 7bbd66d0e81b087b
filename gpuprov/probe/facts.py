"""Facts of a node: one document, whose parts are parsed at their first use.

`Facts` keeps the document, without collectors that have too much text. Each part is a property that parses
its collector's raw values once. If the collector failed, timed out or does not exist on that system, the
property raises `Missing`, whose reason completes a sentence that starts with "unknown because". `nvidia-smi`
is the exception: its failures are facts (`Smi.error`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any, TypeVar, overload

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.finding import shortened
from gpuprov.probe.parse.apt import Apt, parse_apt
from gpuprov.probe.parse.containers import (
    Containerd,
    Podman,
    Toolkit,
    parse_containerd,
    parse_podman,
    parse_toolkit,
)
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
from gpuprov.probe.parse.imex import Imex, parse_imex
from gpuprov.probe.parse.limits import ResourceLimits, parse_pam
from gpuprov.probe.parse.loading import Loading, NextKernel, parse_loading, parse_next_kernel
from gpuprov.probe.parse.mig import MigInstance, parse_mig, parse_mig_instances
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
from gpuprov.probe.parse.nftables import Flushing, Table, parse_flushing, parse_table
from gpuprov.probe.parse.packages import (
    Candidates,
    ChangedFile,
    Packages,
    parse_candidates,
    parse_dpkg,
    parse_package_files,
    parse_rpm,
    parse_versionlock,
)
from gpuprov.probe.parse.pci import PciDevice, parse_pci
from gpuprov.probe.parse.smi import Smi, parse_smi
from gpuprov.probe.parse.sshd import SshdAnswer, parse_answers, parse_sshd
from gpuprov.probe.parse.state import (
    FileFact,
    GpuUse,
    Holding,
    Nccl,
    NodeState,
    SecureBoot,
    parse_holding,
    parse_nccl_conf,
    parse_secure_boot,
)
from gpuprov.probe.parse.system import Kernels, Os, parse_kernels, parse_os_release
from gpuprov.probe.parse.units import Unit, parse_properties, parse_units
from gpuprov.probe.parse.verdict import NodeVerdict, parse_verdict
from gpuprov.untrusted import architecture, host_name, kernel_release, shown
from gpuprov.untrusted.numbers import finite

SCHEMA = "gpuprov.facts/1"
A_YEAR_S = 366 * 86400
TEXT = 1 << 20
"""Maximum number of characters in all texts of a collector, for collectors that `TEXTS` does not list.

It bounds the time of a reader, during which nothing else runs: recorded collectors have at most 10 kB, and
some 200 kB on nodes with many packages or sources.
"""
TEXTS = {"smi": 4 << 20, "kernel_log": 4 << 20, "programs": 4 << 20}
"""Collectors with more text: a GPU has 30 kB in nvidia-smi, the kernel log 4,000 lines of up to 600."""


class Missing(NodeFailed):
    """A value that a node did not report: `collector` failed for `reason`."""

    def __init__(self, collector: str, reason: str) -> None:
        self.collector, self.reason = collector, shortened(reason)
        super().__init__(f"{collector}: {self.reason}")


T = TypeVar("T")


class part(cached_property[T]):  # noqa: N801
    """A property of the facts, parsed at its first use; `Missing` if the node sent a malformed value."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> part[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> T | part[T]:
        """Return the part. A failure is kept as well: each check would parse the value again.

        Raises:
            Missing: the collector failed, or its values cannot be parsed.
        """
        name = str(self.attrname).lstrip("_")
        known: dict[str, tuple[str, str]] = {}
        if instance is not None:
            known = instance.__dict__.setdefault("_missing", known)
        if name in known:
            raise Missing(*known[name])
        try:
            return super().__get__(instance, owner)
        except Missing as missing:
            known[name] = missing.collector, missing.reason
            raise
        except NodeFailed as error:
            known[name] = name, str(error)
            raise Missing(*known[name]) from error
        except GpuprovError:
            raise
        except Exception as error:  # any: the value is untrusted input
            known[name] = name, f"not as the probe sends it ({type(error).__name__})"
            raise Missing(*known[name]) from error


@dataclass(frozen=True)
class Facts:
    """One node's facts (`gpuprov.facts/1`).

    Args:
        host: the node's own host name.
        collected_at: UTC, ISO 8601.
        seconds: wall time of the collection on the node.
        collectors: raw values by collector; a failed one is `{"error": reason}`.

    Raises:
        Missing: each property, if its collector did not run, failed, or sent a malformed value.
    """

    host: str
    collected_at: str
    seconds: float
    collectors: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Replace each collector that has too much text by an error, also in facts that a worker sent."""
        limited = {name: _limited(name, value) for name, value in self.collectors.items()}
        object.__setattr__(self, "collectors", limited)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Facts:
        """Return facts from the probe's document; a collector with too much text becomes an error.

        Raises:
            NodeFailed: it is not a document of this schema.
        """
        if answer.get("schema") != SCHEMA or not isinstance(answer.get("collectors"), Mapping):
            raise NodeFailed(f"facts of schema {shown(answer.get('schema'))}", expected=SCHEMA)
        seconds = answer.get("seconds") or 0
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < A_YEAR_S:
            raise NodeFailed("facts whose collection took no number of seconds", expected=SCHEMA)
        return cls(
            host_name(answer["host"]) if answer.get("host") else "",
            str(answer.get("collected_at", "")),
            float(seconds),
            {str(name): value for name, value in answer["collectors"].items()},
        )

    def to_answer(self) -> dict[str, Any]:
        """Return the document as it is recorded and printed."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "collected_at": self.collected_at,
            "seconds": self.seconds,
            "collectors": dict(self.collectors),
        }

    @property
    def missing(self) -> dict[str, str]:
        """Collector that failed or timed out → the reason; without collectors that were not requested."""
        return {
            name: shortened(str(value["error"])) for name, value in self.collectors.items() if _failed(value)
        }

    def raw(self, collector: str) -> Any:
        """Return a collector's raw values.

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
        """Kernels: the running one, those on disk, and the next one."""
        return parse_kernels(self.raw("kernels"), self.kernel)

    @part
    def kernel(self) -> str:
        """Release of the running kernel (`uname -r`)."""
        return kernel_release(self.raw("system")["kernel"])

    @part
    def arch(self) -> str:
        """The machine's architecture (`uname -m`): `x86_64`, `aarch64`."""
        return architecture(self.raw("system")["machine"])

    @part
    def boot_id(self) -> str:
        """The kernel's boot ID, which changes with every boot."""
        return str(self.raw("system")["boot_id"])

    @part
    def uptime(self) -> float:
        """Seconds since boot."""
        return finite(self.raw("system")["uptime"])

    @part
    def cmdline(self) -> str:
        """The running kernel's command line; secrets are removed on the node."""
        return str(self.raw("system")["cmdline"])

    @part
    def is_root(self) -> bool:
        """Whether the probe ran as root; if not, sshd's settings, efivars and some files are unknown."""
        return bool(self.raw("system")["uid"] == 0)

    @part
    def packages(self) -> Packages:
        """The requested packages; with dpkg also all held or broken ones."""
        raw = self.raw("packages")
        if raw["manager"] == "dpkg":
            return parse_dpkg(raw["text"], bool(raw["interrupted"]))
        return parse_rpm(raw["text"], parse_versionlock(raw["locks"]))

    @part
    def dpkg_refuses(self) -> str:
        """Message of dpkg if it cannot read its settings and installs nothing; else empty, also with rpm."""
        return str(self.raw("packages").get("refused", ""))

    @part
    def package_files(self) -> tuple[ChangedFile, ...]:
        """Files of held packages that are missing, diverted or changed since the last apply; 200 at most."""
        return parse_package_files(self.raw("package_files"))

    @part
    def candidates(self) -> Candidates:
        """Versions that apt prefers to the held packages' installed ones by a higher priority.

        A newer version of the same priority does not count. If no source offers the installed one, only
        priorities from 1000 on count; if preferences exclude all versions, the version is `none`.
        """
        return parse_candidates(self.raw("candidates"))

    @part
    def apt(self) -> Apt:
        """Package sources, trusted keys, pins, and settings of automatic upgrades, of apt or dnf.

        Raises:
            Missing: apt cannot read its settings.
        """
        raw = self.raw("sources")
        if refused := raw.get("refused"):
            raise Missing("sources", str(refused))
        return parse_apt(raw)

    @part
    def own_sources(self) -> tuple[tuple[str, str], ...]:
        """(First digits of the SHA-256, text without keys) of each paragraph of gpuprov's own sources.

        With dnf also of each of its key files, as `# key of NAME`.
        """
        return tuple((str(digest), str(text)) for digest, text in self.raw("sources").get("own", ()))

    @part
    def source_files(self) -> frozenset[str]:
        """Paths of all files with package sources, gpuprov's own included."""
        return frozenset(map(str, self.raw("sources")["files"]))

    @part
    def loaded_modules(self) -> Mapping[str, int | None]:
        """Loaded NVIDIA, nouveau and RDMA modules → number of users."""
        return parse_proc_modules(self.raw("modules")["loaded"])

    @part
    def loaded_driver(self) -> LoadedDriver | None:
        """The loaded NVIDIA module; `None` without a loaded one."""
        return parse_driver_version(self.raw("modules")["driver"] or "")

    @part
    def driver_parameters(self) -> Mapping[str, str]:
        """Parameters of the loaded module, from /proc/driver/nvidia/params: `RmProfilingAdminOnly` → `1`."""
        pairs = (line.partition(":") for line in (self.raw("modules")["params"] or "").splitlines())
        return {name.strip(): value.strip() for name, colon, value in pairs if colon}

    @part
    def disk_modules(self) -> Mapping[str, Mapping[str, DiskModule]]:
        """Kernel → requested module → output of modinfo for the file that modprobe would load there.

        Of at most 8 kernels, those with the newest modules.dep.
        """
        return parse_disk_modules(self.raw("disk_modules"))

    @part
    def dkms(self) -> tuple[DkmsModule, ...]:
        """Builds of DKMS; empty without DKMS."""
        return tuple(DkmsModule(*row) for row in self.raw("dkms"))

    @part
    def modprobe(self) -> Modprobe:
        """Settings of modprobe.d, modules-load.d and the kernel's command line for the requested modules."""
        return parse_modprobe(((place, line) for place, line in self.raw("modprobe")), self.cmdline)

    @part
    def loading(self) -> Loading:
        """Results of modprobe's dry run by kernel, of at most 8 kernels with a module of NVIDIA's."""
        return parse_loading(self.raw("loading"))

    @part
    def old_initramfs(self) -> Mapping[str, tuple[str, ...]]:
        """Kernel → its images with NVIDIA's modules that are older than the modules on disk; often none.

        Empty if no setting adds the modules to images.
        """
        return {str(kernel): tuple(paths) for kernel, paths in self.raw("initramfs").items()}

    @part
    def next_kernel(self) -> NextKernel:
        """Hooks and settings that decide whether a new kernel gets the driver's module."""
        return parse_next_kernel(self.raw("next_kernel"))

    @part
    def smi(self) -> Smi:
        """Output of nvidia-smi; if it is not installed, timed out or failed, `error` is set.

        Raises:
            Missing: it was not requested; or number or names of programs make it too long or ambiguous, or
                leave no room to start it, which is no fault of the driver.
        """
        try:
            raw = self.raw("smi")
        except Missing as missing:
            if missing.collector not in self.collectors or _NOT_OF_SMI.search(missing.reason):
                raise
            return Smi(error=_about_smi(missing.reason))
        found = parse_smi(raw["stdout"], raw["stderr"])
        if found.is_ambiguous:
            raise Missing("smi", found.error or "")
        return found

    @part
    def mig(self) -> Mapping[int, tuple[str, ...]]:
        """Index of a GPU → profiles of its instances, sorted.

        Empty if instances were not requested, or if nvidia-smi lists none or fails.
        """
        return parse_mig(self.raw("mig")["text"])

    @part
    def mig_instances(self) -> tuple[MigInstance, ...]:
        """GPU instances with their device files, by the GPU's minor number, or by its index without one.

        Empty if they were not requested; `Missing` also without `smi`.
        """
        raw = self.raw("mig")
        minors = {gpu.index: gpu.minor for gpu in self.smi.gpus if gpu.minor is not None}
        return parse_mig_instances(raw["text"], raw.get("capabilities") or {}, minors)

    @part
    def pci(self) -> tuple[PciDevice, ...]:
        """PCI devices of NVIDIA and Mellanox, and network and NVMe devices of any vendor."""
        return parse_pci(self.raw("pci"))

    @part
    def pci_gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA GPUs on the bus, with or without a driver."""
        return tuple(device for device in self.pci if device.is_nvidia_gpu)

    @part
    def units(self) -> Mapping[str, Unit]:
        """The requested units; one that does not exist has load state `not-found`."""
        raw = self.raw("units")
        return parse_units(
            raw["text"],
            raw.get("commands", {}),
            raw.get("states", ""),
            raw.get("replaced", {}),
            [str(name) for name in raw.get("gone", ())],
            raw.get("programs", {}),
            raw.get("unmet", {}),
        )

    @part
    def sshd(self) -> Mapping[str, tuple[str, ...]]:
        """`sshd -T` of the first listener for the login user: keyword → values; empty without sshd."""
        return parse_sshd(self.raw("sshd")["text"])

    @part
    def sshd_answers(self) -> tuple[SshdAnswer, ...]:
        """Options of each listening sshd by user and address, or of an installed one if none listens.

        Empty without sshd.
        """
        return parse_answers(self.raw("sshd"))

    @part
    def sshd_unclear(self) -> str:
        """Listening sshd processes that could not be asked, with the reasons; empty without one."""
        return "; ".join(str(reason) for reason in self.raw("sshd")["unclear"])

    @part
    def sshd_unread(self) -> tuple[str, ...]:
        """sshd's files that changed after a listening sshd has read them."""
        return tuple(str(path) for path in self.raw("sshd")["unread"])

    @part
    def origin(self) -> str:
        """Address from which the node receives the controller's SSH connection; 127.0.0.1 without SSH."""
        return str(ip_address(str(self.raw("origin"))))

    @part
    def login_groups(self) -> tuple[str, ...]:
        """Names of the login's groups; empty if there is no such account."""
        return tuple(str(name) for name in self.raw("login_groups"))

    @part
    def sshd_unlabelled(self) -> Mapping[str, str | None]:
        """Requested ports that SELinux does not give to sshd → place where the site gives another type."""
        rows = self.raw("port_labels").items()
        return {str(port): None if place is None else str(place) for port, place in rows}

    @part
    def sshd_astray(self) -> tuple[str, ...]:
        """Listening sshd processes that are not the main process of sshd's unit."""
        return tuple(str(process) for process in self.raw("sshd")["astray"])

    @part
    def pam(self) -> Mapping[str, tuple[tuple[str, str], ...]]:
        """PAM service (`sshd`, those that it includes, `other`) → place and text of its lines."""
        return {
            str(name): tuple((str(place), str(text)) for place, text in rows)
            for name, rows in self.raw("pam").items()
        }

    @part
    def holding(self) -> Holding:
        """How long a run has held the node, and the dead man's switch has been armed."""
        return parse_holding(self.raw("holding"))

    @part
    def listening(self) -> Mapping[str, tuple[int, ...]]:
        """`sshd` and `systemd` → TCP ports on which root's one listens, in ascending order."""
        return {str(name): tuple(sorted(map(int, ports))) for name, ports in self.raw("listening").items()}

    @part
    def firewall(self) -> Table | None:
        """gpuprov's nftables table; `None` if it does not exist."""
        return parse_table(self.raw("firewall")["text"])

    @part
    def firewall_at_boot(self) -> Table | None:
        """gpuprov's nftables table as its file loads it; `None` if that loads no such table, or fails."""
        return parse_table(self.raw("firewall").get("at_boot", ""))

    @part
    def flushing(self) -> Flushing:
        """Last configured command of each action of nftables.service, and its drop-ins.

        The unit flushes all tables; the commands decide whether gpuprov's table comes back.
        """
        return parse_flushing(self.raw("firewall").get("flushing", ""))

    @part
    def undone(self) -> str | None:
        """Reason of a rollback of SSH and firewall settings since their last confirmed change, or `None`."""
        value = self.raw("undone")["text"]
        return None if value is None else str(value)

    @part
    def sysctls(self) -> Mapping[str, str | None]:
        """The requested sysctls; `None` for one that does not exist or cannot be read."""
        values: Mapping[str, str | None] = dict(self.raw("sysctls"))
        return values

    @part
    def boot_sysctls(self) -> Mapping[str, InForce]:
        """The requested sysctls, as the next boot sets them; without those that no file of sysctl.d sets.

        The value is empty where a line with only the name takes an earlier one away. Empty if
        systemd-sysctl is masked.
        """
        return {name: InForce(value, place) for place, name, value in self.raw("boot_sysctls")}

    @part
    def hugepages(self) -> str | None:
        """Mode of transparent huge pages: `always`, `madvise` or `never`; `None` if the kernel has none."""
        found = re.search(r"\[(\w+)\]", self.raw("hugepages")["transparent"] or "")
        return found[1] if found else None

    @part
    def limits(self) -> ResourceLimits:
        """Limits of PAM and defaults of systemd."""
        raw = self.raw("limits")
        places = {line.partition("=")[0].strip(): place for place, line in raw.get("systemd_lines", ())}
        return ResourceLimits(tuple(parse_pam(raw["pam"])), parse_properties(raw["systemd"]), places)

    @part
    def daemon_json(self) -> Mapping[str, Any] | None:
        """Docker's daemon.json without secrets; `None` if it does not exist, cannot be read, or is empty.

        Raises:
            Missing: it is not a JSON object.
        """
        value = self.raw("daemon_json")["value"]
        if not isinstance(value, (dict, type(None))):
            raise Missing("daemon_json", "/etc/docker/daemon.json is not an object")
        return value

    @part
    def containerd(self) -> Containerd:
        """containerd's effective configuration without registries; empty if not requested or not installed.

        Raises:
            Missing: it is not TOML.
        """
        try:
            return parse_containerd(self.raw("containerd")["dump"] or "")
        except ValueError as error:
            raise Missing("containerd", f"its configuration as it prints it is not TOML: {error}") from None

    @part
    def podman(self) -> Podman:
        """Podman's defaults for containers; empty if it was not requested or is not installed."""
        return parse_podman(self.raw("podman"))

    @part
    def toolkit(self) -> Toolkit:
        """Configuration of NVIDIA's container toolkit, empty without one, and the CDI specifications.

        Raises:
            Missing: its configuration is not TOML.
        """
        try:
            return parse_toolkit(self.raw("toolkit"))
        except ValueError as error:
            raise Missing("toolkit", f"its config.toml is not TOML: {error}") from None

    @part
    def verdict(self) -> NodeVerdict | None:
        """The last verdict of the node's health check, None without one."""
        return parse_verdict(self.raw("health"))

    @part
    def booted_s(self) -> float:
        """Seconds since process 1 started: in a system container less than the kernel's uptime."""
        raw = self.raw("health")
        return finite(raw["uptime"]) - finite(raw["began"])

    @part
    def imex(self) -> Imex:
        """IMEX's list of nodes and its settings."""
        return parse_imex(self.raw("imex"))

    @part
    def nccl(self) -> Nccl:
        """Configuration and libraries of NCCL."""
        raw = self.raw("nccl")
        own = {path: parse_nccl_conf(text) for path, text in raw.get("own", {}).items()}
        return Nccl(parse_nccl_conf(raw["conf"] or ""), own, raw["libraries"], bool(raw.get("closed")))

    @part
    def nics(self) -> Mapping[str, Nic]:
        """Network interfaces by name, without `lo` and `veth*`; 512 at most."""
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
        """Block devices without loop and memory disks; partitions name their disk as `parent`."""
        return tuple(parse_disks(self.raw("disks")))

    @part
    def mounts(self) -> Mapping[str, Mount]:
        """Mounted file systems by mount point: of `/`, and of sources that begin with `/` or contain `:`."""
        return parse_mounts(self.raw("mounts")["text"])

    @part
    def scratch(self) -> Mapping[str, Mapping[str, Any]]:
        """Requested mount point → its values, None for what is not there.

        `filesystem`, `fstab` (the source there), `unit` (a mount unit in place of fstab), `read_ahead_kib`,
        `rule` (KiB and place of udev's rule for a source `UUID=`, else two times None).
        """
        return {mount: dict(values) for mount, values in self.raw("scratch").items()}

    @part
    def variables(self) -> Variables:
        """Effective values of the requested variables in logins, ssh commands, services and cron jobs."""
        return parse_variables(self.raw("variables"))

    @part
    def unpackaged(self) -> Unpackaged:
        """Files of the driver, CUDA or their libraries that no package contains."""
        return parse_unpackaged(self.raw("unpackaged"))

    @part
    def offers(self) -> tuple[Offer, ...]:
        """Third-party sources that offer packages of the lock, or of NVIDIA."""
        rows = self.raw("offers")
        return tuple(Offer(place, uri, unsigned, tuple(names)) for place, uri, unsigned, names in rows)

    @part
    def environment(self) -> Mapping[str, Mapping[str, str]]:
        """File (`/etc/environment`, /etc/profile.d, …) → variable → value; without files that set none of the
        requested variables.
        """
        return {path: dict(values) for path, values in self.raw("environment").items()}

    @part
    def gpu_use(self) -> GpuUse:
        """Processes with an open GPU device, and running containers of Docker with GPUs."""
        raw = self.raw("gpu_use")
        return GpuUse({int(pid): name for pid, name in raw["processes"].items()}, tuple(raw["containers"]))

    @part
    def files(self) -> Mapping[str, FileFact]:
        """The requested files, by path."""
        return {row["path"]: FileFact(**row) for row in self.raw("files")}

    @part
    def secure_boot(self) -> SecureBoot:
        """Enforcement by firmware, shim and kernel, and the certificates that they trust."""
        return parse_secure_boot(self.state.secure_boot, self.raw("secure_boot"))

    @part
    def state(self) -> NodeState:
        """Whether a reboot is required, Secure Boot, cloud-init, free space, and the rest of `NodeState`."""
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


_NOT_OF_SMI = re.compile(r"\bmore than \d+ (?:bytes|characters)\Z|\A\w{1,40}Error: \[Errno (?:11|12|23|24)\]")
"""Reason for which nvidia-smi was not started (EAGAIN, ENOMEM, ENFILE, EMFILE) or its answer not read: users
choose its length, and can have as many processes as the kernel permits.
"""


def _about_smi(reason: str) -> str:
    """Return the reason with `nvidia-smi: ` in front, unless it already begins with `nvidia-smi`."""
    return reason if reason.startswith("nvidia-smi") else f"nvidia-smi: {reason}"


def _limited(name: str, value: Any) -> Any:
    """Return a collector's values, or an error in their place if they have too much text."""
    most = TEXTS.get(name, TEXT)
    return value if _characters(value) <= most else {"error": f"more than {most} characters"}


def _characters(document: object) -> int:
    """Return the number of characters in all strings of a document."""
    found, left = 0, [document]
    while left:
        each = left.pop()
        if isinstance(each, str):
            found += len(each)
        elif isinstance(each, (list, tuple)):
            left += each
        elif isinstance(each, (dict, Mapping)):
            left += each.keys()
            left += each.values()
    return found


def _failed(value: Any) -> bool:
    """Return whether a collector's raw value is an error: a mapping with the key `error`."""
    return isinstance(value, Mapping) and "error" in value
