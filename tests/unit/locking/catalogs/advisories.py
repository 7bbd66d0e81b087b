"""Small security advisories in CSAF 2.0, written by hand after the schema of OASIS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLATFORM = "architecture"


def row(platform: str, name: str, affected: str, fixed: str) -> tuple[str, str, str, str]:
    """Return one row of an advisory: platform and name of a product, affected range, fixed version."""
    return platform, name, affected, fixed


def tesla(branch: int, fixed: str, affected: str | None = None) -> tuple[str, str, str, str]:
    """Return a row about data-center GPUs on Linux."""
    return row(f"Linux(R{branch})", "Tesla", affected or f"All driver versions prior to {fixed}", fixed)


def advisory(
    number: str, cves: dict[str, list[tuple[str, str, str, str]]], **tracking: str
) -> dict[str, Any]:
    """Return an advisory in the vendor's form: CVE → its rows.

    Args:
        tracking: other values of `document.tracking`.
    """
    rows = list(dict.fromkeys(each for some in cves.values() for each in some))
    platforms = list(dict.fromkeys(each[0] for each in rows))
    return {
        "document": {
            "category": "csaf_security_advisory",
            "csaf_version": "2.0",
            "publisher": {"category": "vendor", "name": "Vendor", "namespace": "https://vendor.example"},
            "title": f"Security Bulletin: Invented {number}",
            "tracking": {
                "id": number,
                "initial_release_date": "2026-10-20T00:00:00Z",
                "current_release_date": "2026-10-20T00:00:00.000Z",
                "revision_history": [
                    {"date": "2026-10-20T00:00:00Z", "number": "1.0.0", "summary": "Initial"}
                ],
                "status": "final",
                "version": "1.0.0",
                **tracking,
            },
        },
        "product_tree": {
            "branches": [
                {
                    "category": "vendor",
                    "name": "Vendor",
                    "branches": [_platform(name, rows) for name in platforms],
                }
            ]
        },
        "vulnerabilities": [_vulnerability(cve, some) for cve, some in cves.items()],
    }


def _platform(name: str, rows: list[tuple[str, str, str, str]]) -> dict[str, Any]:
    """Return the branch of a platform, with the affected and the fixed products of its rows."""
    leaves = [leaf for each in rows if each[0] == name for leaf in (_leaf(each, 2), _leaf(each, 3))]
    return {"category": PLATFORM, "name": name, "branches": leaves}


def _leaf(each: tuple[str, str, str, str], place: int) -> dict[str, Any]:
    """Return a product of a row: that at index 2 (affected) or 3 (fixed)."""
    product = {"name": each[place], "product_id": _id(each, place)}
    return {"category": "product_version", "name": each[1], "product": product}


def _id(each: tuple[str, str, str, str], place: int) -> str:
    """Return the id of a product of a row."""
    return f"{each[0]} {each[1]} {each[place]}"


def _vulnerability(cve: str, rows: list[tuple[str, str, str, str]]) -> dict[str, Any]:
    """Return a CVE with the affected and the fixed products of the rows, and a score."""
    affected = [_id(each, 2) for each in rows]
    scores = [{"cvss_v3": {"version": "3.1", "baseScore": 7.8}, "products": affected}]
    status = {"known_affected": affected, "fixed": [_id(each, 3) for each in rows]}
    return {"cve": cve, "product_status": status, "scores": scores}


def write(folder: Path, *documents: dict[str, Any]) -> Path:
    """Write advisories as the vendor's repository has them: `2026/ID/ID.json`; return the folder."""
    for each in documents:
        number = each["document"]["tracking"]["id"]
        path = folder / "2026" / number / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each))
        (path.parent / "CVE-2026-1.json").write_text("{}")
    return folder
