"""Parser of `nvidia-smi -q -x` for any driver from 340 to today: complete, truncated, or an error message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element, ParseError, fromstring

from gpuprov.probe.parse.gpu import Gpu, read_gpu
from gpuprov.probe.parse.smi_names import GPU_BEGIN, AmbiguousNames, gpu_pieces, plain_names
from gpuprov.probe.parse.values import integer, text_or_none
from gpuprov.untrusted import regex

GPUS = 256
"""Maximum number of GPUs in a document."""
TAGS = 100_000
"""Maximum number of tags in a document without supported clocks; a GPU has 550, and 10 for each process."""


@dataclass(frozen=True, slots=True)
class Smi:
    """One output of nvidia-smi. With `error` set, `gpus` contains the GPUs before it, possibly none."""

    driver_version: str | None = None
    cuda_version: str | None = None
    attached: int | None = None
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    warnings: tuple[str, ...] = ()
    """Lines around the document: `WARNING: infoROM is corrupted at gpu 0000:82:00.0`."""
    is_ambiguous: bool = False
    """Whether `error` is about programs, their names or number: nothing is known about the GPUs then."""


def parse_smi(answer: str | bytes, stderr: str = "", *, repeated: bool = False) -> Smi:
    """Parse one output of `nvidia-smi -q -x`: the document, a truncated one, or its error message.

    Args:
        repeated: whether it can have several documents (--loop); then the last complete one is used. A
            node's answer has one: the name of a program can have the text of another.
    """
    try:
        text, lists = _prepared(_last_document(_read(answer)) if repeated else _read(answer))
    except AmbiguousNames as error:
        return Smi(error=str(error), is_ambiguous=True)
    if _is_too_large(text):
        return Smi(error=f"more than {GPUS} GPUs or {TAGS} tags in the document", is_ambiguous=True)
    first = text.find(_BEGIN)
    if first < 0:
        return Smi(error=_failure(text, stderr))
    end = text.rfind(_END)
    end = end + len(_END) if end > first else len(text)
    head, *pieces = gpu_pieces(text[first:end])
    gpus, faults = _gpus(pieces, lists)
    smi = Smi(
        # From driver 610 on the old names contain a notice of deprecation.
        driver_version=_field(head, "kmd_version") or _field(head, "driver_version"),
        cuda_version=_field(head, "cuda_umd_version") or _field(head, "cuda_version"),
        attached=integer(_field(head, "attached_gpus")),
        gpus=gpus,
        warnings=tuple(_sentences(text[:first] + "\n" + text[end:])),
    )
    if _END not in text:
        faults = ("the document ends in the middle",)
    return replace(smi, error=_judge(smi, faults, stderr))


def gpu_elements(answer: str | bytes) -> Iterator[tuple[int, Element]]:
    """Yield index and element of each readable GPU, for further fields than those of `Gpu`.

    The index is that of nvidia-smi, which also counts damaged elements. Supported clocks are left out; a
    document over the size limits has no elements.
    """
    try:
        text, _ = _prepared(_read(answer))
    except AmbiguousNames:
        return
    if _is_too_large(text):
        return
    for index, piece in enumerate(gpu_pieces(text)[1:]):
        try:
            yield index, _element(piece)
        except ParseError:
            continue


def _read(answer: str | bytes) -> str:
    """Decode a capture: UTF-8 or UTF-16 (a PowerShell redirection); invalid bytes are replaced."""
    if isinstance(answer, bytes):
        utf16 = answer[:2] in (b"\xff\xfe", b"\xfe\xff")
        answer = answer.decode("utf-16" if utf16 else "utf-8", errors="replace")
    return answer.replace("\r\n", "\n")


def _last_document(text: str) -> str:
    """Return a text without the documents before the last complete one, and the incomplete one after it;
    unchanged if none is complete.
    """
    first, end = text.find(_BEGIN), text.rfind(_END)
    if end <= first:
        return text
    last, _, after = text[text.rfind(_BEGIN, 0, end) :].rpartition(_END)
    return text[:first] + last + _END + after.partition(_BEGIN)[0]


def _prepared(text: str) -> tuple[str, list[str]]:
    """Return an answer with printable characters and plain names, and its lists of supported clocks.

    Raises:
        AmbiguousNames: a name has elements of GPUs.
    """
    return _set_aside(plain_names(_printable(text)))


def _is_too_large(text: str) -> bool:
    """Return whether a text has more than `TAGS` tags or `GPUS` GPUs, whose trees would take too much time
    and memory.
    """
    return text.count("<") > TAGS or text.count(GPU_BEGIN) + text.count("<gpu>") > GPUS


def _set_aside(text: str) -> tuple[str, list[str]]:
    """Replace each list of supported clocks by a number; return the text and the lists.

    They are four fifths of the text, the same for all GPUs of a model: no tree is built for them.
    """
    first, *others = text.split(_SUPPORTED_BEGIN)
    kept: list[str] = [first]
    lists: list[str] = []
    for piece in others:
        block, end, tail = piece.partition(_SUPPORTED_END)
        kept += [_SUPPORTED_BEGIN, str(len(lists)) if end else "", end, tail]
        lists.append(block)
    return "".join(kept), lists


def _printable(text: str) -> str:
    """Remove terminal sequences and characters invalid in XML.

    Most texts have none, and are returned at once.
    """
    if text.isascii() and not text.encode("ascii").translate(None, _PLAIN):
        return text
    return _UNPRINTABLE.sub("", text)


_PLAIN = bytes([9, 10, *range(0x20, 0x7F)])
_BEGIN, _END = "<nvidia_smi_log", "</nvidia_smi_log>"
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\ud800-\udfff\ufeff\ufffe\uffff]")
_GPU_END = "</gpu>"
_BARE_AMPERSAND = re.compile(r"&(?!(?:#\d+|#x[0-9a-fA-F]+|amp|lt|gt|quot|apos);)")
_SUPPORTED_BEGIN, _SUPPORTED_END = "<supported_clocks>", "</supported_clocks>"
_FRAME = re.compile(r"<\?xml[^<>]{0,200}>|<!DOCTYPE[^<>\[]{0,200}(?:\[[^\[\]]{0,4096}\]\s{0,20})?>")
_FAILURES = re.compile(
    r"NVIDIA-SMI (?:has failed|couldn't)|Failed to (?:initialize|properly shut ?down) NVML|version mismatch"
    r"|No devices were found|Unable to determine the device handle|GPU is lost|GPU access blocked"
    r"|Unknown Error|Function Not Found|Insufficient Permissions|Invalid combination of input|Killed"
    r"|nvidia-smi: (?:command )?not found|No such file or directory|Segmentation fault|Bus error"
    r"|timed out|did not answer|no answer in",
    re.I,
)


def _field(head: str, name: str) -> str | None:
    """Return the text of one element before the first GPU; None if it is missing or has no value."""
    found = re.search(rf"<{regex(name)}>([^<]{{0,400}})</{regex(name)}>", head)
    return text_or_none(found[1].strip()) if found else None


def _gpus(pieces: list[str], lists: list[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return readable GPUs, by their place in the document, and the errors of the others."""
    gpus, faults = [], []
    for index, piece in enumerate(pieces):
        try:
            gpus.append(read_gpu(index, _element(piece), lists))
        except ParseError as error:
            faults.append(f"GPU {index} of the document is damaged ({error})")
    return tuple(gpus), tuple(faults)


def _element(piece: str) -> Element:
    """Parse one GPU's element from the text after `<gpu `.

    Raises:
        ParseError: the piece is truncated or damaged, or declares a namespace.
    """
    whole, end, _ = piece.rpartition(_GPU_END)
    piece = GPU_BEGIN + (whole + end or piece)
    if "&" in piece:
        piece = _BARE_AMPERSAND.sub("&amp;", piece)
    # The parser keeps a namespace with each name. In a text this is the same word, in a declaration a damage.
    piece = piece.replace("xmlns", "xml&#110;s")
    return fromstring(piece)  # noqa: S314 - a piece has no document type


def _judge(smi: Smi, faults: tuple[str, ...], stderr: str) -> str | None:
    """Return the error of an output that contains a document; `None` if all its GPUs are readable. Without
    GPUs the failures that the driver printed.

    Args:
        faults: errors of GPUs, or of the document itself.
    """
    if faults:
        expected = f" of {smi.attached}" if smi.attached is not None else ""
        return f"{'; '.join(faults)}: {len(smi.gpus)}{expected} GPUs are readable"
    if smi.gpus:
        return None
    failed = [line for line in (*smi.warnings, *_sentences(stderr)) if _FAILURES.search(line)]
    return " ".join(failed) or "No devices were found"


def _failure(text: str, stderr: str) -> str:
    """Return one line for an output without a document: its error message, or why it is not understood."""
    lines = list(_sentences(text)) + list(_sentences(stderr))
    if not lines:
        return "nvidia-smi answered nothing"
    if "NVSMI LOG" in text:
        return "this is the text of `nvidia-smi -q`; its XML is written by `nvidia-smi -q -x`"
    if _FAILURES.search(" ".join(lines)):
        return " ".join(lines)[:600]
    return f"not an answer of nvidia-smi -q -x: {lines[0][:120]!r}"


def _sentences(text: str) -> Iterator[str]:
    """Return the lines that are not empty, stripped, without XML's declaration and document type."""
    return (line.strip() for line in _FRAME.sub("", text).splitlines() if line.strip())
