"""Verification of a tree that is to be an image, before any machine is made from it."""

from __future__ import annotations

import json

from gpuprov_lab.tree import Tree


def left_for_the_first_boot(tree: Tree, verify: str) -> set[str]:
    """Verify a tree with the driver, Docker and pins; return the checks that wait for the first boot.

    Args:
        verify: `gpuprov verify --image …`, as it is called in the tree.
    """
    judged = json.loads(tree.run(f"{verify} -o json 2>/dev/null"))
    checks = {check["check"] for node in judged["nodes"] for check in node["checks"]}
    waiting = {check for each in judged["not_judged"].values() for check in each}
    print(f"{len(checks)} checks judged, {len(waiting)} left: {judged['not_judged']}")  # noqa: T201
    assert judged["summary"]["passed"] == 1, judged
    assert {"driver.packages", "driver.module_on_disk", "docker.packages", "pins.hold"} <= checks
    assert {"driver.loaded", "gpu.count", "docker.unit", "gpu.clocks"} <= waiting
    assert not checks & waiting
    return waiting
