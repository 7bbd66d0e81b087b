"""Files in places that users can write, as verify reads them: by a handle that opens no device and no pipe.

A user can replace such a file, and each link before it, between a look and an open. The program therefore
walks from `/` by handles of O_PATH, which have no effect on what they lead to, follows links of root and of
its own user only, and opens what it found to be a regular file by the entry of its handle in /proc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprov.verify.observers.programs import python

if TYPE_CHECKING:
    from testinfra.host import Host

TEXT_BYTES = 64 << 10
"""Maximum number of bytes of a file's text, as in the probe."""
HASHED_BYTES = 16 << 20
"""Maximum size in bytes of a file that is hashed, as in the probe."""
LINKS = 40
"""Maximum number of links in a path, as in the kernel."""
PROGRAM = f"""
import hashlib, os, stat, sys
print_what, path = sys.argv[1:]
names, here, links = path.split("/"), os.open("/", os.O_PATH), 0
while names:
    there = os.open(names.pop(0) or ".", os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
    about = os.fstat(there)
    if stat.S_ISLNK(about.st_mode):
        links += 1
        if links > {LINKS} or about.st_uid not in (0, os.geteuid()):
            sys.exit("a link of another user")
        target = os.readlink("", dir_fd=there)
        names = target.split("/") + names
        there = os.open("/", os.O_PATH) if target[0] == "/" else here
    here = there
about = os.fstat(here)
if not stat.S_ISREG(about.st_mode):
    sys.exit("not a regular file")
with open("/proc/self/fd/" + str(here), "rb") as file:
    if print_what == "text":
        sys.stdout.buffer.write(file.read({TEXT_BYTES}))
    elif about.st_size <= {HASHED_BYTES}:
        print(hashlib.sha256(file.read({HASHED_BYTES})).hexdigest())
"""
READ = python(PROGRAM)
TEXT, CHECKSUM = f"{READ} text %s", f"{READ} checksum %s"
"""Commands that print a file's text, and its SHA-256; nothing for what is no regular file."""


def text_of(host: Host, path: str) -> str:
    """Return the first `TEXT_BYTES` of a file's text; empty without a file that may be read."""
    return str(host.run(TEXT, path).stdout)


def checksum_of(host: Host, path: str) -> str | None:
    """Return the SHA-256 of a file; None without a file that may be read, or if it is too large."""
    return next(iter(str(host.run(CHECKSUM, path).stdout).split()), None)
