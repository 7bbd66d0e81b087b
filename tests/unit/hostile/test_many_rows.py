"""The time and memory that a node can take by many rows, columns or names in an answer of permitted size."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import pytest

from gpuprov.accept.across.evidence import Heard
from gpuprov.accept.across.rounds import Group
from gpuprov.accept.across.search import FEW, Search
from gpuprov.accept.judge import MEASURED, document
from gpuprov.accept.judge import judge as judge_acceptance
from gpuprov.accept.rates import DEVICES
from gpuprov.doctor import judge
from gpuprov.doctor.fault import FAULTS, LINES, Fault, limited
from gpuprov.doctor.load.verdict import judge_load
from gpuprov.doctor.status import read_node
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.drift.judge import judge as judge_drift
from gpuprov.drift.restated import restated
from gpuprov.errors import NodeFailed
from gpuprov.finding import CHARACTERS
from gpuprov.nccl.log import NcclLog, read_log
from gpuprov.nccl.networks import NetworkInterface, choose
from gpuprov.nccl.rdma import RdmaPort, choose_rails
from gpuprov.nccl.verdict import judge_log
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.effective import parse_unpackaged
from gpuprov.probe.parse.health import parse_health
from gpuprov.probe.parse.mig import parse_mig
from gpuprov.probe.parse.packages import parse_rpm
from gpuprov.probe.parse.smi import parse_smi
from gpuprov.probe.payload import Answered
from gpuprov.report.plots import Kept, measures
from gpuprov.roles import Expectation
from gpuprov.topology import driver_error, judge_topology, nearest_nics, parse_topology
from gpuprov.untrusted import shell
from tests import ROOT
from tests.unit.doctor.machines import as_examined, bare_metal, holder
from tests.unit.drift.test_uniformity import compared
from tests.unit.hostile.timing import MEMORY, SECONDS, cost_of

Raw = dict[str, Any]


def _numbered(text: str, count: int) -> str:
    """Return a text `count` times; each `#` in it is the number of the copy."""
    return "".join(text.replace("#", str(at)) for at in range(count))


def _matrix(text: str) -> object:
    """Parse and judge a topology matrix."""
    found = parse_topology(text)
    return driver_error(text), judge_topology(found), nearest_nics(found), found.gpu_pairs, list(found.links)


def _columns() -> object:
    """Parse a matrix with 100,000 further columns."""
    return _matrix("\tGPU0\tGPU1" + _numbered("\tm#", 100_000) + "\nGPU0\tX\tNV1\nGPU1\tNV1\tX\n")


def _gpus() -> object:
    """Parse a matrix of 5,000 GPUs."""
    return _matrix(_numbered("\tGPU#", 5_000) + "\n" + _numbered("GPU#\tX\tNV1\n", 5_000))


def _same_column() -> object:
    """Parse a matrix with one column 100,000 times."""
    return _matrix("\tGPU0\tGPU1" + "\tGPU0" * 100_000 + "\nGPU0\tX\tNV1\n")


def _examined(**changed: Any) -> None:
    """Apply all rules of the doctor to a sound machine with other values of some collectors."""
    collectors = bare_metal()
    for name, values in changed.items():
        collectors[name] = (
            {**collectors[name], **values} if isinstance(values, Mapping) and name in collectors else values
        )
    seen = as_examined(collectors)
    judge.diagnose(seen)


def _arrays() -> None:
    """Examine a machine with 60,000 disk arrays."""
    _examined(host_state={"mdstat": [f"md{at} [U_]" for at in range(60_000)]})


def _links() -> None:
    """Examine a machine with 9,999 GPUs and 999 links of the last one."""
    text = _numbered("GPU #:\n  Link 0: Replay Errors: 5\n", 9_999) + _numbered("  Link #: 26 GB/s\n", 999)
    _examined(nvlink={"status": text, "errors": text})


def _pci_rows() -> list[list[str]]:
    """Return 12,000 GPUs on the bus, each in its own domain."""
    return [
        [f"{at:04x}:00:00.0", "0x10de", "0x2335", "0x030200", "0x10de", "0x18be", "0", "nvidia"]
        for at in range(12_000)
    ]


def _buses() -> None:
    """Examine a machine with 12,000 GPUs on the bus."""
    chains = {row[0]: [] for row in _pci_rows()}
    _examined(pci=_pci_rows(), pci_links=chains)


def _stuck() -> None:
    """Examine a machine with 18,000 programs on GPUs, and as many that sleep in the kernel."""
    holders = [{"pid": at, "state": "D"} for at in range(18_000)]
    _examined(programs={"holders": holders, "stuck": [["p", str(100_000 + at), "x"] for at in range(18_000)]})


def _ports() -> None:
    """Examine a machine with 12,000 InfiniBand ports; half of them are down."""
    row = {"link_layer": "InfiniBand", "port": 1}
    _examined(
        hcas=[
            {**row, "name": f"m{at}", "state": "DOWN" if at % 2 else "ACTIVE", "pci": f"{at:04x}:00:00.0"}
            for at in range(12_000)
        ]
    )


def _slower_ports() -> None:
    """Examine a machine with 12,000 ports of 9,000 different rates."""
    row = {"link_layer": "InfiniBand", "port": 1, "state": "ACTIVE"}
    _examined(hcas=[{**row, "name": f"m{at}", "rate": f"{1 + at % 9000} Gb/sec"} for at in range(12_000)])


UPGRADES = 'APT::Periodic::Unattended-Upgrade "1";\n'


def _driver_packages() -> None:
    """Examine a machine with 20,000 packages of the driver and unattended upgrades."""
    text = _numbered("libcuda1#\ta\t1\ts\tinstall ok installed\n", 20_000)
    _examined(sources={"config": UPGRADES}, packages={"text": text})


def _patterns() -> None:
    """Examine a machine with slow patterns of excluded packages, and 7,000 packages of the driver."""
    excluded = "".join(
        f'Unattended-Upgrade::Package-Blacklist:: "{sign * (60 // len(sign))}{at}";\n'
        for at, sign in enumerate(("a?", ".?", "(a|a)", "(?:a|a|a)") * 16)
    )
    text = _numbered(f"nvidia-driver-{'a' * 90}#\ta\t1\ts\tinstall ok installed\n", 7_000)
    _examined(sources={"config": UPGRADES + excluded}, packages={"text": text})


def _repositories() -> None:
    """Examine a machine with 19,000 repositories of NVIDIA."""
    line = "deb http://developer.download.nvidia/repos/a#/ /\n"
    _examined(sources={"files": {"/etc/apt/sources.list.d/a.list": _numbered(line, 19_000)}})


def _keys_of_modules() -> None:
    """Examine a machine with 100,000 enrolled keys and a long signer of its module."""
    raw = bare_metal()
    kernel = raw["system"]["kernel"]
    text = raw["disk_modules"][kernel].replace("signer: ", f"signer: {'z' * 900_000}")
    _examined(
        secure_boot={"keys": [f"{at}q" for at in range(100_000)]},
        state={"secure_boot": True},
        modules={"driver": None, "loaded": ""},
        disk_modules={kernel: text},
    )


def _links_down() -> None:
    """Examine a machine with 12,000 ports on the bus and 9,999 GPUs without active links."""
    rows = [[f"{at:04x}:00:00.0", "0x8086", "0x1", "0x02", "0x1", "0x1", "0", ""] for at in range(12_000)]
    gpus = [row for row in bare_metal()["pci"] if row[3].startswith("0x03")]
    down = _numbered("GPU #:\n  Link 0: inactive\n", 9_999)
    status = down + "GPU 9999:\n  Link 0: 26 GB/s\n"
    _examined(pci=[*rows, *gpus], nvlink={"status": status, "errors": ""})


def _version_locks() -> object:
    """Parse packages of rpm with 360 slow patterns of locked versions."""
    name = "a" * 120
    rows = _numbered(f"{name}#\tx\t0:1-{'a' * 100}\ts\n", 262)
    return parse_rpm(rows, tuple(f"*{'[ab]' * 100}{at}" for at in range(360)))


def _xids() -> None:
    """Examine a machine with Xids of 36,000 GPUs."""
    kept = [[1.0, f"NVRM: Xid (PCI:{at:x}): 13, "] for at in range(36_000)]
    _examined(kernel_log={"kept": kept})


def _frameworks() -> None:
    """Examine a machine with one framework 24,000 times."""
    row = {"name": "torch", "version": "2.5.1", "folder": "/a", "cuda": "12.4"}
    _examined(frameworks=[row] * 24_000)


def _named_devices() -> None:
    """Examine a machine with 18,000 ports, whose variables name 50,000 devices."""
    named = ",".join(["z"] * 50_000)
    _examined(
        hcas=[{"name": f"m{at}", "state": "ACTIVE"} for at in range(18_000)],
        environment={"/etc/environment": {"NCCL_IB_HCA": named, "NCCL_SOCKET_IFNAME": named}},
    )


def _on_two_nodes(raw: Raw) -> None:
    """Change a machine to one whose first GPU is at processors 0 to 8191 of twice as many."""
    raw["cpu"]["numa"] = {"0": "0-8191", "1": "8192-16383"}
    for row in raw["pci"]:
        row[6] = "0"


def _bound_programs() -> None:
    """Examine a machine with 30,000 programs, each bound to a different set of processors."""
    raw = bare_metal()
    _on_two_nodes(raw)
    holders = [{"pid": 1, "cpus": f"0-16382,{at}"} for at in range(30_000)]
    _examined(cpu=raw["cpu"], programs={"holders": holders})


def _devices_of_a_program() -> None:
    """Examine a machine with a program that has a GPU open 100,000 times."""
    raw = bare_metal()
    _on_two_nodes(raw)
    far = holder(cpus="8192-16383", gpus=["nvidia0"] * 100_000)
    _examined(cpu=raw["cpu"], pci=raw["pci"], programs={"holders": [far]})


def _sampled() -> Raw:
    """Return a recorded load sample."""
    raw: Raw = json.loads((ROOT / "tests/recorded/doctor/load-onecore.json").read_text())
    return deepcopy(raw["collectors"]["load"])


def _one_program_often() -> object:
    """Judge a sample with one program under 400 spellings of its PID."""
    raw = _sampled()
    row = {"name": "p", "holder": 7, "threads": {}, "read": 0}
    names = [" " * (at // 20) + "0" * (at % 20) + "7" for at in range(400)]
    raw["first"]["programs"] = dict.fromkeys(names, row)
    raw["second"]["programs"] = {name: {**row, "allowed": "1-1," * 300} for name in names}
    return judge_load(raw)


def _sample(programs: int, gpus: int, ports: int) -> object:
    """Judge a load sample whose programs all use all GPUs, which wait."""
    raw = _sampled()
    row = {"name": "p", "threads": {}, "read": 0}
    many = {str(at): {**row, "holder": at} for at in range(programs)}
    reading = [{"index": at, "gpu": 10, "used_mib": 9000, "total_mib": 10000} for at in range(gpus)]
    network = {f"eth{at}": [at, at, 1] for at in range(ports)}
    later = {name: [10**9, 10**9, 1] for name in network}
    raw["readings"] = [reading]
    raw["first"] |= {"programs": many, "network": network}
    raw["second"] |= {"programs": many, "network": later}
    raw["processes"] = {str(at % max(gpus, 1)): [[at, 1]] for at in range(programs)}
    return judge_load(raw)


def _log(text: str) -> object:
    """Parse and judge an NCCL log."""
    log = read_log([io.StringIO(text)])
    return judge_log(log), log.as_dict()


LINE = "h:1:1 [0] NCCL INFO "


def _new_names() -> object:
    """Judge a log with 60,000 communicators without an id."""
    return _log(_numbered(f"{LINE}comm 0x# rank 0 nRanks 2 cudaDev 0 busId 1 - Init START\n", 60_000))


def _new_ids() -> object:
    """Judge a log with 30,000 communicators that get an id later."""
    first = _numbered(f"{LINE}comm 0x# rank 0 nRanks 2 - Init START\n", 30_000)
    return _log(first + _numbered(f"{LINE}comm 0x# rank 0 nRanks 2 commId 0x# - Init COMPLETE\n", 30_000))


def _late_ranks() -> object:
    """Judge a log with 4,000 communicators that got an id, and 60,000 ranks of one without."""
    known = "".join(
        f"{LINE}comm 0x{at} rank 0 nRanks 9 - Init START\n"
        f"{LINE}comm 0x{at} rank 0 nRanks 9 commId 0x{at} - Init COMPLETE\n"
        for at in range(4_000)
    )
    return _log(known + _numbered(f"{LINE}comm 0xa# rank # nRanks 9 - Init START\n", 60_000))


def _paths() -> object:
    """Judge a log with 4,000 communicators and 60,000 connections."""
    known = _numbered(f"{LINE}comm 0x# rank 0 nRanks 9 commId 0x# - Init START\n", 4_000)
    return _log(known + _numbered(f"{LINE}Channel 00/0 : 0[0] -> #[1] [send] via NET/IB/0\n", 60_000))


def _interfaces() -> object:
    """Choose among 12,000 network interfaces, by speed and by route."""
    named = [
        NetworkInterface(
            f"p{at}", speed=at + 1, addresses=("10.0.0.5/24",), driver="ena" if at % 2 else "mlx5"
        )
        for at in range(12_000)
    ]
    routed = [
        NetworkInterface(f"e{at}", addresses=("10.0.0.5/24",), driver="ena", default_route=True)
        for at in range(12_000)
    ]
    return choose(named), choose(routed)


def _rails() -> object:
    """Choose among 20,000 RDMA ports of different rates."""
    return choose_rails([RdmaPort(f"mlx5_{at}", rate=float(at)) for at in range(20_000)], {})


def _rails_of_one_interface() -> object:
    """Read 5,000 ports of one interface with 20,000 addresses that no other node can reach."""
    addresses = tuple(f"fe80::{at:x}/64" for at in range(20_000))
    ports = [
        RdmaPort(f"mlx5_{at}", state="ACTIVE", link_layer="Ethernet", interfaces=("e0",))
        for at in range(5_000)
    ]
    return choose_rails(ports, {"e0": NetworkInterface("e0", addresses=addresses)})


def _smi() -> object:
    """Parse nvidia-smi's output with 400 GPUs, and with 250, of 60 processes each."""
    gpu = (
        '<gpu id="0000:#:00.0"><processes>'
        + "<process_info><pid>1</pid></process_info>" * 60
        + "</processes></gpu>"
    )
    text = f"<nvidia_smi_log>{_numbered(gpu, 400)}</nvidia_smi_log>"
    fewer = f"<nvidia_smi_log>{_numbered(gpu, 250)}</nvidia_smi_log>"
    return parse_smi(text), parse_smi(fewer), parse_health(fewer)


def _instances() -> object:
    """Parse 60,000 MIG instances."""
    return parse_mig(_numbered("|   #  MIG 1g.5gb#  19  7  0:1  |\n", 60_000))


def _measured() -> object:
    """Judge measurements of 20,000 GPUs."""
    document: Raw = json.loads((ROOT / "tests/recorded/accept/h200x2-quick.json").read_text())
    first = document["gpus"][0]
    document["gpus"] = [{"index": at, "device": first["device"]} for at in range(20_000)]
    document["before"]["counters"] = [{"index": at, "nvlinks": {"up": 1}} for at in range(20_000)]
    return judge_acceptance({"gpu1": document})


def _slow_drives() -> object:
    """Draw a node with many drives, each slower than those of the others."""
    measured: Raw = json.loads((ROOT / "tests/recorded/accept/h200x2-quick.json").read_text())
    answers = {f"gpu{at}": deepcopy(measured) for at in range(1, 5)}
    for name, result in answers.items():
        count, value = (DEVICES, 0.1) if name == "gpu4" else (4, 7.0)
        drives = [{"name": f"nvme{at}n1", "read": {"value": value}} for at in range(count)]
        result["host_devices"] = {"drives": drives}
    judged = judge_acceptance(answers)
    assert [each.verdict for each in judged] == ["accepted"] * 3 + ["rejected"]
    return list(measures([Kept("a", document(judged)["nodes"])]))


def _slow_ports() -> object:
    """Judge a node with 40,000 ports, each slower than the port of every other node."""

    def measured(ports: list[Raw]) -> Raw:
        return {"schema": MEASURED, "gpus": [{"index": 0}], "host_devices": {"ports": ports}}

    sound = {f"gpu{at}": measured([{"name": "mlx5_0", "gbits": 380.0}]) for at in range(5)}
    ports = [{"name": f"p{at}", "gbits": 1} for at in range(40_000)]
    return judge_acceptance({**sound, "gpu9": measured(ports)})


def _links_of_a_search() -> object:
    """Search among 400 nodes; one reports low rates from nearly half of the others."""
    names = [f"gpu{at:03}" for at in range(400)]
    search = Search(names)

    def report(node: str, group: Group) -> Heard:
        """Return a node's rates; one node states low ones for half of its peers in large groups."""
        peers = [peer for peer in group.nodes if peer != node]
        low = peers[: (len(peers) - 1) // 2] if node == names[200] and len(group.nodes) > FEW else []
        rates = {peer: 1.0 if peer in low else 50.0 for peer in peers}
        return Heard(rates=rates if group.exchange else {}, reduced=48.0)

    while groups := search.next():
        search.take({node: report(node, group) for group in groups for node in group.nodes})
    return search.verdicts()


def _status() -> object:
    """Read 24,000 rows of one GPU and 6,000 programs of it, which 512 KiB hold."""
    rows = {"gpus": [{"index": 0}] * 24_000, "programs": {"0": [[1, "", "", None, 0]] * 6_000}, "load": ""}
    with pytest.raises(NodeFailed):
        read_node("n", Facts("n", "", 0.0, {"status": rows}))
    return True


def _dribble() -> bool:
    """Check an answer after each of 100,000 bytes that arrive one by one."""
    whole, said = Answered("0" * 16), bytearray(b"x" * (1 << 20))
    for _ in range(100_000):
        said += b"<"
        whole(said)
    return True


def _keys() -> object:
    """Compare 1,000 nodes with many different keys of one aspect."""
    lines = [dict.fromkeys(map(str, range(100)), "1") for _ in range(1000)]
    lines[0] = dict.fromkeys(map(str, range(100_000)), "1")
    return compared(
        {f"n{at}": Facts("n", "", 0.0, {"daemon_json": {"value": each}}) for at, each in enumerate(lines)}
    )


def _stanza() -> object:
    """Compare a node whose apt has one stanza with as many URIs as suites."""
    uris, suites = _numbered("http://#/ ", 20_000), _numbered("# ", 60_000)
    text = f"Types: deb\nURIs: https://a/ {uris}\nSuites: b {suites}\nComponents: main\n"
    raw = {"files": {"/etc/apt/a.sources": text}, "keyrings": {}, "preferences": {}, "config": ""}
    facts = Facts("n", "", 0.0, {"sources": raw})
    expected = Expectation("repositories.sources", ["https://a b"], "repositories")
    return judge_drift("n", facts, [expected]), compared({"n": facts})


def _specification() -> object:
    """Compare a node with one CDI specification of a long name and many versions of the driver."""
    cdi = {
        "/etc/cdi/" + "a" * 500_000: {
            "missing": [],
            "versions": [str(at) for at in range(80_000)],
            "gpus": 0,
            "private": False,
        }
    }
    driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1  x\n"
    modules = {"driver": driver, "loaded": "", "params": None}
    facts = Facts("n", "", 0.0, {"toolkit": {"config": "", "default": "", "cdi": cdi}, "modules": modules})
    expected = Expectation("container_toolkit.specifications", [], "container_toolkit", subject="580.1")
    return judge_drift("n", facts, [expected])


def _variables() -> object:
    """Compare a node with many variables in a file of a long name."""
    values = {f"N{at}": "" for at in range(60_000)}
    return compared({"n": Facts("n", "", 0.0, {"environment": {"/etc/" + "a" * 500_000: values}})})


def _clocks() -> object:
    """Read a GPU with one memory clock of many values and as many graphics clocks."""
    listed = _numbered("<value>#</value>", 60_000) + "<supported_graphics_clock>9" * 60_000
    block = f"<supported_clocks><supported_mem_clock>{listed}</supported_mem_clock></supported_clocks>"
    return parse_smi(f"<nvidia_smi_log><gpu >{block}</gpu></nvidia_smi_log>")


def _libraries() -> object:
    """Read a node with many libraries that no package has."""
    found = parse_unpackaged(
        {"driver": [], "toolkits": [], "libraries": {f"/{at}": None for at in range(60_000)}}
    )
    return found.named("libcuda.so")


def _workers_list() -> object:
    """Restate a worker's list of 40,000 items that a list of the lock lacks."""
    stated = Expectation("packages.held", [f"ours{at}" for at in range(40_000)], "packages")
    theirs: list[Any] = [*(f"them{at}" for at in range(40_000)), {}]
    found = Difference("packages.held", theirs, [], "error", "packages", reboot=False)
    return restated(NodeDrift("n", "drifted", (found,)), {"packages.held": stated})


READERS: dict[str, Callable[[], object]] = {
    "columns of a matrix": _columns,
    "GPUs of a matrix": _gpus,
    "one column of a matrix": _same_column,
    "arrays of disks": _arrays,
    "NVLinks": _links,
    "GPUs on the bus": _buses,
    "programs in the kernel": _stuck,
    "RDMA ports": _ports,
    "rates of RDMA ports": _slower_ports,
    "packages of the driver": _driver_packages,
    "patterns of unattended upgrades": _patterns,
    "repositories": _repositories,
    "keys that modules are signed by": _keys_of_modules,
    "NVLinks that are down": _links_down,
    "version locks": _version_locks,
    "Xids": _xids,
    "frameworks": _frameworks,
    "devices that a variable names": _named_devices,
    "programs bound to processors": _bound_programs,
    "devices of a program": _devices_of_a_program,
    "names of one program": _one_program_often,
    "programs of a sample": lambda: _sample(8_000, 64, 1),
    "GPUs of a sample": lambda: _sample(1_500, 15_000, 1),
    "ports of a sample": lambda: _sample(1, 2, 6_000),
    "communicators": _new_names,
    "communicators that get an id": _new_ids,
    "ranks after communicators with an id": _late_ranks,
    "paths of a rank in many communicators": _paths,
    "network interfaces": _interfaces,
    "rails": _rails,
    "rails of one interface": _rails_of_one_interface,
    "GPUs of nvidia-smi": _smi,
    "GPU instances": _instances,
    "GPUs of a measurement": _measured,
    "drives of a measurement": _slow_drives,
    "slow ports of a measurement": _slow_ports,
    "slow links of a search": _links_of_a_search,
    "GPUs and programs of a status": _status,
    "URIs and suites of a stanza": _stanza,
    "versions in a CDI specification": _specification,
    "variables of a file": _variables,
    "clocks of a GPU": _clocks,
    "libraries without a package": _libraries,
    "pieces of an answer": _dribble,
    "keys of one node among many nodes": _keys,
    "list of a worker": _workers_list,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_no_number_of_rows_takes_long(name: str) -> None:
    cost = cost_of(READERS[name])
    assert cost.seconds < SECONDS
    assert cost.memory < MEMORY


def test_each_path_of_a_log_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look up once whether a path stays on its machine, which takes time for each communicator."""
    looked_up: list[object] = []
    within = NcclLog._within

    def counted(log: NcclLog, *path: Any) -> bool | None:
        looked_up.append(path)
        return within(log, *path)

    monkeypatch.setattr(NcclLog, "_within", counted)
    _log(_numbered(f"{LINE}Channel 00/0 : 0[0] -> #[1] [send] via NET/IB/0\n", 50))
    assert len(looked_up) == 50


def _characters(faults: Iterable[Fault]) -> int:
    """Return the number of characters in all texts of faults."""
    return len(json.dumps([each.as_dict() for each in faults], ensure_ascii=False))


def test_rules_do_not_multiply_a_long_name() -> None:
    raw, name = bare_metal(), "x" * (3 << 20)
    _on_two_nodes(raw)
    raw["programs"]["holders"] = [holder(name=name, cpus="9000", gpus=["nvidia0"] * 20)]
    found = judge.diagnose(as_examined(raw)).faults
    assert "network.numa" in {fault.rule for fault in found}
    assert _characters(found) < len(name) // 10


def test_no_load_rule_multiplies_long_names() -> None:
    raw = _sampled()
    names = [f"{at}/{'x' * 10_000}" for at in range(200)]
    raw["first"]["network"] = {name: [0, 0, 1] for name in names}
    raw["second"]["network"] = {name: [10**9, 10**9, 1] for name in names}
    found = judge_load(raw)
    assert "load.network" in {fault.rule for fault in found}
    assert _characters(found) < sum(map(len, names))


def test_a_rule_has_a_limited_number_of_short_faults() -> None:
    long = "x" * (CHARACTERS + 1)
    fault = Fault("risk", long, (long,) * 99, long, (shell("rm {}", long),) * 99, long)
    one, *others = limited(fault for _ in range(9 * FAULTS))
    assert len(others) == FAULTS - 1
    assert {len(text) for text in (one.text, *one.seen, one.cause, one.keep)} == {CHARACTERS}
    assert len(one.seen) == len(one.mend) == LINES
    assert set(one.mend) == {f"a command of {CHARACTERS + 4} characters, left out"}


def test_faults_that_are_left_out_are_told() -> None:
    raw = bare_metal()
    raw["host_state"]["space"] = [[f"/m{at}", "ext4", 10**6, 1, 0, 0, "rw"] for at in range(9 * FAULTS)]
    found = judge.diagnose(as_examined(raw))
    assert sum(fault.rule == "storage.full" for fault in found.faults) == FAULTS
    assert "storage.full" in dict(found.unknown)
