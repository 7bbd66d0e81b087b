"""The doctor's recorded faults, through the program: each counts with its rule after two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.doctor.collecting import COLLECTORS
from gpuprov.doctor.concerns import ORDER
from gpuprov.doctor.fault import CLASSES, SEVERITIES
from gpuprov.doctor.judge import diagnose, rules
from gpuprov.health import look
from gpuprov.health.output import line, metrics
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import HEALTHY, as_examined, bare_metal
from tests.unit.health.machine import Machine


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_the_program_has_all_concerns_in_the_doctors_order() -> None:
    assert [f"gpuprov.doctor.concerns.{name}" for name in look.CONCERNS] == [each.__name__ for each in ORDER]


def test_the_program_imports_the_doctors_collectors() -> None:
    names = [f"gpuprov.probe.node.{name}" for name in look.COLLECTORS]
    text = "".join(
        (Path(look.__file__).parents[2] / f"{name.replace('.', '/')}.py").read_text() for name in names
    )
    assert [name for name in COLLECTORS if f"def {name}(" not in text] == []


def test_every_rule_has_a_class_for_every_severity() -> None:
    for rule in rules():
        assert set(rule.health) == set(SEVERITIES), rule.name
        assert set(rule.health.values()) <= set(CLASSES), rule.name
        assert rule.health["hint"] == "none", rule.name


def test_a_healthy_machine_is_healthy(node: Machine) -> None:
    document = node.run(3)
    assert (document["verdict"], document["faults"], document["unjudged"]) == ("healthy", [], {})


@pytest.mark.parametrize("name", HEALTHY)
def test_no_healthy_machine_is_drained(node: Machine, name: str) -> None:
    node.collectors = HEALTHY[name]()
    documents = [node.run() for _ in range(4)]
    assert not {each["verdict"] for each in documents} & {"isolate", "reset"}
    complete = not set(look.ESSENTIAL) - set(node.collectors)
    assert (documents[-1]["verdict"] in ("healthy", "watch")) == complete, documents[-1]["reasons"]


@pytest.mark.thorough
@pytest.mark.parametrize("rule", FAULTS)
def test_each_recorded_fault_reaches_the_document_and_the_metrics(node: Machine, rule: str) -> None:
    node.run(2)
    for change in FAULTS[rule]:
        node.collectors = bare_metal()
        change(node.collectors)
        expected = diagnose(as_examined(node.collectors))
        classes = {each.health for each in expected.faults if each.rule == rule}
        node.pass_time(look.RARELY["topo"])
        document = node.run(2)
        found = {each["health"] for each in document["faults"] if each["rule"] == rule}
        assert found >= classes
        for health in classes:
            assert f'gpuprov_health_fault{{rule="{rule}",class="{health}"}} 1' in metrics(document, 0.0)
        worst = min(classes, key=CLASSES.index)
        if worst in ("isolate", "reset"):
            assert document["verdict"] in ("isolate", "reset")
            assert line(document).split()[0] == document["verdict"]
        elif worst == "watch":
            assert document["verdict"] != "healthy"


@pytest.mark.parametrize(("rule", "verdict"), [("driver.mismatch", "isolate"), ("errors.ecc_off", "watch")])
def test_the_rule_of_the_reason_is_the_cause(node: Machine, rule: str, verdict: str) -> None:
    """Name the cause, not a difference of settings that it makes between the GPUs."""
    [change, *_] = FAULTS[rule]
    change(node.collectors)
    document = node.run(2)
    assert (document["verdict"], document["rule"]) == (verdict, rule)


def test_a_site_states_another_class(node: Machine) -> None:
    [change, *_] = FAULTS["driver.persistence"]
    change(node.collectors)
    assert node.run(2)["verdict"] == "watch"
    node.config = type(node.config)(rules={"driver.persistence": "isolate"})
    assert (node.run(2)["verdict"], node.run()["rule"]) == ("isolate", "driver.persistence")
    node.config = type(node.config)(rules={"driver.persistence": "off"})
    node.uptime += 10_000
    assert node.run(3)["verdict"] == "healthy"


@pytest.mark.parametrize(
    ("stated", "said"),
    [({"driver.persistance": "watch"}, "driver.persistance"), ({"driver.smi": "drain"}, "'drain'")],
)
def test_a_wrong_rule_of_the_site_is_unknown(node: Machine, stated: dict[str, str], said: str) -> None:
    node.config = type(node.config)(rules=stated)
    document = node.run()
    assert document["verdict"] == "unknown"
    assert said in document["text"]
