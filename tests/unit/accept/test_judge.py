"""Judgement of real measurements: a healthy pair of H200 passes, each weakness fails with its own rule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from gpuprov.accept.health import OF_PROGRAMS
from gpuprov.accept.judge import Acceptance, document, judge
from gpuprov.accept.neighbours import SPREAD, middle_of_nodes
from gpuprov.accept.rates import COLLECTIVES, OF_GPU, rates
from gpuprov.doctor.concerns.errors import meanings
from gpuprov.errors import Exit, Unreachable
from gpuprov.finding import CHARACTERS, FINDINGS, Finding, limited
from gpuprov.model.floors import NAMES
from tests.unit.accept.recorded import recorded

Change = Callable[[dict[str, Any]], Any]


def one(measured: Any, **others: Any) -> Acceptance:
    """Return the verdict on one node with these measurements."""
    [judged] = judge({"gpu01": measured}, **others)
    return judged


def rules(judged: Acceptance) -> set[str]:
    """Return the rules of a node's faults."""
    return {found.rule for found in judged.faults}


@pytest.mark.parametrize("name", ["quick", "quick-again"])
def test_a_healthy_pair_is_accepted(name: str) -> None:
    judged = one(recorded(name))
    assert (judged.verdict, judged.exit_code) == ("accepted", Exit.OK)
    assert [found for found in judged.findings if found.level != "ok"] == []
    assert {rate.measure for rate in judged.rates} == {
        *OF_GPU,
        "peer",
        "all_reduce",
        "all_gather",
        "all_to_all",
    } - {
        "h2d_far",
        "d2h_far",
    }


FOUR = ("h200x4", "h100x4")


@pytest.mark.parametrize("machine", FOUR)
def test_four_healthy_gpus_are_accepted(machine: str) -> None:
    judged = one(recorded("quick", machine))
    assert [found.text for found in judged.findings] == [
        "NCCL: within a node: P2P/direct pointer (480 connections)"
    ]
    assert judged.verdict == "accepted"
    assert sum(rate.measure == "peer" for rate in judged.rates) == 12


@pytest.mark.parametrize("machine", FOUR)
def test_four_healthy_gpus_differ_by_less_than_the_spread(machine: str) -> None:
    """Hold the limit of outliers to real GPUs: the slowest reaches 0.95 of the fastest of its node."""
    alike: dict[str, list[float]] = {}
    for rate in one(recorded("quick", machine)).rates:
        alike.setdefault(rate.measure, []).append(rate.value)
    assert min(min(values) / max(values) for values in alike.values()) > 1 - SPREAD


def test_one_of_four_gpus_that_another_program_uses_is_named() -> None:
    """Reject GPU 2, on which a process multiplied matrices, by floors, by neighbours and as an outlier."""
    judged = one(recorded("compute-shared", "h200x4"))
    of_gpus = [found for found in judged.faults if found.rule != "all_reduce.slow"]
    assert {found.text[:5] for found in of_gpus} == {"GPU 2"}
    assert {"bf16.slow", "bf16.node", "bf16.outlier", "memory_read.outlier"} <= rules(judged)


def test_one_of_four_gpus_that_is_hot_is_named() -> None:
    """Reject GPU 0 of four H100, which the driver slowed within half a minute of load."""
    [found] = one(recorded("heat", "h100x4")).faults
    assert found.text == "GPU 0 slowed down under load: heat (software); up to 82 °C"


def test_copies_that_stay_disturbed_are_a_fault() -> None:
    judged = one(recorded("disturbed", "h100x4"))
    assert rules(judged) == {"d2h.slow", "d2h.outlier"}
    assert {found.text[:5] for found in judged.faults} == {"GPU 1"}


def test_the_long_level_is_accepted() -> None:
    assert one(recorded("full")).verdict == "accepted"


def published(judged: Acceptance) -> dict[str, float]:
    """Return measure → value of the first GPU, its first pair and all GPUs together."""
    return {rate.measure: rate.value for rate in judged.rates if rate.gpu in ("0", "0>1", "all")}


@pytest.mark.parametrize(
    ("measure", "figure"),
    [("bf16_burst", 794.5), ("fp8_burst", 1453.4), ("h2d", 55.43), ("d2h", 55.06), ("peer", 396.4)],
)
def test_figures_that_others_published_of_this_gpu_are_met_within_a_tenth(
    measure: str, figure: float
) -> None:
    """Compare with figures of stas00/ml-engineering for the H200; its matrix rates are of a short run."""
    assert published(one(recorded("quick")))[measure] == pytest.approx(figure, rel=0.1)


@pytest.mark.parametrize(
    ("name", "found", "not_found"),
    [
        (
            "compute-shared",
            {"bf16.slow", "fp64.slow", "bf16.node", "tf32.node", "memory_read.slow"},
            {"h2d.slow"},
        ),
        ("pcie-saturated", {"h2d.slow", "d2h.slow"}, {"bf16.slow", "memory_read.slow", "peer.slow"}),
        ("memory-held", {"memory.free"}, {"bf16.slow", "memory_read.slow"}),
        (
            "p2p-disabled",
            {"all_reduce.slow", "nccl.intra.transport", "nccl.environment.off"},
            {"peer.slow", "bf16.slow", "h2d.slow"},
        ),
    ],
)
def test_a_weakness_of_a_real_node_is_named(name: str, found: set[str], not_found: set[str]) -> None:
    judged = one(recorded(name))
    assert (judged.verdict, judged.exit_code) == ("rejected", Exit.FAILED)
    assert rules(judged) >= found
    assert not rules(judged) & not_found
    if name != "p2p-disabled":
        assert all("GPU 1 " not in each.text.split(":")[0] + " " for each in judged.faults)


def test_gpus_in_use_are_refused_before_any_load() -> None:
    judged = one(recorded("in-use"))
    assert (judged.verdict, judged.exit_code) == ("refused", Exit.REFUSED)
    assert "GPU 0: pid" in str(judged.failure)
    assert "end them" in str(judged.failure)


def test_a_program_after_the_load_hides_no_wrong_result() -> None:
    result = recorded("full")
    refused = {**result, "refused": "GPUs are in use: GPU 1: pid 4242", "loaded": result["gpus"]}
    del refused["gpus"]
    assert one(refused).verdict == "refused"
    refused["loaded"][0]["pattern"]["wrong"] = [{"words": 1, "bits": "0x1"}]
    judged = one(refused)
    assert (judged.verdict, rules(judged)) == ("rejected", {"memory.wrong"})
    assert one({**refused, "loaded": [5]}).verdict == "refused"


@pytest.mark.parametrize(
    ("reason", "do"), [("Slurm may start jobs here", "--drained"), ("MIG is on", "MIG off")]
)
def test_a_refusal_says_what_to_do(reason: str, do: str) -> None:
    result = {"schema": "gpuprov.accept.measured/1", "refused": reason}
    assert do in str(one(result).failure)
    assert one(result).exit_code == Exit.REFUSED


HELD = ["memory_read", "memory_copy", "h2d", "d2h", "bf16", "fp16", "tf32", "fp8", "fp64"]


@pytest.mark.parametrize("measure", HELD)
def test_a_gpu_at_half_of_its_rate_is_rejected_for_that_rate(measure: str) -> None:
    result = recorded("quick")
    step, key = OF_GPU[measure].place
    result["gpus"][1][step][key]["value"] /= 2
    assert f"{measure}.slow" in rules(one(result))
    assert {rule.split(".")[0] for rule in rules(one(result))} == {measure}


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all"])
def test_a_slow_collective_is_named(name: str) -> None:
    result = recorded("quick")
    result["between"]["nccl"]["sizes"][1][name]["value"] = 100.0
    assert rules(one(result)) == {f"{name}.slow"}


def gpu(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the first GPU's row of measurements, which can be changed in place."""
    row: dict[str, Any] = measured["gpus"][0]
    return row


def after(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the first GPU's counters after the load, which can be changed in place."""
    row: dict[str, Any] = measured["after"]["counters"][0]
    return row


FAULTS: dict[str, Change] = {
    "matrix.wrong": lambda measured: gpu(measured)["matrix"]["bf16"].update(off=0.3),
    "matrix.repeats": lambda measured: gpu(measured)["matrix"]["fp8"].update(repeats=False),
    "memory.wrong": lambda measured: gpu(measured)["pattern"].update(wrong=[{"words": 1, "bits": "0x4"}]),
    "memory.free": lambda measured: gpu(measured)["device"].update(memory_free=10**11),
    "peer.wrong": lambda measured: measured["between"]["pairs"][0].update(wrong={"words": 8}),
    "peer.direct": lambda measured: measured["between"]["pairs"][0].update(direct=False),
    "peer.slow": lambda measured: measured["between"]["pairs"][0].update(value=50.0),
    "peer.error": lambda measured: measured["between"]["pairs"].pop(),
    "all_reduce.wrong": lambda measured: measured["between"]["nccl"]["sizes"][0]["all_reduce"].update(
        wrong={"rank": 1}
    ),
    "nccl.error": lambda measured: measured["between"].update(nccl={"error": "libnccl.so.2: not found"}),
    "device.error": lambda measured: gpu(measured).update(device={"error": "no answer in 60 s"}),
    "device.seen": lambda measured: gpu(measured)["device"].update(visible=1),
    "device.lost": lambda measured: measured["after"]["counters"].pop(),
    "memory.error": lambda measured: gpu(measured).update(memory={"error": "12 MiB of memory are free"}),
    "bf16.error": lambda measured: gpu(measured)["matrix"].pop("bf16"),
    "tf32.error": lambda measured: gpu(measured)["matrix"].update(
        tf32={"error": "not supported on this GPU"}
    ),
    "host.error": lambda measured: gpu(measured).pop("host"),
    "pattern.error": lambda measured: gpu(measured).pop("pattern"),
    "host.numa": lambda measured: gpu(measured)["host"].update(stated=1, near=0),
    "memory.tested": lambda measured: gpu(measured)["pattern"].update(bytes=15 * 2**30),
    "load.samples": lambda measured: gpu(measured)["matrix"]["bf16"]["load"].update(samples=3),
    "load.slowed": lambda measured: gpu(measured)["matrix"]["bf16"]["load"].update(reasons=0x40),
    "ecc.uncorrected": lambda measured: after(measured).update(ecc_uncorrected=1),
    "ecc.rows": lambda measured: after(measured)["remapped_rows"].update(pending=1),
    "nvlink.replay": lambda measured: after(measured)["nvlinks"]["errors"].update(replay=3),
    "nvlink.up": lambda measured: measured["before"]["counters"][0]["nvlinks"].update(up=17),
    "xid.lost": lambda measured: measured["after"].update(xids={"lines": [], "lost": "it was overwritten"}),
    "xid.new": lambda measured: measured["after"].update(xids={"lines": [{"text": "NVRM: Xid 79"}]}),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_named(rule: str) -> None:
    result = recorded("quick")
    FAULTS[rule](result)
    judged = one(result)
    assert rule in rules(judged)
    assert judged.exit_code == Exit.FAILED


GIB = 2**30


@pytest.mark.parametrize(
    ("level", "free", "tested", "found"),
    [
        ("full", 139, 137, set()),
        ("full", 139, 135, {"memory.tested"}),
        ("full", 136, 133, set()),  # a driver, or a program that holds as little
        ("full", 3.6, 1, {"memory.tested"}),
        ("quick", 139, 16, set()),
        ("quick", 20, 16, set()),
        ("quick", 3.6, 1, {"memory.tested"}),
        ("other", 139, 16, {"memory.tested"}),
    ],
)
def test_memory_that_a_program_held_meanwhile_was_not_tested(
    level: str, free: float, tested: float, found: set[str]
) -> None:
    """Have a program start after the first look, and end before the last one."""
    result = recorded("full")
    result["level"] = level
    gpu(result)["pattern"].update(free=free * GIB, bytes=tested * GIB)
    result["gpus"][1]["pattern"]["bytes"] = 137 * GIB
    assert rules(one(result)) == found


def test_a_load_without_samples_is_not_one_that_slowed_nothing() -> None:
    result = recorded("full")
    for kind in gpu(result)["matrix"].values():
        kind["load"] = {"samples": 0, "reasons": 0, "clock": None, "power_w": None, "temperature": None}
    [found] = one(result).faults
    assert (found.rule, found.text) == (
        "load.samples",
        "GPU 0: 0 samples under load, expected at least 30: whether it slowed down is not known; test again",
    )


@pytest.mark.parametrize("key", ["off", "close"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_error_of_products_that_is_not_known_is_not_a_small_one(key: str, value: float | None) -> None:
    result = recorded("quick")
    gpu(result)["matrix"]["bf16"][key] = value
    assert rules(one(result)) == {"matrix.wrong"}


def test_a_gpu_that_did_not_start_is_one_line_and_not_one_a_step() -> None:
    result = recorded("quick")
    result["gpus"][0] = {"index": 0, "device": {"error": "no answer in 60 s"}, "matrix": {}}
    assert [found.rule for found in one(result).faults] == ["device.error"]


def test_what_a_gpu_is_not_made_for_is_no_fault() -> None:
    """Missing FP8 on an A100 is not a fault."""
    result = recorded("quick")
    for row in result["gpus"]:
        row["device"]["name"] = "NVIDIA A100-SXM4-80GB"
        row["matrix"]["fp8"] = {"error": "cublasLtMatmulAlgoGetHeuristic: not supported on this GPU"}
    assert "fp8.error" not in rules(one(result))


def test_the_codes_of_programs_are_those_of_the_doctors_table() -> None:
    causes = ("application", "program", "an earlier error")
    assert {code for code, each in meanings().items() if each.whose.startswith(causes)} == OF_PROGRAMS


def test_an_unread_kernel_log_is_reported_and_rejects_nobody() -> None:
    result = recorded("quick")
    result["after"]["xids"] = {"error": "no kernel log is read"}
    assert one(result).verdict == "accepted"
    assert [found.rule for found in one(result).findings if found.level == "warn"] == ["xid.unread"]


def test_of_a_gpu_that_nobody_published_no_threshold_is_known() -> None:
    result = recorded("compute-shared")
    for row in result["gpus"]:
        row["device"]["name"] = "NVIDIA H999"
    judged = one(result)
    assert {rate.floor for rate in judged.rates if rate.measure != "all_reduce"} == {None}
    assert all(rate.share is None for rate in judged.rates if rate.unit == "TFLOP/s")
    # The comparison within the node still works: Hugging Face's rule does not depend on the model.
    assert "bf16.node" in rules(judged)


def test_the_sites_own_floor_counts_instead() -> None:
    assert rules(one(recorded("quick"), site={"bf16": 700})) == {"bf16.slow"}
    assert rules(one(recorded("pcie-saturated"), site={"h2d": 20, "d2h": 20})) == set()


def test_an_outlier_among_many_is_found_by_name() -> None:
    """Report a GPU 10 % slower than the fleet, though above the floor and above 90 % of its node's best."""
    fleet = {f"gpu{n:02}": recorded("quick") for n in range(1, 9)}
    for result in fleet["gpu05"]["gpus"]:
        result["matrix"]["bf16"]["value"] *= 0.9
    found = {each.node: rules(each) for each in judge(fleet)}
    assert found.pop("gpu05") == {"bf16.outlier"}
    assert not any(found.values())


def test_what_became_slower_is_reported_against_a_baseline() -> None:
    now = recorded("quick-again")
    assert rules(one(now, baseline={"gpu01": recorded("quick")})) == set()
    now["gpus"][0]["memory"]["driver_copy"]["value"] *= 0.94
    assert rules(one(now, baseline={"gpu01": recorded("quick")})) == {"memory_copy.slower"}


def test_a_node_that_gave_nothing_is_that_nodes_line() -> None:
    answers = {"a": Unreachable("no route"), "b": recorded("quick"), "c": {"schema": "other"}}
    result = judge(answers)
    assert [each.verdict for each in result] == ["failed", "accepted", "failed"]
    assert [each.exit_code for each in result] == [Exit.UNREACHABLE, Exit.OK, Exit.FAILED]
    assert [row["verdict"] for row in document(result)["nodes"]] == ["failed", "accepted", "failed"]


JUNK: list[Any] = [None, [], {}, "x", -1, True, [None], {"error": None}]


def places(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of keys and indexes to each value in nested mappings and lists, also the empty one."""
    found: list[tuple[Any, ...]] = [()]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [(key, *rest) for rest in places(inner)]
    return found


@pytest.mark.thorough
def test_no_word_of_a_stranger_breaks_the_judge() -> None:
    result = recorded("quick")
    for place in places(result)[1:]:
        for number, junk in enumerate(JUNK):
            if (len(place) + number) % 3:  # a third of all combinations suffices and takes a second
                continue
            changed = copy.copy(result)
            inner: Any = changed
            for key in place[:-1]:
                inner[key] = copy.copy(inner[key])
                inner = inner[key]
            inner[place[-1]] = junk
            [judged] = judge({"n": changed})
            why = str(judged.failure or "")
            assert not why or "no measurements" in why or "a rate twice" in why, place


def test_every_rate_is_its_own_figure() -> None:
    result = recorded("quick")
    found = [(rate.gpu, rate.measure) for rate in rates(result, {})]
    assert len(found) == len(set(found)) == 2 * 11 + 2 + 3


def test_floors_of_a_group_hold_for_its_nodes_alone() -> None:
    answers = {"gpu01": recorded("quick"), "gpu02": recorded("quick-again")}
    judged = {each.node: each for each in judge(answers, of_node={"gpu02": {"bf16": 900}})}
    assert judged["gpu01"].verdict == "accepted"
    assert rules(judged["gpu02"]) == {"bf16.slow"}
    [first, *_] = judged["gpu02"].faults
    assert "at least 900 is expected (the site's own)" in first.text
    assert {each.verdict for each in judge(answers, {"bf16": 1}, of_node={"gpu02": {"bf16": 900}})} == {
        "accepted"
    }


def test_every_measurement_can_have_a_floor() -> None:
    between = {"between_nodes", "across_nodes"}
    assert set(NAMES) == {*OF_GPU, "peer", *COLLECTIVES, "nvme_read", "nic", *between}


def test_an_answer_with_more_gpus_than_any_machine_is_not_judged() -> None:
    result = recorded("quick")
    many = [{**result["gpus"][0], "index": at} for at in range(65)]
    judged = one({**result, "gpus": many})
    assert (judged.verdict, str(judged.failure)) == (
        "failed",
        "the answer holds too many GPUs; expected at most 64",
    )
    assert one(result, baseline={"gpu01": {**result, "gpus": many}}).verdict == "accepted"


@pytest.mark.parametrize("what", ["drives", "ports", "sizes of collectives"])
def test_an_answer_with_too_many_rows_is_not_judged(what: str) -> None:
    result = recorded("quick")
    many = [{"name": f"d{at}"} for at in range(257)]
    if what == "sizes of collectives":
        result["between"]["nccl"]["sizes"] = many
    else:
        result["host_devices"] = {what: many}
    judged = one(result)
    assert judged.verdict == "failed"
    assert str(judged.failure) == f"the answer holds too many {what}; expected at most 256"


def test_the_findings_of_a_node_are_limited_in_number_and_length() -> None:
    """Limit the findings of a node's measurements, and those of its comparison with the others."""
    fleet = {f"gpu{at}": recorded("quick") for at in range(5)}
    for name, result in fleet.items():
        count, value = (200, 1.0) if name == "gpu4" else (2, 380.0)
        result["host_devices"] = {
            "drives": [{"name": f"{at}{'x' * 5000}", "read": {"value": value}} for at in range(count)],
            "ports": [{"name": f"{at}{'x' * 5000}", "gbits": value} for at in range(count)],
        }
    floors = {"nvme_read": 300.0, "nic": 300.0}
    [*others, judged] = judge(fleet, floors)
    assert {each.verdict for each in others} == {"accepted"}
    assert judged.verdict == "rejected"
    assert len(judged.findings) == 2 * (FINDINGS + 1)
    assert max(len(found.text) for found in judged.findings) == CHARACTERS
    assert sum(found.rule == "findings.more" for found in judged.findings) == 2


def test_of_many_findings_the_worst_are_kept_in_their_order() -> None:
    found = [Finding("ok", "a.b", str(at)) for at in range(FINDINGS)]
    found += [
        Finding("bad", "a.b", "first"),
        Finding("warn", "a.b", "x" * 9999),
        Finding("bad", "a.b", "last"),
    ]
    kept = limited(iter(found))
    assert [each.text for each in kept[-4:]] == ["first", "x" * 999 + "…", "last", "3 more findings"]
    assert kept[-1].level == "ok"
    assert limited(found[:FINDINGS]) == found[:FINDINGS]
    assert limited([found[-1]] * 999)[-1].level == "bad"


def test_names_of_collectives_are_not_those_of_the_node() -> None:
    result = recorded("quick")
    result["between"]["nccl"]["sizes"][0]["x" * 999] = {"wrong": {"rank": 0}}
    assert one(result).verdict == "accepted"


def test_a_node_with_many_rows_does_not_outvote_the_others() -> None:
    """Compare with the median of 20 honest nodes, not with the 200 drives or ports of one node."""
    fleet = {f"gpu{n:02}": recorded("quick") for n in range(1, 21)}
    for name, result in fleet.items():
        count = 200 if name == "gpu20" else 4
        value = 99.0 if name == "gpu20" else 6.9
        result["host_devices"] = {
            "drives": [{"name": f"nvme{at}n1", "read": {"value": value}} for at in range(count)],
            "ports": [{"name": f"eth{at}", "gbits": value} for at in range(count)],
        }
    assert {each.verdict for each in judge(fleet)} == {"accepted"}
    fleet["gpu07"]["host_devices"]["drives"][1]["read"]["value"] = 3.0
    found = {each.node: rules(each) for each in judge(fleet)}
    assert found.pop("gpu07") == {"nvme_read.outlier"}
    assert not any(found.values())


def repeated_pairs(measured: dict[str, Any]) -> None:
    """Replace the pairs by one fast pair, repeated 200 times."""
    measured["between"]["pairs"] = [{"from": 0, "to": 1, "value": 10_000.0, "direct": True}] * 200


def invented_pairs(measured: dict[str, Any]) -> None:
    """Replace the pairs by 200 pairs; most do not exist."""
    measured["between"]["pairs"] = [{"from": 0, "to": at, "value": 10_000.0} for at in range(200)]


def repeated_sizes(measured: dict[str, Any]) -> None:
    """Repeat the sizes of NCCL's measurement 100 times."""
    measured["between"]["nccl"]["sizes"] *= 100


def repeated_gpus(measured: dict[str, Any]) -> None:
    """Repeat the rows of GPUs 30 times."""
    measured["gpus"] *= 30


def repeated_drives(measured: dict[str, Any]) -> None:
    """Add one fast drive 200 times."""
    measured["host_devices"] = {"drives": [{"name": "nvme0n1", "read": {"value": 99.0}}] * 200}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (repeated_pairs, "the answer holds a rate twice; expected each once"),
        (invented_pairs, "the answer holds 200 pairs of GPUs; expected at most 2"),
        (repeated_sizes, "the answer holds a rate twice"),
        (repeated_gpus, "the answer holds a rate twice"),
        (repeated_drives, "the answer holds a rate twice"),
    ],
)
def test_rows_that_no_node_has_are_the_error_of_their_node(change: Change, reason: str) -> None:
    answers = {f"gpu{n}": recorded("quick") for n in range(1, 5)}
    change(answers["gpu4"])
    *others, judged = judge(answers)
    assert judged.verdict == "failed"
    assert str(judged.failure).startswith(reason)
    assert {each.verdict for each in others} == {"accepted"}


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([[1.0, 2.0, 3.0, 9.0]], 2.5),
        ([[1.0], [2.0], [9.0]], 2.0),
        ([[1.0, 3.0], [2.0, 4.0]], 2.5),
        ([[1.0], [2.0], [9.0] * 1000], 2.0),
        ([[1.0], [9.0] * 1000], 5.0),
        ([[1.7e308], [1.7e308]], 1.7e308),
    ],
)
def test_each_node_has_one_vote_in_the_median(values: list[list[float]], middle: float) -> None:
    assert middle_of_nodes(values) == middle
    assert middle_of_nodes(list(reversed(values))) == middle
