"""An nvidia-smi in uninterruptible sleep, as one has that waits for a driver that does not answer.

    python3 stuck_nvidia_smi.py FOLDER

It mounts a FUSE file system on FOLDER and reads each request without an answer: a process that looks for a
file there cannot be killed until this program ends.
"""

import ctypes
import os
import struct
import sys

INIT = 26
VERSION = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 8, 8, 65536, 1, 0, 0, 0, *[0] * 7)
"""The answer to the kernel's first request: version 7.31 of its protocol, and no options."""


def main() -> None:
    """Mount a FUSE file system at the stated folder, and answer none of its requests, until killed."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"stuck", sys.argv[1].encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    while True:
        _, operation, number = struct.unpack("<IIQ", os.read(device, 1 << 20)[:16])
        if operation == INIT:
            os.write(device, struct.pack("<IiQ", 16 + len(VERSION), 0, number) + VERSION)


if __name__ == "__main__":
    main()
