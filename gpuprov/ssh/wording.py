"""Messages for failed logins, the same for Paramiko in the probe and for ssh in verification."""

from __future__ import annotations

import re

NO_SUCH_NAME = "no such host name"
SILENT = "the port is open, but does not answer"
TIMED_OUT = "timed out"
UNKNOWN_NAME = "neither DNS nor ~/.ssh/config knows it: correct the name, or state its address under hosts"
LOOK_THERE = "check the address, and that it is up"
LET_IN = (
    "put the public key into its authorized_keys, or correct ssh: in fleet.yml; without a fleet, give -i FILE"
)
ANOTHER_LOGIN = "give a key that may log in with --identity FILE, or --ask-pass"

NO_SESSION = 254
"""Exit code of sshd's process for a login whose session PAM did not open (`do_child` of its session.c)."""
PAM_REFUSED = f"the login is accepted, but PAM opens no session (status {NO_SESSION} of sshd)"
SEE_CONSOLE = (
    "see `journalctl -u ssh -u sshd` at the node's console; on Debian 12 a missing"
    " /etc/security/limits.conf has this effect"
)

COMPARE = "add it to the known-hosts file once you have compared it"
MAKE_SURE = "make sure that it is the right machine, then remove the old key with ssh-keygen -R"

_OPENSSH = (
    (r"ssh: connect to host \S+ port (\d+): .*timed out", f"no SSH on port {{}}: {TIMED_OUT}; {LOOK_THERE}"),
    (r"ssh: connect to host \S+ port (\d+): (.+)", f"no SSH on port {{}}: {{}}; {LOOK_THERE}"),
    (r"Connection timed out during banner exchange", SILENT),
    (r"ssh: Could not resolve hostname ([^:]+): .*", f"{NO_SUCH_NAME}: {{}}; {UNKNOWN_NAME}"),
    (r"(\S+@\S+): Permission denied \(.*\)\.?", f"{{}} refused every key offered; {LET_IN}"),
)
"""ssh's last line (ssh.c, sshconnect.c and sshconnect2.c of OpenSSH) → gpuprov's message."""


LONGEST = 1000
"""Maximum length of a line of ssh in a message; a node can write it, and a pattern takes the square of it."""
_REFUSED_KEY = "Host key verification failed."
_HOST_KEYS = (
    (
        r"host key is known for (\S+) and you have requested strict",
        "the host key of {} is not known; " + COMPARE,
    ),
    (r"Host key for (\S+) has changed", "the host key of {} has changed; " + MAKE_SURE),
)
"""A line before ssh's last one, if it rejects the node's key → gpuprov's message."""


def of_openssh(text: str) -> str:
    """Return the message for ssh's output, worded as in `failures.unreachable`; by default its last line."""
    line = (text.strip().splitlines() or [""])[-1].strip()[:LONGEST]
    if line == _REFUSED_KEY:
        for pattern, sentence in _HOST_KEYS:
            if found := re.search(pattern, text):
                return sentence.format(re.sub(r"^\[(.*)\]:\d+\Z", r"\1", found[1]))
    for pattern, sentence in _OPENSSH:
        if found := re.fullmatch(pattern, line):
            first, *others = [*found.groups(), ""]
            return sentence.format(first, *map(str.lower, others))
    return line
