"""Facts of a recorded node with four H200, and facts of a node with failures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.probe import facts as facts_module
from gpuprov.probe.facts import SCHEMA, TEXT, Facts, Missing
from gpuprov.ssh.answers import read_answer
from tests import H200

PROPERTIES = [
    name for name, value in vars(Facts).items() if isinstance(value, property) or hasattr(value, "attrname")
]

LATER = {
    name: {"error": "not asked when this was recorded"}
    for name in (
        "boot_sysctls",
        "candidates",
        "containerd",
        "firewall",
        "firewall_at_boot",
        "health",
        "imex",
        "holding",
        "hugepages",
        "listening",
        "login_groups",
        "mig",
        "offers",
        "origin",
        "pam",
        "podman",
        "port_labels",
        "package_files",
        "scratch",
        "toolkit",
        "secure_boot",
        "undone",
        "unpackaged",
        "variables",
    )
}


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Return the recorded answer of a node with four H200."""
    document: dict[str, Any] = json.loads((H200 / "facts.json").read_text())
    stdout = (H200 / "q.xml").read_text()
    document["collectors"] |= {"smi": {"rc": 0, "stdout": stdout, "stderr": ""}, **LATER}
    return document


def changed(answer: dict[str, Any], **collectors: Any) -> Facts:
    """Return the facts of an answer with other collectors."""
    return Facts.from_answer({**answer, "collectors": {**answer["collectors"], **collectors}})


def test_a_real_node(answer: dict[str, Any]) -> None:
    """Check the facts of a recorded node with four H200."""
    facts = Facts.from_answer(answer)
    assert (facts.os.id, facts.os.version, facts.arch, facts.is_root) == ("ubuntu", "24.04", "x86_64", True)
    assert facts.loaded_driver is not None
    assert facts.loaded_driver.version == facts.smi.driver_version == "580.159.04"
    assert facts.loaded_driver.open
    assert facts.loaded_modules == {"nvidia_uvm": None, "nvidia": None}
    assert len(facts.pci_gpus) == len(facts.smi.gpus) == 4
    assert {gpu.address for gpu in facts.pci_gpus} == {gpu.pci_address for gpu in facts.smi.gpus}
    assert facts.packages.version("libcudnn9-cuda-13") == "9.14.0.64-1"
    assert facts.nccl.libraries == {"/usr/lib/x86_64-linux-gnu/libnccl.so.2": "2.28.3"}
    assert facts.modprobe.blacklisted == {"nouveau": "kernel command line"}
    assert facts.driver_parameters["EnableMSI"] == "1"
    assert facts.apt.keyrings["/etc/apt/trusted.gpg"] == ("EB693B3035CD5710E231E123A4B469963BF863CC",)
    assert "/dev/nvidia3" in facts.state.device_nodes
    assert {name: why for name, why in facts.missing.items() if name not in LATER} == {
        "limits": "systemctl is not installed",
        "nics": "ip is not installed",
        "sshd": "sshd is not installed",
        "units": "systemctl is not installed",
    }


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_noun_is_there_or_says_why(answer: dict[str, Any], name: str) -> None:
    facts = Facts.from_answer(answer)
    later = ("limits", "nics", "units", "mig_instances", "flushing", "verdict", "booted_s", *LATER)
    if name in later or name.startswith("sshd"):
        with pytest.raises(Missing, match=r"(systemctl|ip|sshd) is not installed|not asked"):
            getattr(facts, name)
    else:
        getattr(facts, name)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_failed_collector_makes_its_nouns_missing(answer: dict[str, Any], name: str) -> None:
    failed = {collector: {"error": "no answer in 10 s"} for collector in answer["collectors"]}
    facts = changed(answer, **failed)
    if name == "missing":
        assert set(facts.missing) == set(failed)
    elif name == "smi":
        assert facts.smi.error == "nvidia-smi: no answer in 10 s"
    else:
        with pytest.raises(Missing, match="no answer in 10 s"):
            getattr(facts, name)


def test_nvidia_smi_that_is_not_installed_is_a_fact(answer: dict[str, Any]) -> None:
    facts = changed(answer, smi={"error": "nvidia-smi is not installed"})
    assert facts.smi.error == "nvidia-smi is not installed"


def test_a_thousand_nodes_take_seconds(answer: dict[str, Any]) -> None:
    """Parse the parts that drift needs; the aim is ten thousand nodes in one process and one minute."""
    begun = time.process_time()
    for _ in range(100):
        facts = Facts.from_answer(answer)
        for name in ("smi", "packages", "apt", "loaded_driver", "pci_gpus", "modprobe", "disk_modules"):
            getattr(facts, name)
    assert (time.process_time() - begun) / 100 < 0.03


def test_text_of_a_collector_is_limited() -> None:
    small, large = "a" * (TEXT - len("text")), "a" * (TEXT + 1)
    found = Facts.from_answer(
        {
            "schema": SCHEMA,
            "collectors": {"sshd": {"text": small}, "units": {"a": ["b", large]}, "smi": {"stdout": large}},
        }
    )
    assert found.raw("sshd") == {"text": small}
    assert found.raw("smi") == {"stdout": large}
    with pytest.raises(Missing, match="units: more than 1048576 characters"):
        found.raw("units")


def test_more_than_the_probe_sends_is_left_out(answer: dict[str, Any]) -> None:
    toolkit = {
        "config": "",
        "default": "",
        "cdi": {"/etc/cdi/a.yaml": {"missing": ["/x"] * 9, "versions": [], "gpus": 0, "private": False}},
    }
    facts = changed(answer, toolkit=toolkit, package_files=[["libcuda1", "/x", "is missing"]] * 300)
    assert facts.toolkit.specifications["/etc/cdi/a.yaml"].missing == ("/x",) * 3
    assert len(facts.package_files) == 200


def test_text_of_facts_that_a_worker_sent_is_limited_too() -> None:
    collectors = {"sshd": {"text": "a"}, "units": {"text": "a" * (TEXT + 1)}}
    document = {"host": "n", "collected_at": "", "seconds": 1.0, "collectors": collectors}
    found = read_answer(json.dumps(document), Facts)
    assert found.raw("sshd") == {"text": "a"}
    assert found.missing == {"units": "more than 1048576 characters"}


def test_a_value_that_cannot_be_parsed_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def parse(*words: object) -> None:
        asked.append(words)
        raise NodeFailed("a name that no package has")

    monkeypatch.setattr(facts_module, "parse_dpkg", parse)
    facts = Facts("n", "", 0.0, {"packages": {"manager": "dpkg", "text": "", "interrupted": False}})
    reasons = set()
    for _ in range(3):
        with pytest.raises(Missing) as caught:
            _ = facts.packages
        reasons.add((caught.value.collector, caught.value.reason))
    assert (len(asked), len(reasons)) == (1, 1)
