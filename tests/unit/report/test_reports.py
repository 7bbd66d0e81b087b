"""Reports of a run: JUnit XML, metrics for Prometheus, and a page."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput
from gpuprov.probe.parse.state import Holding
from gpuprov.report.html import ROWS_OF_ONE_NODE, causes_of, headline, render
from gpuprov.report.junit import drift_xml
from gpuprov.report.prometheus import METRICS, write_textfile
from gpuprov.report.text import held_lines, see_doctor
from tests.unit.history.runs_on_paper import CHECKS, differs, lost, node, run

HOLD = differs("pins.hold", ["libcuda1"], [])
RUN = run(node("gpu1"), node("gpu2", HOLD), lost("gpu3"))


class Page(HTMLParser):
    """Parser for the classes of the heat map's cells by row, and for everything that the page fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record rows, the classes of their cells, and the URLs that the page refers to."""
        given = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append(str(given["class"]))
        self.fetched += [str(given[name]) for name in ("src", "href") if name in given]


def test_junit_has_a_case_for_each_check() -> None:
    suites = ET.fromstring(drift_xml(RUN))  # noqa: S314 - our own
    assert (suites.get("name"), suites.get("tests"), suites.get("failures"), suites.get("errors")) == (
        "gpuprov drift",
        "9",
        "1",
        "1",
    )
    [failure] = suites.iter("failure")
    assert failure.get("message") == 'seen [], expected ["libcuda1"]'
    assert failure.text == "fixed by role nvidia_driver"


WILD = ("<\"&'" * 200_000, {f"k{at}<": '"&' * 20 for at in range(20_000)}, ["'<" * 10] * 60_000)
"""Values of a hostile node: characters that a page writes as several, many keys, many items."""


def test_junit_has_a_limited_part_of_a_nodes_values() -> None:
    wild = node("gpu1", *(differs(check, "8", value) for check, value in zip(CHECKS, WILD, strict=False)))
    text = drift_xml(run(wild, node("gpu2", HOLD), lost("gpu3", "<" * 900_000)))
    assert len(text) < 200_000
    failures = list(ET.fromstring(text).iter("failure"))  # noqa: S314 - our own
    assert str(failures[0].get("message")).endswith('…, expected "8"')
    assert failures[-1].get("message") == 'seen [], expected ["libcuda1"]'


def test_the_page_has_a_limited_part_of_a_nodes_values() -> None:
    """Nodes decide how long their values are, and a page repeats each of them for its parts."""
    wild = node("gpu1", *(differs(check, "8", value) for check, value in zip(CHECKS, WILD, strict=False)))
    by = replace(differs("pins.hold"), by=("/etc/" + "<" * 100_000,) * 100)
    page = render(
        run(replace(wild, drift=(*wild.drift, by)), node("gpu2", HOLD), lost("gpu3", "<" * 900_000))
    )
    assert len(page) < 500_000
    assert "… (800000 characters)" in page
    assert "libcuda1" in page


def test_the_page_has_a_limited_number_of_a_nodes_differences() -> None:
    many = [differs(f"check{at}", "a", "b" * 1000) for at in range(10_000)]
    page = render(run(node("gpu1", *many)))
    assert len(page) < 10_000_000
    assert "10000 differ" in page
    assert "9488 more differences are not shown" in page


def test_prometheus_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "gpuprov.prom"
    write_textfile(RUN, path)
    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    assert set(families) == set(METRICS)
    assert {sample.labels["verb"] for family in families.values() for sample in family.samples} == {"drift"}
    nodes = {sample.labels["status"]: sample.value for sample in families["gpuprov_nodes"].samples}
    assert nodes == {"in_sync": 1, "drifted": 1, "unreachable": 1, "error": 0}
    [differing] = families["gpuprov_check_differs"].samples
    assert differing.labels == {"verb": "drift", "node": "gpu2", "check": "pins.hold", "severity": "error"}
    answered = {each.labels["node"]: each.value for each in families["gpuprov_node_answered"].samples}
    assert answered == {"gpu1": 1, "gpu2": 1, "gpu3": 0}
    [at] = families["gpuprov_checked_timestamp_seconds"].samples
    assert at.value == 1769869501
    assert list(tmp_path.iterdir()) == [path]


def test_prometheus_reads_how_long_a_run_holds_a_node(tmp_path: Path) -> None:
    path = tmp_path / "gpuprov.prom"
    write_textfile(run(replace(node("gpu1"), held=Holding(25000.0, None)), node("gpu2")), path)
    families = {family.name: family.samples for family in text_string_to_metric_families(path.read_text())}
    [lease] = families["gpuprov_node_lease_seconds"]
    assert (lease.labels["node"], lease.value) == ("gpu1", 25000)
    assert families.get("gpuprov_node_switch_armed_seconds", []) == []


def test_a_textfile_is_not_written_through_a_link_beside_it(tmp_path: Path) -> None:
    """Plant it at the name that prometheus_client writes first: the folder may be another user's."""
    victim, path = tmp_path / "victim", tmp_path / "x.prom"
    victim.write_text("as it was")
    path.with_name(f"x.prom.{os.getpid()}.{threading.get_ident()}").symlink_to(victim)
    write_textfile(RUN, path)
    assert victim.read_text() == "as it was"
    assert "gpuprov_nodes" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_textfile_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent/x\.prom"):
        write_textfile(RUN, tmp_path / "absent/x.prom")


def test_a_page_maps_nodes_and_checks() -> None:
    page = Page(render(RUN))
    assert page.rows[1:] == [
        ["holds"] * 4,
        ["holds", "holds", "holds", "differs"],
        ["lost"] * 4,
    ]
    assert len(CHECKS) == 4


def test_a_page_fetches_nothing() -> None:
    text = render(RUN)
    assert Page(text).fetched == ["#row1", "#row2", "#row3"]
    assert "url(" not in text
    assert "@import" not in text


def test_what_nodes_say_stays_text() -> None:
    """Check that values of nodes are not markup in the HTML page."""
    page = render(run(node("gpu1", differs("gpu.count", "8", '<script>alert("1")</script>'))))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_large_fleet_folds_nodes_of_one_story() -> None:
    many = [node(f"gpu{number:03}") for number in range(ROWS_OF_ONE_NODE)]
    page = render(run(*many, node("odd", HOLD)))
    assert len(Page(page).rows[1:]) == 2
    assert f"{ROWS_OF_ONE_NODE}: gpu[000-{ROWS_OF_ONE_NODE - 1}]" in page


def test_what_the_lock_does_not_explain_leads_to_the_doctor() -> None:
    mended = Difference("driver.version", "580", "570", "error", "nvidia_driver", reboot=True)
    missing = Difference("gpu.count", 8, 7, "error", None, reboot=False)
    unread = Difference("gpu.ecc", True, "unknown: no answer in 30 s", "error", "gpu_settings", reboot=False)
    nodes = [
        NodeDrift("gpu01", "drifted", (mended,)),
        NodeDrift("gpu02", "drifted", (mended, missing)),
        NodeDrift("gpu03", "drifted", (unread,)),
    ]
    assert see_doctor(nodes[:1]) is None
    assert see_doctor(nodes) == "the lock does not explain this; to find the cause: gpuprov doctor gpu[02-03]"


def test_a_run_that_holds_a_node_explains_its_differences() -> None:
    missing = Difference("gpu.count", 8, 7, "error", None, reboot=False)
    free, held = (NodeDrift(name, "drifted", (missing,)) for name in ("gpu1", "gpu2"))
    held = replace(held, held=Holding(60.0, None))
    assert see_doctor([held]) is None
    assert str(see_doctor([free, held])).endswith("gpuprov doctor gpu1")
    assert [line.partition(":")[0] for line in held_lines([free, held])] == ["gpu2"]
    assert list(held_lines([replace(held, status="in_sync", drift=()), free])) == []


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("a"), node("b", HOLD)], "1 of 2 nodes differs"),
        ([node("a", HOLD), node("b", HOLD), lost("c")], "2 of 3 nodes differ, 1 did not answer"),
        ([node("a")], "1 of 1 node matches"),
        ([node("a"), node("b"), lost("c")], "2 of 3 nodes match, 1 did not answer"),
    ],
)
def test_the_headline_counts_nodes_that_differ(nodes: list[NodeDrift], said: str) -> None:
    assert headline(run(*nodes)) == said
    assert f"<h1>{said}</h1>" in render(run(*nodes))


LIBRARY = Difference("driver.library", "580", "570", "error", "nvidia_driver", reboot=False)
FOLLOWS = Difference("driver.four_versions", "580", "570", "error", None, reboot=True)
COUNT = Difference("gpu.count", 8, 7, "error", None, reboot=False)


def test_what_has_one_cause_is_one_card_with_its_line() -> None:
    found = causes_of([node("gpu1", HOLD, LIBRARY, FOLLOWS), node("gpu2", HOLD), node("gpu3", COUNT)])
    assert [(each.nodes, [one.check for one in each.differences], each.mend) for each in found] == [
        ("gpu[1-2]", ["pins.hold"], "gpuprov apply -l 'gpu[1-2]'"),
        ("gpu1", ["driver.library", "driver.four_versions"], "gpuprov apply -l gpu1"),
        ("gpu3", ["gpu.count"], "gpuprov doctor gpu3"),
    ]


def test_what_a_reboot_corrects_has_the_line_with_a_reboot() -> None:
    [alone] = causes_of([node("gpu1", FOLLOWS)])
    assert (alone.role, alone.mend) == ("reboot", "gpuprov apply --reboot -l gpu1")
    page = render(run(node("gpu1", FOLLOWS)))
    assert 'data-copy="gpuprov apply --reboot -l gpu1"' in page


def test_a_phone_shows_only_checks_that_differ() -> None:
    page = render(RUN)
    assert page.count('<th scope="col" data-even>') == len(CHECKS) - 1
    assert '<th scope="col"><span>pins.hold' in page
    assert ".map [data-even] { display: none; }" in page
