"""Text of a verdict for people, and its files for CI servers."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from gpuprov.errors import Exit
from gpuprov.report.verification import recap
from gpuprov.verify.junit import junit_xml
from gpuprov.verify.verdict import CheckResult, NodeVerdict, Verdict

GOOD = CheckResult("gpu.count", "passed", 8, 8, "", 0.25)


def without_hold(node: str) -> NodeVerdict:
    """Return the verdict on a node on which a package is not held."""
    detail = f"$ apt-mark showhold\nlibcuda1\ngpuprov apply -l {node}"
    lost = CheckResult("pins.hold", "failed", ["libcuda1", "nvidia-smi"], ["libcuda1"], detail, 0.5)
    return NodeVerdict(node, "failed", [GOOD, lost])


VERDICT = Verdict(
    "2026-01-31T14:25:01+00:00",
    [
        *(NodeVerdict(f"gpu{number:02}", "passed", [GOOD]) for number in range(1, 7)),
        without_hold("gpu07"),
        without_hold("gpu08"),
        NodeVerdict("gpu09", "unreachable", message="ssh: connect to host gpu09 port 22: No route to host"),
    ],
)


def test_recap_folds_nodes_and_says_each_failure_once() -> None:
    assert recap(VERDICT).splitlines() == [
        "passed       gpu[01-06]",
        "failed       gpu[07-08]",
        "unreachable  gpu09  ssh: connect to host gpu09 port 22: No route to host",
        "",
        "pins.hold  gpu[07-08]",
        "  expected  nvidia-smi",
        "  seen      none",
        "  to fix    gpuprov apply -l gpu[07-08]",
    ]


def test_text_of_a_node_makes_no_line() -> None:
    forged = "cut short\npassed       gpu[01-99]\u2028passed       gpu[01-98]\r##[error]x"
    lines = recap(
        Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict("gpu01", "error", message=forged)])
    ).splitlines()
    assert lines == [
        r"error        gpu01  cut short\npassed       gpu[01-99]\u2028passed       gpu[01-98]\r#\x23[error]x"
    ]
    value = NodeVerdict(
        "gpu01", "failed", [CheckResult("a.b", "failed", "x\ny", {"k\nl": ["\x1b"]}, "$ a\n\x1bb\nfix", 0)]
    )
    assert recap(Verdict("2026-01-31T14:25:01+00:00", [value]), details=True).splitlines() == [
        "failed       gpu01",
        "",
        "a.b  gpu01",
        r"  expected  x\ny",
        r"  seen      k\nl \x1b",
        "    $ a",
        r"    \x1bb",
        "  to fix    fix",
    ]


def test_a_remedy_that_was_tried_is_not_proposed_again() -> None:
    lines = recap(VERDICT, tried={"gpu07": ["pins.hold"], "gpu08": ["pins.hold"]}).splitlines()
    doctor = "  to fix    apply has run for this without effect; for the cause: gpuprov doctor gpu[07-08]"
    assert lines[-1] == doctor
    assert doctor not in recap(VERDICT, tried={"gpu07": ["gpu.count"]}).splitlines()


def test_no_reboot_is_proposed_for_what_a_library_causes() -> None:
    reboot = "gpuprov apply --reboot -l gpu07"
    library = CheckResult("driver.library", "failed", "2", "1", "gpuprov apply -l gpu07", 0.1)
    four = CheckResult("driver.four_versions", "failed", "2", "1", reboot, 0.1)
    for checks, proposed in (([library, four], False), ([four], True)):
        said = recap(Verdict("", [NodeVerdict("gpu07", "failed", checks)]))
        assert (reboot in said) is proposed
        assert ("correct driver.library first" in said) is not proposed


def test_details_show_what_was_looked_at() -> None:
    """Check that the recap with details shows the commands of checks."""
    assert "    $ apt-mark showhold" in recap(VERDICT, details=True).splitlines()


def test_failed_beats_unreachable() -> None:
    """Check the exit code: failed, else unreachable, else OK."""
    assert VERDICT.exit_code == Exit.FAILED
    assert Verdict("", VERDICT.nodes[-1:]).exit_code == Exit.UNREACHABLE
    assert Verdict("", VERDICT.nodes[:6]).exit_code == Exit.OK


def test_summary_counts_nodes() -> None:
    """Check that the summary counts nodes by result."""
    assert VERDICT.document()["summary"] == {
        "nodes": 9,
        "passed": 6,
        "failed": 2,
        "error": 0,
        "unreachable": 1,
    }


def test_junit_has_the_end_of_a_long_detail_with_its_remedy() -> None:
    detail = "x" * 900_000 + "\nto correct it: gpuprov apply -l n"
    checks = [CheckResult("gpu.count", "failed", 8, ["<" * 4000] * 1000, detail, 0.1)]
    text = junit_xml(Verdict("", [NodeVerdict("n", "failed", checks)]).document())
    assert len(text) < 100_000
    [failure] = ET.fromstring(text.split("\n", 1)[1]).iter("failure")  # noqa: S314
    assert str(failure.text).endswith("\nto correct it: gpuprov apply -l n")


def test_junit_has_a_suite_for_each_node_and_holds_hostile_text() -> None:
    hostile = CheckResult("gpu.model", "failed", "a", "\x1b[31m<b>\x00", "]]> & \x07", 0.1)
    document = Verdict(
        "2026-01-31T14:25:01+00:00", [*VERDICT.nodes, NodeVerdict("x", "failed", [hostile])]
    ).document()
    root = ET.fromstring(junit_xml(document).split("\n", 1)[1])  # noqa: S314
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("12", "3", "1")
    assert [suite.get("name") for suite in root][-2:] == ["gpu09", "x"]
    (error,) = root.iter("error")
    assert error.get("message") == "ssh: connect to host gpu09 port 22: No route to host"
    assert [failure.text for failure in root.iter("failure")][-1] == r"]]> & \x07"
