"""Which GPU, which system: exact names in, catalog records out.

"GH200" is not "H200" and "L4" is not "L40S": a name matches whole or not at all. What matches nothing, or
several records, raises with the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from weakref import WeakKeyDictionary

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import Gpu, System
from gpuprov.errors import InvalidInput

_INDEX: WeakKeyDictionary[Catalog, Mapping[str, tuple[Gpu, ...]]] = WeakKeyDictionary()
_PCI = re.compile(
    r"(?:10de[:.])?(?P<device>[0-9a-f]{4})(?:[ /](?P<subsystem>[0-9a-f]{4}[:.][0-9a-f]{4}))?"
    r"|0x(?P<packed>[0-9a-f]{4})(?:10de)?"  # nvidia-smi's pci.device_id: device before vendor
)
_NOISE = re.compile(r"\b(?:nvidia|tesla|geforce|tensor core|gpu|generation|edition)\b")
_COUNT = re.compile(r"(?P<count>[1-9][0-9]?)\s*[x×*](?:\s+|(?=[a-z]))(?P<name>\S.*)", re.IGNORECASE)  # noqa: RUF001


def counted(name: str) -> tuple[int | None, str]:
    """`8x NVIDIA H200` as (8, "NVIDIA H200"); without a count (None, name)."""
    if match := _COUNT.fullmatch(name.strip()):
        return int(match["count"]), match["name"]
    return None, name.strip()


def find_gpu(catalog: Catalog, name: str) -> Gpu:
    """The GPU of that PCI id (`10de:2330`, `2330`, with `/10de:16c0` for the board), `nvidia-smi` product
    name, marketing name or alias.

    Raises:
        InvalidInput: the name fits no GPU of the catalog, or several; lists the candidates.
    """
    index = _gpu_index(catalog)
    said, plain = name.strip().lower(), _plain(name)
    found = (
        index.get(said) or index.get(plain) or _by_pci(index, said) or index.get(plain.replace(" ", ""), ())
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInput(f"GPU {name!r} is ambiguous", expected=f"one of {_listed(found)}")
    holding = _holding(catalog, name)
    near = holding or _similar(catalog, name)
    raise InvalidInput(
        f"GPU {name!r} {'is ambiguous' if len(holding) > 1 else 'is not in the catalog'}",
        expected=f"one of {_listed(near)}" if near else "a model, PCI id or product name of the catalog",
        do="`gpuprov catalog gpus` lists them all",
    )


def _gpu_index(catalog: Catalog) -> Mapping[str, tuple[Gpu, ...]]:
    if catalog not in _INDEX:
        index: dict[str, tuple[Gpu, ...]] = {}
        for gpu in catalog.gpus:
            for key in _keys(gpu):
                if gpu not in index.get(key, ()):
                    index[key] = (*index.get(key, ()), gpu)
        for gpu in catalog.gpus:  # the catalog's own name beats a product name that two models share
            index[gpu.id.lower()] = (gpu,)
        _INDEX[catalog] = index
    return _INDEX[catalog]


def _keys(gpu: Gpu) -> Iterable[str]:
    names = [gpu.id, gpu.nvidia_smi_name, *gpu.aliases]
    if bracket := re.search(r"\[(.+)\]", gpu.pci_ids_name or ""):
        names.append(bracket[1])
    plain = {_plain(name) for name in names}
    yield from plain | {name.replace(" ", "") for name in plain} | {gpu.nvidia_smi_name.lower()}
    for device in gpu.pci_device_ids:
        yield f"pci {device.lower()}"
        if gpu.pci_subsystem_example:
            yield f"pci {device.lower()} {gpu.pci_subsystem_example.lower()}"


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    text = re.sub(r"[\s_/()\[\],-]+", " ", name.lower())
    return " ".join(_NOISE.sub(" ", text).split())


def _by_pci(index: Mapping[str, tuple[Gpu, ...]], name: str) -> tuple[Gpu, ...]:
    match = _PCI.fullmatch(name)
    if not match:
        return ()
    device = match["device"] or match["packed"]
    subsystem = (match["subsystem"] or "").replace(".", ":")
    return index.get(f"pci {device} {subsystem}") or index.get(f"pci {device}", ())


def _holding(catalog: Catalog, name: str) -> tuple[Gpu, ...]:
    """GPUs one of whose names holds every word of `name`: "V100" is six of them."""
    words = set(_plain(name).split())
    return tuple(
        gpu for gpu in catalog.gpus if words and any(words <= set(key.split()) for key in _keys(gpu))
    )


def _similar(catalog: Catalog, name: str) -> tuple[Gpu, ...]:
    known = {_plain(gpu.id): gpu for gpu in catalog.gpus}
    return tuple(known[key] for key in get_close_matches(_plain(name), known, n=5, cutoff=0.5))


def _listed(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"{gpu.id} ({'/'.join(gpu.pci_device_ids)}, {gpu.nvidia_smi_name})" for gpu in gpus)


def find_system(catalog: Catalog, name: str) -> System | None:
    """The system that `name` spells (`Ubuntu 22.04`, `rocky9.4`, `bookworm`), or None when the name is
    understood and no repository of the catalog serves that release.

    Raises:
        InvalidInput: no system is called that; lists what is near.
    """
    squeezed = re.sub(r"[\s_/-]+", "", name.lower()).removesuffix("linux")
    if squeezed in catalog.systems:
        return catalog.systems[squeezed]
    match = re.fullmatch(r"([a-z]+?)(?:v|leap|linux|stream|lts)?([0-9][\w.]*)?", squeezed)
    word, number = (match[1], match[2] or "") if match else (squeezed, "")
    for family in catalog.tables["systems.families"]:
        if word in family.names:
            prefix = family.prefix or family.names[0]
            if not number and family.bare:
                return catalog.systems[family.bare]
            if number:
                wanted = prefix + _release(number, family.version)
                return catalog.systems.get(family.same.get(wanted, wanted))
        if word in family.codenames and not number:
            return catalog.systems.get(f"{family.names[0]}{family.codenames[word]}")
    if word in catalog.facts["systems"]["unserved"]:
        return None
    near = get_close_matches(squeezed, catalog.systems, n=5, cutoff=0.5) or list(catalog.systems)
    raise InvalidInput(
        f"operating system {name!r} is not known",
        expected=f"one of {', '.join(near)}",
        do="`gpuprov catalog os` lists them",
    )


def _release(number: str, scheme: str) -> str:
    """22.04 of `22.04.3` and `2204`; 9 of `9.4`; 15 of `15sp6`."""
    digits = re.match(r"[0-9]+(?:\.[0-9]+)*", number)
    parts = digits[0].split(".") if digits else [number]
    if scheme == "major":
        return parts[0]
    return f"{parts[0][:2]}.{parts[0][2:]}" if len(parts) == 1 and len(parts[0]) == 4 else ".".join(parts[:2])


def find_arch(name: str) -> str:
    """`x86_64` or `aarch64`; a name of another architecture as it stands.

    Raises:
        InvalidInput: not the name of an architecture.
    """
    spelled = name.lower().replace("-", "_")
    known = {"x86_64": "x86_64", "amd64": "x86_64", "x64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    known |= {"sbsa": "aarch64", "arm64_sbsa": "aarch64"}
    others = {"ppc64le", "ppc64el", "s390x", "riscv64", "i386", "i686", "armv7l", "armhf"}
    if spelled in known:
        return known[spelled]
    if spelled in others:
        return spelled
    raise InvalidInput(f"architecture {name!r} is not known", expected="x86_64 or aarch64 (arm64, sbsa)")


def driver_text(text: str) -> str:
    """A driver's branch or version, freed of `R`, an epoch and a package revision: `580.95.05-0ubuntu1` →
    `580.95.05`.

    Raises:
        InvalidInput: neither a branch nor a version.
    """
    return _upstream("driver", re.sub(r"^r(?=\d)", "", text.strip().lower()))


def library_text(what: str, text: str) -> str:
    """A version freed of `v`, an epoch and a package revision: `1.17.8-1` → `1.17.8`.

    Raises:
        InvalidInput: not a version.
    """
    return _upstream(what, text.strip().lower().removeprefix("v"))


def _upstream(what: str, text: str) -> str:
    match = re.fullmatch(r"(?:[0-9]+:)?([0-9]{1,5}(?:\.[0-9]{1,5})*)(?:[-~+].*)?", text)
    if not match:
        seen = text if len(text) <= 40 else text[:37] + "..."
        raise InvalidInput(
            f"{what} {seen!r} is not a version", expected="digits and dots, as 580 or 580.95.05"
        )
    return match[1]
