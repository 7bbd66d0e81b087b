"""Identity of a node's root folder: name, keys, authorised login."""

from __future__ import annotations

import uuid
from pathlib import Path

from gpuprov_lab.host import execute, write_whole


def make_key(path: Path, comment: str) -> None:
    """Create an Ed25519 key pair at `path` and `path`.pub, unless there is a complete one."""
    if not path.with_suffix(".pub").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        execute(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def personalise(root: Path, name: str, public_key: str) -> None:
    """Set host name, machine id and a new host key of a fresh root, whose other host keys are removed, and
    authorise the lab's key, and no other, for root.
    """
    etc = root / "etc"
    write_whole(etc / "hostname", f"{name}\n")
    write_whole(etc / "hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n")
    # Without an id systemd treats this as a first boot and resets every unit to its preset.
    write_whole(etc / "machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    for old in (etc / "ssh").glob("ssh_host_*"):
        old.unlink()
    make_key(etc / "ssh/ssh_host_ed25519_key", f"root@{name}")
    authorise(root / "root", public_key)


def authorise(home: Path, public_key: str) -> None:
    """Authorise a key, and no other, for the account with this home folder; create `.ssh`."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    write_whole(home / ".ssh/authorized_keys", public_key, 0o600)


def host_key(root: Path) -> str:
    """Return the public Ed25519 host key in a node's root, as `TYPE BASE64`."""
    words = (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
    return " ".join(words[:2])
