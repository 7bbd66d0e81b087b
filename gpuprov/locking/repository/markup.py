"""Reader of the XML documents of an rpm repository, which another person may have made to fill the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from xml.etree import ElementTree

from gpuprov.errors import InvalidInput

EXPECTED = "metadata of an rpm repository"
NAMES = 1000
"""Maximum number of names of elements and attributes in a document: primary.xml has 40."""
LONG_NAMESPACE = re.compile(rb"xmlns(?::[^\s=:]*)?\s*=\s*(?:\"[^\"]{200}|'[^']{200})")
"""A declaration of a namespace with 200 characters or more."""


def root_of(content: bytes, name: str) -> ElementTree.Element:
    """Return the root element of a small XML document; raises as `elements`."""
    *_, (_, root) = elements(BytesIO(content), name)
    return root


def elements(content: BytesIO, name: str) -> Iterator[tuple[str, ElementTree.Element]]:
    """Yield `start` or `end` and the element, for each begin and end of an element of an XML document.

    The parser keeps each name that it has seen, with its whole namespace.

    Raises:
        InvalidInput: it is not XML in UTF-8; it has a document type, whose entities could expand to any size,
            a long namespace, or more than `NAMES` names.
    """
    whole, names = content.getvalue(), set[str]()
    for seen, found in (
        ("has a document type", b"<!DOCTYPE" in whole),
        ("is not XML in UTF-8", b"\0" in whole),
        ("has a long namespace", LONG_NAMESPACE.search(whole)),
    ):
        if found:
            raise InvalidInput(f"{name} {seen}", expected=EXPECTED)
    parser = ElementTree.XMLParser(encoding="utf-8")  # noqa: S314 - whatever encoding it states; no entities
    try:
        for event, element in ElementTree.iterparse(content, ("start", "end"), parser):  # noqa: S314
            if event == "start":
                names |= {element.tag, *element.attrib}
            if len(names) > NAMES:
                raise InvalidInput(f"{name} has more than {NAMES} names", expected=EXPECTED)
            yield event, element
    except ElementTree.ParseError as error:
        raise InvalidInput(f"{name} is not XML: {error}", expected=EXPECTED) from error
