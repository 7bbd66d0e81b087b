"""Versions in the last reading that are gone: a driver becomes a known issue, and is no longer the newest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuprov.catalog import Catalog, Version, version
from gpuprov.locking.catalogs.refresh.proposal import Document, Proposal
from gpuprov.locking.catalogs.refresh.seen import Kind, Reading

REMEMBERED: tuple[Kind, ...] = ("driver", "cuda", "cudnn", "nccl", "container_toolkit")


def last_read(before: Document, readings: Iterable[Reading], day: str) -> Document:
    """Return the record of these readings, merged over earlier ones.

    It has the versions in each list, and the devices in each driver package that are not legacy GPUs.
    """
    lists: Document = dict(before.get("lists", {}))
    gpus: Document = dict(before.get("gpus", {}))
    for reading in readings:
        for name in reading.lists:
            held = {
                kind: sorted(
                    {str(each.version) for each in reading.seen if (each.kind, each.where) == (kind, name)}
                )
                for kind in REMEMBERED
            }
            lists[f"{reading.origin} {name}"] = {
                "read": day,
                **{kind: each for kind, each in held.items() if each},
            }
        for listed in reading.gpu_lists:
            current = sorted({gpu.device for gpu in listed.gpus if gpu.legacy_branch is None})
            gpus[listed.package.partition(" ")[0]] = {"release": str(listed.release), "devices": current}
    fields = {"lists": "what each list held when it was last read", "gpus": "devices of a driver package"}
    return {
        "as_of": day,
        "fields": fields,
        "lists": dict(sorted(lists.items())),
        "gpus": dict(sorted(gpus.items())),
    }


def propose_withdrawn(
    proposal: Proposal, catalog: Catalog, reading: Reading, before: Document, day: str
) -> None:
    """Propose a known issue for each driver that a list contained at the last reading and none contains now;
    the resolver refuses such a driver.

    Withdrawn versions of other products become remarks.
    """
    for kind in REMEMBERED:
        held = {str(each.version) for each in reading.seen if each.kind == kind}
        gone: dict[str, list[str]] = {}
        for name in reading.lists:
            last = before.get("lists", {}).get(f"{reading.origin} {name}", {})
            for each in last.get(kind, []):
                if each not in held:
                    gone.setdefault(each, []).append(f"{name} ({last['read']})")
        for each, places in gone.items():
            text = f"{kind} {each} was in {', '.join(places)} and is gone on {day}: withdrawn"
            if kind == "driver":
                _driver(proposal, catalog, reading, version(each), (text, held))
            else:
                proposal.remarks.append(f"{text}; say so in its record by hand")


def _driver(
    proposal: Proposal, catalog: Catalog, reading: Reading, release: Version, said: tuple[str, set[str]]
) -> None:
    """Propose a known issue of a withdrawn driver, and the newest one left as the newest of its branch.

    Nothing is proposed for an unknown branch, or if the issue already exists.

    Args:
        said: what was read, and the versions of drivers that are left.
    """
    text, held = said
    name, issue = str(release.major), f"withdrawn-{release}"
    branch = catalog.branches.get(release.major)
    if branch is None or proposal.record("drivers", "known_issues", issue):
        return
    left = [version(each) for each in held if version(each).major == release.major]
    record: Mapping[str, object] = {
        "id": issue,
        "kind": "withdrawn",
        "drivers": [str(release)],
        "condition": text,
        "effect": "no repository that was read holds it any longer",
        "remedy": f"driver {max(left)}" if left else "a driver of another branch",
        "source": [reading.source],
    }
    proposal.add("drivers", "known_issues", dict(record), text, reading.source)
    if branch.latest_known == release and left:
        newest = ("latest_known", str(max(left)))
        proposal.set(("drivers", "branches", name), newest, text, reading.source)
