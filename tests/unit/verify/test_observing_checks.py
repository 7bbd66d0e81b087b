"""Metrics of a node for Prometheus, and permission to read a GPU's counters."""

from __future__ import annotations

import hashlib

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuprov.drift.judge import judge
from gpuprov.model.lock import LockedGroup, Setting
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation, everything_else, expectations
from gpuprov.roles.monitoring import textfile, textfile_path
from gpuprov.verify.readings import readers
from tests.unit.verify.nodes_on_paper import locked_group


def group(**settings: object) -> LockedGroup:
    """Return a group with these settings."""
    base = locked_group("node")
    stated = {name: Setting(value=value, reason="", source="") for name, value in settings.items()}
    return base.model_copy(update={"settings": {**base.settings, **stated}})


MONITORED = group(monitoring={"textfile": "/var/lib/node-exporter/"})


def test_textfile_says_every_other_expectation_item_by_item() -> None:
    families = {
        each.name: each.samples
        for each in text_string_to_metric_families(textfile(MONITORED, everything_else(MONITORED)))
    }
    said = {
        (sample.labels["check"], sample.labels["subject"], sample.labels["value"])
        for sample in families["gpuprov_expected_info"]
    }
    assert ("driver.loaded", "", "535.309.01") in said
    assert ("gpu.persistence", "", "true") in said
    assert ("gpu.clocks", "graphics", "1410") in said
    assert ("nouveau.blacklist", "", "nova_core") in said
    assert ("driver.packages", "libcuda1", "535.309.01-0+deb12u1") in said
    assert {check for check, _, _ in said} <= {each.check for each in everything_else(MONITORED)}
    assert [sample.value for sample in families["gpuprov_expected_gpus"]] == [4]


def test_textfile_is_expected_by_its_digest() -> None:
    [expected] = [each for each in expectations(MONITORED) if each.check == "monitoring.textfile"]
    text = textfile(MONITORED, everything_else(MONITORED))
    assert expected.subject == textfile_path(MONITORED) == "/var/lib/node-exporter/gpuprov.prom"
    assert expected.expected == hashlib.sha256(text.encode()).hexdigest()
    assert textfile_path(group()) is None


@pytest.mark.parametrize(
    ("rows", "who"),
    [
        ([], "root"),
        ([["/etc/modprobe.d/a.conf:1", "options nvidia NVreg_RestrictProfilingToAdminUsers=0"]], "everybody"),
        (
            [["/etc/modprobe.d/a.conf:1", "options nvidia-current NVreg_RestrictProfilingToAdminUsers=1"]],
            "root",
        ),
        (
            [
                ["/etc/modprobe.d/a.conf:1", "options nvidia NVreg_RestrictProfilingToAdminUsers=1"],
                ["/etc/modprobe.d/b.conf:1", "options nvidia NVreg_RestrictProfilingToAdminUsers=0"],
                ["/etc/modprobe.d/b.conf:2", "options nvidia_drm NVreg_RestrictProfilingToAdminUsers=1"],
            ],
            "everybody",
        ),
    ],
)
def test_counters_are_for_whom_modprobe_says(rows: list[list[str]], who: str) -> None:
    """Check that drift and verify agree on who may read the counters by modprobe's options."""
    system = {"cmdline": "", "kernel": "6.1", "uid": 0}
    facts = Facts("node", "", 0.0, {"modprobe": rows, "system": system})
    differences = judge("node", facts, [Expectation("profiling.counters", "nobody", "profiling_tools")]).drift
    assert [each.actual for each in differences] == [who]
    assert readers("\n".join(line for _, line in rows)) == who
