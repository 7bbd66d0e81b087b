"""Rules of the doctor: each reports its fault on a machine, and none reports on healthy machines."""

from __future__ import annotations

import json
import re

import pytest

from gpuprov.doctor.judge import CHAIN, catalogue, diagnose, rules
from gpuprov.doctor.load.verdict import LOAD_RULES
from tests.unit.doctor.faults import (
    CRASH,
    FAULTS,
    FIRST,
    LOST,
    STOPPED,
    XID,
    all_of,
    bound_to,
    kernel_says,
    login,
    program,
    smi_says,
)
from tests.unit.doctor.machines import (
    HEALTHY,
    NOW,
    Change,
    Collectors,
    as_examined,
    bare_metal,
    edit_smi,
    hca,
    log,
)

ACTION = "NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from {} to {}"
CASES = [(name, number) for name, changes in FAULTS.items() for number in range(len(changes))]


def test_every_rule_has_a_fault_that_trips_it() -> None:
    assert {rule.name for rule in rules()} == set(FAULTS)


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(name: str) -> None:
    """Check that no rule reports a fault on a healthy machine, or fails."""
    found = diagnose(as_examined(HEALTHY[name]()))
    assert [f for f in found.faults if f.severity in ("broken", "degraded", "risk")] == []
    assert all("could not be read (" not in reason for _, reason in found.unknown), (
        "a rule that fell over a healthy machine"
    )


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_fault_is_found_by_name(name: str, number: int) -> None:
    result = bare_metal()
    FAULTS[name][number](result)
    found = diagnose(as_examined(result))
    mine = [fault for fault in found.faults if fault.rule == name]
    assert mine, [fault.rule for fault in found.faults]
    for fault in mine:
        assert fault.seen, "evidence"
        assert fault.cause
        assert fault.mend
        assert fault.source
    assert not [each for each in found.unknown if "could not be read (" in each[1]], found.unknown


def test_a_crash_while_the_module_is_loaded_is_why_it_is_not_loaded() -> None:
    result = bare_metal()
    FAULTS["driver.crashed"][1](result)
    first, *others = diagnose(as_examined(result)).faults
    assert (first.rule, first.severity) == ("driver.crashed", "broken")
    assert [fault.follows for fault in others if fault.rule == "driver.not_loaded"] == [("driver.crashed",)]
    assert [severity for severity, rule, _ in judged(kernel_says(*CRASH)) if rule == "driver.crashed"] == [
        "degraded"
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), CASES)
def test_its_cause_comes_first(name: str, number: int) -> None:
    """Check that no mere hint comes before a rule's fault unless the rule names it as a cause, and that a
    broken part comes first.
    """
    result = bare_metal()
    FAULTS[name][number](result)
    found = diagnose(as_examined(result)).faults
    [mine, *_] = [fault for fault in found if fault.rule == name]
    before = found[: found.index(mine)]
    rule = {each.name: each for each in rules()}[name]
    for fault in before:
        assert fault.rule in (*rule.after, name) or fault.severity != "hint", fault.rule
    if mine.severity == "broken" and not mine.follows:
        assert found[0].rule == name


def test_every_known_fault_has_a_rule_or_a_reason() -> None:
    result = catalogue()
    covered = {row for rule in [*rules(), *(each.rule for each in LOAD_RULES.values())] for row in rule.rows}
    assert covered <= set(result["faults"])
    assert set(result["faults"]) - covered == set(result["without_rule"])
    assert all(result["without_rule"].values())


def test_sources_are_known_and_used() -> None:
    result = catalogue()
    used = {source for rule in rules() for source in rule.source}
    assert used <= set(result["sources"])


def test_causes_are_rules_and_form_no_circle() -> None:
    after = {rule.name: rule.after for rule in rules()}
    assert {each for causes in after.values() for each in causes} <= set(after)
    for _ in range(CHAIN):
        ends = [name for name, causes in after.items() if not causes]
        after = {
            name: tuple(each for each in causes if each not in ends)
            for name, causes in after.items()
            if name not in ends
        }
    assert after == {}


def test_rules_of_nccl_do_not_name_rows_about_access() -> None:
    by_row = {row: [each.name for each in rules() if row in each.rows] for row in ("D16", "U16")}
    assert by_row == {"D16": ["driver.permissions"], "U16": ["network.nccl_variables"]}


def test_rules_name_rules() -> None:
    """Check that the rules that a rule names as earlier ones exist."""
    names = {rule.name for rule in rules()}
    assert {other for rule in rules() for other in rule.after} <= names


def test_what_could_not_be_read_is_never_healthy() -> None:
    result = bare_metal()
    result["kernel_log"] = {"error": "no kernel log can be read"}
    found = diagnose(as_examined(result))
    assert found.verdict == "unsure"
    assert "errors.xid" in dict(found.unknown)
    nothing = diagnose(as_examined({"system": result["system"]}))
    assert nothing.verdict == "unsure"
    assert len(nothing.unknown) > len(rules()) / 2


def test_a_rule_that_searches_a_part_of_the_log_does_not_know_all_faults() -> None:
    """Keep the faults in what was read, and the rules that do not read it; a day of the log is enough."""
    result = bare_metal()
    result["kernel_log"]["since"] = NOW - 24 * 3600
    assert diagnose(as_examined(result)).verdict == "healthy"
    result["kernel_log"]["since"] = NOW - 7200
    found = diagnose(as_examined(result))
    assert (found.verdict, found.faults) == ("unsure", ())
    said = "kernel_log: messages of the kernel from before 2026-11-22 10:00 may be missing"
    assert {"errors.xid", "errors.sxid", "driver.vermagic", "network.card"} <= dict(found.unknown).keys()
    assert set(dict(found.unknown).values()) == {said}
    assert not {"bus.count", "memory.pending"}.intersection(dict(found.unknown))
    log(result, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    found = diagnose(as_examined(result))
    assert "errors.xid" in {fault.rule for fault in found.faults}.intersection(dict(found.unknown))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(bare_metal()))
def test_a_collector_that_sends_nonsense_is_unknown_and_nothing_worse(name: str) -> None:
    for nonsense in (None, [], {}, "x", 7, {"text": None}, [[None]], {"first": "x", "second": []}):
        diagnose(as_examined({**bare_metal(), name: nonsense}))


def judged(*changes: Change) -> list[tuple[str, str, str]]:
    """Return severity, rule and text of each fault of a healthy machine with changes."""
    result = bare_metal()
    all_of(*changes)(result)
    return [(fault.severity, fault.rule, fault.text) for fault in diagnose(as_examined(result)).faults]


def test_a_gpu_is_reset_only_if_no_program_can_have_it_mapped() -> None:
    """Report memory that no open file explains, and end first what keeps mappings from being read."""
    used = FAULTS["cuda.held"][1]
    said = "the kernel does not tell which files process 4711 (python) of user 1000 has mapped"
    for unmapped, mend in (("", "sudo nvidia-smi --gpu-reset -i 0"), (said, "end the process that keeps")):
        collected = bare_metal()
        used(collected)
        collected["programs"]["unmapped"] = unmapped
        faults = [each for each in diagnose(as_examined(collected)).faults if each.rule == "cuda.held"]
        assert faults[0].mend[0].startswith(mend)
        assert unmapped in " ".join(faults[0].seen)


@pytest.mark.parametrize("name", ["dcgm-job", "Xorg-job", "nvidia-smi"])
def test_only_daemons_of_the_system_are_no_holders(name: str) -> None:
    """Count programs of users also by the name of a daemon, which any program can have."""
    used = FAULTS["cuda.held"][1]
    for uid, holds in (("1000", True), ("115", False), ("0", False)):
        texts = held(program(name=name, state="Z", uid=uid))
        assert [f"({name}) holds" in text for text in texts] == [True] * holds
        texts = held(program(name=name, uid=uid), used)
        assert ["no program has the GPU open" in text for text in texts] == [True] * (not holds)


def held(*changes: Change) -> list[str]:
    """Return the texts of the rule cuda.held."""
    return [text for _, rule, text in judged(*changes) if rule == "cuda.held"]


def test_the_drivers_own_advice_outranks_other_xids() -> None:
    def reboot(result: dict) -> None:  # type: ignore[type-arg]
        edit_smi(result, "<gpu_recovery_action>None", "<gpu_recovery_action>Reboot", count=1)

    found = judged(kernel_says(XID.format(119), XID.format(62)), reboot)
    assert found[0] == ("broken", "errors.recovery", "the driver recommends for GPU 0: reboot")
    assert [rule for _, rule, _ in found[1:]] == ["errors.xid", "errors.xid"]


def test_an_old_error_after_which_the_driver_wants_nothing_is_history() -> None:
    old = judged(kernel_says(XID.format(119), age_s=3 * 86400))
    assert [(severity, rule) for severity, rule, _ in old] == [("risk", "errors.xid")]
    new = judged(kernel_says(XID.format(119), age_s=60))
    assert new[0][0] == "broken"


def test_a_programs_error_that_stays_with_one_gpu_is_the_gpus() -> None:
    once = judged(kernel_says(XID.format(13)))
    often = judged(kernel_says(*[XID.format(13)] * 4))
    everywhere = judged(kernel_says(*[XID.format(13)] * 4, XID.format(13).replace("00:06", "00:07")))
    assert [each[0][0] for each in (once, often, everywhere)] == ["hint", "risk", "hint"]


def test_what_the_driver_takes_back_is_history() -> None:
    back = ACTION.format("0x2 (Node Reboot Required)", "0x0 (None)")
    later = ACTION.format("0x0 (None)", "0x1 (GPU Reset Required)")
    result = judged(kernel_says(XID.format(95), age_s=900), kernel_says(back, age_s=600))
    assert result == [("risk", "errors.xid", result[0][2])]
    again = judged(
        kernel_says(XID.format(95), age_s=900), kernel_says(back, age_s=600), kernel_says(later, age_s=300)
    )
    assert again[0][:2] == ("broken", "errors.xid")
    after = judged(kernel_says(back, age_s=900), kernel_says(XID.format(95), age_s=600))
    assert after[0][:2] == ("broken", "errors.xid")


def test_errors_of_caches_are_the_vendors_to_judge() -> None:
    def sram(flag: str) -> Change:
        """Return a change to 7 parity errors, and whether the threshold is exceeded."""
        return all_of(
            lambda result: edit_smi(
                result, r"(?s)(<aggregate>.*?<sram_uncorrectable_parity>)0", r"\g<1>7", count=1
            ),
            lambda result: edit_smi(
                result, r"<sram_threshold_exceeded>No", f"<sram_threshold_exceeded>{flag}", count=1
            ),
        )

    assert [each[:2] for each in judged(sram("Yes"))] == [("degraded", "errors.ecc_ever")]
    assert [each[:2] for each in judged(sram("No"))] == [("risk", "errors.ecc_ever")]


def test_a_driver_without_its_tool_is_one_fault() -> None:
    def gone(result: Collectors) -> None:
        result["smi"] = {"error": "nvidia-smi is not installed"}

    assert [each[:2] for each in judged(gone)] == [("degraded", "cuda.no_smi")]


def test_after_a_new_module_services_run_as_before() -> None:
    result = bare_metal()
    FAULTS["driver.mismatch"][0](result)
    [fault, *_] = diagnose(as_examined(result)).faults
    assert [line.partition("   (")[0] for line in fault.mend] == [
        "sudo systemctl stop nvidia-persistenced.service nvidia-fabricmanager.service",
        "sudo modprobe -r nvidia_peermem nvidia_uvm nvidia && "
        "sudo modprobe -a nvidia nvidia_uvm nvidia_peermem",
        "sudo systemctl start nvidia-persistenced.service nvidia-fabricmanager.service",
        "or: sudo reboot",
    ]


def test_a_build_that_is_missing_is_seen_from_the_host_alone() -> None:
    def unbuilt(result: Collectors) -> None:
        result["disk_modules"], result["dkms"] = {}, [["nvidia", "580.159.04", "", "", "added"]]

    def contained(result: Collectors) -> None:
        result["host_state"]["virtual"] = "container"

    assert [each[:2] for each in judged(unbuilt)] == [("risk", "driver.build_failed")]
    assert judged(unbuilt, contained) == []


def test_instances_that_a_user_may_not_see_are_unknown() -> None:
    result = bare_metal()
    FAULTS["cuda.mig_left"][0](result)
    result["system"]["uid"] = 1000
    found = diagnose(as_examined(result))
    assert "cuda.mig_left" not in [fault.rule for fault in found.faults]
    assert "cuda.mig_left" in dict(found.unknown)


def test_mig_that_waits_to_be_switched_off_is_not_taken_for_one_that_was_left_on() -> None:
    """Check that a reset is advised, not the change that was already made."""
    found = judged(smi_says(r"<current_mig>Disabled", "<current_mig>Enabled"))
    assert found[0][:2] == ("broken", "cuda.mig_pending")
    assert "cuda.mig_left" not in [rule for _, rule, _ in found]
    assert judged(smi_says(r"<pending_mig>Disabled", "<pending_mig>Enabled"))[0][0] == "risk"


def test_a_lost_gpu_explains_what_follows() -> None:
    """Check that a GPU that fell off the bus is the first fault, before those that it causes."""

    def gone(result: dict) -> None:  # type: ignore[type-arg]
        """Take the first GPU from the bus; nvidia-smi fails."""
        result["pci_links"][FIRST][0].update(lost=True)
        result["smi"] = {
            "rc": 15,
            "stdout": "Unable to determine the device handle for GPU 0000:00:06.0: Unknown Error",
            "stderr": "",
        }

    found = judged(kernel_says(LOST), gone)
    assert found[0][1] == "bus.lost"
    assert {rule for _, rule, _ in found[1:]} >= {"errors.xid", "driver.smi"}


def test_lost_in_several_lines_without_a_code() -> None:
    words = (
        "NVRM: The NVIDIA GPU 0000:00:06.0 NVRM: (PCI ID: 10de:2335) installed in this system has "
        "NVRM: fallen off the bus and is not responding to commands."
    )
    assert judged(kernel_says(words))[0][2] == "Xid 79 on GPU 0: the GPU has fallen off the bus"


def test_names_and_texts_are_one_line_of_plain_words() -> None:
    for name, changes in FAULTS.items():
        result = bare_metal()
        changes[0](result)
        for fault in diagnose(as_examined(result)).faults:
            assert "\n" not in fault.text, name
            assert not re.search(r"\bNone\b|\{|\}", fault.text), fault.text
            json.dumps(fault.as_dict())


@pytest.mark.parametrize(
    ("layers", "found"), [(("InfiniBand", "InfiniBand"), 1), (("InfiniBand", "Ethernet"), 0)]
)
def test_the_rate_of_a_port_that_is_down_means_nothing(layers: tuple[str, str], found: int) -> None:
    def down(result: Collectors) -> None:
        """Have one port down at a low rate and one up, with these link layers."""
        result["hcas"] = [
            hca("mlx5_0", "0000:18:00.0", "1: DOWN", "10 Gb/sec (4X SDR)"),
            hca("mlx5_1", "0000:2a:00.0", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ]
        for port, layer in zip(result["hcas"], layers, strict=True):
            port["link_layer"] = layer

    assert [rule for _, rule, _ in judged(down)].count("network.port_down") == found


def test_a_stopped_transfer_counts_for_a_gpu_of_this_machine_alone() -> None:
    other = STOPPED[0].replace(FIRST, "0000:04:00.0"), STOPPED[1].replace("00:06.0", "04:00.0")
    sound = f"nvidia 0000:00:06.1: {STOPPED[0].partition(': ')[2]}"
    for line in (*other, sound):
        assert "host.iommu" not in {rule for _, rule, _ in judged(kernel_says(line))}, line
    for driver in ("vfio-pci", "pci-stub"):
        found = judged(bound_to(driver), kernel_says(*STOPPED))
        assert "host.iommu" not in {rule for _, rule, _ in found}, driver


def test_what_healthy_machines_have_is_no_alarm() -> None:
    def second_port_without_a_cable(result: Collectors) -> None:
        result["hcas"] = [hca("mlx5_0", "0000:18:00.0"), hca("mlx5_1", "0000:18:00.1", "1: DOWN")]

    def workstation_board(result: Collectors) -> None:
        """Make the GPUs workstation boards without ECC."""
        edit_smi(result, "NVIDIA H200", "NVIDIA RTX A2000")
        edit_smi(result, "Enabled</current_ecc>", "Disabled</current_ecc>")
        edit_smi(result, "Enabled</pending_ecc>", "Disabled</pending_ecc>")

    def a_few_lost_packets(result: Collectors) -> None:
        result["counters"]["first"]["rdma mlx5_0/1 out_of_sequence"] = 7
        result["counters"]["second"]["rdma mlx5_0/1 out_of_sequence"] = 9

    def one_card_with_a_bridge(result: Collectors) -> None:
        """Leave only the first GPU with active links, and no NVSwitch."""
        result["pci"] = [row for row in result["pci"] if row[3] != "0x068000"]
        edit_smi(result, "<state>Completed", "<state>N/A")
        first, _, second = result["nvlink"]["status"].partition("GPU 1:")
        result["nvlink"]["status"] = first + "GPU 1:" + re.sub(r"[\d.]+ GB/s", "<inactive>", second)

    for harmless in (
        second_port_without_a_cable,
        workstation_board,
        a_few_lost_packets,
        one_card_with_a_bridge,
        login("NCCL_IB_HCA", "^mlx4_0"),
    ):
        found = [each for each in judged(harmless) if each[0] in ("broken", "degraded") or "ecc" in each[1]]
        assert found == [], harmless.__name__


def test_each_remedy_is_a_line_and_no_single_quoted_word() -> None:
    """Reject a command that was quoted as one word, which a shell looks for as a program."""
    for changes in FAULTS.values():
        for change in changes:
            result = bare_metal()
            change(result)
            lines = [line for fault in diagnose(as_examined(result)).faults for line in fault.mend]
            assert [line for line in lines if re.match(r"'[^']* ", line)] == []
