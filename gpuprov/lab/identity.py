"""What makes a root folder this node and no other: its name, its keys, who may log in."""

from __future__ import annotations

import uuid
from pathlib import Path

from gpuprov.lab.host import execute, write_whole


def make_key(path: Path, comment: str) -> None:
    """Make an Ed25519 key pair at `path` and `path`.pub, unless there is a whole one."""
    if not path.with_suffix(".pub").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        execute(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def personalise(root: Path, name: str, public_key: str) -> None:
    """Give a fresh root its host name, machine id and host key, and let the lab's key in as root."""
    etc = root / "etc"
    write_whole(etc / "hostname", f"{name}\n")
    write_whole(etc / "hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n")
    # Without an id systemd takes this for a first boot and switches every unit back to its preset.
    write_whole(etc / "machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    for old in (etc / "ssh").glob("ssh_host_*"):
        old.unlink()
    make_key(etc / "ssh/ssh_host_ed25519_key", f"root@{name}")
    authorise(root / "root", public_key)


def authorise(home: Path, public_key: str) -> None:
    """Let a key log in to the account with this home folder, and no other key."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    write_whole(home / ".ssh/authorized_keys", public_key, 0o600)


def host_key(root: Path) -> str:
    """A node's public host key, as `TYPE BASE64`."""
    words = (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
    return " ".join(words[:2])
