"""Contents of stub packages, as far as programs on a node read them: modules, libraries, programs, units.

The place of each file was read from the file lists of the real packages on machines that have them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuprov_lab.mirror.specs import PackageSpec
from gpuprov_lab.simulator import stub_module

LIBRARIES = {"apt": "usr/lib/x86_64-linux-gnu", "dnf": "usr/lib64"}
"""Package manager → folder of libraries."""
UNITS = "usr/lib/systemd/system"
DKMS = """\
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="{location}"
BUILT_MODULE_NAME[1]="nvidia-uvm"
DEST_MODULE_LOCATION[1]="{location}"
MAKE[0]="cp nvidia.stub nvidia.ko; cp nvidia.stub nvidia-uvm.ko"
CLEAN="true"
STRIP[0]="no"
AUTOINSTALL="yes"
"""
DKMS_REMOVE = """\
#!/bin/sh
set -e
if [ -d /var/lib/dkms/nvidia/{version} ]; then dkms remove nvidia/{version} --all; fi
"""
DAEMON = """\
[Unit]
Description=stub of {program}

[Service]
Type=forking
ExecStart=/usr/bin/{program}

[Install]
WantedBy=multi-user.target
"""
NVCC = """\
#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release {release}, V{version}"
"""
PROGRAM = "#!/bin/sh\necho 'a stub of the gpuprov lab mirror' >&2\nexit 1\n"
# Of an rpm, whose files dpkg cannot divert: the stub itself starts the simulator, where there is one.
RPM_PROGRAM = """\
#!/bin/sh
simulated=/usr/lib/gpuprov-sim/bin/${0##*/}
[ ! -x $simulated ] || exec $simulated "$@"
echo 'a stub of the gpuprov lab mirror' >&2
exit 1
"""
# As the %post of the real package: for the running kernel, and no failure counts.
DKMS_POST = """\
dkms add -m nvidia -v {version} --rpm_safe_upgrade || :
dkms build -m nvidia -v {version} || :
dkms install -m nvidia -v {version} --force || :
"""
DKMS_PREUN = "dkms remove -m nvidia -v {version} --all --rpm_safe_upgrade || :\n"


def with_contents(spec: PackageSpec, manager: str = "apt") -> PackageSpec:
    """Return the package with files of the real package that programs on a node read; unchanged if none are
    known.

    Args:
        manager: `apt` or `dnf`.
    """
    for pattern, fill in CONTENTS[manager].items():
        if re.fullmatch(pattern, spec.name):
            return fill(spec)
    return spec


def _upstream(spec: PackageSpec) -> str:
    """Return a package's version without epoch and revision."""
    return (
        spec.version.partition(":")[2].rsplit("-", 1)[0]
        if ":" in spec.version
        else spec.version.rsplit("-", 1)[0]
    )


def _with(spec: PackageSpec, files: Mapping[str, str | bytes]) -> PackageSpec:
    """Return the package with further files; text is encoded."""
    added = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    return replace(spec, files={**spec.files, **added})


def _module(spec: PackageSpec) -> PackageSpec:
    """Return the package with the source that DKMS builds from (building is copying), and a script that
    removes the module.
    """
    filled = _source(spec, "/updates/dkms")
    return replace(filled, scripts={"prerm": DKMS_REMOVE.format(version=_upstream(spec))})


def _kmod(spec: PackageSpec) -> PackageSpec:
    """Return the package with the source as `_module`, and the rpm's scripts, which do not look at
    /etc/dkms/no-autoinstall.
    """
    version = _upstream(spec)
    scripts = {"post": DKMS_POST.format(version=version), "preun": DKMS_PREUN.format(version=version)}
    return replace(_source(spec, "/extra"), scripts=scripts)


def _source(spec: PackageSpec, location: str) -> PackageSpec:
    """Return the package with a module's source and dkms.conf; `location` is the folder of
    the built module.
    """
    version = _upstream(spec)
    licence = "Dual MIT/GPL" if "open" in spec.name else "NVIDIA"
    folder = f"usr/src/nvidia-{version}"
    module = stub_module(version, kernel="0.0-any", licence=licence)
    settings = DKMS.format(version=version, location=location)
    return _with(spec, {f"{folder}/dkms.conf": settings, f"{folder}/nvidia.stub": module})


def _library(soname: str, manager: str = "apt") -> Callable[[PackageSpec], PackageSpec]:
    """Return the function that adds a library under its full version, its link, and the call of ldconfig."""
    folder = LIBRARIES[manager]

    def fill(spec: PackageSpec) -> PackageSpec:
        version = ".".join(_upstream(spec).split(".")[:3])
        name = f"{soname.rpartition('.so.')[0]}.so.{version}"
        filled = _with(spec, {f"{folder}/{name}": shared_library(soname)})
        scripts = {"post": "ldconfig\n", "postun": "ldconfig\n"} if manager == "dnf" else {}
        return replace(filled, links={f"{folder}/{soname}": name}, triggers=("ldconfig",), scripts=scripts)

    return fill


def _daemon(program: str, unit: str, text: str = PROGRAM) -> Callable[[PackageSpec], PackageSpec]:
    """Return the function that adds a program with this text, and the unit that starts it."""

    def fill(spec: PackageSpec) -> PackageSpec:
        started = DAEMON.format(program=program)
        return _with(spec, {f"usr/bin/{program}": text, f"{UNITS}/{unit}": started})

    return fill


def _hostengine(spec: PackageSpec) -> PackageSpec:
    """Return the package with DCGM's daemon, which runs and measures nothing."""
    unit = DAEMON.format(program="nv-hostengine -n").replace("Type=forking", "Type=simple")
    return _with(
        spec,
        {
            "usr/bin/nv-hostengine": "#!/bin/sh\nexec sleep infinity\n",
            f"{UNITS}/nvidia-dcgm.service": unit,
        },
    )


def _smi(spec: PackageSpec) -> PackageSpec:
    """Return the package with an nvidia-smi that fails."""
    return _with(spec, {"usr/bin/nvidia-smi": PROGRAM})


def _rpm_smi(spec: PackageSpec) -> PackageSpec:
    """Return the package with an nvidia-smi that runs the simulator's, or fails without it."""
    return _with(spec, {"usr/bin/nvidia-smi": RPM_PROGRAM})


def _toolkit(spec: PackageSpec) -> PackageSpec:
    """Return the package with a CUDA toolkit's nvcc and version.json."""
    version = _upstream(spec)
    release = ".".join(version.split(".")[:2])
    home = f"usr/local/cuda-{release}"
    described = f'{{"cuda": {{"name": "CUDA SDK", "version": "{version}"}}}}\n'
    nvcc = NVCC.format(release=release, version=version)
    return _with(spec, {f"{home}/bin/nvcc": nvcc, f"{home}/version.json": described})


def _cudnn_headers(path: str) -> Callable[[PackageSpec], PackageSpec]:
    """Return the function that adds a header at `path` with cuDNN's version."""

    def fill(spec: PackageSpec) -> PackageSpec:
        names = ("MAJOR", "MINOR", "PATCHLEVEL")
        lines = zip(names, _upstream(spec).split("."), strict=False)
        return _with(spec, {path: "".join(f"#define CUDNN_{name} {number}\n" for name, number in lines)})

    return fill


def _pin(spec: PackageSpec) -> PackageSpec:
    """Return the package with its preferences file, unchanged if it pins nothing.

    The package names in the real file were not read.
    """
    text = f"Package: *nvidia* cuda-drivers* libxnvctrl*\nPin: version {spec.pins}\nPin-Priority: 1000\n"
    return _with(spec, {"etc/apt/preferences.d/nvidia-driver-pin": text}) if spec.pins else spec


Fill = Callable[[PackageSpec], PackageSpec]

DEBS: dict[str, Fill] = {
    r"nvidia-driver-pinning-.*": _pin,
    r"nvidia-kernel-source(-\d+)?(-server)?(-open)?|nvidia-kernel-(open-)?dkms": _module,
    r"libnvidia-ml1|libnvidia-compute(-\d+(-server)?)?": _library("libnvidia-ml.so.1"),
    r"nvidia-utils-\d+(-server)?|nvidia-driver-cuda|nvidia-driver(-open)?": _smi,
    r"nvidia-persistenced|nvidia-compute-utils-(?:(?!580)\d+|\d+-server)": _daemon(
        "nvidia-persistenced", "nvidia-persistenced.service"
    ),
    r"nvidia-fabricmanager(-\d+)?": _daemon("nv-fabricmanager", "nvidia-fabricmanager.service"),
    r"datacenter-gpu-manager-\d+-core": _hostengine,
    r"cuda-toolkit-\d+-\d+": _toolkit,
    r"libcudnn9-cuda-\d+": _library("libcudnn.so.9"),
    r"libcudnn9-headers-cuda-\d+": _cudnn_headers("usr/include/x86_64-linux-gnu/cudnn_version_v9.h"),
    r"libnccl2": _library("libnccl.so.2"),
}
RPMS: dict[str, Fill] = {
    r"kmod-nvidia-(open|latest)-dkms": _kmod,
    r"libnvidia-ml|nvidia-driver-NVML": _library("libnvidia-ml.so.1", "dnf"),
    r"nvidia-driver-cuda": _rpm_smi,
    r"nvidia-persistenced": _daemon("nvidia-persistenced", "nvidia-persistenced.service", RPM_PROGRAM),
    r"nvidia-fabric-?manager": _daemon("nv-fabricmanager", "nvidia-fabricmanager.service", RPM_PROGRAM),
    r"datacenter-gpu-manager-\d+-core": _hostengine,
    r"cuda-toolkit-\d+-\d+": _toolkit,
    r"libcudnn9-cuda-\d+": _library("libcudnn.so.9", "dnf"),
    r"libcudnn9-devel-cuda-\d+": _cudnn_headers("usr/include/cudnn_version.h"),
    r"libnccl": _library("libnccl.so.2", "dnf"),
}
CONTENTS = {"apt": DEBS, "dnf": RPMS}
"""Package manager → pattern of a package's name → the function that adds its contents; the first match
counts. The places in rpms follow their names in Debian's packages, and were not read.
"""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")


def shared_library(soname: str) -> bytes:
    """Return an ELF object of x86-64 with nothing but its SONAME, enough for ldconfig (elf(5)), not to be
    loaded.
    """
    names = b"\0" + soname.encode() + b"\0"
    start = _HEADER.size + 2 * _SEGMENT.size
    tags = 6
    strings = start + tags * _ENTRY.size
    size = strings + len(names)
    # DT_SONAME, DT_STRTAB, DT_STRSZ, DT_SYMTAB, DT_SYMENT, DT_NULL
    dynamic = [(14, 1), (5, strings), (10, len(names)), (6, strings), (11, 24), (0, 0)]
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = _HEADER.pack(identity, 3, 62, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 2, 0, 0, 0)
    load = _SEGMENT.pack(1, 4, 0, 0, 0, size, size, 4096)
    about = _SEGMENT.pack(2, 4, start, start, start, tags * _ENTRY.size, tags * _ENTRY.size, 8)
    return header + load + about + b"".join(_ENTRY.pack(*each) for each in dynamic) + names
