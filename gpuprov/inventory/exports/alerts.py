"""Alert rules for Prometheus, on gpuprov's own metrics and on those of NVIDIA's dcgm-exporter.

Expressions keep the label `node`. Nodes' own metrics have it from `file_sd_configs`, metrics of a run from
its file. Rules about Xids read their codes from the doctor's table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

from gpuprov.doctor.concerns.errors import meanings

HEADER = (
    "# Written whole by `gpuprov inventory export prometheus`; changes here are lost at the next export.\n"
)
DRIVER_CHECKS = ("driver.loaded", "driver.answers", "driver.module_on_disk")
DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60
DRIFT_LATE_S = DAY_S + 2 * HOUR_S
"""Longest time in seconds between two runs of drift: `gpuprov schedule` runs it once a day."""
# Bits of NVML's nvmlClocksEventReasons: slowdown by hardware; by temperature in software, and in hardware; by
# the power brake. PromQL has no operator for bits.
SLOWDOWNS = (0x8, 0x20, 0x40, 0x80)
XID = "DCGM_FI_DEV_XID_ERRORS"
REASONS = '{__name__=~"DCGM_FI_DEV_CLOCK(S_EVENT|_THROTTLE)_REASONS"}'


@dataclass(frozen=True)
class Alert:
    """One alert rule.

    Attributes:
        hold: duration for which the expression must hold, as Prometheus writes it.
        needs: what must be set up beyond the defaults of the exporter; "" for nothing.
    """

    name: str
    expr: str
    severity: str
    summary: str
    do: str
    hold: str = "0m"
    needs: str = field(default="")


def _xids(severity: str) -> list[int]:
    """Return the codes of a severity in the doctor's table."""
    return sorted(code for code, meaning in meanings().items() if meaning.severity == severity)


def _any(metric: str, values: list[int]) -> str:
    """Return an expression for a metric that has one of the values."""
    return " or ".join(f"{metric} == {value}" for value in values)


def _bits(metric: str, bits: tuple[int, ...]) -> str:
    """Return an expression for a metric in which one of the bits is set."""
    return " or ".join(f"(floor({metric} / {bit}) % 2 == 1)" for bit in bits)


def _failed(verb: str) -> str:
    """Return an expression for nodes that answered a verb, and differ from the lock."""
    return f'gpuprov_node_in_sync{{verb="{verb}"}} == 0 and gpuprov_node_answered{{verb="{verb}"}} == 1'


def _late(verb: str, seconds: int) -> str:
    """Return an expression for a verb whose last run is too long ago, or that has no run.

    Only the controller's series has no label `node`: a node could offer its own series, and then no alert
    about all nodes would fire.
    """
    metric = f'gpuprov_checked_timestamp_seconds{{verb="{verb}",node=""}}'
    return f"time() - {metric} > {seconds} or absent({metric})"


OF_RUNS = (
    Alert("GpuprovDrift", _failed("drift"), "warning",
          "{{ $labels.node }} differs from its lock", "gpuprov plan -l {{ $labels.node }}", "5m"),
    Alert("GpuprovNodeUnanswered", "gpuprov_node_answered == 0",
          "warning", "{{ $labels.node }} gave no facts to the last {{ $labels.verb }}",
          "gpuprov drift -l {{ $labels.node }}", "5m"),
    Alert("GpuprovVerifyFailed", _failed("verify"), "critical",
          "{{ $labels.node }} failed its verification", "gpuprov verify -v {{ $labels.node }}"),
    Alert("GpuprovRunMissing", _late("drift", DRIFT_LATE_S),
          "warning", "no run of gpuprov drift for a day", "systemctl status gpuprov-drift.timer", "15m"),
    Alert("GpuprovDriverMismatch",
          f'gpuprov_check_differs{{verb="drift",check=~"{"|".join(DRIVER_CHECKS)}"}} == 1',
          "critical", "the driver of {{ $labels.node }} is not its lock's: {{ $labels.check }}",
          "gpuprov plan -l {{ $labels.node }}", "5m"),
    Alert("GpuprovLeaseStuck", f"gpuprov_node_lease_seconds > {6 * HOUR_S}",
          "warning", "a run has held {{ $labels.node }} for {{ $value | humanizeDuration }}",
          "gpuprov drift -l {{ $labels.node }} --prometheus FILE, after that run has ended"),
    Alert("GpuprovSwitchArmed", f"gpuprov_node_switch_armed_seconds > {15 * MINUTE_S}",
          "critical", "dead man's switch of {{ $labels.node }} armed for {{ $value | humanizeDuration }}",
          "systemctl status gpuprov-deadman.timer, on the node"),
)  # fmt: skip
VERDICT = "gpuprov_health_verdict"
OF_HEALTH = "settings health, and monitoring: {textfile: FOLDER}"
OF_NODES = (
    Alert("GpuprovMetricsRejected", "node_textfile_scrape_error == 1",
          "warning", "node_exporter of {{ $labels.node }} rejects a file of its textfile collector",
          "journalctl -u prometheus-node-exporter, on the node", "15m"),
    Alert("GpuprovGpusMissing",
          "count by (node) (DCGM_FI_DEV_GPU_TEMP) < on(node) max by (node) (gpuprov_expected_gpus)",
          "critical", "{{ $labels.node }} has {{ $value }} GPUs, fewer than its lock",
          "gpuprov doctor {{ $labels.node }}", "5m", "setting monitoring: {textfile: FOLDER}"),
    Alert("GpuprovNodeIsolate", f'{VERDICT}{{verdict="isolate"}} == 1',
          "critical", "{{ $labels.node }} must not run jobs",
          "the rules are in gpuprov_health_fault: gpuprov doctor {{ $labels.node }}", "1m", OF_HEALTH),
    Alert("GpuprovNodeReset", f'{VERDICT}{{verdict="reset"}} == 1',
          "warning", "GPUs of {{ $labels.node }} have to be reset before the next job",
          "the rules are in gpuprov_health_fault: gpuprov doctor {{ $labels.node }}", "1m", OF_HEALTH),
    Alert("GpuprovNodeUnknown", f'{VERDICT}{{verdict="unknown"}} == 1',
          "warning", "the health of {{ $labels.node }} is not known",
          "journalctl -u gpuprov-health, on the node", "15m", OF_HEALTH),
    # A killed timer leaves the last file, whose metrics stay; a full disk leaves it if it states a drain.
    Alert("GpuprovHealthStale",
          "time() - max_over_time(gpuprov_health_run_timestamp_seconds[1d])"
          " > 2 * max_over_time(gpuprov_health_valid_seconds[1d])",
          "warning", "the last verdict of {{ $labels.node }} is {{ $value | humanizeDuration }} old",
          "systemctl status gpuprov-health.timer, on the node", "1m", OF_HEALTH),
)  # fmt: skip
OF_GPUS = (
    Alert("GpuXidBroken", _any(XID, _xids("broken")),
          "critical", "GPU {{ $labels.gpu }} of {{ $labels.node }} reported Xid {{ $value }}",
          "gpuprov doctor {{ $labels.node }}"),
    # The metric is the last Xid, and keeps its value; an Xid of this class does not always need a repair.
    Alert("GpuXidDegraded",
          f"({_any(XID, _xids('degraded'))}) and changes({XID}[1h]) > 0",
          "warning", "GPU {{ $labels.gpu }} of {{ $labels.node }} reported Xid {{ $value }}",
          "gpuprov doctor {{ $labels.node }}"),
    Alert("GpuRowRemapFailed", "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
          "critical", "GPU {{ $labels.gpu }} of {{ $labels.node }} has no spare memory rows left",
          "replace the GPU: gpuprov doctor {{ $labels.node }}"),
    Alert("GpuRowRemapped", "increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[1h]) > 0",
          "warning", "GPU {{ $labels.gpu }} of {{ $labels.node }} replaced a broken memory row",
          "drain {{ $labels.node }} and reset the GPU"),
    Alert("GpuMemoryError", "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[15m]) > 0",
          "critical", "GPU {{ $labels.gpu }} of {{ $labels.node }} had an uncorrectable memory error",
          "gpuprov doctor {{ $labels.node }}",
          needs="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL in the exporter's counters file"),
    Alert("GpuThrottled", _bits(REASONS, SLOWDOWNS),
          "warning", "GPU {{ $labels.gpu }} of {{ $labels.node }} is slowed down by heat or power",
          "gpuprov doctor {{ $labels.node }}", "5m",
          "DCGM_FI_DEV_CLOCKS_EVENT_REASONS in the exporter's counters file"),
    Alert("GpuPcieReplays", "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[15m]) > 5",
          "warning", "GPU {{ $labels.gpu }} of {{ $labels.node }} repeats PCIe packets",
          "check the slot and risers: gpuprov doctor {{ $labels.node }}", "15m"),
)  # fmt: skip
GROUPS = {"gpuprov": OF_RUNS, "gpuprov-nodes": OF_NODES, "gpuprov-gpus": OF_GPUS}


def rules() -> str:
    """Return the rules as YAML for `rule_files`."""
    groups = [{"name": name, "rules": [_rule(alert) for alert in alerts]} for name, alerts in GROUPS.items()]
    text: str = yaml.safe_dump({"groups": groups}, sort_keys=False, width=10_000)
    return HEADER + text


def _rule(alert: Alert) -> dict[str, object]:
    """Return a rule with Prometheus' keys."""
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.do},
    }
