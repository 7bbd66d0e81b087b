"""Why no login worked, in the same words whoever tried: Paramiko for the probe, ssh for verification."""

from __future__ import annotations

import re

NO_SUCH_NAME = "no such host name"
SILENT = "something listens there, but does not answer"
TIMED_OUT = "timed out"
UNKNOWN_NAME = "neither DNS nor ~/.ssh/config knows it"
LOOK_THERE = "check the address, and that it is up"
LET_IN = "put the public key into its authorized_keys, or correct ssh: in fleet.yml"

_OPENSSH = (
    (r"ssh: connect to host \S+ port (\d+): .*timed out", f"no SSH on port {{}}: {TIMED_OUT}; {LOOK_THERE}"),
    (r"ssh: connect to host \S+ port (\d+): (.+)", f"no SSH on port {{}}: {{}}; {LOOK_THERE}"),
    (r"Connection timed out during banner exchange", SILENT),
    (r"ssh: Could not resolve hostname ([^:]+): .*", f"{NO_SUCH_NAME}: {{}}; {UNKNOWN_NAME}"),
    (r"(\S+@\S+): Permission denied \(.*\)\.?", f"{{}} refused every key offered; {LET_IN}"),
)
"""What ssh prints last (ssh.c, sshconnect.c and sshconnect2.c of OpenSSH) → our sentence."""


def of_openssh(line: str) -> str:
    """The last line that `ssh` printed, in the words of `failures.unreachable`; any other line as it is."""
    for pattern, sentence in _OPENSSH:
        if found := re.fullmatch(pattern, line.strip()):
            first, *others = [*found.groups(), ""]
            return sentence.format(first, *map(str.lower, others))
    return line
