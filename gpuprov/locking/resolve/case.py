"""Parsing of a request: names become catalog records and versions; nothing is chosen or judged yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuprov.catalog import Catalog, Version, version
from gpuprov.catalog.gpu_names import counted, find_gpus, stated_device
from gpuprov.catalog.identity import driver_text, find_arch, find_system, library_text
from gpuprov.catalog.records import Branch, Flavour, GpuModel, Policy, System, Toolkit
from gpuprov.catalog.rules.frameworks import Framework, find_framework
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve.request import ABSENT, AUTO, Request
from gpuprov.model.components import COMPONENTS

_ONE_BOARD = 32


@dataclass(frozen=True, slots=True)
class Case:
    """The fixed input: the machine and the request's statements; None for a version that is not stated."""

    catalog: Catalog
    request: Request
    gpus: tuple[GpuModel, ...]
    """The host's distinct GPU models, in the catalog's order."""
    counts: dict[GpuModel, int | None]
    """Number of GPUs by model (None: not stated)."""
    system: System | None
    """None: a known name, but no repository has that system."""
    arch: str
    policy: Policy
    devices: frozenset[str] = frozenset()
    """PCI device ids, if the request names GPUs by them."""
    driver: Version | None = None
    module: Flavour | None = None
    precompiled: bool = False
    """Whether the module must not be compiled on the machine."""
    stated: dict[str, Version] = field(default_factory=dict)
    """Stated versions of cuda, cudnn, nccl, container_toolkit, fabricmanager, docker, podman, compat; of the
    system's own Podman the catalog's version, if it has one.
    """
    absent: frozenset[str] = frozenset()
    """Components that must be absent."""
    nccl_build: Version | None = None
    framework: Framework | None = None
    gds: bool = False
    """Whether the machine needs GPUDirect Storage."""
    gds_release: Version | None = None
    """The stated release of nvidia-fs; None: the repository's newest."""
    doca: bool = False
    """Whether the machine needs DOCA-OFED."""
    doca_release: Version | None = None
    """The stated release of DOCA-OFED; None: the repository's."""


@dataclass(slots=True)
class Draft:
    """A stack under construction: a driver to try, completed by stated and chosen versions."""

    driver: Version
    branch: Branch | None
    """None: not in the catalog."""
    repository: str
    """`nvidia` or `distribution`."""
    flavour: Flavour | None = None
    cuda: Version | None = None
    toolkit: Toolkit | None = None
    """The catalog's release of `cuda`, if it has one."""
    compat: Version | None = None
    cudnn: Version | None = None
    nccl: Version | None = None
    nccl_build: Version | None = None
    container_toolkit: Version | None = None
    fabricmanager: Version | None = None
    docker: Version | None = None
    podman: Version | None = None
    passed_over: tuple[Version, ...] = ()
    """Drivers that come before this one in the policy's order, and that a security bulletin concerns."""
    chosen: set[str] = field(default_factory=set)
    """Fields that the request does not state and that now have a value."""

    def choose(self, **values: object) -> None:
        """Set fields that the request does not state, and record them as chosen; a value of None is
        ignored.
        """
        for name, value in values.items():
            if value is not None:
                setattr(self, name, value)
                self.chosen.add(name)


def understand(catalog: Catalog, request: Request) -> Case:
    """Parse a request; versions are not checked against the catalog.

    Raises:
        InvalidInput: an unknown or ambiguous name, a text that is no version, or too many GPUs.
    """
    system = find_system(catalog, request.os)
    stated: dict[str, Version] = {}
    absent = set()
    for name in (each.name for each in COMPONENTS if each.requested):
        text = getattr(request, name)
        if text is not None and text.lower() == ABSENT:
            absent.add(name)
        elif name == "podman" and text == AUTO:
            stated |= {name: system.podman} if system and system.podman else {}
        elif text is not None:
            stated[name] = version(library_text(name, text))
    framework = request.framework
    counts = _count(catalog, request.gpus)
    return Case(
        catalog=catalog,
        request=request,
        gpus=tuple(counts),
        counts=counts,
        system=system,
        arch=find_arch(request.arch) if request.arch else _own_arch(counts),
        policy=_policy(catalog, request.prefer),
        devices=frozenset(device for name in request.gpus if (device := stated_device(counted(name)[1]))),
        driver=version(driver_text(request.driver)) if request.driver else None,
        module=_flavour(request.module),
        precompiled=_precompiled(request.module_build),
        stated=stated,
        absent=frozenset(absent),
        nccl_build=_nccl_build(request.nccl),
        framework=find_framework(catalog, framework) if framework and framework.lower() != ABSENT else None,
        gds=(request.gds or ABSENT).lower() != ABSENT,
        gds_release=_release("gds", request.gds),
        doca=(request.doca_ofed or ABSENT).lower() != ABSENT,
        doca_release=_release("doca_ofed", request.doca_ofed),
    )


def _release(component: str, text: str | None) -> Version | None:
    """Return the stated release of a component; None for none, or `auto`.

    Raises:
        InvalidInput: not a version.
    """
    if text is None or text.lower() in (ABSENT, AUTO):
        return None
    return version(library_text(component, text))


def _count(catalog: Catalog, names: tuple[str, ...]) -> dict[GpuModel, int | None]:
    """Return the number of GPUs by model; None for each if no name has a count or occurs twice.

    Raises:
        InvalidInput: an unknown or ambiguous name, or more than `_ONE_BOARD` of one model.
    """
    found = [find_gpus(catalog, name) for name in names]
    total: dict[str, int] = {}
    for number, gpu in found:
        total[gpu.id] = total.get(gpu.id, 0) + (number or 1)
    if over := [gpu for gpu, number in total.items() if number > _ONE_BOARD]:
        raise InvalidInput(f"{total[over[0]]} of {over[0]} in one machine", expected=f"at most {_ONE_BOARD}")
    open_number = (
        len(found) > 0 and all(number is None for number, _ in found) and all(n == 1 for n in total.values())
    )
    models = sorted({gpu for _, gpu in found}, key=catalog.place)
    return {gpu: None if open_number else total[gpu.id] for gpu in models}


def _own_arch(counts: dict[GpuModel, int | None]) -> str:
    """Return `aarch64` if a GPU is a superchip, else `x86_64`."""
    return "aarch64" if any(gpu.superchip for gpu in counts) else "x86_64"


def _policy(catalog: Catalog, name: str | None) -> Policy:
    """Return the policy with that name, by default the catalog's default, or raise InvalidInput."""
    wanted = name or catalog.default_policy
    if wanted not in catalog.policies:
        raise InvalidInput(f"prefer: {wanted}", expected=f"one of {', '.join(catalog.policies)}")
    return catalog.policies[wanted]


def _flavour(text: str | None) -> Flavour | None:
    """Parse the flavour of kernel modules, as users write it; None if it is not stated.

    Raises:
        InvalidInput: not a flavour.
    """
    spelled = {"open": "open", "proprietary": "proprietary", "closed": "proprietary", "kernel-open": "open"}
    if text is None:
        return None
    if text.lower() not in spelled:
        raise InvalidInput(f"module {text!r}", expected="open or proprietary")
    return spelled[text.lower()]  # type: ignore[return-value]


def _precompiled(text: str | None) -> bool:
    """Return whether `module_build` is `precompiled`; InvalidInput if it is neither that, `dkms` nor None."""
    if text not in (None, "dkms", "precompiled"):
        raise InvalidInput(f"module_build {text!r}", expected="dkms or precompiled")
    return text == "precompiled"


def _nccl_build(text: str | None) -> Version | None:
    """Return the CUDA version in an NCCL version: 12.9 of `2.27.3-1+cuda12.9`; None if it states none.

    Raises:
        InvalidInput: it is not a version.
    """
    if text is None or "+cuda" not in text:
        return None
    return version(library_text("nccl", text.split("+cuda", 1)[1]))
