"""Users of a node: what one of them can choose neither isolates nor resets it, and hides no fault."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest

from gpuprov.doctor.fault import CLASSES, OF_USERS, Fault, Rule, class_of, is_of_gpus
from gpuprov.doctor.judge import diagnose, rules
from gpuprov.probe.node.kernel_messages import OF_DEVICES, kind_of
from tests.unit.doctor.faults import FAULTS, FIRST, all_of, kernel_says, setting
from tests.unit.doctor.machines import NOW, Change, Collectors, as_examined, bare_metal, edit_smi, holder, log

OF_USERS_ONLY = ("programs", "gpu_use", "load")
"""Collectors whose whole answer is about users' processes."""
NAME = 15
"""Characters of a process's name, prctl(2)."""
STUBS = {"LD_LIBRARY_PATH": "/home/eve/stubs:/home/eve/compat"}
HOSTILE = holder(name="nvidia-cuda-mps", state="D", memlock="1024", nofile="3", cpus="0", variables=STUBS)
HOSTILE["variables"].update(
    dict.fromkeys(("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES", "NCCL_TOPO_FILE"), "0")
)
CASES = [(name, number) for name, changes in FAULTS.items() for number in range(len(changes))]
XID = f"NVRM: Xid (PCI:{FIRST[:-2]}): "
ALONE = (
    *(f"{XID}{code}, pid=1, GPU" for code in (79, 95, 48, 119)),
    f"NVRM: GPU {FIRST}: GPU has fallen off the bus.",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0",
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:00:06.0)",
    "NVRM: The NVIDIA GPU installed in this system is supported through the NVIDIA 470.xx Legacy drivers.",
    "NVRM: ignoring the legacy GPU 0000:00:06.0",
    "nvidia_x: version magic '6.1.0 SMP' should be '6.8.0-87-generic SMP'",
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot.",
)
"""Messages of drivers; each one isolates a node."""
TEXTS = (
    *ALONE,
    f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: Xid (a: 9",
    "nvidia_fs: disagrees about version of symbol nvidia_p2p_dma_unmap_pages",
    "NVRM: GPU 0000:00:06.0: RmInitAdapter failed! (0x24:0x72:1568)",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "NVRM: GPU0 kgspWaitForGfwBootOk: failed to wait for GFW_BOOT",
)
"""Messages of drivers that users would like to write."""


def forged() -> Iterator[str]:
    """Yield what users make the kernel write: names of programs, files, control groups and interfaces (in
    their own namespace) that are parts of messages, and paths.
    """
    names = {text[start : start + NAME] for text in TEXTS for start in range(max(1, len(text) - NAME + 1))}
    names |= {
        "BAR1 is 0M",
        "rcu: BAR1 is 0M",
        "pci BAR1 is 0M",
        "Legacy drivers",
        "sd BAR1 is 0M",
        "NVRM: BAR1 is 0",
    }
    for name in sorted(names):
        yield f"{name}[4711]: segfault at 0 ip 000055d2 sp 00007fff error 4 in a[55d2+1000]"
        yield f"traps: {name}[4711] general protection fault ip:7f sp:7f error:0 in a[7f+1000]"
        yield f"{name}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)"
        yield f"{name} uses obsolete (PF_INET,SOCK_PACKET)"
        yield f"{name} sent an empty control message without MSG_MORE."
        yield f"INFO: task {name}:4711 blocked for more than 120 seconds."
        yield f"Memory cgroup out of memory: Killed process 4711 ({name}) total-vm:4kB"
        yield f"NVRM: API mismatch: the client '{name}' (pid 4711)"
        yield f"NVRM: API mismatch: the client '<{name[:14]}' (pid 4711)"
        yield f"EXT4-fs warning (device sda1): ext4_dx_add_entry:2516: inode #2: comm <{name[:14]}: full"
        yield f"NVRM: Xid (PCI:{FIRST[:-2]}): 31, pid=4711, name={name}, Ch 00000008, intr 00000000"
    for text in TEXTS:
        yield f"NVRM: API mismatch: the client has the version {text[:63]}, but NVRM: this kernel module has"
        yield f"process '/tmp/{text}' launched '/tmp/{text}' with NULL argv: empty string added"
        yield f"process '/tmp/x {text}' launched '/bin/sh' with NULL argv: empty string added"
        yield f"warning: `{text[:NAME]}' uses 32-bit capabilities (legacy support in use)"
        yield f"EXT4-fs warning (device sda1): ext4_dx_add_entry:2516: inode #2: comm {text[:NAME]}: full"
        for name in (text[:NAME], "NVRM: a", "nvidia: [1]", "mlx5_ib: (x)"):
            yield f"{name}[4711]: segfault at 0 ip 55d2 sp 7fff error 6 in {text}[55d2+1000] likely on CPU 3"
            yield f"{name}[4711] bad frame in rt_sigreturn frame:7f ip:7f sp:7f orax:f in {text}[7f+1000]"
            yield f"{name}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL),cpuset={text},mems_"
            yield f"{name} cpuset={text} mems_allowed=0-1"
        for port in re.findall(r"[^\s:/]{1,15}", text):
            for name in ("NVRM", "nvidia_peermem", "DMAR"):
                yield f"{name}: received packet on {port} with own address as source address (addr:0:1:2)"
                yield f"{name}: Slave A ({port}) is not up; please bring it up to get a working HSR network"
        for name in ("NVRM", "nvidia", "mlx5_ib", "AER", "NVRM (unregistering)"):
            yield f"{name}: option mode: invalid value ({text})"
            yield f'{name}: Mode "{text[:31]}" not found'
            yield f"{name}: Recording {text} as primary, but it has not been enslaved yet"
            yield f"{name}: port 1({text[:NAME]}) entered blocking state"


LINES = tuple(forged())
BEGINNINGS = ("EXT4-fs error (", "I/O error, dev ", "XFS (a): shutdo", "XFS (shut down")
"""Names of programs that begin the kernel's messages about a disk."""
PROCESS = (
    "<processes>\n\t\t\t<process_info>\n\t\t\t\t<pid>4711</pid>\n\t\t\t\t<type>C</type>\n"
    "\t\t\t\t<process_name>%s</process_name>\n\t\t\t\t<used_memory>500 MiB</used_memory>\n"
    "\t\t\t</process_info>\n\t\t</processes>"
)
_END = "x</process_name><used_memory>1 MiB</used_memory></process_info></processes>"
_AGAIN = "<processes><process_info><pid>1</pid><process_name>y"
_NO = "<remapped_rows><remapped_row_failure>No</remapped_row_failure></remapped_rows>"
NAMES = (
    "python train.py",
    "x</process_name><",
    f"{_END}<gpu_recovery_action>Node Reboot Required</gpu_recovery_action>{_AGAIN}",
    f"{_END}<compute_mode>Prohibited</compute_mode>{_AGAIN}",
    f"{_END}{_NO}{_AGAIN}",
    '<gpu id="00000000:99:00.0">',
    f"{_END}</gpu></nvidia_smi_log>\n<nvidia_smi_log>{_NO}{_AGAIN}",
    f'{_END}</gpu>\n\t<gpu id="00000000:99:00.0">{_NO}{_AGAIN}',
    "<nvidia_smi_log>",
    "</gpu>",
    "</processes>",
    "<process_info>",
    "<supported_clocks>",
    "a\nb<c>&#0;&&amp;\x1b[2J\0",
    "<" * 5000,
    "<a>" * 60000,
)
DRAINING = tuple(each for each in CLASSES if each not in OF_USERS)


def draining(collected: Collectors) -> set[str]:
    """Return the rules whose faults on a machine keep jobs away."""
    return {fault.rule for fault in diagnose(as_examined(collected)).faults if fault.health in DRAINING}


def with_users(collected: Collectors, lines: tuple[str, ...] = LINES) -> Collectors:
    """Return a machine with hostile programs, and their messages in the kernel's log."""
    result = copy.deepcopy(collected)
    result["programs"]["holders"] += [copy.deepcopy(HOSTILE) for _ in range(64)]
    result["programs"]["stuck"] += [["python", str(pid), "nvidia_x"] for pid in range(9)]
    result["programs"].update(mps=True, subnet_manager=True)
    result["kernel_log"]["kept"] += [[NOW - 30, line] for line in lines]
    return result


def without_users(collected: Collectors) -> Collectors:
    """Return a machine without the values of `OF_USERS_ONLY`."""
    return {
        name: bare_metal().get(name) if name in OF_USERS_ONLY else value for name, value in collected.items()
    }


def named(collected: Collectors, name: str) -> Collectors:
    """Return a machine on whose GPUs a program with that name runs."""
    result = copy.deepcopy(collected)
    text, times = re.subn(r"<processes>\s*</processes>", lambda _: PROCESS % name, result["smi"]["stdout"])
    assert times
    result["smi"]["stdout"] = text
    return result


def programs(**values: object) -> Change:
    """Return a change that adds a program."""
    return lambda collected: collected["programs"]["holders"].append(holder(**values))


def test_users_keep_no_rule_about_gpus_from_judging() -> None:
    """Let many files and variables end the collectors about programs."""
    machine = bare_metal()
    for name in OF_USERS_ONLY:
        machine[name] = {"error": "user 1000 has 600003 files open"}
    unknown = [rule for rule, _ in diagnose(as_examined(machine)).unknown]
    assert "host.limits" in unknown
    assert [rule for rule in unknown if is_of_gpus(rule)] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_program_isolates_a_node_or_hides_its_fault(name: str) -> None:
    """Check names with elements, which nvidia-smi prints unchanged."""
    assert draining(named(bare_metal(), name)) == set()
    sick = bare_metal()
    edit_smi(sick, r"(<remapped_row_failure>)No", r"\1Yes", count=1)
    assert draining(sick) == {"errors.repair_failed"}
    found = diagnose(as_examined(named(sick, name)))
    rules_ = {fault.rule for fault in found.faults if fault.health in DRAINING}
    assert rules_ == {"errors.repair_failed"} or "errors.repair_failed" in dict(found.unknown)


def test_no_number_of_programs_isolates_a_node() -> None:
    """Let nvidia-smi list more than the probe reads, than facts have, and than is parsed; or not start."""
    processes = PROCESS.partition("<process_info>")
    many = named(bare_metal(), "a")
    text = many["smi"]["stdout"]
    begin, _, end = text.partition(processes[2])
    for smi in (
        {"error": "nvidia-smi answered more than 4194304 bytes"},
        {"error": "BlockingIOError: [Errno 11] Resource temporarily unavailable"},
        {"rc": 0, "stdout": begin + 9000 * ("a" * 500 + processes[1] + processes[2]) + end, "stderr": ""},
        {"rc": 0, "stdout": text + "<a>" * 100_000, "stderr": ""},
    ):
        machine = {**bare_metal(), "smi": smi}
        assert draining(machine) == set()
        assert "driver.smi" in dict(diagnose(as_examined(machine)).unknown)


def test_hostile_users_isolate_no_node() -> None:
    assert diagnose(as_examined(with_users(bare_metal()))).faults
    assert draining(with_users(bare_metal())) == set()


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs warning (device sda1): ext4_dx_add_entry:2516: inode #2: comm I/O error: index full",
        "EXT4-fs error ([4711]: segfault at 0 ip 55d2 sp 7fff error 4 in a[55d2+1000]",
        "NVRM: Xid (PCI:0000:00:06): 31, pid=1, name=<I/O error, Ch 00000008, intr 00000000",
        "NVRM: API mismatch: the client has the version I/O error, dev sda, but NVRM: this kernel module has",
        *(f"{name} does what no pattern for users' names has" for name in BEGINNINGS),
    ],
)
def test_the_name_of_a_program_is_no_fault_of_a_disk(line: str) -> None:
    machine = bare_metal()
    log(machine, line)
    assert "storage.disk_errors" not in {fault.rule for fault in diagnose(as_examined(machine)).faults}


def written() -> Iterator[str]:
    """Yield the messages about devices in `FAULTS`, and others, of which each is a fault."""
    texts = set(TEXTS)
    for change in (change for changes in FAULTS.values() for change in changes):
        machine = bare_metal()
        change(machine)
        texts.update(text for _, text in machine["kernel_log"].get("kept", ()))
    for text in filter(OF_DEVICES.match, sorted(texts)):
        machine = bare_metal()
        log(machine, text)
        if diagnose(as_examined(machine)).faults:
            yield text


@pytest.mark.parametrize("line", tuple(written()))
def test_the_name_of_an_interface_makes_no_message_of_a_faults_kind(line: str) -> None:
    """Name interfaces like the driver and each word of its message, in an unknown text: a kind has a maximum
    of lines.
    """
    driver = re.match(r"[^\s:/]{1,15}(?=: )", line)
    for word in re.findall(r"[^\s:/]{1,15}", line) if driver else ():
        for text in (f"a text about {word} with more", f"a text about {word}(x) with more"):
            assert kind_of(f"{driver.group()}: {text}") != kind_of(line), text


@pytest.mark.parametrize("line", ALONE)
def test_the_driver_itself_is_believed(line: str) -> None:
    """Check each message: one that isolates no node from anyone would prove nothing."""
    machine = bare_metal()
    log(machine, line)
    assert draining(machine)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), CASES)
def test_users_hide_no_fault(name: str, number: int) -> None:
    machine = bare_metal()
    FAULTS[name][number](machine)
    assert draining(machine) <= draining(with_users(machine, LINES[::97]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        *(change for changes in FAULTS.values() for change in changes),
        programs(variables=STUBS),
        all_of(*(programs(pid=number, variables=STUBS, memlock="1024") for number in range(9))),
        setting("programs.stuck", [["a", "1", "nvidia_x"], ["a", "2", "nvidia_x"], ["a", "3", "nvidia_x"]]),
        kernel_says("INFO: task nvidia:1 blocked for more than 120 seconds."),
    ],
)
def test_a_node_is_isolated_only_by_what_no_user_chooses(change: Change) -> None:
    machine = bare_metal()
    change(machine)
    assert draining(machine) <= draining(without_users(machine))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_fault_by_users_is_at_most_watched(rule: Rule) -> None:
    for severity in ("broken", "degraded", "risk", "hint"):
        for stated in (None, *CLASSES):
            fault = Fault(severity, "a", health=stated, by_users=True)
            assert class_of(fault, rule) in OF_USERS
