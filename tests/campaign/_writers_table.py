"""Functions of gpuprov that write files, each with a test file and the lines that it must keep."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import gpuprov_files
import gpuprov_initramfs
import paramiko

from gpuprov.access.scripts import node_script
from gpuprov.bootstrap.hostkeys import HostKeys
from gpuprov.inventory.firstboot.node import first_boot
from gpuprov.locking.repository import fetch
from gpuprov.model.documents import write_text
from gpuprov.upgrade.node import files, packages
from tests.unit.roles.scripts import script

BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIMadeForThisRunMadeForThisRunMadeForThis1"
THEIRS = b"ssh-ed25519 AAAA1 alice\n# kept\n\nssh-rsa AAAA2 bob\n"
OURS = f'restrict,from="127.0.0.1",expiry-time="20300101" ssh-ed25519 {BLOB} gpuprov\n'.encode()
TURNED_AWAY = f"command=\"echo 'Please login as the user x'\" ssh-ed25519 {BLOB} me\n".encode()
OLD, NEW = b"old\n" * 300, "new\n" * 3000
USER = 4321
SHELL_FILES = node_script("gpuprov.access", "node/files.sh")
THROWAWAY = node_script("gpuprov.access", "node/throwaway.sh")
SWITCH = node_script("gpuprov.access", "node/deadman.sh").partition("\ncase $1 in\narm)")[0]
HOST_KEY = paramiko.ECDSAKey.generate()
PINNED = b"other.example ssh-rsa AAAA1\n"
transaction = script("packages", "transaction")


@dataclass(frozen=True)
class Writer:
    """A writer and its test file.

    Attributes:
        path: path below the sandbox: `home`, `var` or `etc`.
        old: content before.
        work: function that writes the given file; it raises or exits on failure.
        others: lines of other users, which must all remain.
        owner: owner of the file and its folder.
        mode: mode of the file before.
        sets: mode of the file afterwards; None if it keeps its mode.
    """

    name: str
    path: str
    old: bytes
    work: Callable[[Path], object]
    others: bytes = b""
    owner: int = 0
    mode: int = 0o640
    sets: int | None = None


def sh(text: str, *words: str | Path, stdin: str | None = None) -> None:
    """Run a shell script; raise if it fails."""
    subprocess.run(
        ["sh", "-c", text, "script", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        input=stdin,
    )


def _files(path: Path) -> None:
    """Write a file by gpuprov_files."""
    each = {
        "path": str(path),
        "content": NEW,
        "mode": "0644",
        "keep_mode": False,
        "backup": True,
        "validate": "test -s %s",
        "wanted": True,
        "block": False,
    }
    gpuprov_files.settle([each], [], {}, check=False)


def _keys(act: str, *words: str) -> Callable[[Path], None]:
    """Return a function that edits a file of keys by `edit_keys`."""
    text = f'set -eu\n{THROWAWAY.partition("refuse()")[0]}edit_keys {act} "$@"'

    def work(path: Path) -> None:
        sh(text, path, *words)

    return work


def _pin(path: Path) -> None:
    """Write a file of known hosts by pinning a key."""
    HostKeys(path, None).pin("new.example", 22, [f"{HOST_KEY.get_name()} {HOST_KEY.get_base64()}"])


def _put_back(path: Path) -> None:
    """Write a file as the rollback restores it."""
    files._write(
        str(path), {"content": base64.b64encode(NEW.encode()).decode(), "mode": 0o640, "owner": [0, 0]}
    )


def _remember(path: Path) -> None:
    """Write a record of packages."""
    with patch.object(transaction, "RECORDS", path.parent):
        transaction.remember({path.name: {f"package-{n}": "1" for n in range(200)}})


def _stand_in(path: Path) -> None:
    """Write the program in place of update-initramfs, for the time of a transaction."""
    names = {"FOLDER": str(path.parent), "PROGRAM": f"/{path.name}", "shutil": _Keeps}
    names["has_program"] = lambda: True
    with patch.multiple(gpuprov_initramfs, **names), gpuprov_initramfs.postponed():
        pass


class _Keeps:
    @staticmethod
    def rmtree(*_words: object, **_named: object) -> None:
        """Keep the folder, so that the file can be checked."""


def _switch(path: Path) -> None:
    """Write a file as the dead man's switch restores it."""
    saved = next(each for each in path.parents if (each / "saved").exists()) / "saved"
    sh(f'{SWITCH}\nset +e\nput_back "$1" "$2"', saved, path)


def _replace_file(path: Path) -> None:
    """Write a file by the shell function `replace_file`."""
    sh(f'{SHELL_FILES}\nreplace_file "$1" 440', path, stdin=NEW)


LINE = OURS.decode().strip()
KEYS = "home/user/.ssh/authorized_keys"
WRITERS = (
    Writer("keys: throwaway added", KEYS, THEIRS, _keys("add", f"{USER}:{USER}", LINE), THEIRS, USER),
    Writer("keys: throwaway removed", KEYS, THEIRS + OURS, _keys("remove", BLOB), THEIRS, USER),
    Writer(
        "keys: bootstrap",
        KEYS,
        TURNED_AWAY + THEIRS,
        _keys("authorize", f"{USER}:{USER}", "root", f"ssh-ed25519 {BLOB} me"),
        THEIRS,
        USER,
    ),
    Writer("switch: file put back", KEYS, THEIRS, _switch, owner=USER),
    Writer("switch: sshd's put back", "etc/ssh/sshd_config", OLD, _switch),
    Writer("sh: sudo's rule, drop-in", "etc/sudoers.d/90-gpuprov", OLD, _replace_file),
    Writer("node: gpuprov_files", "etc/conf.d/role.conf", OLD, _files, sets=0o644),
    Writer("node: records of packages", "var/packages/driver", OLD, _remember, sets=0o644),
    Writer("node: initramfs stand-in", "var/scripts/update-initramfs", OLD, _stand_in, sets=0o755),
    Writer("node: upgrade, file put back", "etc/conf.d/role.conf", OLD, _put_back),
    Writer(
        "node: upgrade's records",
        "var/lastgood/run.json",
        OLD,
        lambda path: packages.write(str(path), {"a": NEW}),
        sets=0o600,
    ),
    Writer(
        "node: first boot's metrics",
        "var/textfile/first_boot.prom",
        OLD,
        lambda path: first_boot.write(path, NEW, 0o644),
        owner=USER,
        sets=0o644,
    ),
    Writer(
        "controller: lock, reports",
        "home/user/fleet.lock.yml",
        OLD,
        lambda path: write_text(path, NEW),
        owner=USER,
    ),
    Writer("controller: known hosts", "home/user/known_hosts", PINNED, _pin, PINNED, USER),
    Writer("controller: index cache", "var/cache/index", OLD, lambda path: fetch._write(path, NEW.encode())),
)


def _in_place(path: Path) -> None:
    """Write a file without a temporary one: a control, which must fail."""
    path.write_text(NEW)


def _copied_back(path: Path) -> None:
    """Write a file by copying a changed copy over it: a control, which must fail."""
    sh('rest=$(mktemp); grep -v gpuprov "$1" >"$rest" || :; cat "$rest" >"$1"; rm "$rest"', path)


CONTROLS = (
    Writer("control: written in place", "etc/conf.d/role.conf", OLD, _in_place),
    Writer("control: filtered, copied back", KEYS, THEIRS + OURS, _copied_back, THEIRS, USER),
)
"""Wrong writers: the campaign must find an error in each."""
