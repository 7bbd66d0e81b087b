"""Known hooks: commands of common programs before and after a node's change.

Each can run twice: a snapshot's name contains the run, and no second one is created. Each fails if its
program does not answer: an unknown state counts as a running job, or as a missing snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuprov.model.kubernetes import PREFIX


@dataclass(frozen=True)
class KnownHook:
    """Commands of a program by moment, and where they run. Moments without a command are left out."""

    on: Literal["controller", "node"]
    commands: Mapping[str, str]


# A run takes a node over from a run of the same kind: a repair that left it out, or an upgrade that failed on
# it, knows what is wrong with it; a test under load would return it to service. RUN is TIME-TIME-VERB-DIGITS.
_KIND = """\
kind() { set -- "${1#*-*-}"; set -- "${1%%-*}"; [ "$1" != rollback ] || set -- upgrade; echo "$1"; }
"""
SLURM_MARK = "gpuprov:upgrade:"
"""Start of the Reason of a node that an upgrade has drained; the run follows."""
# DRAIN would replace the reason of an administrator, or of Slurm itself, without a message. The state
# decides: after RESUME, Slurm 24.11 still prints the former reason. State and Reason begin a line, State
# first. Texts that the node's slurmd reports, such as OS and Extra, are before and after State: they could
# have another state or reason, also on a line of its own, and any length.
_SLURM_STATE = """\
shown=$(scontrol show node "$GPUPROV_NODE") || exit
[ "${#shown}" -le 65536 ] || { echo "scontrol shows ${#shown} characters of $GPUPROV_NODE"; exit 1; }
states=0 reasons=0 state= reason=none
while IFS= read -r line; do
    case $states$line in
        ?"   State="*) states=$((states + 1)) state=${line#*=} state=${state%% *};;
        1"   Reason="*) reasons=$((reasons + 1)) reason=${line#*=};;
    esac
done <<shown
$shown
shown
[ "$states" = 1 ] || { echo "scontrol shows $states states of $GPUPROV_NODE, expected one"; exit 1; }
[ "$reasons" -le 1 ] || { echo "scontrol shows $reasons reasons of $GPUPROV_NODE, expected one"; exit 1; }
case $state in DOWN*|*DRAIN*|*FAIL*) out=yes;; *) out=no;; esac
"""

CORDON = f"{PREFIX}cordon"
"""Annotation of a node that an upgrade has cordoned: the run. `spec.unschedulable` itself has no author."""
# `true:RUN` for a node cordoned by an upgrade, `true:` by others, `:` for one that is schedulable.
_CORDONED = f"""\
form='{{.spec.unschedulable}}:{{.metadata.annotations.{CORDON.replace(".", chr(92) + ".")}}}'
state=$(kubectl get node "$GPUPROV_NODE" --output=jsonpath="$form") || exit
"""

# findmnt takes a path without an option for a source first, and a user can mount `/` somewhere (FUSE).
# Slurm: suspended and stopped jobs keep their memory on the node; CF jobs are starting, CG jobs are ending.
KNOWN_HOOKS: dict[str, KnownHook] = {
    "slurm": KnownHook(
        "controller",
        {
            "drain": f"""\
{_SLURM_STATE}{_KIND}case $out:$reason in
    yes:{SLURM_MARK}*) [ "$(kind "${{reason#{SLURM_MARK}}}")" != "$(kind "$GPUPROV_RUN")" ] || out=no;;
esac
[ "$out" = yes ] ||
    scontrol update NodeName="$GPUPROV_NODE" State=DRAIN Reason="{SLURM_MARK}$GPUPROV_RUN" || exit
while jobs=$(squeue --noheader --states=CF,R,S,ST,CG --nodelist="$GPUPROV_NODE") || exit; [ -n "$jobs" ]; do
    sleep 10
done
""",
            "resume": f"""\
{_SLURM_STATE}case $out:$reason in
    yes:"{SLURM_MARK}$GPUPROV_RUN "*) scontrol update NodeName="$GPUPROV_NODE" State=RESUME;;
    yes:*) echo "$GPUPROV_NODE stays $state: $reason";;
esac
""",
            "held": f"""\
{_SLURM_STATE}case $out:$reason in
    yes:"{SLURM_MARK}$GPUPROV_RUN "*) scontrol update NodeName="$GPUPROV_NODE" State=DRAIN \\
        Reason="{SLURM_MARK}$GPUPROV_RUN $GPUPROV_REASON";;
    *) echo "$GPUPROV_NODE stays $state: $reason";;
esac
""",
        },
    ),
    "kubernetes": KnownHook(
        "controller",
        {
            # One request sets cordon and annotation. Without a limit kubectl would ask again for ever while a
            # disruption budget allows no eviction, and end without the names of the pods.
            "drain": f"""\
{_CORDONED}own='{{"metadata":{{"annotations":{{"{CORDON}":"'$GPUPROV_RUN'"}}}},"spec":{{"unschedulable":true}}}}'
{_KIND}cordon=yes
case $state in
    true:) cordon=no;;
    true:*) [ "$(kind "${{state#true:}}")" = "$(kind "$GPUPROV_RUN")" ] || cordon=no;;
esac
[ "$cordon" = no ] || kubectl patch node "$GPUPROV_NODE" --type=merge --patch "$own" || exit
kubectl drain "$GPUPROV_NODE" --ignore-daemonsets --delete-emptydir-data \\
    --timeout="$(((GPUPROV_TIMEOUT * 9 + 9) / 10))s"
""",
            "resume": f"""\
{_CORDONED}case $state in
    *:"$GPUPROV_RUN") kubectl patch node "$GPUPROV_NODE" --type=merge --patch \\
        '{{"metadata":{{"annotations":{{"{CORDON}":null}}}},"spec":{{"unschedulable":null}}}}';;
    true:*) echo "$GPUPROV_NODE stays cordoned, as this run did not cordon it";;
esac
""",
        },
    ),
    "lvm": KnownHook(
        "node",
        {
            "snapshot": """\
root=$(findmnt --noheadings --output SOURCE --mountpoint /) || exit
group=$(lvs --noheadings --options vg_name "$root") || exit
lvs "${group##* }/gpuprov-$GPUPROV_RUN" >/dev/null 2>&1 ||
    lvcreate --snapshot --name "gpuprov-$GPUPROV_RUN" --extents 20%ORIGIN "$root"
""",
        },
    ),
    "btrfs": KnownHook(
        "node",
        {
            "snapshot": """\
[ -e "/.gpuprov-$GPUPROV_RUN" ] || btrfs subvolume snapshot -r / "/.gpuprov-$GPUPROV_RUN"
""",
        },
    ),
    "zfs": KnownHook(
        "node",
        {
            "snapshot": """\
root=$(findmnt --noheadings --output SOURCE --mountpoint /) || exit
zfs list -t snapshot "$root@gpuprov-$GPUPROV_RUN" >/dev/null 2>&1 || zfs snapshot "$root@gpuprov-$GPUPROV_RUN"
""",
        },
    ),
    "aws": KnownHook(
        "controller",
        {
            "snapshot": """\
found=$(aws ec2 describe-snapshots --owner-ids self --output text --query 'Snapshots[].SnapshotId' \\
    --filters "Name=tag:gpuprov,Values=$GPUPROV_RUN/$GPUPROV_NODE" \\
    Name=status,Values=pending,completed) || exit
[ -z "$found" ] || exit 0
machine=$(aws ec2 describe-instances --output text --query 'Reservations[].Instances[].InstanceId' \\
    --filters "Name=private-ip-address,Values=$GPUPROV_ADDRESS") || exit
aws ec2 create-snapshots --instance-specification "InstanceId=$machine" \\
    --tag-specifications "ResourceType=snapshot,Tags=[{Key=gpuprov,Value=$GPUPROV_RUN/$GPUPROV_NODE}]"
""",
        },
    ),
    # The boot disk of a Compute Engine machine has the machine's name by default.
    "gcloud": KnownHook(
        "controller",
        {
            "snapshot": """\
snapshot="gpuprov-$GPUPROV_RUN-$GPUPROV_NODE"
[ "$(gcloud compute snapshots describe "$snapshot" --format='value(status)' 2>/dev/null)" = READY ] ||
    gcloud compute snapshots create "$snapshot" --source-disk "$GPUPROV_NODE"
""",
        },
    ),
    "azure": KnownHook(
        "controller",
        {
            "snapshot": """\
query="[?name=='$GPUPROV_NODE'].[resourceGroup, storageProfile.osDisk.managedDisk.id]"
found=$(az vm list --query "$query" --output tsv) && set -- $found || exit
[ $# = 2 ] || { echo "expected one machine named $GPUPROV_NODE, found: ${found:-none}"; exit 1; }
snapshot="gpuprov-$GPUPROV_RUN-$GPUPROV_NODE"
[ "$(az snapshot show --resource-group "$1" --name "$snapshot" --query provisioningState --output tsv \\
    2>/dev/null)" = Succeeded ] ||
    az snapshot create --resource-group "$1" --name "$snapshot" --source "$2"
""",
        },
    ),
}
