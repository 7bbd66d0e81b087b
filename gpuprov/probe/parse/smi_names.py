"""Names of programs in the output of `nvidia-smi -q -x`, which prints them as they are: users choose them.

A name can have any text: elements, line breaks, the end of the document. All else in a GPU's element is the
driver's, also its first `<processes>` and its last `</processes>`, in all cases.
"""

from __future__ import annotations

import re

GPU_BEGIN = "<gpu "
"""Begin of a GPU's element, as `gpu_pieces` leaves it."""
_REGIONS = (("<processes>", "</processes>"), ("<compute_processes>", "</compute_processes>"))
"""Elements with the processes of a GPU; the second was that of drivers before 340."""
_ONE = "<process_info>"
_NAME_BEGIN, _NAME_END = "<process_name>", "</process_name>"
_VALUE = re.compile(r"<(\w{1,40})>([^<>\n]{0,100})</\1>")
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)")
_ATTACHED = re.compile(r"<attached_gpus>\s{0,20}(\d{1,4})\s{0,20}</attached_gpus>")
_LENGTH, _PROCESSES = 4096, 4096
"""Maximum characters of a name, and processes of a GPU, that are kept."""


class AmbiguousNames(Exception):
    """Names of programs with elements of GPUs, so that it is not known which elements are the driver's."""


def plain_names(text: str) -> str:
    """Return a document whose processes have simple values, and names without elements and line breaks.

    Raises:
        AmbiguousNames: there are more GPUs than the driver states, before all names, to be there.
    """
    if _NAME_BEGIN not in text:
        return text
    head, *pieces = gpu_pieces(text)
    stated = _ATTACHED.search(head)
    if stated and len(pieces) > int(stated[1]):
        raise AmbiguousNames(
            f"nvidia-smi states {stated[1]} GPUs and lists {len(pieces)}: the name of a program has `<gpu `; "
            "expected names without XML; find it: nvidia-smi --query-compute-apps=pid,name --format=csv"
        )
    return GPU_BEGIN.join([head, *map(_plain, pieces)])


def gpu_pieces(text: str) -> list[str]:
    """Split a document at the elements of its GPUs: the text before them, and the text after each begin."""
    return text.replace("<gpu>", "<gpu >").split(GPU_BEGIN)


def _plain(piece: str) -> str:
    """Return the element of one GPU with plain processes, at most `_PROCESSES`; unchanged if it has none or
    they do not end.
    """
    for begin, end in _REGIONS:
        before, found, rest = piece.partition(begin)
        inside, closed, after = rest.rpartition(end)
        if found and closed:
            _, *infos = inside.split(_ONE)
            return before + begin + "".join(map(_info, infos[:_PROCESSES])) + end + after
    return piece


def _info(text: str) -> str:
    """Return the XML of one process with its simple values, and its name, escaped and cut at `_LENGTH`
    characters.
    """
    first, named, rest = text.partition(_NAME_BEGIN)
    name, _, last = rest.rpartition(_NAME_END)
    values = [
        f"<{tag}>{value}</{tag}>" for tag, value in _VALUE.findall(first + last) if tag != "process_name"
    ]
    if named:
        values.append(f"{_NAME_BEGIN}{_escaped(name[:_LENGTH])}{_NAME_END}")
    return f"{_ONE}{''.join(values)}</process_info>"


def _escaped(name: str) -> str:
    """Return a name on one line without elements; entities that are escaped already stay."""
    plain = _BARE_AMPERSAND.sub("&amp;", " ".join(name.split()))
    return plain.replace("<", "&lt;").replace(">", "&gt;")
