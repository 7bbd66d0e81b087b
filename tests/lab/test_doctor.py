"""Doctor and status on a real node, sound and with faults."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from gpuprov_lab import Lab, Node
from tests.lab.stub_driver_node import drive

TREES = "find /etc /usr/lib/systemd /var/lib/dpkg -newer /before -type f -not -name '*.dpkg-*' | head"


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    """A node with GPUs, and a user `plain` who may log in but not use sudo."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    node.run(
        "useradd -m -s /bin/bash plain && install -d -o plain -m 700 ~plain/.ssh && "
        "install -o plain -m 600 /root/.ssh/authorized_keys ~plain/.ssh/authorized_keys"
    )
    return node


@pytest.fixture(scope="module")
def driven(node: Node) -> Node:
    """Return the node with a driver and persistence daemon."""
    drive(node)
    node.run("systemctl enable --now nvidia-persistenced; ldconfig", check=False)
    return node


def ask(node: Node, *words: str, user: str = "root", verb: str = "doctor") -> tuple[int, Any]:
    """Run a verb on the node; return its exit code and JSON."""
    way = ["-i", str(node.lab_folder / "id_ed25519"), "--known-hosts", str(node.lab_folder / "known_hosts")]
    capture = pytest.MonkeyPatch()
    said: list[Any] = []
    capture.setattr("gpuprov.cli.common.options.print_json", said.append)
    try:
        code = run([verb, f"{user}@{node.address}", *way, "-o", "json", *words])
    finally:
        capture.undo()
    return code, json.loads(json.dumps(said[0]))


def rules(document: Any) -> list[str]:
    """Return the rules of broken and degraded results, the first cause first."""
    [host] = document["hosts"]
    return [each["rule"] for each in host["faults"] if each["severity"] in ("broken", "degraded")]


def test_a_node_without_a_driver(node: Node) -> None:
    code, result = ask(node)
    assert (code, rules(result)) == (1, ["bus.nouveau", "driver.absent"])


def test_a_driven_node_is_not_sick_and_not_touched(driven: Node) -> None:
    driven.run("touch /before; sleep 1")
    code, result = ask(driven)
    assert (code, rules(result)) == (0, [])
    assert driven.run(TREES).stdout.strip() == ""


def test_without_root_it_says_what_it_could_not_see(driven: Node) -> None:
    code, result = ask(driven, user="plain")
    [host] = result["hosts"]
    assert (code, rules(result)) == (0, [])
    assert host["scope"][0].startswith("not root:")


def test_without_python(driven: Node) -> None:
    """Check that the doctor reports a node without Python 3 as failed, with the reason."""
    driven.run("mv /usr/bin/python3 /usr/bin/python3.hidden")
    try:
        code, result = ask(driven)
    finally:
        driven.run("mv /usr/bin/python3.hidden /usr/bin/python3")
    assert (code, result["hosts"][0]["verdict"]) == (1, "failed")
    assert result["hosts"][0]["error"].startswith("no Python 3 on the node")


def test_with_a_python_that_is_too_old(driven: Node) -> None:
    driven.run(
        "mv /usr/bin/python3 /usr/bin/python3.hidden; "
        "printf '#!/bin/sh\\necho SyntaxError: invalid syntax >&2; exit 1\\n' >/usr/bin/python3; "
        "chmod +x /usr/bin/python3"
    )
    try:
        code, result = ask(driven)
    finally:
        driven.run("mv /usr/bin/python3.hidden /usr/bin/python3")
    assert (code, result["hosts"][0]["verdict"]) == (1, "failed")
    assert result["hosts"][0]["error"] == "no answer from the probe: SyntaxError: invalid syntax"


def test_without_the_drivers_tool(driven: Node) -> None:
    driven.run("mv /usr/bin/nvidia-smi /usr/bin/smi.hidden")
    begun = time.monotonic()
    try:
        code, result = ask(driven)
        status_code, status = ask(driven, verb="status")
    finally:
        driven.run("mv /usr/bin/smi.hidden /usr/bin/nvidia-smi")
    assert (code, rules(result)) == (1, ["cuda.no_smi"])
    assert (status_code, status["nodes"][0]["error"]) == (1, "status: nvidia-smi is not installed")
    assert time.monotonic() - begun < 30


def test_a_hanging_tool_is_given_up_in_bounded_time(driven: Node) -> None:
    driven.run("gpuprov-sim fault hang")
    begun = time.monotonic()
    try:
        code, result = ask(driven)
        status_code, status = ask(driven, verb="status")
    finally:
        driven.run("gpuprov-sim mend")
    assert (code, rules(result)) == (1, ["driver.smi"])
    assert status_code == 1
    assert status["nodes"][0]["error"]
    assert time.monotonic() - begun < 75


@pytest.mark.parametrize(("system", "gpu"), [("debian13", "t4x1"), ("debian12", None)])
def test_other_healthy_machines(lab: Lab, system: str, gpu: str | None) -> None:
    """Check two of the machines of `scripts/campaign doctor --part healthy`."""
    [other] = lab.up(1, os=system, gpu=gpu)
    if gpu:
        drive(other)
        other.run("systemctl enable --now nvidia-persistenced; ldconfig", check=False)
    code, result = ask(other)
    assert (code, rules(result)) == (0, [])


def test_status_shows_every_gpu(driven: Node) -> None:
    driven.run("nvidia-smi -i 2 -pl 250")
    try:
        code, result = ask(driven, verb="status")
    finally:
        driven.run("nvidia-smi -i 2 -pl 400", check=False)
    [one] = result["nodes"]
    assert code == 0
    assert [gpu["index"] for gpu in one["gpus"]] == [0, 1, 2, 3]
    assert any("limit w 250" in text for text in one["gpus"][2]["odd"])
