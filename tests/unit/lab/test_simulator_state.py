"""State of the simulated driver: modules that a boot loads, refusals of NVML, and what is lost when."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuprov.probe.parse.mig import parse_mig
from gpuprov_lab.simulator import stub_module
from gpuprov_lab.simulator.node.files import Files
from gpuprov_lab.simulator.node.kernel import Kernel
from gpuprov_lab.simulator.node.modprobe import booted_kernel, module_field
from gpuprov_lab.simulator.node.settings import Settings
from tests.unit.lab.simulated_node import Bare, Driven, Simulated

CLOCKS = "--query-gpu=clocks.applications.memory,clocks.applications.graphics,clocks.sm"
PLAIN = "--format=csv,noheader,nounits"


def clocks(node: Simulated) -> str:
    """Return the application clocks of GPU 0 as nvidia-smi prints them."""
    return node.smi(CLOCKS, PLAIN, "-i", "0").text.strip()


def test_nothing_is_loaded_before_a_boot_with_the_module(bare: Bare) -> None:
    node = bare("h200x4")
    node.blacklist("nouveau")
    node.put_library("535.309.01")
    node.reboot()
    node.put_module("535.309.01")
    answer = node.smi()
    assert answer.status == 9
    assert answer.text == (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n\n"
    )
    assert not (node.root / "proc/driver/nvidia").exists()
    node.reboot()
    assert node.smi("-L").text.count("GPU ") == 4
    assert {path.name for path in (node.root / "dev").iterdir()} >= {"nvidia0", "nvidiactl", "nvidia-uvm"}


def test_modprobe_loads_without_a_boot(bare: Bare) -> None:
    node = bare("t4x1")
    node.blacklist("nouveau")
    node.reboot()
    assert node.call("modprobe", "nvidia").text.startswith(
        "modprobe: FATAL: Module nvidia not found in directory"
    )
    node.put_module("535.309.01")
    assert node.call("modprobe", "nvidia-uvm").status == 0
    assert "nvidia                  14299136  1 nvidia_uvm" in node.call("lsmod").text
    assert (node.root / "sys/module/nvidia/version").read_text() == "535.309.01\n"
    assert node.call("rmmod", "nvidia").text == "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm\n"
    assert node.call("modprobe", "-r", "nvidia").status == 0
    assert not (node.root / "dev/nvidia0").exists()


def test_a_module_is_reported_its_options_when_it_is_loaded(driven: Driven) -> None:
    node = driven("t4x1")
    parameters = node.root / "proc/driver/nvidia/params"
    assert "RmProfilingAdminOnly: 1\n" in parameters.read_text()
    options = node.root / "etc/modprobe.d/profiling.conf"
    options.write_text("options nvidia-current NVreg_RestrictProfilingToAdminUsers=0\n")
    assert "RmProfilingAdminOnly: 1\n" in parameters.read_text()
    node.reboot()
    assert "RmProfilingAdminOnly: 0\n" in parameters.read_text()


def test_without_a_blacklist_nouveau_takes_the_gpus(driven: Driven) -> None:
    node = driven("h200x4")
    blacklist = node.root / "etc/modprobe.d/nouveau.conf"
    blacklist.unlink()
    assert node.smi("-L").status == 0
    node.reboot()
    assert node.call("lsmod").text.splitlines()[1].startswith("nouveau ")
    assert node.smi("-L").status == 9
    assert (
        node.call("modprobe", "nvidia").text == "modprobe: ERROR: could not insert 'nvidia': No such device\n"
    )
    assert node.call("rmmod", "nouveau").status == 0
    assert node.call("modprobe", "nvidia").status == 0
    assert (Files(node.root).pci / "0000:00:06.0/driver").readlink().name == "nvidia"


def test_a_blacklisted_driver_is_not_loaded_at_boot(driven: Driven) -> None:
    node = driven("t4x1")
    node.blacklist("nvidia")
    node.reboot()
    assert node.call("lsmod").text.count("\n") == 1
    assert node.call("modprobe", "nvidia").status == 0


def test_a_newer_library_beside_an_old_module_is_a_mismatch_until_reboot(driven: Driven) -> None:
    node = driven("h200x4")
    node.put_library("535.400.02")
    node.put_module("535.400.02")
    answer = node.smi("--query-gpu=name", "--format=csv")
    assert answer.status == 18
    assert answer.text == (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.400\n"
    )
    node.reboot()
    assert node.smi("--query-gpu=driver_version", PLAIN, "-i", "0").text == "535.400.02\n"


def test_without_its_library_nvidia_smi_says_so(driven: Driven) -> None:
    node = driven("t4x1")
    (node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink()
    answer = node.smi()
    assert answer.status == 12
    assert answer.text.startswith("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")


def test_the_open_module_finds_no_old_gpu(driven: Driven) -> None:
    node = driven("v100x4", "580.159.04", "Dual MIT/GPL")
    assert (node.smi().status, node.smi().text) == (6, "No devices were found\n")


def test_clocks_last_as_long_as_persistence_does(driven: Driven) -> None:
    node = driven("h200x4")
    assert (
        node.smi("-ac", "3201,1500").text.splitlines()[1].startswith("Warning: persistence mode is disabled")
    )
    assert clocks(node) == "3201, 1980, 345"
    node.smi("-pm", "1")
    assert node.smi("-ac", "3201,1500", "-i", "0").text == (
        'Applications clocks set to "(MEM 3201, SM 1500)" for GPU 00000000:00:06.0\nAll done.\n'
    )
    node.smi("-lgc", "1200,1500")
    assert clocks(node) == "3201, 1500, 1200"
    node.smi("-rac")
    node.smi("-rgc")
    assert clocks(node) == "3201, 1980, 345"
    node.smi("-ac", "3201,1500")
    node.smi("-pm", "0")
    node.smi("-pm", "1")
    assert clocks(node) == "3201, 1980, 345"


def test_a_reboot_forgets_persistence_clocks_and_power(driven: Driven) -> None:
    node = driven("h200x4")
    for arguments in (["-pm", "1"], ["-ac", "2201,1005"], ["-pl", "500"], ["-c", "3"]):
        assert node.smi(*arguments).status == 0
    fields = "--query-gpu=persistence_mode,clocks.applications.memory,power.limit,compute_mode"
    assert node.smi(fields, PLAIN, "-i", "3").text == "Enabled, 2201, 500.00, Exclusive_Process\n"
    node.reboot()
    assert node.smi(fields, PLAIN, "-i", "3").text == "Disabled, 3201, 700.00, Default\n"


def test_a_dead_daemon_takes_persistence_and_clocks_along(driven: Driven) -> None:
    node = driven("t4x1")
    settings = Settings(Kernel(Files(node.root)))
    settings.set_daemon(os.getpid(), persistence=True)
    node.smi("-ac", "5001,1590")
    assert clocks(node).startswith("5001, 1590")
    assert node.call("modprobe", "-r", "nvidia").text == "modprobe: FATAL: Module nvidia is in use\n"
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with Kernel(Files(node.root)).state.change() as state:
        state["daemon"] = gone.pid
    assert clocks(node).startswith("5001, 585")
    assert node.smi("--query-gpu=persistence_mode", PLAIN).text == "Disabled\n"


def test_ecc_waits_for_a_reset_or_reboot_and_stays(driven: Driven) -> None:
    node = driven("a100x4")
    modes = ("--query-gpu=ecc.mode.current,ecc.mode.pending", PLAIN)
    assert node.smi("-e", "0", "-i", "0,1").text.endswith(
        "Disabled ECC support for GPU 00000000:47:00.0.\nAll done.\nReboot required.\n"
    )
    assert node.smi(*modes).text.splitlines() == ["Enabled, Disabled"] * 2 + ["Enabled, Enabled"] * 2
    assert node.smi("-r", "-i", "1").text == "GPU 00000000:47:00.0 was successfully reset.\nAll done.\n"
    assert node.smi(*modes).text.splitlines()[:2] == ["Enabled, Disabled", "Disabled, Disabled"]
    node.reboot()
    node.reboot()
    assert node.smi(*modes).text.splitlines()[:2] == ["Disabled, Disabled"] * 2


@pytest.mark.parametrize(
    ("machine", "at_once", "after_a_reboot"),
    [
        ("a100x4", "Disabled, Enabled", "Enabled, Enabled"),
        ("h200x4", "Enabled, Enabled", "Disabled, Disabled"),
        ("t4x1", "[N/A], [N/A]", "[N/A], [N/A]"),
    ],
)
def test_mig_follows_the_architecture(
    driven: Driven, machine: str, at_once: str, after_a_reboot: str
) -> None:
    node = driven(machine)
    modes = ("--query-gpu=mig.mode.current,mig.mode.pending", PLAIN, "-i", "0")
    node.smi("-pm", "1")
    assert node.smi("-mig", "1").status == 0
    assert node.smi(*modes).text.strip() == at_once
    node.reboot()
    assert node.smi(*modes).text.strip() == after_a_reboot


def test_instances_fit_a_gpu_in_mig_mode_and_are_lost_at_a_reboot(driven: Driven) -> None:
    node = driven("a100x4")
    assert node.smi("mig", "-lgi").text == "No MIG-enabled devices found.\n"
    node.smi("-pm", "1")
    node.smi("-i", "1", "-mig", "1")
    node.reboot()
    node.smi("-pm", "1")
    assert "No GPU instances found" in node.smi("mig", "-lgi").text
    assert node.smi("mig", "-i", "1", "-cgi", "3g.40gb,4g.40gb", "-C").status == 0
    full = node.smi("mig", "-i", "1", "-cgi", "1g.10gb", "-C")
    assert (full.status, "Insufficient Resources" in full.text) == (19, True)
    assert parse_mig(node.smi("mig", "-lgi").text) == {1: ("3g.40gb", "4g.40gb")}
    assert node.smi("mig", "-i", "0", "-lgi").status == 6
    assert node.smi("mig", "-i", "1", "-dci").status == node.smi("mig", "-i", "1", "-dgi").status == 0
    assert node.smi("mig", "-i", "1", "-cgi", "7g.80gb", "-C").status == 0
    node.reboot()
    assert parse_mig(node.smi("mig", "-lgi").text) == {}


@pytest.mark.parametrize(
    ("machine", "arguments", "status", "says"),
    [
        (
            "h200x4",
            ["-ac", "3201,1981"],
            2,
            "is not supported for GPU 00000000:00:06.0. Run 'nvidia-smi -q -d",
        ),
        ("h200x4", ["-lgc", "100"], 2, "(gpuClkMin 100, gpuClkMax 100)"),
        ("h200x4", ["-lmc", "3201"], 0, "Setting locked Memory clocks is not supported for GPU"),
        ("h200x4", ["-pl", "900"], 2, "should be between 200.00 W and 700.00 W for GPU 00000000:00:06.0"),
        ("rtx3080", ["-ac", "9501,1440"], 0, "Treating as warning and moving on.\nAll done.\n"),
        ("rtx3080", ["-e", "0"], 0, "ECC features not supported for GPU 00000000:01:00.0."),
    ],
)
def test_refusals(driven: Driven, machine: str, arguments: list[str], status: int, says: str) -> None:
    """Check the exit status and message of the simulated nvidia-smi for settings that a GPU does not have."""
    answer = driven(machine).smi(*arguments)
    assert answer.status == status
    assert says in answer.text


def test_faults_come_and_go(driven: Driven) -> None:
    node = driven("h200x4")
    assert node.call("gpuprov-sim", "fault", "gpu-lost", "7").status == 2
    node.call("gpuprov-sim", "fault", "gpu-lost", "2")
    assert node.smi().status == 15
    assert "gpu 0000:00:08.0: GPU is lost." in node.smi("-L").text
    assert node.smi("-i", "0").status == 0
    node.call("gpuprov-sim", "mend")
    node.call("gpuprov-sim", "fault", "no-devices")
    assert node.smi("-L").text == "No devices found.\n"
    node.call("gpuprov-sim", "fault", "mismatch")
    assert node.smi().status == 18
    node.reboot()
    assert node.smi().status == 0


def test_a_hanging_driver_never_answers(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    node = driven("t4x1")
    node.call("gpuprov-sim", "fault", "hang")

    def patience_ends(seconds: float) -> None:
        raise TimeoutError(seconds)

    monkeypatch.setattr(time, "sleep", patience_ends)
    with pytest.raises(TimeoutError):
        node.smi("-L")


def test_eight_gpus_wait_for_the_fabric_manager(driven: Driven) -> None:
    node = driven("h200x8")
    states = ("--query-gpu=fabric.state,fabric.status", PLAIN, "-i", "0")
    assert node.smi(*states).text == "In Progress, [N/A]\n"
    assert len(list((node.root / "proc/driver/nvidia-nvswitch/devices").iterdir())) == 4
    pid_file = node.root / "run/nvidia-fabricmanager/nv-fabricmanager.pid"
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(f"{os.getpid()}\n")
    assert node.smi(*states).text == "Completed, Success\n"


def test_the_newest_kernel_boots_unless_another_is_chosen(bare: Bare) -> None:
    node = bare("t4x1")
    for release in ("6.1.0-9-amd64", "6.1.0-112-amd64"):
        (node.root / f"boot/vmlinuz-{release}").touch()
    files = Files(node.root)
    assert booted_kernel(files) == "6.1.0-112-amd64"
    files.kernel_choice.parent.mkdir(parents=True)
    files.kernel_choice.write_text("6.1.0-9-amd64\n")
    assert booted_kernel(files) == "6.1.0-9-amd64"


def test_a_stub_module_says_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "nvidia.ko"
    path.write_bytes(stub_module("580.159.04", kernel="6.1.0-56-amd64", licence="Dual MIT/GPL"))
    assert module_field(path, "version") == "580.159.04"
    assert module_field(path, "license") == "Dual MIT/GPL"
    assert module_field(path, "srcversion") == ""


def pending(node: Simulated) -> list[str]:
    """Return whether a repair of memory is pending, by GPU."""
    return node.smi("--query-gpu=remapped_rows.pending", "--format=csv,noheader").text.split()


def test_a_reset_mends_some_faults_a_boot_others_and_power_the_rest(driven: Driven) -> None:
    node = driven("a100x4")
    for fault, index in (("remap", "0"), ("remap-stuck", "1"), ("gpu-dead", "3")):
        assert node.call("gpuprov-sim", "fault", fault, index).status == 0
    assert node.smi("--gpu-reset", "-i", "3").status == 15
    node.reboot()
    assert node.smi().status == 15
    node.call("gpuprov-sim", "power")
    assert pending(node) == ["No"] * 4
    for fault, index in (("remap", "0"), ("remap-stuck", "1")):
        node.call("gpuprov-sim", "fault", fault, index)
    assert pending(node) == ["Yes", "Yes", "No", "No"]
    assert node.smi("--gpu-reset", "-i", "0,1").status == 0
    assert pending(node) == ["No", "Yes", "No", "No"]
    node.reboot()
    assert pending(node) == ["No"] * 4
