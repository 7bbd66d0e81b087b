"""Documents that a site and we both write into."""

from __future__ import annotations

from typing import Any


def within(document: Any, wanted: Any) -> Any:
    """The parts of a document that `wanted` speaks of: a site's own keys and items are its own."""
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: within(document[key], value) for key, value in wanted.items() if key in document}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in wanted if item in document]
    return document
