"""The guide to GPUDirect and guests names each refusal, and what only hardware can show."""

from __future__ import annotations

import re

from tests import ROOT

GUIDE = (ROOT / "docs" / "guides" / "gpudirect.md").read_text(encoding="utf-8")
CODE = (
    "catalog/gpu_names.py",
    "locking/confidential.py",
    "locking/gpudirect.py",
    "locking/resolve/checks/rdma.py",
    "locking/resolve/checks/storage.py",
)
TOPICS = (
    "`doca_ofed`",
    "`gds`",
    "`peer_memory`",
    "order of modules",
    "`client_options`",
    "`confidential`",
    "vGPU",
)


def test_the_guide_has_each_refusal_of_the_code_and_no_other() -> None:
    code = "\n".join((ROOT / "gpuprov" / path).read_text(encoding="utf-8") for path in CODE)
    refused = set(re.findall(r"\[((?:vgpu|peer|gpudirect|confidential)-[a-z-]+)\]", code))
    refused |= set(re.findall(r'violation\(case, "([a-z-]+)"', code))
    table = GUIDE.partition("## Refusals")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == refused


def test_the_guide_lists_what_only_hardware_can_show() -> None:
    listed = GUIDE.partition("## What only hardware can show")[2]
    points = re.findall(r"^- (.+)$", listed, re.MULTILINE)
    assert [topic for topic in TOPICS if not any(point.startswith(topic) for point in points)] == []
