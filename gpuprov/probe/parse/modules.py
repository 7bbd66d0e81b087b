"""Parsers of kernel modules: loaded, on disk for each kernel, built by DKMS, and configured in modprobe.d."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuprov.untrusted import is_kernel_release, lines_of, vermagic
from gpuprov.untrusted.kept import kept


@dataclass(frozen=True, slots=True)
class DiskModule:
    """One module file, from modinfo(8). `open` identifies NVIDIA's open kernel module by its licence."""

    path: str
    version: str | None
    license: str | None
    vermagic: str | None
    signer: str | None
    sig_key: str | None = None
    """The certificate's serial number, `1F:2E`: with `signer`, its issuer, it identifies the certificate."""

    @property
    def signature(self) -> str | None:
        """Issuer and serial number of the certificate of its signature; `None` without a signature."""
        return f"{self.signer} {self.sig_key}" if self.signer and self.sig_key else None

    @property
    def open(self) -> bool | None:
        """Whether it is open: NVIDIA's open modules are "Dual MIT/GPL", the proprietary ones "NVIDIA"; `None`
        if unknown.
        """
        return None if self.license is None else "GPL" in self.license


@dataclass(frozen=True, slots=True)
class DkmsModule:
    """One build: `state` is `added`, `built` or `installed`; kernel and arch are empty when only added."""

    name: str
    version: str
    kernel: str
    arch: str
    state: str


@dataclass(frozen=True, slots=True)
class LoadedDriver:
    """First line of /proc/driver/nvidia/version."""

    version: str
    open: bool


@dataclass(frozen=True, slots=True)
class Modprobe:
    """Configuration in modprobe.d and on the kernel's command line, each value with its place."""

    blacklisted: Mapping[str, str]
    """Module → `path:line`, or `kernel command line`."""
    disabled: Mapping[str, str]
    """Module whose `install` line runs nothing (/bin/false, /bin/true) → `path:line`."""
    options: Mapping[str, Mapping[str, str]]
    """Module → option → value."""
    places: Mapping[tuple[str, str], str]
    """Module and option → the place that decides it."""
    lines: Mapping[tuple[str, str], tuple[str, str]]
    """Verb and module, or device → place and rest of the first such line: modprobe uses no other."""
    at_boot: Mapping[str, str]
    """Module of modules-load.d → place, in the order in which a boot loads them."""


def module_name(name: str) -> str:
    """Return the kernel's own spelling: `nvidia-uvm` and `nvidia_uvm` are one module."""
    return name.replace("-", "_")


def parse_proc_modules(text: str) -> Mapping[str, int | None]:
    """Parse /proc/modules: module → number of users; `None` on a kernel that never unloads and writes `-`."""
    rows = (line.split() for line in text.splitlines())
    users = {row[0]: row[2] for row in rows if len(row) > 2}
    return {name: int(count) if re.fullmatch(r"[0-9]{1,9}", count) else None for name, count in users.items()}


def parse_modinfo(text: str) -> DiskModule | None:
    """Parse the output of `modinfo` for one module; return `None` if it names no file.

    Raises:
        NodeFailed: the vermagic is malformed.
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    if not values.get("filename"):
        return None
    return DiskModule(
        path=values["filename"],
        version=values.get("version"),
        license=values.get("license"),
        vermagic=vermagic(values["vermagic"]) if values.get("vermagic") else None,
        signer=values.get("signer") or None,
        sig_key=values.get("sig_key") or None,
    )


def parse_disk_modules(raw: Mapping[str, str]) -> Mapping[str, Mapping[str, DiskModule]]:
    """Parse kernel → output of modinfo for several modules, to kernel → module → its file.

    A kernel whose name is not a release is left out.
    """
    by_kernel: dict[str, dict[str, DiskModule]] = {}
    for kernel, text in raw.items():
        if not is_kernel_release(kernel):
            continue
        blocks = re.split(r"^(?=filename:)", text, flags=re.MULTILINE)
        described = [module for module in map(parse_modinfo, blocks) if module]
        by_kernel[kernel] = {_stem(module.path): module for module in described}
    return by_kernel


def _stem(path: str) -> str:
    """Return the module's name of a file: `…/nvidia-uvm.ko.xz` is `nvidia_uvm`."""
    return module_name(re.sub(r"\.ko(?:\.\w+)?\Z", "", path.rpartition("/")[2]))


def parse_driver_version(text: str) -> LoadedDriver | None:
    """Parse /proc/driver/nvidia/version, whose first line names the flavour and the version; None without
    such a line.
    """
    for line in lines_of(text, _LINE):
        before, there, after = line.partition("Kernel Module")
        found = _VERSION.search(after) if there and before.startswith("NVRM version:") else None
        if found:
            return LoadedDriver(version=found[1], open="Open" in before + after[: found.start()])
    return None


# The proprietary module: `NVIDIA UNIX x86_64 Kernel Module  535.309.01  date`;
# the open one:          `NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build`.
_VERSION = re.compile(r"(?<=\s)(\d+\.\d+(?:\.\d+)?)(?:\s|\Z)")
_LINE = 500
"""Characters of a line that are searched."""
_NOTHING = ("/bin/false", "/bin/true", "/usr/bin/false", "/usr/bin/true", ":")


def parse_modprobe(lines: Iterable[tuple[str, str]], cmdline: str) -> Modprobe:
    """Parse lines of modprobe.d(5) and of modules-load.d(5) as (place, line), and the kernel's command line.

    The first place of a blacklist or an install line is kept; of an option the last value counts, and the
    command line's before all.
    """
    blacklisted: dict[str, str] = {}
    disabled: dict[str, str] = {}
    options: dict[str, dict[str, str]] = {}
    places: dict[tuple[str, str], str] = {}
    first: dict[tuple[str, str], tuple[str, str]] = {}
    at_boot: dict[str, str] = {}
    for place, line in lines:
        words = line.split()
        if "/modules-load.d/" in place and words:
            at_boot.setdefault(module_name(words[0]), place)
            continue
        if len(words) < 2:
            continue
        verb, name = words[0], module_name(words[1])
        first.setdefault((verb, name), (place, " ".join(words[2:])))
        if verb == "blacklist":
            blacklisted.setdefault(name, place)
        elif verb == "install" and len(words) > 2 and words[2] in _NOTHING:
            disabled.setdefault(name, place)
        elif verb == "options":
            options.setdefault(name, {}).update(_assignments(words[2:]))
            places.update({(name, option): place for option in _assignments(words[2:])})
    for name in named_on(cmdline):
        blacklisted.setdefault(module_name(name), ON_COMMAND_LINE)
    # modprobe reads the command line after all files (modprobe(8), MODPROBE_OPTIONS and kernel command line).
    for module, option, value in re.findall(r"(?:^|\s)([\w-]+)\.(\w+)=(\S*)", cmdline):
        options.setdefault(module_name(module), {})[option] = value
        places[module_name(module), option] = ON_COMMAND_LINE
    return Modprobe(blacklisted, disabled, options, places, first, at_boot)


ON_COMMAND_LINE = "kernel command line"


def _assignments(words: Iterable[str]) -> Mapping[str, str]:
    """Return name → value of `name=value` words; a word without `=` has an empty value."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


@kept(64, 4096)
def named_on(cmdline: str) -> tuple[str, ...]:
    """Return modules blacklisted on the command line: by modprobe (`modprobe.blacklist=`), the kernel
    (`module_blacklist=`) or dracut (`rd.driver.blacklist=`).
    """
    found = re.findall(
        r"(?:^|\s)(?:rd\.driver\.blacklist|modprobe\.blacklist|module_blacklist)=(\S+)", cmdline
    )
    return tuple(name for names in found for name in names.split(",") if name)
