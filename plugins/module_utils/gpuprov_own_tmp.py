# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Own /tmp and /var/tmp for programs of root that ignore errors there.

Any user can fill these folders. Without room `mkinitramfs` makes an image without modules, `dkms` archives a
part of a module, and rpm leaves out the scripts of a package; all of them succeed.

Runs on nodes: Python 3.6 to 3.14 and its standard library.
"""

import os
import subprocess
import sys

try:
    import ctypes
except ImportError:  # Debian's python3-minimal
    ctypes = None

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FOLDERS = (b"/tmp", b"/var/tmp")
VARIABLES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
"""Variables with another folder of temporary files, such as one of pam_tmpdir in /tmp."""
CLONE_NEWNS = 0x20000
SLAVE = 1 << 19 | 1 << 14
"""MS_SLAVE and MS_REC, mount(2): mounts of the node appear in the namespace, its own mounts nowhere else."""
SAFE = 2 | 4
"""MS_NOSUID and MS_NODEV."""
OPTIONS = (b"mode=1777,rootcontext=system_u:object_r:tmp_t:s0", b"mode=1777")
"""Options of a tmpfs: with SELinux, which gives the folder the label of /tmp, and without."""
LIBC = ctypes and ctypes.CDLL(None)


def with_own_tmp(environment: "Mapping[str, str]" = os.environ) -> "dict[str, Any]":
    """Return arguments of `subprocess.Popen` for a program with an empty /tmp and /var/tmp of its own.

    They are in memory, and end with the last process of the program. So are its other mounts not seen by the
    node. A service that it requests of systemd has the node's folders. Where root may not mount, as in a
    container, the program has the node's folders, too.

    Args:
        environment: the program's variables; those of `VARIABLES` are left out.
    """
    kept = {name: value for name, value in environment.items() if name not in VARIABLES}
    return {"env": kept, "preexec_fn": mount_own_tmp}


def run_with_own_tmp(*command: str) -> "tuple[int, str]":
    """Run a command without input and with folders of its own; return its exit status and standard error.

    Its standard error is also copied to this process's own.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        universal_newlines=True,  # noqa: UP021 - Python 3.6
        errors="replace",
        check=False,
        **with_own_tmp(),
    )
    sys.stderr.write(done.stderr)
    return done.returncode, done.stderr


def mount_own_tmp() -> None:
    """Mount empty folders over /tmp and /var/tmp for this process alone, if it may.

    Not by unshare(1): a profile of AppArmor in Ubuntu 25.04 takes the right to mount from what it starts.
    """
    if LIBC is None or LIBC.unshare(CLONE_NEWNS) or _mount(b"none", b"/", None, SLAVE, None):
        return
    for folder in FOLDERS:
        for options in OPTIONS:
            if _mount(b"gpuprov", folder, b"tmpfs", SAFE, options) == 0:
                break


def _mount(source: bytes, target: bytes, kind: "bytes | None", flags: int, options: "bytes | None") -> int:
    """Call mount(2); return 0, or -1 if it fails."""
    return LIBC.mount(source, target, kind, ctypes.c_ulong(flags), options)
