"""Plots of acceptance measurements: a dot for every GPU at its value, over nodes and over time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuprov.accept.judge import document, judge
from gpuprov.accept.rates import rates
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.files.runs import state_dir
from gpuprov.history import keep
from gpuprov.history.record import of_acceptance
from gpuprov.report import across
from gpuprov.report.plots import BASE, TOP, Kept, measures, read_kept, render
from tests.unit.accept.across.test_run import NAMES, search, slow
from tests.unit.accept.recorded import recorded
from tests.unit.report.test_reports import Page


def kept(name: str, **answers: str) -> Kept:
    """Return a run with recorded measurements: node → recording."""
    judged = judge({node: recorded(recording) for node, recording in answers.items()})
    return Kept(name, document(judged)["nodes"])


FIRST = kept("20261101-030000-accept-aaaa", gpu01="quick-again", gpu02="quick")
SECOND = kept("20261102-030000-accept-bbbb", gpu01="quick", gpu02="pcie-saturated", gpu03="in-use")


def test_every_measurement_is_drawn_over_the_nodes() -> None:
    drawn = {each.name: each for each in measures([SECOND])}
    assert set(drawn) == {rate.measure for rate in rates(recorded("quick"), {})}
    copies = drawn["h2d"].over_nodes
    assert [dot.title for dot in copies.dots if dot.kind == "bad"] == ["gpu02 GPU 0: 27.1 GB/s"]
    assert len(copies.dots) == 4
    assert {rule.kind for rule in copies.rules} == {"middle", "peak", "floor"}
    assert [text for _, text in copies.places] == ["gpu01", "gpu02"]
    assert drawn["h2d"].over_time is None


def test_heights_are_in_proportion() -> None:
    panel = {each.name: each for each in measures([SECOND])}["h2d"].over_nodes
    heights = {dot.title.split(": ")[0]: BASE - dot.y for dot in panel.dots}
    assert heights["gpu02 GPU 0"] / heights["gpu01 GPU 0"] == pytest.approx(27.1 / 55.5, abs=0.01)
    assert all(TOP <= dot.y <= BASE for dot in panel.dots)


def test_the_median_is_that_of_the_nodes() -> None:
    answers = {f"gpu0{at}": recorded("quick") for at in (1, 2, 3)}
    for name, result in answers.items():
        count, value = (200, 99.0) if name == "gpu03" else (2, 7.0)
        result["host_devices"] = {
            "drives": [{"name": f"nvme{at}n1", "read": {"value": value}} for at in range(count)]
        }
    drawn = {each.name: each for each in measures([Kept("a", document(judge(answers))["nodes"])])}
    [middle] = [rule.text for rule in drawn["nvme_read"].over_nodes.rules if rule.kind == "middle"]
    assert middle == "median 7.0 GB/s"


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 1e25])
def test_a_value_that_no_scale_can_have_is_none(value: float) -> None:
    answers = {"gpu01": recorded("quick"), "gpu02": recorded("quick")}
    answers["gpu02"]["gpus"][0]["matrix"]["bf16"]["value"] = value
    drawn = {each.name: each for each in measures([Kept("a", document(judge(answers))["nodes"])])}
    assert len(drawn["bf16"].over_nodes.dots) == 3


def test_a_value_that_was_too_large_to_be_stored_is_not_drawn() -> None:
    nodes = document(judge({"gpu01": recorded("quick")}))["nodes"]
    rate = next(rate for rate in nodes[0]["rates"] if rate["measure"] == "bf16")
    rate["value"] = None
    for runs in ([Kept("a", nodes)], [Kept("a", nodes), FIRST]):
        drawn = {each.name: each for each in measures(runs)}
        assert len(drawn["h2d"].over_nodes.dots) >= 2


def test_over_time_each_node_is_a_line() -> None:
    panel = {each.name: each for each in measures([FIRST, SECOND])}["h2d"].over_time
    assert panel is not None
    assert [node for node, _ in panel.traces] == ["gpu01", "gpu02"]
    assert [text for _, text in panel.places] == ["11-01 03:00", "11-02 03:00"]
    last = panel.dots[-1]
    assert (last.kind, last.title.split(",")[0]) == ("bad", "gpu02")


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    text = render([FIRST, SECOND])
    page = Page(text.replace("<td", "<td class=''"))
    assert [link for link in page.fetched if not link.startswith("#")] == []
    assert "<script" not in text
    assert "GPUs are in use: GPU 0: pid" in text
    assert text.count("<svg") == 2 * len(list(measures([FIRST, SECOND])))


def test_names_of_nodes_are_no_markup() -> None:
    [node, *_] = json.loads(json.dumps(SECOND.nodes))
    node["node"] = "<b>x</b>"
    assert "<b>x" not in render([Kept("20261102-030000-accept-cccc", [node])])


def stored(kept: Kept) -> None:
    """Store a run's measurements in the state folder."""
    folder = state_dir() / "runs" / kept.run
    folder.mkdir(parents=True)
    (folder / "accept.json").write_text(json.dumps({"schema": "gpuprov.accept/1", "nodes": list(kept.nodes)}))


def test_report_draws_a_run_of_accept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (FIRST, SECOND):
        stored(each)
    keep(of_acceptance(SECOND.run, judge({"gpu01": recorded("quick")}), ""), print)
    page = tmp_path / "page.html"
    assert run(["report", SECOND.run, "--html", str(page)]) == 0
    assert len(re.findall("<polyline", page.read_text())) >= 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{page} written from {SECOND.run}" in said.err


def test_a_run_of_which_nothing_is_kept(tmp_path: Path) -> None:
    assert read_kept("20261103-030000-accept-dddd") is None
    folder = state_dir() / "runs" / "20261103-030000-accept-eeee"
    folder.mkdir(parents=True)
    (folder / "accept.json").write_text("[]")
    with pytest.raises(InvalidInput, match="measurements saved by `gpuprov accept`"):
        read_kept(folder.name)


def test_what_was_measured_between_nodes_is_drawn(tmp_path: Path) -> None:
    outcome = search(NAMES, slow)
    folder = state_dir() / "runs/20261103-030000-accept-dddd"
    folder.mkdir(parents=True)
    (folder / across.KEPT).write_text(json.dumps(across.across_document(outcome)))
    now = read_kept(folder.name)
    assert now is not None
    drawn = {each.name: each.over_nodes for each in measures([now])}
    assert set(drawn) == {"between_nodes", "across_nodes", "message"}
    dots = drawn["between_nodes"].dots
    assert {dot.title.split(":")[0] for dot in dots if dot.kind == "bad"} == {"gpu03"}
    assert "gpu03: 9.0 GB/s" in [dot.title for dot in dots]
    assert render([FIRST, now]).count("<svg") == 6
