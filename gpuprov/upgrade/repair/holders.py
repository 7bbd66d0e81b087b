"""Units that hold a GPU open and stop for its reset, and units that apply settings again afterwards."""

from __future__ import annotations

HOLDERS = (
    "gpuprov-health.timer",
    "gpuprov-health.service",
    "nvidia-persistenced.service",
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
    "nvidia-gpu-exporter.service",
    "nvidia_gpu_exporter.service",
    "prometheus-nvidia-exporter.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-imex.service",
    "nvsm.service",
    "nvsm-core.service",
)
"""Timers before their services, exporters before what they ask; started in the reverse order. NVIDIA's recipe
for bare metal stops persistenced, DCGM, IMEX and NVSM before a reset (ai-cloud-validation#603)."""
JOINING = ("nvidia-fabricmanager.service", "nvidia-nvlsm.service")
"""The fabric's units continue: on Ampere a reset needs them (nvidia-smi(1), `--gpu-reset`), and stopping the
fabric manager without a reset breaks NVLink SHARP (nccl#1488)."""
SETTINGS = ("gpuprov-gpu-modes.service", "gpuprov-gpu-clocks.service")
"""Units of the role gpu_settings; their settings are lost with a reset."""
