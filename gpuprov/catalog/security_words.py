"""Sentences about versions that security bulletins concern, the same in all commands."""

from __future__ import annotations

from gpuprov.catalog.rules.security import Affected, Exposure

TITLES = {
    "driver": "driver",
    "fabricmanager": "fabric manager",
    "imex": "IMEX",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "container_toolkit": "container toolkit",
    "dcgm": "DCGM",
}
"""Component → its name in a sentence."""
NAMED_CVES = 3
"""Number of CVEs that a sentence names; bulletins about drivers have up to 80."""


def exposed_text(exposure: Exposure) -> str:
    """Return which bulletins concern a version, with the highest severity and some CVEs."""
    worst = max((each.bulletin for each in exposure.found), key=lambda bulletin: bulletin.score)
    return (
        f"{_named(exposure)} is affected by {_numbered(exposure.found)} "
        f"({worst.severity}, {worst.score:g}: {_cves(exposure.found)})"
    )


def fix_text(exposure: Exposure) -> str:
    """Return the nearest fixed version of the same line, or which bulletins have no fix there."""
    if exposure.nearest:
        return f"the nearest fixed version is {exposure.nearest}"
    verb = "names" if len(exposure.unfixed) == 1 else "name"
    return f"{_numbers(exposure.unfixed)} {verb} no fix for {line_text(exposure)}"


def line_text(exposure: Exposure) -> str:
    """Return the name of the line of a version: `driver branch 570`, `CUDA 12`."""
    title, major = TITLES[exposure.component], exposure.release.major
    if exposure.component == "container_toolkit":
        return f"the {title}"
    return f"{title} branch {major}" if exposure.component == "driver" else f"{title} {major}"


def _named(exposure: Exposure) -> str:
    """Return a component's name with its version."""
    return f"{TITLES[exposure.component]} {exposure.version}"


def _numbered(found: tuple[Affected, ...]) -> str:
    """Return bulletins by their numbers: `NVIDIA's security bulletins 5747, 5821`."""
    return f"NVIDIA's security bulletin{'s' if len(found) > 1 else ''} {_numbers(found)}"


def _numbers(found: tuple[Affected, ...]) -> str:
    """Return the numbers of bulletins, separated by commas."""
    return ", ".join(each.bulletin.id for each in found)


def _cves(found: tuple[Affected, ...]) -> str:
    """Return at most `NAMED_CVES` CVEs, those of the most severe bulletins first, and the number of the
    others.
    """
    by_score = sorted(found, key=lambda each: -each.bulletin.score)
    every = list(dict.fromkeys(cve for each in by_score for cve in each.cves))
    more = len(every) - NAMED_CVES
    return ", ".join(every[:NAMED_CVES]) + (f" and {more} more" if more > 0 else "")
