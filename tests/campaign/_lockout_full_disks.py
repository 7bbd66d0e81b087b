"""Full file systems at each stage of a guarded apply: no file is truncated and no login is lost."""

from __future__ import annotations

from typing import Any

from tests.campaign._lockout_ways import Step, Trial, Way, without_ssh
from tests.lab.small_disks import STATE, move_to_small_disks

ROOT_MIB, STATE_MIB = 64, 8
_FILL = """\
for size in 64k 4k 1 1; do
    dd if=/dev/zero of={0}/filler bs=$size oflag=append conv=notrunc,fsync 2>/dev/null || :
done
"""
ROOT = _FILL.format("")
STATE_ALONE = _FILL.format(f"/{STATE}")
BOTH = ROOT + STATE_ALONE
ALMOST = f"{ROOT} truncate -s -80K /filler; sync -f /filler"
INODES = 'mkdir /spare && python3 -c \'for n in range(10**6): open(f"/spare/{n}", "w")\' 2>/dev/null || :'
NO_CONFIG = ": >/etc/ssh/sshd_config; systemctl restart $SSHD || :"


def small(*, apart: bool = False, fill: str = "") -> Step:
    """Return a step that moves the node to small disks and fills them.

    Args:
        apart: put gpuprov's state on a separate disk.
        fill: shell commands that fill the disks.
    """

    def step(trial: Trial) -> None:
        """Move the node to small disks, look at its files, and fill the disks."""
        move_to_small_disks(trial.node, ROOT_MIB, STATE_MIB if apart else 0)
        trial.before = trial.files()
        trial.console(fill or "true")

    return step


def full(moment: str, fill: str, *commands: str, killed: bool = False) -> Step:
    """Return a step that fills disks at a moment of the change, then runs more commands on the console."""

    def step(trial: Trial) -> None:
        """Wait for the moment, fill the disks, and run the commands; then kill the controller if stated."""
        getattr(trial, f"await_{moment}")()
        trial.console(fill)
        for command in commands:
            trial.console(command)
        if killed:
            trial.kill_controller()

    return step


def wrong_files(trial: Trial, *, kept: bool) -> list[str]:
    """Return the files that differ from before; after a kept change only those that are now empty."""
    before, now = trial.before, trial.files()
    if not kept:
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    trial.console("mkdir -p /run/sshd && sshd -t && visudo -cq && nft -c -f /etc/gpuprov/firewall.nft")
    return sorted(path for path, file in now.items() if _empty(file) and not _empty(before.get(path, b"")))


def _empty(file: bytes) -> bool:
    """Return whether a file of `Trial.files` has no content after its mode and owner."""
    return file.endswith(b" ")


def _way(name: str, during: Step | None = None, *, apart: bool = False, fill: str = "", **more: Any) -> Way:
    """Return a way with a full file system."""
    return Way(f"disk full: {name}", during, small(apart=apart, fill=fill), full=True, **more)


SHUT: dict[str, Any] = {"lock": without_ssh}
REBOOT = "systemctl --no-block reboot"
FULL_DISKS = (
    _way("before arming", fill=ROOT, refused=True),
    _way("before arming, where the state is", apart=True, fill=STATE_ALONE, refused=True),
    _way("before arming, 80 KiB left", fill=ALMOST, refused=True),
    _way("before arming, no inode left", fill=INODES, refused=True),
    _way("when armed", full("armed", ROOT)),
    _way("when armed, state apart", full("armed", BOTH), apart=True),
    _way("when armed, no inode left", full("armed", INODES)),
    _way("when options are written", full("written", ROOT)),
    _way("when options are written, state apart", full("written", BOTH), apart=True),
    _way("sshd_config cut short by a hand", full("written", BOTH, NO_CONFIG), apart=True),
    _way("when rules are written", full("filed", ROOT), kept=True),
    _way("when rules are loaded, before the proof", full("loaded", ROOT), kept=True),
    _way("where the state is, before the proof", full("loaded", STATE_ALONE), apart=True, kept=True),
    _way("when nobody gets in", full("loaded", ROOT), **SHUT),
    _way("when nobody gets in, controller killed", full("loaded", BOTH, killed=True), apart=True, **SHUT),
    _way("while the old state comes back", full("restoring", BOTH), apart=True, **SHUT),
    _way("rebooted when nobody gets in", full("loaded", ROOT, REBOOT, killed=True), **SHUT),
    _way("rebooted, state apart", full("loaded", BOTH, REBOOT, killed=True), apart=True, **SHUT),
)
