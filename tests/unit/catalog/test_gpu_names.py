"""Search for GPUs by name: an exact result, or the candidates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import before_fermi, counted, find_gpu, find_gpus
from gpuprov.catalog.records import InstanceType
from gpuprov.catalog.rules import driver
from gpuprov.errors import InvalidInput

CATALOG = load()


def said(name: str) -> tuple[bool, str]:
    """Return whether a name is understood, and the id of its GPU or the message with the candidates."""
    try:
        return True, find_gpu(CATALOG, name).id
    except InvalidInput as error:
        return False, str(error) if "is ambiguous" in str(error) else ""


def names(product: str) -> set[str]:
    """Return the ids of all GPUs with this name in `nvidia-smi`."""
    return {gpu.id for gpu in CATALOG.gpus if gpu.nvidia_smi_name == product}


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("L4", "L4"),
        ("l40s", "L40S"),
        ("NVIDIA L40", "L40"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("H100-SXM5-80GB", "H100 SXM5 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("T4", "Tesla T4"),
        ("rtx4090", "GeForce RTX 4090"),
        ("HGX H100", "H100 SXM5 80GB"),
        ("10de:2330", "H100 SXM5 80GB"),
        ("10DE:27B8", "L4"),
        ("2335", "H200 SXM"),
        ("0x233010DE", "H100 SXM5 80GB"),
        ("25B6/10DE:157E", "A2"),
        ("GeForce RTX 3080", "GeForce RTX 3080"),
        ("GTX 1080", "GeForce GTX 1080"),
        ("GB10", "GB10"),
        ("RTX 3060 laptop", "GeForce RTX 3060 Laptop GPU"),
        ("RTX PRO 4500 Blackwell", "RTX PRO 4500 Blackwell"),
        ("T4 16GB", "Tesla T4"),
        ("H200 SXM5 141GB", "H200 SXM"),
        ("B200 SXM 180GB", "B200"),
        ("L4 24GB", "L4"),
    ],
)
def test_gpu(name: str, gpu: str) -> None:
    """Check the GPU of the catalog that is found for a name."""
    assert find_gpu(CATALOG, name).id == gpu


def test_every_gpu_is_found_by_its_own_name() -> None:
    for gpu in CATALOG.gpus:
        assert find_gpu(CATALOG, gpu.id) is gpu
        assert find_gpu(CATALOG, gpu.id.upper()) is gpu


def test_every_board_is_found_by_its_product_name_or_says_who_shares_it() -> None:
    for gpu in CATALOG.boards:
        sharing = [other for other in CATALOG.boards if gpu.nvidia_smi_name == other.nvidia_smi_name]
        if sharing == [gpu]:
            assert find_gpu(CATALOG, gpu.nvidia_smi_name) is gpu
        else:
            with pytest.raises(InvalidInput, match=rf"(?s)ambiguous.*{re.escape(gpu.id)}"):
                find_gpu(CATALOG, gpu.nvidia_smi_name)


def test_every_listed_product_name_is_understood_or_answered_with_those_who_share_it() -> None:
    """Names as `nvidia-smi` prints them lead to a GPU, or to a message that lists all GPUs of this name."""
    boards = {gpu.nvidia_smi_name for gpu in CATALOG.boards}
    listed = [gpu for gpu in CATALOG.devices.all() if gpu.first_listed and gpu.nvidia_smi_name not in boards]
    assert len({gpu.nvidia_smi_name for gpu in listed}) > 400
    for gpu in listed:
        understood, answer = said(gpu.nvidia_smi_name)
        own = {*names(gpu.nvidia_smi_name), gpu.nvidia_smi_name}
        assert answer in own if understood else f'"{gpu.id}"' in answer


def test_every_pci_id_works_alone() -> None:
    for gpu in CATALOG.gpus:
        for device in gpu.pci_device_ids:
            found = find_gpu(CATALOG, f"10de:{device.lower()}")
            assert device in found.pci_device_ids
            assert found.compute_capability == gpu.compute_capability
            assert find_gpu(CATALOG, found.id) is found


def test_a_pci_id_of_several_models_says_which() -> None:
    shared = find_gpu(CATALOG, "25b6")
    assert (shared.id, shared.nvidia_smi_name) == ("10DE:25B6", "NVIDIA A16 / NVIDIA A2")
    assert "A16, A2: its subsystem tells" in shared.note
    assert find_gpu(CATALOG, "10de:25b6/10de:157e").id == "A2"


def test_the_board_tells_models_of_one_device_apart() -> None:
    assert find_gpu(CATALOG, "10de:1db1").id == "Tesla V100 SXM2 16GB"
    assert find_gpu(CATALOG, "10de:1db1/10de:1307").nvidia_smi_name == "Tesla V100-SXM2-16GB-LS"
    assert find_gpu(CATALOG, "0fd2").id == "GeForce GT 640M"
    assert find_gpu(CATALOG, "0fd2/1028:0595").id == "GeForce GT 640M LE"


@pytest.mark.parametrize(
    ("device", "architecture", "capability"),
    [("10de:2b8d", "Blackwell", "12.0"), ("10de:20c5", "Ampere", "8.0"), ("0x1FC010DE", "Turing", "7.5")],
)
def test_an_unknown_pci_id_is_guessed_by_the_ids_around_it(
    device: str, architecture: str, capability: str
) -> None:
    gpu = find_gpu(CATALOG, device)
    assert gpu.guessed
    assert (gpu.architecture, str(gpu.compute_capability)) == (architecture, capability)
    assert find_gpu(CATALOG, gpu.id) is gpu


def test_a_rubin_gpu_is_found_by_its_ids_and_a_neighbouring_id_is_guessed() -> None:
    for name in ("10de:3041", "10de:307f/10de:221a", "0x307F10DE", "Vera Rubin NVL72"):
        gpu = find_gpu(CATALOG, name)
        assert (gpu.id, str(gpu.compute_capability), gpu.min_driver_branch) == ("VR200", "10.7", 615)
    assert {"vr200-ids", "vr200-name"} <= set(gpu.doubts)
    assert (gpu.mig, gpu.clocks_mhz, gpu.first_listed) == (None, {}, {})  # not published
    assert driver.oldest_driver(gpu) == "unknown: no list of devices has it"
    near = find_gpu(CATALOG, "10de:3050")
    assert (near.guessed, near.architecture) == (True, "Rubin")


@pytest.mark.parametrize("name", ["10de:3300", "0x330010DE", "10de:3300/10de:0001"])
def test_an_id_in_no_list_is_named_as_newer_than_the_catalog_without_similar_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="newer") as caught:
        find_gpu(CATALOG, name)
    assert CATALOG.as_of in str(caught.value)
    assert "catalog update" in caught.value.do
    assert "GeForce" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("Quadro NVS 160M", "NVIDIA GeForce 8800 GT", "GeForce GTX 280", "GeForce GT 330M", "GeForce 210"),
        *("Quadro FX 5800", "Tesla C1060", "GeForce 9600M GS", "2x Tesla M1060"),
    ],
)
def test_a_gpu_before_fermi_is_named_as_such_with_its_last_driver(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"older than Fermi.*340\.108"):
        find_gpus(CATALOG, name)


def test_no_gpu_of_the_catalog_is_taken_for_one_before_fermi() -> None:
    taken = {gpu.id for gpu in CATALOG.gpus if before_fermi(gpu.id)}
    assert not taken


def test_the_driver_s_text_for_a_gpu_without_a_name_asks_for_its_pci_id() -> None:
    with pytest.raises(InvalidInput, match="PCI id") as caught:
        find_gpu(CATALOG, "NVIDIA Graphics Device")
    assert "lspci" in caught.value.do


@pytest.mark.parametrize("name", ["2080", "3060", "10de:ffff", "10de:0001", "10de:3500"])
def test_a_number_is_no_pci_id_of_an_unknown_gpu_and_ids_outside_all_runs_are_not_guessed(name: str) -> None:
    with pytest.raises(InvalidInput):
        find_gpu(CATALOG, name)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("V100", ["Tesla V100 SXM2 16GB", "Tesla V100 SXM3 32GB"]),
        ("H100", ["H100 PCIe", "H100 SXM5 80GB", "H100 NVL"]),
        ("GH200", ["GH200 96GB", "GH200 144GB"]),
    ],
)
def test_ambiguous_names_list_the_candidates(name: str, candidates: list[str]) -> None:
    with pytest.raises(InvalidInput, match="ambiguous") as caught:
        find_gpu(CATALOG, name)
    assert all(candidate in str(caught.value) for candidate in candidates)
    assert "H200 SXM" not in str(caught.value)
    for line in str(caught.value).splitlines()[1:]:
        pasted = re.match(r'  "([^"]+)"  \(', line)
        assert pasted
        assert find_gpu(CATALOG, pasted[1]).id == pasted[1]


@pytest.mark.parametrize("name", ["H300", "FFFF", "", "L", "NVIDIA", "RTX 9999", "H100 PCIe 80GB 8-GPU"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        find_gpu(CATALOG, name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x NVIDIA H200", (8, "NVIDIA H200")),
        ("4 X L4", (4, "L4")),
        ("8xH200", (8, "H200")),
        ("0x2335", (None, "0x2335")),
        ("L40S", (None, "L40S")),
    ],
)
def test_counts(text: str, expected: tuple[int | None, str]) -> None:
    """Check the number and the name in texts such as `8x H100`."""
    assert counted(text) == expected


def _written() -> list[tuple[str, str]]:
    """Return pairs from the file of names: a GPU as people write it, and the one that is meant."""
    text = (Path(__file__).parent / "names_of_gpus.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(written, meant) for written, _, meant in (line.rpartition(" = ") for line in lines)]


@pytest.mark.parametrize(("written", "meant"), _written())
def test_names_as_clouds_tools_and_shops_write_them(written: str, meant: str) -> None:
    understood, answer = said(written)
    if " / " in meant:
        assert not understood
        assert all(f'"{each}"' in answer for each in meant.split(" / "))
    else:
        assert (understood, answer) == (True, meant)


def test_they_are_of_many_kinds() -> None:
    named = {each for _, meant in _written() for each in meant.split(" / ")}
    assert len(_written()) >= 300
    assert len(named) >= 110


@pytest.mark.parametrize("instance", CATALOG.instances.values(), ids=lambda each: each.id)
def test_machine_types_of_clouds(instance: InstanceType) -> None:
    for name in (instance.id, instance.id.partition(":")[2], instance.id.upper()):
        number, gpu = find_gpus(CATALOG, name)
        assert (number, gpu.id) == (instance.gpus, instance.gpu)
