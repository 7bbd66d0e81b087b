"""nvidia-smi's XML from all drivers: complete, broken, or replaced by a message."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.probe.parse.gpu import Clocks, Pair, pci_address
from gpuprov.probe.parse.health import parse_health
from gpuprov.probe.parse.smi import gpu_elements, parse_smi
from tests import H200
from tests.unit.probe.layouts import BY_DRIVER, LAYOUTS, Layout, document, gpu

NEWEST = LAYOUTS[-1]


@pytest.fixture(scope="module")
def recorded() -> bytes:
    return (H200 / "q.xml").read_bytes()


def test_recording_of_four_h200(recorded: bytes) -> None:
    smi = parse_smi(recorded)
    assert (smi.driver_version, smi.cuda_version, smi.attached, smi.error) == ("580.159.04", "13.0", 4, None)
    assert [gpu.pci_address for gpu in smi.gpus] == [f"0000:00:0{n}.0" for n in (6, 7, 8, 9)]
    first = smi.gpus[0]
    assert (first.name, first.pci_device_id, first.persistence_mode) == ("NVIDIA H200", "10de:2335", True)
    assert first.application_clocks == Clocks(graphics=1980, memory=3201)
    assert first.clocks == Clocks(graphics=375, sm=375, memory=3201, video=765)
    assert (first.ecc, first.mig) == (Pair(True, True), Pair(False, False))
    assert (first.memory_total_mib, first.power.limit, first.fabric_state) == (143771, 700.0, "Completed")
    assert {memory: len(listed) for memory, listed in first.supported_clocks.items()} == {
        3201: 110,
        2201: 110,
    }
    assert first.supported_clocks is smi.gpus[3].supported_clocks, "a list that all GPUs share is read once"
    assert first.problems == (), "a deprecated field is not a problem"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.driver)
def test_every_layout_gives_the_same_facts(layout: Layout) -> None:
    smi = parse_smi(document(layout, gpu(layout, 0), gpu(layout, 1)))
    assert (smi.driver_version, smi.cuda_version, smi.error) == (layout.driver, layout.cuda, None)
    second = smi.gpus[1]
    assert (second.index, second.name, second.persistence_mode) == (1, "Tesla K20m", True)
    assert (second.pci_address, second.pci_device_id) == ("0000:0e:00.0", "10de:1028")
    assert second.application_clocks == Clocks(graphics=666, memory=2600)
    assert second.max_clocks.graphics == 758
    assert second.supported_clocks == {2600: (758, 666), 324: (324,)}
    assert (second.power.limit, second.power.default) == (200.0, 225.0)
    assert second.ecc == Pair(True, False)
    assert second.mig == (Pair(False, True) if layout.mig else Pair())
    assert [(p.pid, p.kind, p.name, p.used_mib) for p in second.processes] == [
        (5495, "C", "/opt/a & b/train <8>", 98)
    ]
    assert second.active_throttle_reasons == ("sw_power_cap",)


def test_a_version_that_only_points_to_its_new_name() -> None:
    pointing = '<driver_version>Deprecated, see "KMD version" instead</driver_version>'
    text = document(NEWEST, gpu(NEWEST)).replace("<kmd_version>", f"{pointing}\n\t<kmd_version>")
    head, rest = text.split("<driver_version>610", 1)
    assert parse_smi(head + rest.split("</driver_version>", 1)[1]).driver_version == "610.57.04"


@pytest.mark.parametrize("nothing", ["N/A", "[N/A]", "[Not Supported]", "Not Supported", ""])
def test_no_value_is_none_and_no_problem(nothing: str) -> None:
    smi = parse_smi(document(NEWEST, gpu(NEWEST, persistence_mode=nothing, current_ecc=nothing)))
    assert (smi.gpus[0].persistence_mode, smi.gpus[0].ecc.current) == (None, None)
    assert smi.gpus[0].problems == ()


@pytest.mark.parametrize(
    "fault",
    [
        "ERR!",
        "[Unknown Error]",
        "Unknown Error",
        "GPU is lost",
        "[GPU requires reset]",
        "Insufficient Permissions",
    ],
)
def test_a_fault_in_a_values_place_is_reported(fault: str) -> None:
    smi = parse_smi(document(NEWEST, gpu(NEWEST, fan_speed=fault, product_name=fault)))
    assert smi.gpus[0].name is None
    assert smi.gpus[0].problems == (f"product_name: {fault}", f"fan_speed: {fault}")
    assert smi.error is None


@pytest.mark.parametrize(
    "sentence",
    [
        "No devices were found",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.309",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
        "latest NVIDIA driver is installed and running.",
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
        "bash: nvidia-smi: command not found",
    ],
)
def test_a_failure_is_reported_in_the_drivers_words(sentence: str) -> None:
    smi = parse_smi(sentence + "\n")
    assert smi.error == " ".join(line.strip() for line in sentence.splitlines())
    assert smi.gpus == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "nvidia-smi answered nothing"),
        ("\n \x00\n", "nvidia-smi answered nothing"),
        (
            "root:x:0:0:root:/root:/bin/bash\n",
            "not an answer of nvidia-smi -q -x: 'root:x:0:0:root:/root:/bin/bash'",
        ),
        ("==============NVSMI LOG==============\n", "this is the text of `nvidia-smi -q`"),
    ],
)
def test_what_is_no_answer(text: str, error: str) -> None:
    """Check the error for a text that is not nvidia-smi's XML."""
    assert (parse_smi(text).error or "").startswith(error)


def test_failure_on_stderr_beside_an_empty_document() -> None:
    smi = parse_smi(document(NEWEST), stderr="Unable to determine the device handle for GPU0: Unknown Error")
    assert smi.error == "Unable to determine the device handle for GPU0: Unknown Error"
    assert smi.driver_version == "610.57.04"


def test_lines_around_the_document_are_warnings() -> None:
    fallen = "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error"
    corrupted = "WARNING: infoROM is corrupted at gpu 0000:82:00.0"
    smi = parse_smi(f"{fallen}\n{document(NEWEST, gpu(NEWEST))}{corrupted}\n")
    assert smi.warnings == (fallen, corrupted)
    assert (len(smi.gpus), smi.error) == (1, None)


def test_truncated_answers_keep_whole_gpus(recorded: bytes) -> None:
    smi = parse_smi(recorded[:60000])
    assert smi.error == "the document ends in the middle: 2 of 4 GPUs are readable"
    assert [gpu.index for gpu in smi.gpus] == [0, 1]
    assert smi.driver_version == "580.159.04"


def test_one_damaged_gpu_does_not_take_the_others_along() -> None:
    damaged = gpu(NEWEST, 1).replace("</pci>", "")
    text = document(NEWEST, gpu(NEWEST, 0), damaged, gpu(NEWEST, 2))
    smi = parse_smi(text)
    assert [each.index for each in parse_health(text)] == [0, 2]
    assert [gpu.index for gpu in smi.gpus] == [0, 2]
    assert (smi.error or "").startswith("GPU 1 of the document is damaged")


def test_of_several_documents_the_last_whole_one_counts() -> None:
    first, last = document(BY_DRIVER["535"], gpu(NEWEST)), document(NEWEST, gpu(NEWEST))
    assert parse_smi(first + last + first[:300], repeated=True).driver_version == "610.57.04"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_encodings(encoding: str) -> None:
    """Check that nvidia-smi's XML is parsed in each encoding."""
    smi = parse_smi(
        document(NEWEST, gpu(NEWEST, product_name="Grafik-Gerät")).replace("\n", "\r\n").encode(encoding)
    )
    assert (smi.error, len(smi.gpus)) == (None, 1)
    assert (smi.gpus[0].name or "").startswith("Grafik-Ger")


def test_entities_are_not_expanded() -> None:
    bomb = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa">]>'
    smi = parse_smi(bomb + document(NEWEST, gpu(NEWEST, product_name="&a;&a;")).partition('dtd">')[2])
    assert smi.gpus[0].name == "&a;&a;"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.1", "0000:3b:00.1"),
        ("0:1:0", "0000:01:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("N/A", None),
        (None, None),
    ],
)
def test_pci_addresses(written: str | None, address: str | None) -> None:
    """Check that each spelling of a PCI address gives the kernel's one."""
    assert pci_address(written) == address


@given(st.binary(max_size=400))
def test_no_bytes_at_all_raise(noise: bytes) -> None:
    assert parse_smi(noise).error is not None


@given(st.integers(0, 4000), st.integers(0, 60), st.text(max_size=20))
def test_no_damage_raises(place: int, length: int, instead: str) -> None:
    """Check that no change of a document makes its parser raise."""
    whole = document(NEWEST, gpu(NEWEST, 0), gpu(NEWEST, 1))
    parse_smi(whole[:place] + instead + whole[place + length :])


@pytest.mark.parametrize(
    "content", ["<gpu id='1'>" + "<a/>" * 1_000_000 + "</gpu>", "<gpu ></gpu>" * 600_000, "<gpu>" * 1_000_000]
)
def test_a_document_of_many_elements_is_an_error(content: str) -> None:
    text, begun = f"<nvidia_smi_log>{content}</nvidia_smi_log>", time.process_time()
    smi = parse_smi(text)
    assert smi.error == "more than 256 GPUs or 100000 tags in the document"
    assert list(gpu_elements(text)) == []
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("declared", ["xmlns='{}'", "a='>' xmlns:b='{}'", "\nxmlns='{}'"])
def test_a_namespace_is_a_damage(declared: str) -> None:
    """Refuse a text that the parser keeps with each name: 1 MB of a node took 5.9 GB of the controller."""
    tags = "".join(f"<a{number}/>" for number in range(1000))
    text = (
        f"<nvidia_smi_log><gpu id='1'><x {declared.format('u' * 100_000)}>{tags}</x></gpu></nvidia_smi_log>"
    )
    tracemalloc.start()
    try:
        smi = parse_smi(text)
        assert list(gpu_elements(text)) == []
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert (smi.gpus, "GPU 0 of the document is damaged" in str(smi.error)) == ((), True)


def test_a_program_may_have_any_name() -> None:
    smi = parse_smi(document(NEWEST, gpu(NEWEST, product_name="my xmlns='x'")))
    assert smi.gpus[0].name == "my xmlns='x'"


@given(st.text(alphabet="0123456789.eE+-infNaN MHzMiBW%[]!", max_size=40))
def test_no_value_raises(value: str) -> None:
    """Check that no value in a document makes its parser raise."""
    smi = parse_smi(
        document(NEWEST, gpu(NEWEST, current_ecc=value, fan_speed=value).replace("98 MiB", value))
    )
    assert len(smi.gpus) == 1


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_an_element_without_an_end_costs_no_time(blank: str) -> None:
    begun = time.monotonic()
    assert parse_smi("<nvidia_smi_log><driver_version>" + blank * 64_000).driver_version is None
    assert time.monotonic() - begun < 2
