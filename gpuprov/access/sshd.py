"""Settings of SSH as sshd's options, each exactly as `sshd -T` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from gpuprov.errors import Refused
from gpuprov.model.connection import Connection
from gpuprov.model.settings.access import Ssh

DROP_IN = "/etc/ssh/sshd_config.d/00-gpuprov.conf"
USER_CA = "/etc/ssh/gpuprov_user_ca"
PRINCIPALS = "/etc/ssh/gpuprov_principals"
BANNER = "/etc/ssh/gpuprov_banner"
CERTIFICATES_SIGNED_BY = (
    {"name": "ssh-ed25519"},
    {"name": "sk-ssh-ed25519@openssh.com", "since": "8.2"},
    {"name": "rsa-sha2-512"},
    {"name": "rsa-sha2-256"},
)
SSH_PORT = 22
PENALTIES_SINCE = "9.8"
TCP_FORWARDING = {"no": "no", "local": "local", "yes": "yes"}


@cache
def policies() -> dict[str, Any]:
    """Return the content of `policies.json`."""
    document: dict[str, Any] = json.loads((files("gpuprov.access") / "policies.json").read_text("utf-8"))
    return document


def sshd_options(ssh: Ssh, system: str, connection: Connection) -> dict[str, str]:
    """Return sshd's options for a group: keyword → value.

    Values of a keyword that may repeat are separated by spaces.

    Args:
        system: id of the operating system, such as `debian12`.

    Raises:
        Refused: the system's OpenSSH does not support the policy, or sshd would refuse the fleet's own login.
    """
    known = policies()
    release = known["openssh"].get(system)
    if release is None or _older(release, known["oldest"]):
        raise Refused(
            f"settings.ssh: the OpenSSH of {system} is {release or 'not known'}",
            expected=f"{known['oldest']} or later: {', '.join(_systems(known))}",
            do="leave settings.ssh out for this group",
        )
    if ssh.root == "no" and connection.user in (None, "root"):
        raise Refused(
            "settings.ssh.root is 'no', and the fleet logs in as root: that login would stop working",
            do="`gpuprov bootstrap` makes another admin; name that one in ssh.user",
        )
    policy = known["policies"][ssh.policy]
    if not _names(policy["kex"], release):
        raise Refused(
            f"settings.ssh: the OpenSSH of {system} is {release}, without a key exchange of `{ssh.policy}`",
            do="state `policy: compatible` in settings.ssh of this group",
        )
    stated = {
        each["keyword"]: each["value"]
        for each in [*known["options"], *policy["options"]]
        if not _older(release, each.get("since", "0")) and _older(release, each.get("before", "999"))
    }
    found = {**_site(ssh, release, connection), **stated, **_algorithms(policy, release)}
    former = {new: old["name"] for new, old in known["renamed"].items() if _older(release, old["before"])}
    return {former.get(keyword, keyword): value for keyword, value in found.items()}


def ports_of(options: Mapping[str, str]) -> list[int]:
    """Return the ports in options that `sshd_options` has returned, in their order; [] without options."""
    return [int(port) for port in options.get("Port", "").split()]


def _site(ssh: Ssh, release: str, connection: Connection) -> dict[str, str]:
    """Return the options of sshd_config that depend on the group's settings and connection.

    Args:
        release: of OpenSSH; without the option for `exempt` before `PENALTIES_SINCE`.
    """
    ports = dict.fromkeys([connection.port or SSH_PORT, *([ssh.port] if ssh.port else [])])
    options = {
        "Port": " ".join(map(str, ports)),
        "PermitRootLogin": "prohibit-password" if ssh.root == "key" else "no",
        "AllowTcpForwarding": TCP_FORWARDING[ssh.forwarding],
        "AllowStreamLocalForwarding": TCP_FORWARDING[ssh.forwarding],
        "AllowAgentForwarding": "yes" if ssh.forwarding == "yes" else "no",
        "MaxAuthTries": str(ssh.max_auth_tries),
        "Banner": BANNER if ssh.banner else "none",
        "TrustedUserCAKeys": USER_CA if ssh.user_ca else "none",
        "AuthorizedPrincipalsFile": PRINCIPALS if ssh.principals else "none",
    }
    if ssh.allow_groups:
        options["AllowGroups"] = " ".join(ssh.allow_groups)
    if ssh.exempt and not _older(release, PENALTIES_SINCE):
        options["PerSourcePenaltyExemptList"] = ",".join(ssh.exempt)
    return options


def _algorithms(policy: dict[str, Any], release: str) -> dict[str, str]:
    """Return the options for keys and algorithms of a policy, without those newer than `release`."""
    host_keys = {
        "ed25519": "ssh-ed25519,ssh-ed25519-cert-v01@openssh.com",
        "rsa": "rsa-sha2-512,rsa-sha2-256",
    }
    return {
        "HostKey": " ".join(f"/etc/ssh/ssh_host_{kind}_key" for kind in policy["host_keys"]),
        "HostKeyAlgorithms": ",".join(host_keys[kind] for kind in policy["host_keys"]),
        "KexAlgorithms": _names(policy["kex"], release),
        "Ciphers": ",".join(policy["ciphers"]),
        "MACs": ",".join(policy["macs"]),
        "PubkeyAcceptedAlgorithms": _names(policy["user_keys"], release),
        "CASignatureAlgorithms": _names(CERTIFICATES_SIGNED_BY, release),
    }


def _names(algorithms: Iterable[dict[str, str]], release: str) -> str:
    """Return the names of the algorithms that an OpenSSH has, with commas between them; "" for none."""
    return ",".join(each["name"] for each in algorithms if not _older(release, each.get("since", "0")))


def _older(release: str, than: str) -> bool:
    """Return whether a release such as `9.2` precedes another."""
    return _numbers(release) < _numbers(than)


def _numbers(release: str) -> list[int]:
    """Return the parts of a release, `9.2`, as numbers."""
    return [int(part) for part in release.split(".")]


def _systems(known: dict[str, Any]) -> list[str]:
    """Return the systems whose OpenSSH is supported."""
    return [name for name, release in known["openssh"].items() if not _older(release, known["oldest"])]
