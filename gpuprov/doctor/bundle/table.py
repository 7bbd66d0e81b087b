"""Content of a bundle: collectors of the examination, their fields, and the patterns of their values.

A collector or field without an entry here is left out: configuration of Docker and containerd, package
sources, variables and names of programs, mounts, addresses, build logs, output of units.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.doctor.bundle.choosing import (
    Chooser,
    boolean,
    causes,
    each,
    fields,
    found,
    lines,
    matching,
    named,
    number,
    optional,
    present,
    row,
    with_part,
    words,
)
from gpuprov.doctor.bundle.kernel import log_lines
from gpuprov.doctor.bundle.smi import answer

_KERNEL = (
    r"\d{1,2}\.\d{1,3}(?:\.\d{1,4})?(?:[-.+~](?:\d{1,4}|amd64|arm64|generic|aws|azure|gcp|oracle|nvidia|cloud"
    r"|rt|lowlatency|hwe|64k|el\d{1,2}(?:_\d{1,2})?|x86_64|aarch64|default|bpo\d{0,3}|deb\d{1,2}u?\d{0,3}"
    r"|fc\d{1,3}))*"
)
_VERSION = r"(?:\d{1,3}:)?\d{1,8}(?:[.:~+-][a-z0-9]{1,12}){0,16}"
_PCI = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HEX = r"0x[0-9a-f]{1,8}"
_INT = r"-?\d{1,12}"
_CPUS = r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,200}"
_DRIVER = (
    r"nvidia(?:-nvswitch|_uvm|_drm|_modeset|_peermem|_fs)?|nouveau|nova(?:_core)?|vfio-pci"
    r"|mlx[45]_(?:core|ib|en)|virtio[-_](?:net|pci)|ena|efa|gve|ice|i40e|ixgbe|igb|e1000e?|bnxt_(?:en|re)"
    r"|hns3|nvme|pcieport|mana|irdma"
)
_HCA = r"(?:mlx[45]|irdma|bnxt_re|efa|rxe|rocep|ibp)[a-z0-9_]{0,12}"
_COUNTER = (
    rf"aer {_PCI} (?:correctable|nonfatal|fatal) (?:[A-Z][A-Za-z]{{1,19}}|TOTAL_ERR_(?:COR|NONFATAL|FATAL))"
    rf"|rdma {_HCA}/\d{{1,3}} [a-z]{{2,12}}(?:_[a-z]{{2,12}}){{1,4}}"
    r"|vm (?:pswpin|pswpout|oom_kill)|edac mc\d{1,3} [cu]e_count"
)
_MODULE = (
    r"(?:nvidia(?:_\w{2,10})?|nouveau|nova_core|gdrdrv|nv_peer_mem|mlx[45]_(?:core|ib)"
    r"|ib_(?:core|uverbs|umad))"
)
_PACKAGE = (
    r"(?:lib)?(?:nvidia|cuda|cudnn|nccl|cublas|cufft|curand|cusolver|cusparse|npp|nvjpeg|nvjitlink|nvlsm"
    r"|nvfatbin|cufile|datacenter-gpu-manager|xserver-xorg-video-nvidia|firmware-nvidia"
    r"|linux-(?:image|headers|modules|objects)|kernel|dkms)[a-z0-9.+_-]{0,60}"
)
_STATES = r"[a-z]{1,14}(?:-[a-z]{1,14})?"
_UNITS = (
    r"(?:nvidia-[a-z]{3,20}|docker|containerd|chronyd?|systemd-timesyncd|ntp(?:sec)?|kubelet|dcgm)\.service"
)
_LIBRARY = r"lib(?:cuda|cudnn|nccl|nvidia-ml|nvidia-ptxjitcompiler)\.so\.\d{1,2}"
_MEMORY = (
    r"(?:Mem|Swap)(?:Total|Free|Available|Cached)|Cached|Buffers|Dirty|Slab|Shmem|HugePages_\w{4,5}"
    r"|Hugepagesize|Committed_AS"
)

_pci, _int, _kernel, _version = matching(_PCI), matching(_INT), matching(_KERNEL), matching(_VERSION)
_port = fields(
    address=_pci,
    acs=boolean,
    bars=each(number),
    device=matching(_HEX),
    vendor=matching(_HEX),
    driver=matching(_DRIVER),
    current_link_speed=found(r"\A(\d{1,3}(?:\.\d)?) GT/s"),
    max_link_speed=found(r"\A(\d{1,3}(?:\.\d)?) GT/s"),
    current_link_width=_int,
    max_link_width=_int,
    enable=_int,
    iommu_type=matching(r"identity|DMA|DMA-FQ|auto|blocked|unmanaged"),
    lost=boolean,
    numa_node=_int,
    power_state=matching(r"D[0-3](?:hot|cold)?|unknown"),
    unplaced=each(number),
)

TABLE: Mapping[str, Chooser] = {
    "system": fields(
        kernel=_kernel,
        machine=matching(r"x86_64|aarch64|ppc64le"),
        python=_version,
        uptime=number,
        os_release=lines(r'(ID)="?([a-z]{2,20})"?', r'(VERSION_ID)="?(\d{1,4}(?:\.\d{1,2}){0,2})"?'),
        cmdline=words(
            r"(?:intel_iommu|amd_iommu|iommu|pcie_aspm|pci|nouveau\.modeset|nvidia-drm\.modeset|mitigations|numa_balancing"
            r"|transparent_hugepage|default_hugepagesz|hugepagesz|hugepages)=(?:on|off|pt|auto|always|never|madvise|realloc"
            r"|nommconf|\d{1,6}[MG]?)"
        ),
    ),
    "kernels": fields(modules=each(_kernel), boot=each(_kernel), headers=each(_kernel)),
    "sysctls": named(r"(?:kernel|vm|fs|net)(?:\.[a-z_-]{1,30}){1,4}", _int),
    "hugepages": fields(transparent=words(r"\[?(?:always|madvise|never)\]?")),
    "state": fields(
        free_mib=named(r"/(?:boot|usr|var|tmp|opt)?", number),
        reboot_required=boolean,
        device_nodes=each(matching(r"/dev/nvidia(?:\d{1,3}|ctl|-uvm(?:-tools)?|-modeset|-caps|-fs\d{1,2})?")),
    ),
    "smi": answer,
    "modules": with_part(
        "open",
        "driver",
        lambda value, _tally: isinstance(value, str) and "UNIX Open Kernel Module" in value[:200],
        driver=found(r"\ANVRM version: NVIDIA UNIX .{0,40}? (\d{3}\.\d{1,3}(?:\.\d{1,3})?)  "),
        loaded=lines(rf"({_MODULE}) (\d{{1,10}}) .{{0,400}}"),
        params=lines(r"([A-Z][A-Za-z0-9]{2,50}): (\d{1,12})"),
    ),
    "disk_modules": named(
        _KERNEL,
        lines(
            r"(filename:) {1,12}/\S{1,200}/((?:nvidia|gdrdrv)[a-z_-]{0,20}\.ko(?:\.(?:xz|zst|gz))?)",
            rf"(version:) {{1,12}}({_VERSION})",
            r"(license:) {1,12}(NVIDIA|Dual MIT/GPL)",
            rf"(vermagic:) {{1,12}}({_KERNEL})(?: .{{0,100}})?",
        ),
    ),
    "dkms_log": causes,
    "dkms": each(
        row(
            matching(r"nvidia(?:-[a-z0-9-]{1,20})?|gdrdrv"),
            _version,
            optional(_kernel),
            optional(matching(r"x86_64|aarch64")),
            matching(_STATES),
        )
    ),
    "pci": each(row(_pci, *[matching(_HEX)] * 5, _int, optional(matching(_DRIVER)))),
    "pci_links": named(_PCI, each(_port)),
    "nics": each(
        fields(
            name=matching(r"(?:eth|ib|bond|br|usb|wl)\d{1,3}|(?:en|ib|wl)[ops][a-z0-9]{1,12}|lo|docker0"),
            kind=matching(_STATES),
            driver=matching(_DRIVER),
            mtu=_int,
            numa=_int,
            speed=_int,
            state=matching(r"up|down|unknown|dormant|lowerlayerdown|notpresent|testing"),
            pci=_pci,
            default_route=boolean,
        )
    ),
    "hcas": each(
        fields(
            name=matching(_HCA),
            port=_int,
            state=matching(r"\d: [A-Z]{4,8}"),
            rate=matching(r"\d{1,4}(?:\.\d)? Gb/sec(?: \(\d{1,2}X [A-Z]{1,4}\d{0,2}\))?"),
            link_layer=matching(r"InfiniBand|Ethernet"),
            firmware=_version,
            pci=_pci,
        )
    ),
    "cpu": fields(
        logical=number,
        sockets=number,
        threads_per_core=number,
        numa=named(_INT, matching(_CPUS)),
        governors=named(r"performance|powersave|ondemand|schedutil|conservative|userspace", number),
        model=matching(
            r"(?:Intel\(R\) Xeon\(R\)|Intel Xeon|AMD EPYC|AMD Ryzen|Neoverse|Intel\(R\) Core\(TM\))"
            r"(?:[ -](?:Platinum|Gold|Silver|Processor|CPU|@|V\d|N\d|v\d|\d{1,3}-Core|\d{4,5}[A-Z]{0,2}\+?"
            r"|\d\w\d\d|Threadripper|PRO|i\d|\d\.\d{1,2}GHz))*"
        ),
    ),
    "memory": fields(text=lines(rf"({_MEMORY}): +(\d{{1,15}}(?: kB)?)")),
    "units": fields(
        text=lines(
            rf"(Id)=({_UNITS})",
            rf"(LoadState|ActiveState|SubState|UnitFileState|Result)=({_STATES})",
            r"(NRestarts|ExecMainStatus|ExecMainCode)=(\d{1,6})",
        )
    ),
    "kernel_log": fields(
        kept=log_lines,
        left_out=number,
        lines=number,
        source=matching(r"ring|journal|journal and ring"),
        since=number,
    ),
    "nvlink": fields(
        status=lines(r"(GPU \d{1,3}): .*", r"(Link \d{1,3}): (\d{1,4}(?:\.\d{1,3})? GB/s|<inactive>)"),
        errors=lines(
            r"(GPU \d{1,3}): .*",
            r"(Link \d{1,3}): ((?:[A-Z][A-Za-z]{2,10} |CRC ){1,3}Errors?(?: Count)?): (\d{1,15})",
        ),
    ),
    "topo": fields(
        text=words(r"GPU\d{1,3}|NIC\d{1,3}|X|SELF|NV\d{1,2}|SYS|NODE|PHB|PXB|PIX|N/A|[0-9][0-9,-]{0,60}")
    ),
    "counters": fields(seconds=number, first=named(_COUNTER, number), second=named(_COUNTER, number)),
    "libraries": fields(taken=named(_LIBRARY, found(r"\.so\.(\d{1,4}(?:\.\d{1,4}){0,3})\Z"))),
    "nccl": fields(libraries=named(r"/usr/lib/[a-z0-9_-]{1,24}/libnccl\.so\.\d", _version)),
    "packages": fields(
        manager=matching(r"dpkg|rpm"),
        interrupted=boolean,
        text=lines(rf"({_PACKAGE})\s(?:amd64|arm64|all|x86_64|aarch64|noarch)\s({_VERSION})\s.{{0,120}}"),
    ),
    "container_state": fields(
        toolkit=boolean,
        hook=present,
        runtime=present,
        char_links=number,
        ldconfig_exists=boolean,
        no_cgroups=boolean,
        running=lambda value, _tally: len(value) if isinstance(value, list) else 0,
    ),
    "gpu_tools": fields(snap_docker=boolean, nvidia_smi=present, nvidia_modprobe=present, imex_nodes=present),
    "host_state": fields(
        boots=each(number),
        clock=fields(
            state=number, unsynchronised=boolean, offset_us=number, worst_us=number, estimated_us=number
        ),
        cpus=fields(**dict.fromkeys(("allowed", "online", "possible", "present"), matching(_CPUS))),
        file_nr=words(_INT),
        load=words(r"\d{1,5}\.\d\d|\d{1,6}/\d{1,7}"),
        memory=lines(rf"({_MEMORY}): +(\d{{1,15}}(?: kB)?)"),
        phys_states=named(rf"{_HCA}/\d{{1,3}}", matching(r"\d: (?:[A-Z][A-Za-z]{2,26}|Phy Test)")),
        throttled=number,
        virtual=words(r"hypervisor|container"),
    ),
    "programs": fields(
        holders=each(fields(pid=number, state=matching(r"[A-Z]"), own_namespace=boolean)),
        mps=boolean,
        subnet_manager=boolean,
    ),
}
