"""Documents that both the site and gpuprov write."""

from __future__ import annotations

from typing import Any


def within(document: Any, wanted: Any) -> Any:
    """Return the parts of a document that `wanted` contains; a site's own keys and items are ignored.

    Mappings are compared key by key at every depth. Of a list, items also count that state an option of
    `wanted` again, such as `native.cgroupdriver=cgroupfs`. Other values are returned unchanged.
    """
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: within(document[key], value) for key, value in wanted.items() if key in document}
    if isinstance(document, list) and isinstance(wanted, list):
        options = {_option(item) for item in wanted} - {""}
        again = (item for item in document if item not in wanted and _option(item) in options)
        return [*(item for item in wanted if item in document), *again]
    return document


def _option(item: Any) -> str:
    """Return the name in an item `NAME=VALUE`; empty for other items."""
    name, equals, _ = item.partition("=") if isinstance(item, str) else ("", "", "")
    return name.strip() if equals else ""
