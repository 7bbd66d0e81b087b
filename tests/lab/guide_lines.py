"""Lines of docs/guides that start a container, as a reader types them."""

from __future__ import annotations

import re

from tests import ROOT

SEES = "/bin/sh -c 'echo /dev/nvidia[0-9]*'"
"""Program in place of nvidia-smi, which the image of a test does not have."""


def container_line(page: str, start: str, image: str) -> str:
    """Return the only line of a guide that begins with `start` and runs nvidia-smi in IMAGE, with this image
    and a command that prints the GPUs.
    """
    text = (ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"^    ({re.escape(start)}.*?) IMAGE nvidia-smi(?: *#.*)?$", text, re.MULTILINE)
    return f"{line} {image} {SEES}"
