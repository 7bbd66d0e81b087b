"""Diagnoses as text, as one HTML page, as JUnit XML and as metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gpuprov.doctor.fault import SEVERITIES, Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.model.nodeset import fold
from gpuprov.untrusted import on_one_line, xml_text

INDENT = " " * 10


def doctor_lines(found: Iterable[Diagnosis], *, brief: bool = False) -> Iterator[str]:
    """Yield one block per machine; machines with equal results share one.

    Args:
        brief: only the faults, one line each.
    """
    alike: dict[str, list[Diagnosis]] = defaultdict(list)
    for each in found:
        story = repr((each.faults, each.unknown, str(each.failure), each.scope))
        alike[story].append(each)
    for group in alike.values():
        yield from _block(fold(each.host for each in group), group[0], brief=brief)


def _block(name: str, each: Diagnosis, *, brief: bool) -> Iterator[str]:
    """Yield a summary line for a machine, its scope and its faults, then unless `brief` the rules not
    checked.
    """
    yield f"{name}: {on_one_line(summary(each))}"
    yield from (f"  {on_one_line(line)}" for line in each.scope)
    for fault in each.faults:
        yield from _fault(fault, brief=brief)
    if each.unknown and not brief:
        yield "  unknown   these rules could not be checked:"
        yield from (f"{INDENT}  {on_one_line(line)}" for line in unknown_lines(each))


def summary(each: Diagnosis) -> str:
    """Return `2 broken, 1 risk; 3 rules not checked`; the error of a machine that could not be examined.

    Without a fault: `healthy`, or `no fault was found` if some rules could not be checked.
    """
    if each.failure is not None:
        return str(each.failure)
    counts = Counter(fault.severity for fault in each.faults)
    result = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    if not result:
        result = "no fault was found" if each.unknown else "healthy"
    return result + (f"; {len(each.unknown)} rules not checked" if each.unknown else "")


def unknown_lines(each: Diagnosis) -> Iterator[str]:
    """Yield reasons, each with the rules that it prevented; of many rules only four are named."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for rule, reason in each.unknown:
        reasons[reason].append(rule)
    for reason, rules in reasons.items():
        few = ", ".join(rules[:4]) + (f" and {len(rules) - 4} more" if len(rules) > 4 else "")
        yield f"{reason}: {few}"


def _fault(fault: Fault, *, brief: bool) -> Iterator[str]:
    """Yield the lines of a fault: severity, text and rule, then unless `brief` its observations, cause
    and remedy.
    """
    yield f"  {fault.severity:<9} {on_one_line(fault.text)}  [{fault.rule}]"
    if brief:
        return
    parts: list[tuple[str, Sequence[str]]] = [
        ("follows", [", ".join(fault.follows)] if fault.follows else []),
        ("seen", fault.seen),
        ("cause", [fault.cause] if fault.cause else []),
        ("mend", fault.mend),
        ("keep", [f"fleet.yml: {fault.keep}"] if fault.keep else []),
        ("source", [fault.source] if fault.source else []),
    ]
    for label, lines in parts:
        for place, line in enumerate(lines):
            yield f"{INDENT}  {label if place == 0 else '':<7} {on_one_line(line)}"


def doctor_html(found: Sequence[Diagnosis], at: str) -> str:
    """Return one self-contained page; `at` is the time of the diagnoses."""
    from gpuprov.report.pages import page_template

    template = page_template("doctor.html.j2", summary=summary, unknown_lines=unknown_lines)
    return template.render(found=found, at=at, severities=SEVERITIES)


def doctor_junit(found: Iterable[Diagnosis]) -> str:
    """Return JUnit XML with one suite per machine.

    Broken and degraded are failures, other faults pass, rules that could not be checked are skipped, and a
    machine that was not reached is an error.
    """
    from xml.etree.ElementTree import Element, SubElement, tostring

    root = Element("testsuites", name="gpuprov doctor")
    for each in found:
        suite = SubElement(root, "testsuite", name=xml_text(each.host))
        if each.failure is not None:
            case = SubElement(suite, "testcase", classname=xml_text(each.host), name="reached")
            SubElement(case, "error", message=xml_text(str(each.failure)))
        for fault in each.faults:
            case = SubElement(suite, "testcase", classname=xml_text(each.host), name=xml_text(fault.rule))
            if fault.severity in ("broken", "degraded"):
                failed = SubElement(
                    case, "failure", message=xml_text(fault.text), type=xml_text(fault.severity)
                )
                failed.text = xml_text("\n".join((*fault.seen, fault.cause, *fault.mend)))
        for rule, reason in each.unknown:
            case = SubElement(suite, "testcase", classname=xml_text(each.host), name=xml_text(rule))
            SubElement(case, "skipped", message=xml_text(reason))
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("errors", str(len(suite.findall("testcase/error"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def doctor_metrics(found: Iterable[Diagnosis]) -> str:
    """Return Prometheus's text format: faults by machine, rule and severity; rules that could not judge."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    names = ["node", "rule", "severity"]
    faults = Gauge("gpuprov_doctor_fault", "Faults that the doctor found", names, registry=registry)
    unknown = Gauge("gpuprov_doctor_unknown", "Rules that could not be checked", ["node"], registry=registry)
    reached = Gauge("gpuprov_doctor_reached", "Whether the machine answered", ["node"], registry=registry)
    for each in found:
        reached.labels(each.host).set(0 if each.failure else 1)
        unknown.labels(each.host).set(len(each.unknown))
        for (rule, severity), count in Counter((f.rule, f.severity) for f in each.faults).items():
            faults.labels(each.host, rule, severity).set(count)
    return generate_latest(registry).decode()
