"""Look-up of GPUs by the names that NVIDIA, `nvidia-smi`, `lspci`, clouds and shops use.

"GH200" is not "H200" and "L4" is not "L40S": words match whole. A name is looked up unchanged, then with
its memory and form separated, and without words that do not identify the model. A name that matches no GPU,
or several, raises an error with candidates that can be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.devices import Row, one_of_all
from gpuprov.catalog.gpu_words import Spoken, core, plain, squeezed, undecorated
from gpuprov.catalog.guests import is_virtual
from gpuprov.catalog.records import GpuModel, InstanceType
from gpuprov.errors import InvalidInput, Refused

_PCI = re.compile(
    r"(?P<vendor>10de[:.])?(?P<device>[0-9a-f]{4})(?:[ /](?P<subsystem>[0-9a-f]{4}[:.][0-9a-f]{4}))?"
    r"|(?P<smi>0x)(?P<packed>[0-9a-f]{4})(?:10de)?"  # nvidia-smi's pci.device_id: device before vendor
)
_COUNT = re.compile(r"(?P<count>[1-9][0-9]?)\s*[x×*](?:\s+|(?=[a-z]))(?P<name>\S.*)", re.IGNORECASE)  # noqa: RUF001
_BEFORE_FERMI = re.compile(
    r"geforce (?:[6-9][0-9]{3}|(?:g|gt|gts|gtx)? ?[1-3][0-9]{2})m?\b|quadro (?:fx|cx|nvs(?! 4200))\b"
    r"|tesla [cdms](?:870|1060|1070)\b"
)
"""Product lines before Fermi; of Fermi's, only the NVS 4200M has the name of one.

Source: Debian's list of the GPUs of https://packages.debian.org/sid/nvidia-legacy-340xx-driver.
"""
WITHOUT_NAME = "nvidia graphics device"
_MOST_CHOICES = 12
_LEAST_BEGINNING = 3


def counted(name: str) -> tuple[int | None, str]:
    """Split `8x NVIDIA H200` into (8, "NVIDIA H200"); without a count return (None, name)."""
    if match := _COUNT.fullmatch(name.strip()):
        return int(match["count"]), match["name"]
    return None, name.strip()


def find_gpus(catalog: Catalog, text: str) -> tuple[int | None, GpuModel]:
    """Return the count and model of GPUs in `8x NVIDIA H200`, or of a cloud's machine type (`p5.48xlarge`).

    The count is None without a number.

    Raises:
        InvalidInput: as `find_gpu`.
        Refused: as `find_gpu`.
    """
    number, name = counted(text)
    instance = instance_named(catalog, name) if number is None else None
    if instance is not None:
        return instance.gpus, find_gpu(catalog, instance.gpu)
    return number, find_gpu(catalog, name)


def instance_named(catalog: Catalog, name: str) -> InstanceType | None:
    """Return the machine type with that id, with its cloud (`aws:p5.48xlarge`) or without, in any case, or
    None.
    """
    if "instances" not in catalog.memo:
        spelled = {each.id.lower(): each for each in catalog.instances.values()}
        catalog.memo["instances"] = {key.partition(":")[2]: each for key, each in spelled.items()} | spelled
    found: InstanceType | None = catalog.memo["instances"].get(name.strip().lower())
    return found


def stated_device(name: str) -> str | None:
    """Return the PCI device id in capitals if the name is one (`10de:2330`); None for a product's name."""
    match = _PCI.fullmatch(undecorated(name).lower())
    return (match["device"] or match["packed"]).upper() if match else None


def find_gpu(catalog: Catalog, name: str) -> GpuModel:
    """Return the GPU with that PCI id or product name.

    A PCI id is `10de:2330` or `2330`, with `/10de:16c0` for the board. A product name is as NVIDIA,
    `nvidia-smi`, `lspci`, clouds or shops write it. An unknown PCI id with its vendor returns a GPU with a
    guessed architecture, if known ids are near.

    Raises:
        InvalidInput: the name matches no GPU of the catalog, or several; lists the candidates.
        Refused: a virtual GPU, whose guest driver is in no public repository.
    """
    if is_virtual(name):
        raise Refused(
            f"{name.strip()} is a virtual GPU: its guest driver (GRID) has the version of the"
            " hypervisor's vGPU software, and is in no public repository [vgpu-driver]",
            do="install the driver that the hypervisor or the cloud provides; gpuprov doctor judges it",
        )
    names = _names(catalog)
    said = undecorated(name)
    for look in (names.board, names.row, names.by_pci, names.listed, names.spoken):
        found = look(said)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidInput(f"GPU {name!r} is ambiguous", expected=f"one name in full{_choices(found)}")
    _check_nameable(catalog, name, said)
    near = names.holding(said) or names.holding(said.translate(LETTER_FOR_DIGIT))
    seen = "is ambiguous" if len(near) > 1 else "is not in the catalog"
    near = near or names.similar(said)
    if near:
        raise InvalidInput(f"GPU {name!r} {seen}", expected=f"one name in full{_choices(near)}")
    raise InvalidInput(
        f"GPU {name!r} {seen}",
        expected="a model, product name or PCI id (10de:2330)",
        do="`gpuprov catalog gpus` lists them all, `lspci -nn -d 10de:` shows the PCI id",
    )


def before_fermi(name: str) -> bool:
    """Return whether a product's name is that of a GPU before Fermi; the catalog has no such GPU."""
    return _BEFORE_FERMI.search(undecorated(name).lower()) is not None


def _check_nameable(catalog: Catalog, name: str, said: str) -> None:
    """Check that a text without a GPU in the catalog can be a misspelt name of one.

    Raises:
        InvalidInput: it is a PCI id with its vendor, a GPU before Fermi, or the driver's text for a GPU
            without a name.
    """
    match = _PCI.fullmatch(said.lower())
    if match and (match["vendor"] or match["smi"]):
        raise InvalidInput(
            f"no list of devices in this catalog ({catalog.as_of}) has GPU {name!r}: it is newer, or older "
            "than Fermi",
            expected="a model, product name or PCI id of `gpuprov catalog gpus`",
            do="gpuprov catalog update; or state the board and its source in a folder of catalog_dirs",
        )
    if before_fermi(said):
        raise InvalidInput(
            f"GPU {name!r} is older than Fermi: its last driver is 340.108 of December 2019, which is in no "
            "repository of this catalog",
            expected="a GPU of `gpuprov catalog gpus`",
            do="leave it to the kernel's nouveau, or take a newer GPU",
        )
    if said.lower() == WITHOUT_NAME:
        raise InvalidInput(
            f"{name!r} is what a driver prints for a GPU whose name it does not have",
            expected="the GPU's PCI id (10de:2330)",
            do="lspci -nn -d 10de:",
        )


LETTER_FOR_DIGIT = str.maketrans("Oo", "00")


def _choices(gpus: Iterable[GpuModel]) -> str:
    """Return one line for each GPU, its name in quotes to be copied; at most `_MOST_CHOICES`, then the number
    of others.
    """
    found = list(gpus)
    lines = [
        f'\n  "{gpu.id}"  ({", ".join(gpu.pci_device_ids[:4])}; {gpu.nvidia_smi_name})'
        for gpu in found[:_MOST_CHOICES]
    ]
    more = f"\n  and {len(found) - _MOST_CHOICES} more" if len(found) > _MOST_CHOICES else ""
    return "".join(lines) + more


def _names(catalog: Catalog) -> _Names:
    """Return the indexes of a catalog's names, which are made once."""
    names: _Names = catalog.memo.setdefault("names", None) or _Names(catalog)
    catalog.memo["names"] = names
    return names


class _Names:
    """Indexes of one catalog's names, each built on first use: most requests name a board."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._idle = frozenset(catalog.facts["gpus"]["idle_words"])
        self._of_boards = _index((gpu.id, key) for gpu in catalog.boards for key in _board_keys(gpu))
        for gpu in catalog.boards:  # an id takes precedence over a product name that two models share
            self._of_boards[gpu.id.lower()] = (gpu.id,)
        self._of_devices: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] | None = None
        self._cores: dict[str, tuple[str, ...]] | None = None
        self._several: dict[str, GpuModel] = {}

    def board(self, said: str) -> tuple[GpuModel, ...]:
        """Return the boards with that name, which may be any of their names, possibly empty."""
        index, simple = self._of_boards, plain(said)
        found = index.get(said.lower()) or index.get(simple) or index.get(simple.replace(" ", ""), ())
        return self._records(found)

    def row(self, said: str) -> tuple[GpuModel, ...]:
        """Return the model with that id, of the boards and the lists of devices, possibly empty."""
        return self._records((said,))

    def by_pci(self, said: str) -> tuple[GpuModel, ...]:
        """Return models by PCI id; empty if the text is not one, or no model is known or guessed.

        The model of that board; else one that represents all models of the device, or all of them if they
        differ in a field that rules use; else a guessed one, if the id is stated with its vendor.
        """
        match = _PCI.fullmatch(said.lower())
        if not match:
            return ()
        device = (match["device"] or match["packed"]).upper()
        subsystem = (match["subsystem"] or "").replace(".", ":").upper()
        boards, devices = self._catalog.boards, self._catalog.devices
        found = tuple(
            gpu for gpu in boards if (device, subsystem) == (gpu.pci_device_ids[0], gpu.pci_subsystem_example)
        )
        found = found or devices.of_board(device, subsystem)
        found = found or tuple(gpu for gpu in boards if device in gpu.pci_device_ids) or devices.of(device)
        if len(found) > 1 and (one := self._several.get(device) or one_of_all(device, found)):
            self._several[device] = one
            return (one,)
        if not found and (match["vendor"] or match["smi"]):
            guessed = devices.guess(device)
            return (guessed,) if guessed else ()
        return found

    def listed(self, said: str) -> tuple[GpuModel, ...]:
        """Return models of the lists by their names in NVIDIA's tables, or else in pci.ids; empty if none has
        the name.

        Boards whose longer names contain the name are included: one device is called just "NVIDIA H100".
        """
        if self._of_devices is None:
            named = list(self._catalog.devices.names())
            nvidias = _index((own, key) for own, row in named if _listed(row) for key in _row_keys(row))
            nvidias |= {key: (own,) for own, row in named if _listed(row) and (key := plain(row["id"]))}
            others = _index((own, key) for own, row in named for key in _other_keys(row))
            self._of_devices = nvidias, others
        simple = plain(said)
        for index in self._of_devices:
            if found := index.get(said.lower()) or index.get(simple) or index.get(simple.replace(" ", "")):
                return (*self._holding(simple, self._catalog.boards), *self._records(found))
        return ()

    def spoken(self, said: str) -> tuple[GpuModel, ...]:
        """Return models whose core name matches, and whose memory and form agree with the rest of the name.

        Without `Quadro`, models of that core name with `ada` are included. Empty if none matches. The first
        call builds the index of names, which takes longer.
        """
        if self._cores is None:
            boards = ((gpu, name) for gpu in self._catalog.boards for name in (gpu.id, gpu.nvidia_smi_name))
            rows = ((gpu, gpu.id) for gpu in self._catalog.devices.all())
            self._cores = _index((gpu.id, core(name, self._idle).model) for gpu, name in (*boards, *rows))
        spoken = core(said, self._idle)
        if not spoken.model:
            return ()
        found = self._fitting(spoken, spoken.model)
        return found if spoken.quadro else (*found, *self._fitting(spoken, f"{spoken.model}ada"))

    def _fitting(self, spoken: Spoken, model: str) -> tuple[GpuModel, ...]:
        """Return the GPUs of a core name that agree with the rest; prefer boards, then those with exactly
        that memory.
        """
        fitting = [gpu for gpu in self._records((self._cores or {}).get(model, ())) if spoken.fits(gpu)]
        for kept in (
            [gpu for gpu in fitting if gpu in self._catalog.boards]
            or [gpu for gpu in fitting if gpu.first_listed],
            [gpu for gpu in fitting if gpu.memory_gb == spoken.memory_gb],
        ):
            fitting = [gpu for gpu in fitting if gpu in kept] or fitting
        return tuple(fitting)

    def _every(self) -> Iterator[GpuModel]:
        """Yield all boards, and those models of the lists of devices that a driver lists."""
        yield from self._catalog.boards
        yield from (gpu for gpu in self._catalog.devices.all() if gpu.first_listed)

    def holding(self, said: str) -> tuple[GpuModel, ...]:
        """Return GPUs with a name that contains every word ("V100" gives nine).

        Without any, those whose id begins with the name, if it has more than `_LEAST_BEGINNING`
        characters.
        """
        simple, first = plain(said), plain(said).replace(" ", "")
        found = self._holding(simple, self._every())
        if found or not first:
            return found
        begun = (gpu for gpu in self._every() if plain(gpu.id).replace(" ", "").startswith(first))
        return tuple(begun) if len(first) > _LEAST_BEGINNING else ()

    def _holding(self, simple: str, gpus: Iterable[GpuModel]) -> tuple[GpuModel, ...]:
        """Return those GPUs with a name that contains every word of `simple`; empty for no words."""
        words = set(simple.split())
        if not words:
            return ()
        return tuple(gpu for gpu in gpus if any(words <= set(each.split()) for each in _plains(gpu)))

    def similar(self, said: str) -> tuple[GpuModel, ...]:
        """Return at most five GPUs with a similarly spelled id, the most similar first."""
        known = {plain(gpu.id): gpu for gpu in self._every()}
        return tuple(known[key] for key in get_close_matches(plain(said), known, n=5, cutoff=0.5))

    def _records(self, ids: Iterable[str]) -> tuple[GpuModel, ...]:
        """Return the GPUs with these ids; an unknown id is left out."""
        return tuple(gpu for each in ids if (gpu := self._catalog.gpu(each)))


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return name → ids, from pairs of an id and a name."""
    index: dict[str, tuple[str, ...]] = {}
    for own, key in pairs:
        if own not in index.get(key, ()):
            index[key] = (*index.get(key, ()), own)
    return index


def _plains(gpu: GpuModel) -> set[str]:
    """Return a GPU's names in the form of `plain`: id, product name, aliases, and the name in brackets of
    pci.ids.
    """
    names = [gpu.id, gpu.nvidia_smi_name, *gpu.aliases]
    if bracket := re.search(r"\[(.+)\]", gpu.pci_ids_name or ""):
        names.append(bracket[1])
    return {plain(name) for name in names}


def _board_keys(gpu: GpuModel) -> Iterator[str]:
    """Yield the names by which a board is found: plain ones, also without spaces, and the product name."""
    yield from squeezed(_plains(gpu))
    yield gpu.nvidia_smi_name.lower()


def _listed(row: Row) -> bool:
    """Return whether a driver's list has a device of the row."""
    return any(row["devices"].values())


def _row_keys(row: Row) -> Iterator[str]:
    """Yield a row's names, including that of `nvidia-smi`, which a laptop model often shares."""
    yield from squeezed({plain(row["id"]), plain(row["name"])})
    yield row["name"].lower()


def _other_keys(row: Row) -> Iterator[str]:
    """Yield a row's names in pci.ids; `Mobile / Max-Q` gives both names."""
    for name in (row["name"], *row.get("lspci", ())):
        both = [name, *(name.replace(text, "") for text in (" / Max-Q", "Max-Q / ") if text in name)]
        yield from squeezed({plain(each) for each in both})
