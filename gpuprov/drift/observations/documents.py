"""Documents that both the site and gpuprov write."""

from __future__ import annotations

from typing import Any


def within(document: Any, wanted: Any) -> Any:
    """Return the parts of a document that `wanted` contains; a site's own keys and items are ignored.

    Mappings are compared key by key at every depth. Other values are returned unchanged.
    """
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: within(document[key], value) for key, value in wanted.items() if key in document}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in wanted if item in document]
    return document
