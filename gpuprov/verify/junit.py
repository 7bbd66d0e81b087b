"""JUnit XML for continuous integration servers: a suite per node, a case per check."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from gpuprov.untrusted import json_text, xml_text
from gpuprov.verify.values import SHOWN, cut

DETAIL = 16 * SHOWN
"""Maximum number of characters of a check's detail."""


def junit_xml(document: dict[str, Any], name: str = "gpuprov verify") -> str:
    """Return the XML of a document with schema gpuprov.verify/1.

    A failed check is a case with a failure. A node that is unreachable or has an error has one more case,
    named after its status, with an error. Texts of nodes are cut.
    """
    suites = ET.Element("testsuites", name=xml_text(name))
    for node in document["nodes"]:
        suites.append(_suite(node, document["checked_at"]))
    for count in ("tests", "failures", "errors"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(node: dict[str, Any], checked_at: str) -> ET.Element:
    """Return the element of a node: its cases, and the counts of tests, failures and errors."""
    checks = node["checks"]
    judged = node["status"] in ("passed", "failed")
    suite = ET.Element("testsuite", name=xml_text(node["name"]), timestamp=xml_text(checked_at))
    suite.set("tests", str(len(checks) + (not judged)))
    suite.set("failures", str(sum(check["status"] == "failed" for check in checks)))
    suite.set("errors", str(int(not judged)))
    suite.set("time", f"{sum(check['seconds'] for check in checks):.3f}")
    suite.extend(_case(node["name"], check) for check in checks)
    if not judged:
        case = ET.SubElement(
            suite, "testcase", classname=xml_text(node["name"]), name=xml_text(node["status"]), time="0"
        )
        ET.SubElement(case, "error", type=xml_text(node["status"]), message=xml_text(cut(node["message"])))
    return suite


def _case(node: str, check: dict[str, Any]) -> ET.Element:
    """Return the element of a check; a failed one has the actual and the expected value, and the end of
    its detail, whose last line is the remedy.
    """
    case = ET.Element(
        "testcase", classname=xml_text(node), name=xml_text(check["check"]), time=f"{check['seconds']:.3f}"
    )
    if check["status"] == "failed":
        seen, wanted = (cut(json_text(check[key], indent=None)) for key in ("actual", "expected"))
        message = xml_text(f"seen {seen}, expected {wanted}")
        ET.SubElement(case, "failure", type=xml_text(check["check"]), message=message).text = xml_text(
            check["detail"][-DETAIL:]
        )
    return case
