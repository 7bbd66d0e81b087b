"""Output of the simulated nvidia-smi, compared byte for byte with recordings, without volatile values."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from gpuprov_lab.simulator import machines
from tests import H200
from tests.unit.lab.simulated_node import Driven, Simulated

# Clock, temperature, power and PCIe traffic differ between two recordings of the same machine.
VOLATILE = re.compile(
    r"""(?mx)
    ^[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ [ \d]\d\ [\d:]{8}\ \d{4}
    | (?<=Timestamp).*$ | (?<=<timestamp>).*?(?=</timestamp>)
    | (?<=<pdi>).*?(?=</pdi>)
    | \b\d+C\b | \ +\d+W(?=\ /) | \d+(?=\ KB/s)
    | (?<=_temp>)\d+ | (?<=<gpu_temp_tlimit>)\d+
    | (?<=_power_draw>)[\d.]+ | (?<=<sm_clock>)\d+
    | (?<=<clocks>\n\t\t\t<graphics_clock>)\d+ | (?<=<video_clock>)\d+
    """
)


@pytest.fixture
def h200x4(driven: Driven) -> Simulated:
    """Return a node with four H200 and persistence mode on."""
    node = driven("h200x4", "580.159.04", "Dual MIT/GPL")
    node.smi("-pm", "1")
    return node


@pytest.mark.parametrize(
    ("recording", "arguments"),
    [
        ("smi.txt", []),
        ("smi-L.txt", ["-L"]),
        ("q.txt", ["-q"]),
        ("q.xml", ["-q", "-x"]),
        ("supported-clocks.txt", ["-q", "-d", "SUPPORTED_CLOCKS"]),
        ("topo-m.txt", ["topo", "-m"]),
        ("topo-p2p-r.txt", ["topo", "-p2p", "r"]),
        ("nvlink.txt", ["nvlink", "-s"]),
    ],
)
def test_speaks_as_recorded(h200x4: Simulated, recording: str, arguments: list[str]) -> None:
    """Check that the output equals the recorded one, except for values that always change."""
    spoken = VOLATILE.sub("~", h200x4.smi(*arguments).text)
    recorded = VOLATILE.sub("~", (H200 / recording).read_text())
    assert spoken == recorded


def test_speaks_in_csv_as_recorded(h200x4: Simulated) -> None:
    recorded = (H200 / "query.csv").read_text()
    fields = re.sub(r" \[[^]]*\]", "", recorded.splitlines()[0])
    assert h200x4.smi(f"--query-gpu={fields}", "--format=csv").text == recorded


def test_shows_the_module_as_recorded(h200x4: Simulated) -> None:
    shown = (h200x4.root / "proc/driver/nvidia/version").read_text()
    assert shown.splitlines()[0] == (H200 / "proc-driver-version.txt").read_text().rstrip()


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("version", ["535.309.01", "580.159.04"])
def test_every_machine_answers_every_question(driven: Driven, machine: str, version: str) -> None:
    node = driven(machine, version)
    document = ElementTree.fromstring(node.smi("-q", "-x").text)  # noqa: S314
    gpus = document.findall("gpu")
    assert len(gpus) == int(document.findtext("attached_gpus", "")) > 0
    assert [gpu.findtext("uuid") for gpu in gpus] == re.findall(r"UUID: ([^)]+)", node.smi("-L").text)
    assert len({gpu.findtext("uuid") for gpu in gpus}) == len(gpus)
    for arguments in ([], ["-q"], ["topo", "-m"], ["--query-gpu=index,clocks.sm", "--format=csv"]):
        answer = node.smi(*arguments)
        assert answer.status == 0
        assert "{" not in answer.text
    widths = {len(line) for line in node.smi().text.splitlines()[1:] if line.strip()}
    assert len(widths) == 1


def test_older_branches_have_the_older_document_type(driven: Driven) -> None:
    text = driven("h200x4", "535.309.01").smi("-q", "-x").text
    assert 'SYSTEM "nvsmi_device_v12.dtd"' in text
    document = ElementTree.fromstring(text)  # noqa: S314
    assert document.findtext("cuda_version") == "12.2"
    order = [child.tag for child in document.iterfind("gpu[1]/*")]
    assert order.index("gsp_firmware_version") < order.index("gpu_virtualization_mode")
    assert "platformInfo" not in order


def test_csv_leaves_out_what_it_is_asked_to(h200x4: Simulated) -> None:
    fields = "index,clocks.applications.graphics,power.limit,memory.total,fan.speed"
    rows = h200x4.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "2").text
    assert rows == "2, 1980, 700.00, 143771, [N/A]\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--bogus"], 255, "ERROR: Option --bogus is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["--query-gpu=bogus", "--format=csv"], 2, 'Field "bogus" is not a valid field to query.\n\n'),
        (["-q", "-d", "BOGUS"], 2, "Failed to parse --display/-d flags\n"),
        (["-i", "9"], 6, "No devices were found\n"),
        (
            ["-L", "-i", "0"],
            2,
            "ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n",
        ),
    ],
)
def test_refuses_in_the_real_tools_words(
    h200x4: Simulated, arguments: list[str], status: int, text: str
) -> None:
    answer = h200x4.smi(*arguments)
    assert (answer.status, answer.text) == (status, text)
