"""Output of `nvidia-smi -q -x` in the layouts of eleven years: NVIDIA's elements, invented values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Differences between drivers that a parser must handle."""

    driver: str
    dtd: str
    cuda: str | None
    domain: str = "00000000"
    processes: str = "processes"
    throttle: str = "clocks_event"
    power: str = "gpu_power_readings"
    mig: bool = True
    announced: str = "driver_version"


LAYOUTS = [
    Layout("340.108", "6", None, "0000", "compute_processes", "clocks_throttle", "power_readings", mig=False),
    Layout("390.157", "9", None, "00000000", "processes", "clocks_throttle", "power_readings", mig=False),
    Layout(
        "418.226.00", "10", "10.1", "00000000", "processes", "clocks_throttle", "power_readings", mig=False
    ),
    Layout("470.256.02", "11", "11.4", throttle="clocks_throttle", power="power_readings"),
    Layout("535.309.01", "12", "12.2"),
    Layout("580.159.04", "13", "13.0"),
    Layout("610.57.04", "13", "13.3", announced="kmd_version"),
]
BY_DRIVER = {layout.driver.partition(".")[0]: layout for layout in LAYOUTS}
NOTICE = "[Deprecated; will be removed in CUDA 14.0. Use {} Version instead]"


def document(layout: Layout, *gpus: str) -> str:
    """Return a complete document."""
    head = f"<driver_version>{layout.driver}</driver_version>"
    if layout.cuda:
        head += f"\n\t<cuda_version>{layout.cuda}</cuda_version>"
    if layout.announced == "kmd_version":
        head = (
            f"<driver_version>{layout.driver} {NOTICE.format('KMD')}</driver_version>\n"
            f"\t<cuda_version>{layout.cuda} {NOTICE.format('CUDA UMD')}</cuda_version>\n"
            f"\t<kmd_version>{layout.driver}</kmd_version>\n\t<cuda_umd_version>{layout.cuda}</cuda_umd_version>"
        )
    return (
        '<?xml version="1.0" ?>\n'
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{layout.dtd}.dtd">\n'
        f"<nvidia_smi_log>\n\t<timestamp>Mon Nov 10 11:39:35 2014</timestamp>\n\t{head}\n"
        f"\t<attached_gpus>{len(gpus)}</attached_gpus>\n{''.join(gpus)}\n</nvidia_smi_log>\n"
    )


def gpu(layout: Layout, index: int = 0, **changed: str) -> str:
    """Return the element of one GPU; `changed` sets the text of all elements with a name."""
    bus_id = f"{layout.domain}:{0x0D + index:02X}:00.0"
    texts = {
        "product_name": "Tesla K20m",
        "persistence_mode": "Enabled",
        "uuid": f"GPU-a000000{index}-0000-4000-8000-00000000000{index}",
        "pci_device_id": "102810DE",
        "pci_bus_id": bus_id,
        "current_ecc": "Enabled",
        "pending_ecc": "Disabled",
        "fan_speed": "N/A",
        **changed,
    }
    element = {name: f"<{name}>{text}</{name}>" for name, text in texts.items()}
    mig = "<mig_mode><current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>"
    limit = "current_power_limit" if layout.power.startswith("gpu") else "enforced_power_limit"
    reason = f"{layout.throttle}_reason"
    kind = "" if layout.processes.startswith("compute") else "<type>C</type>"
    return f"""\
	<gpu id="{bus_id}">
		{element["product_name"]}
		{element["persistence_mode"]}
		{mig if layout.mig else ""}
		{element["uuid"]}
		<minor_number>{index}</minor_number>
		<pci>
			{element["pci_device_id"]}
			{element["pci_bus_id"]}
		</pci>
		{element["fan_speed"]}
		<{reason}s>
			<{reason}_gpu_idle>Not Active</{reason}_gpu_idle>
			<{reason}_sw_power_cap>Active</{reason}_sw_power_cap>
		</{reason}s>
		<fb_memory_usage>
			<total>4799 MiB</total>
			<used>828 MiB</used>
		</fb_memory_usage>
		<ecc_mode>
			{element["current_ecc"]}
			{element["pending_ecc"]}
		</ecc_mode>
		<{layout.power}>
			<default_power_limit>225.00 W</default_power_limit>
			<{limit}>200.00 W</{limit}>
		</{layout.power}>
		<clocks><graphics_clock>705 MHz</graphics_clock><mem_clock>2600 MHz</mem_clock></clocks>
		<applications_clocks>
			<graphics_clock>666 MHz</graphics_clock><mem_clock>2600 MHz</mem_clock>
		</applications_clocks>
		<max_clocks><graphics_clock>758 MHz</graphics_clock><mem_clock>2600 MHz</mem_clock></max_clocks>
		<supported_clocks>
			<supported_mem_clock>
				<value>2600 MHz</value>
				<supported_graphics_clock>758 MHz</supported_graphics_clock>
				<supported_graphics_clock>666 MHz</supported_graphics_clock>
			</supported_mem_clock>
			<supported_mem_clock>
				<value>324 MHz</value>
				<supported_graphics_clock>324 MHz</supported_graphics_clock>
			</supported_mem_clock>
		</supported_clocks>
		<{layout.processes}>
			<process_info>
				<pid>5495</pid>{kind}
				<process_name>/opt/a & b/train <8></process_name>
				<used_memory>98 MiB</used_memory>
			</process_info>
		</{layout.processes}>
	</gpu>
"""
