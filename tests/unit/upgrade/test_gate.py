"""Verdict of the gate on a recorded node with one change at a time."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.node.lease import ATTEMPT_S
from gpuprov.drift.probe_request import drift_parameters
from gpuprov.errors import Refused, Unreachable
from gpuprov.files.runs import state_dir
from gpuprov.model.lock import Lock, LockedGroup, Setting, read_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.probe.facts import Facts
from gpuprov.upgrade import fetching, gate, start
from gpuprov.upgrade.context import UpgradeContext
from tests import RECORDED_FACTS, RECORDED_LOCK

OLDER = "535.261.03-1"


def older(lock: Lock, **changes: Any) -> Lock:
    """Return the lock with an older driver."""
    [(name, group)] = lock.groups.items()
    closure = dict.fromkeys(group.components.driver.closure, OLDER)
    driver = group.components.driver.model_copy(update={"closure": closure, "version": "535.261.03"})
    components = group.components.model_copy(update={"driver": driver})
    moved = group.model_copy(update={"components": components, **changes})
    return lock.model_copy(update={"groups": {name: moved}})


@pytest.fixture
def context() -> UpgradeContext:
    """Return the context of an upgrade from the recorded lock to an older driver."""
    old = read_lock(RECORDED_LOCK)
    run = Path("runs/this")
    return UpgradeContext(older(old), run, old=old, source=run)


@pytest.fixture
def answer(context: UpgradeContext) -> dict[str, Any]:
    """Answer of a healthy node that can install both versions."""
    recorded: dict[str, Any] = json.loads((RECORDED_FACTS).read_text())
    answer = copy.deepcopy(recorded)
    [group] = context.old.groups.values()
    both = [
        [name, each] for name, version in group.components.driver.closure.items() for each in (version, OLDER)
    ]
    result = {"offered": both, "kept": [], "lease": None, "architecture": "amd64", "awake_s": 9000.0}
    answer["collectors"]["gate"] = result
    answer["collectors"]["state"] = {
        "reboot_required": False,
        "reboot_packages": [],
        "secure_boot": None,
        "cloud_init": "",
        "foreign_drivers": [],
        "free_mib": {"/": 90000, "/boot": 900},
        "device_nodes": [],
        "package_manager_busy": None,
    }
    answer["collectors"]["gpu_use"] = {"processes": {"7": "nvidia-persiste"}, "containers": []}
    return answer


def shut(context: UpgradeContext, answer: dict[str, Any], *accepted: str) -> dict[str, list[str]]:
    """Return rule → the gate's objections to the node."""
    [name] = context.old.hosts()
    facts = Facts.from_answer(answer)
    found: dict[str, list[str]] = {}
    for finding in gate.judge_node(context, name, facts, accepted).shut:
        found.setdefault(finding.rule, []).append(finding.text)
    return found


def test_an_open_gate_says_what_moves(context: UpgradeContext, answer: dict[str, Any]) -> None:
    """Check that the gate of a sound node is open, and the packages that would change."""
    assert shut(context, answer) == {}
    [name] = context.old.hosts()
    moves = gate.judge_node(context, name, Facts.from_answer(answer), []).moves
    assert moves["libcuda1"][1] == OLDER


def test_the_gate_asks_for_all_that_it_reads(context: UpgradeContext, answer: dict[str, Any]) -> None:
    [group] = context.old.groups.values()
    asked = {*drift_parameters(group).collectors, *gate.COLLECTORS}
    answer["collectors"] = {name: value for name, value in answer["collectors"].items() if name in asked}
    assert shut(context, answer) == {}


def lease_of(run: str) -> dict[str, Any]:
    """Return the lease of a run as the probe states it."""
    return {"run": run, "holder": "a@b", "had_s": 2.0, "left_s": 4.0, "silent_s": 2.0}


def faults() -> list[tuple[str, str, Any]]:
    """Return changes of a sound node's facts: the rule and the text that each must give, and the change."""
    return [
        ("packages", "no repository of the node has", lambda c: c["gate"].update(offered=[])),
        ("way-back", "a rollback cannot install it", lambda c: c["gate"].update(offered=[])),
        ("packages", "apt-get (7) holds", lambda c: c["state"].update(package_manager_busy="apt-get (7)")),
        ("room", "/boot has 3 MB free", lambda c: c["state"]["free_mib"].update({"/boot": 3})),
        ("idle", "python (8)", lambda c: c["gpu_use"]["processes"].update({"8": "python"})),
        ("idle", "container train", lambda c: c["gpu_use"].update(containers=["train"])),
        ("lease", "leased by a@b, run other, since ", lambda c: c["gate"].update(lease=lease_of("other"))),
        ("facts", "state: no answer in 5 s", lambda c: c.update(state={"error": "no answer in 5 s"})),
    ]


@pytest.mark.parametrize(("rule", "text", "fault"), faults())
def test_what_shuts_the_gate(
    context: UpgradeContext, answer: dict[str, Any], rule: str, text: str, fault: Any
) -> None:
    """Check the rule and message with which each fault prevents an upgrade."""
    fault(answer["collectors"])
    assert text in " ".join(shut(context, answer)[rule])


@pytest.mark.parametrize(
    ("package", "shuts"),
    [
        ("nvidia-kernel-dkms", True),
        ("nvidia-dkms-580-server-open", True),
        ("linux-modules-nvidia-580-server-open-generic", False),
    ],
)
def test_headers_are_asked_for_where_the_module_is_compiled(
    context: UpgradeContext, answer: dict[str, Any], package: str, *, shuts: bool
) -> None:
    answer["collectors"]["kernels"]["headers"] = []
    [(_, new)] = context.groups.values()
    driver = new.components.driver.model_copy(update={"module_package": package})
    moved = new.model_copy(update={"components": new.components.model_copy(update={"driver": driver})})
    context = replace(
        context, lock=context.lock.model_copy(update={"groups": dict.fromkeys(context.lock.groups, moved)})
    )
    assert ("headers" in shut(context, answer)) == shuts


def test_drift_shuts_the_gate_unless_it_is_accepted(context: UpgradeContext, answer: dict[str, Any]) -> None:
    packages = answer["collectors"]["packages"]
    packages["text"] = packages["text"].replace("hold ok installed", "install ok installed")
    assert list(shut(context, answer)) == ["drift"]
    assert shut(context, answer, "pins.hold") == {}


@pytest.mark.parametrize(("awake_s", "asked"), [(3.0, 2), (9000.0, 1)])
def test_a_node_that_has_just_booted_may_settle(
    context: UpgradeContext,
    answer: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    awake_s: float,
    asked: int,
) -> None:
    settled = copy.deepcopy(answer)
    packages = answer["collectors"]["packages"]
    packages["text"] = packages["text"].replace("hold ok installed", "install ok installed")
    answer["collectors"]["gate"]["awake_s"] = awake_s
    answers = [Facts.from_answer(answer), Facts.from_answer(settled)]
    result = iter(answers)
    monkeypatch.setattr(gate, "fan_out", lambda nodes, *_, **__: [(nodes[0], next(result))])
    monkeypatch.setattr(gate, "AGAIN_S", 0.0)
    said: list[str] = []
    [name] = context.old.hosts()
    [seen] = gate.ask_gate(replace(context, narrate=said.append), [name])
    assert len(answers) - len(list(result)) == asked
    assert said == [f"waiting for {name} to settle after booting"] * (asked - 1)
    assert bool(seen.shut) == (asked == 1)


def test_a_lease_of_this_run_is_no_other_s(context: UpgradeContext, answer: dict[str, Any]) -> None:
    answer["collectors"]["gate"]["lease"] = lease_of("this")
    assert shut(context, answer) == {}


def test_gpus_in_use_are_left_to_the_drain_hook(context: UpgradeContext, answer: dict[str, Any]) -> None:
    answer["collectors"]["gpu_use"]["processes"]["8"] = "python"
    rollout = Rollout(hooks=Hooks(drain=Hook(run="true")))
    lock = context.lock.model_copy(update={"rollout": rollout})
    drained = replace(context, lock=lock)
    assert shut(drained, answer) == {}


def test_a_package_on_the_node_needs_no_repository(context: UpgradeContext, answer: dict[str, Any]) -> None:
    [group] = context.old.groups.values()
    versions = {*group.components.driver.closure.items()} | {
        (name, OLDER) for name in group.components.driver.closure
    }
    result = answer["collectors"]["gate"]
    result["offered"] = []
    result["kept"] = [f"{name}_{version.replace(':', '%3a')}_amd64.deb" for name, version in versions]
    assert shut(context, answer) == {}


def test_texts_of_the_gate_are_limited(context: UpgradeContext, answer: dict[str, Any]) -> None:
    """Limit them: the document of a plan has the findings of all nodes, which choose what is quoted."""
    answer["collectors"]["system"]["kernel"] = "6" * 900_000
    answer["collectors"]["daemon_json"] = {"value": {f"key{at}": "x" * 40 for at in range(20_000)}}
    answer["collectors"]["gpu_use"]["containers"] = ["y" * 300_000, "z" * 300_000]
    [name] = context.old.hosts()
    found = gate.judge_node(context, name, Facts.from_answer(answer), [])
    assert found.shut
    assert len(json.dumps(found.as_dict())) < 100_000
    lost = gate.judge_node(context, name, Unreachable("x" * 900_000), [])
    assert len(json.dumps(lost.as_dict())) < 2_000


def test_a_node_out_of_reach(context: UpgradeContext) -> None:
    [name] = context.old.hosts()
    [finding] = gate.judge_node(context, name, Unreachable("no SSH on 10.1.2.3 port 22"), []).shut
    assert (finding.rule, finding.text) == ("reach", "no SSH on 10.1.2.3 port 22")


def test_what_no_upgrade_can_do_is_refused_before_nodes_are_asked(context: UpgradeContext) -> None:
    [name] = context.old.hosts()

    def refused(lock: Lock) -> str:
        """Return the message with which an upgrade to the lock is refused."""
        other = replace(context, lock=lock)
        with pytest.raises(Refused) as caught:
            start.upgrade_order(other, [name])
        return str(caught.value)

    assert "would go from debian12 x86_64 to debian13" in refused(older(context.old, os="debian13"))
    assert f"the new lock has no {name}" in refused(older(context.old, hosts={"other": "10.0.0.1"}))


def test_repositories_that_are_new_are_told_to_apt(context: UpgradeContext) -> None:
    [old] = context.old.groups.values()
    repository = next(iter(old.repositories.values())).model_copy(
        update={
            "url": "https://mirror.example/cuda",
            "suites": [],
            "signed_by": "-----BEGIN\n\nabc\n-----END\n",
        }
    )
    new: LockedGroup = old.model_copy(update={"repositories": {**old.repositories, "nvidia": repository}})
    assert fetching.sources(old, new).splitlines() == [
        "Types: deb",
        "URIs: https://mirror.example/cuda",
        "Suites: /",
        "Signed-By:",
        " -----BEGIN",
        " .",
        " abc",
        " -----END",
    ]
    assert fetching.sources(new, new) == ""


def test_a_node_is_reported_what_both_locks_have(
    context: UpgradeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        fetching, "act", lambda lock, name, arguments, *_, **__: asked.update(arguments) or {}
    )
    [(node, (_, new))] = context.groups.items()
    new.components.driver.closure.pop("libcuda1")
    fetching.fetch(context, [node], [])
    assert "libcuda1" in asked[node][2]
    assert "libcuda1" not in asked[node][1]


@pytest.mark.parametrize("enrolled", [True, False])
def test_a_certificate_that_is_not_enrolled_shuts_the_gate_before_modules_are_signed_for_it(
    context: UpgradeContext, answer: dict[str, Any], enrolled: bool
) -> None:
    stated = LockedSecureBoot(fingerprint="ab" * 32, signer="Site", serial="01")
    [(name, group)] = context.lock.groups.items()
    shared = group.components.driver.model_copy(update={"build": "once"})
    components = group.components.model_copy(update={"driver": shared})
    moved = group.model_copy(update={"components": components, "secure_boot": stated})
    new = context.lock.model_copy(update={"groups": {name: moved}})
    answer["collectors"]["state"]["secure_boot"] = True
    lists = {"db": [], "dbx": [], "MokListRT": [stated.fingerprint] if enrolled else [], "MokListXRT": []}
    result = {"lockdown": "integrity", "keys": None, "enforced": False, "ignored_by_shim": False}
    answer["collectors"]["secure_boot"] = {**result, "kernel": [], "vendor": "", "certificates": lists}
    found = shut(replace(context, lock=new), answer)
    said = "the certificate of Site (01) is not enrolled: `gpuprov bootstrap` prepares it"
    assert found == ({} if enrolled else {"secure-boot": [said]})


@pytest.mark.parametrize(
    ("attempt", "silent_s", "shuts"),
    [
        pytest.param("", 2.0, False, id="of the run itself"),
        pytest.param("/7.a1b2", ATTEMPT_S - 1, True, id="of a worker that may be at work"),
        pytest.param("/7.a1b2", ATTEMPT_S, False, id="of a silent worker"),
    ],
)
def test_a_lease_that_a_killed_run_of_this_controller_left(
    context: UpgradeContext, answer: dict[str, Any], attempt: str, *, silent_s: float, shuts: bool
) -> None:
    killed = "20260131-142501-apply-0001"
    (state_dir() / "runs" / killed).mkdir(parents=True)
    lease = lease_of(killed + attempt) | {"silent_s": silent_s}
    answer["collectors"]["gate"]["lease"] = lease
    assert ("lease" in shut(context, answer)) == shuts


def test_headers_of_the_next_kernel_may_be_installed_with_it(
    context: UpgradeContext, answer: dict[str, Any]
) -> None:
    kernel = Setting(value="6.1.0-60-amd64", reason="", source="")
    [(name, new)] = context.lock.groups.items()
    moved = new.model_copy(update={"settings": new.settings | {"kernel": kernel}})
    context = replace(context, lock=context.lock.model_copy(update={"groups": {name: moved}}))
    assert shut(context, answer) == {
        "headers": ["no headers of kernel 6.1.0-60-amd64, to build the module against"]
    }
    answer["collectors"]["gate"]["offered"].append(["linux-headers-6.1.0-60-amd64", "6.1.170-1"])
    assert shut(context, answer) == {}


def test_the_gate_reads_all_packages_that_drift_reads(
    context: UpgradeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask also for packages of no component, such as those of storage clients, which would be drift."""
    [group] = context.old.groups.values()
    stated = Setting(value={"nfs": "nfs-common"}, reason="test", source="test")
    old = group.model_copy(update={"settings": {**group.settings, "storage_clients": stated}})
    asked: dict[str, Any] = {}
    monkeypatch.setattr(gate, "program", lambda _modules, parameters, **_: asked.update(parameters))
    gate._payload(old, old, None)
    assert {"nfs-common", *fetching.closure(old)} == set(asked["packages"])
    assert "nfs-common" not in asked["gate_packages"]
