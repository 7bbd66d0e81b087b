"""Words around a GPU's name: memory, form, and words that do not identify the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass

from gpuprov.catalog.records import GpuModel
from gpuprov.untrusted.kept import SHORT, kept

_NOISE = re.compile(r"\b(?:nvidia|tesla|geforce|tensor core|gpus?|generation|edition)\b")
_SAME = {"mobile": "laptop", "notebook": "laptop", "s": "super"}
_SUPER = re.compile(r"\b(\d{4})s\b")
_MEMORY = re.compile(r"(?P<gb>[0-9]{1,3})(?:g|gb|gib|go)")
_FORM = {
    "pcie": re.compile(r"pcie?[345]?"),
    "sxm": re.compile(r"sxm[2-6]?|nvlink|hgx|dgx"),
    "nvl": re.compile(r"nvl"),
}
_LSPCI = re.compile(r"nvidia corporation\"?\s+\"?(?P<rest>.+)", re.IGNORECASE)
_CHIP = re.compile(r"g[a-z]\d\w{2,5}(?: / \S+)? \[(?P<name>.+)\]", re.IGNORECASE)
_SMI_LIST = re.compile(r"gpu \d+: (?P<name>.+?) \(uuid: .*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A name split into its parts."""

    model: str
    """The remaining words, joined."""
    memory_gb: int | None
    form: str | None
    """`pcie`, `sxm` or `nvl`."""
    quadro: bool

    def fits(self, gpu: GpuModel) -> bool:
        """Return whether the GPU's memory and form in the catalog agree with the name; an unknown value
        agrees.

        Memory may differ by a tenth. Sellers round: 180 GB are sold as 192, clouds show 22 of 24.
        """
        known = gpu.memory_gb
        fits = known is None or self.memory_gb is None or abs(known - self.memory_gb) * 10 <= known
        form = _form_of(gpu)
        return fits and (self.form is None or form is None or form == self.form)


def _form_of(gpu: GpuModel) -> str | None:
    """Return a GPU's form: `nvl`, `sxm` or `pcie`, by its record and names; None if it is not known.

    Desktop and workstation boards count as `pcie`.
    """
    words = plain(f"{gpu.form_factor} {gpu.id} {gpu.nvidia_smi_name}").split()
    for form in ("nvl", "sxm", "pcie"):
        if any(_FORM[form].fullmatch(word) for word in words):
            return form
    return "pcie" if gpu.segment in ("geforce", "workstation") else None


@kept(4096, SHORT)
def plain(name: str) -> str:
    """Return a name in lower case, split into words, without words that any name may have (`nvidia`,
    `gpu`).
    """
    text = re.sub(r"[\s_/()\[\]{},;®™\"'-]+", " ", name.lower())
    words = _NOISE.sub(" ", _SUPER.sub(r"\1 super", text)).split()
    return " ".join([_SAME.get(word, word) for word in words]).replace("super ti", "ti super")


def squeezed(plains: Iterable[str]) -> set[str]:
    """Return plain names, each also without spaces; empty names are left out."""
    return {form for each in plains if each for form in (each, each.replace(" ", ""))}


def core(name: str, idle: Set[str]) -> Spoken:
    """Split a name into model, memory and form; memory and form are None if the name does not state them.

    Args:
        idle: words that do not distinguish models.
    """
    words = re.sub(r"\b(\d{1,3}) (gb|gib|g|go)\b", r"\1\2", plain(name)).split()
    memory, form, kept = None, None, []
    for word in words:
        said = _MEMORY.fullmatch(word)
        shape = next((each for each, pattern in _FORM.items() if pattern.fullmatch(word)), None)
        if said:
            memory = int(said["gb"])
        elif shape:
            form = shape
        elif word not in idle:
            kept.append(word)
    quadro = "quadro" in kept
    model = "".join(word for word in kept if word not in ("quadro", "q", "blackwell"))
    return Spoken(re.sub(r"^rtx(?=a\d{3,4})", "", model), memory, form, quadro or "q" in kept)


def undecorated(line: str) -> str:
    """Return the name in a line of `lspci` or `nvidia-smi -L`; the PCI id if the line has one.

    Another text is returned without surrounding spaces.
    """
    text = line.strip()
    if listed := _SMI_LIST.fullmatch(text):
        return listed["name"]
    if not (shown := _LSPCI.search(text)):
        named = _CHIP.fullmatch(text)
        return named["name"] if named else text
    rest = re.sub(r"\s*\((?:rev|prog-if) [^)]*\)|\"", "", shown["rest"]).strip()
    if numbered := re.search(r"\[(10de:[0-9a-f]{4})\]", rest, re.IGNORECASE):
        return numbered[1].lower()
    if unnamed := re.fullmatch(r"device ([0-9a-f]{4})", rest, re.IGNORECASE):
        return f"10de:{unnamed[1].lower()}"
    named = re.search(r"\[(.+)\]", rest)
    return named[1] if named else rest
