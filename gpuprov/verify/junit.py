"""JUnit XML, as continuous integration servers read it: a suite a node, a case a check."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

# Characters that XML 1.0 cannot hold, escaped or not (section 2.2).
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(document: dict[str, Any], name: str = "gpuprov verify") -> str:
    """The text for a document of schema gpuprov.verify/1."""
    suites = ET.Element("testsuites", name=name)
    for node in document["nodes"]:
        suites.append(_suite(node, document["checked_at"]))
    for count in ("tests", "failures", "errors"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(node: dict[str, Any], checked_at: str) -> ET.Element:
    checks = node["checks"]
    judged = node["status"] in ("passed", "failed")
    suite = ET.Element("testsuite", name=node["name"], timestamp=checked_at)
    suite.set("tests", str(len(checks) + (not judged)))
    suite.set("failures", str(sum(check["status"] == "failed" for check in checks)))
    suite.set("errors", str(int(not judged)))
    suite.set("time", f"{sum(check['seconds'] for check in checks):.3f}")
    suite.extend(_case(node["name"], check) for check in checks)
    if not judged:
        case = ET.SubElement(suite, "testcase", classname=node["name"], name=node["status"], time="0")
        ET.SubElement(case, "error", type=node["status"], message=_clean(node["message"]))
    return suite


def _case(node: str, check: dict[str, Any]) -> ET.Element:
    case = ET.Element("testcase", classname=node, name=check["check"], time=f"{check['seconds']:.3f}")
    if check["status"] == "failed":
        seen, wanted = (json.dumps(check[key], ensure_ascii=False) for key in ("actual", "expected"))
        message = _clean(f"seen {seen}, expected {wanted}")
        ET.SubElement(case, "failure", type=check["check"], message=message).text = _clean(check["detail"])
    return case


def _clean(text: str) -> str:
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
