"""Ways to an sshd that listens and is not the main process of its unit, on a node of Debian."""

from __future__ import annotations

import re

LOSE_SSHD = """
systemd-run --quiet --unit=alias --property=Before=sshd.service sleep infinity
for each in $(seq 40); do
    systemctl daemon-reexec
    systemctl -q mask ssh.service
    systemctl daemon-reload
    systemctl -q unmask ssh.service
    systemctl -q is-active ssh.service || break
done
systemctl stop alias.service
! systemctl -q is-active ssh.service
"""
"""Shell commands after which systemd has lost sshd: another unit names its alias while the unit is masked.
Which state systemd keeps depends on an order that is random with each start of systemd.
"""
BY_HAND = """
systemctl stop ssh.service
mkdir -p /run/sshd
systemd-run --quiet --collect --unit=other /usr/sbin/sshd -D
"""
"""Shell commands after which sshd runs outside of its unit."""
MAIN = (
    'test "$(systemctl show --property=MainPID --value ssh.service)" = "$(pgrep -o -f "[l]istener")"'
    " && systemctl -q is-active ssh.service && echo main process"
)
"""Shell command that prints `main process` if the oldest listening sshd is that of its unit."""


def command_of(said: str) -> str:
    """Return the command that a refusal names."""
    found = re.search(r"`(sudo systemd-run sh -c 'kill [^`]*)`", re.sub(r"\s+", " ", said))
    assert found, said
    return found[1]
