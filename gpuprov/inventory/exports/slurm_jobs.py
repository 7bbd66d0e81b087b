"""Program for slurmd's Prolog and Epilog: a job's GPUs answer before it, and are free before and after it.

The manual page slurm.conf(5) describes both. A Slurm command in them can hang the controller, so the exit
status is the only answer: another one than 0 drains the node, and Prolog's requeues the job.
"""

from __future__ import annotations

PROLOG, EPILOG = "prolog.d/50-gpuprov", "epilog.d/50-gpuprov"
"""Paths in the folder of slurm.conf, of the same program."""
PATIENCE_S = 30
"""Seconds for an answer of nvidia-smi, and for the end of a job's processes; slurmd waits for
PrologEpilogTimeout, without a limit by default."""

# SLURM_JOB_GPUS has the numbers of the device files (gres.conf). nvidia-smi's index is another number, so the
# GPU is named by its address. Numbers of MIG instances are those of their devices in gres.conf, which can be
# those of other GPUs: a node with instances is left out. nvidia-smi also prints warnings, which are no
# processes. A server of MPS that root's daemon has started stays after a job, with the job's user as owner.
# The name that nvidia-smi prints is argv[0], which any process chooses, so its program and its parent count.
JOB = f"""\
#!/bin/sh
# Written whole by `gpuprov inventory export slurm`; the next export overwrites changes.
# Prolog and Epilog of slurmd: the job's GPUs answer, and no process is left on them. slurmd sets no PATH.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
set -f
say() {{ printf '%s\\n' "$*"; }}
fail() {{ say "gpuprov: $*" | tr -d '\\000-\\011\\013-\\037\\177'; exit 1; }}
smi() {{ timeout {PATIENCE_S} nvidia-smi --format=csv,noheader "$@" 2>&1; }}
serves_mps() {{
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ "/proc/$1/exe" -ef "$(command -v nvidia-cuda-mps-server)" ] &&
        [ "/proc/$parent/exe" -ef "$(command -v nvidia-cuda-mps-control)" ] &&
        grep -q "^Uid:[[:space:]]$(id -u)[[:space:]]$(id -u)[[:space:]]" "/proc/$parent/status"
}}

case ${{SLURM_JOB_GPUS-}} in
'') exit 0;;
*[!0-9,]*) fail "SLURM_JOB_GPUS is '$SLURM_JOB_GPUS', expected numbers";;
esac
modes=$(smi --query-gpu=mig.mode.current) || fail "nvidia-smi does not answer: $(say "$modes" | tail -n 1)"
case $modes in *Enabled*) exit 0;; esac

for number in $(say "$SLURM_JOB_GPUS" | tr , ' '); do
    found=$(set +f; grep -lE "^Device Minor:[[:space:]]*$number\\$" /proc/driver/nvidia/gpus/*/information) ||
        fail "/dev/nvidia$number has no GPU; see dmesg, and run gpuprov doctor"
    address=${{found%/information}} address=${{address##*/}}
    waited=0
    while :; do
        said=$(smi --id="$address" --query-compute-apps=pid,name) ||
            fail "GPU $address: $(say "$said" | tail -n 1)"
        left=$(say "$said" | grep -E '^[0-9]+, ' | while read -r line; do
            serves_mps "${{line%%,*}}" || say "$line"
        done)
        [ -n "$left" ] || break
        [ "$waited" -lt {PATIENCE_S} ] || fail "GPU $address is in use after or before its job:" $left
        waited=$((waited + 1))
        sleep 1
    done
done
"""
